//! Three simulated engines behind a router, and its admin plane.

use crate::support::engines::{Engines, Exchange, Ports, Response};
use crate::support::gateway::{eventually, serve_file};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::Child;

const ENGINES: usize = 3;

/// A long text that many requests begin with.
pub(crate) struct Prompt(String);

impl Prompt {
    /// Bytes are tokens.
    pub(crate) const TOKENS: u64 = 3200;

    pub(crate) fn new(name: &str) -> Self {
        let mut text = format!("{name:-<32}").repeat(100);
        text.truncate(Self::TOKENS as usize);
        Self(text)
    }

    /// The prompt with an end of its own.
    pub(crate) fn then(&self, tail: usize) -> Value {
        json!({"prompt": format!("{} and then {tail}", self.0), "max_tokens": 2})
    }
}

/// Who answered, and what it had cached.
pub(crate) struct Answer {
    pub(crate) pod: String,
    pub(crate) cached_tokens: u64,
}

/// Everything ends when it is dropped.
pub(crate) struct Fleet {
    engines: Engines,
    router: Child,
    client: String,
    admin: String,
    configuration: PathBuf,
}

impl Drop for Fleet {
    fn drop(&mut self) {
        let _ = self.router.kill();
        let _ = self.router.wait();
        let _ = std::fs::remove_file(&self.configuration);
    }
}

impl Fleet {
    /// Engines in real time, since what is tested is what happens while they work.
    pub(crate) fn start(policy: &str, engine: &[&str], more: &str) -> Self {
        let fleet = Self::with_pods(policy, engine, more, |number, ports| {
            let replay = ports.replay.rsplit(':').next().unwrap();
            // The last one is asked where it publishes.
            match number + 1 {
                ENGINES => "events: auto".to_owned(),
                _ => format!("events: \"zmq://{}?replay={replay}\"", ports.events),
            }
        });
        eventually("all pods are heard of", || {
            let pods = (0..ENGINES).map(|number| fleet.feed(&format!("p{number}")));
            pods.filter(|feed| feed["state"] == "live").count() == ENGINES
        });
        fleet
    }

    /// The same engines, of whose caches the router hears nothing.
    pub(crate) fn silent(policy: &str, kv_tokens: usize) -> Self {
        Self::with_pods(policy, &[], "", |_, _| format!("events: [], kv_tokens: {kv_tokens}"))
    }

    fn with_pods(
        policy: &str,
        engine: &[&str],
        more: &str,
        pod: impl Fn(usize, &Ports) -> String,
    ) -> Self {
        let count = ENGINES.to_string();
        let own = ["--engines", &count, "--model", "m", "--answer-tokens", "4000"];
        let engines = Engines::start_at("1", &[&own[..], engine].concat());
        let mut text = format!(
            "listen: {{client: \"127.0.0.1:0\", admin: \"127.0.0.1:0\"}}\n\
             models: [{{name: m, tokenizer: bytes}}]\nreveal: pod\nroutes: [{{profile: {policy}}}]\n{more}pods:\n"
        );
        for (number, ports) in engines.engines.iter().enumerate() {
            text.push_str(&format!(
                "  - {{url: \"http://{}\", name: p{number}, model: m, engine: vllm, {}}}\n",
                ports.http,
                pod(number, ports)
            ));
        }
        let name = format!("wornpath-lifecycle-{}-{policy}.yaml", std::process::id());
        let configuration = std::env::temp_dir().join(name);
        std::fs::write(&configuration, text).unwrap();
        let (router, [client, admin]) = serve_file("warn", &configuration);
        let fleet = Self { engines, router, client, admin, configuration };
        fleet.is_up();
        fleet
    }

    fn is_up(&self) {
        eventually("all pods are up", || {
            let pods = self.get("/pods")["pods"].clone();
            pods.as_array().unwrap().iter().filter(|pod| pod["health"] == "up").count() == ENGINES
        });
    }

    /// Ends the router, does something, and starts another one in its place.
    pub(crate) fn start_again(&mut self, meanwhile: impl FnOnce(&Engines)) {
        let pid = rustix::process::Pid::from_child(&self.router);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        assert!(self.router.wait().unwrap().success());
        meanwhile(&self.engines);
        (self.router, [self.client, self.admin]) = serve_file("warn", &self.configuration);
        self.is_up();
    }

    /// What each pod's blocks come to.
    pub(crate) fn digests(&self) -> Vec<String> {
        let index = self.get("/index");
        let pods = index["by_pod"].as_array().unwrap().iter();
        pods.map(|pod| pod["digest"].as_str().unwrap().to_owned()).collect()
    }

    /// Asks through the router.
    pub(crate) fn ask(&self, body: &Value) -> Answer {
        let response = self.open(body).finish().unwrap();
        assert_eq!(response.status, 200, "{}", response.text);
        let header = |line: &str| line.strip_prefix("x-wornpath-pod: ").map(str::to_owned);
        let pod = response.head.lines().find_map(header).expect("the pod is revealed");
        Answer { pod, cached_tokens: response.cached_tokens() }
    }

    /// A long answer that `pod` is busy with until this is dropped. The pod must hold the prompt,
    /// or is given it straight before.
    pub(crate) fn occupy(&self, pod: &str, body: &Value) -> Exchange {
        self.straight_to(pod, body);
        eventually("the pod holds it", || self.believed(body, pod) > 0);
        let mut long = body.clone();
        (long["max_tokens"], long["stream"]) = (json!(4000), json!(true));
        let mut exchange = self.open(&long);
        let head = exchange.read_past("data: ");
        assert!(head.contains(&format!("x-wornpath-pod: {pod}\r")), "{pod}: {head}");
        exchange
    }

    /// Asks an engine behind the router's back.
    pub(crate) fn straight_to(&self, pod: &str, body: &Value) -> Response {
        let response = self.engines.complete(number(pod), body);
        assert_eq!(response.status, 200, "{}", response.text);
        response
    }

    /// How many leading blocks each pod is believed to hold.
    pub(crate) fn held(&self, body: &Value) -> Vec<(String, u64)> {
        let explained = self.explain(body);
        let candidates = explained["explanation"]["steps"][0]["candidates"].as_array().unwrap();
        let held = |one: &Value| {
            (one["pod"].as_str().unwrap().to_owned(), one["blocks"].as_u64().unwrap())
        };
        candidates.iter().map(held).collect()
    }

    pub(crate) fn believed(&self, body: &Value, pod: &str) -> u64 {
        self.held(body).into_iter().find(|(name, _)| name == pod).map_or(0, |(_, blocks)| blocks)
    }

    /// Where a request would go now.
    pub(crate) fn would_go(&self, body: &Value) -> String {
        let explained = self.explain(body);
        let pod = &explained["outcome"]["plan"]["steps"][0]["pod"];
        pod.as_str().unwrap_or_else(|| panic!("{explained}")).to_owned()
    }

    /// Takes all pods but one out of the router's choice.
    pub(crate) fn others_leave(&self, stays: &str) {
        for pod in (0..ENGINES).map(|number| format!("p{number}")).filter(|pod| pod != stays) {
            let path = format!("/pods/{pod}/drain");
            let answer = Exchange::open(&self.admin, "POST", &path, "").finish().unwrap();
            assert_eq!(answer.status, 200, "{}", answer.text);
        }
    }

    pub(crate) fn set_faults(&self, pod: &str, faults: &str) {
        self.engines.set_faults(number(pod), faults);
    }

    /// Requests that the router has under way on a pod.
    pub(crate) fn requests(&self, pod: &str) -> u64 {
        self.get(&format!("/pods/{pod}"))["load"]["requests"].as_u64().unwrap()
    }

    /// What the router says of a pod whose cache it guesses at.
    pub(crate) fn events(&self, pod: &str) -> Value {
        self.get(&format!("/pods/{pod}"))["events"].clone()
    }

    /// The state of a pod's events.
    pub(crate) fn feed(&self, pod: &str) -> Value {
        self.get(&format!("/pods/{pod}"))["events"]["feed"].clone()
    }

    fn explain(&self, body: &Value) -> Value {
        let mut body = body.clone();
        body["model"] = json!("m");
        let asked = json!({"path": "/v1/completions", "body": body}).to_string();
        Exchange::open(&self.admin, "POST", "/explain", &asked).finish().unwrap().json()
    }

    fn open(&self, body: &Value) -> Exchange {
        let mut body = body.clone();
        body["model"] = json!("m");
        Exchange::open(&self.client, "POST", "/v1/completions", &body.to_string())
    }

    fn get(&self, path: &str) -> Value {
        Exchange::open(&self.admin, "GET", path, "").finish().unwrap().json()
    }
}

fn number(pod: &str) -> usize {
    pod.strip_prefix('p').unwrap().parse().unwrap()
}
