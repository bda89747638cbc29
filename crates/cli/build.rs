//! Tells the program how much it was optimized: cargo's profile `release` is for trying it.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let level = std::env::var("OPT_LEVEL").unwrap_or_default();
    println!("cargo::rustc-env=WORNPATH_OPT_LEVEL={level}");
}
