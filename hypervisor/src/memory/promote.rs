//! The search for small pages to promote, and the portions of a promotion. The promotion itself is
//! [`mmu::Edits::promote`].

use crate::gnomon::Gnomon;
use crate::hart::env::Env;
use crate::memory::edits;
use crate::pager::promoter::{Doing, FIRST, Hand, Promoter};
use crate::vm::Vm;
use abi::bundle::MAX_VMS;
use abi::tunable::Id;
use core::sync::atomic::Ordering::SeqCst;
use mmu::Promoted;
use mmu::frames::{Frames, MEGA_ORDER};
use rv::{Gpa, Level, PAGE_BYTES, Pfn};

/// Pieces of 2 MiB that are looked at in one portion: some 30,000 instructions, if all but the last entry of each table fits.
const AT_ONCE: u32 = 8;
/// Up to 2 to the power of this are the seconds between two rounds, when nothing has come of the last promotions.
const MOST_IN_VAIN: u64 = 6;
/// Portions for 2 MiB, where 17 are enough if nothing is in the way.
const PORTIONS: u32 = 100;

impl Promoter {
    /// Does a portion of the work, if there is some. Returns whether there is more: then the hart calls it again before
    /// it waits.
    pub fn go_on<E: Env>(&self, g: &Gnomon, env: &mut E) -> bool {
        if env.now() < self.due.load(SeqCst) {
            return false;
        }
        let Some(mut hand) = self.hand.try_lock() else { return false };
        match hand.doing.take() {
            Some(doing) => hand.doing = self.continue_with(g, doing, env),
            None if g.pager.has_work() || !g.tunables.is_on(Id::Promote) || self.look(g, &mut hand, env) => {
                *hand = Hand::default();
                self.due.store(env.now() + (g.offer.timebase << self.in_vain.load(SeqCst)), SeqCst);
                return false;
            }
            None => {}
        }
        true
    }

    /// Gives the frames back that a promotion has taken which is begun, since memory is short: it may be long until a hart is idle
    /// that would go on with it. Returns whether there were some.
    pub(crate) fn give_back(&self, frames: &Frames) -> bool {
        let Some(mut hand) = self.hand.try_lock() else { return false };
        let doing = hand.doing.take_if(|doing| doing.promotion.has_frames());
        doing.map(|doing| doing.promotion.discard(frames)).is_some()
    }

    /// Does a portion of what is begun. Returns what is left.
    fn continue_with<E: Env>(&self, g: &Gnomon, mut doing: Doing, env: &mut E) -> Option<Doing> {
        let frames = &g.harts[env.hart()].frames;
        let vm = g.vms.at(doing.vm.slot).filter(|vm| vm.handle == doing.vm);
        doing.left -= 1;
        if let (Some(vm), 1.., false) = (vm, doing.left, g.pager.has_work()) {
            match edits::promote(g, &vm, &mut doing.promotion, env) {
                Promoted::More => return Some(doing),
                Promoted::Whole => self.in_vain.store(0, SeqCst),
                // The guest writes to them all the time: it has faulted for nothing.
                Promoted::Not => self.in_vain.store((self.in_vain.load(SeqCst) + 1).min(MOST_IN_VAIN), SeqCst),
            }
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
