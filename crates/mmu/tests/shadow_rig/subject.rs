//! The properties of an address space whose shadow is under test: its use by the guest, and the oracle's question.

use mmu::shadow::Shadowed;
use oracle::{Context, Table};
use rv::format::{SV39, SV39X4, SV48, SV48X4, SV57, SV57X4};
use rv::{Addr, Format, Gva, L2Gpa, Mode, Request, Trap};

/// An address space under test.
pub trait Subject: Shadowed {
    /// Formats that its tables may have.
    const FORMATS: [&'static Format; 3];
    /// First pages of roots.
    const ROOTS: [u64; 4];
    /// Pages of tables that are no roots.
    const TABLES: [u64; 12];
    /// Index of the window in every root.
    const WINDOW: u64;
    /// Flags that all good leaves have.
    const LEAF: u64;

    /// A request as the space's tables see it.
    fn request(request: Request) -> Request;
    /// The oracle's question, whose tables these are.
    fn context(table: Option<Table>, request: &Request) -> Context;
    /// The address that a trap is about.
    fn address_of(trap: &Trap, at: Addr<Self>) -> u64;
}

impl Subject for Gva {
    const FORMATS: [&'static Format; 3] = [&SV39, &SV48, &SV57];
    const ROOTS: [u64; 4] = [5, 513, 1024, 1535];
    const TABLES: [u64; 12] = [6, 7, 8, 9, 514, 515, 516, 700, 1025, 1026, 1300, 1534];
    const WINDOW: u64 = 256;
    const LEAF: u64 = 0xc3;

    fn request(request: Request) -> Request {
        request
    }

    fn context(table: Option<Table>, request: &Request) -> Context {
        Context {
            vs: table,
            g: None,
            access: request.access,
            user: request.mode == Mode::User,
            sum: request.sum,
            vs_mxr: request.mxr,
            hs_mxr: false,
        }
    }

    fn address_of(trap: &Trap, _: Addr<Self>) -> u64 {
        trap.tval
    }
}

/// The VM is a hypervisor, and its own guest runs on the shadow of the G-stage that it has made for that one.
impl Subject for L2Gpa {
    const FORMATS: [&'static Format; 3] = [&SV39X4, &SV48X4, &SV57X4];
    const ROOTS: [u64; 4] = [8, 516, 1024, 1532];
    const TABLES: [u64; 12] = [5, 6, 7, 12, 514, 515, 520, 700, 1028, 1029, 1300, 1531];
    // In the third of the four frames.
    const WINDOW: u64 = 2 * 512 + 256;
    // norm:H_vm_gpapriv
    const LEAF: u64 = 0xd3;

    fn request(request: Request) -> Request {
        // MXR of HS is the one that counts.
        Request { hs_mxr: request.mxr, ..request }.at_g_stage()
    }

    fn context(table: Option<Table>, request: &Request) -> Context {
        // The VS-stage is Bare: addresses come as they are.
        Context {
            vs: None,
            g: table,
            access: request.access,
            user: true,
            sum: false,
            vs_mxr: false,
            hs_mxr: request.hs_mxr,
        }
    }

    fn address_of(trap: &Trap, at: Addr<Self>) -> u64 {
        assert_eq!(trap.tval, 0, "only the caller knows the virtual address");
        // Two bits are not told; an access fault tells nothing.
        if trap.tval2 == 0 { at.raw() } else { trap.tval2 << 2 | at.raw() & 3 }
    }
}
