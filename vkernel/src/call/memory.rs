//! Calls about the program's memory.

use super::Args;
use crate::errno::{Errno, Result};
use crate::machine;
use crate::memory::frames::PAGE;
use crate::memory::space::{Name, Place, Region, Remap, Rights, Source, USER_END, shared_memory};
use crate::task::Task;
use linux_raw_sys::general as linux;

const PAGE_U64: u64 = PAGE as u64;

fn rights(protection: u64) -> Rights {
    let has = |flag: u32| protection & u64::from(flag) != 0;
    let mut rights = Rights::empty();
    // W without R is reserved in a leaf.
    rights.set(Rights::R, has(linux::PROT_READ) || has(linux::PROT_WRITE));
    rights.set(Rights::W, has(linux::PROT_WRITE));
    rights.set(Rights::X, has(linux::PROT_EXEC));
    rights
}

pub(super) fn map(task: &Task, [at, bytes, protection, flags, fd, offset]: Args) -> Result<u64> {
    let has = |flag: u32| flags & u64::from(flag) != 0;
    let is_shared = match flags & u64::from(linux::MAP_TYPE) {
        kind if kind == u64::from(linux::MAP_PRIVATE) => false,
        kind if kind == u64::from(linux::MAP_SHARED) || kind == u64::from(linux::MAP_SHARED_VALIDATE) => true,
        _ => return Err(Errno::INVAL),
    };
    if offset % PAGE_U64 != 0 || bytes == 0 {
        return Err(Errno::INVAL);
    }
    if bytes > USER_END {
        return Err(Errno::NOMEM);
    }
    let mut may_store = true;
    let (source, name) = if has(linux::MAP_ANONYMOUS) {
        (if is_shared { shared_memory(bytes) } else { Source::Anonymous }, Name::Anonymous)
    } else {
        let file = task.file(fd)?;
        let node = file.node().map_err(|_| Errno::NODEV)?;
        let needs_write = is_shared && protection & u64::from(linux::PROT_WRITE) != 0;
        if !file.is_readable() || needs_write && !file.is_writable() {
            return Err(Errno::ACCES);
        }
        may_store = !is_shared || file.is_writable();
        let object = node.object().ok_or(Errno::NODEV)?;
        // Stores would not reach the host.
        if is_shared && may_store && object.is_cache() {
            return Err(Errno::INVAL);
        }
        let path = file.place.as_ref().map_or("".into(), |place| place.path(&task.position().root));
        (Source::Object(object, offset / PAGE_U64), Name::File(path.as_str().into()))
    };
    let place = if has(linux::MAP_FIXED_NOREPLACE) {
        Place::IfFree(at)
    } else if has(linux::MAP_FIXED) {
        Place::Exactly(at)
    } else {
        Place::Anywhere(at)
    };
    let region = Region { is_shared, may_store, source, name, ..Region::anonymous(bytes, rights(protection)) };
    let start = task.space.map(place, region)?;
    if has(linux::MAP_POPULATE) && !rights(protection).is_empty() {
        let access = if protection & u64::from(linux::PROT_WRITE) != 0 { Rights::W } else { Rights::R };
        for page in 0..bytes.div_ceil(PAGE_U64) {
            if task.space.ensure(start + page * PAGE_U64, access).is_err() {
                break;
            }
        }
    }
    Ok(start)
}

pub(super) fn protect(task: &Task, [at, bytes, protection, ..]: Args) -> Result<u64> {
    const KNOWN: u32 =
        linux::PROT_READ | linux::PROT_WRITE | linux::PROT_EXEC | linux::PROT_GROWSDOWN | linux::PROT_GROWSUP;
    if protection & !u64::from(KNOWN) != 0 {
        return Err(Errno::INVAL);
    }
    task.space.protect(at, bytes, rights(protection)).map(|()| 0)
}

pub(super) fn remap(task: &Task, [at, old, new, flags, to, _]: Args) -> Result<u64> {
    const KNOWN: u32 = linux::MREMAP_MAYMOVE | linux::MREMAP_FIXED | linux::MREMAP_DONTUNMAP;
    let has = |flag: u32| flags & u64::from(flag) != 0;
    if flags & !u64::from(KNOWN) != 0 || has(linux::MREMAP_DONTUNMAP) && !has(linux::MREMAP_MAYMOVE) {
        return Err(Errno::INVAL);
    }
    let to = match (has(linux::MREMAP_MAYMOVE), has(linux::MREMAP_FIXED)) {
        (false, true) => return Err(Errno::INVAL),
        (true, true) => Remap::To(to),
        (true, false) => Remap::Anywhere,
        (false, false) => Remap::InPlace,
    };
    task.space.remap(at, old, new, to, has(linux::MREMAP_DONTUNMAP))
}

pub(super) fn advise(task: &Task, [at, bytes, advice, ..]: Args) -> Result<u64> {
    match advice as u32 {
        linux::MADV_DONTNEED | linux::MADV_FREE => task.space.discard(at, bytes).map(|()| 0),
        linux::MADV_NORMAL..=linux::MADV_WILLNEED
        | linux::MADV_DONTFORK
        | linux::MADV_DOFORK
        | linux::MADV_MERGEABLE
        | linux::MADV_UNMERGEABLE
        | linux::MADV_HUGEPAGE
        | linux::MADV_NOHUGEPAGE
        | linux::MADV_DONTDUMP
        | linux::MADV_DODUMP
        | linux::MADV_COLD
        | linux::MADV_PAGEOUT => {
            if at % PAGE_U64 != 0 {
                return Err(Errno::INVAL);
            }
            if bytes == 0 || task.space.has(at, bytes) { Ok(0) } else { Err(Errno::NOMEM) }
        }
        _ => Err(Errno::INVAL),
    }
}

pub(super) fn in_core(task: &Task, [at, bytes, to, ..]: Args) -> Result<u64> {
    if at % PAGE_U64 != 0 {
        return Err(Errno::INVAL);
    }
    if !task.space.has(at, bytes) {
        return Err(Errno::NOMEM);
    }
    for page in 0..bytes.div_ceil(PAGE_U64) {
        task.space.put(to + page, &u8::from(task.space.is_mapped(at + page * PAGE_U64)))?;
    }
    Ok(0)
}

pub(super) fn synchronise(task: &Task, [at, bytes, ..]: Args) -> Result<u64> {
    if at % PAGE_U64 != 0 {
        return Err(Errno::INVAL);
    }
    if bytes == 0 || task.space.has(at, bytes) { Ok(0) } else { Err(Errno::NOMEM) }
}

#[expect(clippy::unnecessary_wraps, reason = "as other calls")]
pub(super) fn flush_code(task: &Task) -> Result<u64> {
    machine::fence_code(task.space.translation().harts() & !(1 << machine::hart_index()));
    Ok(0)
}
