//! The seat: the differences for Gnomon itself between M mode on the bare machine (firmware seat) and HS mode above
//! another firmware (payload seat). The differences for its guests are in `guest.rs`; everything else of Gnomon is the
//! same in both.

use crate::pen;
use core::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use hypervisor::machine::description::{HostHart, Machine};
use metal::csr;
use metal::{fence, mmio, sbi, world};
use rv::Interrupt;
use rv::csr::status;
use sbi_spec::{hsm, spi, srst, time};

/// The mode that Gnomon runs in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Seat {
    /// M mode: Gnomon is the machine's firmware too.
    Firmware,
    /// HS mode: started by SBI firmware.
    Payload,
}

/// The reason why a machine does not suit the firmware seat.
pub const NO_DEVICES: &str = "the firmware seat needs a CLINT, or ACLINT MTIMER and MSWI, for each hart";

static SEAT: AtomicU8 = AtomicU8::new(0);
/// Address of the test finisher, 0 if there is none.
static FINISHER: AtomicU64 = AtomicU64::new(0);

/// Points this hart's traps at Gnomon, which takes no interrupts while it runs.
pub fn take_traps(seat: Seat) {
    // SAFETY: the vectors say what went wrong; nothing that arrives is expected.
    unsafe {
        match seat {
            Seat::Firmware => {
                csr::mtvec::write(world::machine_vector());
                csr::mstatus::clear(status::MIE);
            }
            Seat::Payload => {
                csr::stvec::write(world::supervisor_vector());
                csr::sstatus::clear(status::SIE);
            }
        }
    }
}

/// Finds this hart's clock: the `time` CSR or, in the firmware seat on a hart without it, `mtime`, which all harts then read. In
/// the payload seat the firmware emulates the CSR. Called on each hart, before anything asks for the time; traps are taken.
///
/// # Errors
/// A message, if the hart has neither.
pub fn find_clock(seat: Seat, machine: &Machine) -> Result<(), &'static str> {
    // SAFETY: M mode, whose trap vector is set.
    if seat == Seat::Payload || unsafe { csr::time::exists() } {
        return Ok(());
    }
    let mtime = machine.mtimes.first().ok_or(
        "the hart has no time CSR, and the device tree no clock to read instead: the firmware seat needs the mtime of a \
         CLINT or ACLINT MTIMER there",
    )?;
    // SAFETY: the register that the device tree names; every clock of a machine shows the same time.
    unsafe { metal::use_mtime(*mtime) };
    Ok(())
}

/// Remembers the seat. Once, by the boot hart.
pub fn set(seat: Seat, machine: &Machine) {
    SEAT.store(seat as u8, Ordering::Relaxed);
    FINISHER.store(machine.finisher.map_or(0, |f| f.start), Ordering::Relaxed);
}

impl Seat {
    /// Returns the seat that Gnomon is in.
    #[inline]
    pub fn get() -> Self {
        if SEAT.load(Ordering::Relaxed) == 0 { Seat::Firmware } else { Seat::Payload }
    }

    /// Returns its name in records and options.
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

/// Sets the clock forward, so that `time` shows no less than that, before anything has asked for it. Firmware seat only: guests in S mode read
/// the clock themselves, and one that was restored has seen that time.
///
/// # Errors
/// A message, if there is no clock that can be set.
pub fn set_clock(machine: &Machine, time: u64) -> Result<(), &'static str> {
    if machine.mtimes.is_empty() {
        return Err(
            "a VM is to be restored on harts without the H extension, and this machine has no clock that can be set (mtime)",
        );
    }
    if metal::time() < time {
        // SAFETY: registers of the clocks, as the device tree says. They do nothing but count.
        machine.mtimes.iter().for_each(|mtime| unsafe { mmio::write64(*mtime, time) });
    }
    if metal::time() < time { Err("this machine's clock (mtime) cannot be set") } else { Ok(()) }
}

impl SeatHart {
    /// Prepares this hart: the trap vector, and what ends a guest's run. `has_sstc` says whether
    /// `stimecmp` is Gnomon's to use (payload seat).
    ///
    /// # Errors
    /// A message, if the hart lacks a device.
    pub fn start(hart: &HostHart, has_sstc: bool) -> Result<Self, &'static str> {
        let seat = Seat::get();
        let (msip, mtimecmp) = match (seat, hart.msip, hart.mtimecmp) {
            (Seat::Firmware, Some(msip), Some(mtimecmp)) => (msip, mtimecmp),
            (Seat::Firmware, ..) => return Err(NO_DEVICES),
            (Seat::Payload, ..) => (0, 0),
        };
        let this = Self { seat, mtimecmp, msip, has_sstc };
        this.set_timer(u64::MAX);
        this.clear_ipi();
        // SAFETY: enables what ends a guest's run or a wait; none is taken while Gnomon runs.
        unsafe {
            match seat {
                Seat::Firmware => csr::mie::write(Interrupt::MTimer.bit() | Interrupt::MSoft.bit()),
                Seat::Payload => csr::sie::write(Interrupt::STimer.bit() | Interrupt::SSoft.bit()),
            }
        }
        Ok(this)
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

    /// Withdraws IPIs sent to this hart. The work that they announced is looked at after this.
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

    /// Returns whether an interrupt is pending that ends a wait of this hart.
    pub fn is_interrupted(&self) -> bool {
        match self.seat {
            Seat::Firmware => csr::mip::read() & csr::mie::read() != 0,
            Seat::Payload => csr::sip::read() & csr::sie::read() != 0,
        }
    }

    /// Returns whether a device of the host interrupts this hart.
    pub fn external_pending(&self) -> bool {
        match self.seat {
            Seat::Firmware => csr::mip::read() & Interrupt::MExternal.bit() != 0,
            Seat::Payload => csr::sip::read() & Interrupt::SExternal.bit() != 0,
        }
    }
}

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
    let address = pen::secondary_address();
    // SAFETY: starts at the code meant for it, with a stack of its own.
    match unsafe { sbi::call(hsm::EID_HSM, hsm::HART_START, [id, address, index as u64]) } {
        (0, _) => Ok(()),
        (error, _) => Err(error),
    }
}

/// The reason why the machine is powered off.
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
