//! A port that is taken: every command that listens says which option chooses another.

use std::net::TcpListener;
use std::process::Command;

#[test]
fn a_port_in_use_is_named_with_the_option_that_changes_it() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let port = taken.local_addr().unwrap().port().to_string();
    let serve = ["serve", "--pod", "http://127.0.0.1:1"];
    let free = [&serve[..], &["--port", "0"]].concat();
    let engine = ["engine", "--port", "0"];
    let cases: [(Vec<&str>, &str, &str); 8] = [
        ([&serve[..], &["--port", &port]].concat(), "for clients", "--port or `listen.client`"),
        (
            [&free[..], &["--admin", &address]].concat(),
            "for operators",
            "--admin or `listen.admin`",
        ),
        ([&free[..], &["--epp", &address]].concat(), "for the endpoint picker", "--epp or"),
        (
            [&free[..], &["--epp", "127.0.0.1:0", "--epp-health", &address]].concat(),
            "for health checks",
            "--epp-health or",
        ),
        (vec!["engine", "--port", &port], "for HTTP", "with --port (0 for any free one)"),
        ([&engine[..], &["--events-port", &port]].concat(), "for cache events", "--events-port"),
        ([&engine[..], &["--replay-port", &port]].concat(), "for replay", "--replay-port"),
        ([&engine[..], &["--control-port", &port]].concat(), "for control", "--control-port"),
    ];
    for (arguments, what, option) in cases {
        let binary = env!("CARGO_BIN_EXE_wornpath");
        let output = Command::new(binary).args(&arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {output:?}");
        let error = String::from_utf8(output.stderr).unwrap();
        let line = error.lines().find(|line| line.starts_with("error: ")).unwrap_or_default();
        assert!(line.contains(&format!("cannot listen at {address} {what}")), "{error}");
        assert!(line.contains("another process has that port") && line.contains(option), "{error}");
    }
}
