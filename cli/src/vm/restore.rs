//! Restores VMs from snapshots: the VM's description in the file, and its RAM as images of a bundle.

use crate::host::place;
use crate::host::size::{PAGE, SUPERPAGE, Size};
use crate::machine::port;
use crate::machine::share::{self, ShareSpec};
use crate::vm::file::{Balloon, Console, VmFile};
use crate::vm::pack::{Pack, Placed};
use crate::vm::spec;
use abi::bundle::{GUEST_RAM_BASE, MmuMode};
use abi::snapshot::State;
use abi::snapshot::file::{Bad, Part, Reader};
use miette::Diagnostic;
use std::fs::File;
use std::io::{BufReader, ErrorKind, Read};
use std::path::{Path, PathBuf};

/// The reason that a VM cannot be restored from a snapshot.
#[derive(Debug, thiserror::Error, Diagnostic)]
pub enum RestoreError {
    /// The file cannot be read.
    #[error("cannot read the snapshot {path}: {source}")]
    #[diagnostic(help("check that the path exists, and that you may read it"))]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        source: std::io::Error,
    },
    /// The file is not a usable snapshot.
    #[error("cannot restore {path}: {why}")]
    #[diagnostic(help("take the snapshot again (gnomon snapshot), or copy the file again from an intact copy"))]
    Bad {
        /// The file.
        path: PathBuf,
        /// The reason.
        why: String,
    },
    /// An option sets what the snapshot determines.
    #[error("`{what}` was given for a VM that is restored from {path}")]
    #[diagnostic(help("leave it out: the VM keeps the value from the snapshot"))]
    Given {
        /// The file.
        path: PathBuf,
        /// The option that was given.
        what: &'static str,
    },
    /// The number of disks differs from that in the snapshot.
    #[error("the VM in {path} has {had} disks, but {given} were given")]
    #[diagnostic(help(
        "give it the same disks with the same content, in the same order (--disk, or `disks` in the VM file): their contents are not \
         in the snapshot"
    ))]
    Disks {
        /// The file.
        path: PathBuf,
        /// The number of disks in the snapshot.
        had: usize,
        /// The number of disks that were given.
        given: usize,
    },
    /// The shared folders differ from those in the snapshot.
    #[error("the VM in {path} has the shared folders [{had}], but [{given}] were given")]
    #[diagnostic(help(
        "give it as many folders, in the same order (--share, or `shares` in the VM file): each keeps the name that the guest knows, \
         not its name on the host"
    ))]
    Shares {
        /// The file.
        path: PathBuf,
        /// Their names, as its guest knows them.
        had: String,
        /// The folders that were given.
        given: String,
    },
}

/// A snapshot's file, piece by piece.
struct Source<'a> {
    path: &'a Path,
    file: BufReader<File>,
    reader: Reader,
    piece: Vec<u8>,
}

impl<'a> Source<'a> {
    fn open(path: &'a Path) -> Result<Self, RestoreError> {
        let unreadable = |source| RestoreError::Unreadable { path: path.to_owned(), source };
        place::announce(path, place::End::Writer);
        let file = File::open(path).map_err(unreadable)?;
        Ok(Self { path, file: BufReader::new(file), reader: Reader::default(), piece: Vec::new() })
    }

    fn next(&mut self) -> Result<Part<'_>, RestoreError> {
        let bad = |why: String| RestoreError::Bad { path: self.path.to_owned(), why };
        self.piece.resize(self.reader.wants(), 0);
        match self.file.read_exact(&mut self.piece) {
            Ok(()) => {}
            Err(why) if why.kind() == ErrorKind::UnexpectedEof => return Err(bad("it is truncated".into())),
            Err(source) => return Err(RestoreError::Unreadable { path: self.path.to_owned(), source }),
        }
        self.reader.take(&self.piece).map_err(|why| bad(why.to_string()))
    }

    fn state(&mut self) -> Result<Box<State>, RestoreError> {
        loop {
            if let Part::State(state) = self.next()? {
                return Ok(state);
            }
        }
    }

    /// Checks that the file ends here.
    fn finish(mut self) -> Result<(), RestoreError> {
        match self.file.read(&mut [0]) {
            Ok(0) => Ok(()),
            Ok(_) => Err(RestoreError::Bad { path: self.path.to_owned(), why: Bad::Trailing.to_string() }),
            Err(source) => Err(RestoreError::Unreadable { path: self.path.to_owned(), source }),
        }
    }
}

/// Fills in the snapshot's settings of a VM that is restored from one. Other VMs stay unchanged.
///
/// # Errors
/// [`RestoreError`].
pub fn describe(mut vm: VmFile) -> Result<VmFile, RestoreError> {
    let Some(path) = vm.restore.clone() else { return Ok(vm) };
    let given = [
        ("memory", vm.memory.is_some()),
        ("vcpus", vm.vcpus.is_some()),
        ("kernel", vm.kernel.is_some()),
        ("initrd", vm.initrd.is_some()),
        ("root", vm.root.is_some()),
        ("add", vm.add.is_some()),
        ("append", vm.append.is_some()),
        ("console", vm.console.is_some()),
        ("cpu", vm.cpu.is_some()),
        ("svvptc", vm.svvptc.is_some()),
        ("svadu", vm.svadu.is_some()),
        ("nested", vm.nested.is_some()),
        ("gigapages", vm.gigapages.is_some()),
        ("balloon", vm.balloon.is_some()),
        ("net", vm.net.is_some()),
        ("mac", vm.mac.is_some()),
        ("rng", vm.rng.is_some()),
        ("ports", vm.ports.is_some()),
    ];
    if let Some((what, _)) = given.into_iter().find(|(_, is_given)| *is_given) {
        return Err(RestoreError::Given { path, what });
    }
    let state = Source::open(&path)?.state()?;
    let is_tagged = state.is_tagged();
    let told = state.told;
    // Nothing of a file's is printed that could mean something to a terminal.
    let has_names =
        told.shares.iter().all(|name| share::is_name(name)) && told.ports.iter().all(|name| port::is_name(name));
    if !spec::is_name(&told.name) || !has_names {
        let why = "the VM, a shared folder or a port has an invalid name".into();
        return Err(RestoreError::Bad { path, why });
    }
    let disks = vm.disks.as_ref().map_or(0, Vec::len);
    if disks != told.disks.len() {
        return Err(RestoreError::Disks { path, had: told.disks.len(), given: disks });
    }
    let shares = vm.shares.get_or_insert_default();
    let is_other = |(share, told): (&ShareSpec, &String)| share.name.as_ref().is_some_and(|name| name != told);
    if shares.len() != told.shares.len() || shares.iter().zip(&told.shares).any(is_other) {
        let named = |share: &ShareSpec| share.name.clone().unwrap_or_else(|| share.dir.display().to_string());
        let given = shares.iter().map(named).collect::<Vec<_>>().join(", ");
        return Err(RestoreError::Shares { path, had: told.shares.join(", "), given });
    }
    shares.iter_mut().zip(told.shares).for_each(|(share, name)| share.name = Some(name));
    vm.name.get_or_insert(told.name);
    vm.memory = Some(Size(told.memory_bytes));
    vm.vcpus = Some(u32::try_from(state.vcpus.len()).unwrap_or(u32::MAX));
    vm.svvptc = Some(told.isa.iter().any(|name| name == "svvptc"));
    vm.svadu = Some(told.svadu);
    vm.nested = Some(told.isa.iter().any(|name| name == "h"));
    if is_tagged {
        // It fences no changes of address spaces, so it goes on on shadow tables only: on those that suit whatever else it was told.
        vm.mmu.get_or_insert(MmuMode::Lazy);
    }
    vm.balloon = Some(Balloon::Is(told.has_balloon));
    vm.net = Some(told.mac.is_some());
    vm.mac = told.mac;
    vm.rng = Some(told.has_rng);
    vm.console = told.has_virtio_console.then_some(Console::Virtio);
    vm.ports = Some(told.ports);
    Ok(vm)
}

/// A VM's state, and where its RAM is.
pub struct Restored {
    /// The encoded state.
    pub state: Vec<u8>,
    /// The parts of RAM that are not zero.
    pub placed: Vec<Placed>,
}

/// Pages that follow each other, by whole pieces of 2 MiB.
struct Run {
    /// The offset of the first byte in RAM.
    start: u64,
    bytes: Vec<u8>,
}

impl Run {
    fn end(&self) -> u64 {
        self.start + self.bytes.len() as u64
    }

    /// Adds the image of it, up to whole 2 MiB, or the end of RAM.
    fn pack(mut self, ram: u64, pack: &mut Pack) -> Placed {
        let end = self.end().next_multiple_of(SUPERPAGE).min(ram);
        self.bytes.resize((end - self.start) as usize, 0);
        let gpa = GUEST_RAM_BASE + self.start;
        Placed { image: pack.add(self.bytes), gpa, label: "memory" }
    }
}

/// Reads a snapshot, and puts its RAM into a bundle: by pieces of 2 MiB in which anything is not zero, so that such leaves can map them.
///
/// # Errors
/// [`RestoreError`].
pub fn load(path: &Path, pack: &mut Pack) -> Result<Restored, RestoreError> {
    let mut source = Source::open(path)?;
    let state = source.state()?;
    let ram = state.told.memory_bytes;
    let (mut placed, mut run): (Vec<Placed>, Option<Run>) = (Vec::new(), None);
    loop {
        match source.next()? {
            Part::Nothing | Part::State(_) => {}
            Part::Pages { first, bytes } => {
                let at = first * PAGE;
                let piece = at / SUPERPAGE * SUPERPAGE;
                // Within the last piece of the one before, or right behind it?
                let is_apart = |run: &mut Run| run.end().next_multiple_of(SUPERPAGE) < piece;
                placed.extend(run.take_if(is_apart).map(|run| run.pack(ram, pack)));
                let run = run.get_or_insert_with(|| Run { start: piece, bytes: Vec::new() });
                run.bytes.resize((at - run.start) as usize, 0);
                run.bytes.extend_from_slice(bytes);
            }
            Part::End => break,
        }
    }
    source.finish()?;
    placed.extend(run.map(|run| run.pack(ram, pack)));
    Ok(Restored { state: state.encode(), placed })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::disk::DiskSpec;
    use crate::vm::file::Kernel;
    use abi::bundle::{Config, ConsoleMode};
    use abi::snapshot::device::PlicState;
    use abi::snapshot::file::Writer;
    use abi::snapshot::{EventsState, RootCacheState, Told, VcpuState};
    use std::io::Cursor;

    const RAM: u64 = 9 << 20;

    fn state() -> State {
        let told = Told {
            name: "saved".into(),
            memory_bytes: RAM,
            timebase: 10_000_000,
            time: 5,
            isa: vec!["i".into()],
            blocks: [0; 3],
            formats: vec![8],
            vlenb: 0,
            svadu: true,
            has_balloon: true,
            disks: vec![],
            mac: None,
            shares: vec![],
            has_rng: true,
            has_virtio_console: false,
            ports: vec!["agent".into()],
            has_pmu: true,
        };
        let (events, plic) = (EventsState::default(), PlicState::default());
        State { told, vcpus: vec![VcpuState::default(); 3], events, plic, devices: vec![], spaces: vec![] }
    }

    /// A snapshot with those pages, each full of its number, by sections.
    fn file(sections: &[&[u64]]) -> Vec<u8> {
        file_of(&state(), sections)
    }

    fn file_of(state: &State, sections: &[&[u64]]) -> Vec<u8> {
        let (mut writer, mut file) = Writer::begin(&state.encode());
        for pages in sections {
            let bytes: Vec<u8> = pages.iter().flat_map(|page| [*page as u8; PAGE as usize]).collect();
            file.extend(writer.pages(pages[0], &bytes));
            file.extend(bytes);
        }
        file.extend(writer.end());
        file
    }

    fn with_file<T>(bytes: &[u8], act: impl FnOnce(&Path) -> T) -> T {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("a.snap");
        std::fs::write(&path, bytes).expect("a file");
        act(&path)
    }

    #[test]
    fn ram_is_as_it_was() {
        // Two pieces side by side, one apart, and the end of RAM, which is half a piece.
        let pages: [&[u64]; 5] = [&[5, 6], &[511], &[513], &[0x601], &[RAM / PAGE - 1]];
        let mut pack = Pack::default();
        let restored = with_file(&file(&pages), |path| load(path, &mut pack)).expect("it is whole");
        let starts: Vec<u64> = restored.placed.iter().map(|placed| placed.gpa - GUEST_RAM_BASE).collect();
        assert_eq!(starts, [0, 6 << 20], "the last two follow each other");
        let mut out = Cursor::new(Vec::new());
        let config = crate::vm::pack::tests::vm("a");
        pack.write(vec![(config, restored.placed)], (ConsoleMode::Lines, &[]), &mut out).expect("in memory");
        let bytes = out.into_inner();
        let config = Config::parse(&bytes).expect("a bundle");
        let mut ram = vec![0; RAM as usize];
        for segment in &config.vms[0].segments {
            let at = (segment.gpa - GUEST_RAM_BASE) as usize;
            ram[at..at + segment.bytes as usize]
                .copy_from_slice(&bytes[segment.offset as usize..][..segment.bytes as usize]);
        }
        for (page, bytes) in ram.chunks(PAGE as usize).enumerate() {
            let there = pages.iter().any(|some| some.contains(&(page as u64)));
            assert!(bytes.iter().all(|byte| *byte == if there { page as u8 } else { 0 }), "{page}");
        }
        assert_eq!(State::decode(&restored.state), Some(state()));
    }

    #[test]
    fn a_file_that_is_not_whole_is_refused_by_name() {
        let good = file(&[&[5, 6], &[9]]);
        let said = |bytes: &[u8]| {
            let why = with_file(bytes, |path| load(path, &mut Pack::default()).err()).expect("it is refused");
            assert!(why.help().is_some());
            why.to_string()
        };
        assert!(said(&good[..good.len() - 1]).ends_with("a.snap: it is truncated"));
        assert!(said(&good[..300]).ends_with("it is truncated"));
        let mut flipped = good.clone();
        flipped[9000] ^= 4;
        assert!(said(&flipped).ends_with("it is damaged: a check sum is wrong"));
        assert!(said(&[good.as_slice(), b"x"].concat()).ends_with("something follows its end"));
        assert!(said(&[b'x'; 5000]).ends_with("it is not a snapshot"));
        let nowhere = load(Path::new("/nowhere/a.snap"), &mut Pack::default()).err().expect("there is none");
        assert!(nowhere.to_string().starts_with("cannot read the snapshot /nowhere/a.snap: "));
    }

    #[test]
    fn a_vm_has_a_virtio_console_if_it_had_one() {
        let described = |state: &State| {
            with_file(&file_of(state, &[]), |path| {
                describe(VmFile { restore: Some(path.into()), ..VmFile::default() }).expect("it is whole")
            })
        };
        let mut state = state();
        assert_eq!(described(&state).console, None);
        assert_eq!(described(&state).ports, Some(vec!["agent".to_owned()]));
        state.told.has_virtio_console = true;
        assert_eq!(described(&state).console, Some(Console::Virtio));
    }

    #[test]
    fn a_vm_that_fences_no_changes_goes_on_on_shadow_tables() {
        let mode = |state: &State, mmu| {
            with_file(&file_of(state, &[]), |path| {
                let vm = VmFile { restore: Some(path.into()), mmu, ..VmFile::default() };
                describe(vm).expect("it is whole").mmu
            })
        };
        let mut state = state();
        let shares = |is_tagged| Some(RootCacheState { at: 0x8000_0000, places: 4, is_tagged });
        state.vcpus[1].root_cache = shares(false);
        assert_eq!(mode(&state, None), None);
        state.vcpus[1].root_cache = shares(true);
        assert_eq!(mode(&state, None), Some(MmuMode::Lazy));
        assert_eq!(mode(&state, Some(MmuMode::TwoStage)), Some(MmuMode::TwoStage), "it says why not when it starts");
    }

    #[test]
    fn names_that_mean_something_to_a_terminal_are_not_printed() {
        let names: [fn(&mut State); 4] = [
            |state| state.told.ports = vec!["..".into()],
            |state| state.told.name = "\u{1b}[2Jx".into(),
            |state| state.told.name = "x".repeat(33),
            |state| state.told.shares = vec!["\u{1b}[2J".into()],
        ];
        for change in names {
            let mut state = state();
            change(&mut state);
            let why = with_file(&file_of(&state, &[]), |path| {
                let restore = Some(path.to_owned());
                describe(VmFile { restore, ..VmFile::default() }).expect_err("it is refused").to_string()
            });
            assert!(why.contains("has an invalid name") && !why.contains(char::is_control), "{why}");
        }
    }

    #[test]
    fn a_vm_is_what_its_snapshot_says() {
        let plain = VmFile { name: Some("x".into()), ..VmFile::default() };
        assert_eq!(describe(plain.clone()).expect("nothing to do"), plain);
        with_file(&file(&[]), |path| {
            let vm = |change: fn(&mut VmFile)| {
                let mut vm = VmFile { restore: Some(path.to_owned()), ..VmFile::default() };
                change(&mut vm);
                describe(vm)
            };
            let described = vm(|_| {}).expect("it is whole");
            assert_eq!((described.name.as_deref(), described.memory), (Some("saved"), Some(Size(RAM))));
            assert_eq!((described.vcpus, described.svadu, described.svvptc), (Some(3), Some(true), Some(false)));
            assert_eq!((described.balloon, described.net, described.mac), (Some(Balloon::Is(true)), Some(false), None));
            assert_eq!(vm(|vm| vm.name = Some("other".into())).expect("a name").name.as_deref(), Some("other"));
            let given = |change| vm(change).expect_err("it is refused").to_string();
            assert!(
                given(|vm| vm.memory = Some(Size(RAM)))
                    .starts_with("`memory` was given for a VM that is restored from ")
            );
            assert!(given(|vm| vm.kernel = Some(Kernel::Debian)).contains("`kernel`"));
            assert!(given(|vm| vm.net = Some(true)).contains("`net`"));
            let disk = given(|vm| vm.disks = Some(vec!["d.img".parse::<DiskSpec>().expect("a disk")]));
            assert!(disk.ends_with("a.snap has 0 disks, but 1 were given"), "{disk}");
        });
    }
}
