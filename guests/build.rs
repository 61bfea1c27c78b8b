//! Links every guest at the address where payloads are entered.

use std::{env, fs};

fn main() {
    let here = env::var("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR");
    let sources = fs::read_dir(format!("{here}/src/bin")).expect("the guests' folder");
    for source in sources {
        let path = source.expect("an entry of the guests' folder").path();
        let name = path.file_stem().and_then(|stem| stem.to_str()).expect("a name in ASCII");
        println!("cargo::rustc-link-arg-bin={name}=-T{here}/guest.ld");
    }
    println!("cargo::rerun-if-changed=guest.ld");
    println!("cargo::rerun-if-changed=src/bin");
}
