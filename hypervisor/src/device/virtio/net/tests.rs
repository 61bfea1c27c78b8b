//! Cards on a network, as their drivers and the world see them.

mod rig;

use super::*;
use crate::backend::network::frame::LEAST;
use crate::device::interface::{Answer, Device};
use crate::device::virtio::Mmio;
use crate::slots::Handle;
use abi::credit::WINDOW;
use abi::snapshot::device::DeviceState;
use rig::*;

#[test]
fn what_is_sent_arrives_whatever_its_length() {
    let mut rig = Rig::new(2);
    for (n, bytes) in [LEAST, 15, 60, 61, 1000, 1513, 1514, MOST].into_iter().enumerate() {
        let sent = frame(mac(1), mac(0), bytes, n as u64);
        rig.send(0, &sent);
        assert_eq!(rig.received(1), core::slice::from_ref(&sent), "{bytes} bytes");
        rig.send(0, &frame(OUTSIDE, mac(0), bytes, n as u64));
        rig.send(1, &frame(ALL, mac(1), bytes, n as u64));
        assert_eq!(rig.received(0), [frame(ALL, mac(1), bytes, n as u64)]);
        let to_world: Vec<_> = rig.world_has().into_iter().collect();
        // If the switch has not learned the outside address yet, the frame goes to all members, including the world.
        assert_eq!(to_world, [frame(OUTSIDE, mac(0), bytes, n as u64), frame(ALL, mac(1), bytes, n as u64)]);
        rig.received(1);
        let back = frame(mac(1), OUTSIDE, bytes, n as u64);
        rig.world_sends(&back);
        assert_eq!((rig.received(1), rig.received(0)), (vec![back], vec![]));
    }
    let counts = rig.counts(0);
    assert_eq!((counts.frames_out, counts.refused, counts.forged, counts.unfit), (16, 0, 0, 0));
    assert_eq!(rig.counts(1).frames_in, 8 + 1 + 8);
}

#[test]
fn the_configuration_says_what_there_is() {
    let mut rig = Rig::new(1);
    let card = &mut rig.cards[0];
    let mut byte = |offset: u64, width| match card.device.load(0x100 + offset, width, &mut card.world) {
        Answer::Done(value) => value as u32,
        other => panic!("{other:?}"),
    };
    assert_eq!([0, 1, 2, 3, 4, 5].map(|at| byte(at, 1) as u8), mac(0).0);
    assert_eq!((byte(6, 2), byte(6, 1), byte(8, 4), byte(0xf0, 4)), (1, 1, 0, 0));
    assert_eq!(card.device.backend().features(), 1 << 5 | 1 << 16);
}

#[test]
fn what_is_no_frame_is_refused_and_comes_back() {
    let mut rig = Rig::new(2);
    let nowhere = 0x1000;
    let header = HEADER as u32;
    for buffers in [
        &[][..],
        &[(SENT, 0)],
        &[(SENT, header - 1)],
        &[(SENT, header + LEAST as u32 - 1)],
        &[(SENT, header + MOST as u32 + 1)],
        &[(SENT, header), (SENT, u32::MAX)],
        &[(SENT, u32::MAX), (SENT, u32::MAX), (SENT, u32::MAX)],
        &[(nowhere, 100)],
        &[(SENT, header), (nowhere, 60)],
        &[(u64::MAX - 20, 100)],
        &[(SENT, header), (u64::MAX, 60)],
    ] {
        let before = rig.counts(0).refused;
        if buffers.is_empty() {
            // Something to be written, where the device only reads.
            rig.offer(0, TRANSMIT, 0, &[(SENT, 100, true)]);
        } else {
            let buffers: Vec<_> = buffers.iter().map(|(gpa, bytes)| (*gpa, *bytes, false)).collect();
            rig.offer(0, TRANSMIT, 0, &buffers);
        }
        rig.notify(0, TRANSMIT);
        rig.settle();
        assert_eq!((rig.counts(0).refused, rig.used(0, TRANSMIT).len()), (before + 1, 1), "{buffers:x?}");
        assert_eq!((rig.received(1), rig.world_has().len(), rig.cards[0].device.counts().1), (vec![], 0, 0));
    }
    rig.send(0, &frame(mac(1), mac(0), 60, 0));
    assert_eq!(rig.received(1).len(), 1);
}

#[test]
fn the_borders_of_buffers_are_nothing_to_the_device() {
    let mut rig = Rig::new(2);
    let sent = frame(mac(1), mac(0), 900, 7);
    rig.poke(0, SENT + HEADER as u64, &sent);
    rig.offer(
        0,
        TRANSMIT,
        0,
        &[(SENT, 1, false), (SENT + 1, 0, false), (SENT + 1, 30, false), (SENT + 31, 881, false)],
    );
    // What it is given is in pieces as well, the first two of its buffers taken out.
    rig.restart(1);
    rig.offer(1, RECEIVE, 0, &[(GIVEN, 5, true), (GIVEN + 5, 20, true), (GIVEN + 25, 2000, true)]);
    rig.notify(1, RECEIVE);
    rig.notify(0, TRANSMIT);
    rig.settle();
    assert_eq!(rig.received(1), [sent]);
}

#[test]
fn buffers_that_are_too_short_or_nowhere_cost_the_frame_only() {
    for buffer in
        [(GIVEN, 11, true), (GIVEN, 100, true), (0x1000, 2048, true), (u64::MAX - 30, 2048, true), (GIVEN, 2048, false)]
    {
        let mut rig = Rig::new(2);
        rig.restart(1);
        rig.offer(1, RECEIVE, 0, &[buffer]);
        rig.notify(1, RECEIVE);
        rig.send(0, &frame(mac(1), mac(0), 200, 0));
        assert_eq!((rig.counts(1).unfit, rig.used(1, RECEIVE)), (1, vec![(0, 0)]), "{buffer:x?}");
        rig.offer_all(1);
        rig.send(0, &frame(mac(1), mac(0), 200, 1));
        assert_eq!(rig.received(1), [frame(mac(1), mac(0), 200, 1)]);
    }
}

#[test]
fn nobody_sends_as_somebody_else() {
    let mut rig = Rig::new(3);
    for source in [mac(1), ALL, NOBODY, OUTSIDE] {
        rig.send(0, &frame(mac(2), source, 60, 0));
        let is_forged = source != OUTSIDE;
        assert_eq!(rig.received(2).len(), usize::from(!is_forged), "{source}");
    }
    assert_eq!(rig.counts(0).forged, 3);
    rig.world_sends(&frame(mac(2), mac(1), 60, 0));
    assert_eq!((rig.received(2), rig.network.counts().forged), (vec![], 1));
}

#[test]
fn who_takes_nothing_loses_its_own_and_holds_up_nobody() {
    let mut rig = Rig::new(3);
    rig.restart(2);
    rig.set(2, 0x050, RECEIVE as u32);
    // More than the sender has frames: those for the one that takes none go first.
    for n in 0..40 {
        rig.send(0, &frame(mac(2), mac(0), 60, n));
    }
    assert_eq!(rig.counts(0).frames_out, SHARE as u64, "it waits for a frame");
    rig.pass(1_000_000);
    rig.settle();
    assert_eq!(rig.counts(0).frames_out, 40);
    assert!(rig.lost(2) >= SHARE as u64, "{}", rig.lost(2));
    // From now on no sender waits.
    for n in 0..200 {
        rig.send(0, &frame(mac(2), mac(0), 60, n));
        rig.send(0, &frame(mac(1), mac(0), 60, n));
        assert_eq!(rig.received(1).len(), 1);
        rig.offer_all(1);
        rig.world_sends(&frame(mac(2), OUTSIDE, 60, n));
        rig.world_has();
    }
    let (sent, told) = rig.from_world[2];
    assert!(sent == 200 && sent - told < WINDOW + WINDOW / 2, "the world is told of what is lost: {told}");
    // Until it takes some: the world's first frames are there, and the other VM's last.
    rig.offer_all(2);
    rig.settle();
    let mut expected: Vec<_> = (0..WINDOW.into()).map(|n| frame(mac(2), OUTSIDE, 60, n)).collect();
    expected.push(frame(mac(2), mac(0), 60, 199));
    assert!(rig.received(2) == expected);
    rig.send(0, &frame(mac(2), mac(0), 60, 0));
    assert_eq!(rig.received(2).len(), 1);
}

#[test]
fn a_flood_to_the_world_loses_no_frame_of_the_worlds() {
    let mut rig = Rig::new(3);
    rig.restart(2);
    rig.set(2, 0x050, RECEIVE as u32);
    (0..5).for_each(|n| rig.world_sends(&frame(mac(2), OUTSIDE, 60, n)));
    rig.pass(1_000_000);
    // The world is not done with them, so the flooding card has no frame left.
    for n in 0..64 {
        rig.try_send(0, &frame(OUTSIDE, mac(0), 60, n));
    }
    (0..64).for_each(|n| rig.send(1, &frame(mac(2), mac(1), 60, n)));
    rig.offer_all(2);
    rig.settle();
    let received = rig.received(2);
    assert!((0..5).all(|n| received.contains(&frame(mac(2), OUTSIDE, 60, n))), "{}", received.len());
}

#[test]
fn the_world_may_have_no_room_and_nothing_is_lost() {
    let mut rig = Rig::new(2);
    rig.model.lock().room = 3;
    for n in 0..8 {
        rig.send(n as usize % 2, &frame(OUTSIDE, mac(n as usize % 2), 60, n));
    }
    assert_eq!(rig.model.lock().sent.len(), 3);
    let mut all = Vec::new();
    for _ in 0..8 {
        all.extend(rig.world_has());
        rig.settle();
    }
    all.sort();
    let mut expected: Vec<_> = (0..8).map(|n| frame(OUTSIDE, mac(n as usize % 2), 60, n)).collect();
    expected.sort();
    assert!(all == expected);
}

#[test]
fn a_card_that_starts_over_has_nothing_of_before() {
    let mut rig = Rig::new(2);
    rig.restart(1);
    rig.set(1, 0x050, RECEIVE as u32);
    rig.send(0, &frame(mac(1), mac(0), 60, 1));
    rig.send(1, &frame(ALL, OTHER, 60, 2));
    rig.received(0);
    // It has frames waiting, and an address that was learned.
    rig.restart(1);
    rig.offer_all(1);
    rig.settle();
    assert_eq!(rig.received(1), Vec::<Vec<u8>>::new());
    rig.send(0, &frame(OTHER, OTHER_TOO, 60, 3));
    assert_eq!(rig.world_has().pop(), Some(frame(OTHER, OTHER_TOO, 60, 3)), "no member is known by that address");
}

#[test]
fn a_portion_is_bounded() {
    let mut rig = Rig::new(2);
    for place in 0..60 {
        let at = SENT + 2048 * place;
        rig.poke(0, at + HEADER as u64, &frame(mac(1), mac(0), 1500, place));
        rig.offer(0, TRANSMIT, place as usize, &[(at, 1512, false)]);
    }
    let (mut portions, mut most) = (0, 0);
    loop {
        let before = rig.counts(0).frames_out;
        let answer = rig.set(0, 0x050, TRANSMIT as u32);
        (portions, most) = (portions + 1, most.max(rig.counts(0).frames_out - before));
        rig.settle();
        if answer == Answer::Done(()) {
            break;
        }
    }
    assert!(most <= 20 && portions >= 3, "{portions} portions of up to {most}");
    assert_eq!(rig.received(1).len(), 60);
}

#[test]
fn another_hart_goes_on_with_what_a_card_sends_seldom() {
    for is_foreign in [false, true] {
        let mut rig = Rig::new(2);
        for place in 0..60 {
            let at = SENT + 2048 * place;
            rig.poke(0, at + HEADER as u64, &frame(mac(1), mac(0), 1500, place));
            rig.offer(0, TRANSMIT, place as usize, &[(at, 1512, false)]);
        }
        let Card { device, world, .. } = &mut rig.cards[0];
        world.is_foreign = is_foreign;
        device.moment(world);
        // The network's second has 10,000,000 ticks.
        let seldom = is_foreign.then_some(world.now + 10_000);
        assert_eq!((world.is_soon, world.at), (!is_foreign, seldom), "there is more to send");
        assert!(rig.counts(0).frames_out <= 20);
    }
}

#[test]
fn frames_arrive_in_their_order_and_each_once() {
    for seed in 1..60 {
        let random = &mut Random(seed * 0x9e37_79b9);
        let mut rig = Rig::new(3);
        if seed % 3 != 0 {
            rig.cards.iter_mut().for_each(|card| card.world.later = Some(seed));
        }
        rig.has_events = seed % 2 == 0;
        (0..3).for_each(|at| rig.restart(at));
        (0..3).for_each(|at| rig.offer_all(at));
        let mut flows = Flows::default();
        for n in 0..400 {
            match random.below(16) {
                0..9 => {
                    let (from, to) = (random.below(3) as usize, random.below(5) as usize);
                    let destination = [mac(0), mac(1), mac(2), OUTSIDE, ALL][to];
                    let bytes = LEAST + 8 + random.below(1480) as usize;
                    let sent = frame(destination, mac(from), bytes, n);
                    if rig.try_send(from, &sent) {
                        flows.sent(from, to, n);
                    }
                }
                9..12 => {
                    let to = random.below(3) as usize;
                    rig.world_sends(&frame(mac(to), OUTSIDE, LEAST + 8 + random.below(1480) as usize, n));
                    flows.sent(WORLD, to, n);
                }
                12 if random.one_in(6) => {
                    let at = random.below(3) as usize;
                    rig.restart(at);
                    rig.offer_all(at);
                }
                12 => rig.pass(100 * random.below(1000)),
                _ => rig.offer_all(random.below(3) as usize),
            }
            flows.check(&mut rig);
        }
        rig.cards.iter_mut().for_each(|card| card.world.later = None);
        (0..3).for_each(|at| rig.offer_all(at));
        rig.settle();
        flows.check(&mut rig);
        assert!(flows.received > 100, "seed {seed}: {} have arrived", flows.received);
        assert!((0..3).all(|at| rig.cards[at].device.counts().1 == 0));
        // The world knows which of its frames are done with, as far as it needs to.
        assert!(
            rig.from_world.iter().all(|(sent, told)| sent - told < WINDOW / 2),
            "seed {seed}: {:?}",
            rig.from_world
        );
        // All frames of all senders come free.
        for at in 0..3 {
            (0..SHARE + 8).for_each(|n| rig.send(at, &frame(mac((at + 1) % 3), mac(at), 60, n as u64)));
            assert_eq!(rig.received((at + 1) % 3).len(), SHARE + 8, "seed {seed}");
        }
    }
}

#[test]
fn whatever_stands_in_the_rings_comes_to_an_end() {
    for seed in 1..150 {
        let random = &mut Random(seed * 0x1234_5679);
        let mut rig = Rig::new(2);
        rig.cards[0].world.later = random.one_in(2).then_some(seed);
        let places = [RAM, RAM + 0x1000, SENT, GIVEN, 0, u64::MAX - 0x1ff, RAM + 0x20_0000];
        for _ in 0..200 {
            let place = places[random.below(7) as usize].wrapping_add(random.below(3000));
            let bytes = if random.one_in(3) { random.below(1 << 32) } else { random.below(3000) };
            let words = [place, bytes & 0xffff_ffff | random.below(8) << 32 | random.below(70) << 48];
            let queue = random.below(2);
            rig.poke(0, RAM + 0x1000 * queue + 16 * random.below(64), words.map(u64::to_le_bytes).as_flattened());
            rig.poke(0, RAM + 0x1000 * queue + 0x804 + 2 * random.below(64), &(random.below(66) as u16).to_le_bytes());
            match random.below(8) {
                0 => rig.restart(0),
                1 => rig.send(1, &frame(mac(0), mac(1), 60, 0)),
                2 => rig.world_sends(&frame(mac(0), OUTSIDE, 60, 0)),
                _ => {
                    let available = &mut rig.cards[0].available[queue as usize];
                    *available = available.wrapping_add(random.below(4) as u16);
                    let available = *available;
                    rig.poke(0, RAM + 0x1000 * queue + 0x802, &available.to_le_bytes());
                    (0..4).for_each(|_| _ = rig.set(0, 0x050, queue as u32));
                    rig.pass(random.below(100_000));
                    rig.settle();
                }
            }
            // The other one may get what it sends, and sends itself.
            rig.received(1);
            rig.offer_all(1);
            rig.world_has();
        }
        rig.cards[0].world.later = None;
        rig.restart(0);
        rig.offer_all(0);
        rig.pass(1_000_000);
        rig.settle();
        rig.received(1);
        rig.send(0, &frame(mac(1), mac(0), 60, 9));
        rig.send(1, &frame(mac(0), mac(1), 60, 9));
        assert_eq!(rig.received(1), [frame(mac(1), mac(0), 60, 9)], "seed {seed}");
        assert_eq!(rig.received(0).last(), Some(&frame(mac(0), mac(1), 60, 9)), "seed {seed}");
    }
}

#[test]
fn a_card_goes_on_elsewhere_with_its_driver() {
    let mut rig = Rig::new(2);
    let (mut number, mut flows) = (1, Flows::default());
    let mut exchange = |rig: &mut Rig| {
        for (from, to) in [(0, 1), (1, 0)] {
            flows.sent(from, to, number);
            rig.send(from, &frame(mac(to), mac(from), 100, number));
            number += 1;
        }
        flows.check(rig);
        (0..2).for_each(|at| rig.offer_all(at));
        flows.received
    };
    assert_eq!(exchange(&mut rig), 2);
    // In the midst of both: a frame that it has taken and not sent, and a buffer for one that has not come.
    let card = &mut rig.cards[0];
    let state = card.device.save().expect("it has nothing that must be waited for");
    let plug = rig.network.plug(mac(0)).expect("it is on the network");
    plug.set_user(Handle { slot: 0, number: 0 });
    let mut other = Mmio::new(0x1000_9000, 9, Net::new(plug));
    // On the other machine, no frames are sent to a card before it has a driver.
    card.device.reset();
    assert_eq!(other.restore(&state), Ok(()));
    assert_eq!(other.save(), Ok(state.clone()));
    card.device = other;
    assert_eq!(exchange(&mut rig), 4);
    let DeviceState::Virtio(mut wild) = state else { panic!("a virtio device's") };
    wild.queues[1].ready = Some([65, 0, 0]);
    assert!(rig.cards[0].device.restore(&DeviceState::Virtio(wild)).is_err());
}

#[test]
fn what_a_card_has_begun_it_begins_anew() {
    let sent = frame(NOBODY, mac(0), 60, 5);
    // Memory comes and goes: with some seed the chain is taken, and the frame is not read.
    let begun = (1..100).find_map(|seed| {
        let mut rig = Rig::new(1);
        rig.poke(0, SENT + HEADER as u64, &sent);
        rig.offer(0, TRANSMIT, 0, &[(SENT, (HEADER + sent.len()) as u32, false)]);
        rig.cards[0].world.later = Some(seed);
        rig.set(0, 0x050, TRANSMIT as u32);
        let is_begun = rig.cards[0].device.backend().begun(TRANSMIT) == 1 && rig.world_has().is_empty();
        is_begun.then_some(rig)
    });
    let mut rig = begun.expect("there is such a seed");
    let Ok(DeviceState::Virtio(state)) = rig.cards[0].device.save() else { panic!("its state") };
    assert_eq!(state.queues[TRANSMIT].ready, Some([0, 0, 0]), "it counts as not taken");
    rig.cards[0].device.reset();
    assert_eq!(rig.cards[0].device.restore(&DeviceState::Virtio(state)), Ok(()));
    rig.cards[0].world.later = None;
    rig.cards[0].world.is_soon = true;
    rig.settle();
    assert_eq!(rig.world_has(), [sent]);
    assert_eq!(rig.used(0, TRANSMIT), [(0, 0)]);
}
