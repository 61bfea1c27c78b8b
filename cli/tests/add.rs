//! `--add`: what is added is in the initramfs that the guest gets.

use std::fs;
use std::path::Path;
use std::process::Command;

fn has(bytes: &[u8], wanted: &[u8]) -> bool {
    bytes.windows(wanted.len()).any(|window| window == wanted)
}

#[test]
fn what_is_added_is_in_the_initramfs() {
    let dir = tempfile::tempdir().expect("a directory");
    fs::create_dir(dir.path().join("tools")).expect("a directory");
    fs::write(dir.path().join("tools/hammer"), "content of the hammer").expect("a file");
    fs::write(dir.path().join("vm.toml"), "add = ['tools']\n").expect("a file");
    let mut command = Command::new(env!("CARGO_BIN_EXE_gnomon"));
    let output = command.args(["run", "--dry-run"]).arg(dir.path().join("vm.toml")).output().expect("gnomon");
    assert!(output.status.success(), "{output:?}");
    let line = String::from_utf8(output.stdout).expect("text");
    let bundle = Path::new(line.trim_end().rsplit(' ').next().expect("a path"));
    let bytes = fs::read(bundle).expect("the bundle");
    fs::remove_file(bundle).expect("it is ours");
    for wanted in ["root/tools\0", "root/tools/hammer\0", "content of the hammer"] {
        assert!(has(&bytes, wanted.as_bytes()), "{wanted}");
    }
}
