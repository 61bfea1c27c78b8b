//! The two ways to resolve a fault: with a share of the lock, and exclusively.

use super::Rig;
use mmu::gstage::Filled;
use mmu::{How, ResolveError, Resolved, Stale, with_ready};
use rv::{Access, Addr, Gpa};

impl Rig {
    /// Tries it with a share of the lock first in three of four faults.
    pub(super) fn resolve(&mut self, gpa: Addr<Gpa>, access: Access) -> Result<Resolved, ResolveError> {
        if !(self.writes + gpa.pfn().raw()).is_multiple_of(4) {
            let filled = with_ready(&self.frames, &mut self.world, |ready, mem| {
                self.space.fill(gpa, access, ready, &self.frames, mem)
            });
            match filled {
                Ok(Filled::Mapped { hpa, how }) => {
                    assert_ne!(how, How::Copied);
                    return Ok(Resolved::Mapped { hpa, how, stale: Stale::none(), publish: None });
                }
                Ok(Filled::Elsewhere) => {}
                Err(error) => panic!("{error:?} is for the address space"),
            }
        }
        self.space.resolve(gpa, access, &self.frames, &mut self.world)
    }
}
