//! What the admin plane answers is what its description says: no field is missing, none is of
//! another type, and none is left out of the description.

use crate::support::engines::Engines;
use crate::support::gateway::{Gateway, eventually, folder};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::process::Command;

/// The description, and which of its schemas have been held against something.
struct Described {
    all: Value,
    seen: BTreeSet<String>,
}

/// An entry of the description: a method in lower case, and a path with `{name}`.
struct Operation<'a> {
    method: &'a str,
    path: &'a str,
}

impl Described {
    /// What is wrong with an answer, as far as these words of JSON Schema say; an object has no
    /// other fields than those.
    fn check(&mut self, schema: &Value, answer: &Value, at: &str) -> Result<(), String> {
        let wrong = |what: &str| Err(format!("{at}: {what}, found {answer}"));
        if let Some(name) = schema["$ref"].as_str() {
            let name = name.strip_prefix("#/components/schemas/").unwrap();
            let schema = self.all["components"]["schemas"][name].clone();
            assert!(schema.is_object(), "{at}: there is no schema {name}");
            self.seen.insert(name.to_owned());
            return self.check(&schema, answer, at);
        }
        if let Some(choices) = schema["anyOf"].as_array() {
            // Of two, one of which is null.
            return if answer.is_null() { Ok(()) } else { self.check(&choices[0], answer, at) };
        }
        let is = |kind: &Value| match kind.as_str().unwrap() {
            "string" => answer.is_string(),
            "integer" => answer.is_u64(),
            "number" => answer.is_number(),
            "boolean" => answer.is_boolean(),
            "array" => answer.is_array(),
            "object" => answer.is_object(),
            "null" => answer.is_null(),
            other => panic!("{at}: the type {other} is not known"),
        };
        let may_be = match &schema["type"] {
            Value::Null => true,
            Value::Array(kinds) => kinds.iter().any(is),
            kind => is(kind),
        };
        if !may_be || schema["enum"].as_array().is_some_and(|words| !words.contains(answer)) {
            return wrong(&format!("it must be {schema}"));
        }
        for (place, item) in answer.as_array().into_iter().flatten().enumerate() {
            self.check(&schema["items"], item, &format!("{at}[{place}]"))?;
        }
        for name in schema["required"].as_array().into_iter().flatten() {
            if answer.get(name.as_str().unwrap()).is_none() {
                return wrong(&format!("it lacks {name}"));
            }
        }
        for (name, value) in answer.as_object().into_iter().flatten() {
            let own = &schema["properties"][name];
            let rest = &schema["additionalProperties"];
            let field = format!("{at}.{name}");
            match (own, rest) {
                (Value::Object(_), _) => self.check(&own.clone(), value, &field)?,
                (_, Value::Object(_)) => self.check(&rest.clone(), value, &field)?,
                // An object of which nothing is said.
                _ if schema.get("properties").is_none() => {}
                _ => return Err(format!("{field} is not described")),
            }
        }
        Ok(())
    }

    /// Calls an operation with `name` in its path, and compares the answer with what is described.
    fn holds(&mut self, gateway: &Gateway, operation: &Operation<'_>, name: &str, body: &str) {
        let Operation { method, path } = *operation;
        let real = &path.replace("{name}", name);
        // Traffic is told after a number.
        let real = if real == "/traffic" { "/traffic?after=0" } else { real };
        let answer = gateway.ask(&method.to_uppercase(), real, body);
        assert_eq!(answer.status, 200, "{method} {real}: {}", answer.text);
        let operation = &self.all["paths"][path][method];
        let told = operation["responses"]["200"]["content"]["application/json"]["schema"].clone();
        assert!(told.is_object(), "{method} {path}: nothing is said of its answer");
        self.check(&told, &answer.json(), real).unwrap_or_else(|error| panic!("{method} {error}"));
    }
}

/// A gateway before an engine that tells what it holds, one that does not and one that is away,
/// with traffic and a batch behind it; and the batch's id.
fn world(engines: &Engines) -> (Gateway, String) {
    let told = &engines.engines[0];
    let silent = &engines.engines[1];
    let kept = folder("described_batches");
    let text = format!(
        "shadow: {{profile: round-robin, per_second: 1000}}\nmodels: [{{name: m, tokenizer: bytes}}]\nbatch: {{folder: {}}}\npods:\n  - {{url: \"http://{}\", name: told, \
         events: [\"zmq://{}?replay={}\"], labels: {{zone: a}}}}\n  - {{url: \"http://{}\", name: silent, events: [], kv_tokens: 9000}}\n  \
         - {{url: \"http://127.0.0.1:10\", name: away, model: [m], events: [\"zmq://127.0.0.1:9\"]}}\n\
         profiles:\n  near: {{prepare: [tokenize, block_hash], filter: [healthy, model], score: [cache_affinity], pick: max_score}}\n  \
         even: {{filter: [healthy, model], pick: round_robin}}\nroutes:\n  - {{match: {{path: /v1/completions}}, profile: near}}\n  \
         - {{profile: even}}\n",
        kept.display(),
        told.http,
        told.events,
        told.replay,
        silent.http
    );
    let gateway = Gateway::configured("described", &text, 2);
    // From now on requests are taken down.
    gateway.ask("GET", "/traffic", "");
    for number in 0..4 {
        let prompt = "the same words again and again ".repeat(20 + number);
        let answer = gateway.post("/v1/completions", &json!({"prompt": prompt, "max_tokens": 1}));
        assert_eq!(answer.status, 200);
    }
    // Another pod than the one that holds the prompt gets it.
    let last = || gateway.ask("GET", "/decisions?last=1", "").json()["decisions"][0].clone();
    eventually("the last one has ended", || last()["pod"].is_string());
    let holder = last()["pod"].as_str().unwrap().to_owned();
    gateway.ask("POST", &format!("/pods/{holder}/drain"), "");
    let prompt = "the same words again and again ".repeat(23);
    let answer = gateway.post("/v1/completions", &json!({"prompt": prompt, "max_tokens": 1}));
    assert_eq!(answer.status, 200);
    gateway.ask("POST", &format!("/pods/{holder}/resume"), "");
    let line = |number: usize| {
        let body = json!({"prompt": format!("{}{number}", "same ".repeat(30)), "max_tokens": 1});
        json!({"custom_id": number.to_string(), "method": "POST", "url": "/v1/completions", "body": body})
    };
    let lines: Vec<_> = (0..8).map(|number| line(number).to_string()).collect();
    let input = kept.join("in.jsonl");
    std::fs::write(&input, lines.join("\n")).unwrap();
    let submitted = Command::new(env!("CARGO_BIN_EXE_wornpath"))
        .args([
            "batch",
            "submit",
            input.to_str().unwrap(),
            "--watch",
            "--endpoint",
            "/v1/completions",
        ])
        .args(["--gateway", &format!("http://{}", gateway.address)])
        .output()
        .unwrap();
    assert!(submitted.status.success(), "{submitted:?}");
    let id = String::from_utf8(submitted.stdout).unwrap();
    let history = || gateway.ask("GET", "/history", "").json();
    let is_sampled = || history()["changes"].as_array().is_some_and(|all| !all.is_empty());
    eventually("the chart history has a change", is_sampled);
    (gateway, id.split_whitespace().next().unwrap().to_owned())
}

#[test]
fn every_answer_of_the_admin_plane_is_as_described() {
    let engines = Engines::start(&["--engines", "2", "--model", "m"]);
    let (gateway, batch) = world(&engines);
    let all = gateway.ask("GET", "/openapi.json", "").json();
    let mut described = Described { all: all.clone(), seen: BTreeSet::new() };
    let request = || gateway.ask("GET", "/decisions", "").json()["decisions"][0].clone();
    eventually("decisions are there", || request()["id"].is_string());
    let trouble = || gateway.ask("GET", "/pods/away", "").text.contains("\"reason\":");
    eventually("it is told why no events come", trouble);
    let request = request()["id"].as_str().unwrap().to_owned();
    for (path, operations) in all["paths"].as_object().unwrap() {
        let content = &operations["get"]["responses"]["200"]["content"];
        if content.get("application/json").is_none() {
            continue;
        }
        let name = match path.as_str() {
            "/pods/{name}" => "told",
            "/decisions/{name}" => &request,
            "/batches/{name}/forest" => &batch,
            other => {
                assert!(!other.contains("{name}"), "{path}: give it a name here");
                ""
            }
        };
        described.holds(&gateway, &Operation { method: "get", path }, name, "");
    }
    let profile = "pick: round_robin\n";
    let pod = json!({"url": "http://127.0.0.1:9", "name": "late"}).to_string();
    let ask = json!({"path": "/v1/completions", "body": {"model": "m", "prompt": "a"}}).to_string();
    for (method, path, name, body) in [
        ("post", "/pods", "", pod.as_str()),
        ("post", "/pods/{name}/drain", "late", ""),
        ("post", "/pods/{name}/resume", "late", ""),
        ("delete", "/pods/{name}", "late", ""),
        ("post", "/explain", "", &ask),
        ("post", "/profiles/check", "", profile),
        ("post", "/profiles/check", "", "pick: unknown\n"),
        ("post", "/config/check", "", "pods: 3\n"),
        ("post", "/config/reload", "", ""),
        ("put", "/log-level", "", r#"{"level": "info"}"#),
    ] {
        described.holds(&gateway, &Operation { method, path }, name, body);
    }
    let refused = gateway.ask("GET", "/pods/unknown", "").json();
    described.check(&json!({"$ref": "#/components/schemas/Error"}), &refused, "error").unwrap();
    let named = all["components"]["schemas"].as_object().unwrap().keys().cloned();
    // The dashboard's test of a slow pod compares these with their description: they take time.
    let elsewhere = ["SlowPod", "PodTimes"];
    let unseen: Vec<_> = named
        .filter(|name| !elsewhere.contains(&name.as_str()) && !described.seen.contains(name))
        .collect();
    assert!(unseen.is_empty(), "nothing was held against {unseen:?}");

    // And if it were not so, this would tell.
    let pods = gateway.ask("GET", "/pods", "").json();
    let mut check =
        |pods: &Value| described.check(&json!({"$ref": "#/components/schemas/Pods"}), pods, "");
    assert_eq!(check(&pods), Ok(()));
    for (field, value) in [("rank", json!("a")), ("health", json!("ill")), ("new", json!(1))] {
        let mut other = pods.clone();
        other["pods"][0][field] = value;
        assert!(check(&other).is_err(), "{field}");
    }
    assert!(check(&json!({})).is_err());
}
