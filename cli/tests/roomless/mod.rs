//! A file system without room, where none can be had.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Makes a program in a directory that is to be started in place of QEMU, by `GNOMON_QEMU`. It starts QEMU, where writes to the file of that
/// drive fail as on a full file system.
pub fn roomless(dir: &Path, drive: &str) -> PathBuf {
    let error = r#""driver":"blkdebug",,"inject-error":[{"event":"none",,"iotype":"write",,"errno":28}],,"image":{"#;
    let script = format!(
        r#"#!/bin/bash
args=()
for arg; do
    case $arg in
    *,id={drive},*)
        arg=${{arg/'"file":{{'/'"file":{{{error}'}}
        # The file's name ends it.
        arg=${{arg/'"}}'/'"}}}}'}}
        ;;
    esac
    args+=("$arg")
done
exec qemu-system-riscv64 "${{args[@]}}"
"#
    );
    let program = dir.join("qemu");
    std::fs::write(&program, script).expect("a file");
    std::fs::set_permissions(&program, Permissions::from_mode(0o755)).expect("its rights");
    program
}
