//! A vCPU's registers as gdb numbers them, and their description.

use abi::control::debug::{F0, FCSR, PC, Registers};
use gdbstub::arch::RegId;
use std::fmt::Write;
use std::num::NonZeroUsize;

/// The number of CSR 0: gdb's RISC-V targets have x0 to x31, `pc`, f0 to f31, all CSRs and the privilege mode in this order.
const CSR: usize = 65;
const PRIV: usize = CSR + 4096;
/// The first vector register; the description chooses it.
const V: usize = PRIV + 1;
/// Rounding mode and flags in `fcsr`.
const FLAGS: u64 = 0x1f;
const ROUNDING: u64 = 7;

/// A register.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Register {
    /// x0 to x31, `pc`, f0 to f31: as [`abi::control::debug::Debug::SetRegister`] numbers them.
    Own(u8),
    /// A CSR.
    Csr(u16),
    /// The privilege mode.
    Priv,
    /// v0 to v31.
    Vector(u8),
}

impl RegId for Register {
    fn from_raw_id(id: usize) -> Option<(Self, Option<NonZeroUsize>)> {
        let register = match id {
            0..CSR => Self::Own(id as u8),
            CSR..PRIV => Self::Csr((id - CSR) as u16),
            PRIV => Self::Priv,
            _ if id < V + 32 => Self::Vector((id - V) as u8),
            _ => return None,
        };
        // Their lengths are those of the answers.
        Some((register, None))
    }
}

impl Register {
    /// Returns its value and the bytes that it has in the description; `None` if it is not told with the others, or not at all.
    pub(super) fn value(self, all: &Registers) -> Option<(u64, usize)> {
        let [vstart, vl, vtype, vcsr] = all.vector;
        Some(match self {
            Self::Own(number @ 0..PC) => (all.x[usize::from(number)], 8),
            Self::Own(PC) => (all.pc, 8),
            Self::Own(number) => (*all.f.get(usize::from(number - F0))?, 8),
            Self::Priv => (all.is_supervisor.into(), 1),
            Self::Vector(_) => return None,
            Self::Csr(0x001) => (all.fcsr & FLAGS, 4),
            Self::Csr(0x002) => (all.fcsr >> 5 & ROUNDING, 4),
            Self::Csr(0x003) => (all.fcsr, 4),
            Self::Csr(0x008) => (vstart, 8),
            Self::Csr(0x00f) => (vcsr, 8),
            Self::Csr(0xc20) => (vl, 8),
            Self::Csr(0xc21) => (vtype, 8),
            Self::Csr(0xc22) => (all.vlenb.into(), 8),
            Self::Csr(0x100) => (all.sstatus, 8),
            Self::Csr(0x104) => (all.sie, 8),
            Self::Csr(0x105) => (all.stvec, 8),
            Self::Csr(0x140) => (all.sscratch, 8),
            Self::Csr(0x141) => (all.sepc, 8),
            Self::Csr(0x142) => (all.scause, 8),
            Self::Csr(0x143) => (all.stval, 8),
            Self::Csr(0x180) => (all.satp, 8),
            Self::Csr(_) => return None,
        })
    }

    /// Returns the register that is set in place of this one, and its value, if this one is set to `value`; `None` if it cannot be set.
    pub(super) fn set(self, value: u64, all: &Registers) -> Option<(u8, u64)> {
        Some(match self {
            Self::Own(number) => (number, value),
            Self::Csr(0x001) => (FCSR, all.fcsr & !FLAGS | value & FLAGS),
            Self::Csr(0x002) => (FCSR, all.fcsr & FLAGS | (value & ROUNDING) << 5),
            Self::Csr(0x003) => (FCSR, value),
            Self::Csr(_) | Self::Priv | Self::Vector(_) => return None,
        })
    }
}

/// The description of a vCPU's registers, with vector registers of `vlenb` bytes; 0: without V.
pub(super) fn description(vlenb: u32) -> String {
    let fixed = include_str!("target.xml");
    if vlenb == 0 {
        return fixed.into();
    }
    let mut vectors = String::from("<feature name=\"org.gnu.gdb.riscv.vector\">\n");
    let types = [
        ("bytes", "uint8", 1),
        ("shorts", "uint16", 2),
        ("words", "uint32", 4),
        ("longs", "uint64", 8),
        ("quads", "uint128", 16),
    ];
    let types = types.iter().filter(|(.., bytes)| *bytes <= vlenb);
    for (name, of, bytes) in types.clone() {
        let _ = writeln!(vectors, "<vector id=\"{name}\" type=\"{of}\" count=\"{}\"/>", vlenb / bytes);
    }
    vectors += "<union id=\"riscv_vector\">\n";
    for (name, ..) in types {
        let _ = writeln!(vectors, "<field name=\"{}\" type=\"{name}\"/>", &name[..1]);
    }
    vectors += "</union>\n";
    for number in 0..32 {
        let (bits, at) = (8 * vlenb, V + number);
        let _ = writeln!(
            vectors,
            "<reg name=\"v{number}\" bitsize=\"{bits}\" regnum=\"{at}\" type=\"riscv_vector\" group=\"vector\"/>"
        );
    }
    for (name, csr) in [("vstart", 0x008), ("vcsr", 0x00f), ("vl", 0xc20), ("vtype", 0xc21), ("vlenb", 0xc22)] {
        let _ = writeln!(vectors, "<reg name=\"{name}\" bitsize=\"64\" regnum=\"{}\" group=\"vector\"/>", CSR + csr);
    }
    vectors += "</feature>\n</target>\n";
    fixed.replace("</target>\n", &vectors)
}
