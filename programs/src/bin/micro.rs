//! `micro WHAT COUNT LABEL [BEFORE]`: does one thing that involves the kernel COUNT times, within the meter's region
//! LABEL. Prints how often that went well. WHAT is
//!
//! - `call`: a system call that does next to nothing (`getppid`);
//! - `touch`: the first store to a page of new memory, which the kernel has to clear;
//! - `hold`: the same, after BEFORE other pages. A process keeps all of them until the machine ends, so nothing later is made of them. Those before
//!   take what the kernel had in use for a time, such as the initramfs's archive: a hypervisor has that memory already;
//! - `refault`: a store to a page that is there, but not mapped any more;
//! - `fork`: a process is copied, and the copy ends;
//! - `exec`: a process is copied, and the copy becomes the program `nothing`, which ends;
//! - `pipe`: a message of four bytes to another process and one back, each by a pipe, which is what `perf bench
//!   sched pipe` does.
#![no_std]
#![no_main]

use programs::linux::process::{self, Pipe};
use programs::linux::{self, Args, Failure, PAGE, Pages};

programs::entry_point!(main);

/// Pages of its own that the process has when it is copied, as many as a small C program.
const RESIDENT: usize = 64;

fn main(args: Args) -> Result<(), Failure> {
    let (Some(count), Some(label)) = (args.number(2), args.number(3)) else { return Err(USAGE) };
    let what = args.get(1).unwrap_or_default();
    let went_well = match what {
        "call" => call(count, label)?,
        "touch" => touch(count, label, Pages::Private)?,
        "hold" => hold(count, label, args.number(4).ok_or(USAGE)?)?,
        "refault" => touch(count, label, Pages::Shared)?,
        "fork" => fork(count, label, || Ok(()))?,
        "exec" => fork(count, label, || process::exec(c"/bin/nothing"))?,
        "pipe" => pipe(count, label)?,
        _ => return Err(USAGE),
    };
    linux::figure(what, went_well);
    Ok(())
}

const USAGE: Failure = Failure::Usage("micro call|touch|hold|refault|fork|exec|pipe COUNT LABEL [BEFORE]");

fn call(count: u64, label: u64) -> Result<u64, Failure> {
    let parent = process::parent();
    let mut same = 0;
    linux::begin(label);
    for _ in 0..count {
        same += u64::from(process::parent() == parent);
    }
    linux::end(label);
    Ok(same)
}

/// Stores to pages: to new ones, or to shared ones that were stored to before and taken away.
fn touch(count: u64, label: u64, kind: Pages) -> Result<u64, Failure> {
    let memory = linux::pages(count as usize, kind)?;
    let first = match kind {
        Pages::Private => 0,
        Pages::Shared => 1,
    };
    if kind == Pages::Shared {
        memory.iter_mut().for_each(|page| page[0] = first);
        linux::unmap_for_now(memory)?;
    }
    linux::begin(label);
    for page in &mut *memory {
        page[PAGE - 1] = 2;
    }
    linux::end(label);
    Ok(memory.iter().filter(|page| page[0] == first && page[PAGE - 1] == 2).count() as u64)
}

fn hold(count: u64, label: u64, before: u64) -> Result<u64, Failure> {
    linux::pages(before as usize, Pages::Private)?.iter_mut().for_each(|page| page[0] = 1);
    let touched = touch(count, label, Pages::Private)?;
    let never = Pipe::new()?;
    process::start(|| never.read().map(drop))?;
    Ok(touched)
}

fn fork(count: u64, label: u64, child: impl Fn() -> Result<(), Failure>) -> Result<u64, Failure> {
    let resident = linux::pages(RESIDENT, Pages::Private)?;
    resident.iter_mut().for_each(|page| page[0] = 1);
    let mut ended = 0;
    linux::begin(label);
    for _ in 0..count {
        ended += u64::from(process::run(&child)?.succeeded());
    }
    linux::end(label);
    Ok(ended)
}

fn pipe(count: u64, label: u64) -> Result<u64, Failure> {
    let (there, back) = (Pipe::new()?, Pipe::new()?);
    let answer = || {
        for _ in 0..=count {
            back.write(there.read()?)?;
        }
        Ok(())
    };
    let child = process::start(answer)?;
    // So that both run when the region begins.
    back_and_forth(&there, &back, 0)?;
    linux::begin(label);
    let mut right = 0;
    for number in 0..count {
        right += u64::from(back_and_forth(&there, &back, number as u32)?);
    }
    linux::end(label);
    if child.wait()?.succeeded() { Ok(right) } else { Err(Failure::Wrong("the other process failed")) }
}

fn back_and_forth(there: &Pipe, back: &Pipe, number: u32) -> Result<bool, Failure> {
    there.write(number)?;
    Ok(back.read()? == number)
}
