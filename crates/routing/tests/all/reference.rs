//! The plugin reference page is generated from the code.
//!
//! `UPDATE=1 cargo test -p wornpath-routing --test all reference` rewrites it.

use std::fs;
use std::path::Path;

use wornpath_routing::Registry;

#[test]
fn the_reference_page_is_up_to_date_and_every_example_builds() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/plugins/reference.md");
    let page = Registry::shipped().reference();
    if std::env::var_os("UPDATE").is_some() {
        fs::write(&path, &page).unwrap();
    }
    let written = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        written == page,
        "docs/plugins/reference.md is out of date; update it with \
         `UPDATE=1 cargo test -p wornpath-routing --test all reference`"
    );
}
