//! Links every guest at the address where payloads are entered.

use std::env;

fn main() {
    let here = env::var("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR");
    println!("cargo::rustc-link-arg-bins=-T{here}/guest.ld");
    println!("cargo::rerun-if-changed=guest.ld");
}
