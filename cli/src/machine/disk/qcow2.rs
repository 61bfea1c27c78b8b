//! The header of an image in format qcow2, as far as it names other files (QEMU's `docs/interop/qcow2.txt`).

use std::fs::File;
use std::io::{Error, Read, Result, Seek, SeekFrom};

/// The first bytes of an image.
pub(super) const MAGIC: [u8; 4] = *b"QFI\xfb";
/// The length of the header's fields in version 2, which has no field for it.
const VERSION_2_BYTES: u32 = 72;
/// The bit of the incompatible features for an external data file.
const EXTERNAL_DATA: u64 = 1 << 2;
/// The header extension with the external data file's name.
const DATA_NAME: u32 = 0x4441_5441;
/// The sizes of clusters, as powers of two. The header is within the first cluster.
const CLUSTER_BITS: std::ops::RangeInclusive<u32> = 9..=21;

/// The other files that an image's header names.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(super) struct Header {
    /// The backing file, if there is one.
    pub(super) backing: Option<String>,
    /// The external data file, if there is one. Its name may be absent from the header, which is an empty text then.
    pub(super) data: Option<String>,
}

/// Reads the header of a file; `None` if the file does not begin like an image.
///
/// # Errors
/// If the file cannot be read, or the header is damaged.
pub(super) fn read(mut file: &File) -> Result<Option<Header>> {
    file.seek(SeekFrom::Start(0))?;
    let mut start = Vec::new();
    file.take(MAGIC.len() as u64).read_to_end(&mut start)?;
    if start != MAGIC {
        return Ok(None);
    }
    file.take(1 << CLUSTER_BITS.end()).read_to_end(&mut start)?;
    let damaged = || Error::other("its header is damaged");
    parse(&start).map(Some).ok_or_else(damaged)
}

/// Reads the header in the first bytes of an image.
fn parse(start: &[u8]) -> Option<Header> {
    let cluster = number(start, 20).filter(|bits| CLUSTER_BITS.contains(bits)).map(|bits| 1 << bits)?;
    let start = &start[..start.len().min(cluster)];
    let (backing_at, backing_bytes) = (long(start, 8)?, number(start, 16)?);
    let backing = match usize::try_from(backing_at).ok()? {
        0 => None,
        at => Some(text(start.get(at..at.checked_add(backing_bytes as usize)?)?)),
    };
    let (features, header_bytes) = match number(start, 4)? {
        2 => (0, VERSION_2_BYTES),
        3.. => (long(start, 72)?, number(start, 100)?),
        _ => return None,
    };
    let has_data = features & EXTERNAL_DATA != 0;
    let data = if has_data { Some(data_name(start, header_bytes as usize)?.unwrap_or_default()) } else { None };
    Some(Header { backing, data })
}

/// The name of the external data file among the header's extensions, which begin at `at`; `None` if an extension is damaged.
fn data_name(start: &[u8], mut at: usize) -> Option<Option<String>> {
    loop {
        let (kind, bytes) = (number(start, at)?, number(start, at + 4)? as usize);
        let content = start.get(at + 8..(at + 8).checked_add(bytes)?)?;
        match kind {
            0 => return Some(None),
            DATA_NAME => return Some(Some(text(content))),
            _ => at += 8 + bytes.next_multiple_of(8),
        }
    }
}

fn number(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at.checked_add(4)?)?.try_into().ok().map(u32::from_be_bytes)
}

fn long(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..at.checked_add(8)?)?.try_into().ok().map(u64::from_be_bytes)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// An image of that version without sectors, whose header names these files.
    pub(in super::super) fn image(version: u32, backing: Option<&str>, data: Option<&str>) -> Vec<u8> {
        let mut bytes = vec![0; 4096];
        let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
        put(0, &MAGIC);
        put(4, &version.to_be_bytes());
        put(20, &12_u32.to_be_bytes());
        if let Some(name) = backing {
            put(8, &1024_u64.to_be_bytes());
            put(16, &(name.len() as u32).to_be_bytes());
            put(1024, name.as_bytes());
        }
        if version > 2 {
            put(100, &104_u32.to_be_bytes());
        }
        // An extension of another kind comes first.
        put(104, &[1, 2, 3, 4, 0, 0, 0, 5]);
        if let Some(name) = data {
            put(72, &EXTERNAL_DATA.to_be_bytes());
            put(120, &DATA_NAME.to_be_bytes());
            put(124, &(name.len() as u32).to_be_bytes());
            put(128, name.as_bytes());
        }
        bytes
    }

    #[test]
    fn headers_name_files() {
        let header = |backing: Option<&str>, data: Option<&str>| {
            Some(Header { backing: backing.map(str::to_owned), data: data.map(str::to_owned) })
        };
        for backing in [None, Some("json:{}")] {
            assert_eq!(parse(&image(2, backing, None)), header(backing, None));
            for data in [None, Some(""), Some("../a")] {
                assert_eq!(parse(&image(3, backing, data)), header(backing, data));
            }
        }
    }

    #[test]
    fn damaged_headers_are_noticed() {
        let good = image(3, Some("a"), Some("b"));
        let with = |at: usize, value: u8| {
            let mut bytes = good.clone();
            bytes[at] = value;
            parse(&bytes)
        };
        for (at, value) in
            [(7, 1), (8, 255), (14, 255), (16, 255), (23, 8), (23, 22), (100, 255), (108, 255), (124, 255)]
        {
            assert_eq!(with(at, value), None, "{at}");
        }
        assert!((0..1025).all(|end| parse(&good[..end]).is_none()));
    }
}
