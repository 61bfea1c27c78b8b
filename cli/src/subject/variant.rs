//! Variants: what guests are run under, for tests and benchmarks to go through.

use crate::machine::board::{HExtension, Seat};
use crate::vm::file::VmFile;
use abi::bundle::MmuMode;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The way in which guest memory is virtualized, and the kind of harts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Variant {
    /// The mode; `None`: Gnomon chooses.
    pub mmu: Option<MmuMode>,
    /// The harts' H extension.
    pub h: HExtension,
    /// Set if the fast lane serves fences. It matters only in modes that have a lane ([`MmuMode::has_lane`]).
    pub lane: bool,
}

impl Variant {
    /// Gnomon's own choice, on harts with H.
    pub const DEFAULT: Self = Self { mmu: None, h: HExtension::Present, lane: true };

    /// Everything that can be made of these and makes a difference in the seat.
    pub fn combine(seat: Seat, modes: &[Option<MmuMode>], h: &[HExtension], lane: &[bool]) -> Vec<Self> {
        let all = modes.iter().flat_map(move |mmu| {
            h.iter().flat_map(move |h| lane.iter().map(move |lane| Self { mmu: *mmu, h: *h, lane: *lane }))
        });
        all.filter(|variant| variant.exists_in(seat)).collect()
    }

    /// Returns whether the variant is possible in a seat, and differs from all others.
    fn exists_in(self, seat: Seat) -> bool {
        let needs_h = seat == Seat::Payload || self.mmu.is_some_and(|mode| !mode.works_without_h());
        let has_lane = self.mmu.is_some_and(MmuMode::has_lane);
        (self.h == HExtension::Present || !needs_h) && (self.lane || has_lane)
    }

    /// Its name: what differs from the default, such as `lazy-noh-nolane`; empty for the default.
    #[must_use]
    pub fn label(self) -> String {
        let mode = self.mmu.map(MmuMode::name);
        let h = (self.h == HExtension::Absent).then_some("noh");
        let lane = (!self.lane).then_some("nolane");
        [mode, h, lane].into_iter().flatten().collect::<Vec<_>>().join("-")
    }

    /// A VM of this variant.
    #[must_use]
    pub fn applied_to(self, vm: VmFile) -> VmFile {
        VmFile { mmu: self.mmu, lane: Some(self.lane), ..vm }
    }
}

/// Some of all variants: `lazy-noh` are those of mode `lazy` on harts without H.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Deserialize)]
#[serde(try_from = "String")]
pub struct Selector(Vec<Trait>);

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Trait {
    Mode(MmuMode),
    H(HExtension),
    Lane(bool),
}

impl TryFrom<String> for Selector {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let part = |part: &str| match part {
            "h" => Ok(Trait::H(HExtension::Present)),
            "noh" => Ok(Trait::H(HExtension::Absent)),
            "lane" => Ok(Trait::Lane(true)),
            "nolane" => Ok(Trait::Lane(false)),
            mode => mode
                .parse()
                .map(Trait::Mode)
                .map_err(|_| format!("`{part}` is not a variant: join a mode, h or noh, lane or nolane with `-`")),
        };
        let (mut parts, mut rest) = (Vec::new(), Some(&*text));
        while let Some(text) = rest {
            // A mode's name may have a `-` itself.
            let has =
                |name: &&str| text.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'));
            let mode = MmuMode::ALL.map(MmuMode::name).into_iter().find(has);
            let name = mode.or_else(|| text.split('-').next()).unwrap_or(text);
            parts.push(part(name)?);
            rest = text[name.len()..].strip_prefix('-');
        }
        Ok(Self(parts))
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |part: &Trait| match part {
            Trait::Mode(mode) => mode.name(),
            Trait::H(HExtension::Present) => "h",
            Trait::H(HExtension::Absent) => "noh",
            Trait::Lane(true) => "lane",
            Trait::Lane(false) => "nolane",
        };
        f.write_str(&self.0.iter().map(name).collect::<Vec<_>>().join("-"))
    }
}

impl Selector {
    /// Returns whether the selector selects the variant. A variant whose mode has no lane matches neither `lane` nor
    /// `nolane`.
    #[must_use]
    pub fn selects(&self, variant: Variant) -> bool {
        self.0.iter().all(|wanted| match *wanted {
            Trait::Mode(mode) => variant.mmu == Some(mode),
            Trait::H(h) => variant.h == h,
            Trait::Lane(lane) => variant.mmu.is_some_and(MmuMode::has_lane) && variant.lane == lane,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> Vec<Option<MmuMode>> {
        MmuMode::ALL.map(Some).to_vec()
    }

    const BOTH: [HExtension; 2] = [HExtension::Present, HExtension::Absent];

    fn labels(seat: Seat, modes: &[Option<MmuMode>]) -> Vec<String> {
        Variant::combine(seat, modes, &BOTH, &[true, false]).into_iter().map(Variant::label).collect()
    }

    #[test]
    fn what_cannot_be_is_left_out() {
        let firmware = [
            "two-stage",
            "shadow",
            "shadow-noh",
            "unsync",
            "unsync-noh",
            "lazy",
            "lazy-nolane",
            "lazy-noh",
            "lazy-noh-nolane",
            "steered",
            "steered-nolane",
            "steered-noh",
            "steered-noh-nolane",
            "adaptive",
            "adaptive-nolane",
        ];
        assert_eq!(labels(Seat::Firmware, &all()), firmware);
        let payload = [
            "two-stage",
            "shadow",
            "unsync",
            "lazy",
            "lazy-nolane",
            "steered",
            "steered-nolane",
            "adaptive",
            "adaptive-nolane",
        ];
        assert_eq!(labels(Seat::Payload, &all()), payload);
        assert_eq!(labels(Seat::Firmware, &[None]), ["", "noh"]);
    }

    #[test]
    fn selectors_select() {
        let chosen = |text: &str| {
            let selector = Selector::try_from(text.to_owned()).expect(text);
            let variants = Variant::combine(Seat::Firmware, &all(), &BOTH, &[true, false]);
            variants.into_iter().filter(|variant| selector.selects(*variant)).map(Variant::label).collect::<Vec<_>>()
        };
        assert_eq!(chosen("two-stage"), ["two-stage"]);
        assert_eq!(
            chosen("noh"),
            ["shadow-noh", "unsync-noh", "lazy-noh", "lazy-noh-nolane", "steered-noh", "steered-noh-nolane"]
        );
        assert_eq!(chosen("lazy-noh"), ["lazy-noh", "lazy-noh-nolane"]);
        assert_eq!(chosen("lane-h"), ["lazy", "steered", "adaptive"]);
        assert_eq!(
            chosen("nolane"),
            ["lazy-nolane", "lazy-noh-nolane", "steered-nolane", "steered-noh-nolane", "adaptive-nolane"]
        );
        assert_eq!(chosen("two-stage-noh"), [""; 0]);
        for bad in ["", "fast", "lazy-", "lazy noh"] {
            assert!(Selector::try_from(bad.to_owned()).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_vm_is_of_its_variant() {
        let variant = Variant { mmu: Some(MmuMode::Lazy), h: HExtension::Present, lane: false };
        let vm = variant.applied_to(VmFile::default());
        assert_eq!((vm.mmu, vm.lane), (Some(MmuMode::Lazy), Some(false)));
    }
}
