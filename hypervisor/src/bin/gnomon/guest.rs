//! The guests' side of a hart: the mode in which guests run, the registers that hold a guest's supervisor state, the
//! parts of it that trap, and the tables that translate.
//!
//! Guests run in VS mode or, where the hart lacks the H extension, in S mode itself. Only this file and those below it
//! know what that means for registers and instructions, and only here do seat and guest mode meet. Three pairs exist:
//! the payload seat has VS mode only. Everything else that depends on the guest mode is decided by
//! `hypervisor::device::offer::GuestMode`.

mod bank;
mod bytes;
mod counters;
mod emulation;
mod nesting;
mod probe;
mod state;
mod worlds;

pub use probe::Abilities;

use crate::seat::Seat;
use ::lane::Context;
use alloc::string::String;
use bank::with_bank;
use hypervisor::device::offer::GuestMode;
use hypervisor::machine::description::HostHart;
use hypervisor::machine::isa::Isa;
use hypervisor::vm::vcpu::VsTrapRegs;
use metal::{csr, fence, lane, world};
use nesting::{Lines, Nesting};
use rv::csr::{COUNTEREN_BASE, COUNTEREN_HPM, atp, envcfg, hstatus, status};
use rv::{Addr, Asid, Exception, Format, Gva, Hpa, Interrupt, Mode, Pfn, Vmid};

/// The exceptions that guests take themselves: what a kernel expects to see, and what needs nothing
/// of Gnomon.
const GUESTS_OWN: u64 = Exception::FetchMisaligned.bit()
    | Exception::IllegalInstruction.bit()
    | Exception::Breakpoint.bit()
    | Exception::LoadMisaligned.bit()
    | Exception::StoreMisaligned.bit()
    | Exception::EcallFromU.bit()
    | PAGE_FAULTS;
/// Misaligned accesses, which come to Gnomon if it emulates them.
const MISALIGNED: u64 = Exception::LoadMisaligned.bit() | Exception::StoreMisaligned.bit();
/// The page faults, which come to Gnomon if the guest faults in Gnomon's tables.
const PAGE_FAULTS: u64 = Exception::FetchPage.bit() | Exception::LoadPage.bit() | Exception::StorePage.bit();
/// Breakpoints, which come to Gnomon while a debugger is attached.
const BREAKPOINT: u64 = Exception::Breakpoint.bit();
const S_INTERRUPTS: u64 = Interrupt::SSoft.bit() | Interrupt::STimer.bit() | Interrupt::SExternal.bit();
const VS_INTERRUPTS: u64 = Interrupt::VsSoft.bit() | Interrupt::VsTimer.bit() | Interrupt::VsExternal.bit();
/// ENVCFG: what guests without further state extensions need. Not `sstateen0` itself, which is not saved: it stays as
/// it is, and guests cannot access it.
const STATEEN: u64 = 1 << 62;

/// The VMID of guests on shadow tables behind a hole. 0 is that of those behind an `hgatp` of Bare. (What has a VMID's
/// translations made must not change without a fence, even to Bare; privileged specification, "Memory-Management
/// Fences" of the hypervisor extension.)
pub const HOLE_VMID: Vmid = Vmid(1);
/// `hgatp` without a G-stage.
const BARE: u64 = 0;

/// An interrupt line of a guest's hart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Line {
    /// A software interrupt, from other harts.
    Software,
    /// The timer, for guests without Sstc.
    Timer,
    /// An external interrupt, from the PLIC.
    External,
}

impl Line {
    /// Returns its bit in `hvip`; that in `mip` is one below.
    const fn vs_bit(self) -> u64 {
        match self {
            Line::Software => Interrupt::VsSoft.bit(),
            Line::Timer => Interrupt::VsTimer.bit(),
            Line::External => Interrupt::VsExternal.bit(),
        }
    }
}

/// The way in which this hart runs guests.
#[derive(Clone, Copy, Debug)]
pub struct GuestHart {
    seat: Seat,
    mode: GuestMode,
    /// Set if the hart has `menvcfg` and `senvcfg`.
    has_envcfg: bool,
    /// Set if guests in S mode have `scountinhibit`, by which they reach `mcountinhibit`.
    has_countinhibit: bool,
    /// Set if the hart can tell VMID 0, which is Bare's, and [`HOLE_VMID`] from others.
    has_vmids: bool,
    /// `hgatp` for steered guests: Bare, or a G-stage that maps all but a hole onto itself.
    hole: u64,
    /// `hgatp` of the last guest on shadow tables.
    one_stage: u64,
    /// Set if the guest's operations on its own translation (`satp`, fences, page faults) come to Gnomon.
    traps_translation: bool,
    /// Set if page faults are nevertheless the guest's own.
    steers: bool,
    /// Set if breakpoints come to Gnomon: a debugger is attached to the VM.
    breaks: bool,
    /// Set if Gnomon sets A and D for a guest behind a G-stage: its page faults come to Gnomon.
    sets_ad: bool,
    /// Set if translations by shadow tables are to be forgotten before a guest on such tables is loaded: those that
    /// have the VMID of Bare, and those of the hole.
    owes_fence: [bool; 2],
    /// `henvcfg`, in VS mode, without ADUE.
    henvcfg: u64,
    /// Set if all harts have Zba.
    has_zba: bool,
    /// Set if misaligned accesses that the hart traps come to Gnomon (firmware seat).
    emulates_misaligned: bool,
    /// The bit of `scounteren` for `time`, if guests cannot set it.
    unset_counters: u64,
    /// The world that the loaded guest runs, if it is a hypervisor.
    nesting: Nesting,
    /// FS and VS, of the registers that guests are offered.
    offered: u64,
    /// Set if guests' reads of `time` are illegal instructions, which come to Gnomon then (firmware seat).
    emulates_time: bool,
}

impl GuestHart {
    /// Prepares this hart: delegation, and what guests may use; and finds out what it can. Trap vectors
    /// are set already. `common` is what all harts have. [`GuestHart::forget_everything`] comes later,
    /// when memory protection is in force.
    ///
    /// # Errors
    /// A message, if the hart cannot host guests.
    pub fn start(hart: &HostHart, common: &Isa, seat: Seat, mode: GuestMode) -> Result<(Self, Abilities), String> {
        if mode == GuestMode::Supervisor {
            check_registers(&hart.isa, common)?;
        }
        // Svadu and Svpbmt stay off: see `hypervisor::machine::isa`; and shadow tables are Gnomon's to change.
        // What the hart lacks reads back as zero.
        let stce = if common.has("sstc") { envcfg::STCE } else { 0 };
        let wanted = stce | envcfg::CBZE | envcfg::CBCFE | envcfg::CBIE_FLUSH;
        // SAFETY: M mode where it is used; the trap vectors are set.
        let has_envcfg = seat == Seat::Payload || unsafe { csr::menvcfg::exists() };
        // Smcdeleg hands `mcountinhibit` on to S mode, in part, and nothing keeps a guest there from it. VS mode has none.
        let has_countinhibit = mode == GuestMode::Supervisor
            // SAFETY: M mode, where alone guests run in S mode; the trap vectors are set.
            && unsafe { csr::scountinhibit::exists() };
        let mut this = Self {
            seat,
            mode,
            has_envcfg,
            has_countinhibit,
            has_vmids: false,
            hole: BARE,
            one_stage: BARE,
            // An earlier boot stage may have used it.
            owes_fence: [false, true],
            traps_translation: mode == GuestMode::Supervisor,
            steers: false,
            breaks: false,
            sets_ad: false,
            henvcfg: wanted,
            has_zba: common.has("zba"),
            emulates_misaligned: emulates_misaligned(seat, common),
            unset_counters: 0,
            nesting: Nesting::none(mode),
            offered: if common.has("d") { status::FS } else { 0 } | if common.has("v") { status::VS } else { 0 },
            // SAFETY: M mode; the trap vectors are set.
            emulates_time: seat == Seat::Firmware && !unsafe { csr::time::exists() },
        };
        // SAFETY: none of these affects Gnomon's own execution but in that traps come here;
        // interrupts stay globally disabled while Gnomon runs.
        unsafe {
            match seat {
                Seat::Firmware => {
                    let off = status::MPRV | status::TVM | status::TW | status::TSR;
                    csr::mstatus::clear(off | status::SUM | status::MXR | status::FS | status::VS);
                    if csr::mcountinhibit::exists() {
                        csr::mcountinhibit::write(0);
                    }
                    // The VS bits are hardwired to 1. Under guests in VS mode nothing ever runs in HS mode
                    // to take the S-level ones, and they stay disabled in `mie`; but QEMU hides from a
                    // *guest's* `sip` and `sie` what `mideleg` does not delegate.
                    csr::mideleg::write(S_INTERRUPTS);
                    // What HS mode may read traps in VS mode as a virtual instruction, which comes here.
                    let traps = if mode == GuestMode::Virtual { COUNTEREN_HPM } else { 0 };
                    csr::mcounteren::write(COUNTEREN_BASE | traps);
                    // Some harts have `time` for M mode alone.
                    this.emulates_time |= csr::mcounteren::read() & rv::csr::COUNTEREN_TM == 0;
                    if has_envcfg {
                        // Who may use Svadu is then `henvcfg`'s to say; S mode is never told of it.
                        let svadu = if mode == GuestMode::Virtual { envcfg::ADUE } else { 0 };
                        csr::menvcfg::write(wanted | svadu);
                    }
                    if hart.isa.has("smstateen") {
                        csr::mstateen0::write(STATEEN);
                    }
                }
                Seat::Payload => csr::sstatus::clear(status::SUM | status::MXR | status::FS | status::VS),
            }
            match mode {
                GuestMode::Virtual => {
                    if hart.isa.has("smstateen") || hart.isa.has("ssstateen") {
                        csr::hstateen0::write(STATEEN);
                    }
                    csr::hideleg::write(VS_INTERRUPTS);
                    csr::hie::write(0);
                    csr::hgeie::write(0);
                    csr::hvip::write(0);
                    csr::hcounteren::write(COUNTEREN_BASE);
                    csr::hstatus::write(hstatus::VSXL_64);
                    csr::henvcfg::write(wanted | envcfg::ADUE);
                }
                GuestMode::Supervisor => {
                    csr::sie::write(0);
                    csr::mip::clear(S_INTERRUPTS);
                    csr::mstatus::set(status::TVM);
                    if csr::mstatus::read() & status::TVM == 0 {
                        return Err("the hart has no supervisor mode whose satp could trap (mstatus.TVM)".into());
                    }
                }
            }
        }
        // SAFETY: governs U mode, where Gnomon never is.
        this.unset_counters = unsafe {
            csr::scounteren::write(rv::csr::COUNTEREN_TM);
            rv::csr::COUNTEREN_TM & !csr::scounteren::read()
        };
        this.delegate();
        let environment = match mode {
            GuestMode::Virtual => {
                let granted = csr::henvcfg::read();
                // SAFETY: concerns guests only.
                unsafe { csr::henvcfg::write(wanted) };
                granted
            }
            GuestMode::Supervisor if has_envcfg => csr::menvcfg::read(),
            GuestMode::Supervisor => 0,
        };
        let vlenb = if common.has("v") { this.vector_bytes() } else { 0 };
        let abilities = probe::probe(mode, environment, vlenb, probe::counters_trap(seat, mode))?;
        this.use_vmid_bits(abilities.vmid_bits);
        Ok((this, abilities))
    }

    /// Limits the bits of VMIDs that are used.
    pub const fn use_vmid_bits(&mut self, bits: u32) {
        self.has_vmids = bits > 1;
    }

    /// Makes a G-stage, whose table is this one, deny frames to steered guests. VS mode only; called after
    /// [`GuestHart::use_vmid_bits`], before any guest is loaded.
    pub const fn use_hole(&mut self, format: &Format, table: Pfn<Hpa>) {
        let vmid = if self.has_vmids { HOLE_VMID } else { Vmid(0) };
        self.hole = atp::hgatp(format, vmid, table);
    }

    /// Delegates the exceptions that guests take themselves.
    fn delegate(&self) {
        let comes_here = self.traps_translation && !self.steers || self.sets_ad;
        let guests_own = if comes_here { GUESTS_OWN & !PAGE_FAULTS } else { GUESTS_OWN };
        let guests_own = if self.breaks { guests_own & !Exception::Breakpoint.bit() } else { guests_own };
        let guests_own = if self.emulates_misaligned { guests_own & !MISALIGNED } else { guests_own };
        let guests_own = self.nesting.delegated(guests_own, GUESTS_OWN & !BREAKPOINT);
        let but_illegal = guests_own & !Exception::IllegalInstruction.bit();
        // SAFETY: what is not delegated comes to the guest vector.
        unsafe {
            match (self.seat, self.mode) {
                (Seat::Firmware, GuestMode::Virtual) => {
                    csr::medeleg::write(if self.emulates_time { but_illegal } else { guests_own });
                    csr::hedeleg::write(guests_own);
                }
                // Firmware that keeps illegal instructions to itself (OpenSBI does) hands them on to
                // whom `hedeleg` names, and OpenSBI 1.5 enters a guest's vectored `stvec` wrongly.
                (Seat::Payload, _) => csr::hedeleg::write(but_illegal),
                // What TVM and TW trap is an illegal instruction.
                (Seat::Firmware, GuestMode::Supervisor) => csr::medeleg::write(but_illegal),
            }
        }
    }

    /// Has the guest that is about to be loaded translated by its own tables, behind the G-stage that this value of `hgatp`
    /// names. VS mode only; no guest is loaded.
    pub fn set_two_stage(&mut self, hgatp: u64) {
        assert!(self.mode == GuestMode::Virtual, "no G-stage without the H extension");
        // SAFETY: concerns guests only; the caller's table.
        unsafe { csr::hgatp::write(hgatp) };
        self.trap_translation(false);
    }

    /// Has it translated by a table of Gnomon's alone, which [`GuestHart::load_guest_root`] names: `hgatp` is Bare since the
    /// last guest was unloaded, and stays so unless a hole is to deny frames to a guest that is `steered`. No guest is loaded.
    pub fn set_one_stage(&mut self, steered: bool) {
        let hgatp = if steered { self.hole } else { BARE };
        if hgatp != BARE {
            // SAFETY: concerns guests only, and leaves them what they reach by tables of Gnomon's.
            unsafe { csr::hgatp::write(hgatp) };
        }
        self.trap_translation(true);
        if core::mem::replace(&mut self.one_stage, hgatp) != hgatp && !self.has_vmids {
            fence::gvma_all();
            fence::vvma_all();
        }
        self.pay_fence();
    }

    /// Makes this hart forget translations by shadow tables, whatever guest is loaded: at once, or before it matters. A fence in VS mode
    /// is one of the VMID that `hgatp` holds, and while that is a guest's with two stages, or of those on shadow tables the
    /// other's, it is not theirs.
    pub fn fence_shadows(&mut self) {
        self.owes_fence = [true, true];
        if self.traps_translation {
            self.pay_fence();
        }
    }

    /// Makes this hart forget what it owes of the VMID that `hgatp` holds, which is that of guests on shadow tables.
    fn pay_fence(&mut self) {
        let is_hole = self.hole != BARE && csr::hgatp::read() == self.hole;
        if core::mem::take(&mut self.owes_fence[usize::from(is_hole)]) {
            self.fence(None, None);
        }
    }

    /// Sets whether guests' operations on their own translation trap, if that differs from the last guest's. With one
    /// stage the VMID is 0, which is Bare's; without VMID bits all guests have that, so a change forgets everything.
    fn trap_translation(&mut self, on: bool) {
        if on == self.traps_translation {
            return;
        }
        self.traps_translation = on;
        self.set_traps();
        self.delegate();
        if !self.has_vmids {
            fence::gvma_all();
            fence::vvma_all();
        }
    }

    /// Sets whether the guest takes page faults on shadow tables itself, if that differs from the last root.
    #[inline]
    pub fn set_steering(&mut self, on: bool) {
        if on != self.steers {
            self.steers = on;
            self.delegate();
        }
    }

    /// Sets whether the guest's breakpoints come to Gnomon, if that differs from the last guest's.
    pub fn set_breaks(&mut self, on: bool) {
        if on != self.breaks {
            self.breaks = on;
            self.delegate();
        }
    }

    /// Returns the address of the lane's jump table for shadow roots of `format`, whose entries it `syncs` or
    /// invalidates.
    pub fn lane_table(&self, format: &Format, syncs: bool) -> u64 {
        let way = match (self.seat, self.mode) {
            (Seat::Firmware, GuestMode::Virtual) => lane::Way::VirtualToMachine,
            (Seat::Payload, _) => lane::Way::VirtualToSupervisor,
            (Seat::Firmware, GuestMode::Supervisor) => lane::Way::SupervisorToMachine,
        };
        let deed = if syncs { lane::Deed::Sync } else { lane::Deed::Invalidate };
        lane::table(way, deed, format, self.has_zba)
    }

    /// Writes the root by which the loaded guest's addresses are translated first: `vsatp`, in S mode
    /// `satp`.
    ///
    /// # Safety
    /// A table that maps nothing but what the guest may reach; behind a G-stage any value.
    pub unsafe fn load_guest_root(&self, root: u64) {
        // SAFETY: has no effect before a guest is entered, and then by the caller's promise.
        with_bank!(self.mode, |bank| unsafe { bank::satp::write(root) });
    }

    /// Returns the root by which the loaded guest's addresses are translated first.
    pub fn guest_root(&self) -> u64 {
        with_bank!(self.mode, |bank| bank::satp::read())
    }

    /// Makes this hart forget translations of guest virtual addresses: of one page (leaf entries) or all, of one ASID
    /// (except global ones) or all. In VS mode those of the VMID that `hgatp` holds.
    pub fn fence(&self, page: Option<Addr<Gva>>, asid: Option<Asid>) {
        match (self.mode, page, asid) {
            (GuestMode::Virtual, None, None) => fence::vvma_all(),
            (GuestMode::Virtual, None, Some(asid)) => fence::vvma_asid(asid),
            (GuestMode::Virtual, Some(page), None) => fence::vvma_page(page),
            (GuestMode::Virtual, Some(page), Some(asid)) => fence::vvma_page_asid(page, asid),
            (GuestMode::Supervisor, None, None) => fence::sfence_all(),
            (GuestMode::Supervisor, None, Some(asid)) => fence::sfence_asid(asid),
            (GuestMode::Supervisor, Some(page), None) => fence::sfence_page(page),
            (GuestMode::Supervisor, Some(page), Some(asid)) => fence::sfence_page_asid(page, asid),
        }
    }

    /// Makes this hart forget all that any guest, or an earlier boot stage, left in its TLB. No guest is
    /// loaded; none can translate afterwards.
    pub fn forget_everything(&self) {
        // SAFETY: concerns guests only; Gnomon has its own `satp` in the payload seat, none in M mode.
        unsafe {
            if self.mode == GuestMode::Virtual {
                csr::hgatp::write(0);
                fence::gvma_all();
            }
            self.load_guest_root(0);
        }
        self.fence(None, None);
    }

    /// Sets whether WFI and WRS.NTO of guests trap.
    pub fn set_wfi_trap(&mut self, traps: bool) {
        self.nesting.traps_wfi = traps;
        self.set_traps();
    }

    /// Sets what the guest's `time` is less than the host's; only 0 is possible in S mode.
    pub fn set_time_zero(&mut self, zero: u64) {
        self.nesting.time_zero = zero;
        match self.mode {
            GuestMode::Virtual => self.set_time(),
            GuestMode::Supervisor => debug_assert!(zero == 0, "S mode reads the host's time"),
        }
    }

    /// Raises or lowers an interrupt line of the loaded guest.
    pub fn set_line(&mut self, line: Line, high: bool) {
        let (vs, s) = (line.vs_bit(), line.vs_bit() >> 1);
        // SAFETY: an interrupt of the guest's, which Gnomon never takes: delegated, and in M mode masked.
        unsafe {
            match (self.nesting.lines, high) {
                (Lines::Virtual, true) => csr::hvip::set(vs),
                (Lines::Virtual, false) => csr::hvip::clear(vs),
                (Lines::Supervisor, true) => csr::mip::set(s),
                (Lines::Supervisor, false) => csr::mip::clear(s),
                (Lines::Held, high) => self.hold(vs, high),
            }
        }
    }

    /// Returns whether an interrupt is pending that the loaded guest has enabled.
    pub fn interrupt_pending(&self) -> bool {
        self.own_pending() || self.wakes_other()
    }

    /// Sets the hart's comparator for guests, in guest time. Only with Sstc.
    #[inline(always)]
    pub fn set_comparator(&self, deadline: u64) {
        // SAFETY: the guest's own.
        with_bank!(self.mode, |bank| unsafe { bank::stimecmp::write(deadline) });
    }

    /// Sets the comparator of the loaded guest's present world, in that world's time. Only with Sstc.
    pub fn set_comparator_of_world(&mut self, deadline: u64) {
        let is_watched = self.watches_l2();
        if is_watched {
            self.nesting.comparator = deadline;
        }
        self.set_comparator(if is_watched { u64::MAX } else { deadline });
    }

    /// Returns the guest's comparator.
    pub fn comparator(&self) -> u64 {
        if self.watches_l2() {
            return self.nesting.comparator;
        }
        with_bank!(self.mode, |bank| bank::stimecmp::read())
    }

    /// Returns the loaded guest's trap registers.
    pub fn trap_regs(&self) -> VsTrapRegs {
        with_bank!(self.mode, |bank| VsTrapRegs {
            vsstatus: bank::sstatus::read(),
            vstvec: bank::stvec::read(),
            vsepc: bank::sepc::read(),
            vscause: bank::scause::read(),
            vstval: bank::stval::read(),
        })
    }

    /// Returns `vsstatus` alone.
    pub fn guest_status(&self) -> u64 {
        with_bank!(self.mode, |bank| bank::sstatus::read())
    }

    /// Returns the guest's `senvcfg`; 0 if the hart has none.
    pub fn user_environment(&self) -> u64 {
        if self.has_envcfg { csr::senvcfg::read() } else { 0 }
    }

    /// Writes the guest's trap registers back, except `vstvec`.
    pub fn set_trap_regs(&self, regs: &VsTrapRegs) {
        // SAFETY: the guest's registers. `sstatus` shows no bit that concerns M mode, which uses
        // neither SUM nor MXR, floating point nor vectors.
        with_bank!(self.mode, |bank| unsafe {
            bank::sstatus::write(regs.vsstatus);
            bank::sepc::write(regs.vsepc);
            bank::scause::write(regs.vscause);
            bank::stval::write(regs.vstval);
        });
    }

    /// Returns the privilege of the guest that trapped.
    pub fn privilege(&self) -> Mode {
        let supervisor = match self.seat {
            Seat::Firmware => csr::mstatus::read() & status::MPP != 0,
            Seat::Payload => csr::sstatus::read() & status::SPP != 0,
        };
        if supervisor { Mode::Supervisor } else { Mode::User }
    }

    /// Sets the privilege that the next entry goes to.
    pub fn set_privilege(&self, mode: Mode) {
        let mpp = if mode == Mode::Supervisor { status::MPP_S } else { 0 };
        // SAFETY: affects xRET only. M is MPP = 11: its upper bit is never set here.
        unsafe {
            match (self.seat, self.mode) {
                (Seat::Firmware, guest) => {
                    csr::mstatus::clear(status::MPP & !mpp);
                    csr::mstatus::set(if guest == GuestMode::Virtual { mpp | status::MPV } else { mpp });
                }
                (Seat::Payload, _) => {
                    csr::hstatus::set(hstatus::SPV);
                    match mode {
                        Mode::Supervisor => csr::sstatus::set(status::SPP),
                        Mode::User => csr::sstatus::clear(status::SPP),
                    }
                }
            }
        }
    }

    /// Returns whether the last trap came from a guest's mode: from behind the G-stage, or the shadow tables.
    pub fn came_from_guest(&self) -> bool {
        match (self.seat, self.mode) {
            (Seat::Firmware, GuestMode::Virtual) => csr::mstatus::read() & status::MPV != 0,
            (Seat::Firmware, GuestMode::Supervisor) => csr::mstatus::read() & status::MPP != status::MPP,
            (Seat::Payload, _) => csr::hstatus::read() & hstatus::SPV != 0,
        }
    }

    /// Enters a guest for the first time on this hart, with the privilege that `set_privilege` set.
    ///
    /// # Safety
    /// As for [`world::enter_virtual_from_machine`], except the bits named there.
    pub unsafe fn enter(&self, context: *mut Context) -> ! {
        // SAFETY: SPV and SPP affect `sret` only; TVM is set since the start; the rest is the
        // caller's promise.
        unsafe {
            match (self.seat, self.mode) {
                (Seat::Firmware, GuestMode::Virtual) => {
                    csr::hstatus::set(hstatus::SPV);
                    match self.privilege() {
                        Mode::Supervisor => csr::mstatus::set(status::SPP),
                        Mode::User => csr::mstatus::clear(status::SPP),
                    }
                    world::enter_virtual_from_machine(context)
                }
                (Seat::Firmware, GuestMode::Supervisor) => world::enter_supervisor(context),
                (Seat::Payload, _) => world::enter_virtual_from_supervisor(context),
            }
        }
    }
}

/// Returns whether misaligned accesses of guests that harts trap come to Gnomon. `common` is what all harts have. In the payload seat
/// they are the firmware's, and on harts with Zicclsm only those are trapped that cannot be emulated.
pub fn emulates_misaligned(seat: Seat, common: &Isa) -> bool {
    seat == Seat::Firmware && !common.has("zicclsm")
}

/// Checks that the registers of a hart are saved for every vCPU. In S mode a guest switches floating point and vectors
/// on by itself, whatever it is told it has.
fn check_registers(own: &Isa, common: &Isa) -> Result<(), String> {
    const VECTORS: [&str; 3] = ["v", "zve32x", "zve64x"];
    if own.has("f") && !common.has("d") {
        return Err("it has floating-point registers, but not every hart has D: they could not be kept apart".into());
    }
    if VECTORS.iter().any(|name| own.has(name)) && !common.has("v") {
        return Err("it has vector registers, but not every hart has V: they could not be kept apart".into());
    }
    Ok(())
}
