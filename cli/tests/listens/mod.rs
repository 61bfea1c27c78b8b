//! A guest that shuts down when it is asked.

/// The code of a guest that powers off when its serial line is hung up.
pub const LISTEN: [u32; 12] = [
    0x1000_02b7, // lui t0, 0x10000
    0x0080_0313, // li t1, 8
    0x0062_80a3, // sb t1, 1(t0): the interrupt for changes of the carrier
    0x0062_c383, // loop: lbu t2, 6(t0)
    0x0083_f393, // andi t2, t2, 8: has it changed?
    0xfe03_8ce3, // beqz t2, loop
    0x5352_58b7, // lui a7, 0x53525
    0x3548_8893, // addi a7, a7, 0x354: "SRST"
    0x0000_0813, // li a6, 0
    0x0000_0513, // li a0, 0
    0x0000_0593, // li a1, 0
    0x0000_0073, // ecall
];
