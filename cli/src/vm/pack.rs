//! Makes bundles: the file that Gnomon gets, with every VM's configuration and images.

use crate::host::size::{PAGE, SUPERPAGE};
use abi::bundle::{Config, ConsoleMode, Segment, VmConfig};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::io::{Seek, SeekFrom, Write};

/// An image that a bundle will hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ImageId(usize);

struct Image {
    bytes: Vec<u8>,
    align: u64,
}

/// Collects images, each content once.
#[derive(Default)]
pub struct Pack {
    images: Vec<Image>,
    by_hash: BTreeMap<[u8; 32], ImageId>,
}

/// An image and its place in a guest's RAM.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Placed {
    /// The image.
    pub image: ImageId,
    /// Its place; page-aligned.
    pub gpa: u64,
    /// Its name in messages.
    pub label: &'static str,
}

impl Pack {
    /// Adds an image. A content that is there already is not stored again.
    pub fn add(&mut self, bytes: Vec<u8>) -> ImageId {
        let hash: [u8; 32] = Sha256::digest(&bytes).into();
        let Self { images, by_hash } = self;
        *by_hash.entry(hash).or_insert_with(|| {
            // Large images go to 2 MiB boundaries, so that superpages can map them.
            let align = if bytes.len() as u64 >= SUPERPAGE { SUPERPAGE } else { PAGE };
            images.push(Image { bytes, align });
            ImageId(images.len() - 1)
        })
    }

    /// Writes the bundle; returns its length in bytes. Each VM's segments are made from what is
    /// placed in it.
    ///
    /// # Errors
    /// What the writer reports.
    pub fn write(
        &self,
        vms: Vec<(VmConfig, Vec<Placed>)>,
        (console, settings): (ConsoleMode, &[String]),
        out: &mut (impl Write + Seek),
    ) -> std::io::Result<u64> {
        let mut placed_by_vm = Vec::new();
        let mut config = Config { vms: Vec::new(), console, settings: settings.to_vec() };
        for (mut vm, mut placed) in vms {
            placed.sort_by_key(|placed| placed.gpa);
            vm.segments = placed
                .iter()
                .map(|placed| Segment {
                    gpa: placed.gpa,
                    offset: 0,
                    bytes: self.images[placed.image.0].bytes.len() as u64,
                    label: placed.label.into(),
                })
                .collect();
            config.vms.push(vm);
            placed_by_vm.push(placed);
        }
        let mut end = config.front_bytes();
        let offsets: Vec<u64> = self
            .images
            .iter()
            .map(|image| {
                let offset = end.next_multiple_of(image.align);
                end = (offset + image.bytes.len() as u64).next_multiple_of(PAGE);
                offset
            })
            .collect();
        for (vm, placed) in config.vms.iter_mut().zip(placed_by_vm) {
            for (segment, placed) in vm.segments.iter_mut().zip(placed) {
                segment.offset = offsets[placed.image.0];
            }
        }
        out.write_all(&config.encode(end))?;
        for (image, offset) in self.images.iter().zip(offsets) {
            out.seek(SeekFrom::Start(offset))?;
            out.write_all(&image.bytes)?;
        }
        // Ends with a whole page. Gaps that were seeked over read as zeros.
        let written = out.stream_position()?;
        out.write_all(&vec![0; (end - written.min(end)) as usize])?;
        out.flush()?;
        Ok(end)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use abi::bundle::GUEST_ENTRY;
    use std::io::Cursor;

    pub(crate) fn vm(name: &str) -> VmConfig {
        VmConfig {
            name: name.into(),
            after: None,
            memory_bytes: 1 << 28,
            limit_bytes: None,
            reserve_bytes: 0,
            wired: false,
            vcpus: 1,
            mmu: None,
            lane: true,
            svvptc: true,
            svadu: None,
            nested: false,
            l2: abi::bundle::L2Tables::default(),
            vmspace: abi::vmspace::Way::default(),
            shadow_bytes: None,
            superpages: true,
            gigapages: false,
            balloon_bytes: None,
            disks: vec![],
            shares: vec![],
            rng: false,
            virtio_console: false,
            power_key: false,
            ports: vec![],
            mac: None,
            segments: vec![],
            entry_gpa: GUEST_ENTRY,
            initrd: None,
            bootargs: String::new(),
            boot_command: None,
            rng_seed: vec![],
            restore: None,
            incoming: false,
        }
    }

    #[test]
    fn images_are_stored_once_and_come_back() {
        let mut pack = Pack::default();
        let kernel: Vec<u8> = (0..3_000_000u32).map(|i| i as u8).collect();
        let (k, i) = (pack.add(kernel.clone()), pack.add(vec![7; 5000]));
        assert_eq!(pack.add(kernel.clone()), k);
        let place = |image, gpa, label| Placed { image, gpa, label };
        let mut out = Cursor::new(Vec::new());
        let both = vec![place(i, 0x8800_0000, "initrd"), place(k, GUEST_ENTRY, "kernel")];
        let vms = vec![(vm("a"), both), (vm("b"), vec![place(k, GUEST_ENTRY, "kernel")])];
        let total = pack.write(vms, (ConsoleMode::Lines, &[]), &mut out).expect("in memory");
        let bytes = out.into_inner();
        assert_eq!(bytes.len() as u64, total);
        let config = Config::parse(&bytes).expect("a bundle");
        let segments = &config.vms[0].segments;
        assert_eq!(segments.iter().map(|s| s.label.as_str()).collect::<Vec<_>>(), ["kernel", "initrd"]);
        assert_eq!(segments[0].offset, config.vms[1].segments[0].offset);
        assert!(segments[0].offset.is_multiple_of(SUPERPAGE) && total.is_multiple_of(PAGE));
        let content = |s: &Segment| bytes[s.offset as usize..][..s.bytes as usize].to_vec();
        assert_eq!((content(&segments[0]), content(&segments[1])), (kernel, vec![7; 5000]));
    }

    #[test]
    fn a_bundle_without_images_is_whole() {
        let mut out = Cursor::new(Vec::new());
        let total =
            Pack::default().write(vec![(vm("a"), vec![])], (ConsoleMode::Attached, &[]), &mut out).expect("in memory");
        assert_eq!(out.into_inner().len() as u64, total);
    }
}
