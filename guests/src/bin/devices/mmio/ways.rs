//! The way to the UART is a translation like any other, and so is the way to the code that stores there: a hypervisor may
//! remember both until a fence, and no longer. What has to come out of the UART is in `tests.toml`.

use super::UART;
use core::array;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use guests::access::{call, sb};
use guests::expect::{STORE_PAGE, ensure_trap};
use guests::paging::{self, AD, Page, RO, RW, RWX, Space, TEST_VA, page};
use guests::user::User;
use guests::{Check, ensure_eq};
use metal::csr;
use metal::fence::{self, sfence_all};
use rv::PteFlags;
use rv::csr::status;
use rv::format::SV39;

const ALIAS: u64 = TEST_VA + 0x5000;
const CODE: u64 = TEST_VA + 0x7000;

/// `sb t0, 0(a0)`, and from t1.
const FROM_T0: u32 = 0x0055_0023;
const FROM_T1: u32 = 0x0065_0023;

fn print(at: u64, text: &str) -> Check {
    for byte in text.bytes() {
        ensure_eq!(sb(at, byte.into()), Ok(()), "sb");
    }
    Ok(())
}

/// The line of what follows.
fn begin(name: &str) -> Check {
    print(UART, "ways ").and_then(|()| print(UART, name)).and_then(|()| print(UART, " "))
}

/// A store to RAM gets there.
fn ensure_ram(data: &Page) -> Check {
    data.0[0].store(0, Relaxed);
    ensure_eq!(sb(ALIAS, 0x5a), Ok(()), "sb to RAM");
    ensure_eq!(data.0[0].load(Relaxed), 0x5a, "RAM");
    data.0[0].store(0, Relaxed);
    Ok(())
}

/// After each kind of fence the address leads where the tables say.
pub(super) fn fenced() -> Check {
    begin("fenced")?;
    let (space, data) = (Space::new(&SV39, 1), page());
    space.map(ALIAS, UART, RW);
    space.enter();
    let fences: [fn(); 4] =
        [|| paging::fence_page(ALIAS), || paging::fence_page_asid(ALIAS, 1), || paging::fence_asid(1), sfence_all];
    let outcome = fences.into_iter().try_for_each(|fence| {
        print(ALIAS, "abc")?;
        space.map(ALIAS, data.address(), RW);
        fence();
        ensure_ram(data)?;
        space.map(ALIAS, UART, RW);
        fence();
        print(ALIAS, "+")?;
        ensure_eq!(data.0[0].load(Relaxed), 0, "RAM behind the UART");
        for flags in [RO, PteFlags::empty()] {
            space.map(ALIAS, UART, flags);
            fence();
            ensure_trap(sb(ALIAS, 0x21), STORE_PAGE, ALIAS, "a store without the right to it")?;
        }
        space.map(ALIAS, UART, RW);
        fence();
        Ok(())
    });
    paging::leave();
    print(UART, "\n")?;
    outcome
}

/// Each address space has its own way, and none without paging.
pub(super) fn spaces() -> Check {
    begin("spaces")?;
    let data = page();
    let [to_uart, to_ram] = array::from_fn(|asid| Space::new(&SV39, 1 + asid as u64));
    to_uart.map(ALIAS, UART, RW);
    to_ram.map(ALIAS, data.address(), RW);
    let has_asids = paging::asid_bits() > 1;
    to_uart.enter();
    let enter = |space: &Space| if has_asids { space.switch() } else { space.enter() };
    let outcome = (0..3).try_for_each(|_| {
        enter(&to_uart);
        print(ALIAS, "abc")?;
        enter(&to_ram);
        ensure_ram(data)?;
        enter(&to_uart);
        print(ALIAS, "+")?;
        ensure_eq!(data.0[0].load(Relaxed), 0, "RAM of the other space");
        Ok(())
    });
    paging::leave();
    print(UART, "\n")?;
    outcome
}

/// User mode has no part in the kernel's way, nor the kernel in that of user mode.
pub(super) fn modes() -> Check {
    begin("modes")?;
    let (space, code) = (Space::new(&SV39, 1), page());
    code.fill(&FROM_T0.to_le_bytes());
    fence::instruction();
    space.map(CODE, code.address(), PteFlags::R | PteFlags::X | PteFlags::U | AD);
    space.map(ALIAS, UART, RW);
    space.enter();
    let by_user = |byte: u8| {
        let mut user = User::at(CODE);
        (user.x[5], user.x[10]) = (byte.into(), ALIAS);
        user.run()
    };
    let outcome = (0..3).try_for_each(|_| {
        print(ALIAS, "abc")?;
        let found = by_user(b'!');
        ensure_eq!((found.cause, found.tval, found.epc), (STORE_PAGE, ALIAS, CODE), "user mode's store");
        space.map(ALIAS, UART, RW | PteFlags::U);
        paging::fence_page(ALIAS);
        ensure_trap(sb(ALIAS, 0x21), STORE_PAGE, ALIAS, "a store to user mode's page")?;
        for byte in *b"uvw" {
            // Behind the store there is nothing to execute.
            let found = by_user(byte);
            ensure_eq!(found.epc, CODE + 4, "user mode's store");
        }
        // SAFETY: it lets this kernel reach user mode's page.
        unsafe { csr::sstatus::set(status::SUM) };
        let printed = print(ALIAS, "xyz");
        // SAFETY: as before.
        unsafe { csr::sstatus::clear(status::SUM) };
        printed?;
        ensure_trap(sb(ALIAS, 0x21), STORE_PAGE, ALIAS, "a store to user mode's page, SUM clear again")?;
        space.map(ALIAS, UART, RW);
        paging::fence_page(ALIAS);
        Ok(())
    });
    paging::leave();
    print(UART, "\n")?;
    outcome
}

/// `li t0, 't'`, `li t1, 'x'`, a store of one of them to (a0), `ret`: so that the store begins `offset` bytes (even, from 8 on) into the
/// two pages.
fn write_code(pages: [&Page; 2], offset: usize, store: u32) {
    const C_NOP: [u8; 2] = 1u16.to_le_bytes();
    let mut bytes = [[C_NOP; 2048]; 2];
    let flat = bytes.as_flattened_mut().as_flattened_mut();
    flat[offset - 8..offset - 4].copy_from_slice(&(u32::from(b't') << 20 | 0x293).to_le_bytes());
    flat[offset - 4..offset].copy_from_slice(&(u32::from(b'x') << 20 | 0x313).to_le_bytes());
    flat[offset..offset + 4].copy_from_slice(&store.to_le_bytes());
    flat[offset + 4..offset + 8].copy_from_slice(&0x8067_u32.to_le_bytes());
    for (page, bytes) in pages.into_iter().zip(&bytes) {
        page.fill(bytes.as_flattened());
    }
    fence::instruction();
}

/// The instruction is the one that is there, wherever it lies, after it was changed and after other code was mapped.
pub(super) fn code() -> Check {
    begin("code")?;
    let (space, [a, b, c, d]) = (Space::new(&SV39, 1), array::from_fn(|_| page()));
    space.map(ALIAS, UART, RW);
    space.enter();
    let outcome = [8, 10, 12, 14, 4088, 4090, 4092, 4094].into_iter().try_for_each(|offset| {
        let at = CODE + offset as u64 - 8;
        let run = || (0..3).try_for_each(|_| call(at, ALIAS).map(|_| ()));
        space.map(CODE, a.address(), RWX);
        space.map(CODE + 0x1000, b.address(), RWX);
        sfence_all();
        write_code([a, b], offset, FROM_T0);
        ensure_eq!(run(), Ok(()), "the code");
        write_code([a, b], offset, FROM_T1);
        ensure_eq!(run(), Ok(()), "the code, changed");
        write_code([c, d], offset, FROM_T0);
        space.map(CODE, c.address(), RWX);
        space.map(CODE + 0x1000, d.address(), RWX);
        paging::fence_page(CODE);
        paging::fence_page(CODE + 0x1000);
        ensure_eq!(run(), Ok(()), "other code");
        print(UART, " ")
    });
    paging::leave();
    print(UART, "\n")?;
    outcome
}

/// Code in a page of the guest's image, which a hypervisor may share until it is stored to.
#[repr(C, align(4096))]
struct Image([AtomicU64; 512]);

static IMAGE: Image = Image({
    let mut words = [const { AtomicU64::new(0) }; 512];
    words[0] = AtomicU64::new((b'x' as u64) << 52 | 0x313 << 32 | (b't' as u64) << 20 | 0x293);
    words[1] = AtomicU64::new(0x8067 << 32 | FROM_T0 as u64);
    words
});

/// The frame behind the code becomes another one, of which the guest knows nothing.
pub(super) fn image() -> Check {
    begin("image")?;
    let at = IMAGE.0.as_ptr().addr() as u64;
    let space = Space::new(&SV39, 1);
    space.enter();
    let run = || (0..3).try_for_each(|_| call(at, UART).map(|_| ()));
    let outcome = [FROM_T1, FROM_T0, FROM_T1].into_iter().try_for_each(|store| {
        ensure_eq!(run(), Ok(()), "the code");
        IMAGE.0[1].store(0x8067 << 32 | u64::from(store), Relaxed);
        fence::instruction();
        ensure_eq!(run(), Ok(()), "the code, changed");
        print(UART, " ")
    });
    paging::leave();
    print(UART, "\n")?;
    outcome
}
