//! SBI calls whose memory is on the swap device: they are made again until it is there, and nothing is lost meanwhile (LOSSLESS).

use super::rig::{Done, PAGES, Rig, USED, vm};
use abi::bundle::{GUEST_RAM_BASE, MmuMode};
use rv::PAGE_BYTES;
use sbi_spec::{dbcn, sse};

/// Returns the `n`th byte of the input.
fn byte(n: usize) -> u8 {
    (n * 7 + n / 251) as u8
}

#[test]
fn input_comes_whole_to_pages_that_go_and_come() {
    for mmu in [MmuMode::TwoStage, MmuMode::Lazy] {
        let mut rig = Rig::new(1300, Some(2 * PAGES), vec![vm("vm", mmu), vm("other", MmuMode::TwoStage)]);
        for n in [0, 1] {
            assert_eq!(rig.fill(n, 0..USED), Done::Yes);
        }
        let (mut typed, mut read) = (0, Vec::new());
        let waits = rig.guests[0].waits;
        for round in 0..60 {
            {
                let mut uart = rig.guests[0].vm.devices.uart.lock();
                while uart.has_room() && typed < 40 * (round + 1) {
                    uart.receive(byte(typed));
                    typed += 1;
                }
            }
            // Across two pages, both of which are most often out.
            let page = 600 + 2 * (round as u64 % 150);
            let at = GUEST_RAM_BASE + (page + 1) * PAGE_BYTES - 20;
            let (error, count) = rig.call(0, dbcn::EID_DBCN, dbcn::CONSOLE_READ as u64, [100, at, 0]);
            assert_eq!(error, 0, "round {round}");
            read.extend(rig.peek(0, at, count as usize));
            rig.guests[0].model.remove(&(page + 1));
            assert_eq!(rig.call(0, dbcn::EID_DBCN, dbcn::CONSOLE_WRITE as u64, [8, at + 2000, 0]), (0, 8));
            // Others take the memory meanwhile.
            assert_eq!(rig.load(1, (round as u64 * 37 % 600..).take(40)), Done::Yes);
            rig.turn();
        }
        let expected: Vec<u8> = (0..typed).map(byte).collect();
        assert!(read.len() > 1000 && read == expected[..read.len()], "{mmu}: input is lost, or is not in order");
        assert!(rig.guests[0].waits > waits + 5, "it has waited {} times", rig.guests[0].waits - waits);
        rig.end();
    }
}

#[test]
fn attributes_of_events_come_to_pages_that_are_out() {
    /// The local event that software injects.
    const EVENT: u64 = 0xffff_0000;
    let mut rig = Rig::new(1300, Some(2 * PAGES), vec![vm("vm", MmuMode::TwoStage), vm("other", MmuMode::Lazy)]);
    for n in [0, 1, 0, 1] {
        assert_eq!(rig.fill(n, 0..USED), Done::Yes);
    }
    let page = (600..USED).find(|page| rig.is_out(0, *page).is_some()).expect("some are out");
    let at = GUEST_RAM_BASE + page * PAGE_BYTES;
    let waits = rig.guests[0].waits;
    assert_eq!(rig.call(0, sse::EID_SSE, sse::READ_ATTRS as u64, [EVENT, 0, 2, at + 64, 0]), (0, 0));
    assert!(rig.guests[0].waits > waits, "its page had to be brought in");
    assert_eq!(rig.is_out(0, page), None);
    rig.end();
}
