//! `wornpath top`, as a user runs it.

use crate::{configured, engines};
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
fn a_signal_ends_top_and_restores_the_terminal() {
    let engines = engines();
    let gateway = configured("top_ends", &engines, "");
    let admin = gateway.admin.as_ref().unwrap();
    let binary = env!("CARGO_BIN_EXE_wornpath");
    for signal in ["INT", "TERM"] {
        let command = format!("timeout -s {signal} 2 {binary} top --admin http://{admin}");
        let output = Command::new("script").args(["-qec", &command, "/dev/null"]).output().unwrap();
        let shown = told(&output);
        let entered = shown.find("\x1b[?1049h");
        let left = shown.rfind("\x1b[?1049l");
        assert!(entered.is_some() && entered < left, "{signal}: {shown:?}");
        assert!(shown.contains("4 of 4 pods up"), "{signal}: {shown}");
    }
}
