//! FWFT: which features there are, and what they may be set to.

use guests::sbi::{DENIED, DENIED_LOCKED, INVALID_PARAM, NOT_SUPPORTED, SUCCESS, call};
use guests::{Check, board, ensure, ensure_eq, hart, run, sbi};
use sbi_spec::fwft::{self, feature_type};

pub fn checks() {
    run("sbi/features-absent", absent);
    run("sbi/features-misaligned", misaligned);
    run("sbi/features-locked", locked);
}

const MISALIGNED: u64 = feature_type::MISALIGNED_EXC_DELEG as u64;

fn set(feature: u64, value: u64, flags: u64) -> i64 {
    call(fwft::EID_FWFT, fwft::SET, [feature, value, flags, 0, 0, 0]).0
}

fn get(feature: u64) -> (i64, u64) {
    call(fwft::EID_FWFT, fwft::GET, [feature, 0, 0, 0, 0, 0])
}

/// Features of extensions that the harts lack, and unassigned numbers.
fn absent() -> Check {
    ensure!(sbi::probe(fwft::EID_FWFT), "FWFT is missing");
    for feature in [feature_type::LANDING_PAD, feature_type::SHADOW_STACK, feature_type::DOUBLE_TRAP] {
        ensure_eq!(get(feature as u64).0, NOT_SUPPORTED, "get of feature {feature}");
        ensure_eq!(set(feature as u64, 0, 0), NOT_SUPPORTED, "set of feature {feature}");
    }
    if sbi::is_gnomon() {
        // The bare machine has Svadu; OpenSBI 1.5.1 does not know the other.
        for feature in [feature_type::PTE_AD_HW_UPDATING, feature_type::POINTER_MASKING_PMLEN] {
            ensure_eq!(get(feature as u64).0, NOT_SUPPORTED, "get of feature {feature}");
        }
    }
    for feature in [6, 0x3fff_ffff, 0x8000_0000, 0xbfff_ffff] {
        ensure_eq!(get(feature).0, DENIED, "get of feature {feature:#x}");
        ensure_eq!(set(feature, 1, 0), DENIED, "set of feature {feature:#x}");
    }
    Ok(())
}

fn misaligned() -> Check {
    ensure_eq!(get(MISALIGNED), (SUCCESS, 0), "delegation of misaligned exceptions at first");
    for value in [2, u64::from(u32::MAX), 1 << 32, u64::MAX] {
        ensure_eq!(set(MISALIGNED, value, 0), INVALID_PARAM, "value {value:#x}");
    }
    for flags in [2, 1 << 32, u64::MAX] {
        ensure_eq!(set(MISALIGNED, 1, flags), INVALID_PARAM, "flags {flags:#x}");
    }
    for value in [1, 0, 1, 0] {
        // Features are 32 bits wide.
        ensure_eq!(set(MISALIGNED | 1 << 40, value, 0), SUCCESS, "set to {value}");
        ensure_eq!(get(MISALIGNED), (SUCCESS, value), "set to {value}");
    }
    Ok(())
}

/// A lock is of the hart that made it, until it starts anew. The last check: it leaves this hart locked.
fn locked() -> Check {
    fn locks(_: u64) {
        let is_fresh = get(MISALIGNED).0 == SUCCESS && set(MISALIGNED, 1, 1) == SUCCESS;
        assert!(is_fresh, "the feature is locked at a start");
    }
    // OpenSBI 1.5.1 keeps a lock for ever.
    let lives = if sbi::is_gnomon() { 2 } else { 1 };
    for other in board().other_harts() {
        for _ in 0..lives {
            hart::start(other, locks, 0)?;
            hart::join(other)?;
        }
    }
    ensure_eq!(set(MISALIGNED, 1, 1), SUCCESS, "set and lock");
    for (value, flags) in [(0, 0), (1, 0), (1, 1)] {
        let error = set(MISALIGNED, value, flags);
        // OpenSBI 1.5.1 says "denied", as a draft did.
        let expected = if sbi::is_gnomon() { DENIED_LOCKED } else { DENIED };
        ensure_eq!(error, expected, "set of a locked feature to {value}");
    }
    ensure_eq!(get(MISALIGNED), (SUCCESS, 1), "the value");
    Ok(())
}
