//! A gateway that serves in this process, in front of an engine that records what arrives.

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread::{self, Builder};
use std::time::{Duration, Instant};
use wornpath_config::{Config, Tokenizers};

/// A request as an engine gets it.
#[derive(Clone, Debug)]
pub(crate) struct Arrived {
    pub(crate) path: String,
    head: String,
    pub(crate) body: Vec<u8>,
}

impl Arrived {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let lines = self.head.lines().skip(1).filter_map(|line| line.split_once(": "));
        lines.into_iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, it)| it)
    }

    /// The body as engines parse it: of a repeated name the last value counts.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }
}

/// The answer of the gateway.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) text: String,
}

impl Answer {
    /// The message of an error in OpenAI's form.
    pub(crate) fn message(&self) -> String {
        let body: Value = serde_json::from_str(&self.text).unwrap_or_default();
        body["error"]["message"].as_str().unwrap_or_default().to_owned()
    }
}

/// A gateway with one engine. Tenants `a` and `b` have the keys `key-a` and `key-b`.
pub(crate) struct Served {
    address: SocketAddr,
    arrived: Arc<Mutex<Vec<Arrived>>>,
}

impl Served {
    /// With isolated tenants; `rules` are further keys of `isolation`.
    pub(crate) fn isolated(rules: &str) -> Self {
        Self::start(&format!("{}isolation: {{secret_file: cell.secret{rules}}}\n", tenants("")))
    }

    /// With tenants; `of_a` are further keys of the tenant `a`.
    pub(crate) fn with_tenants(of_a: &str) -> Self {
        Self::start(&tenants(of_a))
    }

    /// With further sections of the configuration.
    pub(crate) fn start(sections: &str) -> Self {
        let arrived = Arc::<Mutex<Vec<Arrived>>>::default();
        let engine = start_engine(Arc::clone(&arrived));
        let folder = folder();
        std::fs::write(folder.join("cell.secret"), "5e".repeat(32)).unwrap();
        let file = folder.join("wornpath.yaml");
        let text = format!(
            "listen: {{client: \"127.0.0.1:0\"}}\npods: [{{url: \"http://{engine}\", name: a, model: m, engine: vllm}}]\n{sections}"
        );
        std::fs::write(&file, text).unwrap();
        let config = Config::read(&file).unwrap_or_else(|refused| panic!("{refused}"));
        let settings = config.settings(&mut Tokenizers::new(&file)).unwrap();
        let (tell, told) = channel();
        let serve = move || {
            let started = |running: &wornpath_gateway::RunningServer| {
                tell.send(running.client).unwrap();
            };
            wornpath_gateway::serve(settings, |_| Ok(()), started).unwrap();
        };
        // It serves until the process ends.
        let _detached = Builder::new().spawn(serve).unwrap();
        let served = Self { address: told.recv().unwrap(), arrived };
        let deadline = now() + Duration::from_secs(20);
        while served.ask("GET", "/ready", &[], b"").status != 200 {
            assert!(now() < deadline, "the engine is not up");
            thread::yield_now();
        }
        served
    }

    /// Posts JSON with a key.
    pub(crate) fn post(&self, key: &str, path: &str, body: &Value) -> Answer {
        let headers = [("content-type", "application/json")];
        self.send(key, path, &headers, body.to_string().as_bytes())
    }

    /// Posts bytes with a key and headers.
    pub(crate) fn send(
        &self,
        key: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Answer {
        let authorization = format!("Bearer {key}");
        let headers = [&[("authorization", authorization.as_str())], headers].concat();
        self.ask("POST", path, &headers, body)
    }

    /// The only request that the engine got since the last call.
    pub(crate) fn arrived(&self) -> Arrived {
        let mut arrived = std::mem::take(&mut *self.arrived.lock().unwrap());
        assert_eq!(arrived.len(), 1, "{arrived:?}");
        arrived.remove(0)
    }

    /// Posts JSON that is forwarded, and returns it as it arrives.
    pub(crate) fn forwarded(&self, key: &str, path: &str, body: &Value) -> Value {
        let answer = self.post(key, path, body);
        assert_eq!(answer.status, 200, "{path} {body}: {}", answer.text);
        self.arrived().json()
    }

    /// Posts bytes that are refused and do not reach the engine; returns the message.
    pub(crate) fn refused(&self, path: &str, headers: &[(&str, &str)], body: &[u8]) -> String {
        let answer = self.send("key-a", path, headers, body);
        let shown = String::from_utf8_lossy(body);
        assert_eq!(answer.status, 400, "{path} {headers:?} {shown}: {}", answer.text);
        assert!(self.arrived.lock().unwrap().is_empty(), "{path} {headers:?} {shown}");
        answer.message()
    }

    pub(crate) fn ask(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Answer {
        let mut stream = TcpStream::connect(self.address).unwrap();
        let lines: String = headers.iter().map(|(name, it)| format!("{name}: {it}\r\n")).collect();
        let length = body.len();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: h\r\nconnection: close\r\n{lines}content-length: {length}\r\n\r\n"
        );
        stream.write_all(&[head.as_bytes(), body].concat()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
        let text = answer.split_once("\r\n\r\n").unwrap().1.to_owned();
        Answer { status, text }
    }
}

#[allow(clippy::disallowed_methods, reason = "a deadline for a server that does not start")]
fn now() -> Instant {
    Instant::now()
}

fn tenants(of_a: &str) -> String {
    let tenant = |name: &str, more: &str| {
        let digest = Sha256::digest(format!("key-{name}"));
        let digest: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("  - {{name: {name}, key_digest: \"sha256:{digest}\"{more}}}\n")
    };
    format!("tenants:\n{}{}", tenant("a", of_a), tenant("b", ""))
}

/// An empty folder of this test.
fn folder() -> PathBuf {
    let name = thread::current().name().unwrap_or("main").replace("::", "_");
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

fn start_engine(arrived: Arc<Mutex<Vec<Arrived>>>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let accept = move || {
        for stream in listener.incoming().flatten() {
            let arrived = Arc::clone(&arrived);
            let _detached = Builder::new().spawn(move || answer_all(stream, &arrived)).unwrap();
        }
    };
    let _detached = Builder::new().spawn(accept).unwrap();
    address
}

fn answer_all(mut stream: TcpStream, arrived: &Mutex<Vec<Arrived>>) {
    while let Some(request) = read(&mut stream) {
        let models = json!({"object": "list", "data": [{"id": "m", "object": "model"}]});
        // The gateway's own probes have no id.
        if request.header("x-request-id").is_some() {
            arrived.lock().unwrap().push(request);
        }
        let body = models.to_string();
        let length = body.len();
        let head = format!(
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n"
        );
        if stream.write_all(format!("{head}{body}").as_bytes()).is_err() {
            return;
        }
    }
}

fn read(stream: &mut TcpStream) -> Option<Arrived> {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        if stream.read(&mut byte).ok()? == 0 {
            return None;
        }
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).ok()?;
    let path = head.split(' ').nth(1)?.to_owned();
    let mut arrived = Arrived { path, head, body: Vec::new() };
    let length = arrived.header("content-length").and_then(|it| it.parse().ok()).unwrap_or(0);
    arrived.body = vec![0; length];
    stream.read_exact(&mut arrived.body).ok()?;
    Some(arrived)
}
