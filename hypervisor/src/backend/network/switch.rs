//! The route of a frame: the knowledge of an Ethernet switch.
//!
//! A member's own address is fixed, and no other member can have it. The switch learns the other addresses that members
//! send by, a few for each: so whatever one of them sends, it takes nothing from the others' part of the table. An
//! address that one has used is that one's until it starts over; the world, which is all that is not on this machine,
//! may take one that a VM has only learned.

use abi::mac::Mac;
use alloc::vec::Vec;

/// The member that is the world: the host's network.
pub const WORLD: usize = 0;
/// Addresses that are learned of the world, and of each VM beside its own.
const MOST_OF_WORLD: usize = 32;
const MOST_OF_VM: usize = 4;

/// The route of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Route {
    /// The frame goes to that member.
    To(usize),
    /// The frame goes to all members except its sender.
    All,
    /// The frame goes nowhere: it is for its sender.
    Nowhere,
}

/// A frame claims the address of a group, or of another member, as its source.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Forged;

/// The members of the network, and their addresses.
#[derive(Debug)]
pub struct Switch {
    members: Vec<Member>,
    #[cfg(test)]
    broken: Option<Broken>,
}

#[derive(Debug)]
struct Member {
    own: Option<Mac>,
    /// The oldest first, which goes first when there is no room for more.
    learned: Vec<Mac>,
}

impl Member {
    fn new(own: Option<Mac>) -> Self {
        Self { own, learned: Vec::new() }
    }

    fn has(&self, mac: Mac) -> bool {
        self.own == Some(mac) || self.learned.contains(&mac)
    }

    fn learn(&mut self, mac: Mac) {
        let most = if self.own.is_none() { MOST_OF_WORLD } else { MOST_OF_VM };
        if self.learned.len() == most {
            self.learned.remove(0);
        }
        self.learned.push(mac);
    }
}

/// The ways in which tests break a switch, to see that they notice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Broken {
    /// The switch believes a frame's source.
    Believes,
    /// The switch sends a frame back to its sender.
    SendsBack,
    /// The switch lets members take an address that another one has used.
    GivesAway,
    /// The switch remembers the learned addresses of a member that has started over.
    Remembers,
}

impl Switch {
    /// Makes a switch with the world, and a member for each of these addresses, in their order.
    #[must_use]
    pub fn new(macs: impl IntoIterator<Item = Mac>) -> Self {
        let world = core::iter::once(None);
        Self {
            members: world.chain(macs.into_iter().map(Some)).map(Member::new).collect(),
            #[cfg(test)]
            broken: None,
        }
    }

    #[cfg(test)]
    fn is_broken(&self, how: Broken) -> bool {
        self.broken == Some(how)
    }

    #[cfg(not(test))]
    const fn is_broken(&self, _: Broken) -> bool {
        false
    }

    /// Returns a member's own address.
    #[must_use]
    pub fn own(&self, member: usize) -> Option<Mac> {
        self.members.get(member).and_then(|member| member.own)
    }

    /// Returns the member whose own address that is.
    #[must_use]
    pub fn owner(&self, mac: Mac) -> Option<usize> {
        self.members.iter().position(|member| member.own == Some(mac))
    }

    /// Returns the route of a member's frame. The frame's source address is learned.
    ///
    /// # Errors
    /// [`Forged`]: it goes nowhere, and nothing is learned.
    pub fn route(&mut self, from: usize, source: Mac, destination: Mac) -> Result<Route, Forged> {
        self.learn(from, source)?;
        if destination.is_group() {
            return Ok(Route::All);
        }
        Ok(match self.members.iter().position(|member| member.has(destination)) {
            Some(to) if to == from && !self.is_broken(Broken::SendsBack) => Route::Nowhere,
            Some(to) => Route::To(to),
            None => Route::All,
        })
    }

    fn learn(&mut self, from: usize, source: Mac) -> Result<(), Forged> {
        if !source.is_card() {
            return Err(Forged);
        }
        if let Some(owner) = self.members.iter().position(|member| member.has(source)) {
            let is_own = self.members[owner].own == Some(source);
            match owner {
                _ if owner == from => return Ok(()),
                _ if is_own && !self.is_broken(Broken::Believes) => return Err(Forged),
                _ if from != WORLD && !self.is_broken(Broken::GivesAway) => return Err(Forged),
                _ => self.members[owner].learned.retain(|mac| *mac != source),
            }
        }
        self.members[from].learn(source);
        Ok(())
    }

    /// Forgets what was learned of a member.
    pub fn forget(&mut self, member: usize) {
        if !self.is_broken(Broken::Remembers) {
            self.members[member].learned.clear();
        }
    }
}

#[cfg(test)]
mod tests;
