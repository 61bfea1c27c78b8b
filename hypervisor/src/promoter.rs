//! Promotion in the background: a hart that has nothing else to do looks for 4 KiB pages that fill 2 MiB, and makes them one page of
//! 2 MiB, in portions ([`mmu::Promotion`]).
//!
//! Such pages are there where memory was short once, or came back from the swap device. VMs that have none cost nothing, and
//! nothing is promoted while memory is short.

use crate::env::Env;
use crate::gnomon::Gnomon;
use crate::slots::Handle;
use crate::sync::Mutex;
use crate::vm::Vm;
use abi::bundle::{GUEST_RAM_BASE, MAX_VMS};
use abi::tunable::Id;
use core::sync::atomic::{AtomicU64, Ordering::SeqCst};
use mmu::frames::MEGA_ORDER;
use mmu::{Promoted, Promotion};
use rv::{Addr, Gpa, Level, PAGE_BYTES, Pfn};

/// What harts share of it.
#[derive(Default)]
pub struct Promoter {
    /// Whoever has it looks, or does a portion.
    hand: Mutex<Hand>,
    /// When it begins anew, in host time.
    due: AtomicU64,
}

/// Where it is.
struct Hand {
    slot: usize,
    page: Pfn<Gpa>,
    /// What it has begun.
    doing: Option<Doing>,
}

struct Doing {
    vm: Handle,
    promotion: Promotion,
    /// Portions that it may still take: some only make room for others.
    left: u32,
}

/// The first page of a VM's RAM.
const FIRST: Pfn<Gpa> = Addr::new(GUEST_RAM_BASE).pfn();
/// Pieces of 2 MiB that are looked at in one portion: some 30,000 instructions, if all but the last entry of each table fits.
const AT_ONCE: u32 = 8;
/// Portions for 2 MiB, where 17 are enough if nothing is in the way.
const PORTIONS: u32 = 100;

impl Default for Hand {
    fn default() -> Self {
        Self { slot: 0, page: FIRST, doing: None }
    }
}

impl Promoter {
    /// Does a portion, if there is something to be done. Says whether there is more: then the hart calls it again before it waits.
    pub fn go_on<E: Env>(&self, g: &Gnomon, env: &mut E) -> bool {
        if env.now() < self.due.load(SeqCst) {
            return false;
        }
        let Some(mut hand) = self.hand.try_lock() else { return false };
        match hand.doing.take() {
            Some(doing) => hand.doing = self.continue_with(g, doing, env),
            None if g.pager.has_work() || !g.tunables.is_on(Id::Promote) || self.look(g, &mut hand, env) => {
                *hand = Hand::default();
                self.due.store(env.now() + g.offer.timebase, SeqCst);
                return false;
            }
            None => {}
        }
        true
    }

    /// Does a portion of what is begun. Returns what is left.
    fn continue_with<E: Env>(&self, g: &Gnomon, mut doing: Doing, env: &mut E) -> Option<Doing> {
        let frames = &g.harts[env.hart()].frames;
        let vm = g.vms.at(doing.vm.slot).filter(|vm| vm.handle == doing.vm);
        doing.left -= 1;
        if let (Some(vm), 1.., false) = (vm, doing.left, g.pager.has_work())
            && vm.translation.promote(g, &vm, &mut doing.promotion, env) == Promoted::More
        {
            return Some(doing);
        }
        doing.promotion.discard(frames);
        None
    }

    /// Looks for something to begin. Returns whether the hand has come round.
    fn look<E: Env>(&self, g: &Gnomon, hand: &mut Hand, env: &mut E) -> bool {
        let mut left = AT_ONCE;
        while hand.slot < MAX_VMS {
            if let Some(vm) = g.vms.at(hand.slot) {
                hand.doing = self.look_in(g, &vm, (&mut hand.page, &mut left), env);
                if hand.doing.is_some() || left == 0 {
                    return false;
                }
            }
            (hand.slot, hand.page) = (hand.slot + 1, FIRST);
        }
        true
    }

    fn look_in<E: Env>(
        &self,
        g: &Gnomon,
        vm: &Vm,
        (page, left): (&mut Pfn<Gpa>, &mut u32),
        env: &mut E,
    ) -> Option<Doing> {
        let frames = &g.harts[env.hart()].frames;
        let end = FIRST.add(vm.config.memory_bytes / PAGE_BYTES);
        let mut guard = vm.memory.lock();
        let space = guard.as_mut().map(|memory| &mut memory.space).filter(|space| space.may_have_small())?;
        while *page < end && *left > 0 {
            let promotion = space.begin_promotion(*page, || frames.take_ahead(MEGA_ORDER), &env.mem());
            *page = page.align_down(Level::MEGA.pages()).add(Level::MEGA.pages());
            *left -= 1;
            if let Some(promotion) = promotion {
                return Some(Doing { vm: vm.handle, promotion, left: PORTIONS });
            }
        }
        None
    }
}
