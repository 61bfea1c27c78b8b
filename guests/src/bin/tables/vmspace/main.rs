//! The address-space calls (docs/vmspace.md): programs that a kernel runs by call (`soft`), spaces that it switches to by call (`nested`), and calls
//! of all kinds that are refused. Boot arguments: `cost` measures round trips, `alone` has a single hart use spaces beside harts that use others.
#![no_std]
#![no_main]

mod copies;
mod cost;
mod hostile;
mod nested;
mod soft;

use abi::vmspace::{Way, has, used};
use guests::paging::{Page, RW, RWX, Space, TEST_VA, page};
use guests::vmspace::{Handle, Program, info};
use guests::{Check, board, console, ensure, ensure_eq, run, sbi};
use rv::format::SV39;
use rv::{PAGE_BYTES, PteFlags};

guests::entry_point!(main);

/// A program's code, and its data.
const CODE: u64 = TEST_VA;
const DATA: u64 = TEST_VA + PAGE_BYTES;
const ECALL: u32 = 0x73;
/// `ld a0, (a1)`.
const LOAD: u32 = 0x0005_b503;
/// `sd a0, (a1)`.
const STORE: u32 = 0x00a5_b023;
/// `j .`.
const SPIN: u32 = 0x6f;
const INTERRUPT: u64 = 1 << 63;

/// A space with a page of code and a page of data.
#[derive(Clone, Copy)]
struct World {
    space: Space,
    handle: Handle,
    code: &'static Page,
    data: &'static Page,
}

impl World {
    fn new(code: &[u32]) -> Result<Self, guests::Text> {
        let (space, own, data) = (Space::new(&SV39, 0), page(), page());
        space.map(CODE, own.address(), RWX | PteFlags::U);
        space.map(DATA, data.address(), RW | PteFlags::U);
        let Ok(handle) = Handle::of(&space) else { guests::fail!("CREATE fails") };
        let this = Self { space, handle, code: own, data };
        this.does(code);
        Ok(this)
    }

    /// Puts code into its page.
    fn does(&self, code: &[u32]) {
        let mut bytes = [0; 512];
        for (slot, insn) in bytes.chunks_exact_mut(4).zip(code) {
            slot.copy_from_slice(&insn.to_le_bytes());
        }
        self.code.fill(&bytes);
    }

    /// A program that starts at the code, with the data's address in a1.
    fn program(&self) -> Program {
        let program = Program::at(CODE);
        program.set(11, DATA);
        program
    }

    fn end(self) -> Check {
        ensure_eq!(self.handle.destroy(), sbi::SUCCESS, "DESTROY");
        Ok(())
    }
}

fn main() {
    let (error, value) = info();
    if error != sbi::SUCCESS {
        run("vmspace/none", || {
            ensure_eq!((error, value), (sbi::NOT_SUPPORTED, 0), "INFO");
            ensure_eq!(Handle::of(&Space::new(&SV39, 0)), Err(sbi::NOT_SUPPORTED), "CREATE");
            Ok(())
        });
        return;
    }
    let name = used(value).map_or("none", Way::name);
    console::line(format_args!("guest: ways {:#x}, to use {name}", value & 0xff));
    run("vmspace/info", || {
        ensure!(has(value, Way::Direct) && used(value).is_some_and(|way| has(value, way)), "INFO: {value:#x}");
        ensure!(!(has(value, Way::Nested) && has(value, Way::Soft)), "a VM has either: {value:#x}");
        ensure_eq!(value & !0x307, 0, "INFO's other bits");
        Ok(())
    });
    let (is_nested, is_soft) = (has(value, Way::Nested), has(value, Way::Soft));
    match board().bootargs {
        "cost" => return cost::all(is_soft),
        "alone" => return run("vmspace/alone", if is_soft { soft::alone } else { nested::alone }),
        _ => {}
    }
    if is_soft {
        soft::all();
    }
    if is_nested {
        nested::all();
    }
    if is_soft || is_nested {
        copies::all();
        hostile::all(is_soft);
    } else {
        run("vmspace/refused", || {
            ensure_eq!(Handle::of(&Space::new(&SV39, 0)), Err(sbi::NOT_SUPPORTED), "CREATE");
            Ok(())
        });
    }
}
