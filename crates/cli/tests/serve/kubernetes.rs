//! Pods of a Kubernetes cluster: what the API server says becomes true of the router, and what
//! happens to the API server changes no pod.

use crate::support::engines::Engines;
use crate::support::gateway::{Gateway, eventually, folder};
use crate::support::kube_api::{KubeApi, Refusal};
use serde_json::{Value, json};
use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

const ASK: &str = "/v1/completions";

/// A cluster with an API server, engines that are its pods, and a router.
struct Cluster {
    api: KubeApi,
    engines: Engines,
    gateway: Gateway,
}

/// A ready pod `vllm-N` whose engine has this address.
fn pod(number: usize, engine: &str) -> Value {
    let (ip, port) = engine.rsplit_once(':').unwrap();
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": format!("vllm-{number}"), "namespace": "models",
            "labels": {"app": "vllm", "topology.kubernetes.io/zone": "z1"},
            "annotations": {"wornpath/port": port},
        },
        "spec": {"nodeName": "node-7", "containers": [{"name": "vllm", "image": "vllm"}]},
        "status": {
            "phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}],
            "conditions": [{"type": "Initialized", "status": "True"}, {"type": "Ready", "status": "True"}],
        },
    })
}

fn set_ready(pod: &mut Value, ready: &str) {
    pod["status"]["conditions"][1]["status"] = json!(ready);
}

/// The deletion of a pod that may take its time: what `kubectl delete` does first.
fn terminate(pod: &mut Value) {
    pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    pod["metadata"]["deletionGracePeriodSeconds"] = json!(60);
}

const BY_LABEL: &str = "kubernetes: {selector: app=vllm, kubeconfig: kubeconfig}";
const BY_POOL: &str = "kubernetes: {pool: llama, kubeconfig: kubeconfig}";

impl Cluster {
    fn start(
        test: &str,
        engines: usize,
        source: &str,
        prepare: impl FnOnce(&KubeApi, &Engines),
    ) -> Self {
        let count = engines.to_string();
        let engines = Engines::start(&["--engines", &count, "--model", "m"]);
        let api = KubeApi::start();
        prepare(&api, &engines);
        let folder = folder(test);
        fs::write(folder.join("kubeconfig"), api.kubeconfig("models")).unwrap();
        let file = folder.join("wornpath.yaml");
        let text = format!(
            "models: [{{name: m, tokenizer: bytes, block_size: 16}}]\ndiscovery:\n  - {source}\n    model: m\n    engine: vllm\n"
        );
        fs::write(&file, text).unwrap();
        let arguments = ["-c", file.to_str().unwrap(), "--admin", "127.0.0.1:0"];
        let gateway = Gateway::start(&arguments, 0);
        Self { api, engines, gateway }
    }

    /// Every engine is a ready pod with the label `app=vllm`.
    fn with_pods(test: &str, engines: usize) -> Self {
        let cluster = Self::start(test, engines, BY_LABEL, |api, engines| {
            for (number, engine) in engines.engines.iter().enumerate() {
                let mut pod = pod(number, &engine.http);
                let replay = engine.replay.rsplit(':').next().unwrap();
                let events = engine.events.rsplit(':').next().unwrap();
                pod["metadata"]["annotations"]["wornpath/events"] =
                    json!(format!("zmq://{{host}}:{events}?replay={replay}"));
                api.apply("pods", pod);
            }
        });
        let all: Vec<_> = (0..engines).map(|number| format!("vllm-{number}.models up")).collect();
        cluster.until("all pods are up", &all.iter().map(String::as_str).collect::<Vec<_>>());
        cluster
    }

    fn pods(&self) -> Vec<Value> {
        let pods = self.gateway.ask("GET", "/pods", "").json()["pods"].clone();
        pods.as_array().unwrap().clone()
    }

    fn pod(&self, name: &str) -> Value {
        self.pods().into_iter().find(|pod| pod["name"] == name).unwrap_or(Value::Null)
    }

    /// Names and health of all pods.
    fn health(&self) -> Vec<String> {
        let text = |pod: &Value, key: &str| pod[key].as_str().unwrap().to_owned();
        let each = |pod: &Value| format!("{} {}", text(pod, "name"), text(pod, "health"));
        let mut health: Vec<_> = self.pods().iter().map(each).collect();
        health.sort();
        health
    }

    fn until(&self, what: &str, health: &[&str]) {
        let mut last = Vec::new();
        let deadline = Instant::now() + Duration::from_secs(20);
        while last != health {
            assert!(Instant::now() < deadline, "{what}: {last:?}\n{}", self.gateway.log());
            last = self.health();
        }
    }

    fn answered_by(&self, prompt: &str) -> String {
        let answer =
            self.gateway.post(ASK, &json!({"model": "m", "prompt": prompt, "max_tokens": 1}));
        assert_eq!(answer.status, 200, "{}", answer.text);
        answer.pod().to_owned()
    }
}

#[test]
fn pods_are_added_drained_resumed_and_removed_within_a_second_of_the_api_server_saying_so() {
    let cluster = Cluster::with_pods("kubernetes_follows", 3);
    let pods = cluster.health();
    assert_eq!(pods, ["vllm-0.models up", "vllm-1.models up", "vllm-2.models up"]);
    let mut longest = Duration::ZERO;
    let mut step = |what: &str, change: &dyn Fn(&KubeApi), health: &[&str]| {
        let started = Instant::now();
        change(&cluster.api);
        cluster.until(what, health);
        longest = longest.max(started.elapsed());
    };
    let edit = |edit: fn(&mut Value)| move |api: &KubeApi| api.edit("pods", "vllm-1", edit);
    let [a, b, c] = ["vllm-0.models up", "vllm-1.models up", "vllm-2.models up"];
    let draining = "vllm-1.models draining";
    step("not ready", &edit(|pod| set_ready(pod, "False")), &[a, draining, c]);
    step("ready", &edit(|pod| set_ready(pod, "True")), &[a, b, c]);
    step("terminating", &edit(terminate), &[a, draining, c]);
    step("deleted", &|api| api.delete("pods", "vllm-1"), &[a, c]);
    let again = pod(1, &cluster.engines.engines[1].http);
    step("created", &|api| api.apply("pods", again.clone()), &[a, b, c]);
    println!("kubernetes: longest from the event to the state of the router: {longest:?}");
    assert!(longest < Duration::from_secs(1), "{longest:?}");
}

#[test]
fn a_pod_gets_no_request_before_it_is_ready_for_the_first_time() {
    let cluster = Cluster::start("kubernetes_first", 1, BY_LABEL, |api, engines| {
        let mut new = pod(0, &engines.engines[0].http);
        set_ready(&mut new, "False");
        api.apply("pods", new);
        let mut ended = pod(1, &engines.engines[0].http);
        ended["status"]["phase"] = json!("Succeeded");
        api.apply("pods", ended);
        let mut other = pod(2, &engines.engines[0].http);
        other["metadata"]["labels"]["app"] = json!("other");
        api.apply("pods", other);
    });
    eventually("the watch has begun", || cluster.api.requests("watch=true") > 0);
    assert_eq!(cluster.health(), Vec::<String>::new());
    cluster.api.edit("pods", "vllm-0", |pod| set_ready(pod, "True"));
    cluster.until("ready", &["vllm-0.models up"]);
}

#[test]
fn a_pod_that_is_terminating_or_marked_finishes_its_streams_and_gets_no_new_prefix() {
    let cluster = Cluster::with_pods("kubernetes_marked", 2);
    let prompt = "a prefix that one pod holds ".repeat(40);
    let holder = cluster.answered_by(&prompt);
    let name = holder.trim_end_matches(".models").to_owned();
    let body = json!({"model": "m", "prompt": prompt, "max_tokens": 400, "stream": true});
    let mut stream = cluster.gateway.open(ASK, &body);
    stream.read_past("data: ");
    cluster.api.edit("pods", &name, |pod| {
        pod["metadata"]["annotations"]["wornpath/drain"] = json!("true");
    });
    eventually("it drains", || cluster.pod(&holder)["health"] == "draining");
    for tail in 0..4 {
        assert_ne!(cluster.answered_by(&format!("{prompt}{tail}")), holder);
        assert_ne!(cluster.answered_by(&format!("new {tail} {prompt}")), holder);
    }
    stream.read_past("[DONE]");
    cluster.api.edit("pods", &name, |pod| {
        pod["metadata"]["annotations"]["wornpath/drain"] = json!("false");
    });
    eventually("it is used again", || cluster.pod(&holder)["health"] == "up");
    let index = cluster.gateway.ask("GET", "/index", "").json();
    let pods = index["by_pod"].as_array().unwrap();
    let known = pods.iter().find(|pod| pod["pod"] == holder.as_str()).unwrap();
    let blocks = known["blocks"].as_u64().unwrap() + known["expected"].as_u64().unwrap();
    assert!(blocks > 0, "its cache is still known: {known}");
}

#[test]
fn a_pod_that_an_operator_drained_stays_drained_when_it_becomes_ready() {
    let cluster = Cluster::with_pods("kubernetes_operator", 2);
    assert_eq!(cluster.gateway.ask("POST", "/pods/vllm-0.models/drain", "").status, 200);
    for (ready, health) in [("False", "draining"), ("True", "up")] {
        cluster.api.edit("pods", "vllm-1", |pod| set_ready(pod, ready));
        cluster.until(ready, &["vllm-0.models draining", &format!("vllm-1.models {health}")]);
    }
}

#[test]
fn labels_annotations_and_the_node_become_properties_of_the_pod() {
    let cluster = Cluster::start("kubernetes_properties", 1, BY_LABEL, |api, engines| {
        let mut described = pod(0, &engines.engines[0].http);
        let labels = &mut described["metadata"]["labels"];
        labels["llm-d.ai/role"] = json!("decode");
        let annotations = &mut described["metadata"]["annotations"];
        annotations["wornpath/loras"] = json!("[sql, legal]");
        annotations["wornpath/labels"] = json!("{tier: gold}");
        annotations["example.com/other"] = json!("{");
        api.apply("pods", described);
    });
    cluster.until("described", &["vllm-0.models up"]);
    let pod = cluster.pod("vllm-0.models");
    assert_eq!(pod["roles"], json!(["serve", "decode"]));
    assert_eq!(pod["loras"], json!(["sql", "legal"]));
    assert_eq!(pod["labels"]["tier"], "gold");
    assert_eq!(pod["labels"]["app"], "vllm");
    cluster.api.edit("pods", "vllm-0", |pod| {
        pod["metadata"]["annotations"]["wornpath/role"] = json!("[prefill]");
    });
    eventually("an annotation says more than a label", || {
        cluster.pod("vllm-0.models")["roles"] == json!(["prefill"])
    });
}

#[test]
fn an_invalid_annotation_is_named_and_changes_nothing() {
    let cluster = Cluster::with_pods("kubernetes_invalid", 1);
    for (key, value, named) in [
        ("wornpath/ranks", "many", "`ranks` of `pods` is `many`"),
        ("wornpath/rols", "serve", "annotation `wornpath/rols`: unknown; known: model, role"),
        ("wornpath/key_file", "/etc/passwd", "only the configuration sets it"),
        ("wornpath/port", "0", "`0` is no port; give 1 to 65535"),
    ] {
        cluster.api.edit("pods", "vllm-0", |pod| {
            pod["metadata"]["annotations"][key] = json!(value);
        });
        eventually(named, || cluster.gateway.log().contains(named));
        assert_eq!(cluster.health(), ["vllm-0.models up"]);
        cluster.api.edit("pods", "vllm-0", |pod| {
            pod["metadata"]["annotations"].as_object_mut().unwrap().remove(key);
            pod["metadata"]["annotations"]["wornpath/port"] =
                json!(cluster.engines.engines[0].http.rsplit(':').next().unwrap());
        });
    }
}

#[test]
fn pods_and_their_caches_stay_while_the_api_server_is_away_and_changes_are_caught_up() {
    let cluster = Cluster::with_pods("kubernetes_away", 3);
    let prompt = "a prefix that one pod holds ".repeat(40);
    let holder = cluster.answered_by(&prompt);
    cluster.api.stop();
    eventually("it is noticed", || cluster.gateway.log().contains("Kubernetes API failed"));
    let gone = ["vllm-0", "vllm-1", "vllm-2"].into_iter().find(|name| !holder.starts_with(name));
    cluster.api.delete("pods", gone.unwrap());
    for _ in 0..20 {
        assert_eq!(cluster.pods().len(), 3);
        assert_eq!(cluster.answered_by(&prompt), holder);
    }
    let log = cluster.gateway.log();
    let failures: Vec<_> = log.lines().filter(|line| line.contains("Connect")).collect();
    let is_ours = |line: &&str| line.contains("Kubernetes API failed") && line.contains("pods=");
    assert!(failures.iter().all(is_ours) && failures.len() <= 2, "{failures:#?}");
    cluster.api.restart();
    eventually("the deletion is caught up", || cluster.pods().len() == 2);
    let index = cluster.gateway.ask("GET", "/index", "").json();
    let pods = index["by_pod"].as_array().unwrap();
    let known = pods.iter().find(|pod| pod["pod"] == holder.as_str()).unwrap();
    let blocks = known["blocks"].as_u64().unwrap() + known["expected"].as_u64().unwrap();
    assert!(blocks > 0, "its cache is still known: {known}");
    eventually("the end is logged", || cluster.gateway.log().contains("Kubernetes API answers"));
}

#[test]
fn a_compacted_version_begins_the_watch_again_with_a_list_in_pages() {
    let cluster = Cluster::with_pods("kubernetes_compacted", 4);
    cluster.api.set_largest_page(1);
    // As an event of a watch, as a real server does it, and as the status of its answer.
    for (refuses, name, left) in [(false, "vllm-0", 3), (true, "vllm-1", 2)] {
        cluster.api.set_refuses_watches(refuses);
        let before = cluster.api.requests("continue=");
        cluster.api.delete_and_compact("pods", name);
        eventually("the deletion is caught up", || cluster.pods().len() == left);
        assert!(cluster.api.requests("continue=") > before, "it was listed in pages");
    }
    assert_eq!(cluster.health(), ["vllm-2.models up", "vllm-3.models up"]);
}

#[test]
fn an_api_server_that_refuses_is_asked_again_later_and_pods_stay() {
    for (number, refusal) in [Refusal::Throttled, Refusal::Forbidden].into_iter().enumerate() {
        let cluster = Cluster::with_pods(&format!("kubernetes_refused_{number}"), 2);
        cluster.api.refuse(3, refusal);
        cluster.api.restart();
        let before = cluster.api.requests("");
        eventually("it refuses", || cluster.api.refused() < 3);
        cluster.api.delete("pods", "vllm-0");
        while cluster.api.refused() > 0 {
            assert_eq!(cluster.pods().len(), 2);
        }
        cluster.until("it answers again", &["vllm-1.models up"]);
        let asked = cluster.api.requests("") - before;
        assert!(asked < 20, "{asked} requests are no backoff");
    }
}

#[test]
fn bookmarks_keep_a_watch_from_beginning_again_after_a_compaction() {
    let cluster = Cluster::with_pods("kubernetes_bookmarks", 1);
    let lists = || {
        cluster.api.requests("GET /api/v1/namespaces/models/pods") - cluster.api.requests("watch=")
    };
    let before = lists();
    // Changes that the selector does not select move the version on: only bookmarks tell it.
    for number in 0..3 {
        cluster.api.apply("configmaps", json!({"metadata": {"name": format!("c{number}")}}));
    }
    let watches = cluster.api.requests("watch=");
    let version = cluster.api.version();
    eventually("a bookmark was sent", || cluster.api.bookmarked() >= version);
    cluster.api.compact();
    eventually("it watches again", || cluster.api.requests("watch=") > watches);
    cluster.api.edit("pods", "vllm-0", |pod| pod["metadata"]["labels"]["new"] = json!("yes"));
    eventually("the watch works", || cluster.pod("vllm-0.models")["labels"]["new"] == "yes");
    assert_eq!(lists(), before, "no list was needed");
}

fn pool(labels: &Value, ports: &[u16]) -> Value {
    let ports: Vec<_> = ports.iter().map(|number| json!({"number": number})).collect();
    json!({
        "apiVersion": "inference.networking.k8s.io/v1", "kind": "InferencePool",
        "metadata": {"name": "llama", "namespace": "models"},
        "spec": {
            "selector": {"matchLabels": labels}, "targetPorts": ports,
            "endpointPickerRef": {"name": "wornpath", "port": {"number": 9002}},
        },
    })
}

#[test]
fn an_inference_pool_selects_pods_and_each_of_its_ports_is_one() {
    let mut ports = Vec::new();
    let cluster = Cluster::start("kubernetes_pool", 2, BY_POOL, |api, engines| {
        let port = |engine: &str| engine.rsplit(':').next().unwrap().parse::<u16>().unwrap();
        ports = engines.engines.iter().map(|engine| port(&engine.http)).collect();
        let mut served = pod(0, &engines.engines[0].http);
        served["metadata"]["annotations"] = json!({});
        api.apply("pods", served);
    });
    eventually("the pool is asked for", || cluster.api.requests("inferencepools") > 1);
    assert_eq!(cluster.pods().len(), 0, "there is no pool yet");
    cluster.api.apply("inferencepools", pool(&json!({"app": "vllm"}), &ports));
    let each: Vec<_> = ports.iter().map(|port| format!("vllm-0.models:{port} up")).collect();
    let mut all: Vec<_> = each.iter().map(String::as_str).collect();
    all.sort_unstable();
    cluster.until("one for each port", &all);
    cluster.api.apply("inferencepools", pool(&json!({"app": "vllm"}), &ports[..1]));
    cluster.until("one port less", &["vllm-0.models up"]);
    cluster.api.apply("inferencepools", pool(&json!({"app": "none"}), &ports[..1]));
    cluster.until("other labels", &[]);
    cluster.api.apply("inferencepools", pool(&json!({"app": "vllm"}), &ports[..1]));
    cluster.until("the first labels", &["vllm-0.models up"]);
    cluster.api.delete("inferencepools", "llama");
    cluster.until("no pool", &[]);
}

/// The pool and the pods are watched apart: one may fail while the other works.
#[test]
fn a_failure_that_persists_is_logged_once_while_another_watch_works() {
    let cluster = Cluster::start("kubernetes_half", 1, BY_POOL, |api, engines| {
        let port: u16 = engines.engines[0].http.rsplit(':').next().unwrap().parse().unwrap();
        let mut served = pod(0, &engines.engines[0].http);
        served["metadata"]["annotations"] = json!({});
        api.apply("pods", served);
        api.apply("inferencepools", pool(&json!({"app": "vllm"}), &[port]));
    });
    cluster.until("the pool's pod", &["vllm-0.models up"]);
    cluster.api.forbid(&["watch inferencepools", "list inferencepools"]);
    cluster.api.compact();
    let lines = |text: &str| {
        let log = cluster.gateway.log();
        log.lines().filter(|line| line.contains(text)).map(str::to_owned).collect::<Vec<_>>()
    };
    eventually("the pool's watch fails", || !lines("Kubernetes API failed").is_empty());
    for change in 0..4 {
        let value = change.to_string();
        cluster.api.edit("pods", "vllm-0", |pod| pod["metadata"]["labels"]["n"] = json!(&value));
        eventually("the pods' watch works", || {
            cluster.pod("vllm-0.models")["labels"]["n"] == *value
        });
        let refused = cluster.api.requests("inferencepools");
        eventually("it is refused again", || cluster.api.requests("inferencepools") > refused);
    }
    let failed = lines("Kubernetes API failed");
    // To watch and to list are refused in different words.
    assert!(failed.len() <= 2, "{failed:#?}");
    assert_eq!(lines("Kubernetes API answers"), Vec::<String>::new());
    cluster.api.forbid(&[]);
    eventually("its end is logged", || lines("Kubernetes API answers").len() == 1);
}

/// A request that waits for the first pod raises the signal, which starts one.
#[test]
fn a_request_waits_for_the_first_pod_that_the_api_server_says_is_ready() {
    let engines = Engines::start(&["--model", "m"]);
    let api = KubeApi::start();
    let mut starting = pod(0, &engines.engines[0].http);
    set_ready(&mut starting, "False");
    let folder = folder("kubernetes_from_zero");
    fs::write(folder.join("kubeconfig"), api.kubeconfig("models")).unwrap();
    let file = folder.join("wornpath.yaml");
    let text = format!(
        "models: [{{name: m, tokenizer: bytes, wait_for_pod: 60s}}]\ndiscovery:\n  - {BY_LABEL}\n    model: m\n"
    );
    fs::write(&file, text).unwrap();
    let gateway = Gateway::start(&["-c", file.to_str().unwrap(), "--admin", "127.0.0.1:0"], 0);
    let body = json!({"model": "m", "prompt": "a", "max_tokens": 1});
    let waiting = gateway.open(ASK, &body);
    let signal = || gateway.metric("wornpath_model_waiting_requests{model=\"m\"}") as u64;
    eventually("the signal is raised", || signal() == 1);
    api.apply("pods", starting);
    eventually("the watch has begun", || api.requests("watch=true") > 0);
    assert_eq!(signal(), 1, "a pod that is not ready is none");
    api.edit("pods", "vllm-0", |pod| set_ready(pod, "True"));
    let answer = waiting.finish().unwrap();
    assert_eq!((answer.status, answer.pod()), (200, "vllm-0.models"), "{}", answer.text);
    assert_eq!(signal(), 0);
}

/// What `wornpath check --kubernetes` says, and its exit status.
fn checked(test: &str, api: &KubeApi, source: &str) -> (Option<i32>, String) {
    let folder = folder(test);
    fs::write(folder.join("kubeconfig"), api.kubeconfig("models")).unwrap();
    let file = folder.join("wornpath.yaml");
    fs::write(&file, format!("discovery:\n  - {source}\n")).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_wornpath"))
        .args(["check", "--kubernetes"])
        .arg(&file)
        .output()
        .unwrap();
    (output.status.code(), String::from_utf8(output.stdout).unwrap())
}

#[test]
fn check_names_every_missing_right_with_the_rule_that_gives_it() {
    let api = KubeApi::start();
    api.apply("pods", pod(0, "127.0.0.1:1"));
    api.forbid(&["watch pods", "list inferencepools"]);
    let (status, text) = checked("kubernetes_rights", &api, BY_POOL);
    assert_eq!(status, Some(1), "{text}");
    for expected in [
        "may not watch pods in namespace `models`",
        "{apiGroups: [\"\"], resources: [pods], verbs: [list, watch]}",
        "may not list inferencepools in namespace `models`",
        "resourceNames: [llama]",
    ] {
        assert!(text.contains(expected), "no {expected} in {text}");
    }
    api.forbid(&[]);
    let (status, text) = checked("kubernetes_rights", &api, BY_POOL);
    assert_eq!(status, Some(1), "{text}");
    assert!(text.contains("no InferencePool `llama` in namespace `models`"), "{text}");
    let (status, text) = checked("kubernetes_rights", &api, BY_LABEL);
    assert_eq!(status, Some(0), "{text}");
    assert!(text.contains("1 pods by `app=vllm`, 1 of them ready"), "{text}");
    api.apply("inferencepools", pool(&json!({"app": "vllm"}), &[8000, 8001]));
    let (status, text) = checked("kubernetes_rights", &api, BY_POOL);
    assert_eq!(status, Some(1), "the annotation for a port has no effect here: {text}");
    assert!(text.contains("the ports are those of the pool; remove it"), "{text}");
    api.stop();
    let (status, text) = checked("kubernetes_rights", &api, BY_LABEL);
    assert_eq!(status, Some(1), "{text}");
    assert!(text.contains("Kubernetes API failed"), "{text}");
}
