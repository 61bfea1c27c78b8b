//! Tells the linker where the kernel goes. The library needs nothing.

fn main() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/link.ld");
    println!("cargo::rerun-if-changed={script}");
    if std::env::var("CARGO_CFG_TARGET_OS").is_ok_and(|os| os == "none") {
        println!("cargo::rustc-link-arg-bins=-T{script}");
    }
}
