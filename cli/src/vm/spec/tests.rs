use super::*;

fn settle(vm: VmFile) -> Result<Vec<VmSpec>, SpecError> {
    VmSpec::settle(vec![vm], &VmFile::default(), true)
}

#[test]
fn defaults() {
    let vms = VmSpec::settle(vec![], &VmFile { vcpus: Some(3), ..VmFile::default() }, false).expect("valid");
    assert_eq!(vms.len(), 1);
    assert_eq!((vms[0].name.as_str(), vms[0].memory, vms[0].vcpus), ("linux", DEFAULT_MEMORY, 3));
}

#[test]
fn names_follow_from_what_is_booted() {
    let name = |kernel| settle(VmFile { kernel, ..VmFile::default() }).map(|vms| vms[0].name.clone());
    let named = |kernel: &str| {
        VmSpec::settle(
            vec![],
            &VmFile { kernel: Some(Kernel::from(PathBuf::from(kernel))), ..VmFile::default() },
            false,
        )
    };
    assert_eq!(name(None).as_deref(), Ok("linux"));
    for (kernel, name) in [
        ("debian", "linux"),
        ("u-boot", "u-boot"),
        ("sub/Image", "Image"),
        ("a b|c.elf", "abc"),
        ("/k/\u{e4}", "vm"),
        ("0123456789012345678901234567890123456789", "01234567890123456789012345678901"),
    ] {
        assert_eq!(named(kernel).expect("valid")[0].name, name, "{kernel}");
    }
}

#[test]
fn what_cannot_be_is_refused() {
    let vm = VmFile::default();
    let sbi = |kernel| VmFile { console: Some(Console::Sbi), kernel, ..VmFile::default() };
    assert_eq!(settle(sbi(None)), Err(SpecError::NoSbiConsole("linux".into())));
    let virtio = |initrd| VmFile { console: Some(Console::Virtio), initrd, ..VmFile::default() };
    assert_eq!(settle(virtio(Some(Initrd::None))), Err(SpecError::NoVirtioConsole("linux".into())));
    assert!(settle(virtio(None)).is_ok());
    assert!(settle(sbi(Some(Kernel::File("Image".into())))).is_ok());
    assert!(matches!(settle(VmFile { vcpus: Some(0), ..vm.clone() }), Err(SpecError::Vcpus { .. })));
    assert!(matches!(settle(VmFile { vcpus: Some(33), ..vm.clone() }), Err(SpecError::Vcpus { .. })));
    assert!(matches!(settle(VmFile { memory: Some(Size(1 << 20)), ..vm.clone() }), Err(SpecError::Memory { .. })));
    assert!(matches!(settle(VmFile { name: Some("a|b".into()), ..vm.clone() }), Err(SpecError::Name(_))));
    assert!(matches!(settle(VmFile { shadow: Some(Size(5000)), ..vm.clone() }), Err(SpecError::Shadow { .. })));
    let l2 = VmFile { l2: Some(L2Tables::Collapsed), ..vm.clone() };
    assert_eq!(settle(l2.clone()), Err(SpecError::NoHypervisor("linux".into())));
    assert!(settle(VmFile { nested: Some(true), ..l2 }).is_ok());
    let portable = VmFile { cpu: Some(Cpu::Portable), ..vm.clone() };
    let told = settle(portable.clone()).map(|vms| (vms[0].svvptc, vms[0].svadu));
    assert_eq!(told, Ok((false, Some(false))));
    let refused = settle(VmFile { svadu: Some(true), ..portable });
    assert_eq!(refused, Err(SpecError::NotPortable { vm: "linux".into(), key: "svadu" }));
    let way = |way, mmu| settle(VmFile { vmspace: Some(way), mmu, ..vm.clone() });
    let refused = |way: Way, mode| Err(SpecError::Vmspace { vm: "linux".into(), way: way.name(), mode });
    for mode in [MmuMode::TwoStage, MmuMode::Adaptive] {
        assert_eq!(way(Way::Soft, Some(mode)), refused(Way::Soft, mode));
    }
    assert_eq!(way(Way::Nested, Some(MmuMode::Lazy)), refused(Way::Nested, MmuMode::Lazy));
    assert!(way(Way::Nested, None).is_ok() && way(Way::Soft, Some(MmuMode::Steered)).is_ok());
    assert_eq!(way(Way::Soft, None).map(|vms| vms[0].mmu), Ok(Some(MmuMode::Lazy)));
    let balloon = |bytes| settle(VmFile { balloon: Some(Balloon::Takes(Size(bytes))), ..vm.clone() });
    assert!(balloon(DEFAULT_MEMORY.0 / 8 * 7).is_ok());
    for bytes in [DEFAULT_MEMORY.0 / 8 * 7 + PAGE, 5000] {
        assert!(matches!(balloon(bytes), Err(SpecError::Balloon { .. })));
    }
    let own = VmFile { initrd: Some(Initrd::File("x".into())), ..vm.clone() };
    assert!(matches!(settle(own), Err(SpecError::Exec { .. })));
    assert!(matches!(settle(VmFile { kernel: Some(Kernel::UBoot), ..vm }), Err(SpecError::Exec { .. })));
}

#[test]
fn the_vkernel_has_keys_of_its_own_and_few_devices() {
    let vm = || VmFile { kernel: Some(Kernel::Vkernel), ..VmFile::default() };
    let init = || Some(vec!["busybox".into()]);
    let settle = |vm| VmSpec::settle(vec![vm], &VmFile::default(), false);
    assert_eq!(settle(vm()).expect("valid")[0].name, "vkernel");
    assert!(settle(VmFile { init: init(), ..vm() }).is_ok());
    for (vm, says) in [
        (VmFile { init: init(), ..VmFile::default() }, "the vkernel alone"),
        (VmFile { init: Some(Vec::new()), ..vm() }, "names no program"),
        (VmFile { init: init(), initrd: Some(Initrd::Busybox), ..vm() }, "an `initrd`"),
        (VmFile { disks: Some(vec!["a.img".parse().expect("a disk")]), ..vm() }, "for disks"),
        (VmFile { console: Some(Console::Virtio), ..vm() }, "that console"),
    ] {
        let said = settle(vm).expect_err("refused").to_string();
        assert!(said.contains(says), "{said}");
    }
}

#[test]
fn a_root_is_for_debians_kernel_and_brings_a_network() {
    let root = || VmFile { root: Some(Root::default()), ..VmFile::default() };
    let vm = settle(root()).expect("valid").remove(0);
    assert_eq!((vm.name.as_str(), vm.memory, vm.net.is_some()), ("debian", DEFAULT_SYSTEM_MEMORY, true));
    let alone = settle(VmFile { net: Some(false), ..root() }).expect("valid").remove(0);
    assert!(alone.net.is_none());
    let refused = |vm| matches!(settle(vm), Err(SpecError::Root { .. }));
    assert!(refused(VmFile { kernel: Some(Kernel::UBoot), ..root() }));
    assert!(refused(VmFile { kernel: Some(Kernel::File("Image".into())), ..root() }));
    assert!(refused(VmFile { initrd: Some(Initrd::None), ..root() }));
    assert!(refused(VmFile { memory: Some(Size(LEAST_ROOT_MEMORY.0 - PAGE)), ..root() }));
    assert!(settle(VmFile { memory: Some(LEAST_ROOT_MEMORY), ..root() }).is_ok());
}

#[test]
fn what_is_on_a_disk_is_booted_as_it_says() {
    let disk = || VmFile {
        kernel: Some(Kernel::Disk),
        disks: Some(vec!["sub/debian-13.qcow2".parse().expect("a disk")]),
        ..VmFile::default()
    };
    let vm = VmSpec::settle(vec![disk()], &VmFile::default(), false).expect("valid").remove(0);
    assert_eq!((vm.name.as_str(), vm.memory, vm.net.is_some()), ("debian-13", DEFAULT_SYSTEM_MEMORY, true));
    assert!(matches!(settle(disk()), Err(SpecError::Exec { .. })));
    for (vm, says) in [
        (VmFile { disks: None, ..disk() }, "it has no disk"),
        (VmFile { initrd: Some(Initrd::Busybox), ..disk() }, "initrd"),
        (VmFile { memory: Some(Size(LEAST_DISK_MEMORY.0 - PAGE)), ..disk() }, "64 MiB"),
        (VmFile { append: Some("quiet".into()), ..disk() }, "append"),
        (VmFile { console: Some(Console::Sbi), ..disk() }, "console"),
    ] {
        let refused = VmSpec::settle(vec![vm], &VmFile::default(), false);
        assert!(matches!(&refused, Err(SpecError::Disk { why, .. }) if why.contains(says)), "{refused:?}");
    }
    assert!(matches!(settle(VmFile { root: Some(Root::default()), ..disk() }), Err(SpecError::Root { .. })));
}

#[test]
fn harts_without_h_run_shadows_in_the_firmware_seat() {
    let vms = |mmu| settle(VmFile { mmu, ..VmFile::default() }).expect("valid");
    let check = |mmu, seat, h| check_machine(&vms(mmu), seat, h);
    for seat in [Seat::Firmware, Seat::Payload] {
        assert_eq!(check(Some(MmuMode::TwoStage), seat, HExtension::Present), Ok(()));
    }
    for mmu in [None, Some(MmuMode::Shadow), Some(MmuMode::Unsync), Some(MmuMode::Lazy)] {
        assert_eq!(check(mmu, Seat::Firmware, HExtension::Absent), Ok(()));
        assert_eq!(check(mmu, Seat::Payload, HExtension::Absent), Err(SpecError::PayloadWithoutH));
    }
    for mode in [MmuMode::TwoStage, MmuMode::Adaptive] {
        assert_eq!(check(Some(mode), Seat::Payload, HExtension::Present), Ok(()));
        let without = check(Some(mode), Seat::Firmware, HExtension::Absent);
        assert_eq!(without, Err(SpecError::ModeWithoutH("linux".into(), mode)));
    }
}

#[test]
fn shadow_tables_need_memory() {
    let need = |mmu, shadow, h| settle(VmFile { mmu, shadow, ..VmFile::default() }).expect("valid")[0].shadow_need(h);
    assert_eq!(need(None, None, HExtension::Present), Size(0));
    assert_eq!(need(Some(MmuMode::TwoStage), Some(Size(MIB)), HExtension::Present), Size(0));
    assert_eq!(need(None, None, HExtension::Absent), Size(32 * MIB));
    assert_eq!(need(Some(MmuMode::Lazy), Some(Size(MIB)), HExtension::Present), Size(MIB));
}

#[test]
fn vms_may_follow_each_other() {
    let vm = |name: &str, after: Option<&str>, mib: u64| VmFile {
        name: Some(name.into()),
        after: after.map(str::to_owned),
        memory: Some(Size(mib * MIB)),
        mmu: Some(MmuMode::TwoStage),
        ..VmFile::default()
    };
    let settle = |files: Vec<VmFile>| VmSpec::settle(files, &VmFile::default(), false);
    let most = |files| most_memory(&settle(files).expect("valid"), HExtension::Present);
    let chain = || vec![vm("a", None, 64), vm("b", Some("a"), 96), vm("c", Some("b"), 32)];
    assert_eq!(settle(chain()).expect("valid").iter().map(|vm| vm.after).collect::<Vec<_>>(), [None, Some(0), Some(1)]);
    assert_eq!(most(chain()), Size(96 * MIB));
    // Two at once behind `a`, and one beside them all.
    assert_eq!(most([chain(), vec![vm("d", Some("a"), 16), vm("e", None, 8)]].concat()), Size(120 * MIB));
    let error = |after: &str| settle(vec![vm("a", Some(after), 64), vm("b", None, 64)]);
    for after in ["a", "b", "c"] {
        assert_eq!(error(after), Err(SpecError::After { vm: "a".into(), after: after.into() }));
    }
}

#[test]
fn names_are_unique() {
    let named = |name: &str| VmFile { name: Some(name.into()), ..VmFile::default() };
    let none = VmFile::default();
    assert!(VmSpec::settle(vec![named("a"), named("b")], &none, false).is_ok());
    assert_eq!(VmSpec::settle(vec![named("a"), named("a")], &none, false), Err(SpecError::Duplicate("a".into())));
    assert_eq!(VmSpec::settle(vec![none.clone(), none], &named("x"), false), Err(SpecError::NameForMany(2)));
    assert_eq!(
        VmSpec::settle(vec![named("a"); MAX_VMS + 1], &VmFile::default(), false),
        Err(SpecError::TooMany(MAX_VMS + 1))
    );
}
