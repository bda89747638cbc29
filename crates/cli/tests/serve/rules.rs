//! A hard rule in CEL decides which pods a tenant may use, whatever the load.

use crate::support::engines::{Engines, Exchange, Response};
use crate::support::gateway::{Gateway, folder, refused};
use serde_json::json;
use std::fmt::Write;

/// Digests of the keys `premium` and `free`.
const TENANTS: &str = "tenants:
  - {name: premium, key_digest: \"sha256:870dc23d21836b97b58a7753922edc8512764e83c02586f3d8f14c11f760550b\"}
  - {name: free, key_digest: \"sha256:ad95d5fa651ba86d8923fe1238d24a4f1988a752acfe426ac72ac7c04471bc17\"}
";

const RULE: &str = r#"tenant.name == "premium" ? pod.labels.gpu == "h100" : true"#;

fn configuration(engines: &Engines, folder: &std::path::Path, rule: &str) -> String {
    let profile = folder.join("rule.yaml");
    let text = format!(
        "filter:\n  - healthy\n  - expression: {{{rule}}}\nscore: [least_load]\npick: max_score\n"
    );
    std::fs::write(&profile, text).unwrap();
    let mut text = format!(
        "{TENANTS}models: [{{name: m}}]\nprofiles: {{rule: {}}}\nroutes: [{{profile: rule}}]\npods:\n",
        profile.display()
    );
    for (engine, gpu) in engines.engines.iter().zip(["h100", "a100"]) {
        writeln!(
            text,
            "  - {{url: \"http://{}\", name: {gpu}, model: m, labels: {{gpu: {gpu}}}}}",
            engine.http
        )
        .unwrap();
    }
    text
}

fn ask(gateway: &Gateway, key: &str) -> Response {
    let body = json!({"model": "m", "prompt": "hello", "max_tokens": 1}).to_string();
    let head =
        format!("POST /v1/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\n");
    Exchange::send(&gateway.address, &head, &body).finish().unwrap()
}

#[test]
fn a_rule_sends_a_tenant_to_its_gpus_alone_and_its_rejection_names_the_rule() {
    let engines = Engines::start(&["--engines", "2", "--model", "m"]);
    let folder = folder("rules");
    let rule = format!("keep: '{RULE}'");
    let gateway = Gateway::configured("rules-serve", &configuration(&engines, &folder, &rule), 2);
    let pods = |key: &str| {
        let mut pods: Vec<_> = (0..20).map(|_| ask(&gateway, key).pod().to_owned()).collect();
        pods.sort();
        pods.dedup();
        pods
    };
    assert_eq!(pods("premium"), ["h100"]);
    assert_eq!(pods("free"), ["a100", "h100"]);

    let drained = gateway.ask("POST", "/pods/h100/drain", "");
    assert_eq!(drained.status, 200, "{}", drained.text);
    let rejected = ask(&gateway, "premium");
    assert_eq!(rejected.status, 503, "{}", rejected.text);
    let reason = rejected.json()["error"]["message"].as_str().unwrap().to_owned();
    assert!(reason.contains(&format!("no pod satisfies the rule `{RULE}`")), "{reason}");
    assert_eq!(pods("free"), ["a100"]);
}

#[test]
fn a_rule_that_does_not_compile_stops_the_start_and_is_shown_where_it_stands() {
    let engines = Engines::start(&["--model", "m"]);
    let folder = folder("rules-refused");
    let path = folder.join("wornpath.yaml");
    let text = configuration(&engines, &folder, "keep: 'pod.labels.gpu'");
    std::fs::write(&path, text).unwrap();
    let (status, said) = refused(&["-c", path.to_str().unwrap()]);
    assert_eq!(status, Some(78), "{said}");
    assert!(said.contains("rule.yaml:3:"), "{said}");
    assert!(said.contains("the expression has type string, but a rule must be a bool"), "{said}");
}
