//! The base extension (SBI 2.0, chapter 4).

use super::encoding::Reply;
use super::legacy::EIDS as LEGACY;
use crate::vm::sbi_error::Error;
use abi::root_cache;
use sbi_spec::base::{self, UNAVAILABLE_EXTENSION, Version};
use sbi_spec::{dbcn, fwft, hsm, nacl, pmu, rfnc, spi, srst, sse, time};

/// Gnomon's implementation id: "gnom". The registered ids are below 0x100.
pub const IMPLEMENTATION: u64 = 0x676e_6f6d;
/// Gnomon's version: major in bits 31:16, minor in bits 15:0.
pub const IMPLEMENTATION_VERSION: u64 = 1;

const OFFERED: [usize; 10] = [
    base::EID_BASE,
    time::EID_TIME,
    spi::EID_SPI,
    rfnc::EID_RFNC,
    hsm::EID_HSM,
    srst::EID_SRST,
    dbcn::EID_DBCN,
    fwft::EID_FWFT,
    sse::EID_SSE,
    root_cache::EXTENSION,
];

/// The extensions that not all callers are offered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Offered {
    /// Nested acceleration, for hypervisors.
    pub(super) nacl: bool,
    /// Counters.
    pub(super) pmu: bool,
}

/// Handles a call. A probe of an extension that not all callers are offered is an error if `offered` is not given.
pub(super) fn call(function: usize, argument: u64, offered: Option<Offered>) -> Reply {
    match function {
        base::GET_SBI_SPEC_VERSION => Ok(((Version::V2_0.major() << 24) | Version::V2_0.minor()) as u64),
        base::GET_SBI_IMPL_ID => Ok(IMPLEMENTATION),
        base::GET_SBI_IMPL_VERSION => Ok(IMPLEMENTATION_VERSION),
        base::PROBE_EXTENSION => {
            let wanted = argument as usize;
            let found = match wanted {
                nacl::EID_NACL => offered.ok_or(Error::NotSupported)?.nacl,
                pmu::EID_PMU => offered.ok_or(Error::NotSupported)?.pmu,
                _ => OFFERED.contains(&wanted) || LEGACY.contains(&wanted),
            };
            Ok(if found { 1 } else { UNAVAILABLE_EXTENSION as u64 })
        }
        // Zero says "not implemented" for each of the three. A guest never learns the host's: some
        // kernels take ids as a list of errata, and the host has mended those already (a SiFive one
        // turns every fence by address into a global one).
        base::GET_MVENDORID | base::GET_MARCHID | base::GET_MIMPID => Ok(0),
        _ => Err(Error::NotSupported),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_two() {
        const NONE: Option<Offered> = Some(Offered { nacl: false, pmu: false });
        assert_eq!(call(base::GET_SBI_SPEC_VERSION, 0, NONE), Ok(0x0200_0000));
        assert_eq!(call(99, 0, NONE), Err(Error::NotSupported));
        assert_eq!(call(base::PROBE_EXTENSION, hsm::EID_HSM as u64, None), Ok(1));
        let probe = |eid: usize, offered| call(base::PROBE_EXTENSION, eid as u64, offered);
        for (eid, nacl, pmu) in [(nacl::EID_NACL, true, false), (pmu::EID_PMU, false, true)] {
            assert_eq!(probe(eid, Some(Offered { nacl, pmu })), Ok(1));
            assert_eq!((probe(eid, NONE), probe(eid, None)), (Ok(0), Err(Error::NotSupported)));
        }
    }
}
