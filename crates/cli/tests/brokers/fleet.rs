//! Two engines, a relay, two routers behind a broker and one without; and clients that keep sending
//! requests.

use crate::support::engines::{Engines, Exchange};
use crate::support::gateway::{eventually, eventually_within, serve_file};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const ENGINES: usize = 2;
const WITHIN: Duration = Duration::from_secs(5);

/// A process that ends when it is dropped.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

struct Router {
    client: String,
    admin: String,
    configuration: PathBuf,
    _process: Process,
}

impl Drop for Router {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.configuration);
    }
}

pub(crate) struct Fleet {
    /// The last one listens to the engines themselves.
    routers: Vec<Router>,
    kind: String,
    resting: Arc<AtomicBool>,
    asking: Arc<AtomicUsize>,
    answered: Arc<AtomicUsize>,
    _relay: Process,
    _engines: Engines,
}

/// Clients that ask one request after another.
pub(crate) struct Traffic {
    over: Arc<AtomicBool>,
    clients: Vec<JoinHandle<(usize, Duration)>>,
}

impl Fleet {
    pub(crate) fn start(kind: &str, broker: &str) -> Self {
        let count = ENGINES.to_string();
        let engines =
            Engines::start(&["--engines", &count, "--model", "m", "--kv-tokens", "65536"]);
        let mut relay = Command::new(env!("CARGO_BIN_EXE_wornpath"));
        relay.args(["relay", "--to", &format!("{broker}/kv")]).stdout(Stdio::null());
        relay.stderr(Stdio::null());
        let zmq = |number: usize| {
            let ports = &engines.engines[number];
            let replay = ports.replay.rsplit(':').next().unwrap();
            format!("zmq://{}?replay={replay}", ports.events)
        };
        for number in 0..ENGINES {
            relay.args(["--from", &format!("p{number}={}", zmq(number))]);
        }
        let relay = Process(relay.spawn().unwrap());
        let source = format!(
            "event_sources: [{{name: shared, kind: {kind}, url: \"{broker}\", stream: kv}}]\n"
        );
        let router = |name: &str, source: &str, events: &dyn Fn(usize) -> String| {
            let pods: String = (0..ENGINES)
                .map(|number| {
                    let url = &engines.engines[number].http;
                    let events = events(number);
                    format!(
                        "  - {{url: \"http://{url}\", name: p{number}, model: m, engine: vllm, events: \"{events}\"}}\n"
                    )
                })
                .collect();
            Router::start(&format!("{kind}-{name}"), &format!("{source}pods:\n{pods}"))
        };
        let shared = |_: usize| "shared".to_owned();
        let routers = vec![
            router("first", &source, &shared),
            router("second", &source, &shared),
            router("direct", "", &zmq),
        ];
        let resting = Arc::default();
        let asking = Arc::default();
        let answered = Arc::default();
        let kind = kind.to_owned();
        Self { routers, kind, resting, asking, answered, _relay: relay, _engines: engines }
    }

    pub(crate) fn begin_traffic(&self) -> Traffic {
        let over = Arc::<AtomicBool>::default();
        let clients = self.routers.iter().take(2).enumerate().map(|(number, router)| {
            let client = Client {
                address: router.client.clone(),
                number,
                over: Arc::clone(&over),
                resting: Arc::clone(&self.resting),
                asking: Arc::clone(&self.asking),
                answered: Arc::clone(&self.answered),
            };
            std::thread::Builder::new().spawn(move || client.ask()).unwrap()
        });
        Traffic { clients: clients.collect(), over }
    }

    /// Waits until the routers behind the broker have noticed that it is unreachable, and requests
    /// have been answered since.
    pub(crate) fn go_on_without_broker(&self) {
        self.until_each_feed("the broker is unreachable", |feed| {
            feed["troubles"].as_array().is_some_and(|troubles| !troubles.is_empty())
        });
        self.until_answered(40);
    }

    /// Waits until the routers behind the broker have heard nothing of it for this long, and
    /// requests have been answered since.
    pub(crate) fn go_on_in_silence(&self, silence: Duration) {
        self.until_each_feed("the broker is silent", |feed| {
            feed["age_seconds"].as_f64().is_some_and(|age| age > silence.as_secs_f64())
        });
        self.until_answered(40);
    }

    fn until_each_feed(&self, what: &str, is_so: impl Fn(&Value) -> bool) {
        let (_direct, others) = self.routers.split_last().unwrap();
        eventually(what, || {
            let pods: Vec<_> = others.iter().map(|router| router.get("/pods")).collect();
            let mut all = pods.iter().flat_map(|pods| pods["pods"].as_array().unwrap());
            all.all(|pod| is_so(&pod["events"]["feed"]))
        });
    }

    fn until_answered(&self, more: usize) {
        let before = self.answered.load(Relaxed);
        eventually("requests are answered", || self.answered.load(Relaxed) >= before + more);
    }

    /// Within five seconds of now, all routers know the same. Clients rest meanwhile, since engines
    /// that work are known a moment later than they speak.
    pub(crate) fn agree(&self, what: &str) {
        let returned = Instant::now();
        self.resting.store(true, Relaxed);
        loop {
            let known: Vec<_> = self.routers.iter().map(Router::known).collect();
            let (direct, others) = known.split_last().unwrap();
            let is_live = direct.iter().all(|pod| pod.0 == "live" && !pod.1.starts_with("0:"));
            let at_rest = self.asking.load(Relaxed) == 0;
            if at_rest && is_live && others.iter().all(|other| other == direct) {
                let kind = &self.kind;
                let took = returned.elapsed();
                eprintln!("{kind}, {what}: all agree {took:?} after its return: {direct:?}");
                break;
            }
            assert!(returned.elapsed() < WITHIN, "{what}: after {WITHIN:?}: {known:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
        self.resting.store(false, Relaxed);
    }
}

impl Router {
    fn start(name: &str, text: &str) -> Self {
        let head = "listen: {client: \"127.0.0.1:0\", admin: \"127.0.0.1:0\"}\n\
                    models: [{name: m, tokenizer: bytes}]\nroutes: [{profile: cache-aware}]\n";
        let file = format!("wornpath-brokers-{}-{name}.yaml", std::process::id());
        let configuration = std::env::temp_dir().join(file);
        std::fs::write(&configuration, format!("{head}{text}")).unwrap();
        let (child, [client, admin]) = serve_file("error", &configuration);
        let router = Self { client, admin, configuration, _process: Process(child) };
        let is_up = |pod: &Value| pod["health"] == "up";
        eventually_within(Duration::from_secs(15), &format!("{name}: its pods are up"), || {
            router.get("/pods")["pods"].as_array().unwrap().iter().all(is_up)
        });
        router
    }

    /// Each pod's state and digest.
    fn known(&self) -> Vec<(String, String)> {
        let pods = self.get("/pods");
        let index = self.get("/index");
        let state = |name: &Value| {
            let pod = pods["pods"].as_array().unwrap().iter().find(|pod| pod["name"] == *name);
            pod.unwrap()["events"]["feed"]["state"].as_str().unwrap_or("none").to_owned()
        };
        let pods = index["by_pod"].as_array().unwrap().iter();
        pods.map(|pod| (state(&pod["pod"]), pod["digest"].as_str().unwrap().to_owned())).collect()
    }

    fn get(&self, path: &str) -> Value {
        Exchange::open(&self.admin, "GET", path, "").finish().unwrap().json()
    }
}

struct Client {
    address: String,
    number: usize,
    over: Arc<AtomicBool>,
    resting: Arc<AtomicBool>,
    asking: Arc<AtomicUsize>,
    answered: Arc<AtomicUsize>,
}

impl Client {
    /// Asks until it is over: how many answers came, and how long the slowest took.
    fn ask(&self) -> (usize, Duration) {
        let mut answered = 0;
        let mut longest = Duration::ZERO;
        while !self.over.load(Relaxed) {
            // The rate of a client, so that engines and routers are not overloaded.
            std::thread::sleep(Duration::from_millis(10));
            self.asking.fetch_add(1, Relaxed);
            if !self.resting.load(Relaxed) {
                // One prompt in three is new, and some of the others have been evicted by then.
                let turn = if answered % 3 == 0 { answered } else { answered % 7 };
                let prompt = format!("{turn} of {} ", self.number);
                let body = json!({"model": "m", "prompt": prompt.repeat(40), "max_tokens": 2});
                let begun = Instant::now();
                let exchange =
                    Exchange::open(&self.address, "POST", "/v1/completions", &body.to_string());
                let response = exchange.finish().unwrap();
                assert_eq!(response.status, 200, "{}", response.text);
                longest = longest.max(begun.elapsed());
                answered += 1;
                self.answered.fetch_add(1, Relaxed);
            }
            self.asking.fetch_sub(1, Relaxed);
        }
        (answered, longest)
    }
}

impl Traffic {
    pub(crate) fn end(self) -> (usize, Duration) {
        self.over.store(true, Relaxed);
        let ended = self.clients.into_iter().map(|client| client.join().unwrap());
        ended.fold((0, Duration::ZERO), |(all, most), (answered, longest)| {
            (all + answered, most.max(longest))
        })
    }
}
