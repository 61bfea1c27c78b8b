//! Gnomon's address-space calls ([`abi::vmspace`]).

use super::{call, hart_index, physical};
use crate::machine::{Context, MAX_HARTS, Trap};
use abi::vmspace::{
    CAUSE_AT, CREATE, DESTROY, EXTENSION, INFO, INVALIDATE, MOST_RANGES, PC_AT, RUN, SWITCH, TVAL_AT, Way, used,
};
use core::cell::UnsafeCell;
use core::mem::offset_of;

const _: () = assert!(offset_of!(Context, pc) == PC_AT as usize);
const _: () = assert!(MOST_RANGES >= 1);

/// The page by which a hart and Gnomon exchange a program's registers.
#[repr(C, align(4096))]
struct Page(UnsafeCell<[u64; 512]>);

// SAFETY: each hart uses the page of its index alone, and Gnomon does while the hart is in a call.
unsafe impl Sync for Page {}

static PAGES: [Page; MAX_HARTS] = [const { Page(UnsafeCell::new([0; 512])) }; MAX_HARTS];

/// Returns the way in which Gnomon wants programs' spaces to be translated: `direct` if it has no such calls.
#[must_use]
pub fn way_to_use() -> Way {
    match call(EXTENSION, INFO, [0; 3]) {
        (0, info) => used(info).unwrap_or_default(),
        _ => Way::Direct,
    }
}

/// Makes a space of a table; `None` if there are as many as there may be.
#[must_use]
pub fn create_space(root: u64) -> Option<u64> {
    match call(EXTENSION, CREATE, [8 << 60 | root >> 12, 0, 0]) {
        (0, handle) => Some(handle),
        _ => None,
    }
}

/// Says that something which cannot fail has failed: the kernel and Gnomon do not understand each other.
fn check(what: &str, (error, _): (i64, u64)) {
    assert!(error == 0, "Gnomon refuses to {what} a space: error {error}");
}

/// Ends a space, which no hart has.
pub fn destroy_space(handle: u64) {
    check("end", call(EXTENSION, DESTROY, [handle, 0, 0]));
}

/// Makes this hart translate by a space.
pub fn switch_space(handle: u64) {
    check("switch to", call(EXTENSION, SWITCH, [handle, 0, 0]));
}

/// Makes all harts forget what they have of a range of a space.
pub fn invalidate_space(handle: u64, start: u64, bytes: u64) {
    let list = [start, bytes];
    check("invalidate", call(EXTENSION, INVALIDATE, [handle, physical(list.as_ptr()), 1]));
}

/// Runs a program in a space until it traps.
pub fn run_space(handle: u64, context: &mut Context) -> Trap {
    let page = PAGES[hart_index()].0.get();
    // SAFETY: the page is this hart's, and Gnomon's during the call.
    unsafe {
        let words = &mut *page;
        words[..32].copy_from_slice(&context.x);
        words[32] = context.pc;
        words[36] = 0;
        check("run", call(EXTENSION, RUN, [handle, physical(page), 0]));
        let words = &*page;
        context.x.copy_from_slice(&words[..32]);
        context.pc = words[32];
        Trap { cause: words[CAUSE_AT as usize / 8], value: words[TVAL_AT as usize / 8] }
    }
}
