//! The machine at a payload's first instruction: registers, CSRs, the device tree, zero RAM.
#![no_std]
#![no_main]

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use dtoolkit::fdt::FdtNode;
use dtoolkit::{Node, Property, ToCellInt};
use guests::board::tree;
use guests::{Check, access, at_boot, board, ensure, ensure_eq, fail, image_end, run, sbi};
use metal::csr;
use rv::csr::status;

guests::entry_point!(main);

fn main() {
    run("entry/a0-is-a-hart", a0_is_a_hart);
    run("entry/a1-is-the-tree", a1_is_the_tree);
    run("entry/mode-is-s", mode_is_s);
    run("entry/sstatus", sstatus);
    run("entry/paging-is-off", || zero(&at_boot().satp, "satp"));
    run("entry/nothing-pending", nothing_pending);
    run("entry/memory-node", memory_node);
    run("entry/cpu-nodes", cpu_nodes);
    run("entry/isa-strings-agree", isa_strings_agree);
    run("entry/stdout-path", stdout_path);
    run("entry/serial-node", serial_node);
    run("entry/plic-node", plic_node);
    run("entry/isa-is-true", isa_is_true);
    run("entry/ram-is-zero", ram_is_zero);
    if sbi::is_gnomon() {
        run("entry/hart-0-first", || {
            ensure_eq!(board().boot_hart, 0, "a0");
            Ok(())
        });
        run("entry/registers-are-zero", registers_are_zero);
        run("entry/no-h", no_h);
        run("entry/only-what-there-is", only_what_there_is);
        run("entry/ram-starts-at-2-gib", || {
            ensure_eq!(board().ram_start, 0x8000_0000, "start of RAM");
            Ok(())
        });
    }
}

fn zero(register: &AtomicU64, name: &str) -> Check {
    ensure_eq!(register.load(Relaxed), 0, "{name}");
    Ok(())
}

fn a0_is_a_hart() -> Check {
    let a0 = at_boot().x[10].load(Relaxed);
    ensure!(board().harts().contains(&a0), "a0 = {a0}, harts {:?}", board().harts());
    Ok(())
}

fn a1_is_the_tree() -> Check {
    let (from, bytes) = (board().tree_at, board().tree_bytes);
    ensure_eq!(from % 8, 0, "alignment of a1");
    let is_inside = board().ram_start <= from && from + bytes <= board().ram_end();
    ensure!(is_inside, "the tree is not in RAM: {from:#x}, {bytes} bytes");
    ensure!(from + bytes <= 0x8020_0000 || from >= image_end(), "the tree overlaps the image");
    Ok(())
}

fn mode_is_s() -> Check {
    // U mode could not have read sstatus; M mode could read mstatus.
    let trap = guests::trap::catch(|| {
        let _ = csr::mstatus::read();
    });
    let Some(trap) = trap else { fail!("mstatus can be read") };
    ensure_eq!(trap.cause, 2, "cause of reading mstatus");
    ensure!(trap.status & status::SPP != 0, "the trap came from U mode");
    Ok(())
}

fn sstatus() -> Check {
    let value = at_boot().sstatus.load(Relaxed);
    ensure_eq!(value & (status::SIE | status::SUM | status::MXR), 0, "SIE, SUM, MXR in {value:#x}");
    ensure_eq!(value >> 32 & 3, 2, "UXL in {value:#x}");
    Ok(())
}

/// Nothing has been asked for yet, so nothing may be pending: no timer, no IPI, no device.
fn nothing_pending() -> Check {
    zero(&at_boot().sip, "sip")?;
    zero(&at_boot().sie, "sie")
}

fn memory_node() -> Check {
    let node = tree().memory().map_err(|_| guests::Text::of(format_args!("no memory node")))?;
    let kind = node.property("device_type").and_then(|p| p.value_as::<&str>().ok());
    ensure_eq!(kind, Some("memory"), "device_type");
    ensure!(board().ram_bytes >= 16 << 20, "{} bytes of RAM", board().ram_bytes);
    // The last byte is there, and is RAM.
    let last = board().ram_end() - 8;
    let before = access::ld(last);
    ensure!(before.is_ok(), "reading the last doubleword: {before:x?}");
    Ok(())
}

fn text<'a>(node: &FdtNode<'a>, name: &str) -> Option<&'a str> {
    node.property(name)?.value_as::<&str>().ok()
}

fn cpu_nodes() -> Check {
    ensure!(board().timebase >= 1_000, "timebase-frequency {}", board().timebase);
    let cpus = tree().cpus().map_err(|_| guests::Text::of(format_args!("no cpus node")))?;
    let mut count = 0;
    for cpu in cpus.cpus() {
        ensure_eq!(text(&cpu, "device_type"), Some("cpu"), "device_type");
        let kind = text(&cpu, "mmu-type");
        ensure!(kind.is_some_and(|k| k.starts_with("riscv,sv")), "mmu-type {kind:?}");
        ensure!(cpu.child("interrupt-controller").is_some(), "no interrupt-controller in a cpu");
        let Some(isa) = text(&cpu, "riscv,isa") else { fail!("no riscv,isa") };
        ensure!(isa.starts_with("rv64ima"), "riscv,isa {isa}");
        ensure_eq!(isa, board().isa, "harts differ");
        count += 1;
    }
    ensure_eq!(count, board().hart_count, "cpu nodes");
    let mut sorted = board().harts().iter();
    let mut before = None;
    ensure!(
        sorted.all(|id| before.replace(*id).is_none_or(|b| b < *id)),
        "a hart id comes twice: {:?}",
        board().harts()
    );
    Ok(())
}

/// Both forms of the ISA string name the same extensions, if both are present.
fn isa_strings_agree() -> Check {
    let Some(cpu) = tree().cpus().ok().and_then(|c| c.cpus().next()) else { fail!("no cpu") };
    let Some(list) = cpu.property("riscv,isa-extensions") else { return Ok(()) };
    let Ok(names) = core::str::from_utf8(list.value()) else { fail!("riscv,isa-extensions is no text") };
    ensure_eq!(text(&cpu, "riscv,isa-base"), Some("rv64i"), "riscv,isa-base");
    for name in names.split('\0').filter(|name| !name.is_empty()) {
        ensure!(board().has(name), "riscv,isa lacks {name}");
    }
    Ok(())
}

fn stdout_path() -> Check {
    let Some(chosen) = tree().find_node("/chosen") else { fail!("no /chosen") };
    let Some(path) = text(&chosen, "stdout-path") else { fail!("no stdout-path") };
    let path = path.split(':').next().unwrap_or("");
    let aliased = tree().find_node("/aliases").and_then(|node| text(&node, path));
    let Some(node) = tree().find_node(aliased.unwrap_or(path)) else { fail!("stdout-path {path} leads nowhere") };
    ensure_eq!(first_reg(&node), Some(0x1000_0000), "address of stdout");
    Ok(())
}

fn first_reg(node: &FdtNode<'_>) -> Option<u64> {
    node.reg().ok()??.next()?.address().ok()
}

/// The node below / or /soc with this `compatible`.
fn compatible(wanted: &[&str]) -> Option<FdtNode<'static>> {
    let soc = tree().find_node("/soc");
    let all = tree().root().children().chain(soc.into_iter().flat_map(|node| node.children()));
    all.into_iter().find(|node| {
        node.property("compatible").is_some_and(|p| {
            core::str::from_utf8(p.value()).is_ok_and(|text| text.split('\0').any(|name| wanted.contains(&name)))
        })
    })
}

fn cells<const N: usize>(node: &FdtNode<'_>, name: &str) -> Option<[u32; N]> {
    let property = node.property(name)?;
    let mut found = [0; N];
    let mut values = property.as_prop_encoded_array([1]).ok()?;
    for slot in &mut found {
        *slot = values.next()?[0].to_int().ok()?;
    }
    Some(found)
}

fn serial_node() -> Check {
    let Some(node) = compatible(&["ns16550a"]) else { fail!("no ns16550a") };
    ensure_eq!(first_reg(&node), Some(0x1000_0000), "address");
    ensure_eq!(cells(&node, "interrupts"), Some([10]), "interrupts");
    ensure!(node.property("clock-frequency").is_some(), "no clock-frequency");
    let plic = compatible(&["sifive,plic-1.0.0", "riscv,plic0"]).and_then(|plic| cells::<1>(&plic, "phandle"));
    let parent = cells(&node, "interrupt-parent").or_else(|| cells(&tree().root(), "interrupt-parent"));
    ensure!(plic.is_some() && parent == plic, "interrupt-parent {parent:?}, PLIC {plic:?}");
    Ok(())
}

fn plic_node() -> Check {
    let Some(node) = compatible(&["sifive,plic-1.0.0", "riscv,plic0"]) else { fail!("no PLIC") };
    ensure_eq!(first_reg(&node), Some(0x0c00_0000), "address");
    let Some([sources]) = cells(&node, "riscv,ndev") else { fail!("no riscv,ndev") };
    ensure!(sources >= 10, "{sources} sources leave the UART out");
    ensure_eq!(cells(&node, "#interrupt-cells"), Some([1]), "#interrupt-cells");
    let Some(contexts) = node.property("interrupts-extended") else { fail!("no interrupts-extended") };
    // Two contexts a hart: M (11, or none), then S (9).
    ensure_eq!(contexts.value().len(), board().hart_count * 16, "bytes of interrupts-extended");
    for (context, pair) in contexts.value().chunks(8).enumerate() {
        let code = u32::from_be_bytes([pair[4], pair[5], pair[6], pair[7]]);
        let is_right = if context % 2 == 0 { code == 11 || code == u32::MAX } else { code == 9 };
        ensure!(is_right, "context {context} raises interrupt {code}");
    }
    Ok(())
}

/// Promises of the ISA string hold; Sstc, for one, needs the hypervisor's permission.
fn isa_is_true() -> Check {
    let reads: [(&str, fn()); 3] = [
        ("sstc", || _ = csr::stimecmp::read()),
        ("zicntr", || _ = metal::instructions_retired()),
        ("zicntr", || _ = metal::time()),
    ];
    for (name, read) in reads {
        if board().has(name) {
            let trap = guests::trap::catch(read);
            ensure!(trap.is_none(), "{name} is promised, but {trap:x?}");
        }
    }
    Ok(())
}

/// Every doubleword of free RAM is zero.
fn ram_is_zero() -> Check {
    let free: u64 = board().free_ram().map(|(from, to)| to - from).sum();
    ensure!(free + (8 << 20) >= board().ram_bytes, "only {free} of {} bytes of RAM are free", board().ram_bytes);
    for (from, to) in board().free_ram() {
        let mut at = from;
        while at < to {
            let any = (0..4).fold(0, |any, i| any | access::peek(at + 8 * i));
            ensure!(any == 0, "at {at:#x}: {any:#x}");
            at += 32;
        }
    }
    Ok(())
}

/// Anything else would be the hypervisor's own.
fn registers_are_zero() -> Check {
    for (number, register) in at_boot().x.iter().enumerate() {
        if ![5, 10, 11].contains(&number) {
            ensure_eq!(register.load(Relaxed), 0, "x{number}");
        }
    }
    let boot = at_boot();
    for (register, name) in
        [(&boot.sscratch, "sscratch"), (&boot.sepc, "sepc"), (&boot.scause, "scause"), (&boot.stval, "stval")]
    {
        zero(register, name)?;
    }
    Ok(())
}

/// Nested virtualization is not there yet, so it must not be promised.
fn no_h() -> Check {
    ensure!(!board().has("h"), "riscv,isa {}", board().isa);
    Ok(())
}

fn only_what_there_is() -> Check {
    for name in ["virtio,mmio", "sifive,test0", "qemu,fw-cfg-mmio", "pci-host-ecam-generic"] {
        ensure!(compatible(&[name]).is_none(), "the tree has a {name}");
    }
    Ok(())
}
