//! Figures: instructions of the whole machine for a call, where `instret` counts these (`--icount`).

use super::{CODE, DATA, ECALL, World};
use guests::paging::{RW, page};
use guests::user::User;
use guests::vmspace::Handle;
use guests::{Check, console, ensure_eq, run, sbi};
use rv::PteFlags;

const ROUNDS: u64 = 200;

pub fn all(is_soft: bool) {
    run("vmspace/cost", if is_soft { soft } else { nested });
}

/// Prints the instructions of a round.
fn measure(name: &str, mut round: impl FnMut() -> Check) -> Check {
    for _ in 0..20 {
        round()?;
    }
    let before = metal::csr::instret::read();
    for _ in 0..ROUNDS {
        round()?;
    }
    console::figure(name, (metal::csr::instret::read() - before) / ROUNDS);
    Ok(())
}

fn invalidate(w: &World, list: &'static guests::paging::Page) -> Check {
    measure("invalidate_page", || {
        ensure_eq!(w.handle.invalidate(list, &[(DATA, 8)]), sbi::SUCCESS, "INVALIDATE");
        Ok(())
    })?;
    measure("invalidate_all", || {
        ensure_eq!(w.handle.invalidate_all(), sbi::SUCCESS, "INVALIDATE");
        Ok(())
    })
}

fn soft() -> Check {
    let (w, list) = (World::new(&[ECALL])?, page());
    let kernel = guests::paging::Space::new(&rv::format::SV39, 0);
    kernel.enter();
    let program = w.program();
    measure("run", || {
        program.go_to(CODE);
        ensure_eq!(program.run(w.handle).map(|end| end.0), Ok(8), "RUN");
        Ok(())
    })?;
    invalidate(&w, list)?;
    measure("invalidate_page_and_run", || {
        ensure_eq!(w.handle.invalidate(list, &[(DATA, 8)]), sbi::SUCCESS, "INVALIDATE");
        program.go_to(CODE);
        ensure_eq!(program.run(w.handle).map(|end| end.0), Ok(8), "RUN");
        Ok(())
    })?;
    guests::paging::leave();
    w.end()
}

fn nested() -> Check {
    let (worlds, list) = ([World::new(&[ECALL])?, World::new(&[ECALL])?], page());
    let switch = |handle: Handle| {
        ensure_eq!(handle.switch(), sbi::SUCCESS, "SWITCH");
        Ok(())
    };
    let mut n = 0;
    measure("switch", || {
        n ^= 1;
        switch(worlds[n].handle)
    })?;
    let mut user = User::at(CODE);
    measure("call_by_sret", || {
        user.pc = CODE;
        ensure_eq!(user.run().cause, 8, "a program's call");
        Ok(())
    })?;
    let w = worlds[n];
    w.space.map(DATA, w.data.address(), RW | PteFlags::U);
    invalidate(&w, list)?;
    guests::paging::leave();
    worlds.iter().try_for_each(|w| w.end())
}
