//! `wornpath top`, as a user runs it.

use crate::support::terminal::Terminal;
use crate::{configured, engines};
use rustix::process::Signal;
use std::process::{Command, Output};

fn top(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_wornpath")).arg("top").args(arguments).output().unwrap()
}

fn told(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap() + &String::from_utf8_lossy(&output.stderr)
}

#[test]
fn top_once_prints_the_fleet_as_plain_text() {
    let engines = engines();
    let gateway = configured("top_once", &engines, "");
    let body = serde_json::json!({"model": "m", "prompt": "Once upon a time", "max_tokens": 4});
    let asked = gateway.post("/v1/completions", &body);
    assert_eq!(asked.status, 200, "{}", asked.text);
    let admin = format!("http://{}", gateway.admin.as_ref().unwrap());
    let output = top(&["--once", "--admin", &admin]);
    let shown = told(&output);
    assert!(output.status.success(), "{shown}");
    assert!(shown.contains("4 of 4 pods up"), "{shown}");
    let pods = shown.lines().filter(|line| line.starts_with("pod-")).count();
    assert_eq!(pods, 4, "{shown}");
    assert!(shown.contains("requests/s") && shown.contains("live"), "{shown}");
    assert!(shown.lines().any(|line| line.contains(" 200 ") && line.contains("pod-")), "{shown}");
    assert!(!shown.contains('\x1b'), "no escapes where there is no terminal");
    let output = top(&["--admin", &admin]);
    assert!(!output.status.success() && told(&output).contains("use --once"), "{}", told(&output));
}

#[test]
fn top_reports_why_it_cannot_connect() {
    let engines = engines();
    let listen = format!(
        "listen: {{admin: {{address: \"127.0.0.1:0\", token_digest: \"{}\"}}}}",
        crate::DIGEST
    );
    let gateway = configured("top_token", &engines, &listen);
    let admin = format!("http://{}", gateway.admin.as_ref().unwrap());
    let client = format!("http://{}", gateway.address);
    for (arguments, wanted) in [
        (&["--once", "--admin", &admin][..], "requires a token; give --token"),
        (&["--once", "--admin", &admin, "--token", "wrong"], "rejected the token"),
        (&["--once", "--admin", &client], "is it the admin address"),
        (&["--once", "--admin", "http://127.0.0.1:9"], "cannot reach the admin plane"),
        (&["--once", "--admin", "http://127.0.0.1:9"], "was the router started with --admin?"),
        (&["--once", "--admin", "http://127.0.0.1:80800"], "its port is not between 1 and 65535"),
        (&["--once", "--admin", "127.0.0.1:9"], "write it like http://127.0.0.1:9"),
    ] {
        let output = top(arguments);
        assert!(!output.status.success(), "{arguments:?}");
        assert!(told(&output).contains(wanted), "{arguments:?}: {}", told(&output));
    }
    assert!(top(&["--once", "--admin", &admin, "--token", "secret"]).status.success());
}

#[test]
fn top_is_driven_by_keys_and_restores_the_terminal() {
    let engines = engines();
    let gateway = configured("top_keys", &engines, "");
    let admin = format!("http://{}", gateway.admin.as_ref().unwrap());
    let command = [env!("CARGO_BIN_EXE_wornpath"), "top", "--admin", &admin];
    let mut terminal = Terminal::run(&command, 30, 100);
    terminal.wait_for("4 of 4 pods up");
    terminal.wait_for("by problems");
    assert!(terminal.rows()[29].contains("? help"), "{:#?}", terminal.rows());
    let first_pod = |terminal: &Terminal| terminal.rows()[4][..5].to_owned();
    terminal.press("s");
    terminal.wait_for("by name");
    assert_eq!(first_pod(&terminal), "pod-0");
    terminal.press("r");
    terminal.wait_for("by name, reversed");
    assert_eq!(first_pod(&terminal), "pod-3");
    terminal.press("\x1b[B\x1b[B");
    terminal.wait("the second pod is selected", |screen| {
        let is_inverse = |row: u16| screen.cell(row, 0).is_some_and(vt100::Cell::inverse);
        is_inverse(5) && !is_inverse(4)
    });
    terminal.press("/pod-2");
    terminal.wait_for("/pod-2▏");
    terminal.wait("one pod is left", |screen| {
        screen.contents().lines().filter(|line| line.starts_with("pod-")).count() == 1
    });
    terminal.press("\r");
    terminal.wait_for("only `pod-2`");
    terminal.press("p");
    terminal.wait_for("PAUSED");
    terminal.press("?");
    terminal.wait_for("reverse the order");
    terminal.press("?p/\x1b");
    terminal.wait("all pods are back", |screen| {
        let shown = screen.contents();
        !shown.contains("PAUSED") && !shown.contains("reverse the order") && shown.contains("pod-0")
    });
    terminal.resize(8, 40);
    terminal.wait("it fits into a small window", |screen| {
        let shown: Vec<_> = screen.rows(0, 40).collect();
        shown[0].starts_with("wornpath") && shown[7].starts_with("by name, reversed")
    });
    terminal.press("q");
    let left = terminal.end(0);
    assert!(!left.contains("pods up"), "nothing of it stays: {left}");
}

#[test]
fn escape_control_c_and_signals_end_top_and_restore_the_terminal() {
    let engines = engines();
    let gateway = configured("top_ends", &engines, "");
    let admin = format!("http://{}", gateway.admin.as_ref().unwrap());
    let command = [env!("CARGO_BIN_EXE_wornpath"), "top", "--admin", &admin];
    let ends: [fn(&mut Terminal); 4] = [
        |terminal| terminal.press("\x1b"),
        |terminal| terminal.press("\x03"),
        |terminal| terminal.signal(Signal::TERM),
        |terminal| terminal.signal(Signal::INT),
    ];
    for end in ends {
        let mut terminal = Terminal::run(&command, 24, 80);
        terminal.wait_for("4 of 4 pods up");
        end(&mut terminal);
        terminal.end(0);
    }
}

#[test]
fn a_router_that_stops_ends_top_with_an_error_on_a_restored_terminal() {
    let engines = engines();
    let gateway = configured("top_lost", &engines, "");
    let admin = format!("http://{}", gateway.admin.as_ref().unwrap());
    let command = [env!("CARGO_BIN_EXE_wornpath"), "top", "--admin", &admin];
    let mut terminal = Terminal::run(&command, 24, 80);
    terminal.wait_for("4 of 4 pods up");
    drop(gateway);
    let shown = terminal.end(1);
    assert!(shown.contains("error: "), "{shown}");
}
