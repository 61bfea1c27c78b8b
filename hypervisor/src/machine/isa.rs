//! Extensions: those that a hart has, and those that a guest may be told of.

use alloc::collections::BTreeSet;
use alloc::string::{String, ToString};

/// The extensions of a hart, by lower-case name, with the block sizes some of them need.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Isa {
    names: BTreeSet<String>,
    /// `riscv,cbom-block-size` in bytes, 0 if unknown.
    pub cbom_block: u32,
    /// `riscv,cboz-block-size` in bytes, 0 if unknown.
    pub cboz_block: u32,
    /// `riscv,cbop-block-size` in bytes, 0 if unknown.
    pub cbop_block: u32,
}

/// Extensions that work in a guest as they do on the hart, with nothing for the hypervisor to do
/// beyond what it does. Anything not listed is withheld: a guest is never promised a feature that
/// was not thought about. Left out on purpose: `h` (on request only:
/// [`Isa::with_hypervisor`]), `svadu` (on request only:
/// [`Isa::with_svadu`]), `smaia`/`ssaia`, `sscofpmf`
/// (SBI PMU's counters raise no interrupt when they overflow), `smstateen`, `zkr` and with it `zk` (no guest can reach the `seed` CSR), `q`
/// (only the D registers are saved), and `svpbmt` (an uncached alias would show what an earlier owner
/// left in memory behind the caches).
const PASSED_ON: &str = "\
    i m a f d c b v zic64b zicbom zicbop zicboz ziccamoa ziccif zicclsm ziccrse zicntr zicond zicsr zifencei \
    zihintntl zihintpause zimop zmmul za64rs zaamo zabha zacas zalrsc zawrs zfa zfbfmin zfh zfhmin zca zcb zcd \
    zcmop zba zbb zbc zbkb zbkc zbkx zbs zkn zknd zkne zknh zks zksed zksh zkt ztso zvbb zvbc zve32f zve32x \
    zve64d zve64f zve64x zvfbfmin zvfbfwma zvfh zvfhmin zvkb zvkg zvkn zvknc zvkned zvkng zvknha zvknhb zvks \
    zvksc zvksed zvksg zvksh zvkt sscounterenw ssccptr sstvala sstvecd ssu64xl svade svinval svnapot svvptc";

impl Isa {
    /// Makes an ISA from the names of `riscv,isa-extensions`.
    pub fn from_names<'a>(names: impl Iterator<Item = &'a str>) -> Self {
        Self { names: names.map(str::to_string).collect(), ..Self::default() }
    }

    /// Makes an ISA from a `riscv,isa` string such as `rv64imafdch_zicbom_sstc`. Version numbers are ignored.
    #[must_use]
    pub fn from_isa_string(text: &str) -> Self {
        let text = text.to_ascii_lowercase();
        let mut parts = text.split('_');
        let mut isa = Self::default();
        let base = parts.next().unwrap_or("");
        let letters = base.strip_prefix("rv64").unwrap_or("");
        // Multi-letter names may follow the single letters without an underscore.
        let singles = letters.find(['z', 's', 'x']).unwrap_or(letters.len());
        for letter in letters[..singles].chars().filter(char::is_ascii_alphabetic) {
            if letter == 'g' {
                isa.names.extend(["i", "m", "a", "f", "d", "zicsr", "zifencei"].map(String::from));
            } else {
                isa.names.insert(letter.to_string());
            }
        }
        let rest = (singles < letters.len()).then(|| &letters[singles..]);
        for name in rest.into_iter().chain(parts) {
            isa.names.insert(without_version(name).to_string());
        }
        isa
    }

    /// Returns whether the hart has the extension of this lower-case name.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.names.contains(name)
    }

    /// Keeps what both have.
    pub fn intersect(&mut self, other: &Isa) {
        self.names.retain(|n| other.has(n));
        for (mine, theirs) in [
            (&mut self.cbom_block, other.cbom_block),
            (&mut self.cboz_block, other.cboz_block),
            (&mut self.cbop_block, other.cbop_block),
        ] {
            if *mine != theirs {
                *mine = 0;
            }
        }
    }

    /// Returns the ISA that a guest is told: the extensions that pass through, and of those that a control bit can
    /// withhold (`sstc`, `zicbom`, `zicboz`), the ones that `granted` names. Floating point comes with D and vectors
    /// with V or not at all: those are the registers that are saved. Zicbom and Zicboz come with the sizes of their blocks
    /// or not at all: a kernel cannot use them without.
    #[must_use]
    pub fn for_guest(&self, granted: &[&str]) -> Isa {
        const GATED: &[&str] = &["sstc", "zicbom", "zicboz"];
        let is_saved = |name: &str| {
            let needs_d = name == "f" || name.starts_with("zf") || name == "zcd" || name == "zcf";
            (self.has("d") || !needs_d) && (self.has("v") || !name.starts_with("zv"))
        };
        let has_block = |name: &str| match name {
            "zicbom" => self.cbom_block.is_power_of_two(),
            "zicboz" => self.cboz_block.is_power_of_two(),
            _ => true,
        };
        let names = self.names.iter().filter(|n| {
            let name = n.as_str();
            let is_known =
                if GATED.contains(&name) { granted.contains(&name) } else { PASSED_ON.split(' ').any(|p| p == name) };
            is_known && is_saved(name) && has_block(name)
        });
        Isa { names: names.cloned().collect(), ..self.clone() }
    }

    /// Returns the ISA that a guest on shadow tables is told, with Gnomon's MMU in the place of the hart's. Gnomon's
    /// MMU has neither Svnapot nor Svpbmt. Svvptc needs nothing of the hart's, because an access that finds an entry
    /// invalid looks again. `svvptc` says whether the guest may know of it.
    #[must_use]
    pub fn shadowed(&self, svvptc: bool) -> Isa {
        let mut isa = self.clone();
        isa.set("svnapot", false);
        isa.set("svvptc", svvptc);
        isa
    }

    /// Returns the ISA with A and D set by the hardware (`svadu`), or by the guest. A guest cannot ask for the other:
    /// SBI FWFT does not have that feature here.
    #[must_use]
    pub fn with_svadu(&self, svadu: bool) -> Isa {
        let mut isa = self.clone();
        isa.set("svade", !svadu);
        isa.set("svadu", svadu);
        isa
    }

    /// Returns the ISA, without Svvptc unless `svvptc`.
    #[must_use]
    pub fn with_svvptc(&self, svvptc: bool) -> Isa {
        let mut isa = self.clone();
        isa.set("svvptc", svvptc && self.has("svvptc"));
        isa
    }

    /// Returns the ISA with or without the hypervisor extension.
    #[must_use]
    pub fn with_hypervisor(&self, has: bool) -> Isa {
        let mut isa = self.clone();
        isa.set("h", has);
        isa
    }

    fn set(&mut self, name: &str, has: bool) {
        if has {
            self.names.insert(name.to_string());
        } else {
            self.names.remove(name);
        }
    }

    /// Returns the names in canonical order: `i`, the other single letters, then `z…`, then `s…`.
    pub fn ordered(&self) -> impl Iterator<Item = &str> {
        const LETTERS: &str = "imafdqlcbkjtpvh";
        let rank = |name: &str| match name.len() {
            1 => (0, LETTERS.find(name).unwrap_or(99)),
            _ => (if name.starts_with('z') { 1 } else { 2 }, 0),
        };
        let mut names: alloc::vec::Vec<&str> = self.names.iter().map(String::as_str).collect();
        names.sort_by_key(|n| rank(n));
        names.into_iter()
    }

    /// Returns the `riscv,isa` string.
    #[must_use]
    pub fn isa_string(&self) -> String {
        let mut text = String::from("rv64");
        for name in self.ordered() {
            if name.len() > 1 {
                text.push('_');
            }
            text.push_str(name);
        }
        text
    }
}

fn without_version(name: &str) -> &str {
    // `zba1p0` names version 1.0; a plain trailing digit (`zve64`) belongs to the name.
    let trimmed = name.trim_end_matches(|c: char| c.is_ascii_digit());
    match trimmed.strip_suffix('p') {
        Some(major) if trimmed.len() < name.len() && major.ends_with(|c: char| c.is_ascii_digit()) => {
            major.trim_end_matches(|c: char| c.is_ascii_digit())
        }
        _ => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn isa_strings_are_read() {
        let isa = Isa::from_isa_string("rv64imafdch_zicbom_zba1p0_sstc_zve64x");
        for name in ["i", "m", "h", "zicbom", "zba", "sstc", "zve64x"] {
            assert!(isa.has(name), "{name}");
        }
        assert!(Isa::from_isa_string("rv64gczba_zbb").has("zba"));
        assert!(Isa::from_isa_string("rv64gc").has("d"));
        assert!(!Isa::from_isa_string("").has("i"));
    }

    #[test]
    fn cache_blocks_are_offered_with_their_sizes_only() {
        let offered = |cbom_block, cboz_block| {
            let host = Isa { cbom_block, cboz_block, ..Isa::from_isa_string("rv64i_zicbom_zicbop_zicboz") };
            host.for_guest(&["zicbom", "zicboz"]).isa_string()
        };
        assert_eq!(offered(64, 32), "rv64i_zicbom_zicbop_zicboz");
        assert_eq!(offered(0, 64), "rv64i_zicbop_zicboz");
        assert_eq!(offered(64, 0), "rv64i_zicbom_zicbop");
        assert_eq!(offered(48, 0), "rv64i_zicbop", "no block has 48 bytes");
        // Harts that differ have no common size.
        let mut common = Isa { cboz_block: 64, ..Isa::from_isa_string("rv64i_zicboz") };
        common.intersect(&Isa { cboz_block: 32, ..common.clone() });
        assert_eq!(common.for_guest(&["zicboz"]).isa_string(), "rv64i");
    }

    #[test]
    fn a_guest_is_told_only_what_holds() {
        let mut host = Isa::from_isa_string("rv64imafdch_sstc_svadu_svpbmt_ssaia_zicboz_zbb_zkr_zve64x_xmystery");
        host.cboz_block = 64;
        let guest = host.for_guest(&["sstc", "zicboz"]);
        assert_eq!(guest.isa_string(), "rv64imafdc_zbb_zicboz_sstc");
        let small = Isa::from_isa_string("rv64imafc_zfh_zbb").for_guest(&[]);
        assert_eq!(small.isa_string(), "rv64imac_zbb", "F alone is not saved");
    }
}
