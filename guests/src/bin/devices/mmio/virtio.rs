//! A virtio device's registers, such as a balloon's.

use guests::access::{in32, out32};
use guests::{Check, board, ensure_eq, sbi};

/// The first address of the device.
const START: u64 = 0x1000_1000;

/// Returns whether there is one: only where the VM file asks for it.
pub fn is_there() -> bool {
    // On the bare machine there are eight, and nothing behind them.
    sbi::is_gnomon() && board::tree().find_node("/soc/virtio_mmio@10001000").is_some()
}

/// The registers that identify the device, and one that keeps what is written, many times.
pub fn registers() -> Check {
    const MAGIC: u64 = 0;
    const VERSION: u64 = 4;
    const STATUS: u64 = 0x70;
    for _ in 0..50 {
        ensure_eq!((in32(START + MAGIC), in32(START + VERSION)), (0x7472_6976, 2), "magic and version");
        out32(START + STATUS, 1);
        ensure_eq!(in32(START + STATUS), 1, "status: acknowledged");
        out32(START + STATUS, 0);
        ensure_eq!(in32(START + STATUS), 0, "status: reset");
    }
    Ok(())
}
