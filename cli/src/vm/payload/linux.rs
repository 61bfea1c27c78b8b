//! The RISC-V Linux boot image (`Documentation/arch/riscv/boot-image-header.rst`).

use super::image::{Kind, Payload, Unfit, field};
use crate::host::size::{SUPERPAGE, Size};
use abi::bundle::{GUEST_ENTRY, GUEST_RAM_BASE};
use memchr::memmem;
use std::io::Read;

const HEADER_BYTES: usize = 64;
const MAGIC2: [u8; 4] = *b"RSC\x05";
const MAGIC2_AT: usize = 0x38;
/// `IMAGE_FILE_MACHINE_RISCV64`.
const PE_RISCV64: u16 = 0x5064;
/// The start of Linux's banner (`init/version-timestamp.c`). Images that are not Linux have the header, too.
const BANNER: &[u8] = b"Linux version ";
/// No machine has so much memory.
const TOO_LONG: u64 = 1 << 48;

/// Returns whether the file has the header.
pub fn is_image(bytes: &[u8]) -> bool {
    field(bytes, MAGIC2_AT) == Some(MAGIC2)
}

/// Reads an image.
pub fn read(bytes: Vec<u8>) -> Result<Payload, Unfit> {
    let header = Header::read(&bytes)
        .ok_or_else(|| Unfit::new("is cut off in its header", "copy the file again, or build it again"))?;
    if header.flags & 1 != 0 {
        return Err(Unfit::new("is a big-endian Linux Image", "build the kernel for little-endian RISC-V"));
    }
    let file_bytes = bytes.len() as u64;
    // The header promises the extent in memory, of which any part may be zeros that no file has.
    let need = sections_end(&bytes)?.unwrap_or(0);
    if file_bytes < need {
        return Err(Unfit::new(
            format!("is truncated: it has {}, its header promises at least {}", Size(file_bytes), Size(need)),
            "copy the file again, or build it again",
        ));
    }
    if header.image_bytes >= TOO_LONG {
        return Err(Unfit::new(
            format!("has a header that says {:#x} bytes of memory", header.image_bytes),
            "copy the file again, or build it again",
        ));
    }
    // Old images say 0: the boot protocol then asks for any 2 MiB boundary.
    let gpa = match header.text_offset {
        0 => GUEST_ENTRY,
        offset if offset.is_multiple_of(SUPERPAGE) && offset < 1 << 40 => GUEST_RAM_BASE + offset,
        offset => {
            return Err(Unfit::new(
                format!("has a header that says offset {offset:#x} in RAM, which is not a multiple of 2 MiB"),
                "use a kernel for 64-bit RISC-V with a valid Image header",
            ));
        }
    };
    let kind = if memmem::find(&bytes, BANNER).is_some() { Kind::Linux } else { Kind::Image };
    Ok(Payload { kind, gpa, entry_gpa: gpa, span_bytes: file_bytes.max(header.image_bytes), bytes })
}

/// The configuration in a kernel that has it (`kernel/configs.c`), up to a bound.
pub fn config(bytes: &[u8]) -> Option<String> {
    const START: &[u8] = b"IKCFG_ST\x1f\x8b";
    const MOST_BYTES: u64 = 1 << 24;
    let at = memmem::find(bytes, START)? + START.len() - 2;
    let mut text = String::new();
    flate2::read::GzDecoder::new(&bytes[at..]).take(MOST_BYTES).read_to_string(&mut text).ok()?;
    Some(text)
}

struct Header {
    text_offset: u64,
    image_bytes: u64,
    flags: u64,
}

impl Header {
    fn read(bytes: &[u8]) -> Option<Self> {
        bytes.get(..HEADER_BYTES)?;
        let word = |at| field(bytes, at).map(u64::from_le_bytes);
        Some(Self { text_offset: word(8)?, image_bytes: word(16)?, flags: word(24)? })
    }
}

/// Returns the end of the last section in the file, if the image has an EFI stub with a table of sections.
fn sections_end(bytes: &[u8]) -> Result<Option<u64>, Unfit> {
    if field(bytes, 0) != Some(*b"MZ") {
        return Ok(None);
    }
    let half = |at| field(bytes, at).map(u16::from_le_bytes);
    let word = |at| field(bytes, at).map(u32::from_le_bytes);
    let table = || -> Option<Result<u64, u16>> {
        let pe = word(0x3c)? as usize;
        (field(bytes, pe)? == *b"PE\0\0").then_some(())?;
        let machine = half(pe + 4)?;
        if machine != PE_RISCV64 {
            return Some(Err(machine));
        }
        let count = half(pe + 6)?;
        let first = pe + 24 + usize::from(half(pe + 20)?);
        let ends = (0..usize::from(count))
            .map(|section| {
                let at = first + 40 * section;
                Some(u64::from(word(at + 16)?) + u64::from(word(at + 20)?))
            })
            .collect::<Option<Vec<_>>>()?;
        ends.into_iter().max().map(Ok)
    };
    match table() {
        Some(Ok(end)) => Ok(Some(end)),
        Some(Err(machine)) => Err(Unfit::new(
            format!("is an EFI image for another machine (PE machine {machine:#x})"),
            "use a kernel for 64-bit RISC-V",
        )),
        None => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(file_bytes: usize, image_bytes: u64, text_offset: u64) -> Vec<u8> {
        let mut bytes = vec![0; file_bytes];
        bytes[8..16].copy_from_slice(&text_offset.to_le_bytes());
        bytes[16..24].copy_from_slice(&image_bytes.to_le_bytes());
        bytes[0x30..0x38].copy_from_slice(b"RISCV\0\0\0");
        bytes[0x38..0x3c].copy_from_slice(&MAGIC2);
        bytes
    }

    /// Builds an image like Debian's: MZ, PE header at 0x40, and these sections.
    fn efi_image(file_bytes: usize, sections: &[(u32, u32)], machine: u16) -> Vec<u8> {
        let mut bytes = image(file_bytes, 0x8000, 0x20_0000);
        bytes[..2].copy_from_slice(b"MZ");
        bytes[0x3c] = 0x40;
        bytes[0x40..0x44].copy_from_slice(b"PE\0\0");
        bytes[0x44..0x46].copy_from_slice(&machine.to_le_bytes());
        bytes[0x46] = sections.len() as u8;
        bytes[0x54] = 0xa0;
        for (i, (size, at)) in sections.iter().enumerate() {
            let entry = 0x40 + 24 + 0xa0 + 40 * i;
            bytes[entry + 16..entry + 20].copy_from_slice(&size.to_le_bytes());
            bytes[entry + 20..entry + 24].copy_from_slice(&at.to_le_bytes());
        }
        bytes
    }

    #[test]
    fn the_header_places_it() {
        let payload = read(image(0x3000, 0x8000, 0x20_0000)).expect("an image");
        assert_eq!((payload.gpa, payload.entry_gpa, payload.span_bytes), (0x8020_0000, 0x8020_0000, 0x8000));
        assert_eq!(read(image(0x3000, 0x8000, 0)).expect("an image").gpa, GUEST_ENTRY);
        assert!(read(image(0x3000, 0x8000, 0x1000)).expect_err("misplaced").what.contains("2 MiB"));
    }

    #[test]
    fn a_kernel_tells_its_configuration() {
        let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        std::io::Write::write_all(&mut packer, b"CONFIG_A=y\n").expect("in memory");
        let packed = packer.finish().expect("in memory");
        let bytes = [&[0; 5], &b"IKCFG_ST"[..], &packed, b"IKCFG_ED"].concat();
        assert_eq!(config(&bytes).as_deref(), Some("CONFIG_A=y\n"));
        assert_eq!((config(b"IKCFG_ST\x1f\x8b"), config(b"")), (None, None));
    }

    #[test]
    fn cut_images_are_refused() {
        assert!(read(image(64, 0x8000, 0x20_0000)).is_ok(), "the rest may be zeros");
        let sections = [(0x2000, 0x1000), (0x1000, 0x3000)];
        assert!(read(efi_image(0x4000, &sections, PE_RISCV64)).is_ok());
        let error = read(efi_image(0x3fff, &sections, PE_RISCV64)).expect_err("cut");
        assert!(error.what.contains("truncated") && error.what.contains("16 KiB"), "{}", error.what);
    }

    #[test]
    fn an_extent_beyond_all_memory_is_refused() {
        for extent in [TOO_LONG, u64::MAX - 0x8000_0000, u64::MAX] {
            assert!(read(image(0x3000, extent, 0x20_0000)).expect_err("too long").what.contains("bytes of memory"));
        }
        assert!(read(image(0x3000, TOO_LONG - 1, 0x20_0000)).is_ok());
    }

    #[test]
    fn another_machine_is_refused() {
        let error = read(efi_image(0x4000, &[(1, 1)], 0xaa64)).expect_err("arm");
        assert!(error.what.contains("0xaa64"), "{}", error.what);
    }

    #[test]
    fn no_bytes_make_it_panic() {
        let good = efi_image(0x400, &[(0x100, 0x300)], PE_RISCV64);
        for at in 0..good.len() {
            for value in [0, 0x7f, 0xff] {
                let mut bytes = good.clone();
                bytes[at] = value;
                let _ = read(bytes);
            }
            if at >= MAGIC2_AT + 4 {
                let _ = read(good[..at].to_vec());
            }
        }
    }

    #[test]
    fn who_has_the_header_only_is_not_linux() {
        let mut bytes = image(4096, 8192, 0x20_0000);
        assert_eq!(read(bytes.clone()).expect("an image").kind, Kind::Image);
        bytes[1000..1014].copy_from_slice(BANNER);
        assert_eq!(read(bytes).expect("an image").kind, Kind::Linux);
    }
}
