//! Targets for files that Gnomon reads: a bundle, a kernel, a VM file, the host's device tree.

use abi::bundle::Config;
use gnomon::vm::file::VmFile;
use gnomon::vm::payload::Payload;
use hypervisor::machine::description::{Machine, Span};

/// A bundle that is read is written and read again as the same.
pub fn bundle(data: &[u8]) {
    if let Ok(config) = Config::parse(data) {
        let written = config.encode(data.len() as u64);
        let mut whole = written.clone();
        whole.resize(written.len().max(data.len()), 0);
        assert_eq!(Config::parse(&whole), Ok(config));
    }
}

/// A kernel, compressed or not, has its place and its entry in the memory that it asks for; or what is wrong is said.
pub fn payload(data: &[u8]) {
    match Payload::from_bytes(data.to_vec()) {
        Ok(payload) => {
            let end = payload.gpa.checked_add(payload.span_bytes).expect("it ends within the address space");
            assert!((payload.gpa..end).contains(&payload.entry_gpa), "entered outside of what it has");
            assert!(payload.bytes.len() as u64 <= payload.span_bytes, "more bytes than it has room for");
            let _ = payload.kernel_config();
        }
        Err(unfit) => assert!(!unfit.what.is_empty() && !unfit.remedy.is_empty()),
    }
}

/// A VM file that is read overrides itself with no change.
pub fn vm_file(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(vm) = VmFile::parse(text) {
        assert_eq!(vm.clone().overridden_by(&vm), vm);
    }
}

/// Memory that a device tree leaves free lies in its RAM, in whole pages, ascending, apart from what is taken.
pub fn tree(data: &[u8]) {
    let Ok(machine) = Machine::parse(data) else { return };
    let _ = machine.common_isa();
    let taken = Span { start: 0x8020_0000, bytes: 0x1234 };
    let mut at = 0;
    for free in machine.free_ram(&[taken]) {
        assert!(free.start >= at && free.bytes > 0 && (free.start | free.bytes).is_multiple_of(rv::PAGE_BYTES));
        at = free.start.checked_add(free.bytes).expect("it ends within the address space");
        assert!(at <= taken.start || free.start >= taken.end(), "{free:?} is taken");
    }
}
