//! 1 GiB by one leaf: VMs that ask for it are given whole GiB before they start, 2 MiB after 2 MiB from one GiB of the
//! host's, which then are joined. If that is not possible, memory comes by demand as for other VMs.

use crate::gnomon::Gnomon;
use crate::hart::env::Env;
use crate::memory::edits;
use crate::vm::Vm;
use crate::vm::chores::{Gigapages, Place};
use abi::bundle::GUEST_RAM_BASE;
use abi::tunable::Id;
use mmu::frames::{Frames, Giga};
use mmu::gstage::Ready;
use rv::{Access, Addr, Level, PAGE_BYTES};

impl Gigapages {
    /// Returns the whole GiB that a VM is to be given, if it asks for any. A VM that may not keep all of its RAM in
    /// memory gets none.
    pub fn of(g: &Gnomon, vm: &Vm) -> Option<Self> {
        let config = &vm.config;
        let may_have = config.gigapages && config.superpages && config.limit_bytes.is_none();
        let page = Addr::new(GUEST_RAM_BASE).pfn();
        let end = page.add(config.memory_bytes / PAGE_BYTES);
        (may_have && g.tunables.is_on(Id::Superpages)).then_some(Self {
            page,
            end,
            place: Place::ANYWHERE,
            ready: Ready::Nothing,
        })
    }

    /// Does a portion. Returns what is left.
    pub fn go_on<E: Env>(mut self, g: &Gnomon, vm: &Vm, env: &mut E) -> Option<Self> {
        let frames = &g.harts[env.hart()].frames;
        let first = {
            let guard = vm.memory.lock();
            guard.as_ref().filter(|_| self.page < self.end)?.space.giga_around(self.page)
        };
        match (first, self.place) {
            (None, _) => self.pass(),
            (Some(_), Place::Below(end)) => match frames.find_giga(end) {
                Giga::Found(host) => self.place = Place::From(host),
                Giga::Below(end) => self.place = Place::Below(end),
                // Nor is there one for those behind.
                Giga::None => return None,
            },
            (Some(first), Place::From(host)) => {
                if self.ready == Ready::Nothing {
                    match frames.take_ahead_at(host.add(self.page.raw() - first.raw())) {
                        Some(run) => self.ready = Ready::zeroes_in(run),
                        None => {
                            self.pass();
                            return Some(self);
                        }
                    }
                }
                if !self.give(g, vm, frames, env) {
                    return None;
                }
            }
        }
        Some(self)
    }

    /// Continues with the 2 MiB that are being made ready, and joins the GiB with the last. Returns whether there was
    /// memory for it.
    fn give<E: Env>(&mut self, g: &Gnomon, vm: &Vm, frames: &Frames, env: &mut E) -> bool {
        match vm.reach(g, (self.page.base(), Access::Store), &mut self.ready, env) {
            Ok(_) => {
                core::mem::replace(&mut self.ready, Ready::Nothing).discard(frames);
                let last = self.page;
                self.page = self.page.add(Level::MEGA.pages());
                if self.page.is_aligned(Level::GIGA.pages()) {
                    edits::join(g, vm, last, env);
                    self.place = Place::ANYWHERE;
                }
                true
            }
            Err(why) if why.is_for_now() => true,
            Err(_) => {
                core::mem::replace(&mut self.ready, Ready::Nothing).discard(frames);
                false
            }
        }
    }

    /// Ends the gift, and gives back the memory that was made ready.
    pub fn discard(self, frames: &Frames) -> Option<Self> {
        self.ready.discard(frames);
        None
    }

    /// Skips the GiB around the next page, or the rest of it: it comes by demand.
    fn pass(&mut self) {
        self.page = self.page.align_down(Level::GIGA.pages()).add(Level::GIGA.pages());
        self.place = Place::ANYWHERE;
    }
}
