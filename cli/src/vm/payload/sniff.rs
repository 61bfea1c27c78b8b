//! Recognises files that are certainly no raw RISC-V binary.

use super::image::{Unfit, field};

const COMPRESSED: &[(&[u8], &str, &str)] = &[
    (b"\x1f\x8b", "gzip", "gunzip"),
    (b"\xfd7zXZ\0", "xz", "unxz"),
    (b"\x28\xb5\x2f\xfd", "Zstandard", "unzstd"),
    (b"BZh", "bzip2", "bunzip2"),
    (b"\x04\x22\x4d\x18", "LZ4", "unlz4"),
    (b"\x02\x21\x4c\x18", "LZ4", "unlz4"),
    (b"\x5d\0\0", "LZMA", "unlzma"),
];

/// Refuses what is recognisably something else.
pub fn refuse(bytes: &[u8]) -> Result<(), Unfit> {
    let elsewhere =
        "use a kernel for 64-bit RISC-V: a Linux Image, an ELF file or a raw binary, also if it is compressed";
    if bytes.is_empty() {
        return Err(Unfit::new("is empty", "copy the file again, or build it again"));
    }
    for (magic, name, tool) in COMPRESSED {
        if bytes.starts_with(magic) {
            let remedy = format!("uncompress it first, with {tool}, and give the result");
            return Err(Unfit::new(format!("is compressed with {name}"), remedy));
        }
    }
    let what = if field(bytes, 0x202) == Some(*b"HdrS") {
        "is a Linux bzImage for x86"
    } else if field(bytes, 0x38) == Some(*b"ARM\x64") {
        "is a Linux Image for 64-bit Arm"
    } else if field(bytes, 0x24) == Some([0x18, 0x28, 0x6f, 0x01]) {
        "is a Linux zImage for 32-bit Arm"
    } else if bytes.starts_with(&[0x27, 0x05, 0x19, 0x56]) {
        "is a U-Boot legacy image (uImage)"
    } else if bytes.starts_with(&[0xd0, 0x0d, 0xfe, 0xed]) {
        "is a device tree or a FIT image"
    } else if bytes.starts_with(b"070701") || bytes.starts_with(b"070702") {
        "is a cpio archive: an initrd"
    } else if bytes.starts_with(b"!<arch>") {
        "is an archive (a Debian package or a library)"
    } else if is_foreign_pe(bytes) {
        "is an EFI or Windows program, not a Linux Image"
    } else if is_text(bytes) {
        "is a text file"
    } else {
        return Ok(());
    };
    Err(Unfit::new(what, elsewhere))
}

/// A PE file; RISC-V Linux Images, which are PE files too, are recognised before.
fn is_foreign_pe(bytes: &[u8]) -> bool {
    bytes.starts_with(b"MZ")
        && field(bytes, 0x3c).map(u32::from_le_bytes).is_some_and(|pe| field(bytes, pe as usize) == Some(*b"PE\0\0"))
}

fn is_text(bytes: &[u8]) -> bool {
    let start = &bytes[..bytes.len().min(512)];
    start.len() >= 16 && start.iter().all(|byte| matches!(byte, b'\t' | b'\n' | b'\r' | b' '..=b'~'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_it_is_gets_named() {
        let at = |offset: usize, magic: &[u8]| [vec![0; offset], magic.to_vec(), vec![0; 64]].concat();
        for (bytes, name) in [
            (vec![], "empty"),
            (at(0, b"\x1f\x8b\x08"), "gzip"),
            (at(0, b"\xfd7zXZ\0"), "xz"),
            (at(0, b"\x28\xb5\x2f\xfd"), "Zstandard"),
            (at(0x202, b"HdrS"), "bzImage"),
            (at(0x38, b"ARM\x64"), "64-bit Arm"),
            (at(0, b"070701"), "cpio"),
            (b"#!/bin/sh\necho hello\n".to_vec(), "text"),
        ] {
            let error = refuse(&bytes).expect_err(name);
            assert!(error.what.contains(name) && !error.remedy.is_empty(), "{}", error.what);
        }
        assert_eq!(refuse(&[0x13, 0, 0, 0]), Ok(()));
        assert_eq!(refuse(&at(0, b"MZ")), Ok(()));
    }
}
