//! The systemd unit: its options exist, its timeouts cover draining, and its sandbox is tight.

use super::{folder, has, read, takes};
use std::fs;
use std::process::Command;

const UNIT: &str = "deploy/systemd/wornpath.service";
const BINARY: &str = "/usr/local/bin/wornpath";

fn setting(unit: &str, key: &str) -> String {
    let line = unit.lines().find_map(|line| line.strip_prefix(&format!("{key}=")));
    line.unwrap_or_else(|| panic!("the unit has no {key}")).to_owned()
}

#[test]
fn the_unit_starts_with_options_that_exist_and_not_again_over_a_bad_configuration() {
    let unit = read(UNIT);
    let line = setting(&unit, "ExecStart");
    let words: Vec<&str> = line.split(' ').collect();
    assert_eq!(words[0], BINARY);
    takes(&words[1..]);
    assert_eq!(words.last(), Some(&"/etc/wornpath/wornpath.yaml"));
    // Of a process before the start it would not be heeded, and the unit would start for ever.
    assert_eq!(setting(&unit, "RestartPreventExitStatus"), "78");
    assert!(!unit.contains("ExecStartPre"));
}

/// The defaults of `drain.lame_duck` and `drain.grace` stand in the reference page, which a test
/// keeps current.
#[test]
fn the_unit_waits_longer_for_the_end_than_draining_takes() {
    let page = read("docs/configuration.md");
    let default = |key: &str| {
        let row = page.lines().find(|line| line.starts_with(&format!("| `{key}` |"))).unwrap();
        let value = row.split('|').nth(3).unwrap().trim().trim_matches('`').trim_end_matches('s');
        value.parse::<u64>().unwrap()
    };
    let allowed: u64 = setting(&read(UNIT), "TimeoutStopSec").parse().unwrap();
    let longest = default("lame_duck") + default("grace") + 2;
    assert!(allowed > longest, "{allowed} s are too short for {longest}");
}

/// That it is told so is shown by `the_systemd_watchdog_is_fed_until_a_thread_sticks`.
#[test]
fn the_unit_restarts_a_router_with_a_stuck_thread_and_not_one_that_was_late_once() {
    let unit = read(UNIT);
    assert_eq!(setting(&unit, "Type"), "notify");
    assert_eq!(setting(&unit, "Restart"), "on-failure");
    let without_word: u64 = setting(&unit, "WatchdogSec").parse().unwrap();
    assert!((5..=20).contains(&without_word), "{without_word} s");
    // The socket that it is told over.
    assert!(setting(&unit, "RestrictAddressFamilies").contains("AF_UNIX"));
}

#[test]
fn systemd_finds_no_fault_with_the_unit_and_little_that_it_could_do() {
    if !has("systemd-analyze") {
        return;
    }
    let folder = folder("systemd");
    let path = folder.join("wornpath.service");
    fs::write(&path, read(UNIT).replace(BINARY, env!("CARGO_BIN_EXE_wornpath"))).unwrap();
    for arguments in [&["verify"][..], &["security", "--offline=true", "--threshold=20"]] {
        let answer = Command::new("systemd-analyze").args(arguments).arg(&path).output().unwrap();
        let said = [answer.stdout, answer.stderr].concat();
        assert!(answer.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&said));
    }
    fs::remove_dir_all(folder).unwrap();
}
