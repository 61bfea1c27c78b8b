//! The switch beside a model, with frames at random.

use super::*;
use crate::random::Random;
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;

/// VMs on the network.
const VMS: usize = 5;

fn card(n: u64) -> Mac {
    Mac([2, 0, 0, 0, (n >> 8) as u8, n as u8])
}

/// The expected knowledge: the owner of each address, and the time since when it has it.
#[derive(Default)]
struct Model {
    learned: BTreeMap<Mac, (usize, u64)>,
    steps: u64,
}

impl Model {
    fn own(mac: Mac) -> Option<usize> {
        (1..=VMS).find(|vm| card(*vm as u64) == mac)
    }

    fn owner(&self, mac: Mac) -> Option<usize> {
        Self::own(mac).or_else(|| self.learned.get(&mac).map(|(owner, _)| *owner))
    }

    fn route(&mut self, from: usize, source: Mac, destination: Mac) -> Result<Route, Forged> {
        self.steps += 1;
        let owner = self.owner(source);
        let may_learn = source.is_card() && Self::own(source).is_none() && (owner.is_none() || from == WORLD);
        if owner != Some(from) {
            if !may_learn {
                return Err(Forged);
            }
            self.learned.insert(source, (from, self.steps));
            let most = if from == WORLD { 32 } else { 4 };
            let of = |(mac, (owner, since)): (&Mac, &(usize, u64))| (*owner == from).then_some((*since, *mac));
            let mut all: Vec<_> = self.learned.iter().filter_map(of).collect();
            all.sort_unstable();
            all.iter().rev().skip(most).for_each(|(_, mac)| _ = self.learned.remove(mac));
        }
        Ok(match self.owner(destination).filter(|_| !destination.is_group()) {
            Some(to) if to == from => Route::Nowhere,
            Some(to) => Route::To(to),
            None => Route::All,
        })
    }
}

fn run(seed: u64, broken: Option<Broken>) -> Result<(), String> {
    let mut switch = Switch::new((1..=VMS).map(|vm| card(vm as u64)));
    switch.broken = broken;
    let (mut model, mut random) = (Model::default(), Random(seed));
    for step in 0..2000 {
        let from = random.below(VMS as u64 + 1) as usize;
        // Few addresses, so that they collide; now and then more than the switch learns for a member.
        let many = if random.below(4) == 0 { 200 } else { 12 };
        let address = |random: &mut Random| match random.below(12) {
            0 => Mac([0xff; 6]),
            1 => Mac([3, 0, 0, 0, 0, random.below(4) as u8]),
            2 => Mac([0; 6]),
            _ => card(random.below(many)),
        };
        // Half of a VM's frames have the VM's own source address.
        let source = if from != WORLD && random.below(2) == 0 { card(from as u64) } else { address(&mut random) };
        let destination = address(&mut random);
        if random.below(50) == 0 {
            switch.forget(from);
            model.learned.retain(|_, (owner, _)| *owner != from);
        }
        let (is, should) = (switch.route(from, source, destination), model.route(from, source, destination));
        if is != should {
            return Err(format!("step {step}: {from} sends {source} -> {destination}: {is:?}, not {should:?}"));
        }
        if let Ok(Route::To(to)) = is
            && to == from
        {
            return Err(format!("step {step}: back to {from}"));
        }
    }
    Ok(())
}

#[test]
fn frames_go_where_a_model_sends_them() {
    (1..40).for_each(|seed| assert_eq!(run(seed * 0x9e37_79b9, None), Ok(())));
}

#[test]
fn broken_switches_are_noticed() {
    for how in [Broken::Believes, Broken::SendsBack, Broken::GivesAway, Broken::Remembers] {
        assert!((1..10).any(|seed| run(seed * 0x9e37_79b9, Some(how)).is_err()), "{how:?} is not noticed");
    }
}

#[test]
fn nobody_takes_an_address_that_is_anothers() {
    let mut switch = Switch::new([card(1), card(2)]);
    let all = Mac([0xff; 6]);
    assert_eq!(switch.route(2, card(1), all), Err(Forged));
    assert_eq!(switch.route(WORLD, card(1), all), Err(Forged));
    // A VM says first that it is the gateway; that says so itself, and is believed.
    assert_eq!(switch.route(1, card(100), all), Ok(Route::All));
    assert_eq!(switch.route(2, card(2), card(100)), Ok(Route::To(1)));
    assert_eq!(switch.route(2, card(100), all), Err(Forged));
    assert_eq!(switch.route(WORLD, card(100), card(2)), Ok(Route::To(2)));
    assert_eq!(switch.route(1, card(100), all), Err(Forged));
    assert_eq!(switch.route(2, card(2), card(100)), Ok(Route::To(WORLD)));
    // Whatever a VM learns, the others' stays known.
    assert!((200..300).all(|n| switch.route(1, card(n), card(100)) == Ok(Route::To(WORLD))));
    assert_eq!(switch.route(WORLD, card(100), card(1)), Ok(Route::To(1)));
}
