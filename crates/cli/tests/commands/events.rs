//! `wornpath events`, run as a user runs it, on a stream captured from a real engine.

use std::io::{BufRead, BufReader};
use std::process::{Command, Output, Stdio};
use wornpath_events::wire::records;
use wornpath_events::zmtp::ZmtpPublisher;

fn tail(arguments: &[&str]) -> Output {
    let program = env!("CARGO_BIN_EXE_wornpath");
    Command::new(program).args(["events", "tail"]).args(arguments).output().unwrap()
}

#[test]
fn a_live_stream_is_decoded_and_missing_batches_are_reported() {
    let capture = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../events/tests/fixtures/vllm-0.32/serve_sha256_cbor.bin"
    );
    let capture = std::fs::read(capture).unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let publisher = runtime.block_on(ZmtpPublisher::bind("127.0.0.1:0")).unwrap();
    let source = format!("zmq://{}", publisher.address());
    let run = std::thread::scope(|scope| {
        let run = scope.spawn(|| tail(&["--from", &source, "--limit", "3"]));
        runtime.block_on(publisher.subscribed(1));
        for (at, message) in records(&capture).enumerate().take(4) {
            if at != 1 {
                publisher.send(&message.unwrap());
            }
        }
        run.join().unwrap()
    });
    let printed = String::from_utf8(run.stdout).unwrap();
    // On a slow machine it may have said first that it is not connected yet.
    let lines: Vec<_> = printed.lines().filter(|line| !line.starts_with("not ")).collect();
    assert_eq!(lines[0], format!("connected to {source}"));
    assert!(lines[1].starts_with("#0 rank 0 stored Gpu "), "{printed}");
    assert!(lines[1].contains(" at the start of a prompt, "), "{printed}");
    assert!(lines.contains(&"#1 to #1 missing"), "{printed}");
    assert!(run.status.success());
}

#[test]
fn tail_reports_why_it_is_not_connected_and_connects_later() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_wornpath"))
        .args(["events", "tail", "--from", &format!("zmq://{free}")])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let why = said.next().unwrap();
    assert!(why.starts_with(&format!("not connected to zmq://{free}: ")), "{why}");
    assert!(why.contains("refused"), "{why}");
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let _publisher = runtime.block_on(ZmtpPublisher::bind(&free.to_string())).unwrap();
    let connected = format!("connected to zmq://{free}");
    assert!(said.any(|line| line == connected));
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn an_invalid_address_is_refused_with_the_cure() {
    let refused = tail(&["--from", "http://pod:1"]);
    let error = String::from_utf8(refused.stderr).unwrap();
    assert!(error.contains("it must begin with zmq:// or tcp://"), "{error}");
    assert!(error.contains("write zmq://host:port?replay=port&topic=prefix"), "{error}");
    let refused = tail(&["--from", "zmq://127.0.0.1:1", "--since", "0"]);
    let error = String::from_utf8(refused.stderr).unwrap();
    assert!(error.contains("--since needs a replay socket"), "{error}");
}

#[test]
fn a_relay_refuses_an_invalid_source_or_broker_with_the_cure() {
    let relay = |from: &str, to: &str| {
        let program = env!("CARGO_BIN_EXE_wornpath");
        let run = Command::new(program).args(["relay", "--from", from, "--to", to]).output();
        String::from_utf8(run.unwrap().stderr).unwrap()
    };
    let error = relay("zmq://127.0.0.1:1", "nats://127.0.0.1:1/kv");
    assert!(error.contains("expected NAME=zmq://host:port"), "{error}");
    let error = relay("pod=zmq://127.0.0.1:1", "nats://127.0.0.1:1");
    assert!(
        error.contains("expected nats://host:port/STREAM, redis://host:port/PREFIX or kafka"),
        "{error}"
    );
    let error = relay("pod=zmq://127.0.0.1:1", "redis://me:canary@127.0.0.1:1/kv");
    assert!(error.contains("give --password-file or --password-env"), "{error}");
    assert!(!error.contains("canary"), "{error}");
    let error = relay("pod=zmq://127.0.0.1:1", "nats://canary@127.0.0.1:1/kv");
    assert!(error.contains("a user or a token, but there is no password"), "{error}");
    assert!(!error.contains("canary"), "{error}");
    if cfg!(not(feature = "nats")) {
        let error = relay("pod=zmq://127.0.0.1:1", "nats://127.0.0.1:1/kv");
        assert!(error.contains("this build has no NATS; build it with --features nats"), "{error}");
    }
}

#[cfg(feature = "nats")]
#[test]
fn a_relay_reports_an_unreachable_engine() {
    let mut relay = Command::new(env!("CARGO_BIN_EXE_wornpath"))
        .args(["relay", "--from", "pod=zmq://127.0.0.1:1", "--to", "nats://127.0.0.1:1/kv"])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = String::new();
    BufReader::new(relay.stderr.take().unwrap()).read_line(&mut said).unwrap();
    relay.kill().unwrap();
    relay.wait().unwrap();
    assert!(said.starts_with("pod: engine unreachable: "), "{said}");
}

#[test]
fn an_engine_is_verified_by_its_own_answers() {
    let verify = |engine: &crate::support::engines::Engines| {
        let url = format!("http://{}", engine.engines[0].http);
        let program = env!("CARGO_BIN_EXE_wornpath");
        let arguments = ["events", "verify", "--engine", &url, "--prompts", "30"];
        Command::new(program).args(arguments).output().unwrap()
    };
    let engine = crate::support::engines::Engines::start(&["--kv-tokens", "1024"]);
    let honest = verify(&engine);
    let printed = String::from_utf8_lossy(&honest.stdout);
    assert!(honest.status.success(), "{printed}");
    assert!(printed.contains("blocks of 16 tokens, events from zmq://"), "{printed}");
    assert!(printed.contains(": 30 as predicted by the events"), "{printed}");
    assert!(!printed.contains(" 0 with a hit"), "{printed}");

    engine.set_faults(0, r#"{"cached_tokens": "all"}"#);
    let lying = verify(&engine);
    let printed = String::from_utf8_lossy(&lying.stdout);
    assert!(!lying.status.success(), "{printed}");
    assert!(printed.contains("cached by its events, "), "{printed}");
    let error = String::from_utf8_lossy(&lying.stderr);
    assert!(error.contains("of 30 prompts differ"), "{error}");
}

#[test]
fn wrong_predictions_and_tokens_are_explained_with_the_cure() {
    let explain = |engine: &crate::support::engines::Engines, more: &[&str]| {
        let url = format!("http://{}", engine.engines[0].http);
        let arguments = ["events", "verify", "--engine", &url, "--prompts", "24", "--explain"];
        let mut program = Command::new(env!("CARGO_BIN_EXE_wornpath"));
        let output = program.args(arguments).args(more).env("HF_HUB_OFFLINE", "1").output();
        let output = output.unwrap();
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.success(), printed, error)
    };
    let tiny = concat!(env!("CARGO_MANIFEST_DIR"), "/../blocks/tests/models/tiny-llama");
    let engine = crate::support::engines::Engines::start(&["--adapter", "l", "--tokenizer", tiny]);
    let (is_good, printed, error) = explain(&engine, &[]);
    assert!(is_good, "{printed}{error}");
    assert!(printed.contains(": 24 as predicted by the events"), "also with salt: {printed}");
    for probe in ["text", "chat"] {
        let line = format!("{probe}: tokens of {tiny} are those of the engine");
        assert!(printed.contains(&line), "no `{line}` in {printed}");
    }

    let (is_good, printed, error) = explain(&engine, &["--tokenizer", "bytes"]);
    assert!(!is_good && error.contains("are not those of the engine"), "{error}");
    assert!(printed.contains("text: the engine tokenizes text otherwise: at token 0"), "{printed}");

    engine.set_faults(0, r#"{"cached_tokens": "zero"}"#);
    let (is_good, printed, _) = explain(&engine, &[]);
    assert!(!is_good);
    assert!(printed.contains("the engine does not use blocks that it announced"), "{printed}");
    engine.set_faults(0, r#"{"lose_tail": true, "no_replay": true}"#);
    let (is_good, printed, error) = explain(&engine, &[]);
    let is_named = printed.contains("holds blocks that it never announced");
    assert!(!is_good && (is_named || error.contains("did not settle")), "{printed}{error}");
}
