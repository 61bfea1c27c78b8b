//! Shutdown, reboot and reset by the control channel's requests.

use crate::fake::driver::{self, counters, offer, read, rings, set};
use crate::fake::{World, depart, machine, park, start_due, vm_config};
use abi::bundle::{GUEST_RAM_BASE, VmConfig};
use abi::control::frame::{Reader, decode, encode};
use abi::control::{Answer, MOST_ANSWER_BYTES, MOST_REQUEST_BYTES, Power, Request};
use abi::record::EndReason;
use hypervisor::control::answer_frame;
use hypervisor::device::offer::GuestTimer;
use hypervisor::life::lifecycle::{self, go_on, put_aside};
use hypervisor::vm::{Departure, Phase};

const KEY: u64 = 0x1001_0000;
const SOURCE: u32 = 18;
const UART: u64 = 0x1000_0000;
const DATA: u64 = GUEST_RAM_BASE + 0x1_0000;

fn ask(w: &mut World, wish: Power) -> Answer {
    ask_of(w, 0, wish)
}

fn ask_of(w: &mut World, vm: u64, wish: Power) -> Answer {
    let request = encode(1, &Request::Power(vm, wish));
    let frame = Reader::new(MOST_REQUEST_BYTES).next(&mut request.as_slice()).expect("a frame");
    let answer = answer_frame(&w.g, frame, &mut w.hart).expect("an answer");
    let frame = Reader::new(MOST_ANSWER_BYTES).next(&mut answer.as_slice()).expect("a frame");
    decode(&frame.expect("whole")).expect("an answer").1
}

fn is_refused(answer: &Answer, part: &str) -> bool {
    matches!(answer, Answer::Refused(why) if why.contains(part))
}

/// Lets the guest end in that way, and returns the phase of its VM after that.
fn end(w: World, reason: EndReason) -> Phase {
    let World { g, mut hart, run } = w;
    let vm = run.vm.clone();
    depart(&g, &vm, Departure::End(reason), &mut hart);
    g.sched.stopped();
    park(&g, run, &mut hart);
    vm.phase.lock().clone()
}

#[test]
fn a_guest_with_a_driver_sees_its_power_key() {
    let mut w = driver::world(VmConfig { power_key: true, ..vm_config("vm", 1) });
    assert_eq!(ask(&mut w, Power::Off), Answer::Later, "it has no driver yet");
    driver::start(&mut w, KEY, 0, 2);
    assert_eq!(ask(&mut w, Power::Off), Answer::Done);
    (0..4).for_each(|made| offer(&mut w, (KEY, 0), made, &[(DATA + 8 * u64::from(made), 8, 2)]));
    assert_eq!(read::<8>(&mut w, DATA), [1, 0, 116, 0, 1, 0, 0, 0]);
    assert_eq!(read::<2>(&mut w, rings(0)[2] + 2), [4, 0]);
    assert_ne!(w.run.vm.devices.plic.lock().read(0x1000) >> SOURCE & 1, 0, "its interrupt is pending");
    assert_eq!(counters(&w, ["power_key.presses"]), [Some(1)]);
    assert_eq!(end(w, EndReason::Poweroff), Phase::Ended);
}

#[test]
fn without_a_key_the_terminal_is_hung_up_if_its_driver_listens() {
    let mut w = driver::world(vm_config("vm", 1));
    assert_eq!(ask(&mut w, Power::Off), Answer::Later);
    set(&mut w, UART + 1, 8);
    assert_eq!(ask(&mut w, Power::Off), Answer::Done);
    assert_ne!(w.run.vm.devices.plic.lock().read(0x1000) >> 10 & 1, 0, "its interrupt is pending");
}

#[test]
fn a_vm_whose_reboot_was_asked_for_starts_over_when_its_guest_powers_off() {
    for (wishes, starts_over) in [
        (&[Power::Restart][..], true),
        (&[Power::Restart, Power::Stay], false),
        (&[Power::Restart, Power::Off], false),
        (&[Power::Off, Power::Restart], true),
    ] {
        let mut w = driver::world(vm_config("vm", 1));
        set(&mut w, UART + 1, 8);
        wishes.iter().for_each(|wish| assert_eq!(ask(&mut w, *wish), Answer::Done));
        assert_eq!(end(w, EndReason::Poweroff), if starts_over { Phase::Running } else { Phase::Ended }, "{wishes:?}");
    }
    // Only a shutdown by the guest is meant.
    let mut w = driver::world(vm_config("vm", 1));
    set(&mut w, UART + 1, 8);
    ask(&mut w, Power::Restart);
    assert_eq!(end(w, EndReason::SystemFailure), Phase::Ended);
}

#[test]
fn a_paused_vm_is_not_asked_and_can_be_reset() {
    let mut w = driver::world(vm_config("vm", 1));
    set(&mut w, UART + 1, 8);
    let vm = w.run.vm.clone();
    assert!(lifecycle::pause(&w.g, &vm, &mut w.hart));
    w.g.sched.stopped();
    let other = driver::world(vm_config("other", 1)).run;
    put_aside(&w.g, std::mem::replace(&mut w.run, other), &mut w.hart);
    for wish in [Power::Off, Power::Restart] {
        assert!(is_refused(&ask(&mut w, wish), "paused"));
    }
    assert_eq!(ask(&mut w, Power::Reset), Answer::Done);
    assert_eq!(ask(&mut w, Power::Off), Answer::Later, "it is starting over");
    while go_on(&w.g, &mut w.hart) {}
    assert_eq!(*vm.phase.lock(), Phase::Running);
}

#[test]
fn a_vm_that_waits_for_another_is_not_asked() {
    let after = VmConfig { after: Some(0), ..vm_config("second", 1) };
    let (g, mut hart) = machine(vec![vm_config("first", 1), after], 2, GuestTimer::Sstc);
    start_due(&g, &mut hart);
    let run = g.sched.take(0).expect("the first vCPU is ready");
    let mut w = World { g, hart, run };
    for wish in [Power::Off, Power::Restart, Power::Stay, Power::Reset] {
        assert!(is_refused(&ask_of(&mut w, 1, wish), "waits for another VM"));
        assert!(is_refused(&ask_of(&mut w, 7, wish), "never was"));
    }
}
