//! Core files: the sizes of a core's TLBs and walk caches, its quirks, and its costs, in TOML.
//!
//! Those of `meter/cores/` are built in. See docs/meter.md for the keys.

use crate::counts::MOST_CACHES;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// The core files that are built in.
const BUILT_IN: [(&str, &str); 8] = [
    ("u74", include_str!("../cores/u74.toml")),
    ("c910", include_str!("../cores/c910.toml")),
    ("p550", include_str!("../cores/p550.toml")),
    ("kunminghu", include_str!("../cores/kunminghu.toml")),
    ("rocket", include_str!("../cores/rocket.toml")),
    ("cva6", include_str!("../cores/cva6.toml")),
    ("plain", include_str!("../cores/plain.toml")),
    ("cached", include_str!("../cores/cached.toml")),
];

/// The name of the core that is modelled if none is asked for.
pub const DEFAULT: &str = "p550";

/// An error in the choice of a core. Each message says what to do.
#[derive(Debug, thiserror::Error)]
pub enum CoreError {
    /// No file of that name is built in.
    #[error("there is no core `{name}`; there are {known}, and paths of core files (with a slash or .toml)")]
    Unknown {
        /// The core that was asked for.
        name: String,
        /// The cores that exist.
        known: String,
    },
    /// The file cannot be read.
    #[error("cannot read the core file {path}: {why}; check the path")]
    Unreadable {
        /// The path.
        path: String,
        /// The system's message.
        why: std::io::Error,
    },
    /// The file is not a core file.
    #[error("the core file {path} is not valid: {why}; docs/meter.md lists the keys and their values")]
    Invalid {
        /// The path, or the name of a built-in core.
        path: String,
        /// The error, and its place.
        why: String,
    },
    /// The file is not TOML, or has not a core's keys.
    #[error("the core file {path} is not valid: {error}; docs/meter.md lists the keys and their values")]
    Malformed {
        /// The path, or the name of a built-in core.
        path: String,
        /// The parser's error, with its line.
        error: Box<toml::de::Error>,
    },
    /// Reports tell cores apart by their names.
    #[error("two cores are called `{0}`; give each another `name` in its core file, and name none twice")]
    Twice(String),
}

/// A core, as far as translation and its costs are concerned.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Core {
    /// Its name.
    pub name: String,
    /// A description of the core.
    pub about: String,
    /// True if TLB entries have an ASID. Where they have none, each switch of `satp` to another ASID drops
    /// all but global entries, as an operating system would have to.
    #[serde(default = "yes")]
    pub asids: bool,
    /// True if TLB entries have a VMID; otherwise each switch of `hgatp` to another VMID drops them.
    #[serde(default = "yes")]
    pub vmids: bool,
    /// The TLB of instruction fetches.
    pub l1i: Vec<ArraySpec>,
    /// The TLB of loads and stores.
    pub l1d: Vec<ArraySpec>,
    /// The TLB behind both; none if empty.
    #[serde(default)]
    pub l2: Vec<ArraySpec>,
    /// Which translations the L2 TLB serves.
    #[serde(default)]
    pub l2_serves: Serves,
    /// Caches of entries of `satp` and `vsatp` tables, in the page walker.
    #[serde(default)]
    pub walk_first: Vec<WalkCacheSpec>,
    /// Caches of entries of `hgatp` tables.
    #[serde(default)]
    pub walk_g: Vec<WalkCacheSpec>,
    /// True if a fence by address leaves cached pointers between tables alone, as it may.
    #[serde(default)]
    pub pointers_survive: bool,
    /// The costs.
    pub cost: Cost,
}

/// Which translations an L2 TLB serves.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Serves {
    /// All.
    #[default]
    All,
    /// Those by one stage with V=0, and those by both stages; not those by one stage with V=1.
    BothOrNone,
}

/// An array of entries.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ArraySpec {
    /// The sizes of the translations that its entries hold.
    pub pages: Vec<PageSize>,
    /// Sets, a power of two.
    #[serde(default = "one")]
    pub sets: usize,
    /// Ways of each set.
    pub ways: usize,
    /// Neighbouring pages that share an entry's tag, at most 8.
    #[serde(default = "one")]
    pub sectors: usize,
    /// Which entry makes room.
    #[serde(default)]
    pub replacement: Replacement,
    /// True if it holds a piece of a translation that is larger than its pages.
    #[serde(default = "yes")]
    pub pieces: bool,
    /// The source of the figures.
    pub source: String,
    /// True if they are a guess.
    #[serde(default)]
    pub guess: bool,
}

/// A cache of a walker's.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WalkCacheSpec {
    /// The kind of its entries.
    pub holds: Holds,
    /// True if one reference brings in all entries of its cache line that are of the kind.
    #[serde(default)]
    pub fills_line: bool,
    /// The array. A pointer to a table counts as a page of the size that the table maps.
    #[serde(flatten)]
    pub array: ArraySpec,
}

/// The kind of a walk cache's entries.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Holds {
    /// Pointers to tables.
    Pointers,
    /// Leaves.
    Leaves,
}

/// A size that the page-table formats know.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Deserialize, Serialize)]
#[expect(missing_docs, reason = "they say it themselves")]
pub enum PageSize {
    #[serde(rename = "4K")]
    K4,
    #[serde(rename = "64K")]
    K64,
    #[serde(rename = "2M")]
    M2,
    #[serde(rename = "1G")]
    G1,
    #[serde(rename = "512G")]
    G512,
    #[serde(rename = "256T")]
    T256,
}

impl PageSize {
    /// All, the smallest first.
    pub const ALL: [Self; 6] = [Self::K4, Self::K64, Self::M2, Self::G1, Self::G512, Self::T256];

    /// The name in core files and reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::K4 => "4K",
            Self::K64 => "64K",
            Self::M2 => "2M",
            Self::G1 => "1G",
            Self::G512 => "512G",
            Self::T256 => "256T",
        }
    }

    /// log2 of its base pages.
    #[must_use]
    pub const fn span(self) -> u8 {
        match self {
            Self::K4 => 0,
            Self::K64 => 4,
            Self::M2 => 9,
            Self::G1 => 18,
            Self::G512 => 27,
            Self::T256 => 36,
        }
    }
}

/// Which entry makes room for a new one, when none is free.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Replacement {
    /// The least recently used.
    #[default]
    Lru,
    /// The one that a tree of bits points to (pseudo-LRU); the ways are a power of two.
    Plru,
    /// Any, by a fixed sequence of pseudo-random numbers.
    Random,
}

/// Costs in cycles. All of them can be changed, and reports have the counts beside the result.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cost {
    /// An instruction that does not miss.
    pub instruction: f64,
    /// A translation that the L2 TLB has.
    pub l2_hit: f64,
    /// A trap, and the return from it, without the handler's instructions.
    pub trap: f64,
    /// A fence.
    pub fence: f64,
    /// A write of `satp`, `vsatp` or `hgatp`.
    pub root_switch: f64,
    /// Data caches, the nearest first.
    pub cache: Vec<CacheSpec>,
    /// A reference that no cache has.
    pub memory: f64,
    /// The source of the figures.
    pub source: String,
    /// True if they are a guess.
    #[serde(default)]
    pub guess: bool,
}

/// A data cache, as the page walker sees it.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CacheSpec {
    /// Its name.
    pub name: String,
    /// KiB.
    pub kib: usize,
    /// Ways.
    pub ways: usize,
    /// Cycles of a reference that it has.
    pub cycles: f64,
    /// The part of it that entries of page tables are taken to hold: the meter does not see what else
    /// is cached.
    pub share: f64,
}

/// Bytes of a cache line.
pub const LINE_BYTES: usize = 64;

impl CacheSpec {
    /// The array of lines that are left for entries of page tables.
    #[must_use]
    pub fn array(&self) -> ArraySpec {
        let lines = (self.kib as f64 * 1024.0 * self.share) as usize / LINE_BYTES;
        let sets = (lines / self.ways).max(1);
        // The greatest power of two that fits.
        let sets = 1 << sets.ilog2();
        ArraySpec {
            pages: vec![PageSize::K4],
            sets,
            ways: self.ways,
            sectors: 1,
            replacement: Replacement::Lru,
            pieces: true,
            source: String::new(),
            guess: true,
        }
    }
}

impl Core {
    /// The core with this name, or of the file at this path.
    ///
    /// # Errors
    /// [`CoreError`].
    pub fn find(name: &str) -> Result<Self, CoreError> {
        if let Some((_, text)) = BUILT_IN.iter().find(|(known, _)| *known == name) {
            return Self::parse(name, text);
        }
        if !name.contains('/') && Path::new(name).extension().is_none_or(|extension| extension != "toml") {
            return Err(CoreError::Unknown { name: name.into(), known: Self::names().collect::<Vec<_>>().join(", ") });
        }
        let text = std::fs::read_to_string(name).map_err(|why| CoreError::Unreadable { path: name.into(), why })?;
        Self::parse(name, &text)
    }

    /// The names of those that are built in.
    pub fn names() -> impl Iterator<Item = &'static str> {
        BUILT_IN.iter().map(|(name, _)| *name)
    }

    /// Finds several, in the same order.
    ///
    /// # Errors
    /// [`CoreError`].
    pub fn find_all<'a>(names: impl IntoIterator<Item = &'a str>) -> Result<Vec<Self>, CoreError> {
        let mut cores: Vec<Self> = Vec::new();
        for name in names {
            let core = Self::find(name)?;
            if cores.iter().any(|other| other.name == core.name) {
                return Err(CoreError::Twice(core.name));
            }
            cores.push(core);
        }
        Ok(cores)
    }

    /// Reads a core file.
    ///
    /// # Errors
    /// [`CoreError::Malformed`], or [`CoreError::Invalid`].
    pub fn parse(path: &str, text: &str) -> Result<Self, CoreError> {
        let invalid = |why: String| CoreError::Invalid { path: path.into(), why };
        let malformed = |error| CoreError::Malformed { path: path.into(), error: Box::new(error) };
        let core: Self = toml::from_str(text).map_err(malformed)?;
        core.check().map_err(invalid)?;
        Ok(core)
    }

    fn check(&self) -> Result<(), String> {
        for (what, arrays) in [("l1i", &self.l1i), ("l1d", &self.l1d), ("l2", &self.l2)] {
            for array in arrays {
                array.check().map_err(|why| format!("`{what}`: {why}"))?;
            }
        }
        for (what, tlb) in [("l1i", &self.l1i), ("l1d", &self.l1d)] {
            // What an L1 TLB cannot hold would be walked for at each access.
            let holds = |span: u8| {
                let own = |size: &PageSize| size.span() == span;
                let piece = |size: &PageSize| size.span() <= span;
                tlb.iter()
                    .any(|array| array.pages.iter().any(|size| if array.pieces { piece(size) } else { own(size) }))
            };
            if let Some(size) = PageSize::ALL.iter().find(|size| !holds(size.span())) {
                return Err(format!("`{what}`: no array holds pages of {}, nor pieces of them", size.name()));
            }
        }
        for (what, caches) in [("walk_first", &self.walk_first), ("walk_g", &self.walk_g)] {
            for cache in caches {
                cache.array.check().map_err(|why| format!("`{what}`: {why}"))?;
                if cache.holds == Holds::Pointers && cache.array.pages.contains(&PageSize::K4) {
                    return Err(format!("`{what}`: no pointer leads to a single page of 4K"));
                }
            }
        }
        if self.cost.cache.len() > MOST_CACHES {
            return Err(format!("`cost.cache`: there are {}, and at most {MOST_CACHES} can be", self.cost.cache.len()));
        }
        for cache in &self.cost.cache {
            if !(cache.share > 0.0 && cache.share <= 1.0 && cache.kib > 0 && cache.ways > 0) {
                return Err(format!(
                    "`cost.cache` {}: `share` is in 0..1, `kib` and `ways` are more than 0",
                    cache.name
                ));
            }
        }
        let cost = &self.cost;
        let all = [cost.instruction, cost.l2_hit, cost.trap, cost.fence, cost.root_switch, cost.memory];
        if all
            .iter()
            .chain(cost.cache.iter().map(|cache| &cache.cycles))
            .any(|cycles| !cycles.is_finite() || *cycles < 0.0)
        {
            return Err("`cost`: cycles are numbers from 0".into());
        }
        Ok(())
    }
}

impl ArraySpec {
    fn check(&self) -> Result<(), String> {
        let Self { sets, ways, sectors, .. } = *self;
        match () {
            () if self.pages.is_empty() => Err("`pages` is empty".into()),
            () if !sets.is_power_of_two() => Err(format!("`sets` is {sets}, and has to be a power of two")),
            () if ways == 0 || sets.saturating_mul(ways) > 1 << 20 => Err(format!("`ways` cannot be {ways}")),
            () if !matches!(sectors, 1 | 2 | 4 | 8) => {
                Err(format!("`sectors` is {sectors}, and has to be 1, 2, 4 or 8"))
            }
            () if sectors > 1 && self.pages.len() > 1 => Err("`sectors` are for pages of one size".into()),
            () if self.replacement == Replacement::Plru && (!ways.is_power_of_two() || ways > 64) => {
                Err(format!("`replacement` by `plru` needs `ways` that are a power of two up to 64, not {ways}"))
            }
            () => Ok(()),
        }
    }

    /// Returns whether the entry that makes room is never the last one that was used.
    #[must_use]
    pub fn keeps_recent(&self) -> bool {
        self.ways > 1 && self.replacement != Replacement::Random
    }

    /// Returns whether translations of this size are its own.
    #[must_use]
    pub fn takes(&self, span: u8) -> bool {
        self.pages.iter().any(|size| size.span() == span)
    }
}

const fn yes() -> bool {
    true
}

const fn one() -> usize {
    1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn built_in_cores_are_valid() {
        for name in Core::names() {
            let core = Core::find(name).unwrap_or_else(|why| panic!("{why}"));
            assert_eq!(core.name, name);
        }
        assert!(Core::find(DEFAULT).is_ok());
    }

    #[test]
    fn errors_say_what_and_where() {
        let message = |name: &str| Core::find(name).expect_err("no core").to_string();
        assert!(message("z80").contains("`z80`") && message("z80").contains("rocket"));
        assert!(message("./none.toml").contains("cannot read the core file ./none.toml"));
        let good = include_str!("../cores/plain.toml");
        let broken = |from: &str, to: &str| {
            assert!(good.contains(from), "{from}");
            Core::parse("x.toml", &good.replacen(from, to, 1)).expect_err("broken").to_string()
        };
        assert!(broken("ways = 32", "wys = 32").contains("wys"));
        assert!(broken("ways = 32", "ways = 0").contains("`l1i`: `ways` cannot be 0"));
        assert!(broken("ways = 32", "ways = 48\nsets = 3").contains("power of two"));
        assert!(broken("ways = 32", "ways = 48\nreplacement = \"plru\"").contains("plru"));
        assert!(broken("pages = [\"4K\"", "pages = [\"5K\"").contains("5K"));
        assert!(broken("pages = [\"4K\", ", "pages = [").contains("no array holds pages of 4K"));
        let whole = "pages = [\"4K\", \"2M\"]\npieces = false";
        let all = "pages = [\"4K\", \"64K\", \"2M\", \"1G\", \"512G\", \"256T\"]";
        assert!(broken(all, whole).contains("no array holds pages of 64K"));
        assert!(broken("share = 0.25", "share = 2").contains("share"));
        let caches = "[[cost.cache]]\nname = \"L\"\nkib = 1\nways = 1\ncycles = 1\nshare = 1\n".repeat(4);
        assert!(Core::parse("x", &format!("{good}\n{caches}")).expect_err("many").to_string().contains("at most 4"));
        let walker = "[[walk_g]]\nholds = \"leaves\"\npages = [\"4K\"]\nways = 4\nsource = \"s\"\n";
        assert!(Core::parse("x", &format!("{good}\n{walker}")).is_ok());
        let unknown = Core::parse("x", &format!("{good}\n{walker}set = 4\n")).expect_err("no such key").to_string();
        assert!(unknown.contains("`set`"), "{unknown}");
        assert!(Core::find_all(["plain", "u74", "plain"]).expect_err("twice").to_string().contains("`plain`"));
    }

    #[test]
    fn a_share_of_a_cache_is_a_cache() {
        let cache = CacheSpec { name: "L1".into(), kib: 32, ways: 8, cycles: 3.0, share: 0.25 };
        assert_eq!((cache.array().sets, cache.array().ways), (16, 8));
    }
}
