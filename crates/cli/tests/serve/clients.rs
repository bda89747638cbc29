//! The official Python clients of OpenAI and Anthropic, as their users have them.

use crate::support::engines::Engines;
use crate::support::gateway::Gateway;
use std::process::Command;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/serve/clients.py");

/// Whether the clients are installed. `./test` installs them and says that they must be there.
fn have_clients() -> bool {
    let imported = Command::new("python3").args(["-c", "import openai, anthropic"]).output();
    if imported.is_ok_and(|output| output.status.success()) {
        return true;
    }
    let is_required = std::env::var_os("WORNPATH_PEERS").is_some_and(|word| word == "required");
    assert!(!is_required, "python3 has no `openai` or no `anthropic`, and WORNPATH_PEERS=required");
    eprintln!("NOT SHOWN: the official clients, because python3 has no `openai` or no `anthropic`");
    false
}

/// Runs the script against a gateway; how many things it has shown.
fn show(engines: &Engines, gateway: &Gateway, what: &[&str]) -> usize {
    let engine = format!("http://{}", engines.engines[0].http);
    let output = Command::new("python3")
        .args([SCRIPT, &format!("http://{}", gateway.address), "m", &engine])
        .args(what)
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&output.stdout);
    let wrong = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{told}{wrong}");
    told.lines().filter(|line| line.starts_with("shown: ")).count()
}

#[test]
fn the_official_clients_get_what_they_expect() {
    if !have_clients() {
        return;
    }
    let engines = Engines::start_at("20", &["--model", "m", "--answer-tokens", "12"]);
    let gateway = Gateway::in_front_of(&engines, &[]);
    assert_eq!(show(&engines, &gateway, &[]), 16);
}

#[test]
fn the_official_client_takes_a_broken_stream_of_responses_for_an_error() {
    if !have_clients() {
        return;
    }
    let engines =
        Engines::start(&["--engines", "2", "--model", "m", "--fault", "cut-after-tokens=3"]);
    let gateway = Gateway::in_front_of(&engines, &[]);
    assert_eq!(show(&engines, &gateway, &["broken_responses"]), 1);
}
