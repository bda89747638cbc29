//! How Envoy reaches the picker: TLS, and gRPC health checks.

use crate::envoy::{Envoy, Failure, Picker, Trust, free_port, is_here, listed};
use crate::support::engines::Engines;
use crate::support::gateway::{Gateway, eventually, folder};
use serde_json::json;
use std::fs;
use std::path::Path;
use std::process::Command;

/// Writes a certificate for this machine and its key.
fn certificate(folder: &Path) -> (String, String) {
    let made = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
    let write = |name: &str, text: String| {
        let path = folder.join(name);
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    (write("picker.pem", made.cert.pem()), write("picker.key", made.signing_key.serialize_pem()))
}

/// What a service is, by the health checks at a port without TLS: 1 if it serves, 2 if not; the
/// status code of the call if there is no such service.
fn health(port: u16, service: &str) -> String {
    let script = "
import grpc, sys
channel = grpc.insecure_channel('127.0.0.1:' + sys.argv[1])
check = channel.unary_unary('/grpc.health.v1.Health/Check')
name = sys.argv[2].encode()
try:
    print(list(check(bytes([10, len(name)]) + name if name else b'', timeout=5))[1])
except grpc.RpcError as error:
    print(error.code().name)
";
    let port = port.to_string();
    let asked = Command::new("python3").args(["-c", script, &port, service]).output().unwrap();
    assert!(asked.status.success(), "{}", String::from_utf8_lossy(&asked.stderr));
    String::from_utf8(asked.stdout).unwrap().trim().to_owned()
}

#[test]
fn envoy_checks_the_pickers_health_and_asks_it_over_tls() {
    if !is_here() {
        return;
    }
    let engines = Engines::start(&["--model", "m"]);
    let folder = folder("epp-tls");
    let (certificate, key) = certificate(&folder);
    let [port, health_port] = [free_port(), free_port()];
    let text = format!(
        "listen:\n  client: \"127.0.0.1:0\"\n  epp:\n    address: \"127.0.0.1:{port}\"\n    health: \
         \"127.0.0.1:{health_port}\"\n    tls: {{certificate: \"{certificate}\", key: \"{key}\"}}\n\
         pods: [{{url: \"http://{}\", model: m}}]\n",
        engines.engines[0].http
    );
    let crashed = engines.control("POST", "/engines/0/crash", "");
    assert_eq!(crashed.status, 200, "{}", crashed.text);
    let picker = Gateway::configured("epp-tls-picker", &text, 0);
    let over_tls = |trust: Trust| Picker { ports: vec![port], trust, is_checked: true };
    let trusted = over_tls(Trust::Certificate(certificate));
    let envoy = Envoy::start("epp-tls-envoy", trusted, &listed(&engines), Failure::Close);
    let all = ["", "readiness", "liveness", "envoy.service.ext_proc.v3.ExternalProcessor"];
    let asked = || all.map(|service| health(health_port, service));
    assert_eq!(asked(), ["2", "2", "1", "2"], "no pod has answered yet");
    assert_eq!(envoy.healthy_pickers(), 0);
    engines.control("POST", "/engines/0/restart", "");
    eventually("Envoy sees that the picker serves", || envoy.healthy_pickers() == 1);
    assert_eq!(asked(), ["1"; 4]);
    assert_eq!(health(health_port, "no.such.Service"), "NOT_FOUND");
    let body = json!({"model": "m", "prompt": "over TLS", "max_tokens": 2});
    assert_eq!(envoy.post("/v1/completions", &body).status, 200);

    let other = self::certificate(&self::folder("epp-tls-other")).0;
    let untrusting = over_tls(Trust::Certificate(other));
    let untrusting =
        Envoy::start("epp-tls-untrusting", untrusting, &listed(&engines), Failure::Close);
    let plain = Envoy::start("epp-tls-plain", port, &listed(&engines), Failure::Close);
    assert!(untrusting.post("/v1/completions", &body).status >= 500);
    assert!(plain.post("/v1/completions", &body).status >= 500);

    drop(picker);
    eventually("Envoy sees that the picker is gone", || envoy.healthy_pickers() == 0);
}

/// Most gateways encrypt the connection to a picker without checking its certificate.
#[test]
fn a_self_signed_certificate_needs_no_files_and_only_those_who_check_nothing_accept_it() {
    if !is_here() {
        return;
    }
    let engines = Engines::start(&["--model", "m"]);
    let port = free_port();
    let text = format!(
        "listen: {{client: \"127.0.0.1:0\", epp: {{address: \"127.0.0.1:{port}\", tls: self_signed}}}}\n\
         pods: [{{url: \"http://{}\", model: m}}]\n",
        engines.engines[0].http
    );
    let picker = Gateway::configured("epp-self-signed", &text, 1);
    let body = json!({"model": "m", "prompt": "over TLS", "max_tokens": 2});
    let other = certificate(&folder("epp-self-signed-other")).0;
    for (number, (trust, expected)) in
        [(Trust::Anything, 200), (Trust::Certificate(other), 500), (Trust::Plain, 500)]
            .into_iter()
            .enumerate()
    {
        let shown = format!("{trust:?}");
        let over_tls = Picker { ports: vec![port], trust, is_checked: false };
        let test = format!("epp-self-signed-{number}");
        let envoy = Envoy::start(&test, over_tls, &listed(&engines), Failure::Close);
        assert_eq!(envoy.post("/v1/completions", &body).status / 100 * 100, expected, "{shown}");
    }
    drop(picker);
}
