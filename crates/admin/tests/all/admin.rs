//! The admin plane over real connections.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use crate::harness::{TestServer, call, folder};
use crate::log;
use serde_json::{Value, json};
use wornpath_admin::description;

const CONFIG: &str = "\
listen: {admin: \"127.0.0.1:0\"}
models: [{name: m, tokenizer: bytes}]
pods:
  - {url: \"http://127.0.0.1:1\", name: a, model: m, labels: {tier: gold}}
  - {url: \"http://127.0.0.1:2\", name: b, model: m, ranks: 2}
profiles:
  fair: {filter: [model], score: [least_load], pick: max_score}
";

fn server(test: &str) -> TestServer {
    let path = folder(test).join("wornpath.yaml");
    fs::write(&path, CONFIG).unwrap();
    TestServer::start(&path)
}

#[test]
fn every_route_of_the_description_is_served_and_nothing_else_is() {
    let server = server("described");
    let (status, served) = server.ask("GET", "/openapi.json", "");
    assert_eq!((status, &served), (200, &description()));
    let paths = served["paths"].as_object().unwrap();
    assert!(paths.len() > 10);
    for (path, operations) in paths {
        let real = path.replace("{name}", "nobody");
        // Its answer never ends; a test of its own reads the beginning.
        if path == "/live" {
            continue;
        }
        for (method, operation) in operations.as_object().unwrap() {
            let (status, answer) = server.ask(&method.to_uppercase(), &real, "");
            let is_known = status != 405
                && !answer["error"]["message"].as_str().unwrap_or("").contains("unknown path");
            assert!(is_known, "{method} {path}: {status} {answer}");
            let parameter = &operation["parameters"][0];
            assert_eq!(path.contains("{name}"), parameter["in"] == "path", "{path}");
            // What a summary writes as `?after=` is described.
            let summary = operation["summary"].as_str().unwrap();
            if let Some((_, query)) = summary.split_once("`?") {
                assert_eq!(Some(parameter["name"].as_str().unwrap()), query.split('=').next());
            }
        }
        let (status, _) = server.ask("PATCH", &real, "");
        assert_eq!(status, 405, "PATCH {path}");
    }
    for path in ["/dashboard", "/pod", "/pods/", "/pods/a/b", "/openapi", "//pods"] {
        assert_eq!(server.ask("GET", path, "").0, 404, "{path}");
    }
}

/// Reads snapshots from the stream until one satisfies a condition.
fn snapshot_where(server: &TestServer, holds: impl Fn(&Value) -> bool) -> Value {
    let mut stream = TcpStream::connect(server.admin()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    write!(stream, "GET /live HTTP/1.1\r\nhost: {}\r\n\r\n", server.admin()).unwrap();
    let lines = BufReader::new(stream).lines().map(Result::unwrap);
    let mut snapshots = lines.filter_map(|line| {
        line.strip_prefix("data: ").map(|data| serde_json::from_str::<Value>(data).unwrap())
    });
    snapshots.find(holds).unwrap()
}

#[test]
fn the_first_snapshot_after_an_incident_has_its_pods_rates_and_what_changed() {
    let server = server("live_first");
    let first = || snapshot_where(&server, |_| true);
    server.until("the router has rates", |_| !first()["rates"].is_null());
    // No page is open while it happens, and the one that is opened next waits for no sample.
    assert_eq!(server.ask("POST", "/pods/a/drain", "").0, 200);
    assert_eq!(server.ask("DELETE", "/pods/b%2F1", "").0, 200);
    let (_, told) = server.ask("GET", "/history?seconds=60", "");
    let seen = snapshot_where(&server, |snapshot| snapshot["pods"][0]["health"] == "draining");
    for changes in [&told["changes"], &seen["changes"]] {
        let all: Vec<_> = changes.as_array().unwrap().iter().collect();
        let has = |kind: &str, pod: &str| {
            all.iter().any(|change| change["kind"] == kind && change["pod"] == pod)
        };
        assert!(has("pod_draining", "a") && has("pod_removed", "b/1"), "{changes}");
        assert_eq!(all[0]["kind"], "router_started");
    }
    assert_eq!(seen["pods"].as_array().unwrap().len(), 2);
    assert!(!seen["pods"][0]["recent"].is_null() && !seen["rates"].is_null(), "{seen}");
    assert!(seen["now"].as_u64() >= told["now"].as_u64());
}

#[test]
fn the_live_stream_sends_a_snapshot_every_second() {
    let server = server("live");
    let first = snapshot_where(&server, |_| true);
    assert_eq!(first["pods"].as_array().unwrap().len(), 3);
    assert_eq!((&first["pods"][0]["name"], &first["pods"][0]["blocks"]), (&json!("a"), &json!(0)));
    assert_eq!(first["batches"], Value::Null);
    assert_eq!(first["totals"]["requests"], 0);
    let second = snapshot_where(&server, |snapshot| {
        snapshot["uptime_seconds"] != first["uptime_seconds"] && !snapshot["rates"].is_null()
    });
    assert_eq!(second["rates"]["requests"], 0.0);
    assert!(second["uptime_seconds"].as_f64() > first["uptime_seconds"].as_f64());
    server.gateway.pods().drain_pod("a");
    let drained = snapshot_where(&server, |snapshot| snapshot["pods"][0]["health"] == "draining");
    assert_eq!(drained["readiness"], "starting");
}

#[test]
fn the_live_stream_has_a_limit_on_viewers() {
    let server = server("watched");
    let watch = || {
        let mut stream = TcpStream::connect(server.admin()).unwrap();
        write!(stream, "GET /live HTTP/1.1\r\nhost: {}\r\n\r\n", server.admin()).unwrap();
        let mut line = String::new();
        let mut reader = BufReader::new(stream);
        reader.read_line(&mut line).unwrap();
        (line, reader)
    };
    let watching: Vec<_> = (0..32).map(|_| watch()).collect();
    assert!(watching.iter().all(|(line, _)| line.contains("200")));
    let (status, refused) = server.ask("GET", "/live", "");
    assert_eq!(status, 503, "{refused}");
    assert_eq!(server.ask("GET", "/pods", "").0, 200, "other routes still answer");
    drop(watching);
    server.until("a slot is free again", |_| watch().0.contains("200"));
}

#[test]
fn the_dashboard_is_served_without_a_token_and_loads_nothing_from_other_origins() {
    let server = with_token("page");
    let mut stream = TcpStream::connect(server.admin()).unwrap();
    let request =
        format!("GET / HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n\r\n", server.admin());
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let answer = answer.to_ascii_lowercase();
    assert!(answer.starts_with("http/1.1 200"), "{answer}");
    for wanted in [
        "content-security-policy: default-src 'none'; script-src 'self'",
        "frame-ancestors 'none'",
        "x-content-type-options: nosniff",
        "content-type: text/html",
    ] {
        assert!(answer.contains(wanted), "no {wanted} in {answer}");
    }
    assert_eq!(server.ask("GET", "/dashboard/main.js", "").0, 200);
    for path in ["/live", "/index/prefixes", "/decisions/x", "/profiles"] {
        assert_eq!(server.ask("GET", path, "").0, 401, "{path}");
    }
    let rebound = [("host", "evil.example")];
    let here = self::server("page_here");
    assert_eq!(call(here.admin(), "GET", "/", &rebound, "").0, 401, "by no borrowed name");
}

#[test]
fn pods_are_listed_added_drained_and_removed() {
    let server = server("pods");
    let (_, listed) = server.ask("GET", "/pods", "");
    let names: Vec<_> = listed["pods"]
        .as_array()
        .unwrap()
        .iter()
        .map(|pod| pod["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["a", "b/0", "b/1"]);
    let (_, one) = server.ask("GET", "/pods/b%2F1", "");
    assert_eq!(
        (&one["rank"], &one["health"], &one["events"]["trust"]),
        (&json!(1), &json!("down"), &json!("guessed"))
    );

    let pod = json!({"url": "http://127.0.0.1:3", "name": "c", "model": "m"}).to_string();
    assert_eq!(server.ask("POST", "/pods", &pod), (200, json!({"added": ["c"]})));
    let (status, refused) = server.ask("POST", "/pods", &pod);
    assert_eq!(status, 409, "{refused}");
    let (status, refused) =
        server.ask("POST", "/pods", r#"{"url": "http://127.0.0.1:4", "modell": "m"}"#);
    assert_eq!(
        (status, &refused["error"]["problems"][0]["cure"]),
        (422, &json!("did you mean `model`?"))
    );

    for (nameless, cure) in [
        (r#"{"url": "http://127.0.0.1:4", "name": ""}"#, "give a name"),
        (r#"{"url": "http://127.0.0.1:0", "name": "zero"}"#, "write `http://host:port`"),
    ] {
        let (status, refused) = server.ask("POST", "/pods", nameless);
        assert_eq!(status, 422, "{refused}");
        let shown = refused["error"]["problems"][0]["cure"].as_str().unwrap();
        assert!(shown.starts_with(cure), "{refused}");
    }

    let other = wornpath_config::PodConfig::new("http://127.0.0.1:8");
    server.gateway.pods().add_pod(other).unwrap();
    let same = r#"{"url": "http://127.0.0.1:9", "name": "127.0.0.1:8"}"#;
    assert_eq!(server.ask("POST", "/pods", same).0, 409, "the name is in use");
    assert!(server.pods().contains(&"127.0.0.1:8".to_owned()), "and keeps it");
    assert_eq!(server.ask("DELETE", "/pods/127.0.0.1:8", "").0, 200);

    assert_eq!(server.ask("POST", "/pods/c/drain", "").0, 200);
    assert_eq!(server.ask("GET", "/pods/c", "").1["health"], "draining");
    assert_eq!(server.ask("DELETE", "/pods/c", "").0, 200);
    assert_eq!(server.ask("DELETE", "/pods/c", "").0, 404);
    assert_eq!(server.pods(), ["a", "b/0", "b/1"]);
}

#[test]
fn the_name_of_a_pod_with_ranks_addresses_all_of_them() {
    let server = server("ranks");
    let pod = json!({"url": "http://127.0.0.1:3", "name": "mine", "ranks": 2}).to_string();
    assert_eq!(server.ask("POST", "/pods", &pod).0, 200);
    let healths = |name: &str| {
        [0, 1].map(|rank| {
            let (_, shown) = server.ask("GET", &format!("/pods/{name}%2F{rank}"), "");
            shown["health"].clone()
        })
    };
    for name in ["b", "mine"] {
        assert_eq!(server.ask("POST", &format!("/pods/{name}/drain"), "").0, 200, "{name}");
        assert_eq!(healths(name), ["draining", "draining"], "{name}");
        assert_eq!(server.ask("POST", &format!("/pods/{name}/resume"), "").0, 200, "{name}");
        assert_eq!(healths(name), ["down", "down"], "{name}");
        assert_eq!(server.ask("DELETE", &format!("/pods/{name}%2F0"), "").0, 200, "one alone");
        assert_eq!(server.ask("DELETE", &format!("/pods/{name}"), "").0, 200, "{name}");
        assert_eq!(server.ask("DELETE", &format!("/pods/{name}"), "").0, 404, "{name}");
        assert_eq!(server.ask("POST", &format!("/pods/{name}/drain"), "").0, 404, "{name}");
    }
    assert_eq!(server.pods(), ["a"]);
}

#[test]
fn a_request_is_explained_without_being_sent() {
    let server = server("explained");
    let body = json!({"model": "m", "messages": [{"role": "user", "content": "hello"}]});
    let (status, answer) = server.ask("POST", "/explain", &json!({ "body": body }).to_string());
    assert_eq!((status, &answer["profile"]), (200, &json!("fair")), "{answer}");
    let candidates = &answer["explanation"]["steps"][0]["candidates"];
    assert_eq!(candidates.as_array().unwrap().len(), 3);
    assert!(answer["outcome"]["plan"].is_object(), "{answer}");
    let load: Vec<_> =
        server.gateway.snapshot().fleet().pods().iter().map(|pod| pod.state().requests()).collect();
    assert_eq!(load, [0, 0, 0], "nothing stays reserved");
    assert_eq!(server.ask("POST", "/explain", "{}").0, 400);
    assert_eq!(server.ask("POST", "/explain", "no json").0, 400);
}

#[test]
fn every_api_is_explained_as_it_is_routed_and_unknown_tenants_are_refused() {
    let server = server("explained_interfaces");
    let ask = |request: Value| server.ask("POST", "/explain", &request.to_string());
    for (path, body) in [
        ("/v1/messages", json!({"model": "m", "system": "s", "messages": []})),
        ("/v1/responses", json!({"model": "m", "input": "hello"})),
        ("/v1/embeddings", json!({"model": "m", "input": "hello"})),
        ("/v1/completions", json!({"model": "m", "prompt": ["a", "b"]})),
        ("/v1/audio/speech", json!({"model": "m"})),
    ] {
        let (status, answer) = ask(json!({"path": path, "body": body}));
        assert_eq!(status, 200, "{path}: {answer}");
        assert!(answer["outcome"]["plan"].is_object(), "{path}: {answer}");
    }
    let body = json!({"model": "m", "prompt": "a"});
    for (name, value) in [("tenant", json!("nobody")), ("tenant", json!(5)), ("path", json!(5))] {
        let mut request = json!({"path": "/v1/completions", "body": body});
        request[name] = value;
        let (status, answer) = ask(request);
        let message = answer["error"]["message"].as_str().unwrap();
        assert!(status == 400 && message.contains(name), "{status} {message}");
    }
}

#[test]
fn profiles_and_configurations_are_checked_without_being_applied() {
    let server = server("checked");
    let (_, active) = server.ask("GET", "/profiles", "");
    assert_eq!(active["profiles"][0]["name"], "fair");
    let (_, good) = server.ask("POST", "/profiles/check", "pick: round_robin\n");
    assert_eq!(good["good"], true);
    let (_, bad) = server.ask("POST", "/profiles/check", "pick: round_robbin\n");
    assert_eq!((&bad["good"], &bad["problems"][0]["line"]), (&json!(false), &json!(1)));
    let (_, bad) = server.ask("POST", "/config/check", "pods: [{url: ftp://a}]\n");
    assert_eq!(bad["problems"][0]["code"], "bad-parameter");
    assert_eq!(server.pods(), ["a", "b/0", "b/1"]);
}

#[test]
fn a_valid_file_is_applied_and_an_invalid_one_changes_nothing() {
    let server = server("reloaded");
    let path = server.context.running.path().unwrap().to_owned();
    let added = r#"{"url": "http://127.0.0.1:9", "name": "mine", "model": "m"}"#;
    assert_eq!(server.ask("POST", "/pods", added).0, 200);

    fs::write(&path, CONFIG.replace("name: a,", "name: z,").replace("least_load", "least_lod"))
        .unwrap();
    let (status, refused) = server.ask("POST", "/config/reload", "");
    assert_eq!(
        (status, &refused["error"]["problems"][0]["cure"]),
        (422, &json!("did you mean `least_load`?"))
    );
    assert_eq!(server.pods(), ["a", "b/0", "b/1", "mine"]);
    assert_eq!(server.ask("GET", "/config", "").1["refused"][0]["code"], "unknown-plugin");

    fs::write(&path, CONFIG.replace("name: a,", "name: z,").replace("fair", "other")).unwrap();
    assert_eq!(
        server.ask("POST", "/config/reload", ""),
        (200, json!({"reloaded": true, "wants_restart": []}))
    );
    let mut pods = server.pods();
    pods.sort();
    assert_eq!(pods, ["b/0", "b/1", "mine", "z"], "what an operator added stays");
    assert_eq!(server.ask("GET", "/profiles", "").1["profiles"][0]["name"], "other");
    assert_eq!(server.ask("GET", "/config", "").1["refused"], Value::Null);
    let applied = || {
        let (_, told) = server.ask("GET", "/history?seconds=60", "");
        let changes = told["changes"].as_array().unwrap().clone();
        changes.into_iter().find(|change| change["kind"] == "reload_applied")
    };
    server.until("the reload is in the history", |_| applied().is_some());
    let changed = applied().unwrap()["detail"].as_str().unwrap().to_owned();
    let logged = changed.trim_end_matches("; and 1 more");
    assert!(log::has(&["configuration reloaded", logged, "profiles.fair: {"]), "{changed}");
    assert_eq!(
        changed,
        "pods.z: none → {url: http://127.0.0.1:1, model: m, labels.tier: gold}; \
         profiles.other: none → {filter: model, score: least_load, pick: max_score}; \
         pods.a: {url: http://127.0.0.1:1, model: m, labels.tier: gold} → none; and 1 more"
    );
    let (_, page) = server.ask("GET", "/metrics", "");
    let page = page.as_str().unwrap();
    assert!(page.contains("wornpath_config_reloads_total{result=\"refused\"} 1\n"), "{page}");
}

#[test]
fn a_changed_file_is_reloaded_automatically() {
    let server = server("followed");
    let path = server.context.running.path().unwrap().to_owned();
    fs::write(&path, CONFIG.replace("name: a,", "name: rewritten,")).unwrap();
    server.until("the new file runs", |server| server.pods().contains(&"rewritten".to_owned()));
}

#[test]
fn the_log_level_can_be_changed() {
    let server = server("levels");
    assert_eq!(server.ask("GET", "/log-level", ""), (200, json!({"level": "info"})));
    assert_eq!(
        server.ask("PUT", "/log-level", r#"{"level": "debug"}"#),
        (200, json!({"level": "debug"}))
    );
    assert_eq!(server.ask("PUT", "/log-level", r#"{"level": "loud"}"#).0, 422);
}

/// A server whose admin plane needs the token `secret`.
fn with_token(test: &str) -> TestServer {
    let path = folder(test).join("wornpath.yaml");
    let digest = "sha256:2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b";
    let admin =
        format!("listen: {{admin: {{address: \"127.0.0.1:0\", token_digest: \"{digest}\"}}}}");
    fs::write(&path, CONFIG.replace("listen: {admin: \"127.0.0.1:0\"}", &admin)).unwrap();
    TestServer::start(&path)
}

#[test]
fn requests_without_the_token_are_refused() {
    let server = with_token("token");
    for headers in [&[][..], &[("authorization", "Bearer wrong")]] {
        for path in ["/pods", "/metrics", "/openapi.json", "/nothing"] {
            let (status, body) = call(server.admin(), "GET", path, headers, "");
            assert_eq!(status, 401, "{path}: {body}");
        }
    }
    let (status, _) =
        call(server.admin(), "GET", "/pods", &[("authorization", "Bearer secret")], "");
    assert_eq!(status, 200);
}

#[test]
fn cross_origin_requests_are_refused() {
    let server = server("browser");
    for headers in [[("host", "evil.example")], [("origin", "http://evil.example")]] {
        let (status, _) = call(server.admin(), "POST", "/pods/a/drain", &headers, "");
        assert_eq!(status, 401, "{headers:?}");
    }
    let server = with_token("browser_token");
    let page = [("authorization", "Bearer secret"), ("origin", "http://evil.example")];
    assert_eq!(call(server.admin(), "POST", "/pods/a/drain", &page, "").0, 401);
    assert_eq!(call(server.admin(), "POST", "/pods/a/drain", &page[..1], "").0, 200);
}

#[test]
fn a_page_is_refused_before_its_body_is_read() {
    let server = server("unread");
    let mut stream = TcpStream::connect(server.admin()).unwrap();
    write!(
        stream,
        "POST /pods HTTP/1.1\r\nhost: {}\r\norigin: http://evil.example\r\n\
         content-type: application/json\r\ncontent-length: 1000\r\n\r\n",
        server.admin()
    )
    .unwrap();
    let mut status = String::new();
    BufReader::new(stream).read_line(&mut status).unwrap();
    assert!(status.starts_with("HTTP/1.1 401"), "{status}");
}

#[test]
fn callers_without_the_token_do_not_lock_operators_out() {
    let server = with_token("lockout");
    let half_open: Vec<_> = (0..200)
        .map(|_| {
            let mut stream = TcpStream::connect(server.admin()).unwrap();
            stream.write_all(b"GET /pods HTTP/1.1\r\nx-slow: ").unwrap();
            stream
        })
        .collect();
    let mut operator = TcpStream::connect(server.admin()).unwrap();
    operator.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
    write!(
        operator,
        "GET /pods HTTP/1.1\r\nhost: {}\r\nauthorization: Bearer secret\r\n\r\n",
        server.admin()
    )
    .unwrap();
    let mut answer = BufReader::new(operator);
    let mut status = String::new();
    answer.read_line(&mut status).expect("an answer within a second");
    assert!(status.starts_with("HTTP/1.1 200"), "{status}");
    drop(half_open);
}

#[test]
fn a_body_without_the_json_content_type_is_refused() {
    let server = server("content-type");
    let put = |kind: &str| {
        let headers = [("content-type", kind)];
        call(server.admin(), "PUT", "/log-level", &headers, r#"{"level": "info"}"#)
    };
    for form in
        ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"]
    {
        let (status, answer) = put(form);
        assert_eq!(status, 415, "{form}: {answer}");
        assert!(answer.contains("/log-level takes `application/json`"), "{answer}");
    }
    let (status, answer) = call(server.admin(), "PUT", "/log-level", &[], r#"{"level": "info"}"#);
    assert_eq!(status, 415, "{answer}");
    assert!(answer.contains("content-type is missing"), "{answer}");
    assert_eq!(call(server.admin(), "POST", "/pods/a/drain", &[], "").0, 200, "no body, no type");
    assert_eq!(put("application/json; charset=utf-8").0, 200);
    let yaml = [("content-type", "application/yaml")];
    assert_eq!(call(server.admin(), "POST", "/profiles/check", &yaml, "pick: random").0, 200);
}
