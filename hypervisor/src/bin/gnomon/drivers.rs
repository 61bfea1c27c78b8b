//! The host's UART, PLIC and RTC, as far as Gnomon needs them: a console with a receive interrupt, and the time.

use core::hint::spin_loop;
use core::iter;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use hypervisor::backend::console::{Listen, Port};
use hypervisor::machine::description::{Machine, Span, Uart};
use hypervisor::sync::Mutex;
use metal::mmio;

/// Base of the UART's registers; 0 until there is one.
static UART_BASE: AtomicU64 = AtomicU64::new(0);
static UART_SHIFT: AtomicU32 = AtomicU32::new(0);

const RBR: u64 = 0;
const IER: u64 = 1;
const FCR: u64 = 2;
const IIR: u64 = 2;
const MCR: u64 = 4;
const LSR: u64 = 5;
const LSR_READY: u8 = 1 << 0;
const LSR_THRE: u8 = 1 << 5;
const IIR_FIFOS: u8 = 0xc0;
const IER_INPUT: u8 = 1 << 0;
const IER_ROOM: u8 = 1 << 1;
/// Bytes of a 16550A's transmit FIFO.
const FIFO: usize = 16;

/// The number of bytes that the transmitter takes when it is empty.
static DEPTH: AtomicUsize = AtomicUsize::new(1);
/// Set if a PLIC brings the UART's interrupts.
static HAS_INTERRUPTS: AtomicBool = AtomicBool::new(false);

fn register(index: u64) -> Option<u64> {
    let base = UART_BASE.load(Ordering::Relaxed);
    (base != 0).then(|| base + (index << UART_SHIFT.load(Ordering::Relaxed)))
}

fn read(index: u64) -> u8 {
    // SAFETY: a register of the UART that the device tree names.
    register(index).map_or(0, |at| unsafe { mmio::read8(at) })
}

fn write(index: u64, value: u8) {
    if let Some(at) = register(index) {
        // SAFETY: as for reading; a UART does no DMA.
        unsafe { mmio::write8(at, value) };
    }
}

/// Starts the UART: FIFOs on, receive interrupt on; speed and framing stay as the firmware set them.
pub fn start_uart(uart: &Uart) {
    UART_SHIFT.store(uart.shift, Ordering::Relaxed);
    UART_BASE.store(uart.span.start, Ordering::Relaxed);
    write(FCR, 0x07); // FIFOs on and empty
    write(MCR, 0x0b); // DTR, RTS, and OUT2, which lets the interrupt through
    write(IER, IER_INPUT);
    // Those bits say that the FIFOs work: a plain 16450 has none.
    if read(IIR) & IIR_FIFOS == IIR_FIFOS {
        DEPTH.store(FIFO, Ordering::Relaxed);
    }
}

/// The UART, for the console.
pub struct HostUart;

impl Port for HostUart {
    fn room(&self) -> usize {
        match register(0) {
            // Without a UART, output is discarded.
            None => FIFO,
            Some(_) if read(LSR) & LSR_THRE != 0 => DEPTH.load(Ordering::Relaxed),
            Some(_) => 0,
        }
    }

    fn send(&self, bytes: &[u8]) {
        if let Some(at) = register(RBR) {
            // SAFETY: as for `write`.
            bytes.iter().for_each(|byte| unsafe { mmio::write8(at, *byte) });
        }
    }

    fn receive(&self) -> Option<u8> {
        (read(LSR) & LSR_READY != 0).then(|| read(RBR))
    }

    fn listen(&self, wanted: Listen) {
        let bit = |wanted, bit| if wanted { bit } else { 0 };
        write(IER, bit(wanted.input, IER_INPUT) | bit(wanted.room, IER_ROOM));
    }

    fn interrupts(&self) -> bool {
        HAS_INTERRUPTS.load(Ordering::Relaxed)
    }
}

/// Prints a byte, waiting until the UART takes it: for Gnomon's last words.
pub fn put(byte: u8) {
    if register(0).is_none() {
        return;
    }
    while read(LSR) & LSR_THRE == 0 {
        spin_loop();
    }
    write(RBR, byte);
}

/// Returns the time of a Goldfish RTC: nanoseconds since 1970.
pub fn time_of_day(rtc: Span) -> u64 {
    // SAFETY: registers of the RTC that the device tree names. The lower half holds the upper one as it was then.
    unsafe {
        let low = mmio::read32(rtc.start);
        u64::from(mmio::read32(rtc.start + 4)) << 32 | u64::from(low)
    }
}

/// One context of the host's PLIC.
#[derive(Clone, Copy, Debug)]
pub struct PlicContext {
    base: u64,
    context: u32,
    uart: u32,
}

/// The source of an interrupt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Claimed {
    /// The UART's.
    Uart,
    /// The source of that number.
    Device(u32),
}

impl PlicContext {
    /// Lets the interrupts of the UART and of these devices, and no others, reach `context`.
    pub fn start(machine: &Machine, context: u32, devices: impl Iterator<Item = u32>) -> Option<Self> {
        let (plic, uart) = (machine.plic?, machine.uart?);
        let this = Self { base: plic.start, context, uart: uart.source };
        let enables = this.base + 0x2000 + 0x80 * u64::from(context);
        // SAFETY: registers of the PLIC that the device tree names (PLIC specification, chapter 3).
        unsafe {
            // What an earlier boot stage enabled has no handler here, and would interrupt for ever.
            (0..32).for_each(|word| mmio::write32(enables + 4 * word, 0));
            for source in iter::once(this.uart).chain(devices) {
                let word = enables + 4 * u64::from(source / 32);
                mmio::write32(this.base + 4 * u64::from(source), 1);
                mmio::write32(word, mmio::read32(word) | 1 << (source % 32));
            }
            mmio::write32(this.base + 0x20_0000 + 0x1000 * u64::from(context), 0);
        }
        HAS_INTERRUPTS.store(true, Ordering::Relaxed);
        Some(this)
    }

    /// The context of another hart than the boot hart. That hart makes it ready ([`PlicContext::join`]).
    pub fn of(machine: &Machine, context: u32) -> Option<Self> {
        Some(Self { base: machine.plic?.start, context, uart: machine.uart?.source })
    }

    /// Makes the context of the calling hart ready: no source interrupts it yet. (Firmware that starts a hart closes its contexts.)
    pub fn join(&self) {
        // SAFETY: as for `start`.
        unsafe {
            (0..32).for_each(|word| mmio::write32(self.enables() + 4 * word, 0));
            mmio::write32(self.base + 0x20_0000 + 0x1000 * u64::from(self.context), 0);
        }
    }

    fn enables(&self) -> u64 {
        self.base + 0x2000 + 0x80 * u64::from(self.context)
    }

    /// Lets a source interrupt the context, or not.
    pub fn set_enabled(&self, source: u32, enabled: bool) {
        /// Harts change words of each other's contexts.
        static CHANGES: Mutex<()> = Mutex::new(());
        let (word, bit) = (self.enables() + 4 * u64::from(source / 32), 1 << (source % 32));
        let _changes = CHANGES.lock();
        // SAFETY: a register of a context that is Gnomon's.
        unsafe {
            let now = mmio::read32(word);
            mmio::write32(word, if enabled { now | bit } else { now & !bit });
        }
    }

    fn claim_register(&self) -> u64 {
        self.base + 0x20_0004 + 0x1000 * u64::from(self.context)
    }

    /// Claims an interrupt; `None` if there is none.
    #[inline(always)]
    pub fn claim(&self) -> Option<Claimed> {
        // SAFETY: the claim register of a context that is ours.
        let source = unsafe { mmio::read32(self.claim_register()) };
        if source == self.uart {
            return Some(Claimed::Uart);
        }
        (source != 0).then_some(Claimed::Device(source))
    }

    /// Completes one that was claimed.
    #[inline(always)]
    pub fn complete(&self, claimed: Claimed) {
        self.write_claim(match claimed {
            Claimed::Uart => self.uart,
            Claimed::Device(source) => source,
        });
    }

    fn write_claim(&self, source: u32) {
        // SAFETY: the claim register of a context that is ours.
        unsafe { mmio::write32(self.claim_register(), source) };
    }
}
