//! A process that confines itself before it reads what a guest has written.
//!
//! - Landlock: it opens files only beneath the named places, and makes no TCP connections.
//! - seccomp: it makes no other system calls than those of a list. Another one ends it. (QEMU has a list of its own.)
//! - Limits: of descriptors and of memory. No core file.
//! - No new privileges by programs that it might start. No debugger of the same user, unless it becomes another program.

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, PathBeneath, RestrictionStatus, Ruleset,
    RulesetAttr, RulesetCreatedAttr, RulesetError, RulesetStatus, Scope,
};
use miette::Diagnostic;
use rustix::fs::{FileType, fstat};
use rustix::io::Errno;
use rustix::process::{
    DumpableBehavior, Resource, Rlimit, Signal, getppid, getrlimit, set_dumpable_behavior,
    set_parent_process_death_signal, setrlimit,
};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, remove_capability_from_bounding_set, set_capabilities,
};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
};
use std::collections::BTreeMap;
use std::os::fd::{OwnedFd, RawFd};

/// The oldest version that will do: with it, files may be moved from one directory to another.
const LEAST: ABI = ABI::V2;
/// The newest version whose rights are known here. An older kernel has the rights that it knows.
const NEWEST: ABI = ABI::V7;

/// The abilities that a process keeps when it confines itself.
#[derive(Debug)]
pub struct Sandbox {
    /// Directories and files, with all beneath them.
    pub places: Vec<(OwnedFd, Reach)>,
    /// Its system calls.
    pub calls: Calls,
    /// Most descriptors; fewer if the user may have fewer.
    pub descriptors: u64,
    /// Most bytes of memory of its own.
    pub memory: u64,
    /// Set if it may use TCP.
    pub has_tcp: bool,
}

/// The system calls of a process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Calls {
    /// These numbers. Memory that can be executed is never among what `mmap` and `mprotect` give.
    Listed(Vec<libc::c_long>),
    /// All but these numbers, which fail with EPERM. For a program that the process becomes, and that has a list of its own.
    AllBut(Vec<libc::c_long>),
}

/// The use of a place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reach {
    /// Files are read, directories are listed.
    Read,
    /// Files are also run.
    Run,
    /// Files are also made, written, renamed and removed; devices are not made.
    Write,
}

/// The reason why a process cannot confine itself.
#[derive(Debug, thiserror::Error, Diagnostic)]
pub enum SandboxError {
    /// The kernel has no Landlock, or too old a one.
    #[error("this kernel lacks Landlock, or has one that is older than Linux 5.19's: {0}")]
    #[diagnostic(help(
        "use a kernel of Linux 5.19 or newer with Landlock (CONFIG_SECURITY_LANDLOCK, and `landlock` in the kernel parameter `lsm=`), or \
         go on without: --no-sandbox"
    ))]
    NoLandlock(String),
    /// A part of it has failed.
    #[error("a process cannot confine itself: {what}: {why}")]
    #[diagnostic(help("see that no other sandbox around Gnomon forbids this, or go on without: --no-sandbox"))]
    Failed {
        /// The part.
        what: &'static str,
        /// The reason.
        why: String,
    },
}

/// Checks that the kernel has Landlock.
///
/// # Errors
/// [`SandboxError::NoLandlock`].
pub fn check() -> Result<(), SandboxError> {
    let ruleset = Ruleset::default().set_compatibility(CompatLevel::HardRequirement);
    let created = ruleset.handle_access(AccessFs::from_all(LEAST)).and_then(Ruleset::create);
    created.map(drop).map_err(|why| SandboxError::NoLandlock(why.to_string()))
}

/// Closes all descriptors of the calling process but the standard ones and those of `kept`: its user may have left files open in all
/// programs that are started. For a process that has just begun, and has opened none itself.
pub fn close_descriptors(kept: &[RawFd]) {
    let entries = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let numbers: Vec<RawFd> = numbers.filter(|number| *number > 2 && !kept.contains(number)).collect();
    for number in numbers {
        // That of the directory is closed already.
        let _ = nix::unistd::close(number);
    }
}

/// Gives up the privileges of root, except those of `kept`. Programs that the process becomes lack them, too. Nothing changes for other
/// users, and where the system does not let go of them.
pub fn drop_privileges(kept: CapabilitySet) {
    for capability in (CapabilitySet::all() & !kept).iter() {
        // Fails if there is none, or if the process may not.
        let _ = remove_capability_from_bounding_set(capability);
    }
    if let Ok(now) = capabilities(None) {
        let sets = CapabilitySets {
            effective: now.effective & kept,
            permitted: now.permitted & kept,
            inheritable: CapabilitySet::empty(),
        };
        let _ = set_capabilities(None, sets);
    }
}

/// Returns whether the kernel has Landlock.
#[must_use]
pub fn is_possible() -> bool {
    check().is_ok()
}

/// Ends the calling process when its parent ends, which is the process `parent`.
///
/// # Errors
/// If that has ended already.
pub fn end_with(parent: i32) -> Result<(), Errno> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    let is_there = getppid().is_some_and(|now| now.as_raw_nonzero().get() == parent);
    if is_there { Ok(()) } else { Err(Errno::SRCH) }
}

/// Sets the limits alone, which need no kernel of any age. Returns the descriptors that there may be.
///
/// # Errors
/// [`SandboxError::Failed`].
pub fn limit(descriptors: u64, memory: u64) -> Result<u64, SandboxError> {
    let set = |resource, what, most: u64| {
        let most = getrlimit(resource).maximum.map_or(most, |hard| hard.min(most));
        let limit = Rlimit { current: Some(most), maximum: Some(most) };
        setrlimit(resource, limit).map(|()| most).map_err(|why| SandboxError::Failed { what, why: why.to_string() })
    };
    set(Resource::Core, "the size of core files", 0)?;
    set(Resource::Data, "its memory", memory)?;
    set(Resource::Nofile, "its descriptors", descriptors)
}

impl Sandbox {
    /// Confines the calling process, which has one thread, for ever. Returns the descriptors that there may be.
    ///
    /// # Errors
    /// [`SandboxError`].
    pub fn enter(self) -> Result<u64, SandboxError> {
        check()?;
        let failed = |what| move |why: &dyn std::fmt::Display| SandboxError::Failed { what, why: why.to_string() };
        let descriptors = limit(self.descriptors, self.memory)?;
        if let Calls::Listed(_) = &self.calls {
            // A program that the process becomes may be looked at again.
            set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(|why| failed("debuggers")(&why))?;
        }
        let status = restrict(self.places, self.has_tcp).map_err(|why| failed("Landlock")(&why))?;
        if status.ruleset == RulesetStatus::NotEnforced || !status.no_new_privs {
            return Err(failed("Landlock")(&"it is not in force"));
        }
        let filter = match &self.calls {
            Calls::Listed(calls) => filter(calls),
            Calls::AllBut(calls) => filter_all_but(calls),
        };
        let filter = filter.map_err(|why| failed("seccomp")(&why))?;
        seccompiler::apply_filter(&filter).map_err(|why| failed("seccomp")(&why))?;
        Ok(descriptors)
    }
}

fn restrict(places: Vec<(OwnedFd, Reach)>, has_tcp: bool) -> Result<RestrictionStatus, RulesetError> {
    let mut ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(AccessFs::from_all(LEAST))?
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(NEWEST))?
        .scope(Scope::from_all(NEWEST))?;
    if !has_tcp {
        ruleset = ruleset.handle_access(AccessNet::from_all(NEWEST))?;
    }
    let rules = places.into_iter().filter_map(|(place, reach)| {
        let access = access(&place, reach)?;
        Some(Ok::<_, RulesetError>(PathBeneath::new(place, access)))
    });
    ruleset.create()?.add_rules(rules)?.restrict_self()
}

/// The rights to a place; `None` for sockets and pipes, which are open already and have no rules.
fn access(place: &OwnedFd, reach: Reach) -> Option<BitFlags<AccessFs>> {
    let read = AccessFs::ReadFile | AccessFs::ReadDir;
    let denied = AccessFs::Execute | AccessFs::MakeChar | AccessFs::MakeBlock | AccessFs::IoctlDev;
    let wanted = match reach {
        Reach::Read => read,
        Reach::Run => read | AccessFs::Execute,
        Reach::Write => AccessFs::from_all(NEWEST) & !denied,
    };
    // A directory's rights are errors for a file; a block device says its size by `ioctl` only.
    match FileType::from_raw_mode(fstat(place).ok()?.st_mode) {
        FileType::Directory => Some(wanted),
        FileType::BlockDevice => Some(wanted & AccessFs::from_file(NEWEST) | AccessFs::IoctlDev),
        FileType::RegularFile | FileType::CharacterDevice => Some(wanted & AccessFs::from_file(NEWEST)),
        _ => None,
    }
}

fn filter_all_but(calls: &[libc::c_long]) -> Result<BpfProgram, seccompiler::BackendError> {
    let rules = calls.iter().map(|call| (*call, Vec::new())).collect();
    let arch = std::env::consts::ARCH.try_into()?;
    let denied = SeccompAction::Errno(libc::EPERM as u32);
    SeccompFilter::new(rules, SeccompAction::Allow, denied, arch)?.try_into()
}

fn filter(calls: &[libc::c_long]) -> Result<BpfProgram, seccompiler::BackendError> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = calls.iter().map(|call| (*call, Vec::new())).collect();
    for call in [libc::SYS_mmap, libc::SYS_mprotect] {
        let not_executed =
            SeccompCondition::new(2, SeccompCmpArgLen::Dword, SeccompCmpOp::MaskedEq(libc::PROT_EXEC as u64), 0)?;
        rules.insert(call, vec![SeccompRule::new(vec![not_executed])?]);
    }
    let arch = std::env::consts::ARCH.try_into()?;
    SeccompFilter::new(rules, SeccompAction::KillProcess, SeccompAction::Allow, arch)?.try_into()
}
