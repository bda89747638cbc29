//! The attack suite in `tests/attack`, against this binary.

use std::process::Command;

const SUITE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/attack/run");

/// Whether python3 is installed; a failure with `WORNPATH_PEERS=required`.
fn has_python() -> bool {
    let found = Command::new("python3").arg("--version").output();
    let is_there = found.is_ok_and(|found| found.status.success());
    let required = std::env::var("WORNPATH_PEERS").is_ok_and(|value| value == "required");
    assert!(is_there || !required, "python3 is missing, and WORNPATH_PEERS=required");
    is_there
}

#[test]
fn the_attack_suite_holds() {
    if !has_python() {
        eprintln!("NOT SHOWN: the attack suite, because python3 is missing");
        return;
    }
    let mut suite = Command::new("python3");
    suite.args([SUITE, "--binary", env!("CARGO_BIN_EXE_wornpath")]);
    let output = suite.output().unwrap();
    let told = String::from_utf8_lossy(&output.stdout);
    let broken: Vec<_> = told.lines().filter(|line| line.contains(": BROKE: ")).collect();
    let wrong = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}\n{wrong}", broken.join("\n"));
    let held = told.lines().filter(|line| line.ends_with(": held")).count();
    assert!(held > 60, "only {held} attacks ran:\n{told}");
}
