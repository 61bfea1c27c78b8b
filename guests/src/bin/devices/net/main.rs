//! The network card: what it says it is, a frame that goes to the world and its answer, and whatever else stands in the rings. With
//! `flood MS` it does the worst that it can to the others on the network, for so many milliseconds; with `attack FRAMES MS` to the host,
//! after so many milliseconds.
#![no_std]
#![no_main]

mod driver;

use driver::{Driver, HEADER, RECEIVE, TRANSMIT};
use guests::access::{self, poke};
use guests::console::line;
use guests::random::Random;
use guests::virtio::{ALL, CARD, LIVE, NEEDS_RESET, NEXT, SIZE, STATUS, WRITE, describe, mac, put16, question};
use guests::{Check, board, ensure, ensure_eq, hart, ram, run};

/// Questions for the gateway's address before it is said not to answer, a second each: what was sent before them comes first, and the host
/// may be busy.
const ATTEMPTS: u32 = 60;

guests::entry_point!(main);

fn main() {
    let mut words = board().bootargs.split_whitespace();
    let what = words.next();
    let mut number = |otherwise| words.next().and_then(|word| word.parse().ok()).unwrap_or(otherwise);
    let much = number(1000);
    match what {
        Some("flood") => return run("net/flood", || flood(much)),
        Some("attack") => {
            let pause = number(0);
            return run("net/attack", || with(|driver| attack(driver, much, pause)));
        }
        _ => {}
    }
    run("net/identity", identity);
    run("net/features", features);
    run("net/ask", || with(ask));
    run("net/own-frames-only", || with(own_frames_only));
    run("net/wild-frames", || with(wild_frames));
    run("net/wild-buffers", || with(wild_buffers));
    run("net/wild-rings", || with(wild_rings));
    run("net/reset-meanwhile", || with(reset_meanwhile));
}

/// Makes a check with a driver that starts, and sees that the card still works behind it.
fn with(check: impl FnOnce(&mut Driver) -> Check) -> Check {
    let mut driver = Driver::start()?;
    check(&mut driver)?;
    driver.start_over()?;
    ask(&mut driver)
}

fn identity() -> Check {
    ensure_eq!([0x000, 0x004, 0x008].map(|at| CARD.get(at)), [0x7472_6976, 2, 1], "magic, version, device");
    let mac = mac();
    ensure!(mac[0] & 1 == 0 && mac != [0; 6], "its address is {mac:x?}");
    ensure_eq!(CARD.get(0x104) >> 16, 1, "the link is up");
    for register in (0..0x200).step_by(4) {
        ensure!(access::lwu(CARD.0 + register).is_ok(), "register {register:#x} traps");
    }
    Ok(())
}

fn features() -> Check {
    CARD.reset()?;
    CARD.set(0x014, 1);
    ensure_eq!(CARD.get(0x010), 1, "VERSION_1");
    CARD.set(0x014, 0);
    ensure_eq!(CARD.get(0x010), 1 << 5 | 1 << 16 | 1 << 28 | 1 << 29, "features");
    // Checksums are left to the guest.
    CARD.set(STATUS, 3);
    for (half, features) in [(0, 1), (1, 1)] {
        CARD.set(0x024, half);
        CARD.set(0x020, features);
    }
    CARD.set(STATUS, 11);
    ensure_eq!(CARD.get(STATUS), 3, "what it has not is not agreed on");
    Ok(())
}

/// Returns whether an answer to that comes, within so many milliseconds.
fn is_answered(driver: &mut Driver, patience: u64) -> bool {
    let end = metal::time() + board().ticks(patience);
    while metal::time() < end {
        let Some((place, written)) = driver.next(RECEIVE) else { continue };
        let is_answer = driver.bytes(place, 12) == [8, 6, 0, 1, 8, 0, 6, 4, 0, 2, 0x52, 0x55];
        if written >= HEADER + 42 && driver.bytes(place, 0) == mac() && is_answer {
            return true;
        }
        // Others may send as much as they can.
        driver.offer(RECEIVE, place as u16);
        Driver::notify(RECEIVE);
    }
    false
}

fn ask(driver: &mut Driver) -> Check {
    driver.offer_all();
    // A frame may be lost where others flood the network, or where too much is in flight.
    for _ in 0..ATTEMPTS {
        driver.put(0, &question(mac()));
        driver.offer(TRANSMIT, 0);
        Driver::notify(TRANSMIT);
        driver.wait(TRANSMIT)?;
        if is_answered(driver, 1000) {
            return Ok(());
        }
    }
    guests::fail!("the gateway does not answer {ATTEMPTS} questions");
}

/// Frames from a source address that no card can have reach no card.
fn own_frames_only(driver: &mut Driver) -> Check {
    driver.offer_all();
    for source in [ALL, [0; 6], [1, 0, 0x5e, 0, 0, 1]] {
        driver.put(0, &question(source));
        driver.offer(TRANSMIT, 0);
        Driver::notify(TRANSMIT);
        driver.wait(TRANSMIT)?;
    }
    ensure!(!is_answered(driver, 20), "a forged frame was answered");
    Ok(())
}

/// Frames of all lengths, in all pieces: they come back, and the card goes on.
fn wild_frames(driver: &mut Driver) -> Check {
    let (own, end) = (driver.frame(TRANSMIT, 0), board().ram_end());
    for (gpa, bytes) in [
        (own, 0),
        (own, 1),
        (own, HEADER),
        (own, HEADER + 13),
        (own, HEADER + 1519),
        (own, 0xffff_ffff),
        (0, 100),
        (CARD.0, 100),
        (end - 50, 100),
        (end, 100),
        (u64::MAX - 50, 100),
        (1 << 63, 1514),
    ] {
        for pieces in [1, 2, SIZE] {
            (0..pieces).for_each(|n| {
                let next = if n + 1 < pieces { NEXT } else { 0 };
                describe(driver.rings[1].table, n, (gpa, bytes), next, n + 1);
            });
            driver.offer(TRANSMIT, 0);
            Driver::notify(TRANSMIT);
            driver.wait(TRANSMIT)?;
        }
    }
    Ok(())
}

/// Buffers for what comes that are none: what comes is lost, and they come back.
fn wild_buffers(driver: &mut Driver) -> Check {
    let rings = driver.rings[0];
    for (gpa, bytes, flags) in [
        (0, 2048, WRITE),
        (CARD.0, 2048, WRITE),
        (board().ram_end() - 30, 2048, WRITE),
        (u64::MAX - 30, 2048, WRITE),
        (driver.frame(RECEIVE, 0), 0, WRITE),
        (driver.frame(RECEIVE, 0), 20, WRITE),
        (driver.frame(RECEIVE, 0), 2048, 0),
        // The ring itself, of which is left what the frame makes of it.
        (rings.device, 2048, WRITE),
    ] {
        driver.start_over()?;
        describe(rings.table, 0, (gpa, bytes), flags, 0);
        driver.offer(RECEIVE, 0);
        Driver::notify(RECEIVE);
        driver.put(0, &question(mac()));
        driver.offer(TRANSMIT, 0);
        Driver::notify(TRANSMIT);
        driver.wait(TRANSMIT)?;
        let end = metal::time() + board().ticks(1000);
        while driver.missing(RECEIVE) != 0 && gpa != rings.device {
            ensure!(metal::time() < end, "a buffer at {gpa:#x} does not come back");
        }
    }
    Ok(())
}

fn wild_rings(driver: &mut Driver) -> Check {
    for queue in [RECEIVE, TRANSMIT] {
        let rings = driver.rings[queue as usize];
        let ways: [&dyn Fn(); 5] = [
            &|| put16(rings.driver + 2, SIZE as u16 + 1),
            &|| put16(rings.driver + 4, SIZE as u16),
            &|| describe(rings.table, 0, (0x8000_0000, 0), NEXT, 0),
            &|| describe(rings.table, 0, (0x8000_0000, 0), NEXT | WRITE, 1),
            &|| describe(rings.table, 0, (0x8000_0000, 0), NEXT, SIZE),
        ];
        for (way, wild) in ways.iter().enumerate() {
            driver.start_over()?;
            put16(rings.driver + 2, 1);
            wild();
            Driver::notify(queue);
            if queue == RECEIVE {
                // The card looks for a buffer when something comes: here that is an answer.
                driver.put(0, &question(mac()));
                driver.offer(TRANSMIT, 0);
                Driver::notify(TRANSMIT);
            }
            let end = metal::time() + board().ticks(1000);
            while CARD.get(STATUS) == LIVE {
                ensure!(metal::time() < end, "way {way} of queue {queue} is not noticed");
            }
            ensure_eq!(CARD.get(STATUS), LIVE | NEEDS_RESET, "way {way} of queue {queue}");
        }
    }
    Ok(())
}

/// Resets in the middle of everything.
fn reset_meanwhile(driver: &mut Driver) -> Check {
    let random = &mut Random::of(7);
    for _ in 0..50 {
        driver.start_over()?;
        driver.offer_all();
        for place in 0..1 + random.below(SIZE) {
            driver.put(place, &question(mac()));
            driver.offer(TRANSMIT, place as u16);
            if random.below(8) == 0 {
                Driver::notify(TRANSMIT);
            }
        }
    }
    Ok(())
}

/// Datagrams to the gateway from all ports, and fragments of datagrams (RFC 791) whose first never comes.
fn attack(driver: &mut Driver, frames: u64, pause: u64) -> Check {
    hart::wait_for(pause, || false);
    let mut frame = [0; 60];
    frame[..6].copy_from_slice(&[0x52, 0x55, 10, 0, 2, 2]);
    frame[6..12].copy_from_slice(&mac());
    // Behind the type: the header of IP, with the source 10.0.2.200, and of UDP, to the port of the discard service, without a checksum.
    frame[12..24].copy_from_slice(&[8, 0, 0x45, 0, 0, 46, 0, 0, 0, 0, 64, 17]);
    frame[26..34].copy_from_slice(&[10, 0, 2, 200, 10, 0, 2, 2]);
    frame[36..40].copy_from_slice(&[0, 9, 0, 26]);
    let mut count = 0_u64;
    while count < frames {
        for place in 0..SIZE {
            count += 1;
            let offset = if count.is_multiple_of(61) { 1 + count as u16 % 0x1fff } else { 0 };
            frame[20..22].copy_from_slice(&offset.to_be_bytes());
            frame[24..26].copy_from_slice(&[0; 2]);
            let words = frame[14..34].chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])));
            let sum = words.sum::<u32>() % 0xffff;
            frame[24..26].copy_from_slice(&(!sum as u16).to_be_bytes());
            frame[34..36].copy_from_slice(&(count as u16).to_be_bytes());
            driver.put(place, &frame);
            driver.offer(TRANSMIT, place as u16);
        }
        Driver::notify(TRANSMIT);
        driver.wait(TRANSMIT)?;
    }
    line(format_args!("guest: attack by {count} frames"));
    Ok(())
}

/// Frames as fast as they go: to all, to the gateway, to other VMs, as others and as what it is, with wild ones among them. It takes
/// nothing that comes, half of the time; the other half it offers buffers that are nowhere.
fn flood(duration: u64) -> Check {
    let mut driver = Driver::start()?;
    let random = &mut Random::of(1);
    let end = metal::time() + board().ticks(duration);
    let (mut count, mut rounds) = (0, 0);
    let (own, mut frame) = (mac(), [0x5a; 1514]);
    let page = ram::pages(1)[0].address();
    poke(page, 0);
    while metal::time() < end {
        if rounds % 32 == 0 {
            driver.start_over()?;
            Driver::notify(RECEIVE);
        }
        rounds += 1;
        for place in 0..SIZE {
            let other = [0x52, 0x54, 0, 0x67, 0x6e, 1 + random.below(4) as u8];
            let (some, gateway) = (random.below(256) as u8, [0x52, 0x55, 10, 0, 2, 2]);
            let to = random.any(&[ALL, other, other, gateway, [2, 0, 0, 0, 0, some]]);
            let source = random.any(&[own, own, own, other, [2, 0, 0, 0, 1, some]]);
            frame[..6].copy_from_slice(&to);
            frame[6..12].copy_from_slice(&source);
            driver.put(place, &frame[..random.any(&[20, 60, 1514])]);
            if random.below(64) == 0 {
                describe(
                    driver.rings[1].table,
                    place,
                    (random.any(&[0, page, u64::MAX - 8]), random.below(5000)),
                    0,
                    0,
                );
            }
            driver.offer(TRANSMIT, place as u16);
        }
        Driver::notify(TRANSMIT);
        driver.wait(TRANSMIT)?;
        count += SIZE;
        if rounds % 2 == 0 {
            describe(driver.rings[0].table, 0, (0x1000, 2048), WRITE, 0);
            driver.offer(RECEIVE, 0);
            Driver::notify(RECEIVE);
        }
    }
    line(format_args!("guest: flood of {count} frames"));
    driver.start_over()
}
