//! A virtio console with ports: what it says it is, what is said of ports, what comes by one from the host, and whatever else stands in the
//! rings or is said of ports. With `flood MS` it sends as much as it can by all of them, for so many milliseconds.
#![no_std]
#![no_main]

mod driver;

use driver::{BACK, CONSOLE, Driver, PRINT, SAYS, THERE, TOLD};
use driver::{CONSOLE_PORT, DEVICE_READY, PORT_ADD, PORT_NAME, PORT_OPEN, PORT_READY, QUEUES};
use guests::access::{self, poke};
use guests::console::line;
use guests::random::Random;
use guests::virtio::{INDIRECT, LIVE, NEEDS_RESET, NEXT, SIZE, STATUS, WRITE, describe, put16};
use guests::{Check, board, ensure, ensure_eq, run};

guests::entry_point!(main);

fn main() {
    let mut words = board().bootargs.split_whitespace();
    if words.next() == Some("flood") {
        let duration = words.next().and_then(|word| word.parse().ok()).unwrap_or(1000);
        return run("ports/flood", || flood(duration));
    }
    run("ports/identity", identity);
    run("ports/told", || with(told));
    run("ports/wild-messages", || with(wild_messages));
    run("ports/wild-buffers", || with(wild_buffers));
    run("ports/wild-rings", || with(wild_rings));
    run("ports/queues-go", || with(queues_go));
    run("ports/reset-meanwhile", || with(reset_meanwhile));
}

/// Makes a check with a driver that starts, and sees that the ports still work behind it.
fn with(check: impl FnOnce(&mut Driver) -> Check) -> Check {
    let mut driver = Driver::start()?;
    check(&mut driver)?;
    driver.start_over()?;
    told(&mut driver)?;
    hear(&mut driver)
}

fn identity() -> Check {
    ensure_eq!([0x000, 0x004, 0x008].map(|at| CONSOLE.get(at)), [0x7472_6976, 2, 3], "magic, version, device");
    ensure_eq!(CONSOLE.get(0x104), 3, "the console's, and two others");
    CONSOLE.set(0x014, 0);
    ensure_eq!(CONSOLE.get(0x010), 1 << 1 | 1 << 28 | 1 << 29, "features");
    for register in (0..0x200).step_by(4) {
        ensure!(access::lwu(CONSOLE.0 + register).is_ok(), "register {register:#x} traps");
    }
    Ok(())
}

/// The device's messages about ports, after the driver's request.
fn told(driver: &mut Driver) -> Check {
    driver.open()?;
    let mut seen = [0_u64; 3];
    while let Some((port, kind, bytes)) = driver.told() {
        ensure!(port < 3, "it is told of port {port}");
        let name = [0, 5, 4][port as usize];
        ensure_eq!(bytes, if kind == PORT_NAME { 8 + name } else { 8 }, "bytes of kind {kind} of port {port}");
        seen[port as usize] |= 1 << kind;
    }
    let named = 1 << PORT_ADD | 1 << PORT_NAME;
    ensure_eq!(seen[0], 1 << PORT_ADD | 1 << CONSOLE_PORT | 1 << PORT_OPEN, "what it is told of the console");
    // A client may or may not be connected already.
    ensure_eq!([seen[1], seen[2]].map(|seen| seen & !(1 << PORT_OPEN)), [named; 2], "what it is told of ports");
    Ok(())
}

/// Something comes by the first port.
fn hear(driver: &mut Driver) -> Check {
    driver.put(THERE, 0, (driver.buffers, 4096), WRITE);
    driver.wait(THERE)
}

/// Messages of all kinds, of all ports, of all lengths. The device goes on; what means nothing it passes over.
fn wild_messages(driver: &mut Driver) -> Check {
    driver.open()?;
    let at = driver.buffers;
    for port in [0, 1, 2, 3, 4, 255, u64::from(u32::MAX)] {
        for kind in [DEVICE_READY, PORT_ADD, 2, PORT_READY, CONSOLE_PORT, 5, PORT_OPEN, PORT_NAME, 8, 0xffff] {
            for value in [0, 1, 2, 0xffff] {
                driver.say(port, kind, value)?;
            }
        }
    }
    poke(at, u64::MAX);
    for bytes in [0, 1, 7, 9, 4096, 0xffff_ffff] {
        driver.put(SAYS, 0, (at, bytes), 0);
        driver.wait(SAYS)?;
    }
    // Without a buffer for the answers, as often as one likes; then with such as have no room for them.
    driver.start_over()?;
    for _ in 0..1000 {
        driver.say(1, DEVICE_READY, 1)?;
        driver.say(1, PORT_READY, 1)?;
    }
    for place in 0..SIZE {
        driver.put(TOLD, place, (at, place % 8), WRITE);
    }
    driver.wait(TOLD)
}

/// Buffers that are none, of all lengths, in all pieces: they come back, and the device goes on.
fn wild_buffers(driver: &mut Driver) -> Check {
    let (own, end) = (driver.buffers, board().ram_end());
    // What is printed is lines of their own.
    (own..own + 4096).step_by(8).for_each(|at| poke(at, u64::from_ne_bytes([b'\n'; 8])));
    for (gpa, bytes) in [
        (own, 0),
        (own, 1),
        (0, 100),
        (CONSOLE.0, 100),
        (end - 50, 100),
        (end, 100),
        (u64::MAX - 50, 100),
        (1 << 63, 1514),
        (0, 0xffff_ffff),
    ] {
        for (queue, flags) in [(SAYS, 0), (BACK[0], 0), (BACK[1], 0), (PRINT, 0), (BACK[1], WRITE), (TOLD, WRITE)] {
            for pieces in [1, 2, SIZE] {
                if queue == TOLD { driver.start_over() } else { driver.open() }?;
                (0..pieces).for_each(|n| {
                    let next = if n + 1 < pieces { NEXT } else { 0 };
                    describe(driver.rings[queue].table, n, (gpa, bytes), flags | next, n + 1);
                });
                driver.offer(queue, 0);
                Driver::notify(queue);
                if queue == TOLD {
                    driver.say(0, DEVICE_READY, 1)?;
                }
                driver.wait(queue)?;
            }
        }
    }
    Ok(())
}

fn wild_rings(driver: &mut Driver) -> Check {
    for queue in [PRINT, TOLD, SAYS, THERE, BACK[0], BACK[1]] {
        let rings = driver.rings[queue];
        let ways: [&dyn Fn(); 7] = [
            &|| put16(rings.driver + 2, SIZE as u16 + 1),
            &|| put16(rings.driver + 2, u16::MAX),
            &|| put16(rings.driver + 4, SIZE as u16),
            &|| describe(rings.table, 0, (0x8000_0000, 0), NEXT, 0),
            &|| describe(rings.table, 0, (0x8000_0000, 0), NEXT | WRITE, 1),
            &|| describe(rings.table, 0, (0x8000_0000, 0), NEXT, SIZE),
            &|| describe(rings.table, 0, (0x8000_0000, 17), INDIRECT, 0),
        ];
        for (way, wild) in ways.iter().enumerate() {
            driver.start_over()?;
            // What there is to be told, or comes, finds that ring.
            let before = [DEVICE_READY, PORT_READY, PORT_OPEN].map(|kind| (kind, 1));
            for (kind, value) in before.into_iter().filter(|_| queue != SAYS) {
                driver.say(1, kind, value)?;
            }
            put16(rings.driver + 2, 1);
            wild();
            Driver::notify(queue);
            let end = metal::time() + board().ticks(2000);
            while CONSOLE.get(STATUS) == LIVE {
                ensure!(metal::time() < end, "way {way} of queue {queue} is not noticed");
            }
            ensure_eq!(CONSOLE.get(STATUS), LIVE | NEEDS_RESET, "way {way} of queue {queue}");
        }
    }
    Ok(())
}

/// Queues go in the midst of it, and come again.
fn queues_go(driver: &mut Driver) -> Check {
    let random = &mut Random::of(3);
    for _ in 0..200 {
        driver.open()?;
        for place in 0..SIZE {
            let queue = random.any(&[PRINT, THERE, BACK[0], BACK[1]]);
            let flags = if queue == THERE { WRITE } else { 0 };
            let bytes = if queue == PRINT { 0 } else { random.below(4096) };
            driver.put(queue, place, (driver.buffers + 4096 * place, bytes), flags);
        }
        let queue = random.below(QUEUES as u64) as u32;
        CONSOLE.set(0x030, queue);
        CONSOLE.set(0x044, 0);
        ensure_eq!(CONSOLE.get(0x044), 0, "queue {queue} is gone");
        (0..QUEUES).for_each(Driver::notify);
    }
    Ok(())
}

/// Resets in the middle of everything.
fn reset_meanwhile(driver: &mut Driver) -> Check {
    let random = &mut Random::of(7);
    for _ in 0..100 {
        driver.open()?;
        for place in 0..1 + random.below(SIZE) {
            let (queue, flags) = random.any(&[(THERE, WRITE), (BACK[0], 0), (BACK[1], 0), (SAYS, 0)]);
            describe(driver.rings[queue].table, place, (driver.buffers + 4096 * place, 4096), flags, 0);
            driver.offer(queue, place as u16);
            if random.below(4) == 0 {
                Driver::notify(queue);
            }
        }
    }
    Ok(())
}

/// By both ports as much as goes, and all that comes, with nonsense of ports among it.
fn flood(duration: u64) -> Check {
    let mut driver = Driver::start()?;
    driver.open()?;
    let random = &mut Random::of(1);
    let end = metal::time() + board().ticks(duration);
    let mut count = 0_u64;
    while metal::time() < end {
        for (queue, flags) in [(THERE, WRITE), (BACK[0], 0), (BACK[1], 0)] {
            while driver.missing(queue) < SIZE as u16 {
                let place = count % SIZE;
                describe(driver.rings[queue].table, place, (driver.buffers + 4096 * place, 4096), flags, 0);
                driver.offer(queue, place as u16);
                count += 1;
            }
            Driver::notify(queue);
        }
        driver.say(random.below(4), random.below(9), random.below(2))?;
        driver.say(1, PORT_OPEN, 1)?;
        driver.say(2, PORT_OPEN, 1)?;
    }
    line(format_args!("guest: flood of {count} buffers"));
    driver.start_over()
}
