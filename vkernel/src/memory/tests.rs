//! Random edits of spaces and accesses to them, against a model: a list of pages with their rights and contents.

use super::frames::{self, Frame, PAGE};
use super::object::{Object, Store};
use super::space::{Place, Region, Remap, Rights, Source, Space, shared_memory};
use crate::errno::Errno;
use crate::machine::{RAM_BYTES, RAM_START};
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cell::Cell;
use proptest::prelude::*;
use std::rc::Rc;
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

const PAGE_U64: u64 = PAGE as u64;
/// The first page of the addresses that are used, and their number.
const FIRST: u64 = 0x100;
const PAGES: u64 = 24;

/// Makes RAM available. Tests that count frames run one at a time.
pub(crate) fn ram() -> MutexGuard<'static, ()> {
    static START: Once = Once::new();
    static ONE: Mutex<()> = Mutex::new(());
    let guard = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    START.call_once(|| {
        let end = RAM_START + RAM_BYTES as u64;
        // A range in the middle is used already.
        #[expect(unsafe_code, reason = "the memory in place of RAM")]
        // SAFETY: the memory is used for nothing else.
        unsafe {
            frames::start((RAM_START, end), &[(RAM_START + 0x10_0800, RAM_START + 0x10_1800)]);
        }
    });
    guard
}

/// The content of a page: shared ones have one cell.
#[derive(Clone, Debug)]
struct Model {
    rights: Rights,
    value: Rc<Cell<u8>>,
    is_shared: bool,
    /// The value that it has again when it is discarded.
    origin: u8,
}

#[derive(Clone, Debug)]
enum Op {
    Map { page: u64, pages: u64, rights: u8, kind: u8 },
    Unmap { page: u64, pages: u64 },
    Protect { page: u64, pages: u64, rights: u8 },
    Discard { page: u64, pages: u64 },
    Move { from: u64, to: u64, pages: u64 },
    Write { page: u64, value: u8 },
    Read { page: u64 },
    Fork,
    Turn { space: usize },
    End { space: usize },
}

fn op() -> impl Strategy<Value = Op> {
    let (page, pages) = (|| FIRST..FIRST + PAGES, || 1..6u64);
    prop_oneof![
        4 => (page(), pages(), 0..8u8, 0..4u8).prop_map(|(page, pages, rights, kind)| Op::Map { page, pages, rights, kind }),
        2 => (page(), pages()).prop_map(|(page, pages)| Op::Unmap { page, pages }),
        3 => (page(), pages(), 0..8u8).prop_map(|(page, pages, rights)| Op::Protect { page, pages, rights }),
        1 => (page(), pages()).prop_map(|(page, pages)| Op::Discard { page, pages }),
        1 => (page(), page(), pages()).prop_map(|(from, to, pages)| Op::Move { from, to, pages }),
        12 => (page(), any::<u8>()).prop_map(|(page, value)| Op::Write { page, value }),
        12 => page().prop_map(|page| Op::Read { page }),
        1 => Just(Op::Fork),
        2 => (0..4usize).prop_map(|space| Op::Turn { space }),
        1 => (0..4usize).prop_map(|space| Op::End { space }),
    ]
}

fn rights(bits: u8) -> Rights {
    let mut rights = Rights::empty();
    rights.set(Rights::R, bits & 3 != 0);
    rights.set(Rights::W, bits & 2 != 0);
    rights.set(Rights::X, bits & 4 != 0);
    rights
}

struct Rig {
    spaces: Vec<(Arc<Space>, BTreeMap<u64, Model>)>,
    current: usize,
    file: Arc<Store>,
}

/// The first byte of a page of the file.
fn in_file(page: u64) -> u8 {
    100 + page as u8
}

impl Rig {
    fn new() -> Self {
        let file = Store::new(0);
        for page in 0..8 {
            file.write(page * PAGE_U64, &[in_file(page)]).expect("room");
        }
        Self { spaces: vec![(Space::new().expect("memory"), BTreeMap::new())], current: 0, file }
    }

    fn run(&mut self, op: &Op) {
        let count = self.spaces.len();
        let (space, model) = &mut self.spaces[self.current];
        match *op {
            Op::Map { page, pages, rights: bits, kind } => {
                let (source, is_shared) = match kind {
                    0 | 1 => (Source::Anonymous, false),
                    2 => (shared_memory(pages * PAGE_U64), true),
                    _ => (Source::Object(Arc::clone(&self.file) as Arc<dyn Object>, 1), false),
                };
                let region = Region { source, is_shared, ..Region::anonymous(pages * PAGE_U64, rights(bits)) };
                assert_eq!(space.map(Place::Exactly(page * PAGE_U64), region), Ok(page * PAGE_U64));
                for n in 0..pages {
                    let origin = if kind == 3 { in_file(n + 1) } else { 0 };
                    let value = Rc::new(Cell::new(origin));
                    model.insert(page + n, Model { rights: rights(bits), value, is_shared, origin });
                }
            }
            Op::Unmap { page, pages } => {
                assert_eq!(space.unmap(page * PAGE_U64, pages * PAGE_U64), Ok(()));
                (page..page + pages).for_each(|page| drop(model.remove(&page)));
            }
            Op::Protect { page, pages, rights: bits } => {
                let result = space.protect(page * PAGE_U64, pages * PAGE_U64, rights(bits));
                let whole = (page..page + pages).take_while(|page| model.contains_key(page)).count() as u64;
                assert_eq!(result, if whole == pages { Ok(()) } else { Err(Errno::NOMEM) });
                for page in page..page + whole {
                    if let Some(model) = model.get_mut(&page) {
                        model.rights = rights(bits);
                    }
                }
            }
            Op::Discard { page, pages } => {
                let is_whole = (page..page + pages).all(|page| model.contains_key(&page));
                let result = space.discard(page * PAGE_U64, pages * PAGE_U64);
                assert_eq!(result, if is_whole { Ok(()) } else { Err(Errno::NOMEM) });
                for page in page..page + pages {
                    if let Some(model) = model.get_mut(&page).filter(|model| !model.is_shared) {
                        model.value = Rc::new(Cell::new(model.origin));
                    }
                }
            }
            Op::Move { from, to, pages } => {
                let is_apart = from + pages <= to || to + pages <= from;
                let (start, bytes) = (from * PAGE_U64, pages * PAGE_U64);
                let result = space.remap(start, bytes, bytes, Remap::To(to * PAGE_U64), false);
                match result {
                    Ok(at) => {
                        assert!(is_apart && at == to * PAGE_U64);
                        for n in 0..pages {
                            let moved = model.remove(&(from + n)).expect("a region that was moved");
                            model.insert(to + n, moved);
                        }
                    }
                    Err(Errno::INVAL) => assert!(!is_apart),
                    // Not all of it is one region, which the model does not know of.
                    Err(why) => assert_eq!(why, Errno::FAULT),
                }
            }
            Op::Write { page, value } => {
                let result = space.put(page * PAGE_U64, &value);
                let model = model.get(&page).filter(|model| model.rights.contains(Rights::W));
                assert_eq!(result, model.map_or(Err(Errno::FAULT), |_| Ok(())), "{page:#x}");
                model.iter().for_each(|model| model.value.set(value));
            }
            Op::Read { page } => {
                let model = model.get(&page).filter(|model| model.rights.contains(Rights::R));
                let expected = model.map_or(Err(Errno::FAULT), |model| Ok(model.value.get()));
                assert_eq!(space.get::<u8>(page * PAGE_U64), expected, "{page:#x}");
            }
            Op::Fork if count < 4 => {
                let copy = space.fork().expect("memory");
                let mut copied = model.clone();
                for model in copied.values_mut().filter(|model| !model.is_shared) {
                    model.value = Rc::new(Cell::new(model.value.get()));
                }
                self.spaces.push((copy, copied));
            }
            Op::Fork => {}
            Op::Turn { space } => self.current = space % count,
            Op::End { space } if count > 1 => {
                self.spaces.remove(space % count);
                self.current = 0;
            }
            Op::End { .. } => {}
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]
    #[test]
    fn spaces_are_what_the_model_says(ops in prop::collection::vec(op(), 1..200)) {
        let _ram = ram();
        // The frame of zeroes is kept for ever.
        let _ = super::space::zeroes();
        let (free, _) = frames::free_and_all();
        let mut rig = Rig::new();
        ops.iter().for_each(|op| rig.run(op));
        drop(rig);
        prop_assert_eq!(frames::free_and_all().0, free, "frames were lost");
    }
}

#[test]
fn frames_come_back_and_become_blocks_again() {
    let _ram = ram();
    let (free, all) = frames::free_and_all();
    assert!(free <= all && all < RAM_BYTES / PAGE);
    let taken: Vec<Frame> = std::iter::from_fn(Frame::zeroed).collect();
    // The rest is the kernel's own.
    assert!((1..all / 32).contains(&frames::free_and_all().0));
    let mut numbers: Vec<u64> = taken.iter().map(Frame::pa).collect();
    numbers.sort_unstable();
    assert!(numbers.windows(2).all(|pair| pair[0] < pair[1]));
    assert!(numbers.iter().all(|pa| !(RAM_START + 0x10_0000..RAM_START + 0x10_2000).contains(pa)), "a used range");
    drop(taken);
    assert_eq!(frames::free_and_all().0, free);
    assert!(frames::take_block(10).is_some());
}

#[test]
fn a_file_of_an_archive_changes_without_its_origin() {
    let _ram = ram();
    static ORIGIN: [u8; 10_000] = [7; 10_000];
    let store = Store::from_static(&ORIGIN);
    let mut bytes = [0; 4];
    assert_eq!((store.read(9_998, &mut bytes), bytes), (2, [7, 7, 0, 0]));
    assert_eq!(store.frames(), 0);
    store.write(4095, &[1, 2]).expect("room");
    assert_eq!((store.read(4094, &mut bytes), bytes), (4, [7, 1, 2, 7]));
    // What is cut off reads as zero when the file grows again.
    store.resize(4097);
    store.resize(9_000);
    assert_eq!((store.read(4096, &mut bytes), bytes), (4, [2, 0, 0, 0]));
    assert_eq!((store.read(8_998, &mut bytes), &bytes[..2]), (2, &[0, 0][..]));
    assert!(matches!(store.page(3), Err(super::object::NoPage::Behind)));
}

#[test]
fn addresses_are_chosen_from_the_top_and_the_heap_grows() {
    let _ram = ram();
    let space = Space::new().expect("memory");
    let region = || Region::anonymous(3 * PAGE_U64, Rights::R | Rights::W);
    let first = space.map(Place::Anywhere(0), region()).expect("room");
    let second = space.map(Place::Anywhere(first), region()).expect("room");
    assert_eq!(second + 3 * PAGE_U64, first);
    assert_eq!(space.map(Place::IfFree(first), region()), Err(Errno::EXIST));
    assert_eq!(space.map(Place::Exactly(0), region()), Err(Errno::PERM));
    assert_eq!(space.map(Place::Anywhere(0), Region::anonymous(1 << 38, Rights::R)), Err(Errno::NOMEM));
    space.start_heap(0x20_0000);
    assert_eq!(space.set_heap_end(0), 0x20_0000);
    assert_eq!(space.set_heap_end(0x20_1800), 0x20_1800);
    assert_eq!(space.put(0x20_1ff8, &5u64), Ok(()));
    assert_eq!(space.get::<u64>(0x20_2000), Err(Errno::FAULT));
    assert_eq!(space.set_heap_end(0x20_0000), 0x20_0000);
    assert_eq!(space.get::<u64>(0x20_1ff8), Err(Errno::FAULT));
}
