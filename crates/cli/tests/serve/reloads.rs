//! Reloads of the configuration: what they change, what needs a restart, and what they report.

use crate::sockets::exchange;
use crate::support::engines::Engines;
use crate::support::gateway::{Gateway, eventually, folder};
use serde_json::{Value, json};
use std::fs;
use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

const ASK: &str = "/v1/completions";

/// A gateway whose file can be written anew.
struct Reloading {
    gateway: Gateway,
    file: PathBuf,
    pods: String,
}

impl Reloading {
    fn start(test: &str, engines: &Engines) -> Self {
        let url = &engines.engines[0].http;
        let pods = format!("pods: [{{name: a, url: \"http://{url}\", model: m}}]\n");
        let file = folder(test).join("wornpath.yaml");
        fs::write(&file, &pods).unwrap();
        let arguments = ["-c", file.to_str().unwrap(), "--admin", "127.0.0.1:0"];
        Self { gateway: Gateway::start(&arguments, 1), file, pods }
    }

    /// Reloads a file that says this besides; what it says wants a restart.
    fn reload(&self, more: &str) -> Value {
        fs::write(&self.file, format!("{}{more}", self.pods)).unwrap();
        let answer = self.gateway.ask("POST", "/config/reload", "");
        assert_eq!(answer.status, 200, "{}", answer.text);
        answer.json()["wants_restart"].clone()
    }
}

#[test]
fn a_listed_pod_that_was_taken_out_and_added_again_stays() {
    let engines = Engines::start(&["--model", "m"]);
    let it = Reloading::start("reloads_again", &engines);
    assert_eq!(it.gateway.ask("DELETE", "/pods/a", "").status, 200);
    let url = format!("http://{}", engines.engines[0].http);
    let pod = json!({"name": "a", "url": url, "model": "m"}).to_string();
    assert_eq!(it.gateway.ask("POST", "/pods", &pod).status, 200);
    for _ in 0..2 {
        it.reload("");
        assert_eq!(it.gateway.ask("GET", "/pods/a", "").status, 200);
    }
}

#[test]
fn settings_that_need_a_restart_are_reported_until_then() {
    let engines = Engines::start(&["--model", "m"]);
    let it = Reloading::start("reloads_restart", &engines);
    assert_eq!(it.reload("workers: 1\n"), json!(["workers"]));
    assert_eq!(it.reload("workers: 1\nreveal: pod\n"), json!(["workers"]), "it is still so");
    assert_eq!(it.reload("reveal: pod\n"), json!([]), "it is as it was");
    let more = "batch: {folder: batches}\nretries: {share: 0.5}\nbreaker: {failures: 9}\nlimits: {pods: 500}\n";
    assert_eq!(it.reload(more), json!(["batch", "limits.pods", "retries", "breaker"]));
}

#[test]
fn limits_of_connections_and_heads_change_at_once() {
    let engines = Engines::start(&["--model", "m"]);
    let it = Reloading::start("reloads_limits", &engines);
    let ask = || {
        let more: String = (0..60).map(|number| format!("x-{number}: 1\r\n")).collect();
        let request = format!("GET /health HTTP/1.1\r\nhost: a\r\nconnection: close\r\n{more}\r\n");
        exchange(&it.gateway.address, request.as_bytes())
    };
    assert!(ask().starts_with("HTTP/1.1 200"));
    assert_eq!(it.reload("limits: {headers: 30}\n"), json!([]));
    assert!(ask().starts_with("HTTP/1.1 431"), "{}", ask());
    let body = json!({"model": "m", "prompt": "a"});
    assert_eq!(it.gateway.post(ASK, &body).status, 200);
}

#[test]
fn a_pod_that_is_listed_now_stays_as_it_was_also_if_the_file_is_refused() {
    let engines = Engines::start(&["--model", "m", "--engines", "2"]);
    let it = Reloading::start("reloads_adopted", &engines);
    let url = format!("http://{}", engines.engines[1].http);
    let pod = json!({"name": "b", "url": url, "model": "m"}).to_string();
    assert_eq!(it.gateway.ask("POST", "/pods", &pod).status, 200);
    let health = || it.gateway.ask("GET", "/pods/b", "").json()["health"].clone();
    eventually("it is up", || health() == "up");
    assert_eq!(it.gateway.ask("POST", "/pods/b/drain", "").status, 200);
    let listed = format!(
        "pods: [{{name: a, url: \"http://{}\", model: m}}, {{name: b, url: \"{url}\", model: m}}]\n",
        engines.engines[0].http
    );
    // Only with the pods that are there it turns out to be wrong.
    let far = json!({"name": "c", "url": "http://127.0.0.2:9", "model": "m"}).to_string();
    assert_eq!(it.gateway.ask("POST", "/pods", &far).status, 200);
    fs::write(&it.file, format!("{listed}pod_addresses: [127.0.0.1/32]\n")).unwrap();
    let answer = it.gateway.ask("POST", "/config/reload", "");
    assert!(answer.status >= 400 && answer.text.contains("127.0.0.2"), "{}", answer.text);
    assert_eq!(health(), "draining");
    fs::write(&it.file, &listed).unwrap();
    assert_eq!(it.gateway.ask("POST", "/config/reload", "").status, 200);
    assert_eq!(health(), "draining", "it is the same engine");
}

#[test]
fn a_pod_that_is_only_called_otherwise_is_up_all_the_time() {
    let engines = Engines::start(&["--model", "m"]);
    let it = Reloading::start("reloads_renamed", &engines);
    let body = json!({"model": "m", "prompt": "a"});
    for name in ["b", "c", "a", "d"] {
        fs::write(&it.file, it.pods.replace("name: a", &format!("name: {name}"))).unwrap();
        assert_eq!(it.gateway.ask("POST", "/config/reload", "").status, 200);
        assert_eq!(it.gateway.post(ASK, &body).status, 200, "it is the same engine");
        assert_eq!(it.gateway.ask("GET", &format!("/pods/{name}"), "").status, 200);
    }
}

#[test]
fn a_reload_without_tenants_does_not_open_the_gateway_to_all_clients() {
    let engines = Engines::start(&["--model", "m"]);
    let it = Reloading::start("reloads_open", &engines);
    let body = json!({"model": "m", "prompt": "a"});
    assert_eq!(it.gateway.post(ASK, &body).status, 200, "without tenants, no key is required");
    let digest = "sha256:ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb";
    it.reload(&format!("tenants: [{{name: t, key_digest: \"{digest}\"}}]\n"));
    assert_eq!(it.gateway.post(ASK, &body).status, 401);
    it.reload("");
    assert_eq!(it.gateway.post(ASK, &body).status, 401, "until the next start");
}

#[test]
fn requests_wait_for_pods_that_took_the_place_of_all_others() {
    let engines = Engines::start(&["--model", "m", "--engines", "2"]);
    let it = Reloading::start("reloads_all", &engines);
    let body = json!({"model": "m", "prompt": "a"});
    for round in 0..6 {
        // Neither says what it serves: only the engine does.
        let url = &engines.engines[round % 2].http;
        fs::write(&it.file, format!("pods: [{{name: a{round}, url: \"http://{url}\"}}]\n"))
            .unwrap();
        assert_eq!(it.gateway.ask("POST", "/config/reload", "").status, 200);
        let answer = it.gateway.post(ASK, &body);
        assert_eq!(answer.status, 200, "{}", answer.text);
    }
    assert_eq!(it.gateway.ask("DELETE", "/pods/a5", "").status, 200);
    let url = format!("http://{}", engines.engines[0].http);
    let pod = json!({"name": "b", "url": url}).to_string();
    assert_eq!(it.gateway.ask("POST", "/pods", &pod).status, 200);
    assert_eq!(it.gateway.post(ASK, &body).status, 200);
    let unknown = it.gateway.post(ASK, &json!({"model": "n", "prompt": "a"}));
    assert_eq!(unknown.status, 404, "{}", unknown.text);
}

/// The pods of these engines by name: `a`, `b` and so on.
fn listed(engines: &[&str], first: char) -> String {
    let names = (first..).map(String::from);
    let pods = names.zip(engines);
    let pods = pods.map(|(name, at)| format!("{{name: {name}, url: \"http://{at}\"}}"));
    format!("pods: [{}]\n", pods.collect::<Vec<_>>().join(", "))
}

/// Reloads to pods of which none was listed before, under names of their own or those of the pods
/// before: every request is answered. `WORNPATH_RELOADS` makes it longer than 20 reloads.
#[test]
fn a_reload_to_other_pods_costs_no_request() {
    let reloads = std::env::var("WORNPATH_RELOADS").ok().and_then(|text| text.parse().ok());
    let engines = Engines::start(&["--model", "m", "--engines", "4"]);
    let urls: Vec<_> = engines.engines.iter().map(|engine| engine.http.as_str()).collect();
    let it = Reloading::start("reloads_disjoint", &engines);
    let body = json!({"model": "m", "prompt": "a", "max_tokens": 1});
    let is_over = AtomicBool::new(false);
    let answered = AtomicUsize::new(0);
    let refused = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                while !is_over.load(Relaxed) {
                    let answer = it.gateway.post(ASK, &body);
                    answered.fetch_add(1, Relaxed);
                    if answer.status != 200 {
                        refused.lock().unwrap().push(answer.text);
                    }
                }
            });
        }
        for round in 0..reloads.unwrap_or(20) {
            let two = if round % 2 == 0 { &urls[2..] } else { &urls[..2] };
            // Two rounds with the names of the pods before, two with others.
            fs::write(&it.file, listed(two, if round / 2 % 2 == 0 { 'a' } else { 'n' })).unwrap();
            let reload = it.gateway.ask("POST", "/config/reload", "");
            assert_eq!(reload.status, 200, "{}", reload.text);
            // Sometimes while the pods before still leave, sometimes after that.
            let had = answered.load(Relaxed);
            let more = if round % 5 == 4 { 400 } else { 40 };
            eventually("requests are answered", || answered.load(Relaxed) >= had + more);
        }
        is_over.store(true, Relaxed);
    });
    let refused = refused.into_inner().unwrap();
    println!("reloads: {} requests, {} not answered", answered.load(Relaxed), refused.len());
    assert!(refused.is_empty(), "{refused:?}");
    eventually("the pods before are gone", || {
        it.gateway.ask("GET", "/pods", "").json()["pods"].as_array().unwrap().len() == 2
    });
}

#[test]
fn pods_serve_on_until_those_that_take_their_place_answer() {
    let engines = Engines::start(&["--model", "m", "--engines", "2"]);
    let it = Reloading::start("reloads_late", &engines);
    let body = json!({"model": "m", "prompt": "a", "max_tokens": 1});
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let late = silent.local_addr().unwrap().to_string();
    drop(silent);
    let reload = |pods: &str| {
        fs::write(&it.file, pods).unwrap();
        assert_eq!(it.gateway.ask("POST", "/config/reload", "").status, 200);
    };
    let names = || {
        let pods = it.gateway.ask("GET", "/pods", "").json();
        let names = pods["pods"].as_array().unwrap().iter();
        names.map(|pod| pod["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    // Under its own name, and then under the name of the old one.
    for first in ['b', 'a'] {
        reload(&listed(&[&late], first));
        assert_eq!(names().len(), 2, "{:?}", names());
        for _ in 0..3 {
            let answer = it.gateway.post(ASK, &body);
            assert_eq!(answer.status, 200, "{}", answer.text);
        }
    }
    reload(&listed(&[&engines.engines[1].http], 'c'));
    eventually("only the pod that answers is left", || names() == ["c"]);
    assert_eq!(it.gateway.post(ASK, &body).status, 200);
    // A pod of another model takes no place.
    reload(&format!("pods: [{{name: d, url: \"http://{late}\", model: other}}]\n"));
    assert_eq!(names(), ["d"]);
    assert!(it.gateway.post(ASK, &body).status >= 404);
}
