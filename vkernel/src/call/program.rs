//! The start of a program: its file, its memory, its stack.

use super::{Args, fork, last};
use crate::errno::{Errno, Result};
use crate::fs::path::{Last, Place as PathPlace, Position};
use crate::fs::{Kind, MOST_PATH, Node};
use crate::machine::{self, Context};
use crate::memory::frames::PAGE;
use crate::memory::object::NoPage;
use crate::memory::space::{Name, Place, Region, Rights, Source, Space, USER_END};
use crate::random;
use crate::task::credentials::{Credentials, EXECUTE};
use crate::task::exit::RETURN_FROM_HANDLER;
use crate::task::signal::Action;
use crate::task::signal_frame::RETURN_CODE;
use crate::task::{Process, Task, Thread};
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;
use linux_raw_sys::auxvec;
use object::LittleEndian;
use object::elf::{self, FileHeader64, ProgramHeader64};
use object::read::elf::{FileHeader, ProgramHeader};

const PAGE_U64: u64 = PAGE as u64;
/// The end of the first stack.
const STACK_TOP: u64 = USER_END - (4 << 20);
/// The size of the first stack, of which pages are mapped as they are used.
const STACK_BYTES: u64 = 8 << 20;
/// The addresses of programs that may be anywhere, and of loaders.
const ANYWHERE: u64 = 0x15_5555_4000;
const LOADER: u64 = 0x2a_aaaa_a000;
/// The most bytes of arguments and environment.
const MOST_STRINGS: usize = 2 << 20;
/// The most strings of each kind.
const MOST_IN_LIST: usize = 64 << 10;
/// The most scripts that name each other.
const MOST_SCRIPTS: usize = 4;

/// The arguments of a program, and its environment.
#[derive(Clone, Debug)]
pub struct Strings {
    /// The arguments, without zero bytes.
    pub arguments: Vec<Vec<u8>>,
    /// The environment.
    pub environment: Vec<Vec<u8>>,
}

/// A program that is ready to run.
#[derive(Debug)]
pub struct Loaded {
    space: Arc<Space>,
    context: Context,
    path: String,
    name: String,
    arguments: Vec<u8>,
    credentials: Credentials,
}

/// The facts about a loaded file that the program is told.
struct Mapped {
    base: u64,
    entry: u64,
    headers: u64,
    header_count: u64,
    end: u64,
}

/// The facts that the auxiliary vector tells.
struct Facts<'a> {
    main: Mapped,
    loader_base: u64,
    credentials: &'a Credentials,
    /// True if the program has more rights than its caller.
    is_more: bool,
}

struct Header {
    file: FileHeader64<LittleEndian>,
    segments: Vec<ProgramHeader64<LittleEndian>>,
}

fn read_exactly(node: &dyn Node, offset: u64, bytes: usize) -> Result<Vec<u8>> {
    let mut buffer = vec![0; bytes];
    let mut done = 0;
    while done < bytes {
        match node.read_at(offset + done as u64, &mut buffer[done..])? {
            0 => return Err(Errno::NOEXEC),
            count => done += count,
        }
    }
    Ok(buffer)
}

fn header(node: &dyn Node) -> Result<Header> {
    const MOST_SEGMENTS: u16 = 64;
    let bytes = read_exactly(node, 0, size_of::<FileHeader64<LittleEndian>>())?;
    let file = *FileHeader64::<LittleEndian>::parse(&*bytes).map_err(|_| Errno::NOEXEC)?;
    let e = LittleEndian;
    let is_program = [elf::ET_EXEC, elf::ET_DYN].contains(&file.e_type(e)) && file.e_machine(e) == elf::EM_RISCV;
    let count = file.e_phnum(e);
    if !is_program
        || count == 0
        || count > MOST_SEGMENTS
        || file.e_phentsize(e) as usize != size_of::<ProgramHeader64<LittleEndian>>()
    {
        return Err(Errno::NOEXEC);
    }
    let bytes = read_exactly(node, file.e_phoff(e), count as usize * size_of::<ProgramHeader64<LittleEndian>>())?;
    let (segments, _) = object::pod::slice_from_bytes::<ProgramHeader64<LittleEndian>>(&bytes, count as usize)
        .map_err(|()| Errno::NOEXEC)?;
    Ok(Header { file, segments: segments.to_vec() })
}

/// Maps the segments of a file.
fn map(space: &Arc<Space>, place: &Arc<PathPlace>, header: &Header, anywhere: u64) -> Result<Mapped> {
    let e = LittleEndian;
    let object = place.node.object().ok_or(Errno::NOEXEC)?;
    let loads = || header.segments.iter().filter(|segment| segment.p_type(e) == elf::PT_LOAD);
    let first = loads().map(|segment| segment.p_vaddr(e)).min().ok_or(Errno::NOEXEC)? & !(PAGE_U64 - 1);
    let base = if header.file.e_type(e) == elf::ET_DYN { anywhere - first } else { 0 };
    let name = Name::File(place.name.as_str().into());
    let mut end = 0;
    for segment in loads() {
        let (va, offset) = (segment.p_vaddr(e).wrapping_add(base), segment.p_offset(e));
        let (in_file, in_memory) = (segment.p_filesz(e), segment.p_memsz(e));
        let segment_end =
            va.checked_add(in_memory).filter(|end| *end <= STACK_TOP - STACK_BYTES).ok_or(Errno::NOEXEC)?;
        if in_file > in_memory || va % PAGE_U64 != offset % PAGE_U64 {
            return Err(Errno::NOEXEC);
        }
        let flags = segment.p_flags(e);
        let has = |flag: elf::ProgramFlags| flags.contains(flag);
        let mut rights = Rights::empty();
        rights.set(Rights::R, has(elf::PF_R) || has(elf::PF_W));
        rights.set(Rights::W, has(elf::PF_W));
        rights.set(Rights::X, has(elf::PF_X));
        let (start, within) = (va & !(PAGE_U64 - 1), va % PAGE_U64);
        let file_end = (va + in_file).next_multiple_of(PAGE_U64);
        if in_file > 0 {
            let source = Source::Object(Arc::clone(&object), offset / PAGE_U64);
            let region = Region { source, name: name.clone(), ..Region::anonymous(in_file + within, rights) };
            space.map(Place::Exactly(start), region)?;
        }
        if in_memory > in_file {
            let behind = if in_file > 0 { file_end } else { start };
            if segment_end > behind {
                space.map(Place::Exactly(behind), Region::anonymous(segment_end - behind, rights))?;
            }
            // The rest of the last page of the file is not the program's.
            let rest = file_end - (va + in_file);
            if in_file > 0 && rest > 0 && rights.contains(Rights::W) {
                // The call may have to wait for the page.
                if object.page((offset - within + (file_end - start) - PAGE_U64) / PAGE_U64) == Err(NoPage::Host) {
                    return Err(Errno::HOST);
                }
                space.write(va + in_file, &vec![0; rest.min(segment_end - (va + in_file)) as usize])?;
            }
        }
        end = end.max(segment_end);
    }
    let headers = header.segments.iter().find(|segment| segment.p_type(e) == elf::PT_PHDR).map_or_else(
        || {
            let offset = header.file.e_phoff(e);
            let holder = loads()
                .find(|segment| (segment.p_offset(e)..segment.p_offset(e) + segment.p_filesz(e)).contains(&offset));
            holder.map_or(0, |segment| segment.p_vaddr(e) + (offset - segment.p_offset(e)))
        },
        |segment| segment.p_vaddr(e),
    );
    Ok(Mapped {
        base,
        entry: header.file.e_entry(e).wrapping_add(base),
        headers: headers.wrapping_add(base),
        header_count: u64::from(header.file.e_phnum(e)),
        end,
    })
}

/// Reads the first line of a script: the program that runs it, and an argument.
fn script(node: &dyn Node) -> Result<Option<(String, Option<Vec<u8>>)>> {
    let mut bytes = [0; 256];
    let count = node.read_at(0, &mut bytes)?;
    let Some(line) = bytes[..count].strip_prefix(b"#!") else { return Ok(None) };
    let line = line.split(|byte| *byte == b'\n').next().unwrap_or(line);
    let trim = |bytes: &[u8]| bytes.trim_ascii().to_vec();
    let line = trim(line);
    let (program, argument) = match line.iter().position(|byte| byte.is_ascii_whitespace()) {
        Some(space) => (line[..space].to_vec(), Some(trim(&line[space..]))),
        None => (line, None),
    };
    let program = String::from_utf8(program).map_err(|_| Errno::NOEXEC)?;
    if program.is_empty() { Err(Errno::NOEXEC) } else { Ok(Some((program, argument))) }
}

/// Loads a program into a space of its own.
///
/// # Errors
/// As `execve(2)`.
pub fn load(position: &Position, mut place: Arc<PathPlace>, mut path: String, mut strings: Strings) -> Result<Loaded> {
    let name: String = place.name.chars().take(15).collect();
    let mut scripts = 0;
    loop {
        let status = place.node.status();
        if status.kind != Kind::File {
            return Err(Errno::ACCES);
        }
        position.user.check(&status, EXECUTE)?;
        let Some((program, argument)) = script(&*place.node)? else { break };
        scripts += 1;
        if scripts > MOST_SCRIPTS {
            return Err(Errno::LOOP);
        }
        let mut arguments = vec![program.clone().into_bytes()];
        arguments.extend(argument);
        arguments.push(path.into_bytes());
        arguments.extend(strings.arguments.into_iter().skip(1));
        strings.arguments = arguments;
        place = position.present(&position.current, &program, Last::Follow)?;
        path = program;
    }
    let file = header(&*place.node)?;
    let e = LittleEndian;
    let loader = match file.segments.iter().find(|segment| segment.p_type(e) == elf::PT_INTERP) {
        None => None,
        Some(segment) if segment.p_filesz(e) as usize > MOST_PATH => return Err(Errno::NOEXEC),
        Some(segment) => {
            let bytes = read_exactly(&*place.node, segment.p_offset(e), segment.p_filesz(e) as usize)?;
            let path = String::from_utf8(bytes).map_err(|_| Errno::NOEXEC)?;
            let loader = position.present(&position.current, path.trim_end_matches('\0'), Last::Follow)?;
            position.user.check(&loader.node.status(), EXECUTE)?;
            let header = header(&*loader.node)?;
            Some((loader, header))
        }
    };
    let space = Space::new()?;
    let main = map(&space, &place, &file, ANYWHERE)?;
    let (entry, loader_base) = match &loader {
        None => (main.entry, 0),
        Some((place, header)) => {
            let mapped = map(&space, place, header, LOADER)?;
            (mapped.entry, mapped.base)
        }
    };
    space.start_heap(main.end.next_multiple_of(PAGE_U64));
    let rights = Rights::R | Rights::W;
    let stack = Region { name: Name::Stack, ..Region::anonymous(STACK_BYTES, rights) };
    space.map(Place::Exactly(STACK_TOP - STACK_BYTES), stack)?;
    map_return_code(&space)?;
    let (credentials, is_more) = position.user.for_program(&place.node.status());
    let facts = Facts { main, loader_base, credentials: &credentials, is_more };
    let sp = write_stack(&space, &strings, &path, &facts)?;
    let arguments = strings.arguments.iter().flat_map(|argument| argument.iter().copied().chain([0])).collect();
    let path = place.path(&position.root);
    Ok(Loaded { space, context: Context::new(entry, sp), path, name, arguments, credentials })
}

/// Maps the code by which handlers of signals return.
fn map_return_code(space: &Space) -> Result<()> {
    static CODE: crate::sync::Once<Arc<crate::memory::object::Store>> = crate::sync::Once::new();
    let code = CODE.call_once(|| {
        let store = crate::memory::object::Store::new(PAGE_U64);
        let bytes: Vec<u8> = RETURN_CODE.iter().flat_map(|word| word.to_le_bytes()).collect();
        // Without memory the first handler that returns ends its program.
        let _ = store.write(0, &bytes);
        store
    });
    let source = Source::Object(Arc::clone(code) as Arc<_>, 0);
    // Private: a program that stores there has a copy of its own.
    let region = Region { source, name: Name::Vdso, ..Region::anonymous(PAGE_U64, Rights::R | Rights::X) };
    space.map(Place::Exactly(RETURN_FROM_HANDLER), region).map(|_| ())
}

/// Writes arguments, environment and the auxiliary vector. Returns the stack pointer.
fn write_stack(space: &Space, strings: &Strings, path: &str, facts: &Facts<'_>) -> Result<u64> {
    let Facts { main, loader_base, credentials, is_more } = facts;
    let mut sp = STACK_TOP;
    let mut push = |bytes: &[u8]| {
        sp -= bytes.len() as u64;
        space.write(sp, bytes).map(|()| sp)
    };
    let mut bytes = [0; 16];
    random::fill(&mut bytes);
    let random_at = push(&bytes)?;
    let mut zeroed = |text: &[u8]| {
        let mut text = text.to_vec();
        text.push(0);
        push(&text)
    };
    let path_at = zeroed(path.as_bytes())?;
    let environment = strings.environment.iter().map(|text| zeroed(text)).collect::<Result<Vec<_>>>()?;
    let arguments = strings.arguments.iter().map(|text| zeroed(text)).collect::<Result<Vec<_>>>()?;
    /// IMAFDC, as letters' bits.
    const EXTENSIONS: u64 = 1 << 8 | 1 << 12 | 1 << 0 | 1 << 5 | 1 << 3 | 1 << 2;
    let vector = [
        (auxvec::AT_HWCAP, EXTENSIONS),
        (auxvec::AT_PAGESZ, PAGE_U64),
        (auxvec::AT_CLKTCK, 100),
        (auxvec::AT_PHDR, main.headers),
        (auxvec::AT_PHENT, size_of::<ProgramHeader64<LittleEndian>>() as u64),
        (auxvec::AT_PHNUM, main.header_count),
        (auxvec::AT_BASE, *loader_base),
        (auxvec::AT_FLAGS, 0),
        (auxvec::AT_ENTRY, main.entry),
        (auxvec::AT_UID, credentials.users.real.into()),
        (auxvec::AT_EUID, credentials.users.effective.into()),
        (auxvec::AT_GID, credentials.groups.real.into()),
        (auxvec::AT_EGID, credentials.groups.effective.into()),
        (auxvec::AT_SECURE, u64::from(*is_more)),
        (auxvec::AT_RANDOM, random_at),
        (auxvec::AT_EXECFN, path_at),
        (auxvec::AT_NULL, 0),
    ];
    let mut words = vec![arguments.len() as u64];
    words.extend(arguments);
    words.push(0);
    words.extend(environment);
    words.push(0);
    words.extend(vector.iter().flat_map(|(kind, value)| [u64::from(*kind), *value]));
    sp = (sp - 8 * words.len() as u64) & !15;
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    space.write(sp, &bytes)?;
    Ok(sp)
}

impl Loaded {
    /// Returns the space.
    #[must_use]
    pub fn space(&self) -> &Arc<Space> {
        &self.space
    }

    /// Makes this the program of a process whose first thread alone is left. Returns the registers to begin with.
    #[must_use]
    pub fn install(self, process: &Process, thread: &Thread) -> Context {
        *process.space.lock() = Some(Arc::clone(&self.space));
        *process.image.lock() = crate::task::process::Image { path: self.path, arguments: self.arguments };
        process.set_credentials(Arc::new(self.credentials));
        *thread.name.lock() = self.name;
        self.context
    }
}

/// A list of strings of the program that calls.
fn strings(task: &Task, at: u64, all: &mut usize) -> Result<Vec<Vec<u8>>> {
    let mut found = Vec::new();
    if at == 0 {
        return Ok(found);
    }
    let mut next = at;
    loop {
        let string = task.space.get::<u64>(next)?;
        if string == 0 {
            break;
        }
        let bytes = task.space.get_bytes_until_zero(string, MOST_STRINGS)?;
        *all += bytes.len() + 9;
        if *all > MOST_STRINGS || found.len() == MOST_IN_LIST {
            return Err(Errno::TOOBIG);
        }
        found.push(bytes);
        next += 8;
    }
    Ok(found)
}

pub(super) async fn execute(task: &mut Task, [fd, path, arguments, environment, flags, _]: Args) -> Result<u64> {
    let place = task.place(fd, path, last(flags), flags)?;
    if place.node.status().kind == Kind::Directory {
        return Err(Errno::ACCES);
    }
    let path = if path == 0 { String::new() } else { task.path(path)? };
    let path = if path.is_empty() { place.path(&task.position().root) } else { path };
    let mut all = 0;
    let arguments = strings(task, arguments, &mut all)?;
    let strings = Strings { arguments, environment: strings(task, environment, &mut all)? };
    let loaded = load(&task.position(), place, path, strings)?;
    // From here on the old program is gone.
    fork::end_others(task).await?;
    let (process, thread) = (Arc::clone(&task.thread.process), Arc::clone(&task.thread));
    let files = task.files();
    let own = if Arc::strong_count(&files) > 2 {
        let own = Arc::new(crate::sync::Mutex::new(files.lock().clone()));
        *thread.files.lock() = Arc::clone(&own);
        own
    } else {
        files
    };
    let closed = own.lock().begin_program();
    closed.into_iter().for_each(|file| super::file::closed(task, file));
    {
        let mut actions = process.actions.lock();
        actions.iter_mut().filter(|action| action.handler > 1).for_each(|action| *action = Action::default());
    }
    fork::reset(&thread);
    super::delete_timers(&process);
    process.has_executed.store(true, Ordering::Relaxed);
    let space = Arc::clone(loaded.space());
    *task.context = loaded.install(&process, &thread);
    machine::clear_float(&mut task.float);
    task.space = space;
    task.space.activate();
    process.release();
    Ok(0)
}
