//! New parts as an extension would add them: here each is one file, with one line that names it.

use crate::fake::{self, World, start_due, vm_config};
use abi::bundle::{GUEST_ENTRY, MmuMode, VmConfig};
use abi::snapshot::device::DeviceState;
use dtoolkit::model::DeviceTreeProperty;
use hypervisor::device::offer::{GuestTimer, Kind, Offer};
use hypervisor::device::plic::START as PLIC;
use hypervisor::device::{Answer, Device, KINDS, Outside, Place, Unsaved, Wild, virtio};
use hypervisor::gnomon::Gnomon;
use hypervisor::io::host_events::go_on;
use hypervisor::vm::{Vm, mapper};
use mmu::Mapper;
use mmu::gstage::Ready;
use rv::{Access, Addr, Exception, FenceScope, Gpa, PhysMem};
use sbi_spec::dbcn;

const AT: u64 = 0x1010_0000;
const BUSY: u64 = 77;
const SOURCE: u32 = 20;
const LW: u64 = 0x2583;
const SW: u64 = 0x00b0_2023;

/// A device with one register: a store raises its interrupt, a load lowers it and returns the value that was stored. While that is
/// [`BUSY`], each moment asks for another one.
#[derive(Debug, Default)]
struct Bell {
    value: u64,
    is_ringing: bool,
    rings: u64,
    moments: u64,
}

impl Device for Bell {
    fn name(&self) -> &'static str {
        "bell"
    }
    fn place(&self) -> Place {
        Place { start: AT, bytes: 8 }
    }
    fn source(&self) -> u32 {
        SOURCE
    }
    fn properties(&self) -> Vec<DeviceTreeProperty> {
        vec![DeviceTreeProperty::new_unchecked("compatible", "gnomon,bell")]
    }
    fn load(&mut self, _: u64, _: u8, _: &mut dyn Outside) -> Answer<u64> {
        self.is_ringing = false;
        Answer::Done(self.value)
    }
    fn store(&mut self, _: u64, _: u8, value: u64, _: &mut dyn Outside) -> Answer<()> {
        (self.value, self.is_ringing, self.rings) = (value, true, self.rings + 1);
        Answer::Done(())
    }
    fn interrupt(&self) -> bool {
        self.is_ringing
    }
    fn moment(&mut self, outside: &mut dyn Outside) {
        self.moments += 1;
        if self.value == BUSY {
            outside.soon();
        }
    }
    fn reset(&mut self) {
        *self = Self::default();
    }
    fn counters(&self, report: &mut dyn FnMut(&'static str, u64)) {
        report("bell.rings", self.rings);
        report("bell.moments", self.moments);
    }
    fn save(&self) -> Result<DeviceState, Unsaved> {
        Err(Unsaved::Never("a bell has no snapshot"))
    }
    fn restore(&mut self, _: &DeviceState) -> Result<(), Wild> {
        Err(Wild::OTHER)
    }
}

fn make(_: &VmConfig, _: &Offer) -> Vec<Box<dyn Device>> {
    vec![Box::new(Bell::default())]
}

/// The line.
const WITH_BELL: [Kind; 2] = [virtio::balloon::make, make];

#[test]
fn a_device_is_one_file_and_one_line() {
    let (mut g, mut hart) = fake::machine(vec![], 1, GuestTimer::Sstc);
    assert_eq!(KINDS.len(), 8);
    g.offer.kinds = &WITH_BELL;
    g.vms.wish(vm_config("vm", 1), &g.offer);
    start_due(&g, &mut hart);
    let run = g.sched.take(0).expect("the first vCPU is ready");
    let mut w = World { g, hart, run };
    // The guest is told of it.
    let tree = String::from_utf8_lossy(&w.run.vm.tree).into_owned();
    assert!(tree.contains("bell@10100000") && tree.contains("gnomon,bell"));
    // Its interrupt is enabled, with priority 1.
    let access = |w: &mut World, cause: Exception, at: u64, value: u64| {
        w.run.context.x[11] = value;
        let tinst = if cause == Exception::LoadGuestPage { LW } else { SW };
        let outcome = w.exit(cause.code(), at, at, tinst);
        assert_eq!((outcome, w.hart.regs.vscause), (hypervisor::vm::outcome::Outcome::Resume, 0));
        w.run.context.x[11]
    };
    access(&mut w, Exception::StoreGuestPage, PLIC + 4 * u64::from(SOURCE), 1);
    access(&mut w, Exception::StoreGuestPage, PLIC + 0x2000 + 0x80, 1 << SOURCE);
    let claim = PLIC + 0x20_1004;
    assert_eq!(access(&mut w, Exception::LoadGuestPage, claim, 0), 0);
    // Not at the start of a page: there the trap would not tell where the access begins.
    access(&mut w, Exception::StoreGuestPage, AT + 4, 42);
    assert_eq!(access(&mut w, Exception::LoadGuestPage, claim, 0), u64::from(SOURCE));
    assert_eq!(access(&mut w, Exception::LoadGuestPage, AT + 4, 0), 42);
    access(&mut w, Exception::StoreGuestPage, claim, u64::from(SOURCE));
    assert_eq!(access(&mut w, Exception::LoadGuestPage, claim, 0), 0);
    // It is counted.
    assert_eq!(w.g.report(&w.run.vm).count("bell.rings"), Some(1));
    // An event goes to the device that it is for: the UART, then this one.
    let vm = w.run.vm.clone();
    let at = (0..).position(|at| vm.devices.all().iter().nth(at).is_none_or(|device| device.name() == "bell")).unwrap();
    for (device, expected) in [(0, 0), (at, 1), (0, 1)] {
        vm.devices.ask(device);
        go_on(&w.g, 1 << vm.slot(), &mut w.hart);
        assert_eq!(w.g.report(&vm).count("bell.moments"), Some(expected), "after an event for {device}");
    }
    // One that always has more to do delays no output.
    access(&mut w, Exception::StoreGuestPage, AT + 4, BUSY);
    vm.devices.ask(at);
    assert_eq!(w.sbi(dbcn::EID_DBCN, dbcn::CONSOLE_WRITE_BYTE as u64, &[b'!'.into()]), (0, 0));
}

/// A mapper that counts the edits of one page.
struct Log(u64);

impl Mapper for Log {
    fn changed(&mut self, scope: FenceScope<Gpa>, _: &mut dyn PhysMem) {
        let entry = Addr::<Gpa>::new(GUEST_ENTRY);
        let is_in = matches!(scope, FenceScope::Range { start, bytes } if (start.raw()..start.raw() + bytes).contains(&entry.raw()));
        self.0 += u64::from(is_in);
    }
    fn counters(&self, report: &mut dyn FnMut(&'static str, u64)) {
        report("log.edits", self.0);
    }
}

fn log(_: &Vm) -> Option<Box<dyn Mapper>> {
    Some(Box::new(Log(0)))
}

/// The line.
const WITH_LOG: [mapper::Kind; 2] = [mapper::KINDS[0], log];

#[test]
fn a_mapper_is_one_file_and_one_line() {
    let (mut g, mut hart) = fake::machine(vec![], 1, GuestTimer::Sstc);
    g.mappers = &WITH_LOG;
    for (number, mode) in [MmuMode::TwoStage, MmuMode::Steered].into_iter().enumerate() {
        let name = format!("vm{number}");
        g.vms.wish(VmConfig { mmu: Some(mode), superpages: false, ..vm_config(&name, 1) }, &g.offer);
        start_due(&g, &mut hart);
        let vm = g.vms.all().find(|vm| vm.config.name == name).expect("it is started");
        let edits = |g: &Gnomon| g.report(&vm).count("log.edits").expect("it is counted");
        // A page of an image that is read is no edit; to copy it is one.
        let entry = Addr::new(GUEST_ENTRY);
        for (access, expected) in [(Access::Load, 0), (Access::Store, 1), (Access::Store, 1)] {
            // To copy 2 MiB takes some portions.
            let mut ready = Ready::Nothing;
            while let Err(why) = vm.reach(&g, (entry, access), &mut ready, &mut hart) {
                assert!(why.is_for_now(), "{why:?}");
            }
            assert_eq!(edits(&g), expected, "{access:?} in {mode:?}");
        }
    }
}
