//! The frames of shadow pages: those ready for use, and those that TLBs may still walk.

use crate::frames::{AllocError, Frames, Owner, Run, Use};
use crate::shadow::Shadowed;
use crate::shadow::lane::Gate;
use crate::shadow::pages::Body;
use alloc::vec::Vec;

/// The bodies of shadow pages.
pub struct Pool {
    pub owner: Owner,
    /// Bodies ready for use.
    pub spare: Vec<Body>,
    /// Bodies that TLBs may still walk.
    pub retired: Vec<Body>,
    /// Shadow pages and bodies, all told.
    pub bodies: u32,
    /// The number of them below which none is taken back because the host has no frames: frames are asked for instead.
    pub least: u32,
}

impl Pool {
    /// An empty pool, whose frames will be charged to `owner`.
    pub const fn new(owner: Owner) -> Self {
        Self { owner, spare: Vec::new(), retired: Vec::new(), bodies: 0, least: 0 }
    }

    /// All harts have forgotten the retired bodies: they are ready for use.
    pub fn flushed(&mut self) {
        self.spare.append(&mut self.retired);
    }

    /// Ends the pool: its frames.
    pub fn into_frames(self) -> impl Iterator<Item = Run> {
        self.spare.into_iter().chain(self.retired).flat_map(Body::runs)
    }

    /// Takes frames for one more body; with a header, if the lane may use it and four frames in a row are free; with one for the guest's own
    /// entries, if the engine has a stage below and there is a frame.
    ///
    /// # Errors
    /// If the host has no frames. Nothing is lost.
    pub fn take_body<S: Shadowed>(&mut self, gate: &mut Gate, frames: &Frames) -> Result<Option<Body>, AllocError> {
        // Four in a row are a convenience of the lane's: others will do.
        if gate.memory.is_some()
            && let Ok(run) = frames.alloc(self.owner, Use::Table, 2)
            && let Ok((front, back)) = run.split()
            && let (Ok((a, b)), Ok((c, d))) = (front.split(), back.split())
        {
            // The header is before the table. Were that always the second of four frames, all tables would share a quarter of the
            // sets of a cache.
            let (header, table, mirror, links) = match self.bodies % 3 {
                0 => (a, b, c, d),
                1 => (b, c, a, d),
                _ => (c, d, a, b),
            };
            self.bodies += 1;
            return Ok(Some(Body { table, mirror, links, header: Some(header), own: None }));
        }
        gate.all_have_headers = false;
        let take = || frames.alloc(self.owner, Use::Table, 0);
        let table = take()?;
        let mirror = take();
        let links = take();
        match (mirror, links) {
            (Ok(mirror), Ok(links)) => {
                self.bodies += 1;
                // Without it, comparisons take longer.
                let own = if S::COMPOSES { take().ok() } else { None };
                Ok(Some(Body { table, mirror, links, header: None, own }))
            }
            (Err(error), other) | (other, Err(error)) => {
                frames.free(table);
                other.into_iter().for_each(|run| frames.free(run));
                Err(error)
            }
        }
    }

    /// Bodies for a root, of those that [`Cache::prepare`] has set aside. Their tables follow one another.
    ///
    /// # Errors
    /// If the host has no frames in one piece. Nothing is lost.
    pub fn take_root<S: Shadowed>(&mut self, frames: &Frames) -> Result<Vec<Body>, AllocError> {
        let bodies = self.spare.split_off(self.spare.len() - S::ROOT_FRAMES);
        if S::ROOT_FRAMES == 1 {
            return Ok(bodies);
        }
        let release_table = |Body { table, mirror, links, header, own }| {
            frames.free(table);
            header.into_iter().for_each(|run| frames.free(run));
            (mirror, links, own)
        };
        let rest: Vec<(Run, Run, Option<Run>)> = bodies.into_iter().map(release_table).collect();
        match frames.alloc(self.owner, Use::Table, S::ROOT_FRAMES.ilog2() as u8) {
            Ok(tables) => {
                let first = tables.into_entry();
                let table = |n| Run::from_entry(first.add(n), 0);
                Ok((0..)
                    .zip(rest)
                    .map(|(n, (mirror, links, own))| Body { table: table(n), mirror, links, header: None, own })
                    .collect())
            }
            Err(error) => {
                self.bodies -= S::ROOT_FRAMES as u32;
                rest.into_iter()
                    .flat_map(|(mirror, links, own)| [Some(mirror), Some(links), own])
                    .flatten()
                    .for_each(|run| frames.free(run));
                Err(error)
            }
        }
    }
}
