//! VMs that go on from a snapshot: what its file says of the VM, and its RAM as images of a bundle.

use crate::pack::{Pack, Placed};
use crate::size::{PAGE, SUPERPAGE, Size};
use crate::vmfile::{Balloon, VmFile};
use abi::bundle::GUEST_RAM_BASE;
use abi::snapshot::State;
use abi::snapshot::file::{Bad, Part, Reader};
use miette::Diagnostic;
use std::fs::File;
use std::io::{BufReader, ErrorKind, Read};
use std::path::{Path, PathBuf};

/// Why a VM cannot go on from a snapshot.
#[derive(Debug, thiserror::Error, Diagnostic)]
pub enum RestoreError {
    /// The file cannot be read.
    #[error("cannot read the snapshot {path}: {source}")]
    #[diagnostic(help("check that the path exists, and that you may read it"))]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// It is no snapshot that could be used.
    #[error("cannot restore {path}: {why}")]
    #[diagnostic(help("take the snapshot anew (gnomon snapshot), or copy the file anew from where it is whole"))]
    Bad {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// It was given something that the snapshot says.
    #[error("`{what}` was given for a VM that goes on from {path}")]
    #[diagnostic(help("leave it out: the VM has what it had when the snapshot was taken"))]
    Given {
        /// The file.
        path: PathBuf,
        /// What was given.
        what: &'static str,
    },
    /// It has other disks.
    #[error("{path} is of a VM with {had} disks, and {given} were given")]
    #[diagnostic(help(
        "give it the disks that it had, as they were then, in their order (--disk, or `disks` in the VM file): their contents are not \
         in the snapshot"
    ))]
    Disks {
        /// The file.
        path: PathBuf,
        /// How many it had.
        had: usize,
        /// How many it is to have.
        given: usize,
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
        let file = File::open(path).map_err(unreadable)?;
        Ok(Self { path, file: BufReader::new(file), reader: Reader::default(), piece: Vec::new() })
    }

    fn next(&mut self) -> Result<Part<'_>, RestoreError> {
        let bad = |why: String| RestoreError::Bad { path: self.path.to_owned(), why };
        self.piece.resize(self.reader.wants(), 0);
        match self.file.read_exact(&mut self.piece) {
            Ok(()) => {}
            Err(why) if why.kind() == ErrorKind::UnexpectedEof => return Err(bad("it is cut off".into())),
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

    /// That there is nothing behind its end.
    fn finish(mut self) -> Result<(), RestoreError> {
        match self.file.read(&mut [0]) {
            Ok(0) => Ok(()),
            Ok(_) => Err(RestoreError::Bad { path: self.path.to_owned(), why: Bad::Trailing.to_string() }),
            Err(source) => Err(RestoreError::Unreadable { path: self.path.to_owned(), source }),
        }
    }
}

/// Fills in what the snapshot says of a VM that is to go on from one. Others stay as they are.
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
        ("svvptc", vm.svvptc.is_some()),
        ("svadu", vm.svadu.is_some()),
        ("gigapages", vm.gigapages.is_some()),
        ("balloon", vm.balloon.is_some()),
        ("net", vm.net.is_some()),
        ("mac", vm.mac.is_some()),
    ];
    if let Some((what, _)) = given.into_iter().find(|(_, is_given)| *is_given) {
        return Err(RestoreError::Given { path, what });
    }
    let state = Source::open(&path)?.state()?;
    let told = state.told;
    let disks = vm.disks.as_ref().map_or(0, Vec::len);
    if disks != told.disks.len() {
        return Err(RestoreError::Disks { path, had: told.disks.len(), given: disks });
    }
    vm.name.get_or_insert(told.name);
    vm.memory = Some(Size(told.memory_bytes));
    vm.vcpus = Some(u32::try_from(state.vcpus.len()).unwrap_or(u32::MAX));
    vm.svvptc = Some(told.isa.iter().any(|name| name == "svvptc"));
    vm.svadu = Some(told.svadu);
    vm.balloon = Some(Balloon::Is(told.has_balloon));
    vm.net = Some(told.mac.is_some());
    vm.mac = told.mac;
    Ok(vm)
}

/// A VM's state, and where its RAM is.
pub struct Restored {
    /// The encoded state.
    pub state: Vec<u8>,
    /// What is not zero.
    pub placed: Vec<Placed>,
}

/// Pages that follow each other, by whole pieces of 2 MiB.
struct Run {
    /// Where it begins, in bytes of RAM.
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
