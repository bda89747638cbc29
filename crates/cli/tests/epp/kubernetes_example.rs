//! The files of `examples/kubernetes-vllm`, from the values to a cached answer: the configuration that
//! the chart renders runs against an API server and simulated engines, in picker mode behind Envoy.
#![cfg(feature = "kubernetes")]

use crate::envoy::{Envoy, Failure, Picker, Pods, Trust, free_port, is_here};
use crate::picks::{cached, total};
use crate::support::engines::{Exchange, Response};
use crate::support::gateway::{Gateway, eventually, folder};
use crate::support::kube_api::KubeApi;
use crate::yaml::parse;
use serde_json::{Value, json};
use std::fs;
use std::io::{BufRead, BufReader, Lines};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

const CHAT: &str = "/v1/chat/completions";
const ENGINES: u16 = 2;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn tokenizer() -> String {
    root().join("crates/blocks/tests/models/tiny-llama").to_str().unwrap().to_owned()
}

/// The manifests of the chart with the values of an example; none without helm.
fn rendered(values: &str) -> Option<Vec<Value>> {
    let mut helm = Command::new("helm");
    helm.args(["template", "test", "--namespace", "models"]);
    helm.arg(root().join("deploy/helm/wornpath")).arg("--values");
    let output = helm.arg(root().join("examples/kubernetes-vllm").join(values)).output();
    let required = std::env::var("WORNPATH_PEERS").is_ok_and(|value| value == "required");
    let Ok(output) = output else {
        assert!(!required, "helm is missing; `./test` installs it");
        return None;
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let documents = text.split("\n---").filter(|document| document.contains("\nkind:"));
    Some(documents.map(|document| parse(document.trim_start_matches("---"))).collect())
}

/// The manifest of a kind and a name.
fn manifest<'a>(all: &'a [Value], kind: &str, name: &str) -> &'a Value {
    let is_it = |it: &&Value| it["kind"] == kind && it["metadata"]["name"] == name;
    all.iter().find(is_it).unwrap_or_else(|| panic!("no {kind} {name}"))
}

/// The first of some ports that are free, one after the other.
fn free_ports(count: u16) -> u16 {
    loop {
        let ports: Vec<_> = (0..count).map(|_| free_port()).collect();
        if ports.windows(2).all(|pair| pair[0] + 1 == pair[1]) {
            return ports[0];
        }
    }
}

/// Engines at ports that follow each other, as those of a data-parallel pod.
struct Engines {
    child: Child,
    http: u16,
    events: u16,
    replay: u16,
    /// Kept open: an engine that cannot say anything more ends.
    _says: Lines<BufReader<ChildStdout>>,
}

impl Engines {
    fn start(model: &str) -> Self {
        let [http, events, replay] = [(); 3].map(|()| free_ports(ENGINES));
        let mut child = Command::new(env!("CARGO_BIN_EXE_wornpath"))
            .args(["engine", "--speed", "100", "--model", model, "--tokenizer", &tokenizer()])
            .args(["--engines", &ENGINES.to_string(), "--port", &http.to_string()])
            .args(["--events-port", &events.to_string(), "--replay-port", &replay.to_string()])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut says = BufReader::new(child.stdout.take().unwrap()).lines();
        says.next().expect("the engines say where they listen").unwrap();
        Self { child, http, events, replay, _says: says }
    }

    fn ports(&self) -> impl Iterator<Item = u16> {
        self.http..self.http + ENGINES
    }
}

impl Drop for Engines {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// One of the two ways to install the example.
struct Installation {
    manifests: Vec<Value>,
    api: KubeApi,
    engines: Engines,
    text: String,
}

impl Installation {
    /// The rendered configuration with the addresses of this machine. Nothing else differs.
    fn new(values: &str, test: &str, epp: u16) -> Option<Self> {
        let manifests = rendered(values)?;
        let config = &manifest(&manifests, "ConfigMap", "test-wornpath")["data"]["wornpath.yaml"];
        let engines = Engines::start("Qwen/Qwen3-8B");
        let api = KubeApi::start();
        let kubeconfig = folder(test).join("kubeconfig");
        fs::write(&kubeconfig, api.kubeconfig("models")).unwrap();
        let mut text = config.as_str().unwrap().to_owned();
        for (from, to) in [
            ("0.0.0.0:8080", "127.0.0.1:0".to_owned()),
            ("127.0.0.1:8081", "127.0.0.1:0".to_owned()),
            ("0.0.0.0:9002", format!("127.0.0.1:{epp}")),
            ("/models/qwen3-8b", tokenizer()),
            (":5557?replay=5657", format!(":{}?replay={}", engines.events, engines.replay)),
            ("kubernetes:\n", format!("kubernetes:\n    kubeconfig: {}\n", kubeconfig.display())),
        ] {
            let is_optional = from == "0.0.0.0:9002";
            assert!(text.contains(from) || is_optional, "no {from} in {text}");
            text = text.replace(from, &to);
        }
        Some(Self { manifests, api, engines, text })
    }

    /// Creates a ready pod of the rendered Deployment.
    fn create_pod(&self, name: &str, annotations: &Value) {
        let deployment = manifest(&self.manifests, "Deployment", "test-wornpath-qwen3-8b");
        let labels = &deployment["spec"]["template"]["metadata"]["labels"];
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "name": name, "namespace": "models", "labels": labels, "annotations": annotations,
            },
            "spec": {"containers": [{"name": "vllm", "image": "vllm"}]},
            "status": {
                "phase": "Running", "podIP": "127.0.0.1",
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        });
        self.api.apply("pods", pod);
    }
}

/// The question of the README.
fn question(number: usize) -> Value {
    let numbers: Vec<_> = (1..=200).map(|number: usize| number.to_string()).collect();
    let text = format!("{number}: Say in one word what a path is. {}", numbers.join(" "));
    json!({
        "model": "Qwen/Qwen3-8B", "max_tokens": 8, "messages": [{"role": "user", "content": text}],
    })
}

/// Each question twice: the second answer comes from the cache that the router predicted.
fn answers_come_from_caches(router: &Gateway, ask: impl Fn(&Value) -> Response) {
    let mut pods = Vec::new();
    for number in 0..12 {
        assert_eq!(cached(&ask(&question(number))), 0);
        let again = ask(&question(number));
        assert!(cached(&again) > 100, "{}", again.text);
        pods.push(again.pod().to_owned());
    }
    pods.sort();
    pods.dedup();
    assert_eq!(pods.len(), usize::from(ENGINES), "both engines are used");
    eventually("predictions are checked", || {
        total(router, "wornpath_predictions_checked_total") > 0
    });
    assert_eq!(total(router, "wornpath_predictions_wrong_total"), 0);
}

#[test]
fn the_example_of_a_gateway_answers_from_zero_and_then_from_caches() {
    let test = "kubernetes-vllm-gateway";
    let Some(it) = Installation::new("gateway.yaml", test, 0) else { return };
    let router = Gateway::configured(&format!("{test}-router"), &it.text, 0);
    assert_eq!(router.get("/ready").status, 200, "it waits for pods");
    let first = router.open(CHAT, &question(99));
    let signal = "wornpath_model_waiting_requests{model=\"Qwen/Qwen3-8B\"}";
    eventually("the signal for KEDA is raised", || router.metric(signal) as u64 == 1);
    for (at, port) in it.engines.ports().enumerate() {
        let at = at as u16;
        let [events, replay] = [it.engines.events + at, it.engines.replay + at];
        let annotations = json!({
            "wornpath/port": port.to_string(),
            "wornpath/events": format!("zmq://{{host}}:{events}?replay={replay}"),
        });
        it.create_pod(&format!("vllm-{at}"), &annotations);
    }
    assert_eq!(first.finish().unwrap().status, 200);
    eventually("both pods are up", || router.log().matches("pod up").count() == 2);
    answers_come_from_caches(&router, |body| router.post(CHAT, body));
}

#[test]
fn the_example_of_a_picker_answers_from_caches_behind_envoy() {
    if !is_here() {
        return;
    }
    let test = "kubernetes-vllm-picker";
    let port = free_port();
    let Some(it) = Installation::new("picker.yaml", test, port) else { return };
    let mut pool = manifest(&it.manifests, "InferencePool", "test-wornpath-qwen3-8b").clone();
    let picker = pool["spec"]["endpointPickerRef"].clone();
    assert_eq!(
        (&picker["port"]["number"], &picker["failureMode"]),
        (&9002.into(), &"FailOpen".into())
    );
    // One pod with two engines: the addresses of this machine differ by their ports.
    let ports: Vec<_> = it.engines.ports().map(|port| json!({"number": port})).collect();
    pool["spec"]["targetPorts"] = ports.into();
    it.api.apply("inferencepools", pool);
    it.create_pod("vllm-0", &json!({}));
    let router = Gateway::configured(&format!("{test}-router"), &it.text, usize::from(ENGINES));
    let picker = Picker { ports: vec![port], trust: Trust::Anything, is_checked: false };
    let envoy = Envoy::start(&format!("{test}-envoy"), picker, &Pods::Named, Failure::Open);
    answers_come_from_caches(&router, |body| {
        Exchange::open(&envoy.address, "POST", CHAT, &body.to_string()).finish().unwrap()
    });
}
