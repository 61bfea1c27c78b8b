//! QEMU's plugin interface, version 4 (QEMU 10), as far as it is used: declared here by hand, and made
//! safe to call. Its documentation is QEMU's "QEMU TCG Plugins" and the comments of `qemu-plugin.h`.
#![expect(unsafe_code, reason = "QEMU's interface is C's")]

use meter::args::Host;
use meter::hart::{Machine, Register, Scoreboard};
use meter::walk::Words;
use std::cell::RefCell;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

/// A plugin's number.
pub type Id = u64;

/// A block that is being translated.
#[repr(C)]
pub struct Tb {
    _opaque: [u8; 0],
}

/// An instruction of such a block.
#[repr(C)]
pub struct TbInsn {
    _opaque: [u8; 0],
}

#[repr(C)]
struct RawScoreboard {
    _opaque: [u8; 0],
}

#[repr(C)]
struct RawRegister {
    _opaque: [u8; 0],
}

#[repr(C)]
struct HwAddr {
    _opaque: [u8; 0],
}

/// glib's `GArray` and `GByteArray`.
#[repr(C)]
struct GArray {
    data: *mut u8,
    len: u32,
}

/// `qemu_plugin_reg_descriptor`.
#[repr(C)]
struct RegisterDescriptor {
    handle: *mut RawRegister,
    name: *const c_char,
    feature: *const c_char,
}

/// `qemu_plugin_u64`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Slot {
    board: *mut RawScoreboard,
    offset: usize,
}

/// `qemu_info_t`.
#[repr(C)]
pub struct Info {
    /// The architecture of the guest.
    target: *const c_char,
    /// The least version of the interface that QEMU can do.
    min: c_int,
    /// Its own version.
    cur: c_int,
    /// True if QEMU emulates a whole machine.
    is_system: bool,
    smp_vcpus: c_int,
    max_vcpus: c_int,
}

/// `qemu_plugin_cb_flags`: whether registers are read.
#[repr(C)]
#[derive(Clone, Copy)]
enum Flags {
    NoRegisters = 0,
    ReadsRegisters = 1,
}

/// `qemu_plugin_mem_rw`.
#[repr(C)]
#[derive(Clone, Copy)]
enum Rw {
    Read = 1,
    Write = 2,
}

const COND_NE: c_int = 3;
const INLINE_ADD: c_int = 0;

/// A callback with a number that was given when it was registered.
pub type Callback = extern "C" fn(vcpu: u32, data: *mut c_void);
/// A callback for an access.
pub type MemoryCallback = extern "C" fn(vcpu: u32, info: u32, at: u64, data: *mut c_void);

unsafe extern "C" {
    fn qemu_plugin_register_vcpu_init_cb(id: Id, cb: extern "C" fn(Id, u32));
    fn qemu_plugin_register_vcpu_tb_trans_cb(id: Id, cb: extern "C" fn(Id, *mut Tb));
    fn qemu_plugin_register_atexit_cb(id: Id, cb: extern "C" fn(Id, *mut c_void), data: *mut c_void);
    fn qemu_plugin_register_vcpu_tb_exec_cb(tb: *mut Tb, cb: Callback, flags: Flags, data: *mut c_void);
    fn qemu_plugin_register_vcpu_tb_exec_cond_cb(
        tb: *mut Tb,
        cb: Callback,
        flags: Flags,
        condition: c_int,
        slot: Slot,
        operand: u64,
        data: *mut c_void,
    );
    fn qemu_plugin_register_vcpu_insn_exec_cb(insn: *mut TbInsn, cb: Callback, flags: Flags, data: *mut c_void);
    fn qemu_plugin_register_vcpu_insn_exec_inline_per_vcpu(insn: *mut TbInsn, op: c_int, slot: Slot, operand: u64);
    fn qemu_plugin_register_vcpu_mem_cb(insn: *mut TbInsn, cb: MemoryCallback, flags: Flags, rw: Rw, data: *mut c_void);
    fn qemu_plugin_tb_n_insns(tb: *const Tb) -> usize;
    fn qemu_plugin_tb_vaddr(tb: *const Tb) -> u64;
    fn qemu_plugin_tb_get_insn(tb: *const Tb, number: usize) -> *mut TbInsn;
    fn qemu_plugin_insn_data(insn: *const TbInsn, to: *mut c_void, length: usize) -> usize;
    fn qemu_plugin_insn_size(insn: *const TbInsn) -> usize;
    fn qemu_plugin_insn_vaddr(insn: *const TbInsn) -> u64;
    fn qemu_plugin_insn_haddr(insn: *const TbInsn) -> *mut c_void;
    fn qemu_plugin_mem_size_shift(info: u32) -> u32;
    fn qemu_plugin_get_hwaddr(info: u32, at: u64) -> *mut HwAddr;
    fn qemu_plugin_hwaddr_phys_addr(address: *const HwAddr) -> u64;
    fn qemu_plugin_scoreboard_new(bytes: usize) -> *mut RawScoreboard;
    fn qemu_plugin_scoreboard_find(board: *mut RawScoreboard, vcpu: u32) -> *mut c_void;
    fn qemu_plugin_get_registers() -> *mut GArray;
    fn qemu_plugin_read_register(handle: *mut RawRegister, to: *mut GArray) -> c_int;
    fn g_byte_array_new() -> *mut GArray;
    fn g_byte_array_set_size(array: *mut GArray, length: u32) -> *mut GArray;
    fn _exit(status: c_int) -> !;
}

/// Ends QEMU with a message. Not by `exit`, which would call handlers that wait for this very thread.
pub fn give_up(why: &str) -> ! {
    eprintln!("meter: {why}");
    // SAFETY: ends the process.
    unsafe { _exit(1) }
}

/// The arguments of `qemu_plugin_install`.
///
/// # Safety
/// They must be those that QEMU has passed.
pub unsafe fn arguments(info: *const Info, argc: c_int, argv: *const *const c_char) -> Result<Vec<String>, String> {
    // SAFETY: by the contract, and QEMU's: `info` and `argc` strings of `argv` live during the call.
    let (info, argv) = unsafe { (&*info, std::slice::from_raw_parts(argv, usize::try_from(argc).unwrap_or(0))) };
    // SAFETY: as above.
    let text = |raw: *const c_char| unsafe { CStr::from_ptr(raw) }.to_string_lossy().into_owned();
    let target = text(info.target);
    let host = Host { least_api: info.min, api: info.cur, is_system: info.is_system, target: &target };
    host.check().map_err(|why| why.to_string())?;
    Ok(argv.iter().map(|raw| text(*raw)).collect())
}

/// Registers the callbacks that are not of a block.
pub fn register(
    id: Id,
    on_init: extern "C" fn(Id, u32),
    on_translation: extern "C" fn(Id, *mut Tb),
    on_exit: extern "C" fn(Id, *mut c_void),
) {
    // SAFETY: called in `qemu_plugin_install`, with functions of the types declared.
    unsafe {
        BOARD.store(qemu_plugin_scoreboard_new(size_of::<Scoreboard>()), Ordering::Release);
        qemu_plugin_register_vcpu_init_cb(id, on_init);
        qemu_plugin_register_vcpu_tb_trans_cb(id, on_translation);
        qemu_plugin_register_atexit_cb(id, on_exit, std::ptr::null_mut());
    }
}

static BOARD: AtomicPtr<RawScoreboard> = AtomicPtr::new(std::ptr::null_mut());
/// More harts than the `virt` board has.
pub const MOST_HARTS: usize = 512;

/// A hart's scoreboard. QEMU moves it when it makes room for more vCPUs: it is to be asked for anew in
/// each callback.
///
/// # Safety
/// Only in a callback of this vCPU, or when no vCPU runs; one at a time.
pub unsafe fn scoreboard<'a>(vcpu: u32) -> &'a mut Scoreboard {
    // SAFETY: the scoreboard has room for all vCPUs that run, and stays where it is while one does. It has this size,
    // and began zeroed, which is a valid value; by the contract it has no other user meanwhile.
    unsafe { &mut *qemu_plugin_scoreboard_find(BOARD.load(Ordering::Acquire), vcpu).cast() }
}

fn slot(offset: usize) -> Slot {
    Slot { board: BOARD.load(Ordering::Acquire), offset }
}

/// A number as callbacks get it back.
fn data(number: u64) -> *mut c_void {
    std::ptr::without_provenance_mut(number as usize)
}

/// The block that a translation callback is about.
pub struct Translation(*mut Tb);

/// One of its instructions.
#[derive(Clone, Copy)]
pub struct Instruction(*mut TbInsn);

impl Translation {
    /// The block.
    ///
    /// # Safety
    /// It must be the argument of the callback that runs, and be dropped before that returns.
    pub unsafe fn new(tb: *mut Tb) -> Self {
        Self(tb)
    }

    /// Its first address.
    pub fn start(&self) -> u64 {
        // SAFETY: by the contract of `new`, as for all below.
        unsafe { qemu_plugin_tb_vaddr(self.0) }
    }

    /// Its instructions.
    pub fn instructions(&self) -> impl Iterator<Item = Instruction> {
        // SAFETY: as above.
        let count = unsafe { qemu_plugin_tb_n_insns(self.0) };
        // SAFETY: as above; the number is less than the count.
        (0..count).map(|number| Instruction(unsafe { qemu_plugin_tb_get_insn(self.0, number) }))
    }

    /// The page of this process where its code is: QEMU keeps translations by physical address.
    pub fn host_page(&self) -> u64 {
        // SAFETY: as above; a block has an instruction. The pointer is only looked at.
        let code = unsafe { qemu_plugin_insn_haddr(qemu_plugin_tb_get_insn(self.0, 0)) };
        code.addr() as u64 >> rv::PAGE_SHIFT
    }

    /// Calls back before each execution.
    pub fn call(&self, callback: Callback, number: u64) {
        // SAFETY: as above.
        unsafe { qemu_plugin_register_vcpu_tb_exec_cb(self.0, callback, Flags::ReadsRegisters, data(number)) }
    }

    /// Calls back before an execution if [`Scoreboard::place`] is not `place`.
    pub fn call_unless(&self, place: u64, callback: Callback, number: u64) {
        let slot = slot(std::mem::offset_of!(Scoreboard, place));
        let flags = Flags::ReadsRegisters;
        // SAFETY: as above; the slot is one of 64 bits.
        unsafe {
            qemu_plugin_register_vcpu_tb_exec_cond_cb(self.0, callback, flags, COND_NE, slot, place, data(number));
        }
    }
}

impl Instruction {
    /// Its encoding.
    pub fn raw(self) -> u32 {
        let mut raw = [0; 4];
        // SAFETY: it is of the block whose callback runs; at most 4 bytes are written.
        unsafe { qemu_plugin_insn_data(self.0, raw.as_mut_ptr().cast(), raw.len()) };
        u32::from_le_bytes(raw)
    }

    /// Its address.
    pub fn at(self) -> u64 {
        // SAFETY: as above.
        unsafe { qemu_plugin_insn_vaddr(self.0) }
    }

    /// The address behind it.
    pub fn end(self) -> u64 {
        // SAFETY: as above.
        self.at() + unsafe { qemu_plugin_insn_size(self.0) } as u64
    }

    /// Calls back before each execution.
    pub fn call(self, callback: Callback, number: u64) {
        // SAFETY: as above.
        unsafe { qemu_plugin_register_vcpu_insn_exec_cb(self.0, callback, Flags::ReadsRegisters, data(number)) }
    }

    /// Calls back after each load, or each store, that it makes.
    pub fn call_on_access(self, is_store: bool, callback: MemoryCallback, number: u64) {
        let rw = if is_store { Rw::Write } else { Rw::Read };
        // SAFETY: as above.
        unsafe { qemu_plugin_register_vcpu_mem_cb(self.0, callback, Flags::NoRegisters, rw, data(number)) }
    }

    /// Adds to a number of the scoreboard before each execution.
    pub fn add(self, offset: usize, amount: u64) {
        // SAFETY: as above; the slot is one of 64 bits.
        unsafe { qemu_plugin_register_vcpu_insn_exec_inline_per_vcpu(self.0, INLINE_ADD, slot(offset), amount) }
    }
}

/// An access, as its callback is told.
#[derive(Clone, Copy)]
pub struct AccessInfo {
    info: u32,
    at: u64,
}

impl AccessInfo {
    /// The access.
    pub fn new(info: u32, at: u64) -> Self {
        Self { info, at }
    }

    /// QEMU's index of the softmmu table, which is no part of the interface: see [`AccessInfo::is_as_known`].
    pub fn mmu_index(self) -> u32 {
        self.info & 0xf
    }

    /// log2 of its bytes.
    pub fn shift(self) -> u32 {
        self.info >> 4 & 7
    }

    /// Returns whether the number is composed as this plugin expects, judged by the part that QEMU reports.
    pub fn is_as_known(self) -> bool {
        // SAFETY: a function of a number.
        self.shift() == unsafe { qemu_plugin_mem_size_shift(self.info) }
    }
}

struct Handle(*mut RawRegister);

// SAFETY: QEMU's handles are numbers that hold for all vCPUs and threads.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

struct Registers {
    privilege: Handle,
    /// In the order of [`NAMES`]; those that the hart has.
    named: Vec<Option<Handle>>,
    /// x0 to x31.
    integer: Vec<Handle>,
}

static REGISTERS: OnceLock<Registers> = OnceLock::new();

fn registers() -> &'static Registers {
    REGISTERS.get_or_init(|| {
        // SAFETY: called in a callback of a vCPU, where the list exists: an array of descriptors whose
        // strings live as long as QEMU. It is never freed.
        let list = unsafe {
            let array = &*qemu_plugin_get_registers();
            std::slice::from_raw_parts(array.data.cast::<RegisterDescriptor>(), array.len as usize)
        };
        // SAFETY: as above.
        let text = |raw: *const c_char| unsafe { CStr::from_ptr(raw) }.to_string_lossy();
        let find = |name: &str| list.iter().find(|one| text(one.name) == name).map(|one| Handle(one.handle));
        let is_integer = |register: &&RegisterDescriptor| text(register.feature) == "org.gnu.gdb.riscv.cpu";
        Registers {
            privilege: find("priv").unwrap_or_else(|| give_up("this QEMU has no register `priv`: use QEMU 10")),
            named: NAMES.iter().map(|name| find(name)).collect(),
            integer: list.iter().filter(is_integer).take(32).map(|register| Handle(register.handle)).collect(),
        }
    })
}

thread_local! {
    static BYTES: RefCell<*mut GArray> = const { RefCell::new(std::ptr::null_mut()) };
}

fn read(handle: &Handle) -> u64 {
    BYTES.with_borrow_mut(|bytes| {
        // SAFETY: the array is this thread's own, emptied before each use since QEMU appends; the handle
        // is QEMU's; and a callback of a vCPU runs, whose register it is.
        unsafe {
            if bytes.is_null() {
                *bytes = g_byte_array_new();
            }
            g_byte_array_set_size(*bytes, 0);
            qemu_plugin_read_register(handle.0, *bytes);
            let array = &**bytes;
            let mut value = [0; 8];
            let length = (array.len as usize).min(value.len());
            std::ptr::copy_nonoverlapping(array.data, value.as_mut_ptr(), length);
            u64::from_le_bytes(value)
        }
    })
}

/// The register `priv` of the vCPU whose callback runs.
pub fn privilege() -> u64 {
    read(&registers().privilege)
}

/// QEMU's names.
const NAMES: [&str; 20] = [
    "pc", "satp", "vsatp", "hgatp", "mtvec", "stvec", "vstvec", "mcause", "scause", "mepc", "sepc", "mtval", "stval",
    "mstatus", "sstatus", "vsstatus", "hstatus", "vscause", "vsepc", "vstval",
];

/// The place of a register in [`NAMES`].
const fn place(register: Register) -> usize {
    match register {
        Register::Pc => 0,
        Register::Satp => 1,
        Register::Vsatp => 2,
        Register::Hgatp => 3,
        Register::Mtvec => 4,
        Register::Stvec => 5,
        Register::Vstvec => 6,
        Register::Mcause => 7,
        Register::Scause => 8,
        Register::Mepc => 9,
        Register::Sepc => 10,
        Register::Mtval => 11,
        Register::Stval => 12,
        Register::Mstatus => 13,
        Register::Sstatus => 14,
        Register::Vsstatus => 15,
        Register::Hstatus => 16,
        Register::Vscause => 17,
        Register::Vsepc => 18,
        Register::Vstval => 19,
        Register::X(_) => usize::MAX,
    }
}

/// Guest RAM, mapped into this process.
pub struct Ram {
    base: u64,
    bytes: u64,
    words: *const AtomicU64,
}

// SAFETY: it is read atomically only.
unsafe impl Send for Ram {}
// SAFETY: as above.
unsafe impl Sync for Ram {}

impl Ram {
    /// RAM at a physical address: the largest mapping of this process whose path has `name` in it.
    pub fn find(name: &str, base: u64) -> Option<Self> {
        let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
        let mapping = |line: &str| {
            let (range, rest) = line.split_once(' ')?;
            let (start, end) = range.split_once('-')?;
            let number = |text| u64::from_str_radix(text, 16).ok();
            rest.contains(name).then_some((number(start)?, number(end)?))
        };
        let (start, end) = maps.lines().filter_map(mapping).max_by_key(|(start, end)| end - start)?;
        Some(Self { base, bytes: end - start, words: std::ptr::with_exposed_provenance(start as usize) })
    }

    /// The first address, and the size in bytes.
    pub fn range(&self) -> (u64, u64) {
        (self.base, self.bytes)
    }

    fn word(&self, at: u64) -> Option<u64> {
        let offset = at.checked_sub(self.base).filter(|offset| *offset < self.bytes && at.is_multiple_of(8))?;
        // SAFETY: the mapping is QEMU's guest RAM, which stays while the machine exists, and is shared only with the
        // guest; the word is inside and aligned.
        Some(unsafe { &*self.words.add(offset as usize / 8) }.load(Ordering::Relaxed))
    }
}

/// The machine in a callback.
pub struct Now<'a> {
    /// RAM, if it is needed.
    pub ram: Option<&'a Ram>,
    /// The access, if the callback is about one.
    pub access: Option<AccessInfo>,
}

impl Words for Now<'_> {
    #[inline]
    fn word(&self, at: u64) -> Option<u64> {
        self.ram?.word(at)
    }
}

impl Machine for Now<'_> {
    fn register(&self, register: Register) -> u64 {
        let registers = registers();
        let handle = match register {
            Register::X(number) => registers.integer.get(usize::from(number)),
            named => registers.named.get(place(named)).and_then(Option::as_ref),
        };
        handle.map_or(0, read)
    }

    fn physical(&self) -> Option<u64> {
        let AccessInfo { info, at } = self.access?;
        // SAFETY: the callback of this access runs, during which the handle holds.
        unsafe {
            let address = qemu_plugin_get_hwaddr(info, at);
            (!address.is_null()).then(|| qemu_plugin_hwaddr_phys_addr(address))
        }
    }
}
