//! The commands that call a gateway, over TLS.

use crate::support::engines::Engines;
use crate::support::gateway::Gateway;
use crate::tls::{authority, signed, workshop};
use std::fs;
use std::path::Path;
use std::process::Command;

/// Whether a command succeeded, and all that it said.
fn command(folder: &Path, arguments: &[&str]) -> (bool, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_wornpath"));
    command.current_dir(folder).env_remove("WORNPATH_CA").args(arguments);
    let output = command.output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8(said).unwrap())
}

#[test]
fn commands_call_gateways_with_a_valid_certificate_and_send_theirs() {
    let ours = authority("ours");
    let foreign = authority("foreign");
    let folder = workshop("commands", &ours);
    signed(&ours, "127.0.0.1", 2100).write(&folder, "server");
    signed(&ours, "operator", 2100).write(&folder, "operator");
    fs::write(folder.join("foreign.pem"), foreign.pem()).unwrap();
    fs::write(folder.join("lines.jsonl"), "{\"prompt\": \"a\", \"max_tokens\": 1}\n").unwrap();
    let engines = Engines::start(&["--model", "m"]);
    let tls = "tls: {certificate: server.pem, key: server.key, client_ca: ca.pem}";
    let text = format!(
        "listen:\n  client: {{address: \"127.0.0.1:0\", {tls}}}\n  admin: {{address: \"127.0.0.1:0\", {tls}}}\n\
         pods: [{{url: \"http://{}\"}}]\n",
        engines.engines[0].http
    );
    let path = folder.join("wornpath.yaml");
    fs::write(&path, text).unwrap();
    let batches = folder.join("batches");
    let gateway = Gateway::start(
        &[
            "-c",
            path.to_str().unwrap(),
            "--admin",
            "127.0.0.1:0",
            "--batches",
            batches.to_str().unwrap(),
        ],
        1,
    );
    let client = format!("https://{}", gateway.address);
    let admin = format!("https://{}", gateway.admin.as_ref().unwrap());
    let list = ["batch", "list", "--gateway", &client];
    let top = ["top", "--once", "--admin", &admin];
    let run = ["run", "lines.jsonl", "-o", "out.jsonl", "--resume", "--pod", &client];
    let record = ["trace", "record", "trace.jsonl", "--for", "1s", "--admin", &admin];
    let shown = ["--certificate", "operator.pem", "--key", "operator.key"];
    let hasty = [&run[..], &["--give-up-after", "1s"]].concat();
    let plan = ["plan", "lines.jsonl", "--pod", &client];
    for called in [&list[..], &top, &hasty, &record, &plan] {
        let with = |more: &[&[&str]]| command(&folder, &[called, &more.concat()].concat());
        let untrusted = with(&[&["--ca", "foreign.pem"], &shown]);
        assert!(!untrusted.0 && untrusted.1.contains("UnknownIssuer"), "{called:?}: {untrusted:?}");
        let unknown = with(&[]);
        // The CAs of the system, where it has any, do not include ours.
        let is_named = unknown.1.contains("UnknownIssuer") || unknown.1.contains("--ca FILE");
        assert!(!unknown.0 && is_named, "{called:?}: {unknown:?}");
        let unshown = with(&[&["--ca", "ca.pem"]]);
        assert!(!unshown.0 && unshown.1.contains("CertificateRequired"), "{called:?}: {unshown:?}");
    }
    let known = [&["--ca", "ca.pem"][..], &shown].concat();
    let (is_done, said) = command(&folder, &[&list[..], &known].concat());
    assert!(is_done, "{said}");
    let (is_done, said) = command(&folder, &[&top[..], &known].concat());
    assert!(is_done && said.contains("1 pod"), "{said}");
    let (is_done, said) = command(&folder, &[&run[..], &known].concat());
    assert!(is_done, "{said}");
    assert_eq!(fs::read_to_string(folder.join("out.jsonl")).unwrap().lines().count(), 1);
    // It was reached, and there was nothing to record.
    let (_, said) = command(&folder, &[&record[..], &known].concat());
    assert!(said.contains("recording to trace.jsonl"), "{said}");
    let (is_done, said) = command(&folder, &[&plan[..], &known].concat());
    assert!(is_done, "{said}");
    for (half, told) in [
        (&["--certificate", "operator.pem"][..], "belong together"),
        (&["--key", "operator.key"], "belong together"),
        (&["--ca", "none.pem"], "--ca: cannot read none.pem"),
        (&["--ca", "operator.key"], "it contains no certificate"),
    ] {
        let (is_done, said) = command(&folder, &[&list[..], half].concat());
        assert!(!is_done && said.contains(told), "{half:?}: {said}");
    }
    let watched = ["batch", "watch", "batch-1", "--gateway", &client, "--ca", "foreign.pem"];
    let (is_done, said) = command(&folder, &watched);
    assert!(!is_done && said.contains("is not trusted"), "at once, not after a minute: {said}");
    let capitals = client.replace("https", "HTTPS");
    let (is_done, said) = command(&folder, &["batch", "list", "--gateway", &capitals]);
    assert!(!is_done && said.contains("does not start with"), "{said}");
    let engine = format!("https://{}", engines.engines[0].http);
    let called = ["batch", "list", "--gateway", &engine, "--ca", "ca.pem"];
    let (is_done, said) = command(&folder, &called);
    assert!(!is_done && said.contains("if it does not use TLS, write http://"), "{said}");
    let plain = format!("http://{}", gateway.address);
    let (is_done, said) = command(&folder, &["batch", "list", "--gateway", &plain]);
    assert!(!is_done && said.contains("if it uses TLS, write https://"), "{said}");
}
