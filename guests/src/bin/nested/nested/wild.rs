//! A hypervisor that writes whatever comes to its mind into all CSRs of the extension, and runs random instructions as its guest. It keeps its
//! own timer, which ends each run.

use crate::guest::{ALL, CODE, DATA, Stage, run as run_guest};
use crate::reset;
use core::sync::atomic::Ordering::Relaxed;
use guests::paging::page;
use guests::random::Random;
use guests::user::User;
use guests::{Check, ensure, run, sbi, trap};
use metal::{csr, fence};
use rv::{Interrupt, Mode};

pub fn run_all() {
    if !sbi::is_gnomon() {
        // Illegal instructions of a guest come to OpenSBI first, which does not always find back from these.
        return;
    }
    run("nested/wild", wild);
}

/// Instructions that a random word seldom is.
const LIKELY: [u32; 16] = [
    0x1020_0073,
    0x1050_0073,
    0x1200_0073,
    0x1800_5573,
    0x1800_1573,
    0x1000_2573,
    0x1040_1573,
    0x1440_1573,
    0x6000_2573,
    0x2000_1573,
    0x0000_0073,
    0x0010_0073,
    0x6c05_4573,
    0x2200_0073,
    0x6200_0073,
    0x14d5_1573,
];

fn wild() -> Check {
    const ROUNDS: u64 = 400;
    let mut random = Random::of(7);
    let (text, data, stage) = (page(), page(), Stage::new(40));
    stage.map(CODE, text.address(), ALL);
    stage.map(DATA, data.address(), ALL);
    let mut ended = 0;
    for _ in 0..ROUNDS {
        reset();
        for word in &text.0 {
            let mut insn = || if random.below(3) == 0 { random.any(&LIKELY) } else { random.any_bits() as u32 };
            word.store(u64::from(insn()) | u64::from(insn()) << 32, Relaxed);
        }
        fence::instruction();
        let mut bits = || random.any_bits() & random.any_bits();
        // SAFETY: concerns the guest, whose memory are two pages.
        unsafe {
            csr::hedeleg::write(bits());
            csr::hideleg::write(bits());
            csr::henvcfg::write(bits());
            csr::hcounteren::write(bits());
            csr::htimedelta::write(bits());
            csr::htval::write(bits());
            csr::htinst::write(bits());
            csr::vsstatus::write(bits());
            csr::vsie::write(bits());
            csr::vstvec::write(CODE + (bits() & 0xfff));
            csr::vsepc::write(CODE + (bits() & 0xffe));
            csr::vsatp::write(if bits() & 3 == 0 { 8 << 60 | DATA >> 12 } else { 0 });
            csr::hvip::write(bits());
            csr::hstatus::write(bits() & !(1 << 7));
        }
        stage.enter();
        let mut user = User::at(CODE + (random.any_bits() & 0xffe));
        user.x.iter_mut().for_each(|x| *x = if random.below(2) == 0 { DATA } else { random.any_bits() });
        sbi::set_timer(metal::time() + 10_000);
        trap::enable(Interrupt::STimer.bit());
        let mode = if random.below(4) == 0 { Mode::User } else { Mode::Supervisor };
        let trap = run_guest(&mut user, mode);
        trap::disable(Interrupt::STimer.bit());
        sbi::set_timer(u64::MAX);
        ended += u64::from(trap.cause == 1 << 63 | 5);
    }
    reset();
    ensure!(ended < ROUNDS, "no guest did anything");
    Ok(())
}
