//! The complete description of a VM, with all defaults.

mod error;

use crate::host::size::{MIB, PAGE, Size};
use crate::host::words::is_name_char;
use crate::machine::board::{HExtension, Seat};
use crate::machine::disk::DiskSpec;
use crate::machine::net::{Card, ForwardTo, GATEWAY_MAC, NetError};
use crate::machine::port;
use crate::machine::share::ShareSpec;
use crate::vm::file::{Balloon, Console, Cpu, Initrd, Kernel, LEAST_MEMORY, VmFile};
use crate::vm::root::Root;
use abi::agent;
use abi::bundle::{
    L2Tables, LEAST_SHADOW_BYTES_PER_VCPU, MAX_PORTS, MAX_VCPUS, MAX_VMS, MmuMode, default_shadow_bytes,
};
use abi::vmspace::Way;
pub use error::SpecError;
use std::path::PathBuf;

/// The default RAM of a VM.
pub const DEFAULT_MEMORY: Size = Size(512 * MIB);
/// The default RAM of a VM with a Debian system as its root, or a system on its disk.
pub const DEFAULT_SYSTEM_MEMORY: Size = Size(1024 * MIB);
/// The least RAM that a whole system works in.
pub const LEAST_ROOT_MEMORY: Size = Size(256 * MIB);
/// The least RAM of one that boots what is on a disk: with a quarter of that U-Boot starts over and over.
pub const LEAST_DISK_MEMORY: Size = Size(64 * MIB);

const MOST_NAME_CHARS: usize = 32;

/// Returns whether a VM can have that name.
pub(crate) fn is_name(name: &str) -> bool {
    (1..=MOST_NAME_CHARS).contains(&name.len()) && name.chars().all(is_name_char)
}

/// One VM, complete.
#[derive(Clone, PartialEq, Debug)]
pub struct VmSpec {
    /// Its name, unique among the VMs of a run.
    pub name: String,
    /// The VM that has to end before this one starts: its place in the list.
    pub after: Option<u32>,
    /// RAM.
    pub memory: Size,
    /// The most of it that is in memory at a time, if not all.
    pub limit: Option<Size>,
    /// RAM that is not paged out once the VM uses it.
    pub reserve: Size,
    /// Set if all RAM is given to the VM at the start, and stays.
    pub wired: bool,
    /// Number of vCPUs.
    pub vcpus: u32,
    /// The kernel to boot.
    pub kernel: Kernel,
    /// The initial RAM disk, if the user said which.
    pub initrd: Option<Initrd>,
    /// A whole system as its root, if it has one.
    pub root: Option<Root>,
    /// The user's files in the initramfs.
    pub add: Vec<PathBuf>,
    /// The first program of the vkernel, and its arguments.
    pub init: Option<Vec<String>>,
    /// The user's addition to the command line.
    pub append: String,
    /// The console that Linux uses.
    pub console: Console,
    /// The mode of memory virtualization; `None`: Gnomon chooses, by what the hart can do.
    pub mmu: Option<MmuMode>,
    /// The user's switch for the fast lane, which serves fences by address and switches of the address space.
    pub lane: Option<bool>,
    /// Set if Svvptc may be advertised.
    pub svvptc: bool,
    /// Set if hardware updates of A and D bits are promised; `None`: Gnomon chooses, by the mode and the harts.
    pub svadu: Option<bool>,
    /// Set if it may be a hypervisor.
    pub nested: bool,
    /// The tables by which its own guests run.
    pub l2: L2Tables,
    /// The way in which its kernel runs programs.
    pub vmspace: Way,
    /// Bound of the memory for shadow tables; `None`: Gnomon's default.
    pub shadow: Option<Size>,
    /// Set if 2 MiB mappings may be used.
    pub superpages: bool,
    /// Set if whole GiB are given to the VM before it starts.
    pub gigapages: bool,
    /// The memory balloon's size at the start, if it has one.
    pub balloon: Option<Size>,
    /// Its disks.
    pub disks: Vec<DiskSpec>,
    /// Folders of the host that it reaches.
    pub shares: Vec<ShareSpec>,
    /// The user's switch for a source of random bytes.
    pub rng: Option<bool>,
    /// The user's switch for a power key.
    pub power_key: Option<bool>,
    /// The user's switch for `gnomon shell`.
    pub shell: Option<bool>,
    /// Names of its ports.
    pub ports: Vec<String>,
    /// Its network card, if it has one.
    pub net: Option<Card>,
    /// Set if it is not to have one: a port that leads to it gives it none.
    pub is_offline: bool,
    /// The snapshot that it is restored from.
    pub restore: Option<PathBuf>,
}

impl VmSpec {
    /// Settles what each VM is: defaults, then its file, then the options. Without a file, there is
    /// one VM called `linux`.
    ///
    /// # Errors
    /// [`SpecError`] for anything that cannot be.
    pub fn settle(files: Vec<VmFile>, options: &VmFile, has_exec: bool) -> Result<Vec<Self>, SpecError> {
        let files = if files.is_empty() { vec![VmFile::default()] } else { files };
        if files.len() > 1 && options.name.is_some() {
            return Err(SpecError::NameForMany(files.len()));
        }
        if files.len() > MAX_VMS {
            return Err(SpecError::TooMany(files.len()));
        }
        let mut vms: Vec<Self> = Vec::new();
        for mut file in files.into_iter().map(|file| file.overridden_by(options)) {
            // A system is there to be worked in.
            if file.has_system() {
                file.net.get_or_insert(true);
            }
            let after = file.after.clone();
            let mut vm = Self::complete(file.clone(), has_exec)?;
            vm.net = Self::card(&vm.name, vms.len(), &file)?;
            vm.check_vkernel()?;
            let place = |name: &str| vms.iter().position(|other| other.name == name);
            if place(&vm.name).is_some() {
                return Err(SpecError::Duplicate(vm.name));
            }
            if let Some(after) = after {
                let Some(before) = place(&after) else { return Err(SpecError::After { vm: vm.name, after }) };
                vm.after = Some(before as u32);
            }
            vms.push(vm);
        }
        Ok(vms)
    }

    fn complete(vm: VmFile, has_exec: bool) -> Result<Self, SpecError> {
        let has_l2_alone = vm.l2.is_some() && vm.nested != Some(true);
        let is_portable = vm.cpu == Some(Cpu::Portable);
        let promised =
            [("svvptc", vm.svvptc), ("svadu", vm.svadu)].into_iter().find(|(_, switch)| *switch == Some(true));
        let way = vm.vmspace.unwrap_or_default();
        let mut spec = Self {
            memory: vm.memory.unwrap_or(if vm.has_system() { DEFAULT_SYSTEM_MEMORY } else { DEFAULT_MEMORY }),
            name: vm.name.clone().unwrap_or_else(|| default_name(&vm)),
            // Known only among the others.
            after: None,
            limit: vm.limit,
            reserve: vm.reserve.unwrap_or(Size(0)),
            wired: vm.wired.unwrap_or(false),
            vcpus: vm.vcpus.unwrap_or(1),
            kernel: vm.kernel.unwrap_or(Kernel::Debian),
            init: vm.init,
            initrd: vm.initrd,
            root: vm.root,
            add: vm.add.unwrap_or_default(),
            append: vm.append.unwrap_or_default(),
            console: vm.console.unwrap_or(Console::Uart),
            mmu: vm.mmu.or((way == Way::Soft).then_some(MmuMode::Lazy)),
            lane: vm.lane,
            svvptc: vm.svvptc.unwrap_or(!is_portable),
            svadu: vm.svadu.or(is_portable.then_some(false)),
            nested: vm.nested.unwrap_or(false),
            l2: vm.l2.unwrap_or_default(),
            vmspace: way,
            shadow: vm.shadow,
            superpages: vm.superpages.unwrap_or(true),
            gigapages: vm.gigapages.unwrap_or(false),
            balloon: vm.balloon.and_then(Balloon::target),
            disks: vm.disks.unwrap_or_default(),
            shares: vm.shares.unwrap_or_default(),
            rng: vm.rng,
            power_key: vm.powerkey,
            shell: vm.shell,
            ports: vm.ports.unwrap_or_default(),
            // By its place among the others.
            net: None,
            is_offline: vm.net == Some(false),
            restore: vm.restore,
        };
        if !is_name(&spec.name) {
            return Err(SpecError::Name(spec.name));
        }
        if let Some((key, _)) = promised.filter(|_| is_portable) {
            return Err(SpecError::NotPortable { vm: spec.name, key });
        }
        if has_l2_alone {
            return Err(SpecError::NoHypervisor(spec.name));
        }
        let has_way = |mode: MmuMode| match way {
            Way::Direct => true,
            Way::Nested => mode == MmuMode::TwoStage,
            Way::Soft => !matches!(mode, MmuMode::TwoStage | MmuMode::Adaptive),
        };
        if let Some(mode) = spec.mmu.filter(|mode| !has_way(*mode)) {
            return Err(SpecError::Vmspace { vm: spec.name, way: way.name(), mode });
        }
        if !(1..=MAX_VCPUS).contains(&spec.vcpus) {
            return Err(SpecError::Vcpus { vm: spec.name, vcpus: spec.vcpus });
        }
        if spec.memory < LEAST_MEMORY || !spec.memory.0.is_multiple_of(PAGE) {
            return Err(SpecError::Memory { vm: spec.name, memory: spec.memory });
        }
        if spec.shell == Some(true) && !has_exec {
            spec.check_shell()?;
            spec.add_shell();
        }
        port::check(&spec.name, &spec.ports)?;
        spec.check_root()?;
        spec.check_disk()?;
        spec.check_residence()?;
        if spec.console == Console::Sbi && spec.kernel == Kernel::Debian {
            return Err(SpecError::NoSbiConsole(spec.name));
        }
        // Debian's kernel has one of the drivers as a module.
        if (spec.console, &spec.kernel, &spec.initrd) == (Console::Virtio, &Kernel::Debian, &Some(Initrd::None)) {
            return Err(SpecError::NoVirtioConsole(spec.name));
        }
        let least = Size(LEAST_SHADOW_BYTES_PER_VCPU * u64::from(spec.vcpus));
        if let Some(shadow) = spec.shadow.filter(|shadow| *shadow < least || !shadow.0.is_multiple_of(PAGE)) {
            return Err(SpecError::Shadow { vm: spec.name, shadow, least });
        }
        let is_possible = |balloon: &Size| balloon.0 <= spec.memory.0 / 8 * 7 && balloon.0.is_multiple_of(PAGE);
        if let Some(balloon) = spec.balloon.filter(|balloon| !is_possible(balloon)) {
            return Err(SpecError::Balloon { vm: spec.name, balloon, memory: spec.memory });
        }
        let why = match (&spec.initrd, &spec.kernel) {
            _ if !has_exec => return Ok(spec),
            _ if spec.restore.is_some() => "it is restored from a snapshot, and its shell may be busy",
            (Some(Initrd::File(_)), _) => "it has an initrd of its own",
            (Some(Initrd::None), _) => "it has no initrd",
            _ if spec.init.is_some() => "it has an `init` of its own",
            (_, Kernel::UBoot) => "U-Boot does not run them",
            (_, Kernel::Disk) => "the system on its disk does not run them",
            _ => return Ok(spec),
        };
        Err(SpecError::Exec { vm: spec.name, why })
    }

    /// The network card that a VM's file and the options describe, if any, for the VM at this place of the run.
    fn card(vm: &str, place: usize, file: &VmFile) -> Result<Option<Card>, NetError> {
        let forwards = file.forward.clone().unwrap_or_default();
        // A port of the host that leads to it is of no use without a card.
        if !file.net.unwrap_or(!forwards.is_empty()) {
            return match (file.mac, forwards.first()) {
                (Some(_), _) => Err(NetError::NoCard(vm.into())),
                (_, Some(forward)) => Err(NetError::NoNetwork { forward: *forward, vm: vm.into() }),
                (None, None) => Ok(None),
            };
        }
        match file.mac {
            Some(mac) if !mac.is_card() => Err(NetError::Group { vm: vm.into(), mac }),
            Some(GATEWAY_MAC) => Err(NetError::Gateway(vm.into())),
            _ => Ok(Some(Card::of(place, file.mac, forwards))),
        }
    }

    fn check_root(&self) -> Result<(), SpecError> {
        let (why, remedy) = match (&self.kernel, &self.initrd) {
            _ if self.root.is_none() => return Ok(()),
            (Kernel::UBoot | Kernel::Disk | Kernel::Vkernel | Kernel::File(_), _) => (
                "it boots a different kernel".to_owned(),
                "leave out `kernel`: the root only has modules for Debian's kernel",
            ),
            (_, Some(_)) => (
                "it has an initrd of its own".to_owned(),
                "leave out `initrd`: Gnomon's own initrd finds the root on its disk",
            ),
            _ if self.memory < LEAST_ROOT_MEMORY => {
                let why = format!("it has {} of memory, and needs at least {LEAST_ROOT_MEMORY}", self.memory);
                (why, "give it more: `memory` in the VM file, or --memory")
            }
            _ => return Ok(()),
        };
        Err(SpecError::Root { vm: self.name.clone(), why, remedy })
    }

    /// Checks a VM that boots from a disk: its system has a kernel, an initrd and a command line of its own.
    fn check_disk(&self) -> Result<(), SpecError> {
        const CHANGE: &str = "the boot loader's configuration on the disk decides that: change it in the guest";
        let (why, remedy) = match &self.initrd {
            _ if self.kernel != Kernel::Disk || self.restore.is_some() => return Ok(()),
            _ if self.disks.is_empty() => ("it has no disk", "give it one: --disk FILE, or `disks` in the VM file"),
            Some(Initrd::Busybox | Initrd::File(_)) => ("it has an `initrd`", CHANGE),
            _ if !self.append.is_empty() => ("it has an `append`", CHANGE),
            _ if self.console != Console::Uart => ("it has a `console`", CHANGE),
            _ if self.memory < LEAST_DISK_MEMORY => (
                "U-Boot needs 64 MiB of memory, and the system on the disk needs more",
                "give it more: `memory` in the VM file, or --memory",
            ),
            _ => return Ok(()),
        };
        Err(SpecError::Disk { vm: self.name.clone(), why, remedy })
    }

    /// Checks a VM whose kernel is the vkernel, and that others have none of its keys.
    fn check_vkernel(&self) -> Result<(), SpecError> {
        const LEAVE_OUT: &str = "leave it out, or boot Linux: kernel = \"debian\"";
        let (why, remedy) = match &self.init {
            Some(_) if self.kernel != Kernel::Vkernel => {
                ("`init` is for the vkernel alone", "add `kernel = \"vkernel\"`, or leave out `init`")
            }
            _ if self.kernel != Kernel::Vkernel || self.restore.is_some() => return Ok(()),
            Some(words) if words.is_empty() => ("`init` names no program", "give it one: init = [\"busybox\", \"sh\"]"),
            Some(_) if self.initrd.is_some() => (
                "it has an `init` and an `initrd`",
                "leave out one of them: the first program of an `initrd` is its /init",
            ),
            _ if !self.disks.is_empty() => ("the vkernel has no driver for disks", LEAVE_OUT),
            _ if self.console == Console::Virtio => ("the vkernel has no driver for that console", LEAVE_OUT),
            _ => return Ok(()),
        };
        Err(SpecError::Vkernel { vm: self.name.clone(), why, remedy })
    }

    fn check_residence(&self) -> Result<(), SpecError> {
        let most = self.limit.unwrap_or(self.memory).min(self.memory);
        let is_whole = |size: Size| size.0.is_multiple_of(PAGE);
        let why = match self.limit {
            Some(limit) if limit < LEAST_MEMORY || !is_whole(limit) => {
                "`limit` is too small, or not a multiple of 4 KiB"
            }
            Some(limit) if self.wired && limit < self.memory => "`wired` memory is more than `limit`",
            _ if self.reserve > most => "`reserve` is more than `limit` or `memory`",
            _ if !is_whole(self.reserve) => "`reserve` is not a multiple of 4 KiB",
            _ => return Ok(()),
        };
        Err(SpecError::Residence { vm: self.name.clone(), why })
    }

    /// Returns whether the VM boots a whole system, to be worked in.
    #[must_use]
    pub fn has_system(&self) -> bool {
        self.root.is_some() || self.kernel == Kernel::Disk
    }

    /// Returns whether the VM has a power key. One that is restored from a snapshot has it if it had it there.
    #[must_use]
    pub fn has_power_key(&self) -> bool {
        self.power_key.unwrap_or(self.has_system())
    }

    /// Returns whether its guest is one that Gnomon puts its agent into.
    #[must_use]
    pub fn takes_agent(&self) -> bool {
        let is_own = self.initrd.as_ref().is_none_or(|initrd| *initrd == Initrd::Busybox);
        self.kernel == Kernel::Debian && is_own && self.restore.is_none()
    }

    /// Returns whether `gnomon shell` can reach the VM's guest, if that has an agent.
    #[must_use]
    pub fn has_shell(&self) -> bool {
        self.ports.iter().any(|port| port == agent::PORT)
    }

    /// Lets `gnomon shell` reach the VM unless the user has decided, if its guest takes the agent and a port is free.
    pub fn offer_shell(&mut self) {
        if self.shell.is_none() && self.takes_agent() && self.ports.len() < MAX_PORTS {
            self.add_shell();
        }
    }

    fn add_shell(&mut self) {
        if !self.has_shell() {
            self.ports.push(agent::PORT.into());
        }
    }

    fn check_shell(&self) -> Result<(), SpecError> {
        if self.takes_agent() { Ok(()) } else { Err(SpecError::Shell(self.name.clone())) }
    }

    /// The most of its RAM that is in memory at a time.
    #[must_use]
    pub fn most_resident(&self) -> Size {
        self.limit.map_or(self.memory, |limit| limit.min(self.memory))
    }

    /// Memory that the machine must have for its shadow tables, beside its RAM.
    #[must_use]
    pub fn shadow_need(&self, h: HExtension) -> Size {
        // Left to itself, Gnomon shadows only where it must.
        let is_nested = self.mmu.map_or(h == HExtension::Present, |mode| mode == MmuMode::TwoStage);
        if is_nested { Size(0) } else { self.shadow.unwrap_or(Size(default_shadow_bytes(self.memory.0))) }
    }
}

/// Adds the ports of the options to the network cards of their VMs.
///
/// # Errors
/// [`NetError`].
pub fn forward(vms: &mut [VmSpec], ports: &[ForwardTo]) -> Result<(), NetError> {
    for ForwardTo { vm, forward } in ports {
        let forward = *forward;
        let at = match vm {
            None if vms.len() == 1 => Some(0),
            None => return Err(NetError::WhichVm(forward, vms[0].name.clone())),
            Some(name) => vms.iter().position(|vm| vm.name == *name),
        };
        let Some(at) = at else {
            let vms: Vec<_> = vms.iter().map(|vm| format!("`{}`", vm.name)).collect();
            return Err(NetError::NoVm { forward, vm: vm.clone().unwrap_or_default(), vms: vms.join(", ") });
        };
        let VmSpec { name, net, is_offline, .. } = &mut vms[at];
        if *is_offline {
            return Err(NetError::NoNetwork { forward, vm: name.clone() });
        }
        net.get_or_insert_with(|| Card::of(at, None, Vec::new())).forwards.push(forward);
    }
    Ok(())
}

/// The name of a VM without one, by what it boots: that of a file as far as it can be a name.
fn default_name(vm: &VmFile) -> String {
    let disk = vm.disks.iter().flatten().next();
    let file = match &vm.kernel {
        None | Some(Kernel::Debian) => return if vm.root.is_some() { "debian" } else { "linux" }.into(),
        Some(Kernel::Vkernel) => return "vkernel".into(),
        Some(Kernel::UBoot) => return "u-boot".into(),
        Some(Kernel::Disk) => disk.and_then(|disk| disk.file.file_stem()),
        Some(Kernel::File(path)) => path.file_stem(),
    };
    let file = file.unwrap_or_default().to_string_lossy();
    let name: String = file.chars().filter(|c| is_name_char(*c)).take(MOST_NAME_CHARS).collect();
    if name.is_empty() { "vm".into() } else { name }
}

/// The most memory that these VMs need at once, with that of their shadow tables: those that start after another need
/// theirs when that has given its own back.
#[must_use]
pub fn most_memory(vms: &[VmSpec], h: HExtension) -> Size {
    let mut most = vec![0u64; vms.len()];
    let mut total = 0u64;
    // Whatever waits for a VM comes behind it in the list.
    for (place, vm) in vms.iter().enumerate().rev() {
        let followers = std::mem::take(&mut most[place]);
        let need = followers.max(vm.most_resident().0.saturating_add(vm.shadow_need(h).0));
        let sum = vm.after.map_or(&mut total, |before| &mut most[before as usize]);
        *sum = sum.saturating_add(need);
    }
    Size(total)
}

/// Checks that a machine can run these VMs.
///
/// # Errors
/// [`SpecError::PayloadWithoutH`] and [`SpecError::ModeWithoutH`].
pub fn check_machine(vms: &[VmSpec], seat: Seat, h: HExtension) -> Result<(), SpecError> {
    if h == HExtension::Present {
        return Ok(());
    }
    if seat == Seat::Payload {
        return Err(SpecError::PayloadWithoutH);
    }
    let needs_h = |vm: &VmSpec| Some((vm.name.clone(), vm.mmu.filter(|mode| !mode.works_without_h())?));
    match vms.iter().find_map(needs_h) {
        Some((name, mode)) => Err(SpecError::ModeWithoutH(name, mode)),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests;
