//! Links every guest at the address where payloads are entered.

use std::path::{Path, PathBuf};
use std::{env, fs};

/// The entries of a folder.
fn entries(folder: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    let entries = fs::read_dir(folder).expect("a folder of guests");
    entries.map(|entry| entry.expect("an entry of the guests' folder").path())
}

fn main() {
    let here = env::var("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR");
    // A folder for each topic, with a file or a folder for each guest.
    for source in entries(&Path::new(&here).join("src/bin")).flat_map(|topic| entries(&topic)) {
        let name = source.file_stem().and_then(|stem| stem.to_str()).expect("a name in ASCII");
        println!("cargo::rustc-link-arg-bin={name}=-T{here}/guest.ld");
    }
    println!("cargo::rerun-if-changed=guest.ld");
    println!("cargo::rerun-if-changed=src/bin");
}
