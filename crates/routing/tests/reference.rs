//! The reference page says what the code says.
//!
//! `UPDATE=1 cargo test -p wornpath-routing --test reference` writes it anew.
#![allow(clippy::unwrap_used, reason = "a panic is how a test says no")]

use std::fs;
use std::path::Path;

use wornpath_routing::Registry;

#[test]
fn the_reference_page_is_current_and_every_example_can_be_made() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/plugins/reference.md");
    let page = Registry::shipped().reference();
    if std::env::var_os("UPDATE").is_some() {
        fs::write(&path, &page).unwrap();
    }
    let written = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        written == page,
        "docs/plugins/reference.md is not current; write it with \
         `UPDATE=1 cargo test -p wornpath-routing --test reference`"
    );
}
