//! The symbols of a guest's Linux, as a file for gdb.

use super::kallsyms::{Image, PAGE, Symbol, modules, symbols};
use super::{Debugged, thread};
use abi::control::Answer;
use abi::control::debug::Debug;
use object::elf;
use object::write::elf::{FileHeader, SectionHeader, Sym, Writer};
use object::write::{Error, StringId};
use std::ops::Range;
use std::time::{Duration, Instant};

/// The time limit for the search.
const PATIENCE: Duration = Duration::from_secs(20);
/// A kernel's first address is a multiple of this in every address space.
const ALIGNMENT: u64 = 2 << 20;
/// The most bytes of a kernel in memory.
const MOST_BYTES: u64 = 128 << 20;
/// The bytes of the header of a kernel (`Documentation/arch/riscv/boot-image-header.rst`).
const HEADER: usize = 64;
/// The distance of symbols of modules that are in different pieces of memory, in bytes.
const FAR: u64 = 16 << 10;
/// The most sections of the file. Kernels have about 50 changes from code to data.
const MOST_SECTIONS: usize = 1000;

/// The beginning of each of these files, and of no others: 64 bits, little-endian, no ABI of an operating system.
pub const MARK: &[u8] = b"\x7fELF\x02\x01\x01\0\0gnomon\0";

/// The kernel of a guest.
#[derive(Debug)]
pub enum Kernel {
    /// No vCPU's trap handler is in a Linux kernel: it is another guest, or has not turned on its address translation.
    NoLinux,
    /// A Linux kernel without tables that can be read.
    NoTables,
    /// A Linux kernel with its symbols.
    Found {
        /// The virtual address of its first byte.
        base: u64,
        /// Its number of symbols.
        count: usize,
        /// The number of its modules.
        modules: usize,
        /// An ELF file with them.
        file: Vec<u8>,
    },
}

impl Debugged {
    /// Looks for a Linux kernel in the VM's memory, and for the symbols that it has of itself.
    pub fn kernel(&mut self) -> Kernel {
        let until = Instant::now() + PATIENCE;
        let found = (0..self.vm.vcpus).find_map(|vcpu| self.linux(vcpu, until).map(|range| (vcpu, range)));
        let Some((vcpu, range)) = found else { return Kernel::NoLinux };
        let bytes = range.end - range.start;
        let mut fetch = |at| self.page(vcpu, at, until);
        let Some(all) = symbols(&mut Image::new(range.start, bytes, &mut fetch)) else { return Kernel::NoTables };
        let heads = all.iter().filter(|symbol| symbol.name == "modules" && !is_code(symbol));
        let heads: Vec<_> = heads.map(|symbol| symbol.address).collect();
        let mut memory = Image::new(0, u64::MAX, &mut fetch);
        let found = heads.into_iter().find_map(|head| modules::symbols(&mut memory, head));
        // gdb knows those in the kernel's image by the image's symbols.
        let (modules, mut others) = found.unwrap_or_default();
        others.retain(|symbol| !range.contains(&symbol.address));
        let count = all.len() + others.len();
        let groups = groups(&others).chain([(&all[..], range.end)]);
        match file(groups.collect()) {
            Ok(file) => Kernel::Found { base: range.start, count, modules, file },
            Err(_) => Kernel::NoTables,
        }
    }

    /// Returns the addresses of the Linux kernel that a vCPU's trap handler belongs to.
    fn linux(&mut self, vcpu: u32, until: Instant) -> Option<Range<u64>> {
        let handler = self.registers(thread(vcpu)).ok()?.stvec & !3;
        let highest = handler - handler % ALIGNMENT;
        (0..MOST_BYTES / ALIGNMENT).find_map(|step| {
            let base = highest.checked_sub(step * ALIGNMENT)?;
            let end = base.checked_add(image_bytes(&self.page(vcpu, base, until)?)?)?;
            (handler < end).then_some(base..end)
        })
    }

    fn page(&mut self, vcpu: u32, at: u64, until: Instant) -> Option<Vec<u8>> {
        if Instant::now() > until {
            return None;
        }
        match self.ask(&Debug::Read { vcpu, at, bytes: PAGE as u32 }) {
            Ok(Answer::Memory(bytes)) => Some(bytes),
            _ => None,
        }
    }
}

/// Returns the bytes of the kernel that begins with this page, if one does.
fn image_bytes(page: &[u8]) -> Option<u64> {
    let header = page.get(..HEADER)?;
    let is_kernel = header[0x30..0x38] == *b"RISCV\0\0\0" && header[0x38..0x3c] == *b"RSC\x05";
    let bytes = u64::from_le_bytes(header[0x10..0x18].try_into().ok()?);
    (is_kernel && (PAGE..=MOST_BYTES).contains(&bytes)).then_some(bytes.next_multiple_of(PAGE))
}

fn is_code(symbol: &Symbol) -> bool {
    matches!(symbol.kind, b't' | b'T' | b'w' | b'W')
}

/// Cuts ascending symbols where they are far from each other, so that what is between them is no part of the one before.
/// Returns each group with its end.
fn groups(all: &[Symbol]) -> impl Iterator<Item = (&[Symbol], u64)> {
    let groups = all.chunk_by(|one, next| next.address - one.address < FAR);
    groups.filter_map(|group| Some((group, group.last()?.address.checked_add(1)?.checked_next_multiple_of(PAGE)?)))
}

/// Cuts symbols into runs of code and runs of data, which are the sections. gdb wants sections, and takes symbols for what they are in.
fn sections((all, end): (&[Symbol], u64)) -> Vec<(&[Symbol], Range<u64>)> {
    // Symbols of one address are in one section.
    let runs = all.chunk_by(|one, next| one.address == next.address || is_code(one) == is_code(next));
    let runs: Vec<_> = runs.collect();
    let runs = if runs.len() <= MOST_SECTIONS { runs } else { vec![all] };
    let ends = runs.iter().skip(1).map(|run| run[0].address).chain([end]);
    runs.iter().zip(ends).map(|(run, end)| (*run, run[0].address..end)).collect()
}

/// Writes an ELF file with these groups of symbols, each with its end, and no contents. In a group the symbols ascend.
fn file(groups: Vec<(&[Symbol], u64)>) -> Result<Vec<u8>, Error> {
    let entry = groups.last().and_then(|(group, _)| group.first()).map_or(0, |first| first.address);
    let sections: Vec<_> = groups.into_iter().flat_map(sections).collect();
    let mut file = Vec::new();
    let mut writer = Writer::new(object::Endianness::Little, true, &mut file);
    writer.reserve_file_header();
    writer.reserve_null_section_index();
    let (code, data) = (writer.add_section_name(b".text"), writer.add_section_name(b".data"));
    let indices: Vec<_> = sections.iter().map(|_| writer.reserve_section_index()).collect();
    writer.reserve_null_symbol_index();
    let all = sections.iter().flat_map(|(run, _)| run.iter());
    let names: Vec<StringId> = all.map(|symbol| writer.add_string(symbol.name.as_bytes())).collect();
    for ((run, _), index) in sections.iter().zip(&indices) {
        for _ in *run {
            writer.reserve_symbol_index(Some(*index));
        }
    }
    writer.reserve_symtab_section_index();
    writer.reserve_strtab_section_index();
    writer.reserve_shstrtab_section_index();
    writer.reserve_symtab();
    writer.reserve_strtab()?;
    writer.reserve_shstrtab()?;
    writer.reserve_section_headers();
    writer.write_file_header(&FileHeader {
        os_abi: elf::ELFOSABI_NONE,
        abi_version: 0,
        e_type: elf::ET_EXEC,
        e_machine: elf::EM_RISCV,
        e_entry: entry,
        e_flags: elf::EF_RISCV_RVC,
    })?;
    writer.write_null_symbol();
    let mut names = names.into_iter();
    for ((run, range), index) in sections.iter().zip(&indices) {
        for (at, symbol) in run.iter().enumerate() {
            let next = run[at..].iter().map(|next| next.address).find(|next| *next != symbol.address);
            let kind = if is_code(symbol) { elf::STT_FUNC } else { elf::STT_OBJECT };
            let binding = if symbol.kind.is_ascii_uppercase() { elf::STB_GLOBAL } else { elf::STB_LOCAL };
            writer.write_symbol(&Sym {
                section: None,
                st_name: writer.string_offset(names.next()),
                st_info: binding | kind,
                st_other: elf::SymbolOther(0),
                st_shndx: elf::SymbolSection::new(index.0),
                st_value: symbol.address,
                st_size: next.unwrap_or(range.end) - symbol.address,
            });
        }
    }
    writer.write_strtab();
    writer.write_shstrtab();
    writer.write_null_section_header();
    for (run, range) in &sections {
        let (name, access) = if is_code(&run[0]) { (code, elf::SHF_EXECINSTR) } else { (data, elf::SHF_WRITE) };
        writer.write_section_header(&SectionHeader {
            sh_name: writer.section_name_offset(Some(name)),
            sh_type: elf::SHT_NOBITS,
            sh_flags: elf::SHF_ALLOC | access,
            sh_addr: range.start,
            sh_offset: 0,
            sh_size: range.end - range.start,
            sh_link: 0,
            sh_info: 0,
            sh_addralign: 1,
            sh_entsize: 0,
        });
    }
    // gdb does not mind that local symbols are between global ones.
    writer.write_symtab_section_header(1);
    writer.write_strtab_section_header();
    writer.write_shstrtab_section_header();
    // Bytes of the identification that have no use.
    file[..MARK.len()].copy_from_slice(MARK);
    Ok(file)
}
