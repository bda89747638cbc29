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

/// A gateway with this certificate on the admin plane, and what `top` says when it calls it.
fn called(
    folder: &Path,
    certificate: &str,
    environment: &[(&str, &str)],
    more: &[&str],
) -> (bool, String) {
    let engines = Engines::start(&["--model", "m"]);
    let text = format!(
        "listen:\n  admin: {{address: \"127.0.0.1:0\", tls: {{certificate: {certificate}.pem, key: {certificate}.key}}}}\n\
         pods: [{{url: \"http://{}\"}}]\n",
        engines.engines[0].http
    );
    let path = folder.join("wornpath.yaml");
    fs::write(&path, text).unwrap();
    let gateway = Gateway::start(&["-c", path.to_str().unwrap(), "--admin", "127.0.0.1:0"], 1);
    let admin = format!("https://{}", gateway.admin.as_ref().unwrap());
    let mut command = Command::new(env!("CARGO_BIN_EXE_wornpath"));
    command.current_dir(folder).env_remove("WORNPATH_CA").envs(environment.iter().copied());
    let output = command.args(["top", "--once", "--admin", &admin]).args(more).output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8(said).unwrap())
}

#[test]
fn without_ca_commands_trust_the_cas_of_the_system() {
    let ours = authority("ours");
    let folder = workshop("system-cas", &ours);
    signed(&ours, "127.0.0.1", 2100).write(&folder, "server");
    let foreign = authority("foreign");
    fs::write(folder.join("foreign.pem"), foreign.pem()).unwrap();
    let (is_done, said) = called(&folder, "server", &[("SSL_CERT_FILE", "ca.pem")], &[]);
    assert!(is_done && said.contains("1 pod"), "{said}");
    let (is_done, said) = called(&folder, "server", &[("SSL_CERT_FILE", "foreign.pem")], &[]);
    assert!(!is_done && said.contains("is not trusted; give its CA with --ca FILE"), "{said}");
}

/// `openssl req -x509` without more makes a CA, which rustls does not accept as a server.
#[test]
fn a_server_whose_certificate_is_a_ca_is_named_with_the_cure() {
    let ours = authority("ours");
    let folder = workshop("ca-as-server", &ours);
    let made = Command::new("openssl")
        .current_dir(&folder)
        .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"])
        .args(["-nodes", "-days", "1", "-subj", "/CN=wornpath"])
        .args(["-addext", "subjectAltName=IP:127.0.0.1"])
        .args(["-keyout", "server.key", "-out", "server.pem"])
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let (is_done, said) = called(&folder, "server", &[], &["--ca", "server.pem"]);
    assert!(!is_done && said.contains("is that of a CA"), "{said}");
    assert!(said.contains("basicConstraints=CA:FALSE"), "{said}");
}
