use super::event::{GLOBAL_SOFTWARE as GLOBAL, LOCAL_SOFTWARE as LOCAL, Place};
use super::*;
use rv::Mode;
use rv::csr::status;

const HANDLER: u64 = 0x8020_0000;

fn place() -> Place {
    Place { pc: 0x1000, mode: Mode::User, status: status::SIE | status::SPP, sepc: 0x2000, a6_a7: [6, 7] }
}

/// Makes the events of two harts, with both events enabled on hart 0.
fn enabled() -> Events {
    let mut events = Events::new(2);
    for hart in [0, 1] {
        events.unmask(hart).unwrap();
    }
    for id in [LOCAL, GLOBAL] {
        events.register(0, id, (HANDLER, u64::from(id))).unwrap();
        events.enable(0, id).unwrap();
    }
    events
}

#[test]
fn an_event_comes_and_leaves_what_it_found() {
    let mut events = enabled();
    let mut at = place();
    assert!(!events.enter(0, &mut at));
    assert_eq!(events.inject(LOCAL, 0), Ok(0));
    assert!(events.is_due(0) && !events.is_due(1));
    assert!(events.enter(0, &mut at));
    let inside =
        Place { pc: HANDLER, mode: Mode::Supervisor, status: status::SPIE, sepc: 0x1000, a6_a7: [0, u64::from(LOCAL)] };
    assert_eq!(at, inside, "from user mode, interrupts were on");
    assert_eq!(events.read(0, LOCAL).unwrap()[6..], [0x2000, 1, 6, 7]);
    assert!(!events.enter(0, &mut at), "once");
    assert_eq!(events.complete(0, &mut at), Ok(()));
    assert_eq!(at, place());
    assert_eq!(events.complete(0, &mut at), Err(Error::InvalidState));
}

#[test]
fn a_handler_may_say_where_to_go_on() {
    let mut events = enabled();
    let mut at = place();
    events.inject(LOCAL, 0).unwrap();
    events.enter(0, &mut at);
    events.write((0, LOCAL), 6, &[0x3000, 2, 8, 9], |_| true).unwrap();
    (at.sepc, at.status) = (0x4000, status::SPP);
    events.complete(0, &mut at).unwrap();
    let expected = Place { pc: 0x4000, mode: Mode::Supervisor, status: status::SPIE, sepc: 0x3000, a6_a7: [8, 9] };
    assert_eq!(at, expected);
}

#[test]
fn what_is_injected_meanwhile_comes_afterwards_and_once() {
    let mut events = enabled();
    let mut at = place();
    events.inject(LOCAL, 0).unwrap();
    events.enter(0, &mut at);
    for _ in 0..3 {
        events.inject(LOCAL, 0).unwrap();
    }
    assert!(!events.is_due(0));
    events.complete(0, &mut at).unwrap();
    assert!(events.enter(0, &mut at));
    events.complete(0, &mut at).unwrap();
    assert!(!events.is_due(0));
}

#[test]
fn the_first_in_rank_comes_first() {
    // Priorities of the local and of the global event, and which of them is first.
    for (local, global, first) in [(1, 2, LOCAL), (2, 1, GLOBAL), (5, 5, LOCAL)] {
        let mut events = enabled();
        for (id, priority) in [(LOCAL, local), (GLOBAL, global)] {
            assert_eq!(events.write((0, id), 1, &[priority], |_| true), Err(Error::InvalidState));
            events.disable(0, id).unwrap();
            events.write((0, id), 1, &[priority], |_| true).unwrap();
            events.enable(0, id).unwrap();
            events.inject(id, 0).unwrap();
        }
        let mut at = place();
        assert!(events.enter(0, &mut at));
        assert_eq!(at.a6_a7[1], u64::from(first));
        assert!(!events.is_due(0), "the other waits");
        events.complete(0, &mut at).unwrap();
        assert!(events.enter(0, &mut at));
        // The first interrupts the second's handler, and the calls to complete go to the inner one.
        events.inject(first, 0).unwrap();
        let outer = at;
        assert!(events.enter(0, &mut at));
        assert_eq!(at.a6_a7[1], u64::from(first));
        events.complete(0, &mut at).unwrap();
        assert_eq!(at, outer);
        events.complete(0, &mut at).unwrap();
        assert_eq!(at, place());
    }
}

#[test]
fn the_global_event_goes_where_it_is_preferred() {
    let mut events = enabled();
    events.disable(1, GLOBAL).unwrap();
    assert_eq!(events.write((0, GLOBAL), 3, &[1], |hart| hart == 0), Err(Error::InvalidParam));
    assert_eq!(events.write((0, LOCAL), 3, &[1], |_| true), Err(Error::Denied));
    events.write((0, GLOBAL), 3, &[1], |hart| hart == 1).unwrap();
    assert_eq!(events.enable(0, GLOBAL), Ok(1));
    assert_eq!(events.inject(GLOBAL, 0), Ok(1), "whatever hart the call names");
    assert!(events.is_due(1) && !events.is_due(0));
    // The hart starts anew: the handler that would complete the event is gone.
    events.enter(1, &mut place());
    events.start(1);
    assert_eq!(events.inject(GLOBAL, 1), Err(Error::InvalidState));
    assert_eq!(events.unmask(1), Ok(()));
}

#[test]
fn masked_events_wait() {
    let mut events = enabled();
    assert_eq!(events.unmask(0), Err(Error::AlreadyStarted));
    events.mask(0).unwrap();
    assert_eq!(events.mask(0), Err(Error::AlreadyStopped));
    events.inject(LOCAL, 0).unwrap();
    assert!(!events.enter(0, &mut place()));
    events.unmask(0).unwrap();
    assert!(events.enter(0, &mut place()));
}

#[test]
fn one_shot_events_are_over_when_complete() {
    let mut events = enabled();
    events.disable(0, LOCAL).unwrap();
    events.write((0, LOCAL), 2, &[1], |_| true).unwrap();
    events.enable(0, LOCAL).unwrap();
    events.inject(LOCAL, 0).unwrap();
    let mut at = place();
    events.enter(0, &mut at);
    events.complete(0, &mut at).unwrap();
    assert_eq!(events.inject(LOCAL, 0), Err(Error::InvalidState));
    assert_eq!(events.unregister(0, LOCAL), Ok(()));
}

#[test]
fn all_or_no_attributes_are_written() {
    let mut events = Events::new(1);
    assert_eq!(events.write((0, LOCAL), 1, &[3, 2], |_| true), Err(Error::InvalidParam));
    assert_eq!(events.read(0, LOCAL).unwrap()[..3], [8, 0, 0]);
    assert_eq!(events.write((0, LOCAL), 2, &[1, 0], |_| true), Err(Error::Denied));
    assert_eq!(events.write((0, GLOBAL), 1, &[3, 1, 0], |_| true), Ok(()));
    assert_eq!(events.read(0, GLOBAL).unwrap()[..4], [8, 3, 1, 0]);
    for which in 6..10 {
        assert_eq!(events.write((0, LOCAL), which, &[0], |_| true), Err(Error::InvalidState));
    }
}

#[test]
fn what_is_not_there_is_refused() {
    let mut events = Events::new(2);
    for (id, error) in [(0, Error::NotSupported), (0x1_0000, Error::NotSupported), (2, Error::InvalidParam)] {
        assert_eq!(events.register(0, id, (HANDLER, 0)), Err(error));
        assert_eq!(events.inject(id, 0), Err(error));
        assert!(events.read(0, id).is_err());
    }
    for hart in [2, 1 << 32, u64::MAX] {
        assert_eq!(events.inject(LOCAL, hart), Err(Error::InvalidParam));
    }
    assert_eq!(events.register(0, LOCAL, (HANDLER + 1, 0)), Err(Error::InvalidParam));
}
