//! The subjects of measurements: the bare machine, Gnomon in each of its ways, and Linux KVM.

use crate::machine::board::{HExtension, Seat};
use crate::subject::variant::Variant;
use abi::bundle::MmuMode;
use abi::tunable::Id;
use abi::vmspace::Way;
use serde::{Serialize, Serializer};
use std::fmt;

/// A machine with or without a hypervisor, on which a guest runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Subject {
    /// The bare machine: OpenSBI and nothing else. Harts have no H extension, as guests see it.
    Native,
    /// A VM of Gnomon's.
    Gnomon(Gnomon),
    /// A VM of Linux KVM's, on harts with H.
    Kvm {
        /// Set if the host's transparent huge pages are on.
        superpages: bool,
    },
}

/// A way to run Gnomon.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Gnomon {
    /// The privilege mode of Gnomon.
    pub seat: Seat,
    /// The way in which memory is virtualized.
    pub variant: Variant,
    /// Set if guest memory may be mapped by 2 MiB leaves.
    pub superpages: bool,
    /// The tunable that is switched off.
    pub without: Option<Id>,
    /// The way in which the vkernel runs the programs, if it takes the place of the guest's kernel.
    pub vkernel: Option<Way>,
}

/// Parts of mode `steered`, each of which a tunable switches off (docs/tunables.md): so its worth shows. The lane is another, and a
/// variant of its own.
const PARTS: [Id; 4] = [Id::Steer, Id::Roots, Id::Globals, Id::Track];

/// Parts of `steered` that only matter where much memory is used.
const PARTS_OF_MEMORY: [Id; 1] = [Id::Coalesce];

/// The suffix of subjects without superpages.
const SMALL: &str = "-4k";

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let small = |superpages| if superpages { "" } else { SMALL };
        let name = match self {
            Self::Native => "native".to_owned(),
            Self::Gnomon(Gnomon { seat, variant, superpages, without, vkernel }) => {
                let without = without.map_or_else(String::new, |part| format!("-no{}", part.name()));
                let kernel = vkernel.map_or_else(String::new, |way| format!("-vkernel-{}", way.name()));
                format!("{}/{}{without}{kernel}{}", seat.name(), variant.label(), small(*superpages))
            }
            Self::Kvm { superpages } => format!("kvm{}", small(*superpages)),
        };
        f.pad(&name)
    }
}

impl Serialize for Subject {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl Subject {
    /// The name that it shares with the subjects of the same table.
    #[must_use]
    pub fn group(self) -> String {
        match self {
            Self::Native => "bare machine".into(),
            Self::Kvm { .. } => "Linux KVM".into(),
            Self::Gnomon(Gnomon { seat, variant, .. }) => {
                let h = if variant.h == HExtension::Present { "with" } else { "without" };
                format!("{} seat, harts {h} H", seat.name())
            }
        }
    }

    /// Its name within its group.
    #[must_use]
    pub fn short(self) -> String {
        match self {
            Self::Native => "native".into(),
            Self::Kvm { superpages: true } => "huge pages".into(),
            Self::Kvm { superpages: false } => "4 KiB pages".into(),
            Self::Gnomon(Gnomon { variant, superpages, without, vkernel, .. }) => {
                let without = without.map_or_else(String::new, |part| format!(", no {}", part.name()));
                let kernel = vkernel.map_or_else(String::new, |way| format!(", vkernel {}", way.name()));
                let lane = if variant.lane { "" } else { ", no lane" };
                let small = if superpages { "" } else { ", 4 KiB" };
                format!("{}{lane}{without}{kernel}{small}", variant.mmu.map_or("default", MmuMode::name))
            }
        }
    }

    /// The harts it runs on.
    #[must_use]
    pub const fn h(self) -> HExtension {
        match self {
            Self::Native => HExtension::Absent,
            Self::Gnomon(Gnomon { variant, .. }) => variant.h,
            Self::Kvm { .. } => HExtension::Present,
        }
    }

    /// Returns whether a privilege mode, by the meter's name for it, is the guest's.
    #[must_use]
    pub fn is_guest(self, mode: &str) -> bool {
        match self.h() {
            HExtension::Present => matches!(mode, "VS" | "VU"),
            HExtension::Absent => matches!(mode, "S" | "U"),
        }
    }

    /// Returns whether a user's word for subjects selects this one. The word is the subject's name or one of the groups
    /// `native`, `gnomon`, `kvm`, `firmware`, `payload`, `h`, `noh`.
    fn is_meant_by(self, word: &str) -> bool {
        let is_in_group = match self {
            Self::Native => word == "native",
            Self::Kvm { .. } => word == "kvm",
            Self::Gnomon(Gnomon { seat, variant, .. }) => {
                let h = if variant.h == HExtension::Present { "h" } else { "noh" };
                word == "gnomon" || word == seat.name() || word == h
            }
        };
        is_in_group || word == self.to_string()
    }
}

/// Which subjects are measured.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Choice {
    /// Words for subjects, see [`Choice::all`]; empty: all.
    pub words: Vec<String>,
    /// Gnomon's modes; empty: all.
    pub modes: Vec<MmuMode>,
    /// Only harts without H.
    pub no_h: bool,
    /// Gnomon's guests under Linux are promised Svadu, as KVM's are.
    pub svadu: bool,
}

/// Subjects that are of interest beside those of all experiments.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Extra {
    /// None.
    None,
    /// For the sake of whole walks, those that map guest memory by 4 KiB leaves only: mode `two-stage` in the firmware seat, and KVM.
    TwoStage,
    /// The default subjects, and mode `steered` without each of its parts.
    Parts,
    /// The subjects with 4 KiB leaves in every mode, and mode `steered` without what is for memory.
    Small,
    /// The vkernel in each of its ways, in place of the guest's kernel; of the others only those that it is compared with.
    Vkernel,
}

/// A word that means no subject.
#[derive(Debug, thiserror::Error, miette::Diagnostic)]
pub enum ChoiceError {
    /// There is none of the name.
    #[error("`{0}` is not a subject of the benchmarks")]
    #[diagnostic(help(
        "groups are native, gnomon, kvm, firmware, payload, h, noh; single subjects are named as in the tables, such as firmware/lazy-noh"
    ))]
    Unknown(String),
    /// All were ruled out.
    #[error("nothing to measure: no subject is left")]
    #[diagnostic(help(
        "mode `two-stage` and KVM need the H extension: leave out --no-h; `steered` and `adaptive` cannot promise Svadu: leave out --svadu; or \
         choose other modes or subjects"
    ))]
    Nothing,
    /// An experiment has none of those that are chosen.
    #[error("nothing to measure: `{0}` has none of the chosen subjects")]
    #[diagnostic(help(
        "`lane`, `memslots` and `share` have no KVM; `nested` and `memslots` have mode `two-stage` only; `fig6` promises Svadu, which `steered` and `adaptive` cannot; only fig7, gups, build, switching and processes have subjects with 4 KiB pages (-4k), and `gups` and the last two some without a part of `steered`; `vkernel` has modes `two-stage` and `lazy` in the firmware seat, and no KVM"
    ))]
    NotHere(&'static str),
}

impl Choice {
    /// Everything that there is, in the order of tables.
    #[must_use]
    pub fn all(extra: Extra) -> Vec<Subject> {
        if extra == Extra::Vkernel {
            return with_vkernel();
        }
        let modes = MmuMode::ALL.map(Some);
        let of = |seat, h| {
            Variant::combine(seat, &modes, &[h], &[true, false]).into_iter().flat_map(move |variant| {
                let has_small = match extra {
                    Extra::None | Extra::Vkernel => false,
                    Extra::TwoStage | Extra::Parts => variant.mmu == Some(MmuMode::TwoStage) && seat == Seat::Firmware,
                    Extra::Small => variant.lane && seat == Seat::Firmware,
                };
                let is_steered = variant.mmu == Some(MmuMode::Steered) && variant.lane;
                let parts: &[Id] = match extra {
                    Extra::Parts if is_steered && seat == Seat::Firmware => &PARTS,
                    Extra::Small if is_steered && seat == Seat::Firmware => &PARTS_OF_MEMORY,
                    _ => &[],
                };
                let gnomon = Gnomon { seat, variant, superpages: true, without: None, vkernel: None };
                let parts = parts.iter().map(move |part| Gnomon { without: Some(*part), ..gnomon });
                let small = has_small.then_some(Gnomon { superpages: false, ..gnomon });
                std::iter::once(gnomon).chain(small).chain(parts).map(Subject::Gnomon)
            })
        };
        let kvm: &[bool] = if extra == Extra::None { &[true] } else { &[true, false] };
        std::iter::once(Subject::Native)
            .chain(of(Seat::Firmware, HExtension::Present))
            .chain(of(Seat::Payload, HExtension::Present))
            .chain(of(Seat::Firmware, HExtension::Absent))
            .chain(kvm.iter().map(|&superpages| Subject::Kvm { superpages }))
            .collect()
    }

    /// Checks that each word means something and that something is left.
    ///
    /// # Errors
    /// [`ChoiceError`].
    pub fn check(&self) -> Result<(), ChoiceError> {
        let all = [Extra::Small, Extra::Parts, Extra::Vkernel].map(Self::all).concat();
        if let Some(word) = self.words.iter().find(|word| !all.iter().any(|subject| subject.is_meant_by(word))) {
            return Err(ChoiceError::Unknown(word.clone()));
        }
        // A choice of modes must leave more than the subjects of comparison.
        let is_wanted = |subject: &Subject| self.modes.is_empty() || matches!(subject, Subject::Gnomon(_));
        if all.iter().any(|subject| is_wanted(subject) && self.takes(*subject)) {
            Ok(())
        } else {
            Err(ChoiceError::Nothing)
        }
    }

    /// The text about Svadu in a report's line about versions and sizes.
    #[must_use]
    pub const fn promise(svadu: bool) -> &'static str {
        if svadu { "; Gnomon's guests are promised Svadu" } else { "" }
    }

    /// Returns whether the subject is chosen.
    #[must_use]
    pub fn takes(&self, subject: Subject) -> bool {
        let is_meant = self.words.is_empty() || self.words.iter().any(|word| subject.is_meant_by(word));
        let has_mode = match subject {
            Subject::Gnomon(gnomon) => {
                self.modes.is_empty() || gnomon.variant.mmu.is_some_and(|mode| self.modes.contains(&mode))
            }
            // A choice of modes selects Gnomon's subjects, and those of comparison.
            Subject::Native | Subject::Kvm { .. } => true,
        };
        let can_promise = match subject {
            Subject::Gnomon(gnomon) => !matches!(gnomon.variant.mmu, Some(MmuMode::Steered | MmuMode::Adaptive)),
            Subject::Native | Subject::Kvm { .. } => true,
        };
        is_meant && has_mode && (!self.no_h || subject.h() == HExtension::Absent) && (!self.svadu || can_promise)
    }

    /// The chosen ones of those that can take part in an experiment, in the order of tables.
    ///
    /// # Errors
    /// [`ChoiceError::NotHere`] if that is none.
    pub fn subjects(
        &self,
        experiment: &'static str,
        extra: Extra,
        can: impl Fn(&Subject) -> bool,
    ) -> Result<Vec<Subject>, ChoiceError> {
        let subjects: Vec<_> = Self::all(extra).into_iter().filter(|it| can(it) && self.takes(*it)).collect();
        if subjects.is_empty() { Err(ChoiceError::NotHere(experiment)) } else { Ok(subjects) }
    }
}

/// The vkernel in each of its ways, each after Debian's kernel in the same mode.
fn with_vkernel() -> Vec<Subject> {
    const KERNELS: [(MmuMode, HExtension, [Option<Way>; 3]); 3] = [
        (MmuMode::TwoStage, HExtension::Present, [None, Some(Way::Direct), Some(Way::Nested)]),
        (MmuMode::Lazy, HExtension::Present, [None, Some(Way::Direct), Some(Way::Soft)]),
        (MmuMode::Lazy, HExtension::Absent, [None, Some(Way::Direct), Some(Way::Soft)]),
    ];
    let of = |(mmu, h, ways): (MmuMode, HExtension, [Option<Way>; 3])| {
        let variant = Variant { mmu: Some(mmu), h, lane: true };
        ways.map(|vkernel| Gnomon { seat: Seat::Firmware, variant, superpages: true, without: None, vkernel })
    };
    std::iter::once(Subject::Native).chain(KERNELS.into_iter().flat_map(of).map(Subject::Gnomon)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(choice: &Choice, extra: Extra) -> Vec<String> {
        choice.subjects("test", extra, |_| true).expect("some").iter().map(ToString::to_string).collect()
    }

    #[test]
    fn all_subjects_have_names_of_their_own() {
        let all = names(&Choice::default(), Extra::Small);
        let mut once = all.clone();
        once.sort();
        once.dedup();
        assert_eq!(once.len(), all.len());
        assert_eq!(all.len(), 1 + (9 + 6 + 1) + 9 + (6 + 4 + 1) + 2);
        assert_eq!(names(&Choice::default(), Extra::TwoStage).len(), 1 + 9 + 1 + 6 + 9 + 2);
        assert_eq!(names(&Choice::default(), Extra::Parts).len(), 1 + (9 + 1 + 4) + (6 + 4) + 9 + 2);
        assert_eq!(names(&Choice::default(), Extra::None).len(), 1 + 9 + 6 + 9 + 1);
        let vkernel = names(&Choice::default(), Extra::Vkernel);
        assert_eq!(
            vkernel[..4],
            ["native", "firmware/two-stage", "firmware/two-stage-vkernel-direct", "firmware/two-stage-vkernel-nested"]
        );
        assert_eq!(vkernel[9], "firmware/lazy-noh-vkernel-soft");
    }

    #[test]
    fn words_and_modes_narrow() {
        let words =
            |words: &[&str]| Choice { words: words.iter().map(|&word| word.into()).collect(), ..Choice::default() };
        assert_eq!(names(&words(&["native", "kvm"]), Extra::TwoStage), ["native", "kvm", "kvm-4k"]);
        assert_eq!(names(&words(&["firmware/two-stage-4k"]), Extra::TwoStage), ["firmware/two-stage-4k"]);
        assert_eq!(names(&words(&["firmware/steered-noh-noroots"]), Extra::Parts), ["firmware/steered-noh-noroots"]);
        assert_eq!(names(&words(&["noh"]), Extra::None).len(), 6);
        let lazy = Choice { modes: vec![MmuMode::Lazy], no_h: true, ..Choice::default() };
        assert_eq!(names(&lazy, Extra::None), ["native", "firmware/lazy-noh", "firmware/lazy-noh-nolane"]);
        assert!(matches!(words(&["xen"]).check(), Err(ChoiceError::Unknown(word)) if word == "xen"));
        let none = Choice { no_h: true, ..words(&["kvm"]) };
        assert!(matches!(none.check(), Err(ChoiceError::Nothing)));
        // The bare machine would be left.
        let none = Choice { modes: vec![MmuMode::TwoStage], no_h: true, ..Choice::default() };
        assert!(matches!(none.check(), Err(ChoiceError::Nothing)));
        let none = Choice { modes: vec![MmuMode::Steered], svadu: true, ..Choice::default() };
        assert!(matches!(none.check(), Err(ChoiceError::Nothing)));
        assert_eq!(names(&Choice { no_h: true, svadu: true, ..Choice::default() }, Extra::None).len(), 5);
        let here = words(&["kvm"]).subjects("lane", Extra::None, |subject| !matches!(subject, Subject::Kvm { .. }));
        assert!(matches!(here, Err(ChoiceError::NotHere("lane"))));
        assert!(lazy.check().is_ok());
    }

    #[test]
    fn the_guests_modes_depend_on_h() {
        let of = |name: &str| Choice::all(Extra::Small).into_iter().find(|it| it.to_string() == name).expect(name);
        assert!(of("firmware/lazy").is_guest("VS") && !of("firmware/lazy").is_guest("S"));
        assert!(of("firmware/lazy-noh").is_guest("S") && !of("native").is_guest("M") && !of("kvm").is_guest("U"));
    }
}
