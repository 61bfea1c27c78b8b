//! Gnomon's own memory protection: PMP in the firmware seat, a W^X identity map in the payload seat.

use crate::pen::{stack_end, stack_guard};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use hypervisor::machine::description::{Machine, Span};
use hypervisor::machine::host_map::{Builder, Kind};
use metal::ram::Ram;
use metal::{csr, fence};
use rv::{Format, Hpa, Pfn};

unsafe extern "C" {
    static __image_start: u8;
    static __text_end: u8;
    static __rodata_end: u8;
}

/// The parts of Gnomon's image.
pub struct Image {
    /// First byte of the code.
    pub start: u64,
    /// End of the code, start of the constants.
    pub text_end: u64,
    /// End of the constants, start of the data.
    pub rodata_end: u64,
    /// End of data, and of the stacks of the harts in use.
    pub end: u64,
}

/// Returns the place of the image, with stacks for so many harts. The RAM behind them is RAM like any other.
pub fn image(harts: usize) -> Image {
    Image {
        start: (&raw const __image_start) as u64,
        text_end: (&raw const __text_end) as u64,
        rodata_end: (&raw const __rodata_end) as u64,
        end: stack_end(harts - 1),
    }
}

/// Sets up the firmware seat's walls, on this hart. The lowest entry that matches decides:
///
/// 1. the guard page of this hart's stack: nothing, for M mode too (locked);
/// 2. code: read and execute, for M mode too (locked);
/// 3. constants: read, for M mode too (locked);
/// 4. data, stacks and `own`: nothing for guests, everything for M mode;
/// 5. all else from RAM's start upward: everything, for guests too: what they reach is for the G-stage or the shadow
///    tables to say. Devices, below RAM, match nothing, which denies guests.
///
/// Data stays executable for M mode: without Smepmp's machine-mode lockdown an entry cannot deny that and keep guests
/// out as well, and with it M mode could not write the guests' memory.
///
/// What the TLB keeps of guests behind a G-stage is the caller's to forget.
///
/// # Safety
/// Firmware seat; once per hart, by hart `index`.
pub unsafe fn set_up_pmp(machine: &Machine, own: Span, index: usize) {
    const TOR: u64 = 1 << 3;
    const NAPOT: u64 = 3 << 3;
    const LOCK: u64 = 1 << 7;
    let image = image(machine.harts.len());
    let lowest = machine.ram.iter().map(|r| r.start).min().unwrap_or(0);
    let highest = machine.ram.iter().map(Span::end).max().unwrap_or(0);
    let data_end = if own.start == image.end { own.end() } else { image.end };
    let (r, w, x) = (1, 2, 4);
    let config: [u64; 7] = [
        NAPOT | LOCK,       // 0: the guard
        0,                  // 1: the start of the code
        TOR | LOCK | r | x, // 2: code
        TOR | LOCK | r,     // 3: constants
        TOR,                // 4: data, stacks, heap and tags
        0,                  // 5: the start of RAM
        TOR | r | w | x,    // 6: RAM
    ];
    let guard = stack_guard(index);
    let packed = config.iter().enumerate().fold(0, |all, (i, c)| all | c << (8 * i));
    // SAFETY: the entries leave everything that M mode uses accessible to it: code stays executable,
    // constants readable, and unlocked or unmatched memory is free to M mode. Addresses first, so
    // that no entry is ever in force with another's bounds.
    unsafe {
        // Naturally aligned: the length is in the low bits.
        csr::pmpaddr0::write(guard.start >> 2 | (guard.bytes / 2 - 1) >> 2);
        csr::pmpaddr1::write(image.start >> 2);
        csr::pmpaddr2::write(image.text_end >> 2);
        csr::pmpaddr3::write(image.rodata_end >> 2);
        csr::pmpaddr4::write(data_end >> 2);
        csr::pmpaddr5::write(lowest >> 2);
        csr::pmpaddr6::write(highest >> 2);
        csr::pmpcfg0::write(packed);
    }
    fence::sfence_all();
}

/// Returns the format of the payload seat's identity map: the smallest in whose lower half all RAM lies.
fn format(machine: &Machine) -> &'static Format {
    let highest = machine.ram.iter().map(Span::end).max().unwrap_or(0);
    let fits = |format: &&Format| highest >> (format.input_bits() - 1) == 0;
    [&rv::format::SV39, &rv::format::SV48].into_iter().find(fits).unwrap_or(&rv::format::SV57)
}

/// Builds the payload seat's identity map; returns the root for [`switch_map`]. `passed` is what the
/// boot loader left for Gnomon to read, and what may be done with it.
///
/// # Errors
/// A message, if the machine's memory does not fit an identity map.
pub fn build_map(
    machine: &Machine,
    (passed, kind): &(Span, Kind),
    spare: Vec<Pfn<Hpa>>,
    ram: &mut Ram,
) -> Result<Pfn<Hpa>, String> {
    let image = image(machine.harts.len());
    let mut map = Builder::new(format(machine), spare, ram).map_err(|e| format!("no map: {e:?}"))?;
    let mut add =
        |start, end, kind| map.map(start, end, kind).map_err(|e| format!("mapping {start:#x}..{end:#x}: {e:?}"));
    add(image.start, image.text_end, Kind::Code)?;
    add(image.text_end, image.rodata_end, Kind::ReadOnly)?;
    let mut at = image.rodata_end;
    for guard in (0..machine.harts.len()).map(stack_guard) {
        add(at, guard.start, Kind::ReadWrite)?;
        at = guard.end();
    }
    add(at, image.end, Kind::ReadWrite)?;
    let whole = Span { start: image.start, bytes: image.end - image.start };
    for span in machine.free_ram(&[whole]) {
        add(span.start, span.end(), Kind::ReadWrite)?;
    }
    add(passed.start, passed.end(), *kind)?;
    let devices = [machine.uart.map(|u| u.span), machine.plic, machine.rtc].into_iter().flatten();
    for device in devices.chain(machine.virtio.iter().map(|slot| slot.span)) {
        add(device.start, device.end(), Kind::ReadWrite)?;
    }
    Ok(map.root())
}

/// Turns the map on, on this hart.
///
/// # Errors
/// A message, if the hart does not have its format.
///
/// # Safety
/// Payload seat; `root` comes from [`build_map`] for this machine.
pub unsafe fn switch_map(machine: &Machine, root: Pfn<Hpa>) -> Result<(), String> {
    let format = format(machine);
    let satp = rv::csr::atp::satp(format, rv::Asid(0), root);
    // SAFETY: an identity map that covers all that Gnomon uses. A hart without the format ignores the write.
    unsafe { csr::satp::write(satp) };
    fence::sfence_all();
    if csr::satp::read() == satp {
        return Ok(());
    }
    Err(format!("these harts lack {}, which their RAM needs in the payload seat: use the firmware seat", format.name))
}
