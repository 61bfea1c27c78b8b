//! Compressed kernels: by gzip, Zstandard or xz, as a file or behind the EFI stub that unpacks them (`vmlinuz.efi`,
//! `drivers/firmware/efi/libstub/zboot-header.S`).

use super::image::{Unfit, field};
use crate::host::size::Size;
use std::io::Read;

/// No kernel is larger: a small file could fill the memory else.
const MOST_BYTES: u64 = 1 << 30;
/// The memory limit for unpacking xz, in KiB.
const XZ_KIB: u32 = 1 << 20;
/// Offsets in the stub's header: place and length of the compressed kernel, and its compression method.
const ZBOOT_START: usize = 8;
const ZBOOT_BYTES: usize = 12;
const ZBOOT_METHOD: usize = 24;

/// A way to compress.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Method {
    Gzip,
    Zstd,
    Xz,
}

impl Method {
    fn of(bytes: &[u8]) -> Option<Self> {
        const MAGICS: [(&[u8], Method); 3] =
            [(b"\x1f\x8b", Method::Gzip), (b"\x28\xb5\x2f\xfd", Method::Zstd), (b"\xfd7zXZ\0", Method::Xz)];
        MAGICS.iter().find(|(magic, _)| bytes.starts_with(magic)).map(|(_, method)| *method)
    }

    /// Its name, and the program that undoes it.
    const fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::Gzip => ("gzip", "gunzip"),
            Self::Zstd => ("Zstandard", "unzstd"),
            Self::Xz => ("xz", "unxz"),
        }
    }

    /// No more than `most` bytes of what the file holds.
    fn unpack(self, bytes: &[u8], most: u64) -> std::io::Result<Vec<u8>> {
        let mut unpacked = Vec::new();
        match self {
            Self::Gzip => flate2::read::GzDecoder::new(bytes).take(most).read_to_end(&mut unpacked),
            Self::Zstd => ruzstd::decoding::StreamingDecoder::new(bytes)
                .map_err(std::io::Error::other)?
                .take(most)
                .read_to_end(&mut unpacked),
            Self::Xz => lzma_rust2::XzReader::new_mem_limit(bytes, false, XZ_KIB).take(most).read_to_end(&mut unpacked),
        }?;
        Ok(unpacked)
    }
}

/// Uncompresses a kernel; `None` if it is not compressed in one of these ways.
pub fn unpack(bytes: &[u8]) -> Option<Result<Vec<u8>, Unfit>> {
    if field(bytes, 0) == Some(*b"MZ") && field(bytes, 4) == Some(*b"zimg") {
        return Some(behind_stub(bytes).and_then(|inner| match Method::of(inner) {
            Some(method) => unpack_by(method, inner, MOST_BYTES),
            None => Err(unknown(bytes)),
        }));
    }
    Method::of(bytes).map(|method| unpack_by(method, bytes, MOST_BYTES))
}

fn unpack_by(method: Method, bytes: &[u8], most: u64) -> Result<Vec<u8>, Unfit> {
    let (name, tool) = method.names();
    let unpacked = method.unpack(bytes, most + 1).map_err(|why| {
        let what = format!("is compressed with {name}, and damaged or cut off: {why}");
        Unfit::new(what, format!("copy the file again; `{tool}` should uncompress it without a complaint"))
    })?;
    if unpacked.len() as u64 > most {
        let what = format!("is compressed with {name}, and has more than {} uncompressed", Size(most));
        return Err(Unfit::new(what, "give a kernel: arch/riscv/boot/Image, or the like"));
    }
    Ok(unpacked)
}

/// The compressed kernel that an EFI stub carries.
fn behind_stub(bytes: &[u8]) -> Result<&[u8], Unfit> {
    let number = |at| field(bytes, at).map(|number| u32::from_le_bytes(number) as usize);
    let inner = number(ZBOOT_START).zip(number(ZBOOT_BYTES)).and_then(|(start, length)| {
        let end = start.checked_add(length)?;
        bytes.get(start..end)
    });
    inner.ok_or_else(|| {
        Unfit::new("is a compressed EFI image (vmlinuz.efi) that is cut off", "copy the file again, or build it again")
    })
}

/// The error for an unknown compression method.
fn unknown(bytes: &[u8]) -> Unfit {
    let name = bytes.get(ZBOOT_METHOD..).unwrap_or_default();
    let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
    let name: String = String::from_utf8_lossy(name).chars().filter(char::is_ascii_graphic).take(32).collect();
    Unfit::new(
        format!("is a compressed EFI image (vmlinuz.efi), and its method `{name}` is not supported"),
        "build the kernel with CONFIG_KERNEL_GZIP, _ZSTD or _XZ, or give arch/riscv/boot/Image",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    /// 1024 times `j .`
    fn kernel() -> Vec<u8> {
        [0x6f, 0, 0, 0].repeat(1024)
    }

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        packer.write_all(bytes).expect("in memory");
        packer.finish().expect("in memory")
    }

    /// The kernel, packed by `xz --check=crc32 -9e`, as Linux does it.
    const XZ: &[u8] = &[
        0xfd, 0x37, 0x7a, 0x58, 0x5a, 0x00, 0x00, 0x01, 0x69, 0x22, 0xde, 0x36, 0x02, 0x00, 0x21, 0x01, 0x1c, 0x00,
        0x00, 0x00, 0x10, 0xcf, 0x58, 0xcc, 0xe0, 0x0f, 0xff, 0x00, 0x1d, 0x5d, 0x00, 0x37, 0x80, 0x30, 0x2f, 0xfc,
        0x3d, 0xff, 0xf8, 0x3f, 0xd7, 0x19, 0x1e, 0x59, 0x81, 0x57, 0xae, 0xbc, 0x64, 0x0f, 0xab, 0xef, 0x3b, 0xf5,
        0x92, 0x68, 0x03, 0x9f, 0xdc, 0x00, 0x00, 0x00, 0x00, 0x00, 0x92, 0xa3, 0xb3, 0x96, 0x00, 0x01, 0x35, 0x80,
        0x20, 0x00, 0x00, 0x00, 0x6f, 0x5d, 0x36, 0x86, 0x3e, 0x30, 0x0d, 0x8b, 0x02, 0x00, 0x00, 0x00, 0x00, 0x01,
        0x59, 0x5a,
    ];

    /// The kernel, packed by `zstd -19`.
    const ZSTD: &[u8] = &[
        0x28, 0xb5, 0x2f, 0xfd, 0x64, 0x00, 0x0f, 0x5d, 0x00, 0x00, 0x20, 0x6f, 0x00, 0x00, 0x00, 0x01, 0x00, 0xf9,
        0xe7, 0x5f, 0x22, 0xff, 0x00, 0x1f, 0xbc,
    ];

    /// Builds an EFI image as Linux does: the header, something else, the compressed kernel, and its length where its
    /// own format lacks it.
    fn efi(method: &str, packed: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; 0x100];
        bytes[..2].copy_from_slice(b"MZ");
        bytes[4..8].copy_from_slice(b"zimg");
        bytes[ZBOOT_START..][..4].copy_from_slice(&0x100u32.to_le_bytes());
        bytes[ZBOOT_BYTES..][..4].copy_from_slice(&(packed.len() as u32).to_le_bytes());
        bytes[ZBOOT_METHOD..][..method.len()].copy_from_slice(method.as_bytes());
        bytes.extend_from_slice(packed);
        bytes.extend_from_slice(&4096u32.to_le_bytes());
        bytes
    }

    #[test]
    fn kernels_are_unpacked() {
        for (name, packed) in [("gzip", gzip(&kernel())), ("xzkern", XZ.to_vec()), ("zstd22", ZSTD.to_vec())] {
            assert_eq!(unpack(&packed), Some(Ok(kernel())), "{name}");
            assert_eq!(unpack(&efi(name, &packed)), Some(Ok(kernel())), "{name} behind the stub");
            let long = [&packed[..], &[0; 4]].concat();
            assert_eq!(unpack(&long), Some(Ok(kernel())), "{name} with its length behind it");
        }
        assert_eq!(unpack(&kernel()), None);
        assert_eq!(unpack(b""), None);
    }

    #[test]
    fn damaged_ones_are_named() {
        for (name, tool, packed) in
            [("gzip", "gunzip", gzip(&kernel())), ("xz", "unxz", XZ.to_vec()), ("Zstandard", "unzstd", ZSTD.to_vec())]
        {
            for at in 6..packed.len() {
                let error = unpack(&packed[..at]).expect("compressed").expect_err("cut off");
                assert!(error.what.contains(name) && error.remedy.contains(tool), "{} at {at}", error.what);
                // No byte makes it panic, or give more than was there.
                let mut bytes = packed.clone();
                bytes[at] ^= 0x55;
                let _ = unpack(&bytes);
            }
        }
        let whole = efi("gzip", &gzip(&kernel()));
        let cut = unpack(&whole[..whole.len() - 5]).expect("compressed").expect_err("cut off");
        assert!(cut.what.contains("cut off"), "{}", cut.what);
        let other = unpack(&efi("lz4", b"\x04\x22\x4d\x18...")).expect("compressed").expect_err("unknown");
        assert!(other.what.contains("`lz4`") && other.remedy.contains("GZIP"), "{}", other.what);
    }

    #[test]
    fn what_unpacks_to_too_much_is_refused() {
        for (method, packed) in
            [(Method::Gzip, gzip(&kernel())), (Method::Xz, XZ.to_vec()), (Method::Zstd, ZSTD.to_vec())]
        {
            assert_eq!(unpack_by(method, &packed, 4096).map(|bytes| bytes.len()), Ok(4096));
            let error = unpack_by(method, &packed, 4095).expect_err("too much");
            assert!(error.what.contains("more than 3.9 KiB"), "{}", error.what);
        }
    }
}
