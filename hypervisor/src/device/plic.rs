//! A SiFive-compatible PLIC as guests see it (RISC-V PLIC specification 1.0.0), with the layout of
//! QEMU's `virt`: two contexts for each hart, 2h for M mode, which no guest can use, and 2h+1 for
//! S mode.

use super::interface::{Answer, Place, Wild};
use abi::snapshot::device::PlicState;
use alloc::vec;
use alloc::vec::Vec;

/// GPA of its registers, on QEMU's `virt`.
pub const START: u64 = 0x0c00_0000;
/// Bytes of the register file.
const BYTES: u64 = 0x60_0000;
/// The PLIC's place on the board.
pub const PLACE: Place = Place { start: START, bytes: BYTES };
/// Interrupt sources, 1..=95; source 0 does not exist.
pub const SOURCES: u32 = 95;
const WORDS: usize = (SOURCES as usize + 32) / 32;
const PRIORITY_MASK: u32 = 7;

const PENDING: u64 = 0x1000;
const ENABLE: u64 = 0x2000;
const ENABLE_STRIDE: u64 = 0x80;
const CONTEXT: u64 = 0x20_0000;
const CONTEXT_STRIDE: u64 = 0x1000;

/// The device.
#[derive(Debug)]
pub struct Plic {
    priority: [u32; SOURCES as usize + 1],
    /// Lines that are high now.
    level: [u32; WORDS],
    pending: [u32; WORDS],
    /// Claimed and not yet completed; the gateway passes nothing on meanwhile.
    claimed: [u32; WORDS],
    contexts: Vec<Context>,
}

#[derive(Clone, Debug, Default)]
struct Context {
    enabled: [u32; WORDS],
    threshold: u32,
}

enum Register {
    Priority(usize),
    Pending(usize),
    Enable(usize, usize),
    Threshold(usize),
    Claim(usize),
    None,
}

fn bit(source: u32) -> (usize, u32) {
    (source as usize / 32, 1 << (source % 32))
}

fn is_word(offset: u64, width: u8) -> bool {
    width == 4 && offset.is_multiple_of(4)
}

impl Plic {
    /// Makes a PLIC for `harts` harts.
    #[must_use]
    pub fn new(harts: u32) -> Self {
        Self {
            priority: [0; SOURCES as usize + 1],
            level: [0; WORDS],
            pending: [0; WORDS],
            claimed: [0; WORDS],
            contexts: vec![Context::default(); 2 * harts as usize],
        }
    }

    fn register(&self, offset: u64) -> Register {
        let word = offset as usize / 4;
        match offset {
            0..PENDING if word <= SOURCES as usize => Register::Priority(word),
            PENDING..ENABLE if word - 0x400 < WORDS => Register::Pending(word - 0x400),
            ENABLE..CONTEXT => {
                let context = ((offset - ENABLE) / ENABLE_STRIDE) as usize;
                let word = ((offset - ENABLE) % ENABLE_STRIDE / 4) as usize;
                if context < self.contexts.len() && word < WORDS {
                    Register::Enable(context, word)
                } else {
                    Register::None
                }
            }
            CONTEXT..BYTES => {
                let context = ((offset - CONTEXT) / CONTEXT_STRIDE) as usize;
                match (offset - CONTEXT) % CONTEXT_STRIDE {
                    0 if context < self.contexts.len() => Register::Threshold(context),
                    4 if context < self.contexts.len() => Register::Claim(context),
                    _ => Register::None,
                }
            }
            _ => Register::None,
        }
    }

    /// Loads `width` bytes at `offset`: only whole, aligned words.
    pub fn load(&mut self, offset: u64, width: u8) -> Answer<u64> {
        if is_word(offset, width) { Answer::Done(self.read(offset).into()) } else { Answer::Refused }
    }

    /// Stores them.
    pub fn store(&mut self, offset: u64, width: u8, value: u64) -> Answer<()> {
        if !is_word(offset, width) {
            return Answer::Refused;
        }
        self.write(offset, value as u32);
        Answer::Done(())
    }

    /// Returns whether `offset` is that of a claim register.
    #[must_use]
    pub fn claims(offset: u64) -> bool {
        (CONTEXT..BYTES).contains(&offset) && (offset - CONTEXT) % CONTEXT_STRIDE == 4
    }

    /// Reads the 32-bit register at `offset`; reading a claim register claims.
    pub fn read(&mut self, offset: u64) -> u32 {
        match self.register(offset) {
            Register::Priority(source) => self.priority[source],
            Register::Pending(word) => self.pending[word],
            Register::Enable(context, word) => self.contexts[context].enabled[word],
            Register::Threshold(context) => self.contexts[context].threshold,
            Register::Claim(context) => {
                let Some(source) = self.best(context) else { return 0 };
                let (word, mask) = bit(source);
                self.pending[word] &= !mask;
                self.claimed[word] |= mask;
                source
            }
            Register::None => 0,
        }
    }

    /// Writes the 32-bit register at `offset`; writing a claim register completes.
    pub fn write(&mut self, offset: u64, value: u32) {
        match self.register(offset) {
            Register::Priority(0) | Register::Pending(_) | Register::None => {}
            Register::Priority(source) => self.priority[source] = value & PRIORITY_MASK,
            Register::Enable(context, word) => {
                // Source 0 does not exist: its bit is hardwired to zero.
                self.contexts[context].enabled[word] = if word == 0 { value & !1 } else { value };
            }
            Register::Threshold(context) => self.contexts[context].threshold = value & PRIORITY_MASK,
            Register::Claim(context) => {
                // A completion for a source that the context has not enabled is ignored (spec, 7).
                let (word, mask) = bit(value.min(SOURCES));
                if value <= SOURCES && self.contexts[context].enabled[word] & mask != 0 {
                    self.claimed[word] &= !mask;
                    self.pending[word] |= self.level[word] & mask;
                }
            }
        }
    }

    /// Sets the line of a source, 1..=95.
    pub fn set_level(&mut self, source: u32, high: bool) {
        let (word, mask) = bit(source);
        if high {
            self.level[word] |= mask;
            self.pending[word] |= mask & !self.claimed[word];
        } else {
            self.level[word] &= !mask;
            // As QEMU does for level sources: a request that was withdrawn is forgotten.
            self.pending[word] &= !mask;
        }
    }

    /// Returns whether a source's line is high, by the last call of [`Plic::set_level`].
    #[must_use]
    pub fn is_high(&self, source: u32) -> bool {
        let (word, mask) = bit(source);
        self.level[word] & mask != 0
    }

    /// Returns the pending, enabled source of the highest priority above the threshold; the lowest number among equals.
    fn best(&self, context: usize) -> Option<u32> {
        let context = &self.contexts[context];
        let mut best: Option<u32> = None;
        for (word, enabled) in context.enabled.iter().enumerate() {
            let mut candidates = enabled & self.pending[word];
            while candidates != 0 {
                let source = word as u32 * 32 + candidates.trailing_zeros();
                candidates &= candidates - 1;
                let priority = self.priority[source as usize];
                if priority > best.map_or(context.threshold, |b| self.priority[b as usize]) {
                    best = Some(source);
                }
            }
        }
        best
    }

    /// Returns its state for a snapshot.
    #[must_use]
    pub fn save(&self) -> PlicState {
        PlicState {
            priority: self.priority.to_vec(),
            level: self.level.to_vec(),
            pending: self.pending.to_vec(),
            claimed: self.claimed.to_vec(),
            contexts: self.contexts.iter().map(|context| (context.enabled.to_vec(), context.threshold)).collect(),
        }
    }

    /// Restores the PLIC from a saved state. Lines that differ now are to be set as usual.
    ///
    /// # Errors
    /// If it is that of a PLIC for another number of harts, or none. Nothing has changed then.
    pub fn restore(&mut self, state: &PlicState) -> Result<(), Wild> {
        // Source 0 does not exist.
        let words = |from: &[u32]| {
            let mut words: [u32; WORDS] = from.try_into().ok()?;
            words[0] &= !1;
            Some(words)
        };
        let context = |(enabled, threshold): &(Vec<u32>, u32)| {
            Some(Context { enabled: words(enabled)?, threshold: threshold & PRIORITY_MASK })
        };
        let read = || {
            let mut priority: [u32; SOURCES as usize + 1] = state.priority.as_slice().try_into().ok()?;
            priority.iter_mut().for_each(|priority| *priority &= PRIORITY_MASK);
            priority[0] = 0;
            let contexts = state.contexts.iter().map(context).collect::<Option<Vec<_>>>()?;
            let (level, pending) = (words(&state.level)?, words(&state.pending)?);
            let claimed = words(&state.claimed)?;
            (contexts.len() == self.contexts.len()).then_some(Self { priority, level, pending, claimed, contexts })
        };
        *self = read().ok_or(Wild("its PLIC is for another number of harts, or none"))?;
        Ok(())
    }

    /// Returns whether the S-mode context of hart `hart` interrupts it.
    #[must_use]
    pub fn interrupts_hart(&self, hart: u32) -> bool {
        self.best(2 * hart as usize + 1).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HART1: u64 = 3; // its S context
    const THRESHOLD: u64 = CONTEXT + HART1 * CONTEXT_STRIDE;
    const CLAIM: u64 = THRESHOLD + 4;

    fn ready() -> Plic {
        let mut plic = Plic::new(2);
        plic.write(4 * 10, 1);
        plic.write(4 * 11, 2);
        plic.write(ENABLE + HART1 * ENABLE_STRIDE, 1 << 10 | 1 << 11);
        plic
    }

    #[test]
    fn claim_and_complete() {
        let mut plic = ready();
        assert!(!plic.interrupts_hart(1));
        plic.set_level(10, true);
        assert!(plic.interrupts_hart(1) && !plic.interrupts_hart(0));
        assert_eq!(plic.read(PENDING), 1 << 10);
        assert_eq!(plic.read(CLAIM), 10);
        assert!(!plic.interrupts_hart(1), "the gateway holds it back until completion");
        plic.write(CLAIM, 10);
        assert!(plic.interrupts_hart(1), "the line is still high");
        assert_eq!(plic.read(CLAIM), 10);
        plic.set_level(10, false);
        plic.write(CLAIM, 10);
        assert!(!plic.interrupts_hart(1));
        assert_eq!(plic.read(CLAIM), 0);
    }

    #[test]
    fn priorities_and_thresholds() {
        let mut plic = ready();
        plic.set_level(10, true);
        plic.set_level(11, true);
        plic.write(THRESHOLD, 1);
        assert_eq!(plic.read(CLAIM), 11);
        assert_eq!(plic.read(CLAIM), 0, "priority 1 is not above threshold 1");
        plic.write(THRESHOLD, 0);
        assert_eq!(plic.read(CLAIM), 10);
    }

    #[test]
    fn no_offset_panics() {
        let mut plic = ready();
        for offset in (0..BYTES).step_by(4) {
            plic.write(offset, u32::MAX);
            plic.read(offset);
        }
        plic.write(CLAIM, u32::MAX);
        plic.write(CLAIM, 96);
    }
}
