use super::bytes::Bytes;
use super::device::{DeviceState, PlicState, QueueState, RtcState, UartState, VirtioState};
use super::file::{Bad, HEADER, PAGE, Part, Reader, Writer};
use super::*;
use alloc::vec;

fn state() -> State {
    let vcpu = VcpuState {
        is_started: true,
        is_supervisor: false,
        x: [7; 32],
        pc: 0x8020_0000,
        f: [1 << 63; 32],
        fcsr: 3,
        v: Bytes(vec![9; 512]),
        vector: [0, 16, 0xc0, 0],
        csrs: Csrs { satp: 8 << 60 | 5, ..Csrs::default() },
        is_software_pending: true,
        timer: NEVER,
        delegates_misaligned: true,
        is_locked: false,
        root_cache: Some(RootCacheState { at: 0x8000_3000, places: 4, is_tagged: true }),
        counters: vec![CounterState { number: 3, event: Some(1), data: 0, worlds: 3, value: !0, is_running: true }],
        nested: Some(NestedState {
            csrs: NestedCsrs { hgatp: 8 << 60 | 5, ..NestedCsrs::default() },
            runs_l2: true,
            ..NestedState::default()
        }),
        kernel: Some(KernelState { pc: 0x8020_0004, page: 0x8030_0000, sie: 0x222, ..KernelState::default() }),
    };
    let queue = QueueState { size: 64, ready: Some([1, 0, u16::MAX]), ..QueueState::default() };
    let devices = [
        DeviceState::Uart(UartState { received: Bytes(b"ls\n".to_vec()), ..UartState::default() }),
        DeviceState::Rtc(RtcState { ahead: u64::MAX, ..RtcState::default() }),
        DeviceState::Virtio(VirtioState { id: 2, queues: vec![queue], ..VirtioState::default() }),
    ];
    State {
        told: Told {
            name: "linux".into(),
            memory_bytes: 8 * PAGE as u64,
            timebase: 10_000_000,
            time: 12345,
            isa: vec!["i".into(), "sstc".into()],
            blocks: [64, 64, 0],
            formats: vec![8, 9],
            vlenb: 16,
            svadu: false,
            has_balloon: true,
            disks: vec![DiskState { sectors: 8, is_read_only: true }],
            mac: Some(Mac([2; 6])),
            shares: vec!["src".into()],
            has_rng: true,
            has_virtio_console: true,
            ports: vec!["agent".into()],
            has_pmu: true,
        },
        vcpus: vec![vcpu; 2],
        events: EventsState { local: vec![EventState::default(); 2], ..EventsState::default() },
        plic: PlicState { priority: vec![7; 96], contexts: vec![(vec![1; 3], 2); 4], ..PlicState::default() },
        spaces: vec![SpaceState { root: Some(8 << 60 | 5), generation: 3, running: 2 }],
        devices: devices.into_iter().map(|device| Placed { at: 0x1000_0000, device }).collect(),
    }
}

/// A file with pages 1, 2 and 5.
fn file() -> Vec<u8> {
    let (mut writer, mut file) = Writer::begin(&state().encode());
    for (first, count) in [(1, 2), (5, 1)] {
        let pages = vec![first as u8; count * PAGE];
        file.extend(writer.pages(first, &pages));
        file.extend(pages);
    }
    file.extend(writer.end());
    file
}

/// The state, and pages by their first number and length.
type Content = (State, Vec<(u64, usize)>);

/// The contents of a file, or its fault; `None` if it is cut off.
fn read(mut file: &[u8]) -> Result<Option<Content>, Bad> {
    let (mut reader, mut state, mut pages) = (Reader::default(), None, Vec::new());
    loop {
        let Some((piece, rest)) = file.split_at_checked(reader.wants()) else { return Ok(None) };
        file = rest;
        match reader.take(piece)? {
            Part::Nothing => {}
            Part::State(found) => state = Some(*found),
            Part::Pages { first, bytes } => {
                assert!(bytes.iter().all(|byte| u64::from(*byte) == first));
                pages.push((first, bytes.len()));
            }
            Part::End => return Ok(state.map(|state| (state, pages))),
        }
    }
}

#[test]
fn a_snapshot_comes_back() {
    assert_eq!(read(&file()), Ok(Some((state(), vec![(1, 2 * PAGE), (5, PAGE)]))));
    assert_eq!(State::decode(&state().encode()), Some(state()));
}

#[test]
fn each_flipped_bit_is_noticed() {
    let good = file();
    // All of what is not pages, and some of those.
    for at in (0..good.len()).filter(|at| *at < 2048 || *at > good.len() - 200 || at % 97 == 0) {
        for bit in 0..8 {
            let mut bad = good.clone();
            bad[at] ^= 1 << bit;
            assert!(read(&bad).is_err() || read(&bad) == Ok(None), "byte {at}, bit {bit}");
        }
    }
}

#[test]
fn a_file_that_is_cut_off_never_ends() {
    let good = file();
    for length in (0..good.len()).filter(|length| *length < 2048 || length % 61 == 0) {
        assert_eq!(read(&good[..length]), Ok(None), "{length}");
    }
}

#[test]
fn other_versions_and_other_files_are_told_apart() {
    let mut other = file();
    other[8] = 1;
    let sum = Crc::<u32>::new(&CRC_32_ISO_HDLC).checksum(&other[..12]);
    other[12..HEADER].copy_from_slice(&sum.to_le_bytes());
    assert_eq!(read(&other), Err(Bad::Version(1)));
    other[0] = b'g';
    assert_eq!(read(&other), Err(Bad::NotASnapshot));
    assert_eq!(Reader::default().take(&[]), Err(Bad::Malformed("it is truncated")));
}

use crc::{CRC_32_ISO_HDLC, Crc};

#[test]
fn pages_ascend_within_ram() {
    let write = |sections: &[u64]| {
        let (mut writer, mut file) = Writer::begin(&state().encode());
        for first in sections {
            let page = vec![*first as u8; PAGE];
            file.extend(writer.pages(*first, &page));
            file.extend(page);
        }
        file.extend(writer.end());
        file
    };
    assert!(read(&write(&[0, 7])).is_ok());
    assert_eq!(read(&write(&[8])), Err(Bad::Malformed("it has pages beyond its RAM")));
    assert_eq!(read(&write(&[u64::MAX])), Err(Bad::Malformed("it has pages beyond its RAM")));
    assert_eq!(read(&write(&[3, 3])), Err(Bad::Malformed("its pages do not ascend")));
}

#[test]
fn lists_that_no_vm_has_are_refused() {
    type Change = fn(&mut State);
    let changes: [(bool, Change); 8] = [
        (true, |_| {}),
        (true, |state| state.vcpus = vec![VcpuState { x: [u64::MAX; 32], ..state.vcpus[0].clone() }; 32]),
        (true, |state| state.vcpus.iter_mut().for_each(|vcpu| vcpu.v.0.resize(128 << 10, 0))),
        (true, |state| match &mut state.devices[0].device {
            DeviceState::Uart(uart) => uart.received.0.resize(16 << 10, 1),
            other => panic!("{other:?}"),
        }),
        (false, |state| state.told.isa = vec![Default::default(); 30_000]),
        (false, |state| state.vcpus = vec![VcpuState::default(); 3000]),
        (false, |state| state.plic.contexts = vec![(vec![], 0); 15_000]),
        (false, |state| state.vcpus[0].v.0.resize(MOST_STATE_BYTES, 0)),
    ];
    for (n, (is_taken, change)) in changes.into_iter().enumerate() {
        let mut state = state();
        change(&mut state);
        assert_eq!(State::decode(&state.encode()).is_some(), is_taken, "{n}");
    }
}

#[test]
fn ram_that_there_cannot_be_is_refused() {
    for ram in [MOST_RAM_BYTES, u64::MAX - 4095] {
        let mut state = state();
        state.told.memory_bytes = ram;
        let (_, front) = Writer::begin(&state.encode());
        assert_eq!(read(&front), Err(Bad::Malformed("it has more RAM than there can be")));
    }
}

#[test]
fn nothing_is_reserved_for_what_a_head_says() {
    let mut reader = Reader::default();
    let good = file();
    assert_eq!(reader.take(&good[..HEADER]), Ok(Part::Nothing));
    let mut head = good[HEADER..HEADER + 24].to_vec();
    head[16..].copy_from_slice(&u64::MAX.to_le_bytes());
    assert_eq!(reader.take(&head), Err(Bad::Damaged));
}
