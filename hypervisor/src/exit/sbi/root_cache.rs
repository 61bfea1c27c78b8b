//! The root cache's extension ([`abi::root_cache`]): a kernel shares a page with Gnomon, or does so no more.

use super::encoding::{Answer, Args, Reply, unreached};
use crate::gnomon::Gnomon;
use crate::hart::env::Env;
use crate::memory::root_cache;
use crate::vm::Unreachable;
use crate::vm::sbi_error::Error;
use crate::vm::vcpu::{RootCache, VcpuRun};
use abi::root_cache::{FLAGS_AT, GUEST_VERSION_AT, HOST_VERSION_AT, NO_PAGE, SET_PAGE, SIZE_AT, VERSION, places};
use alloc::boxed::Box;
use rv::{Addr, Gpa, PAGE_BYTES};

/// Handles a call; `None` if there is no such function.
pub(super) fn call<E: Env>(g: &Gnomon, run: &mut VcpuRun, function: usize, args: Args, env: &mut E) -> Option<Answer> {
    (function == SET_PAGE).then(|| match named(run, args) {
        Ok(Some(at)) => match share(g, run, at, env) {
            Ok(reply) => Answer::Reply(reply),
            Err(why) => unreached(g, run, why, Error::InvalidAddress),
        },
        Ok(None) => {
            run.root_cache = None;
            Answer::Reply(Ok(0))
        }
        Err(error) => Answer::Reply(Err(error)),
    })
}

/// Returns the page that a call names; `None` if it names none.
fn named(run: &VcpuRun, [low, high, flags, ..]: Args) -> Result<Option<Addr<Gpa>>, Error> {
    if flags != 0 {
        return Err(Error::InvalidParam);
    }
    if (low, high) == (NO_PAGE, NO_PAGE) {
        return Ok(None);
    }
    if low % PAGE_BYTES != 0 {
        return Err(Error::InvalidParam);
    }
    if high != 0 || !run.vm.in_ram(low, PAGE_BYTES) {
        return Err(Error::InvalidAddress);
    }
    Ok(Some(Addr::new(low)))
}

/// Shares a page, if the kernel's version of it is one that Gnomon knows, and the size is good. The page then has the
/// version that Gnomon knows, in any case.
fn share<E: Env>(g: &Gnomon, run: &mut VcpuRun, at: Addr<Gpa>, env: &mut E) -> Result<Reply, Unreachable> {
    let mut words = [0; FLAGS_AT as usize];
    run.vm.read(g, at, &mut words, &mut run.ready, env)?;
    let word = |at: u64| u32::from_le_bytes(core::array::from_fn(|n| words[at as usize + n]));
    let (version, size) = (word(GUEST_VERSION_AT), word(SIZE_AT));
    run.vm.write(g, at.wrapping_add(HOST_VERSION_AT), &VERSION.to_le_bytes(), &mut run.ready, env)?;
    if !(1..=VERSION).contains(&version) {
        return Ok(Err(Error::NotSupported));
    }
    let Some(places) = places(size) else { return Ok(Err(Error::InvalidParam)) };
    let config = &run.vm.config;
    // Where there are none, no kernel searches in vain.
    let places = if config.lane && g.offer.mode(config).has_lane() { places } else { 0 };
    let cache = RootCache::new(at, places, run.vm.translation.is_tagged());
    let (after_size, rest) = cache.begin();
    run.vm.write(g, after_size, &rest, &mut run.ready, env)?;
    run.root_cache = Some(Box::new(cache));
    root_cache::note(g, run, env);
    Ok(Ok(0))
}
