//! Physical memory protection: registers that may lack entries or be coarse, and the decision about an access
//! (privileged specification, "Physical Memory Protection").

/// A hart's PMP. Registers are WARL: writes to missing entries are ignored.
#[derive(Clone, Debug)]
pub struct Pmp {
    /// log2 of the granularity in bytes, less 2: the G of the specification.
    g: u32,
    cfg: Vec<u8>,
    addr: Vec<u64>,
}

/// The access that is judged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Need {
    /// A load.
    Read,
    /// A store.
    Write,
    /// A fetch.
    Execute,
}

impl Pmp {
    /// A PMP after reset, with so many entries of a granularity of 2^(G+2) bytes.
    #[must_use]
    pub fn new(entries: usize, g: u32) -> Self {
        Self { g, cfg: vec![0; entries], addr: vec![0; entries] }
    }

    /// Writes `pmpaddr`. Locked entries, and the base of a locked TOR entry, do not change.
    pub fn write_address(&mut self, entry: usize, value: u64) {
        let is_base = self.cfg.get(entry + 1).is_some_and(|cfg| cfg & 0x80 != 0 && cfg >> 3 & 3 == 1);
        if entry < self.addr.len() && self.cfg[entry] & 0x80 == 0 && !is_base {
            self.addr[entry] = value & ((1 << 54) - 1);
        }
    }

    /// Writes a byte of `pmpcfg`. NA4 cannot be selected if the granularity is coarser.
    pub fn write_config(&mut self, entry: usize, value: u8) {
        if entry < self.cfg.len() && self.cfg[entry] & 0x80 == 0 && !(self.g >= 1 && value >> 3 & 3 == 2) {
            self.cfg[entry] = value;
        }
    }

    /// Reads `pmpaddr`: "when G>=2 and pmpcfg.A[1] is set, bits G-2:0 read as all ones; when G>=1 and pmpcfg.A[1] is clear,
    /// bits G-1:0 read as all zeros".
    #[must_use]
    pub fn read_address(&self, entry: usize) -> u64 {
        let Some(value) = self.addr.get(entry) else { return 0 };
        if self.cfg[entry] >> 3 & 2 != 0 {
            if self.g >= 2 { value | ((1 << (self.g - 1)) - 1) } else { *value }
        } else {
            value & !((1 << self.g) - 1)
        }
    }

    /// Reads a byte of `pmpcfg`.
    #[must_use]
    pub fn read_config(&self, entry: usize) -> u8 {
        self.cfg.get(entry).copied().unwrap_or(0)
    }

    /// Decides whether M mode, or a less privileged one, may access the byte at `address`.
    #[must_use]
    pub fn allows(&self, is_machine: bool, need: Need, address: u64) -> bool {
        let word = address >> 2;
        for entry in 0..self.cfg.len() {
            let cfg = self.cfg[entry];
            let matches = match cfg >> 3 & 3 {
                0 => false,
                1 => {
                    let grains = |value: u64| value >> self.g << self.g;
                    let low = if entry == 0 { 0 } else { grains(self.addr[entry - 1]) };
                    (low..grains(self.addr[entry])).contains(&word)
                }
                2 => word == self.addr[entry],
                _ => {
                    let ones = self.read_address(entry).trailing_ones();
                    word >> (ones + 1) == self.read_address(entry) >> (ones + 1)
                }
            };
            if matches {
                let bit = match need {
                    Need::Read => 1,
                    Need::Write => 2,
                    Need::Execute => 4,
                };
                return cfg & bit != 0 || is_machine && cfg & 0x80 == 0;
            }
        }
        is_machine
    }
}
