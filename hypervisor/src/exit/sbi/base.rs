//! The base extension (SBI 2.0, chapter 4).

use super::encoding::Reply;
use super::legacy::EIDS as LEGACY;
use crate::vm::sbi_error::Error;
use abi::root_cache;
use sbi_spec::base::{self, UNAVAILABLE_EXTENSION, Version};
use sbi_spec::{dbcn, fwft, hsm, nacl, rfnc, spi, srst, sse, time};

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

/// Handles a call. `offers_nacl`: whether the caller is offered what helps hypervisors. A probe of that is an error if it is not given.
pub(super) fn call(function: usize, argument: u64, offers_nacl: Option<bool>) -> Reply {
    match function {
        base::GET_SBI_SPEC_VERSION => Ok(((Version::V2_0.major() << 24) | Version::V2_0.minor()) as u64),
        base::GET_SBI_IMPL_ID => Ok(IMPLEMENTATION),
        base::GET_SBI_IMPL_VERSION => Ok(IMPLEMENTATION_VERSION),
        base::PROBE_EXTENSION => {
            let wanted = argument as usize;
            let found = match wanted {
                nacl::EID_NACL => offers_nacl.ok_or(Error::NotSupported)?,
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
        assert_eq!(call(base::GET_SBI_SPEC_VERSION, 0, Some(false)), Ok(0x0200_0000));
        assert_eq!(call(99, 0, Some(false)), Err(Error::NotSupported));
        assert_eq!(call(base::PROBE_EXTENSION, hsm::EID_HSM as u64, Some(false)), Ok(1));
        assert_eq!(call(base::PROBE_EXTENSION, 0x504d55, Some(false)), Ok(0));
        let nacl = |is_offered| call(base::PROBE_EXTENSION, nacl::EID_NACL as u64, Some(is_offered));
        assert_eq!((nacl(false), nacl(true)), (Ok(0), Ok(1)));
    }
}
