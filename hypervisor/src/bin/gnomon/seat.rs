//! The seat: what differs between M mode on the bare machine (firmware seat) and HS mode above
//! somebody else's firmware (payload seat). Everything else of Gnomon is the same in both.

use core::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use hypervisor::machine::{HostHart, Machine};
use metal::csr;
use metal::{fence, mmio, sbi, world};
use rv::csr::{envcfg, hstatus, status};
use rv::{Context, Exception, Interrupt, Mode};
use sbi_spec::{hsm, spi, srst, time};

/// Where Gnomon runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Seat {
    /// M mode: Gnomon is the machine's firmware too.
    Firmware,
    /// HS mode: started by SBI firmware.
    Payload,
}

static SEAT: AtomicU8 = AtomicU8::new(0);
/// Address of the test finisher, 0 if there is none.
static FINISHER: AtomicU64 = AtomicU64::new(0);

/// The exceptions that guests take themselves: what a kernel expects to see, and what needs nothing
/// of Gnomon.
const GUESTS_OWN: u64 = Exception::FetchMisaligned.bit()
    | Exception::IllegalInstruction.bit()
    | Exception::Breakpoint.bit()
    | Exception::LoadMisaligned.bit()
    | Exception::StoreMisaligned.bit()
    | Exception::EcallFromU.bit()
    | Exception::FetchPage.bit()
    | Exception::LoadPage.bit()
    | Exception::StorePage.bit();
const S_INTERRUPTS: u64 = Interrupt::SSoft.bit() | Interrupt::STimer.bit() | Interrupt::SExternal.bit();
const VS_INTERRUPTS: u64 = Interrupt::VsSoft.bit() | Interrupt::VsTimer.bit() | Interrupt::VsExternal.bit();

/// Remembers the seat. Once, by the boot hart.
pub fn set(seat: Seat, machine: &Machine) {
    SEAT.store(seat as u8, Ordering::Relaxed);
    FINISHER.store(machine.finisher.map_or(0, |f| f.start), Ordering::Relaxed);
}

impl Seat {
    /// The seat that Gnomon is in.
    #[inline]
    pub fn get() -> Self {
        if SEAT.load(Ordering::Relaxed) == 0 { Seat::Firmware } else { Seat::Payload }
    }

    /// Its name in records and options.
    pub fn name(self) -> &'static str {
        match self {
            Seat::Firmware => "firmware",
            Seat::Payload => "payload",
        }
    }
}

/// The seat's devices, for one hart.
#[derive(Clone, Copy, Debug)]
pub struct SeatHart {
    seat: Seat,
    /// The hart's own `msip` and `mtimecmp` (firmware seat).
    mtimecmp: u64,
    msip: u64,
    /// Sstc, for Gnomon's own timer (payload seat).
    has_sstc: bool,
}

impl SeatHart {
    /// Prepares this hart: delegation, interrupts, what guests may use. Returns the bits of
    /// `henvcfg` that could be set.
    ///
    /// # Errors
    /// A message, if the hart cannot host guests.
    pub fn start(hart: &HostHart) -> Result<(Self, u64), &'static str> {
        let seat = Seat::get();
        let (msip, mtimecmp) = match (seat, hart.msip, hart.mtimecmp) {
            (Seat::Firmware, Some(msip), Some(mtimecmp)) => (msip, mtimecmp),
            (Seat::Firmware, ..) => {
                return Err("the firmware seat needs a CLINT, or ACLINT MTIMER and MSWI, for each hart");
            }
            (Seat::Payload, ..) => (0, 0),
        };
        let mut this = Self { seat, mtimecmp, msip, has_sstc: false };
        // Svadu and Svpbmt stay off: see `hypervisor::isa`. What the hart lacks reads back as zero.
        let wanted = envcfg::STCE | envcfg::CBZE | envcfg::CBCFE | envcfg::CBIE_FLUSH;
        // SAFETY: none of these affects Gnomon's own execution but in that traps come here, whose
        // vector is set first; interrupts stay globally disabled while Gnomon runs.
        unsafe {
            match seat {
                Seat::Firmware => {
                    csr::mtvec::write(world::machine_vector());
                    let off = status::MIE | status::MPRV | status::TVM | status::TW | status::TSR;
                    csr::mstatus::clear(off | status::SUM | status::MXR | status::FS | status::VS);
                    csr::mcountinhibit::write(0);
                    csr::medeleg::write(GUESTS_OWN);
                    // The VS bits are hardwired to 1. Nothing ever runs in HS mode to take the S-level
                    // ones, and they stay disabled in `mie`; but QEMU hides from a *guest's* `sip` and
                    // `sie` what `mideleg` does not delegate.
                    csr::mideleg::write(S_INTERRUPTS);
                    csr::mcounteren::write(rv::csr::COUNTEREN_BASE);
                    csr::menvcfg::write(wanted);
                    if hart.isa.has("smstateen") {
                        csr::mstateen0::write(STATEEN);
                    }
                }
                Seat::Payload => {
                    csr::stvec::write(world::supervisor_vector());
                    csr::sstatus::clear(status::SIE | status::SUM | status::MXR | status::FS | status::VS);
                }
            }
            if hart.isa.has("smstateen") || hart.isa.has("ssstateen") {
                csr::hstateen0::write(STATEEN);
            }
            csr::hedeleg::write(match seat {
                Seat::Firmware => GUESTS_OWN,
                // Firmware that keeps illegal instructions to itself (OpenSBI does) hands them on to
                // whom `hedeleg` names, and OpenSBI 1.5 enters a guest's vectored `stvec` wrongly.
                Seat::Payload => GUESTS_OWN & !Exception::IllegalInstruction.bit(),
            });
            csr::hideleg::write(VS_INTERRUPTS);
            csr::hie::write(0);
            csr::hgeie::write(0);
            csr::hvip::write(0);
            csr::hcounteren::write(rv::csr::COUNTEREN_BASE);
            csr::hstatus::write(hstatus::VSXL_64);
            csr::henvcfg::write(wanted);
        }
        // `henvcfg` follows `menvcfg`: where firmware keeps Sstc to itself, `stimecmp` traps.
        this.has_sstc = hart.isa.has("sstc") && csr::henvcfg::read() & envcfg::STCE != 0;
        this.set_timer(u64::MAX);
        this.clear_ipi();
        let ours = match seat {
            Seat::Firmware => Interrupt::MTimer.bit() | Interrupt::MSoft.bit(),
            Seat::Payload => Interrupt::STimer.bit() | Interrupt::SSoft.bit(),
        };
        // SAFETY: enables what ends a guest's run or a wait; none is taken while Gnomon runs.
        unsafe {
            match seat {
                Seat::Firmware => csr::mie::write(ours),
                Seat::Payload => csr::sie::write(ours),
            }
        }
        Ok((this, csr::henvcfg::read()))
    }

    /// Lets devices of the host interrupt this hart, once it has a PLIC context to claim from.
    pub fn enable_external(&self) {
        // SAFETY: as for the others: ends a guest's run or a wait.
        unsafe {
            match self.seat {
                Seat::Firmware => csr::mie::set(Interrupt::MExternal.bit()),
                Seat::Payload => csr::sie::set(Interrupt::SExternal.bit()),
            }
        }
    }

    /// Sets Gnomon's own timer on this hart to host time `deadline`; `u64::MAX` for never.
    pub fn set_timer(&self, deadline: u64) {
        // SAFETY: the hart's own comparator; the SBI call writes no memory.
        unsafe {
            match self.seat {
                Seat::Firmware => mmio::write64(self.mtimecmp, deadline),
                Seat::Payload if self.has_sstc => csr::stimecmp::write(deadline),
                Seat::Payload => {
                    let _ = sbi::call(time::EID_TIME, time::SET_TIMER, [deadline, 0, 0]);
                }
            }
        }
    }

    /// Withdraws IPIs sent to this hart. What they announced is looked at after this.
    pub fn clear_ipi(&self) {
        // SAFETY: the hart's own bit.
        unsafe {
            match self.seat {
                Seat::Firmware => mmio::write32(self.msip, 0),
                Seat::Payload => csr::sip::clear(Interrupt::SSoft.bit()),
            }
        }
        // What is posted is read after this, or the IPI of a later post could be wiped out.
        fence::memory_and_devices();
    }

    /// Whether a device of the host interrupts this hart.
    pub fn external_pending(&self) -> bool {
        match self.seat {
            Seat::Firmware => csr::mip::read() & Interrupt::MExternal.bit() != 0,
            Seat::Payload => csr::sip::read() & Interrupt::SExternal.bit() != 0,
        }
    }

    /// The privilege of the guest that trapped.
    pub fn guest_mode(&self) -> Mode {
        let supervisor = match self.seat {
            Seat::Firmware => csr::mstatus::read() & status::MPP != 0,
            Seat::Payload => csr::sstatus::read() & status::SPP != 0,
        };
        if supervisor { Mode::Supervisor } else { Mode::User }
    }

    /// The privilege that the next entry goes to, virtualized.
    pub fn set_guest_mode(&self, mode: Mode) {
        // SAFETY: affects xRET only.
        unsafe {
            match (self.seat, mode) {
                (Seat::Firmware, Mode::Supervisor) => csr::mstatus::set(status::MPV | status::MPP_S),
                (Seat::Firmware, Mode::User) => csr::mstatus::set(status::MPV),
                (Seat::Payload, _) => csr::hstatus::set(hstatus::SPV),
            }
            match (self.seat, mode) {
                // M is MPP = 11: the upper bit goes in any case.
                (Seat::Firmware, Mode::Supervisor) => csr::mstatus::clear(status::MPP & !status::MPP_S),
                (Seat::Firmware, Mode::User) => csr::mstatus::clear(status::MPP),
                (Seat::Payload, Mode::Supervisor) => csr::sstatus::set(status::SPP),
                (Seat::Payload, Mode::User) => csr::sstatus::clear(status::SPP),
            }
        }
    }

    /// The host's `status`, with the states of floating point and vectors.
    pub fn status(&self) -> u64 {
        match self.seat {
            Seat::Firmware => csr::mstatus::read(),
            Seat::Payload => csr::sstatus::read(),
        }
    }

    /// Replaces the bits `mask` of the host's `status`; for FS and VS only.
    pub fn set_status(&self, mask: u64, bits: u64) {
        // SAFETY: FS and VS say what may be used, and Gnomon's compiled code uses neither.
        unsafe {
            match self.seat {
                Seat::Firmware => {
                    csr::mstatus::clear(mask & !bits);
                    csr::mstatus::set(mask & bits);
                }
                Seat::Payload => {
                    csr::sstatus::clear(mask & !bits);
                    csr::sstatus::set(mask & bits);
                }
            }
        }
    }

    /// Whether the last trap came from a guest, that is, from behind the G-stage.
    pub fn came_from_guest(&self) -> bool {
        match self.seat {
            Seat::Firmware => csr::mstatus::read() & status::MPV != 0,
            Seat::Payload => csr::hstatus::read() & hstatus::SPV != 0,
        }
    }

    /// Enters a guest for the first time on this hart, with the privilege that `set_guest_mode` set.
    ///
    /// # Safety
    /// As for [`world::enter_virtual_from_machine`], but for the bits named there.
    pub unsafe fn enter(&self, context: *mut Context) -> ! {
        // SAFETY: SPV and SPP affect `sret` only; the rest is the caller's promise.
        unsafe {
            csr::hstatus::set(hstatus::SPV);
            match (self.seat, self.guest_mode()) {
                (Seat::Firmware, Mode::Supervisor) => csr::mstatus::set(status::SPP),
                (Seat::Firmware, Mode::User) => csr::mstatus::clear(status::SPP),
                (Seat::Payload, _) => {} // `set_guest_mode` has done it
            }
            match self.seat {
                Seat::Firmware => world::enter_virtual_from_machine(context),
                Seat::Payload => world::enter_virtual_from_supervisor(context),
            }
        }
    }
}

/// ENVCFG, and the right to `sstateen0` itself: what guests without further state extensions need.
const STATEEN: u64 = 1 << 63 | 1 << 62;

/// Sends an IPI to a hart. `msip` is its register in the firmware seat, `id` its hart id.
pub fn send_ipi(id: u64, msip: u64) {
    // What was posted is seen by whom this calls.
    fence::memory_and_devices();
    // SAFETY: makes another hart trap into Gnomon, or end its wait.
    unsafe {
        match Seat::get() {
            Seat::Firmware => mmio::write32(msip, 1),
            Seat::Payload => {
                let _ = sbi::call(spi::EID_SPI, spi::SEND_IPI, [1, id, 0]);
            }
        }
    }
}

/// Starts a secondary hart in the payload seat.
///
/// # Errors
/// The SBI's error code.
pub fn start_hart(id: u64, index: usize) -> Result<(), i64> {
    let address = crate::entry::secondary_address();
    // SAFETY: starts at the code meant for it, with a stack of its own.
    match unsafe { sbi::call(hsm::EID_HSM, hsm::HART_START, [id, address, index as u64]) } {
        (0, _) => Ok(()),
        (error, _) => Err(error),
    }
}

/// Why the machine is powered off.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PowerOff {
    /// All is done.
    Done,
    /// Gnomon failed.
    Failure,
}

/// Powers the machine off, where it can be; returns if not.
pub fn power_off(why: PowerOff) {
    match Seat::get() {
        Seat::Firmware => {
            let finisher = FINISHER.load(Ordering::Relaxed);
            let value = match why {
                PowerOff::Done => 0x5555,
                PowerOff::Failure => 1 << 16 | 0x3333,
            };
            if finisher != 0 {
                // SAFETY: the register of the finisher that the device tree names.
                unsafe { mmio::write32(finisher, value) };
            }
        }
        Seat::Payload => {
            // SAFETY: nothing of ours goes on after it.
            let _ =
                unsafe { sbi::call(srst::EID_SRST, srst::SYSTEM_RESET, [0, u64::from(why == PowerOff::Failure), 0]) };
        }
    }
}
