//! Gnomon's own memory protection: PMP in the firmware seat, a W^X identity map in the payload seat.

use crate::pen::{stack_end, stack_guard};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use hypervisor::machine::description::{Machine, Span};
use hypervisor::machine::host_map::{Builder, Kind};
use hypervisor::machine::pmp::{self, Lack, Layout, Pmp, Walls};
use metal::ram::Ram;
use metal::{csr, fence};
use rv::{Format, Hpa, PAGE_BYTES, Pfn};

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

/// Calls a macro with each of the PMP address registers that may be used, and its number.
macro_rules! each_pmpaddr {
    ($then:ident) => {
        $then! { pmpaddr0 0, pmpaddr1 1, pmpaddr2 2, pmpaddr3 3, pmpaddr4 4, pmpaddr5 5, pmpaddr6 6 }
    };
}

/// Returns the entries and the granularity of this hart's PMP, by writing and reading back.
///
/// # Errors
/// A message, if an earlier boot stage has locked an entry.
///
/// # Safety
/// Firmware seat; the trap vector is set, and [`set_up_pmp`] has not been called on this hart.
pub unsafe fn probe_pmp() -> Result<Pmp, String> {
    // SAFETY: M mode.
    if unsafe { !csr::pmpaddr0::exists() || !csr::pmpcfg0::exists() } {
        return Ok(Pmp { entries: 0, grain: PAGE_BYTES });
    }
    // SAFETY: no entry is in force, so M mode may do anything.
    unsafe { csr::pmpcfg0::write(0) };
    let config = csr::pmpcfg0::read();
    if config != 0 {
        let entry = config.trailing_zeros() / 8;
        return Err(format!(
            "PMP entry {entry} is locked by an earlier boot stage, and the firmware seat needs the first ones"
        ));
    }
    let mut found = [0_u64; pmp::ALL];
    macro_rules! try_all {
        ($($name:ident $number:literal),*) => {$(
            // SAFETY: M mode; and the entry is off.
            unsafe {
                if csr::$name::exists() {
                    csr::$name::write(u64::MAX);
                    found[$number] = csr::$name::read();
                    csr::$name::write(0);
                }
            }
        )*};
    }
    each_pmpaddr!(try_all);
    let entries = found.iter().take_while(|value| **value != 0).count();
    // "If G is the index of the least-significant bit set, the PMP granularity is 2^(G+2) bytes."
    let grain = if entries == 0 { PAGE_BYTES } else { 4 << found[0].trailing_zeros().min(60) };
    Ok(Pmp { entries, grain })
}

/// Sets up the firmware seat's walls, on this hart; returns those that it cannot have:
///
/// 1. the guard page of this hart's stack: nothing, for M mode too (locked);
/// 2. code: read and execute, for M mode too (locked);
/// 3. constants: read, for M mode too (locked);
/// 4. data, stacks and what is Gnomon's behind them, up to `end`: nothing for guests, everything for M mode;
/// 5. all else from RAM's start upward: everything, for guests too: what they reach is for the G-stage or the shadow
///    tables to say. Devices, below RAM, match nothing, which denies guests.
///
/// Data stays executable for M mode: without Smepmp's machine-mode lockdown an entry cannot deny that and keep guests
/// out as well, and with it M mode could not write the guests' memory.
///
/// What the TLB keeps of guests behind a G-stage is the caller's to forget.
///
/// # Errors
/// A message, if the hart's PMP cannot keep guests out of Gnomon's memory.
///
/// # Safety
/// Firmware seat; once per hart, by hart `index`. `probed` is this hart's.
pub unsafe fn set_up_pmp(machine: &Machine, end: u64, index: usize, probed: Pmp) -> Result<Vec<Lack>, String> {
    let image = image(machine.harts.len());
    let lowest = machine.ram.iter().map(|r| r.start).min().unwrap_or(0);
    let highest = machine.ram.iter().map(Span::end).max().unwrap_or(0);
    let layout = Layout {
        guard: stack_guard(index),
        code: image.start,
        constants: image.text_end,
        data: image.rodata_end,
        end,
        ram: Span { start: lowest, bytes: highest - lowest },
    };
    let Walls { entries, lacks } = pmp::fit(probed, &layout)?;
    let packed = entries.iter().enumerate().fold(0, |all, (i, entry)| all | u64::from(entry.config) << (8 * i));
    let wanted = |number: usize| entries.get(number).map_or(0, |entry| entry.address);
    let mut refused = None;
    macro_rules! write_all {
        ($($name:ident $number:literal),*) => {$(
            if $number < entries.len() {
                // SAFETY: as below.
                unsafe { csr::$name::write(wanted($number)) };
            }
        )*};
    }
    macro_rules! read_all {
        ($($name:ident $number:literal),*) => {$(
            if $number < entries.len() && csr::$name::read() != wanted($number) {
                refused = refused.or(Some((stringify!($name), wanted($number), csr::$name::read())));
            }
        )*};
    }
    // Addresses first, so that no entry is ever in force with another's bounds.
    each_pmpaddr!(write_all);
    // SAFETY: the entries leave everything that M mode uses accessible to it: code stays executable,
    // constants readable, and unlocked or unmatched memory is free to M mode.
    unsafe { csr::pmpcfg0::write(packed) };
    each_pmpaddr!(read_all);
    if csr::pmpcfg0::read() != packed {
        refused = refused.or(Some(("pmpcfg0", packed, csr::pmpcfg0::read())));
    }
    fence::sfence_all();
    match refused {
        None => Ok(lacks),
        Some((name, wrote, read)) => {
            Err(format!("{name} holds {read:#x} after {wrote:#x} was written: guests cannot be kept out"))
        }
    }
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
