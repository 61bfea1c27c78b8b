//! The boot, from the first stack to the first vCPU.

use crate::disks::{GuestDisk, HostDevices};
use crate::drivers::{self, PlicContext};
use crate::guest::{Abilities, GuestHart, emulates_misaligned};
use crate::hart::{Hart, Interrupts, MOST_DEVICES, Reach, Start};
use crate::protect::{self, image};
use crate::seat::{self, Seat, SeatHart};
use crate::share::GuestShare;
use crate::{heap, panic, pen};
use abi::bundle::{Config, MAX_VCPUS, MAX_VMS};
use abi::record::{Boot, Record};
use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use hypervisor::backend::channel::{Channel, Line};
use hypervisor::backend::console::Console;
use hypervisor::backend::disks::{Disks, HostDisk};
use hypervisor::backend::entropy::Source;
use hypervisor::backend::network::{HostNetwork, Network};
use hypervisor::backend::shares::{HostShare, Shares};
use hypervisor::device::offer::{Denial, GuestMode, GuestTimer, Offer};
use hypervisor::gnomon::Gnomon;
use hypervisor::hart::harts::{HartShared, MAX_HARTS};
use hypervisor::hart::sched::Sched;
use hypervisor::life::lifecycle;
use hypervisor::life::snapshot;
use hypervisor::machine::clock::Clock;
use hypervisor::machine::description::{HostHart, Machine, Span};
use hypervisor::machine::host_map::{Kind, map_onto_itself};
use hypervisor::machine::isa::Isa;
use hypervisor::machine::pmp::{self, Lack, Pmp};
use hypervisor::machine::tunables::Tunables;
use hypervisor::measure::probe::Asked;
use hypervisor::pager::promoter::Promoter;
use hypervisor::pager::{Disk, Pager, homes_of_all};
use hypervisor::sync;
use hypervisor::vm::chores::Chores;
use hypervisor::vm::vms::Vms;
use metal::csr;
use metal::ram::{Ram, boot_bytes, words_apart};
use mmu::frames::{Frames, Tags};
use rv::csr::envcfg;
use rv::{Addr, Format, Hpa, PAGE_BYTES, Pfn};
use spin::Once;

/// The state that the secondary harts need to join.
struct Joining {
    g: &'static Gnomon,
    machine: Machine,
    ram: Ram,
    reach: Arc<[Reach]>,
    /// The PLIC contexts of all harts, and the devices that interrupt.
    host: (&'static [Option<PlicContext>], &'static [(u32, Interrupts)]),
    /// The boot hart's.
    abilities: Abilities,
    /// The identity map, in the payload seat.
    map: Option<Pfn<Hpa>>,
    /// The end of what guests must not reach, in the firmware seat.
    denied_end: u64,
}

static JOINING: Once<Joining> = Once::new();

/// Boots, on the boot hart and its own stack. `in_payload_seat` is 0 or 1.
pub extern "C" fn boot(hart_id: u64, tree: u64, next_stage: u64, in_payload_seat: u64) -> ! {
    heap::start();
    // SAFETY: the boot loader passes a device tree, which is never written and which no allocation covers
    // (`reserved_spans`). The header gives its length, bounded before it is believed.
    let machine = unsafe { read_tree(tree) };
    let mut machine = machine.unwrap_or_else(|message| panic::fail(format_args!("{message}")));
    let seat = if in_payload_seat == 0 { Seat::Firmware } else { Seat::Payload };
    seat::set(seat, &machine);
    seat::take_traps(seat);
    if let Some(uart) = &machine.uart {
        drivers::start_uart(uart);
    }
    let clock = seat::find_clock(seat, &machine).map_err(|message| format!("hart {hart_id}: {message}"));
    let started = clock.and_then(|()| start(hart_id, next_stage, &mut machine));
    match started {
        Ok(hart) => hart.run(),
        Err(message) => panic::fail(format_args!("{message}")),
    }
}

/// Reads the device tree.
///
/// # Safety
/// `at` is the device tree's address, as the boot loader passed it.
unsafe fn read_tree(at: u64) -> Result<Machine, String> {
    /// No device tree is longer.
    const LONGEST: u32 = 4 << 20;
    if at == 0 || !at.is_multiple_of(8) {
        return Err(format!("the boot loader passed no device tree (a1 = {at:#x})"));
    }
    // SAFETY: by the caller's promise; every header is 40 bytes long.
    let header = unsafe { boot_bytes(Addr::new(at), 40) };
    let bytes = u32::from_be_bytes([header[4], header[5], header[6], header[7]]).clamp(40, LONGEST);
    // SAFETY: as above.
    let tree = unsafe { boot_bytes(Addr::new(at), bytes as usize) };
    let mut machine = Machine::parse(tree).map_err(|e| format!("{e}"))?;
    machine.reserved.push(Span { start: at, bytes: bytes.into() });
    Ok(machine)
}

/// Does everything between the device tree and the first vCPU.
fn start(hart_id: u64, next_stage: u64, machine: &mut Machine) -> Result<Hart, String> {
    let seat = Seat::get();
    let pmp = probe_pmp(seat)?;
    machine.round_ram(pmp.grain);
    let bundle_span = find_bundle(machine, next_stage)?;
    // SAFETY: the boot loader put it there, and `reserved` keeps it from being allocated until it is parsed.
    let bundle = unsafe { boot_bytes(Addr::new(bundle_span.start), bundle_span.bytes as usize) };
    let passed = bundle_span;
    machine.reserved.push(passed);
    let (mode, left_out) = choose_harts(seat, machine, hart_id)?;

    let spans = set_up_memory(machine, pmp.grain)?;
    let (seat_hart, guest, abilities) = start_hart(machine, 0, seat, mode)?;
    let ram = ram(&machine.common_isa());
    let HostDevices { swap, guests: disks, shares, net, entropy, control } = HostDevices::find(machine);
    let (swap, swap_source) = swap.unzip();
    let (net, net_source) = net.unzip();
    let (entropy, entropy_source) = entropy.unzip();
    let (control, control_source) = control.unzip();
    // Images may go to the device, and their frames are memory like any other then.
    let passed = (passed, if swap.is_some() { Kind::ReadWrite } else { Kind::ReadOnly });
    let (map, lacks) =
        protect_this_hart(seat, machine, (0, spans.denied_end), ram, (pmp, Map::Build(&passed, &spans.tables)))?;
    guest.forget_everything();
    let denial = denial(machine, seat, abilities.g_format, spans.g_root, ram);
    let config = Config::parse(bundle).map_err(|e| format!("{e}"))?;
    check(&config)?;
    if mode == GuestMode::Supervisor
        && let Some(time) = snapshot::clock(&config.vms)
    {
        seat::set_clock(machine, time)?;
    }
    let mut offer = offer(machine, (mode, denial), &abilities, swap.is_some());
    let tunables = Tunables::default();
    for setting in &config.settings {
        tunables.set(setting).map_err(|e| format!("{e}"))?;
    }
    let console = Console::new(&drivers::HostUart, config.console, config.vms.len() > 1);
    left_out.iter().for_each(|message| console.say(message));
    if !lacks.is_empty() {
        let lacks: Vec<&str> = lacks.iter().map(|lack| lack.name()).collect();
        console.say(&format!(
            "the PMP of hart {hart_id} has {} of {} entries, with a granularity of {} bytes, so {}",
            pmp.entries,
            pmp::ALL,
            pmp.grain,
            lacks.join(", and ")
        ));
    }
    let mut frames = frames(&spans);
    let bundle = Addr::new(bundle_span.start).pfn();
    if swap.is_some() {
        // Of the bundle only images are read from here on.
        frames.add_images(&homes_of_all(config.vms.iter().flat_map(|vm| &vm.segments), bundle, bundle_span.bytes));
    }
    let (disk_sources, share_sources) = (sources(&disks), sources(&shares));
    let disk = |device| Some(Box::new(GuestDisk::new(device, &frames)?) as Box<dyn HostDisk>);
    offer.disks = Disks::new(with_buffers(disks, "disks", disk)?);
    let share = |device| Some(Box::new(GuestShare::new(device, &frames)?) as Box<HostShare>);
    offer.shares = Shares::new(with_buffers(shares, "shares", share)?);
    offer.entropy = entropy.map(|device| Arc::new(sync::Mutex::new(Source::new(Box::new(device)))));
    let net = net.map(|net| Box::new(net) as Box<dyn HostNetwork>);
    offer.network = Network::new(config.vms.iter().filter_map(|vm| vm.mac), net, offer.timebase);
    let disk = |(source, number)| Some((source, Interrupts::Disk(Arc::clone(offer.disks.get(number)?))));
    let disks = disk_sources.into_iter().filter_map(disk);
    let share = |(source, number)| Some((source, Interrupts::Share(Arc::clone(offer.shares.get(number)?))));
    let devices = disks
        .chain(share_sources.into_iter().filter_map(share))
        .chain(net_source.map(|source| (source, Interrupts::Network)))
        .chain(entropy_source.map(|source| (source, Interrupts::Entropy)))
        .chain(control_source.map(|source| (source, Interrupts::Control)))
        .chain(swap_source.map(|source| (source, Interrupts::Swap)));
    let devices: &'static [_] = devices.collect::<Vec<_>>().leak();
    if devices.len() > MOST_DEVICES {
        return Err(format!("the machine has {} devices that interrupt; {MOST_DEVICES} are possible", devices.len()));
    }
    let g: &'static Gnomon = Box::leak(Box::new(Gnomon {
        mappers: &hypervisor::vm::mapper::KINDS,
        vms: Vms::new(),
        sched: Sched::new(machine.harts.len()),
        harts: frames.share(machine.harts.len()).into_iter().map(HartShared::new).collect(),
        chores: Chores::default(),
        tunables,
        promoter: Promoter::default(),
        pager: Pager::new(swap.map(|swap| Box::new(swap) as Box<dyn Disk>)),
        console,
        channel: Channel::new(control.map(|line| Box::new(line) as Box<dyn Line>)),
        asked: Asked::default(),
        heap: heap::in_use,
        heap_at_start: heap::in_use().used,
        bundle,
        bundle_bytes: bundle_span.bytes,
        offer,
    }));
    g.record(&Record::Boot(Boot {
        version: env!("CARGO_PKG_VERSION").into(),
        seat: seat.name().into(),
        harts: g.harts.len() as u32,
        g_stage: match mode {
            GuestMode::Virtual => g.offer.g_format.name.into(),
            GuestMode::Supervisor => "none".into(),
        },
    }));
    let reach: Arc<[Reach]> = machine.harts.iter().map(|h| Reach { id: h.id, msip: h.msip.unwrap_or(0) }).collect();
    let contexts = plic_contexts(seat, machine, devices.iter().map(|(source, _)| *source));
    if contexts[0].is_some() {
        seat_hart.enable_external();
    }
    let Abilities { vmid_bits, asid_bits, .. } = abilities;
    let reach_all = Arc::clone(&reach);
    let mut hart = Hart::new(Start {
        g,
        index: 0,
        seat: seat_hart,
        guest,
        ram,
        reach: reach_all,
        contexts,
        devices,
        vmid_bits,
        asid_bits,
    });
    let ids: Vec<u64> = machine.harts.iter().map(|h| h.id).collect();
    let denied_end = spans.denied_end;
    let host = (contexts, devices);
    JOINING.call_once(|| Joining { g, machine: machine.clone(), ram, reach, host, abilities, map, denied_end });
    config.vms.into_iter().for_each(|config| g.vms.wish(config, &g.offer));
    lifecycle::start_due(g, &mut hart);
    // No other hart is there to help, and no guest waits.
    while lifecycle::go_on(g, &mut hart) {}
    match seat {
        Seat::Firmware => {
            let msips: Option<Vec<u64>> = machine.harts.iter().map(|hart| hart.msip).collect();
            let msips = msips.ok_or(seat::NO_DEVICES)?;
            pen::release(&ids);
            ids.iter().zip(msips).skip(1).for_each(|(id, msip)| seat::send_ipi(*id, msip));
        }
        Seat::Payload => {
            for (index, id) in ids.iter().enumerate().skip(1) {
                seat::start_hart(*id, index)
                    .map_err(|e| format!("the firmware does not start hart {id}: error {e}"))?;
            }
        }
    }
    Ok(hart)
}

/// Starts a secondary hart, on its own stack.
pub extern "C" fn secondary(hart_id: u64, index: usize) -> ! {
    let Some(joining) = JOINING.get() else { panic!("hart {hart_id} came before the boot hart was ready") };
    let machine = &joining.machine;
    let (g, ram, seat) = (joining.g, joining.ram, Seat::get());
    seat::take_traps(seat);
    let clock = seat::find_clock(seat, machine).map_err(String::from);
    let started = clock.and_then(|()| start_hart(machine, index, seat, g.offer.guest));
    let started = started.and_then(|(seat_hart, guest, abilities)| {
        if abilities != joining.abilities {
            return Err("its page-table formats or its extensions differ from the boot hart's".into());
        }
        let pmp = probe_pmp(seat)?;
        protect_this_hart(seat, machine, (index, joining.denied_end), ram, (pmp, Map::Use(joining.map)))?;
        Ok((seat_hart, guest))
    });
    let (seat, guest) = started.unwrap_or_else(|message| panic::fail(format_args!("hart {hart_id}: {message}")));
    guest.forget_everything();
    let Abilities { vmid_bits, asid_bits, .. } = joining.abilities;
    let reach = Arc::clone(&joining.reach);
    let (contexts, devices) = joining.host;
    if let Some(context) = &contexts[index] {
        context.join();
        seat.enable_external();
    }
    Hart::new(Start { g, index, seat, guest, ram, reach, contexts, devices, vmid_bits, asid_bits }).run()
}

/// Leaves out the harts that Gnomon cannot use beside the boot hart, which becomes index 0: it has taken
/// that stack. Returns where guests run, and what to say about those left out.
fn choose_harts(seat: Seat, machine: &mut Machine, boot_id: u64) -> Result<(GuestMode, Vec<String>), String> {
    let boot_at = machine.harts.iter().position(|hart| hart.id == boot_id);
    let boot_at = boot_at.ok_or_else(|| format!("the machine's device tree has no hart {boot_id}, which boots"))?;
    machine.harts.swap(0, boot_at);
    let has_h = machine.harts[0].isa.has("h");
    if !has_h && seat == Seat::Payload {
        return Err(format!(
            "hart {boot_id} lacks the H extension, without which Gnomon runs in the firmware seat only: start it \
             there (--seat firmware; QEMU: -bios), or on harts with the extension (QEMU: -cpu rv64)"
        ));
    }
    let mut left_out = Vec::new();
    machine.harts.retain(|hart| {
        let is_alike = hart.isa.has("h") == has_h;
        if !is_alike {
            let (has, boot_has) = if has_h { ("lacks", "has") } else { ("has", "lacks") };
            left_out.push(format!(
                "hart {} is left out: it {has} the H extension, which the boot hart {boot_has}",
                hart.id
            ));
        }
        is_alike
    });
    let surplus = machine.harts.iter().skip(MAX_HARTS);
    left_out.extend(surplus.map(|hart| format!("hart {} is left out: {MAX_HARTS} harts are in use", hart.id)));
    machine.harts.truncate(MAX_HARTS);
    Ok((if has_h { GuestMode::Virtual } else { GuestMode::Supervisor }, left_out))
}

/// Prepares this hart, number `index` of those in use, except for memory protection.
fn start_hart(
    machine: &Machine,
    index: usize,
    seat: Seat,
    mode: GuestMode,
) -> Result<(SeatHart, GuestHart, Abilities), String> {
    let hart = &machine.harts[index];
    let (guest, abilities) = GuestHart::start(hart, &machine.common_isa(), seat, mode)?;
    // Where firmware keeps Sstc to itself, `stimecmp` traps, and `henvcfg` tells.
    let seat_hart = SeatHart::start(hart, abilities.environment & envcfg::STCE != 0)?;
    Ok((seat_hart, guest, abilities))
}

/// Returns the span of the bundle, where the boot loader put it: as the initrd, or, in the firmware seat, as the next
/// boot stage that OpenSBI's `fw_dynamic` protocol names.
fn find_bundle(machine: &Machine, next_stage: u64) -> Result<Span, String> {
    const FW_DYNAMIC_MAGIC: u64 = 0x4942_534f;
    /// The bytes of header and configuration: enough to read the whole length.
    const HEADER: usize = abi::bundle::HEADER_BYTES;
    let in_ram = |span: &Span| {
        machine.ram.iter().any(|r| r.start <= span.start && span.start < r.end() && span.bytes <= r.end() - span.start)
    };
    let found = machine.initrd.or_else(|| {
        let info = Span { start: next_stage, bytes: 32 };
        let readable = next_stage.is_multiple_of(8) && next_stage != 0;
        if Seat::get() != Seat::Firmware || !readable {
            return None;
        }
        // SAFETY: the protocol's structure; QEMU keeps it in its boot ROM, boot loaders in RAM.
        let words = unsafe { boot_bytes(Addr::new(info.start), info.bytes as usize) };
        let word = |i: usize| u64::from_le_bytes(core::array::from_fn(|b| words[8 * i + b]));
        let start = word(2);
        let header = Span { start, bytes: HEADER as u64 };
        if word(0) != FW_DYNAMIC_MAGIC || !in_ram(&header) {
            return None;
        }
        // SAFETY: RAM, as checked.
        let header = unsafe { boot_bytes(Addr::new(start), HEADER) };
        let bytes = u64::from_le_bytes(core::array::from_fn(|b| header[16 + b]));
        header.starts_with(&abi::bundle::MAGIC).then_some(Span { start, bytes })
    });
    let span =
        found.ok_or("the boot loader passed no VM bundle (QEMU: -kernel BUNDLE with -bios, else -initrd BUNDLE)")?;
    if !in_ram(&span) || span.bytes < HEADER as u64 || span.start % PAGE_BYTES != 0 {
        return Err(format!("the VM bundle at {:#x}, {} bytes, is not in whole pages of RAM", span.start, span.bytes));
    }
    Ok(span)
}

/// The division of RAM.
struct Spans {
    /// The end of what guests must not reach from Gnomon's image on: the heap and the frames' tags are right behind it if there
    /// is room. A multiple of the PMP's granularity.
    denied_end: u64,
    /// The frames' tags.
    tags: Span,
    /// The frames for the identity map's tables.
    tables: Vec<Pfn<Hpa>>,
    /// The frames for the root of a G-stage that maps RAM onto itself: four.
    g_root: Pfn<Hpa>,
    /// The RAM for guests.
    free: Vec<Span>,
}

/// Returns what this hart's PMP can do, before its walls are built. In the payload seat it is not Gnomon's to use, and its
/// granularity matters to nothing.
fn probe_pmp(seat: Seat) -> Result<Pmp, String> {
    match seat {
        // SAFETY: M mode, whose traps are taken.
        Seat::Firmware => unsafe { protect::probe_pmp() },
        Seat::Payload => Ok(Pmp { entries: 0, grain: 4 }),
    }
}

/// Divides RAM. What guests must not reach ends at a multiple of `grain` bytes, the granularity of the PMP.
///
/// # Errors
/// A message, if there is too little.
fn set_up_memory(machine: &Machine, grain: u64) -> Result<Spans, String> {
    /// The heap's share of the first GiB of RAM, and of what is above: it has what there is of each VM, and 100 bytes for each
    /// 2 MiB.
    const HEAP_SHARE: u64 = 64;
    const HEAP_SHARE_ABOVE: u64 = 256;
    const HEAP_LEAST: u64 = 4 << 20;
    const GIB: u64 = 1 << 30;
    const TABLES: u64 = 64;
    const ROOT: u64 = 4;
    let image = image(machine.harts.len());
    let total: u64 = machine.ram.iter().map(|r| r.bytes).sum();
    let heap_bytes = total.min(GIB) / HEAP_SHARE + total.saturating_sub(GIB) / HEAP_SHARE_ABOVE;
    let heap_bytes = heap_bytes.max(HEAP_LEAST).next_multiple_of(PAGE_BYTES);
    let image_end = image.end.next_multiple_of(grain);
    let own = Span { start: image.start, bytes: image_end - image.start };
    let free = machine.free_ram(&[own]);
    // What is taken below splits one more span.
    let tags =
        free.iter().map(|span| Frames::tags_for(Addr::new(span.start).pfn(), span.bytes / PAGE_BYTES)).sum::<u64>() + 1;
    let tags_bytes = (tags * size_of::<Tags>() as u64).next_multiple_of(PAGE_BYTES);
    let tags_bytes = (heap_bytes + tags_bytes).next_multiple_of(grain.max(PAGE_BYTES)) - heap_bytes;
    // A root of a G-stage is aligned to its size.
    let tables_bytes = (TABLES + 2 * ROOT - 1) * PAGE_BYTES;
    let bytes = heap_bytes + tags_bytes + tables_bytes;
    let behind = free.iter().find(|s| s.start == image_end && s.bytes > bytes);
    let place = behind.or_else(|| free.iter().max_by_key(|s| s.bytes)).filter(|span| span.bytes > bytes);
    let place =
        place.ok_or_else(|| format!("{bytes} bytes of RAM in one piece are needed: give the machine more memory"))?;
    let heap = Span { start: place.start, bytes: heap_bytes };
    let tags = Span { start: heap.end(), bytes: tags_bytes };
    let tables = Span { start: tags.end(), bytes: tables_bytes };
    // SAFETY: free RAM, taken out of what is handed on below.
    unsafe { heap::add(heap) };
    let own_ram = Span { start: heap.start, bytes: heap_bytes + tags_bytes };
    let free = machine.free_ram(&[own, own_ram, tables]);
    let g_root = Addr::new(tables.start.next_multiple_of(ROOT * PAGE_BYTES)).pfn();
    let tables = (0..TABLES).map(|n| g_root.add(ROOT + n)).collect();
    let denied_end = if own_ram.start == image_end { own_ram.end() } else { image_end };
    Ok(Spans { denied_end, tags, tables, g_root, free })
}

/// Makes the allocator of all RAM that is handed out by the frame.
fn frames(spans: &Spans) -> Frames {
    let tags = Addr::new(spans.tags.start);
    // SAFETY: free RAM, which is never used for anything else (`set_up_memory`).
    let tags = unsafe { words_apart(tags, spans.tags.bytes as usize) };
    let mut tags = tags.as_chunks().0.iter();
    let mut frames = Frames::new();
    for span in &spans.free {
        frames.add_with(Addr::new(span.start).pfn(), span.bytes / PAGE_BYTES, &mut tags);
    }
    frames
}

fn ram(isa: &Isa) -> Ram {
    let may_zero = isa.has("zicboz") && (Seat::get() == Seat::Firmware || csr::henvcfg::read() & envcfg::CBZE != 0);
    let block = u64::from(isa.cboz_block);
    let usable = may_zero && block.is_power_of_two() && block >= 8 && 4 * block <= PAGE_BYTES;
    // SAFETY: from here on RAM outside Gnomon's image and heap is reached through frames only; and
    // guests may use `cbo.zero` only where this mode may, so `henvcfg` tells.
    unsafe { Ram::new(if usable { block } else { 0 }) }
}

/// The source of the identity map of a hart of the payload seat.
enum Map<'a> {
    /// The hart makes the map: the boot hart. With the span that the boot loader left for Gnomon to read, and the other
    /// accesses that it allows; and frames for tables.
    Build(&'a (Span, Kind), &'a [Pfn<Hpa>]),
    /// The boot hart made it.
    Use(Option<Pfn<Hpa>>),
}

/// Puts this hart's memory protection in force. Returns the root of the identity map, in the payload seat; and the walls that the hart
/// cannot have, in the firmware seat.
fn protect_this_hart(
    seat: Seat,
    machine: &Machine,
    (index, denied_end): (usize, u64),
    mut ram: Ram,
    (pmp, map): (Pmp, Map<'_>),
) -> Result<(Option<Pfn<Hpa>>, Vec<Lack>), String> {
    match seat {
        Seat::Firmware => {
            // SAFETY: the firmware seat, once per hart.
            let lacks = unsafe { protect::set_up_pmp(machine, denied_end, index, pmp) }?;
            Ok((None, lacks))
        }
        Seat::Payload => {
            let root = match map {
                Map::Use(Some(root)) => root,
                Map::Use(None) => return Err("the boot hart made no map".into()),
                Map::Build(passed, tables) => protect::build_map(machine, passed, tables.to_vec(), &mut ram)?,
            };
            // SAFETY: the payload seat; just built, or by the boot hart.
            unsafe { protect::switch_map(machine, root) }?;
            Ok((Some(root), Vec::new()))
        }
    }
}

/// Returns the mechanism that denies guests the frame that poison leads to. PMP is the firmware's in the payload seat,
/// and an access fault would come by way of it: so a G-stage does, whose root may be at `root`.
fn denial(machine: &Machine, seat: Seat, format: &Format, root: Pfn<Hpa>, mut ram: Ram) -> Denial {
    match seat {
        Seat::Firmware => Denial::Pmp,
        Seat::Payload if map_onto_itself(format, root, &machine.ram, &mut ram) => Denial::Hole { table: root },
        Seat::Payload => Denial::Nobody,
    }
}

fn offer(machine: &Machine, (guest, denial): (GuestMode, Denial), abilities: &Abilities, has_swap: bool) -> Offer {
    let isa = machine.common_isa();
    let gates = [("sstc", envcfg::STCE), ("zicboz", envcfg::CBZE), ("zicbom", envcfg::CBCFE)];
    let granted = gates.iter().filter(|(_, bit)| abilities.environment & bit != 0);
    let granted: Vec<&str> = granted.map(|(name, _)| *name).collect();
    // OpenSBI emulates `time` on harts without it, and adds to a guest's what was written to `htimedelta` where that traps, too. In QEMU
    // `htimedelta` does not trap. A device tree that knows the name Zihpm, which came with Zicntr, would name that.
    let firmware_emulates_time = Seat::get() == Seat::Payload && isa.has("zihpm") && !isa.has("zicntr");
    let isa = isa.for_guest(&granted);
    Offer {
        guest,
        g_format: abilities.g_format,
        formats: abilities.formats.clone(),
        kinds: &hypervisor::device::KINDS,
        two_stage_svadu: abilities.environment & envcfg::ADUE != 0,
        has_swap,
        denial,
        mmu_type: machine.mmu_type.clone(),
        timer: if isa.has("sstc") { GuestTimer::Sstc } else { GuestTimer::Sbi },
        firmware_emulates_time,
        emulates_misaligned: emulates_misaligned(Seat::get(), &machine.common_isa()),
        has_pmu: abilities.has_counters && !firmware_emulates_time,
        vlenb: abilities.vlenb,
        timebase: machine.timebase,
        disks: Disks::default(),
        shares: Shares::default(),
        entropy: None,
        network: Network::new([], None, machine.timebase),
        clock: machine.rtc.map(|rtc| Clock::new(machine.timebase, metal::time(), drivers::time_of_day(rtc))),
        isa,
    }
}

/// Makes the devices that guests have, by number, each with a buffer.
fn with_buffers<D, G: ?Sized>(
    devices: Vec<(u32, D, u32)>,
    what: &str,
    with_buffer: impl Fn(D) -> Option<Box<G>>,
) -> Result<Vec<(u32, Box<G>)>, String> {
    let with_buffer = |(number, device, _)| Some((number, with_buffer(device)?));
    let all: Option<Vec<_>> = devices.into_iter().map(with_buffer).collect();
    all.ok_or_else(|| format!("there is no memory for the {what}' buffers"))
}

/// Returns the interrupts of such devices: source and number.
fn sources<D>(devices: &[(u32, D, u32)]) -> Vec<(u32, u32)> {
    devices.iter().map(|(number, _, source)| (*source, *number)).collect()
}

/// Returns an element that is there twice.
fn twin<T: Ord + Copy>(all: impl Iterator<Item = T>) -> Option<T> {
    let mut all: Vec<T> = all.collect();
    all.sort_unstable();
    all.windows(2).find(|pair| pair[0] == pair[1]).map(|pair| pair[0])
}

/// Checks the bundle's limits, before anything is sized by them. Each VM's own promises are checked when it is started.
fn check(config: &Config) -> Result<(), String> {
    if config.vms.is_empty() || config.vms.len() > MAX_VMS {
        return Err(format!("the VM bundle has {} VMs; 1 to {MAX_VMS} are possible", config.vms.len()));
    }
    if let Some(number) = twin(config.vms.iter().flat_map(|vm| vm.disks.iter().copied())) {
        return Err(format!("disk {number} is two VMs', or one's twice"));
    }
    if let Some(number) = twin(config.vms.iter().flat_map(|vm| vm.shares.iter().map(|share| share.number))) {
        return Err(format!("share {number} is two VMs', or one's twice"));
    }
    let macs = || config.vms.iter().filter_map(|vm| vm.mac);
    if let Some(mac) = macs().filter(|mac| !mac.is_card()).min() {
        return Err(format!("{mac} is no address of a network card"));
    }
    if let Some(mac) = twin(macs()) {
        return Err(format!("two VMs' network cards have the address {mac}"));
    }
    match config.vms.iter().find(|vm| vm.vcpus == 0 || vm.vcpus > MAX_VCPUS) {
        Some(vm) => Err(format!("{} has {} vCPUs; 1 to {MAX_VCPUS} are possible", vm.name, vm.vcpus)),
        None => Ok(()),
    }
}

/// The PLIC contexts of all harts: the boot hart's gets the interrupts of the UART and of these devices, the others none yet.
fn plic_contexts(seat: Seat, machine: &Machine, sources: impl Iterator<Item = u32>) -> &'static [Option<PlicContext>] {
    let mut sources = Some(sources);
    let context = |hart: &HostHart| {
        let context = match seat {
            Seat::Firmware => hart.plic_machine,
            Seat::Payload => hart.plic_supervisor,
        };
        match sources.take() {
            Some(sources) => PlicContext::start(machine, context?, sources),
            None => PlicContext::of(machine, context?),
        }
    };
    machine.harts.iter().map(context).collect::<Vec<_>>().leak()
}
