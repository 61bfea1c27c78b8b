//! ELF executables, flattened to one image.

use super::image::{Kind, Payload, Unfit};
use crate::host::size::{PAGE, Size};
use abi::bundle::GUEST_RAM_BASE;
use object::elf::{EM_386, EM_AARCH64, EM_ARM, EM_RISCV, EM_X86_64, ET_DYN, ET_EXEC, FileHeader64, PT_INTERP, PT_LOAD};
use object::read::elf::{FileHeader, ProgramHeader};
use object::{Endianness, elf};

/// No payload's segments lie further apart than this.
const MOST_BYTES: u64 = 1 << 30;

/// Returns whether the file is ELF of any kind.
pub fn is_elf(bytes: &[u8]) -> bool {
    bytes.starts_with(&elf::ELFMAG)
}

/// Reads an executable: all loadable segments by physical address, the rest zero.
pub fn read(bytes: &[u8]) -> Result<Payload, Unfit> {
    let broken = |_| Unfit::new("is a broken or truncated ELF file", "copy the file again, or build it again");
    let for_riscv = "build it for 64-bit RISC-V, such as target riscv64imac-unknown-none-elf";
    // Class and byte order first: the header proper cannot be read without them.
    let class = bytes.get(4).map(|class| elf::FileClass(*class));
    let order = bytes.get(5).map(|order| elf::DataEncoding(*order));
    match (class, order) {
        (Some(elf::ELFCLASS64), Some(elf::ELFDATA2LSB)) => {}
        (Some(elf::ELFCLASS32), _) => return Err(Unfit::new("is a 32-bit ELF file", for_riscv)),
        (Some(_), Some(elf::ELFDATA2MSB)) => return Err(Unfit::new("is a big-endian ELF file", for_riscv)),
        _ => return Err(broken(())),
    }
    let header = FileHeader64::<Endianness>::parse(bytes).map_err(|_| broken(()))?;
    let endian = header.endian().map_err(|_| broken(()))?;
    match header.e_machine(endian) {
        EM_RISCV => {}
        other => return Err(Unfit::new(format!("is an ELF file for {}", machine(other)), for_riscv)),
    }
    if ![ET_EXEC, ET_DYN].contains(&header.e_type(endian)) {
        return Err(Unfit::new("is an ELF file, but not an executable", "link it to an executable"));
    }
    let segments = header.program_headers(endian, bytes).map_err(|_| broken(()))?;
    if segments.iter().any(|segment| segment.p_type(endian) == PT_INTERP) {
        return Err(Unfit::new(
            "is a program for Linux, not a kernel",
            "give a kernel, firmware or bare-metal program",
        ));
    }
    let mut pieces = Vec::new();
    for segment in segments.iter().filter(|segment| segment.p_type(endian) == PT_LOAD) {
        let data = segment.data(endian, bytes).map_err(broken)?;
        let (start, memory_bytes) = (segment.p_paddr(endian), segment.p_memsz(endian));
        let end = start.checked_add(memory_bytes.max(data.len() as u64)).ok_or_else(|| broken(()))?;
        if start != end {
            pieces.push((start, end, data));
        }
    }
    let (Some(low), Some(high)) = (pieces.iter().map(|p| p.0).min(), pieces.iter().map(|p| p.1).max()) else {
        return Err(Unfit::new("is an ELF file with nothing to load", "link it to an executable"));
    };
    if low < GUEST_RAM_BASE {
        return Err(Unfit::new(
            format!("is linked at {low:#x}, below a guest's RAM"),
            format!("link it at {:#x}, or anywhere else above {GUEST_RAM_BASE:#x}", abi::bundle::GUEST_ENTRY),
        ));
    }
    let gpa = low / PAGE * PAGE;
    if high - gpa > MOST_BYTES || high > 1 << 48 {
        return Err(Unfit::new(
            format!("has segments from {low:#x} to {high:#x}, more than {}", Size(MOST_BYTES)),
            "link it at physical addresses; for Linux, give arch/riscv/boot/Image instead of vmlinux",
        ));
    }
    let entry_gpa = header.e_entry(endian);
    if !(low..high).contains(&entry_gpa) {
        return Err(Unfit::new(format!("has its entry {entry_gpa:#x} outside of what it loads"), "link it again"));
    }
    // What no segment fills is zero in RAM anyway: the image ends with the last byte of a file.
    let filled = pieces.iter().map(|(start, _, data)| start - gpa + data.len() as u64).max().unwrap_or(0);
    let mut flat = vec![0; filled.max(1) as usize];
    for (start, _, data) in pieces {
        let at = (start - gpa) as usize;
        flat[at..at + data.len()].copy_from_slice(data);
    }
    Ok(Payload { kind: Kind::Elf, bytes: flat, gpa, entry_gpa, span_bytes: high - gpa })
}

fn machine(machine: elf::Machine) -> String {
    match machine {
        EM_X86_64 => "x86-64".into(),
        EM_386 => "x86".into(),
        EM_AARCH64 => "64-bit Arm".into(),
        EM_ARM => "32-bit Arm".into(),
        other => format!("machine {}", other.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An executable with one segment of `data` at `paddr`, `memory` bytes long.
    fn executable(machine: u16, paddr: u64, data: &[u8], memory: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend_from_slice(&[0x7f, b'E', b'L', b'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        for half in [2u16, machine] {
            bytes.extend_from_slice(&half.to_le_bytes());
        }
        bytes.extend_from_slice(&1u32.to_le_bytes());
        for word in [paddr + 4, 64, 0] {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
        bytes.extend_from_slice(&0u32.to_le_bytes());
        for half in [64u16, 56, 1, 64, 0, 0] {
            bytes.extend_from_slice(&half.to_le_bytes());
        }
        for word in [1u32, 7] {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
        for word in [120, 0xffff_ffff_8000_0000, paddr, data.len() as u64, memory, 1] {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
        bytes.extend_from_slice(data);
        bytes
    }

    #[test]
    fn segments_are_flattened_by_physical_address() {
        let payload = read(&executable(243, 0x8020_0010, &[1, 2, 3, 4, 5], 0x3000)).expect("an executable");
        assert_eq!((payload.kind, payload.gpa, payload.entry_gpa), (Kind::Elf, 0x8020_0000, 0x8020_0014));
        assert_eq!((payload.bytes.len(), payload.span_bytes), (0x15, 0x3010));
        assert_eq!(&payload.bytes[0x10..], &[1, 2, 3, 4, 5]);
    }

    #[test]
    fn the_wrong_kind_is_named() {
        for (machine, name) in [(62, "x86-64"), (183, "64-bit Arm"), (8, "machine 8")] {
            let error = read(&executable(machine, 0x8020_0000, &[0; 8], 8)).expect_err("wrong machine");
            assert!(error.what.contains(name), "{}", error.what);
        }
        let mut narrow = executable(243, 0x8020_0000, &[0; 8], 8);
        narrow[4] = 1;
        assert!(read(&narrow).expect_err("32-bit").what.contains("32-bit"));
        assert!(read(&executable(243, 0x1000, &[0; 8], 8)).expect_err("low").what.contains("below"));
        let far = read(&executable(243, 0xffff_ffff_8000_0000, &[0; 8], 8)).expect_err("high");
        assert!(far.remedy.contains("Image"));
    }

    #[test]
    fn no_bytes_make_it_panic() {
        let good = executable(243, 0x8020_0000, &[0; 8], 8);
        for at in 0..good.len() {
            let _ = read(&good[..at]);
            for value in [0, 1, 0x7f, 0xff] {
                let mut bytes = good.clone();
                bytes[at] = value;
                let _ = read(&bytes);
            }
        }
    }
}
