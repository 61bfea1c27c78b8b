//! Walks through both stages, in all combinations of formats: hypervisor loads (`hlv.d`) from pages that
//! no TLB has. The regions are labelled by their numbers: first those of [`FIRST`] x [`G`], in this order and
//! without Bare x Bare; then three with superpages at either stage, and at both.
//!
//! It has to run in HS mode.
#![no_std]
#![no_main]
#![expect(unsafe_code, reason = "hypervisor loads, and the registers that they use")]

use core::arch::asm;
use core::sync::atomic::Ordering::Relaxed;
use guests::paging::{Page, RW, Space, TEST_VA, leaf, page, pointer};
use guests::{Check, Text, board, ensure_eq, ram, run};
use metal::{csr, fence};
use rv::csr::{atp, hstatus};
use rv::format::{SV39, SV39X4, SV48, SV48X4, SV57, SV57X4};
use rv::{Addr, Format, Gpa, Level, PteFlags};

guests::entry_point!(main);

const FIRST: [Option<&Format>; 4] = [None, Some(&SV39), Some(&SV48), Some(&SV57)];
const G: [Option<&Format>; 4] = [None, Some(&SV39X4), Some(&SV48X4), Some(&SV57X4)];
/// Pages that are loaded from, once each.
const PAGES: u64 = 64;
const MEGA: u64 = 2 << 20;
/// The first address of RAM.
const RAM: u64 = 0x8000_0000;

fn main() {
    let mut number = 0;
    let mut sweep = |first: Option<(&'static Format, Level)>, g: Option<(&Format, Level)>| {
        let name = |stage: Option<(&Format, Level)>| stage.map_or("Bare", |(format, _)| format.name);
        let text = Text::of(format_args!("stages/{number}-{}-{}", name(first), name(g)));
        run(text.as_str(), || loads(number, first, g));
        number += 1;
    };
    let page = |format: Option<&'static Format>| format.map(|format| (format, Level::PAGE));
    for first in FIRST {
        for g in G {
            if first.is_some() || g.is_some() {
                sweep(page(first), page(g));
            }
        }
    }
    sweep(Some((&SV39, Level::PAGE)), Some((&SV39X4, Level::MEGA)));
    sweep(Some((&SV39, Level::MEGA)), Some((&SV39X4, Level::PAGE)));
    sweep(Some((&SV39, Level::MEGA)), Some((&SV39X4, Level::MEGA)));
}

fn loads(number: u64, first: Option<(&'static Format, Level)>, g: Option<(&Format, Level)>) -> Check {
    // All in one page of 2 MiB.
    let frames = ram::pages(PAGES as usize);
    frames.iter().zip(0..).for_each(|(frame, number)| frame.0[0].store(number, Relaxed));
    let at = frames[0].address();
    let (vsatp, from) = first.map_or((0, at), |(format, level)| {
        let space = Space::new(format, 1);
        if level == Level::MEGA {
            space.slot(TEST_VA, level).store(leaf(at & !(MEGA - 1), RW), Relaxed);
            (space.satp(), TEST_VA + at % MEGA)
        } else {
            (0..PAGES).for_each(|page| space.map(TEST_VA + (page << 12), at + (page << 12), RW));
            (space.satp(), TEST_VA)
        }
    });
    let hgatp = g.map_or(0, |(format, level)| identity(format, level));
    // SAFETY: nothing runs with V=1 but hypervisor loads, which are those of a supervisor.
    unsafe {
        csr::vsatp::write(vsatp);
        csr::hgatp::write(hgatp);
        csr::hstatus::set(hstatus::SPVP);
    }
    ensure_eq!((csr::vsatp::read(), csr::hgatp::read()), (vsatp, hgatp), "this hart has not these formats");
    fence::vvma_all();
    // SAFETY: a fence.
    unsafe { asm!(".option push", ".option arch, +h", "hfence.gvma x0, x0", ".option pop", options(nostack)) };
    let sum = sum(number, from);
    ensure_eq!(sum, PAGES * (PAGES - 1) / 2, "the sum of what the pages hold");
    Ok(())
}

/// The `hgatp` of tables that map all RAM to itself by leaves of a level.
fn identity(format: &Format, level: Level) -> u64 {
    let root = ram::pages(format.root_pages() as usize);
    let flags = RW.union(PteFlags::U);
    for at in (RAM..board().ram_end()).step_by(rv::PAGE_BYTES as usize * level.pages() as usize) {
        let mut table: &[Page] = root;
        for step in format.levels_down() {
            let index = format.index(Addr::<Gpa>::new(at), step);
            let slot = &table[index / 512].0[index % 512];
            if step == level {
                slot.store(leaf(at, flags), Relaxed);
                break;
            }
            if slot.load(Relaxed) == 0 {
                slot.store(pointer(page().address()), Relaxed);
            }
            table = core::slice::from_ref(ram::page_at(slot.load(Relaxed) >> 10 << 12));
        }
    }
    u64::from(format.mode) << atp::MODE_SHIFT | 1 << atp::ID_SHIFT | root[0].address() >> rv::PAGE_SHIFT
}

/// The sum of what the pages hold, by hypervisor loads between two markers.
#[inline(never)]
fn sum(label: u64, from: u64) -> u64 {
    let mut sum = 0_u64;
    // SAFETY: loads from pages that are mapped.
    unsafe {
        asm!(
            ".option push",
            ".option arch, +h",
            ".balign 64",
            "slti zero, {label}, 1",
            "2: hlv.d {value}, ({at})",
            "add {sum}, {sum}, {value}",
            "add {at}, {at}, {step}",
            "addi {pages}, {pages}, -1",
            "bnez {pages}, 2b",
            "slti zero, {label}, 2",
            ".option pop",
            label = in(reg) label,
            at = inout(reg) from => _,
            pages = inout(reg) PAGES => _,
            step = in(reg) rv::PAGE_BYTES,
            value = out(reg) _,
            sum = inout(reg) sum,
            options(nostack),
        );
    }
    sum
}
