//! The admin plane over real connections.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use crate::around::{World, call, folder};
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

fn world(test: &str) -> World {
    let path = folder(test).join("wornpath.yaml");
    fs::write(&path, CONFIG).unwrap();
    World::start(&path)
}

#[test]
fn every_route_of_the_description_is_served_and_nothing_else_is() {
    let world = world("described");
    let (status, served) = world.ask("GET", "/openapi.json", "");
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
            let (status, answer) = world.ask(&method.to_uppercase(), &real, "");
            let is_known = status != 405
                && !answer["error"]["message"].as_str().unwrap_or("").contains("there is no /");
            assert!(is_known, "{method} {path}: {status} {answer}");
            let parameter = &operation["parameters"][0];
            assert_eq!(path.contains("{name}"), parameter["in"] == "path", "{path}");
            // What a summary writes as `?after=` is described.
            let summary = operation["summary"].as_str().unwrap();
            if let Some((_, query)) = summary.split_once("`?") {
                assert_eq!(Some(parameter["name"].as_str().unwrap()), query.split('=').next());
            }
        }
        let (status, _) = world.ask("PATCH", &real, "");
        assert_eq!(status, 405, "PATCH {path}");
    }
    for path in ["/dashboard", "/pod", "/pods/", "/pods/a/b", "/openapi", "//pods"] {
        assert_eq!(world.ask("GET", path, "").0, 404, "{path}");
    }
}

/// Reads snapshots from the stream until one pleases.
fn snapshot_where(world: &World, pleases: impl Fn(&Value) -> bool) -> Value {
    let mut stream = TcpStream::connect(world.admin()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    write!(stream, "GET /live HTTP/1.1\r\nhost: {}\r\n\r\n", world.admin()).unwrap();
    let lines = BufReader::new(stream).lines().map(Result::unwrap);
    let mut snapshots = lines.filter_map(|line| {
        line.strip_prefix("data: ").map(|data| serde_json::from_str::<Value>(data).unwrap())
    });
    snapshots.find(pleases).unwrap()
}

#[test]
fn whoever_watches_sees_everything_once_a_second_and_rates_from_the_second_look_on() {
    let world = world("live");
    let first = snapshot_where(&world, |_| true);
    assert_eq!(first["pods"].as_array().unwrap().len(), 3);
    assert_eq!((&first["pods"][0]["name"], &first["pods"][0]["blocks"]), (&json!("a"), &json!(0)));
    assert_eq!((&first["rates"], &first["batches"]), (&Value::Null, &Value::Null));
    assert_eq!(first["totals"]["requests"], 0);
    let second = snapshot_where(&world, |snapshot| !snapshot["rates"].is_null());
    assert_eq!(second["rates"]["requests"], 0.0);
    assert!(second["uptime_seconds"].as_f64() > first["uptime_seconds"].as_f64());
    world.gateway.pods().drain_pod("a");
    let drained = snapshot_where(&world, |snapshot| snapshot["pods"][0]["health"] == "draining");
    assert_eq!(drained["readiness"], "starting");
}

#[test]
fn so_many_may_watch_and_the_next_is_told_why_not() {
    let world = world("watched");
    let watch = || {
        let mut stream = TcpStream::connect(world.admin()).unwrap();
        write!(stream, "GET /live HTTP/1.1\r\nhost: {}\r\n\r\n", world.admin()).unwrap();
        let mut line = String::new();
        let mut reader = BufReader::new(stream);
        reader.read_line(&mut line).unwrap();
        (line, reader)
    };
    let watching: Vec<_> = (0..32).map(|_| watch()).collect();
    assert!(watching.iter().all(|(line, _)| line.contains("200")));
    let (status, refused) = world.ask("GET", "/live", "");
    assert_eq!(status, 503, "{refused}");
    assert_eq!(world.ask("GET", "/pods", "").0, 200, "operators still get in");
    drop(watching);
    world.until("there is room again", |_| watch().0.contains("200"));
}

#[test]
fn the_dashboard_comes_without_a_token_and_may_load_nothing_from_elsewhere() {
    let path = folder("page").join("wornpath.yaml");
    let digest = "sha256:2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b";
    let admin =
        format!("listen: {{admin: {{address: \"127.0.0.1:0\", token_digest: \"{digest}\"}}}}");
    fs::write(&path, CONFIG.replace("listen: {admin: \"127.0.0.1:0\"}", &admin)).unwrap();
    let world = World::start(&path);
    let mut stream = TcpStream::connect(world.admin()).unwrap();
    let request = format!("GET / HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n\r\n", world.admin());
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
    assert_eq!(world.ask("GET", "/dashboard/main.js", "").0, 200);
    for path in ["/live", "/index/prefixes", "/decisions/x", "/profiles"] {
        assert_eq!(world.ask("GET", path, "").0, 401, "{path}");
    }
    let rebound = [("host", "evil.example")];
    let here = self::world("page_here");
    assert_eq!(call(here.admin(), "GET", "/", &rebound, "").0, 401, "by no borrowed name");
}

#[test]
fn pods_are_listed_added_drained_and_removed() {
    let world = world("pods");
    let (_, listed) = world.ask("GET", "/pods", "");
    let names: Vec<_> = listed["pods"]
        .as_array()
        .unwrap()
        .iter()
        .map(|pod| pod["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["a", "b/0", "b/1"]);
    let (_, one) = world.ask("GET", "/pods/b%2F1", "");
    assert_eq!(
        (&one["rank"], &one["health"], &one["events"]["trust"]),
        (&json!(1), &json!("down"), &json!("guessed"))
    );

    let pod = json!({"url": "http://127.0.0.1:3", "name": "c", "model": "m"}).to_string();
    assert_eq!(world.ask("POST", "/pods", &pod), (200, json!({"added": ["c"]})));
    let (status, refused) = world.ask("POST", "/pods", &pod);
    assert_eq!(status, 409, "{refused}");
    let (status, refused) =
        world.ask("POST", "/pods", r#"{"url": "http://127.0.0.1:4", "modell": "m"}"#);
    assert_eq!(
        (status, &refused["error"]["problems"][0]["cure"]),
        (422, &json!("did you mean `model`?"))
    );

    for (nameless, cure) in [
        (r#"{"url": "http://127.0.0.1:4", "name": ""}"#, "give a name"),
        (r#"{"url": "http://127.0.0.1:0", "name": "zero"}"#, "write `http://host:port`"),
    ] {
        let (status, refused) = world.ask("POST", "/pods", nameless);
        assert_eq!(status, 422, "{refused}");
        let told = refused["error"]["problems"][0]["cure"].as_str().unwrap();
        assert!(told.starts_with(cure), "{refused}");
    }

    let other = wornpath_config::PodSettings::at("http://127.0.0.1:8");
    world.gateway.pods().add_pod(other).unwrap();
    let same = r#"{"url": "http://127.0.0.1:9", "name": "127.0.0.1:8"}"#;
    assert_eq!(world.ask("POST", "/pods", same).0, 409, "somebody has the name");
    assert!(world.pods().contains(&"127.0.0.1:8".to_owned()), "and keeps it");
    assert_eq!(world.ask("DELETE", "/pods/127.0.0.1:8", "").0, 200);

    assert_eq!(world.ask("POST", "/pods/c/drain", "").0, 200);
    assert_eq!(world.ask("GET", "/pods/c", "").1["health"], "draining");
    assert_eq!(world.ask("DELETE", "/pods/c", "").0, 200);
    assert_eq!(world.ask("DELETE", "/pods/c", "").0, 404);
    assert_eq!(world.pods(), ["a", "b/0", "b/1"]);
}

#[test]
fn the_name_of_a_pod_with_ranks_means_all_of_them() {
    let world = world("ranks");
    let pod = json!({"url": "http://127.0.0.1:3", "name": "mine", "ranks": 2}).to_string();
    assert_eq!(world.ask("POST", "/pods", &pod).0, 200);
    let healths = |name: &str| {
        [0, 1].map(|rank| {
            let (_, shown) = world.ask("GET", &format!("/pods/{name}%2F{rank}"), "");
            shown["health"].clone()
        })
    };
    for name in ["b", "mine"] {
        assert_eq!(world.ask("POST", &format!("/pods/{name}/drain"), "").0, 200, "{name}");
        assert_eq!(healths(name), ["draining", "draining"], "{name}");
        assert_eq!(world.ask("POST", &format!("/pods/{name}/resume"), "").0, 200, "{name}");
        assert_eq!(healths(name), ["down", "down"], "{name}");
        assert_eq!(world.ask("DELETE", &format!("/pods/{name}%2F0"), "").0, 200, "one alone");
        assert_eq!(world.ask("DELETE", &format!("/pods/{name}"), "").0, 200, "{name}");
        assert_eq!(world.ask("DELETE", &format!("/pods/{name}"), "").0, 404, "{name}");
        assert_eq!(world.ask("POST", &format!("/pods/{name}/drain"), "").0, 404, "{name}");
    }
    assert_eq!(world.pods(), ["a"]);
}

#[test]
fn a_request_is_explained_without_being_sent() {
    let world = world("explained");
    let body = json!({"model": "m", "messages": [{"role": "user", "content": "hello"}]});
    let (status, answer) = world.ask("POST", "/explain", &json!({ "body": body }).to_string());
    assert_eq!((status, &answer["profile"]), (200, &json!("fair")), "{answer}");
    let candidates = &answer["explanation"]["steps"][0]["candidates"];
    assert_eq!(candidates.as_array().unwrap().len(), 3);
    assert!(answer["outcome"]["plan"].is_object(), "{answer}");
    let load: Vec<_> =
        world.gateway.snapshot().fleet().pods().iter().map(|pod| pod.vitals().requests()).collect();
    assert_eq!(load, [0, 0, 0], "nothing stays reserved");
    assert_eq!(world.ask("POST", "/explain", "{}").0, 400);
    assert_eq!(world.ask("POST", "/explain", "no json").0, 400);
}

#[test]
fn every_interface_is_explained_as_its_clients_are_decided_and_only_tenants_that_there_are() {
    let world = world("explained_interfaces");
    let ask = |asked: Value| world.ask("POST", "/explain", &asked.to_string());
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
        let mut asked = json!({"path": "/v1/completions", "body": body});
        asked[name] = value;
        let (status, answer) = ask(asked);
        let message = answer["error"]["message"].as_str().unwrap();
        assert!(status == 400 && message.contains(name), "{status} {message}");
    }
}

#[test]
fn profiles_and_configurations_are_checked_without_being_used() {
    let world = world("checked");
    let (_, active) = world.ask("GET", "/profiles", "");
    assert_eq!(active["profiles"][0]["name"], "fair");
    let (_, good) = world.ask("POST", "/profiles/check", "pick: round_robin\n");
    assert_eq!(good["good"], true);
    let (_, bad) = world.ask("POST", "/profiles/check", "pick: round_robbin\n");
    assert_eq!((&bad["good"], &bad["problems"][0]["line"]), (&json!(false), &json!(1)));
    let (_, bad) = world.ask("POST", "/config/check", "pods: [{url: ftp://a}]\n");
    assert_eq!(bad["problems"][0]["code"], "bad-parameter");
    assert_eq!(world.pods(), ["a", "b/0", "b/1"]);
}

#[test]
fn a_good_file_takes_over_and_a_bad_one_changes_nothing() {
    let world = world("reloaded");
    let path = world.around.running.path().unwrap().to_owned();
    let added = r#"{"url": "http://127.0.0.1:9", "name": "mine", "model": "m"}"#;
    assert_eq!(world.ask("POST", "/pods", added).0, 200);

    fs::write(&path, CONFIG.replace("name: a,", "name: z,").replace("least_load", "least_lod"))
        .unwrap();
    let (status, refused) = world.ask("POST", "/config/reload", "");
    assert_eq!(
        (status, &refused["error"]["problems"][0]["cure"]),
        (422, &json!("did you mean `least_load`?"))
    );
    assert_eq!(world.pods(), ["a", "b/0", "b/1", "mine"]);
    assert_eq!(world.ask("GET", "/config", "").1["refused"][0]["code"], "unknown-plugin");

    fs::write(&path, CONFIG.replace("name: a,", "name: z,").replace("fair", "other")).unwrap();
    assert_eq!(
        world.ask("POST", "/config/reload", ""),
        (200, json!({"reloaded": true, "wants_restart": []}))
    );
    let mut pods = world.pods();
    pods.sort();
    assert_eq!(pods, ["b/0", "b/1", "mine", "z"], "what an operator added stays");
    assert_eq!(world.ask("GET", "/profiles", "").1["profiles"][0]["name"], "other");
    assert_eq!(world.ask("GET", "/config", "").1["refused"], Value::Null);
    let (_, page) = world.ask("GET", "/metrics", "");
    let page = page.as_str().unwrap();
    assert!(page.contains("wornpath_config_reloads_total{result=\"refused\"} 1\n"), "{page}");
}

#[test]
fn a_file_that_is_written_anew_takes_over_by_itself() {
    let world = world("followed");
    let path = world.around.running.path().unwrap().to_owned();
    fs::write(&path, CONFIG.replace("name: a,", "name: rewritten,")).unwrap();
    world.until("the new file runs", |world| world.pods().contains(&"rewritten".to_owned()));
}

#[test]
fn the_log_level_can_be_changed() {
    let world = world("levels");
    assert_eq!(world.ask("GET", "/log-level", ""), (200, json!({"level": "info"})));
    assert_eq!(
        world.ask("PUT", "/log-level", r#"{"level": "debug"}"#),
        (200, json!({"level": "debug"}))
    );
    assert_eq!(world.ask("PUT", "/log-level", r#"{"level": "loud"}"#).0, 422);
}

#[test]
fn without_the_token_nothing_is_told() {
    let path = folder("token").join("wornpath.yaml");
    let digest = "sha256:2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b";
    let admin =
        format!("listen: {{admin: {{address: \"127.0.0.1:0\", token_digest: \"{digest}\"}}}}");
    fs::write(&path, CONFIG.replace("listen: {admin: \"127.0.0.1:0\"}", &admin)).unwrap();
    let world = World::start(&path);
    for headers in [&[][..], &[("authorization", "Bearer wrong")]] {
        for path in ["/pods", "/metrics", "/openapi.json", "/nothing"] {
            let (status, body) = call(world.admin(), "GET", path, headers, "");
            assert_eq!(status, 401, "{path}: {body}");
        }
    }
    let (status, _) =
        call(world.admin(), "GET", "/pods", &[("authorization", "Bearer secret")], "");
    assert_eq!(status, 200);
}

#[test]
fn a_page_in_a_browser_cannot_operate() {
    let world = world("browser");
    for headers in [[("host", "evil.example")], [("origin", "http://evil.example")]] {
        let (status, _) = call(world.admin(), "POST", "/pods/a/drain", &headers, "");
        assert_eq!(status, 401, "{headers:?}");
    }
}

#[test]
fn a_body_that_is_not_said_to_be_json_is_refused() {
    let world = world("content-type");
    let put = |kind: &str| {
        let headers = [("content-type", kind)];
        call(world.admin(), "PUT", "/log-level", &headers, r#"{"level": "info"}"#)
    };
    for form in
        ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"]
    {
        let (status, answer) = put(form);
        assert_eq!(status, 415, "{form}: {answer}");
        assert!(answer.contains("/log-level takes `application/json`"), "{answer}");
    }
    assert_eq!(put("application/json; charset=utf-8").0, 200);
    let yaml = [("content-type", "application/yaml")];
    assert_eq!(call(world.admin(), "POST", "/profiles/check", &yaml, "pick: random").0, 200);
}
