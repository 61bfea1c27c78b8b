//! The meter as a plugin of QEMU's: tells `meter` what harts do. docs/meter.md says how to use it.
#![expect(unsafe_code, reason = "QEMU calls it by its symbols, and passes pointers")]

mod qemu;

use meter::args::{API, Args, Level};
use meter::block::{Block, may_power_off, segments};
use meter::hart::{AccessSite, Hart, MemoryAccess, Scoreboard, Seen};
use meter::insn::{Insn, Memory, Special};
use meter::mode::Mode;
use meter::report::{HartReport, report};
use meter::shared::Shared;
use qemu::{AccessInfo, Id, Info, Instruction, MOST_HARTS, Now, Ram, Tb, Translation, give_up};
use std::collections::HashMap;
use std::ffi::{c_char, c_int, c_void};
use std::fs::File;
use std::io::BufWriter;
use std::mem::offset_of;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread::ThreadId;

/// The version of the interface; QEMU looks for it.
#[unsafe(no_mangle)]
pub static qemu_plugin_version: c_int = API;

/// The whole plugin.
struct Meter {
    args: Args,
    shared: Shared,
    ram: OnceLock<Ram>,
    /// The data of callbacks of special instructions, one of each; never freed.
    sites: Mutex<HashMap<Site, &'static Site>>,
    /// The thread of each vCPU.
    threads: Mutex<Vec<ThreadId>>,
}

/// A special instruction, where it stands.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Site {
    special: Special,
    mode: Mode,
    next: u64,
}

static METER: OnceLock<Meter> = OnceLock::new();
/// Each is used by callbacks of its own vCPU, and after the last of those.
static HARTS: [AtomicPtr<Hart>; MOST_HARTS] = [const { AtomicPtr::new(std::ptr::null_mut()) }; MOST_HARTS];
static HART_COUNT: AtomicUsize = AtomicUsize::new(0);

/// QEMU's entry.
///
/// # Safety
/// For QEMU to call, once, as its interface says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qemu_plugin_install(
    id: Id,
    info: *const Info,
    argc: c_int,
    argv: *const *const c_char,
) -> c_int {
    // SAFETY: they are QEMU's.
    let result = unsafe { qemu::arguments(info, argc, argv) }.and_then(|args| install(id, &args));
    match result {
        Ok(()) => 0,
        Err(why) => {
            eprintln!("meter: {why}");
            1
        }
    }
}

fn install(id: Id, args: &[String]) -> Result<(), String> {
    let args = Args::parse(args.iter().map(String::as_str)).map_err(|why| why.to_string())?;
    let shared = Shared::new(&args);
    // Better now than after the run.
    std::fs::write(&args.out, b"").map_err(|why| cannot_write(&args.out, "out=", &why))?;
    if let Some(path) = &args.traps {
        let file = File::create(path).map_err(|why| cannot_write(path, "traps=", &why))?;
        shared.log_traps_to(BufWriter::new(file));
    }
    let meter = Meter { shared, args, ram: OnceLock::new(), sites: Mutex::default(), threads: Mutex::default() };
    if METER.set(meter).is_err() {
        return Err("QEMU has installed it before".into());
    }
    qemu::register(id, on_init, on_translation, on_exit);
    Ok(())
}

fn cannot_write(path: &Path, option: &str, why: &std::io::Error) -> String {
    format!("cannot write {}: {why}; check {option}", path.display())
}

fn meter() -> &'static Meter {
    METER.get().unwrap_or_else(|| give_up("QEMU calls before it has loaded"))
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A hart.
///
/// # Safety
/// Only in a callback of this vCPU, or after the last one; once at a time.
unsafe fn hart<'a>(vcpu: u32) -> &'a mut Hart {
    let hart = HARTS.get(vcpu as usize).map_or(std::ptr::null_mut(), |slot| slot.load(Ordering::Acquire));
    if hart.is_null() {
        give_up("QEMU mixes up its vCPUs, as it does with several of them in one thread: use -smp 1, or no -icount")
    }
    // SAFETY: made by `on_init`, never freed; by the contract it has no other user.
    unsafe { &mut *hart }
}

/// The data that a callback of a vCPU works with.
///
/// # Safety
/// As for [`hart`].
unsafe fn context<'a>(vcpu: u32) -> (&'a mut Hart, &'a mut Scoreboard, &'static Meter) {
    // SAFETY: by the same contract.
    unsafe { (hart(vcpu), qemu::scoreboard(vcpu), meter()) }
}

impl Meter {
    fn now(&self, access: Option<AccessInfo>) -> Now<'_> {
        Now { ram: self.ram.get(), access }
    }

    /// RAM is mapped after plugins are loaded, and before the first block.
    fn find_ram(&self) {
        if self.shared.level == Level::Counts || self.ram.get().is_some() {
            return;
        }
        let Some(ram) = Ram::find(&self.args.ram, self.args.ram_base) else {
            give_up(&format!(
                "cannot see the guest's RAM: no mapping is named `{}`. Give QEMU -machine memory-backend=ram \
                 -object memory-backend-memfd,id=ram,size=SIZE,share=on with the SIZE of -m (or use level=counts)",
                self.args.ram
            ));
        };
        let (base, bytes) = ram.range();
        self.shared.set_ram(base, bytes);
        // Another thread may have been first, with the same.
        let _ = self.ram.set(ram);
    }
}

extern "C" fn on_init(_: Id, vcpu: u32) {
    let meter = meter();
    let mut threads = lock(&meter.threads);
    let own = std::thread::current().id();
    if threads.contains(&own) {
        give_up("several harts in one thread cannot be told apart: use -smp 1, or neither -icount nor thread=single");
    }
    threads.push(own);
    let Some(slot) = HARTS.get(vcpu as usize) else { give_up(&format!("it has room for {MOST_HARTS} harts")) };
    slot.store(Box::into_raw(Box::new(Hart::new(&meter.shared))), Ordering::Release);
    HART_COUNT.fetch_max(vcpu as usize + 1, Ordering::AcqRel);
}

extern "C" fn on_translation(_: Id, tb: *mut Tb) {
    // SAFETY: it is the argument of this callback.
    let tb = unsafe { Translation::new(tb) };
    let meter = meter();
    meter.find_ram();
    let mode = Mode::from_priv(qemu::privilege());
    let instructions: Vec<Instruction> = tb.instructions().collect();
    let decoded: Vec<Insn> = instructions.iter().map(|insn| Insn::decode(insn.raw())).collect();
    let (Some(first), Some(last)) = (decoded.first(), instructions.last()) else { return };
    let at = tb.start();
    let crosses = (last.end() - 1) >> rv::PAGE_SHIFT != at >> rv::PAGE_SHIFT;
    let block = Block { page: tb.host_page(), mode, crosses };
    let is_watched = meter.shared.watches(at, mode, first.uses_scratch);
    let counts_only = meter.shared.level == Level::Counts;
    if is_watched || (crosses && !counts_only) {
        tb.call(on_block, block.pack());
    } else if !counts_only {
        tb.call_unless(block.place(), on_block, block.pack());
    }
    for segment in segments(&decoded) {
        let offset = offset_of!(Scoreboard, insns) + mode.index() * size_of::<u64>();
        instructions[segment.first].add(offset, segment.insns);
    }
    for (number, (insn, what)) in instructions.iter().zip(&decoded).enumerate() {
        let memory = what.memory;
        // Counting needs one store only: the one that powers the machine off.
        let is_wanted = !counts_only || may_power_off(&decoded, number, mode);
        if memory != Memory::None && is_wanted {
            insn.call_on_access(memory.is_store(), on_access, AccessSite::new(memory, mode).pack());
        }
        if let Some(special) = what.special {
            let site = Site { special, mode, next: insn.end() };
            let site = *lock(&meter.sites).entry(site).or_insert_with(|| Box::leak(Box::new(site)));
            insn.call(on_special, std::ptr::from_ref(site).expose_provenance() as u64);
            // A fence does not end its block.
            match instructions.get(number + 1) {
                Some(next) => next.call(on_reach, next.at()),
                None if counts_only => meter.shared.watch(site.next),
                None => {}
            }
        }
    }
}

extern "C" fn on_block(vcpu: u32, data: *mut c_void) {
    // SAFETY: a callback of this vCPU.
    let (hart, board, meter) = unsafe { context(vcpu) };
    hart.enter_block(Block::unpack(data.addr() as u64), board, &meter.shared, &meter.now(None));
}

/// True once QEMU was found to describe accesses as this plugin expects.
static IS_KNOWN: AtomicBool = AtomicBool::new(false);

extern "C" fn on_access(vcpu: u32, info: u32, at: u64, data: *mut c_void) {
    // SAFETY: a callback of this vCPU.
    let (hart, meter) = (unsafe { hart(vcpu) }, meter());
    if hart.access(access(info, at, data), &meter.shared) == Seen::Never {
        on_new_access(vcpu, info, at, data);
    }
}

fn access(info: u32, at: u64, data: *mut c_void) -> MemoryAccess {
    let (info, site) = (AccessInfo::new(info, at), AccessSite::unpack(data.addr() as u64));
    MemoryAccess { at, shift: info.shift(), mmu_index: info.mmu_index(), site }
}

/// The rare part of [`on_access`], which is kept short because it is called for every load and store.
#[cold]
#[inline(never)]
fn on_new_access(vcpu: u32, info: u32, at: u64, data: *mut c_void) {
    // SAFETY: in a callback of this vCPU, which does not use its state any more.
    let (hart, board, meter) = unsafe { context(vcpu) };
    let access = access(info, at, data);
    let info = AccessInfo::new(info, at);
    if !IS_KNOWN.load(Ordering::Relaxed) {
        if !info.is_as_known() {
            give_up("this QEMU describes accesses in another way than QEMU 10");
        }
        IS_KNOWN.store(true, Ordering::Relaxed);
    }
    let was_over = meter.shared.is_over();
    hart.access_anew(access, board, &meter.shared, &meter.now(Some(info)));
    // The machine was powered off: QEMU may be stopped by force before it calls `on_exit`.
    if !was_over && meter.shared.is_over() && HART_COUNT.load(Ordering::Acquire) == 1 {
        write_report(meter);
    }
}

extern "C" fn on_special(vcpu: u32, data: *mut c_void) {
    // SAFETY: a callback of this vCPU; the pointer is that of a site, which lives for ever.
    let ((hart, board, meter), site) = unsafe { (context(vcpu), &*data.cast::<Site>()) };
    hart.before(site.special, site.mode, site.next, board, &meter.shared, &meter.now(None));
}

extern "C" fn on_reach(vcpu: u32, data: *mut c_void) {
    // SAFETY: a callback of this vCPU.
    let (hart, meter) = (unsafe { hart(vcpu) }, meter());
    hart.reach(data.addr() as u64, &meter.shared, &meter.now(None));
}

extern "C" fn on_exit(_: Id, _: *mut c_void) {
    write_report(meter());
}

/// Writes the report, once. No hart runs, or the only one is in this very callback, done with its state.
fn write_report(meter: &Meter) {
    static IS_WRITTEN: AtomicBool = AtomicBool::new(false);
    if IS_WRITTEN.swap(true, Ordering::AcqRel) {
        // When the machine was powered off; what it did after that is not to be told.
        return;
    }
    if let Err(why) = meter.shared.finish_log() {
        eprintln!("meter: {}", cannot_write(meter.args.traps.as_deref().unwrap_or(Path::new("")), "traps=", &why));
    }
    let harts: Vec<HartReport> = (0..HART_COUNT.load(Ordering::Acquire) as u32)
        .map(|vcpu| {
            // SAFETY: no other callback runs; see above.
            let (hart, board, _) = unsafe { context(vcpu) };
            let (at_marks, at_end) = hart.counts(board);
            let findings = hart.check().map_or_else(Vec::new, |check| check.findings.clone());
            HartReport { at_marks, at_end, findings }
        })
        .collect();
    let mut text = format!("{:#}", report(&meter.shared, &harts));
    text.push('\n');
    // Whole or not at all, whenever QEMU is killed.
    let path = &meter.args.out;
    let mut partial = path.clone().into_os_string();
    // A file of the user's may have a name like that.
    partial.push(format!(".{}.part", std::process::id()));
    let partial = PathBuf::from(partial);
    if let Err(why) = std::fs::write(&partial, text).and_then(|()| std::fs::rename(&partial, path)) {
        eprintln!("meter: {}", cannot_write(path, "out=", &why));
    }
}
