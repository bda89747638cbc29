//! What the command line refuses before it asks a gateway.

use super::text;
use std::process::{Command, Stdio};

/// What a refused command says.
fn refused(arguments: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_wornpath"));
    let output = command.arg("batch").args(arguments).stdin(Stdio::piped()).output().unwrap();
    assert!(!output.status.success(), "{output:?}");
    text(&output.stderr).to_owned()
}

#[test]
fn what_is_no_regular_file_is_not_submitted() {
    for path in ["/dev/stdin", "/dev/null", "/"] {
        // Nobody listens there: it is refused before.
        let said = refused(&["submit", path, "--gateway", "http://127.0.0.1:1"]);
        assert!(said.contains(&format!("{path} is no regular file")), "{said}");
    }
}

#[test]
fn a_gateway_with_a_path_is_refused_and_not_called_without_it() {
    for url in ["http://127.0.0.1:1/base", "http://127.0.0.1:1/?a=b"] {
        let said = refused(&["list", "--gateway", url]);
        assert!(said.contains("without a path: http://127.0.0.1:1"), "{said}");
    }
    let said = refused(&["list", "--gateway", "http://127.0.0.1:1/"]);
    assert!(said.contains("cannot reach the gateway"), "{said}");
}
