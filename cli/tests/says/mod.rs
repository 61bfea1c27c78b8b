//! Guests of a few instructions.

/// The code of a guest that prints each byte by the SBI's debug console, and goes on with `end`.
pub fn says(text: &str, end: &[u32]) -> Vec<u8> {
    const ECALL: u32 = 0x73;
    let byte = |byte: u8| [u32::from(byte) << 20 | 0x513, ECALL]; // li a0, byte; ecall
    let start = [
        0x4442_48b7, // lui a7, 0x44424
        0x34e8_8893, // addi a7, a7, 0x34e: "DBCN"
        0x0020_0813, // li a6, 2: write a byte
    ];
    let code = start.into_iter().chain(text.bytes().flat_map(byte)).chain(end.iter().copied());
    code.flat_map(u32::to_le_bytes).collect()
}
