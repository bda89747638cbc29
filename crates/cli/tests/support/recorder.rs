//! An engine that records its requests and answers each with the same short text.

use serde_json::{Value, json};
use std::collections::HashSet;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A request as it arrived.
#[derive(Clone, Debug)]
pub(crate) struct Sent {
    pub(crate) path: String,
    pub(crate) head: String,
    pub(crate) body: Value,
}

impl Sent {
    /// Whether it is one of clients, and not a question of the router itself.
    fn is_request(&self) -> bool {
        self.head.starts_with("POST") && self.path != "/tokenize"
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let lines = self.head.lines().skip(1).filter_map(|line| line.split_once(": "));
        lines
            .into_iter()
            .find(|(known, _)| known.eq_ignore_ascii_case(name))
            .map(|(_, value)| value)
    }
}

/// A listening engine, ended when dropped.
pub(crate) struct Recorder {
    pub(crate) address: SocketAddr,
    sent: Arc<Mutex<Vec<Sent>>>,
    behaviour: Arc<Behaviour>,
    is_over: Arc<AtomicBool>,
}

/// How it answers, and how often it did.
#[derive(Default)]
struct Behaviour {
    /// Connections that were accepted.
    connections: AtomicUsize,
    /// Posts that were answered.
    answered: AtomicUsize,
    /// Milliseconds before each answer to a post.
    pause: AtomicU64,
    /// Bytes that are added to each answer to a post.
    padding: AtomicUsize,
    /// The `authorization` that it requires below `/v1/`, as engines do.
    key: Mutex<Option<String>>,
    /// Where it redirects posts to.
    redirect_to: Mutex<Option<String>>,
    /// Status of answers to posts, if not 200.
    refusal: Mutex<Option<&'static str>>,
    /// What a prompt with the word `poison` does to it.
    poison: Mutex<Option<Poison>>,
    /// Its side in a pair of prefill and decode engine.
    side: Mutex<Option<Side>>,
}

/// What an engine does with a request that it cannot stand.
#[derive(Clone, Copy, Debug)]
#[allow(dead_code, reason = "not every test has such requests")]
pub(crate) enum Poison {
    /// Closes the connection.
    Closes,
    /// Closes the connection in the middle of its answer.
    ClosesLate,
    /// Answers with this status, and headers if any.
    Says(&'static str),
}

impl Poison {
    fn of(behaviour: &Behaviour, sent: &Sent) -> Option<Self> {
        let prompt = sent.body["prompt"].as_str().unwrap_or_default();
        behaviour.poison.lock().unwrap().filter(|_| prompt.contains("poison"))
    }
}

/// Bootstrap rooms with a prompt that was prefilled for another engine.
pub(crate) type Rooms = Arc<Mutex<HashSet<u64>>>;

/// One of two engines that meet in the bootstrap room of a request.
#[derive(Clone)]
pub(crate) enum Side {
    /// Prefills.
    Gives(Rooms),
    /// Decodes once the prompt is in the room, or at once without a room.
    Takes(Rooms),
}

impl Side {
    fn meet(&self, body: &Value, is_refused: bool) {
        let Some(room) = body["bootstrap_room"].as_u64() else { return };
        match self {
            Self::Gives(_) if is_refused => {}
            Self::Gives(rooms) => drop(rooms.lock().unwrap().insert(room)),
            Self::Takes(rooms) => {
                for _ in 0..1_000 {
                    if rooms.lock().unwrap().contains(&room) {
                        return;
                    }
                    std::thread::sleep(Duration::from_millis(10));
                }
            }
        }
    }
}

impl Behaviour {
    /// The first lines of an answer, the length aside.
    fn head(&self, sent: &Sent) -> String {
        let key = self.key.lock().unwrap();
        if key.is_some()
            && sent.path.starts_with("/v1/")
            && sent.header("authorization") != key.as_deref()
        {
            return "401 Unauthorized".to_owned();
        }
        match &*self.redirect_to.lock().unwrap() {
            Some(url) if sent.is_request() => {
                format!("307 Temporary Redirect\r\nlocation: {url}")
            }
            _ => match Poison::of(self, sent) {
                Some(Poison::Says(status)) => status.to_owned(),
                _ => self.refusal_of(sent).unwrap_or("200 OK").to_owned(),
            },
        }
    }

    fn refusal_of(&self, sent: &Sent) -> Option<&'static str> {
        self.refusal.lock().unwrap().filter(|_| sent.is_request())
    }
}

/// Both directions of a connection, whatever carries it.
pub(crate) trait Stream: Read + Write + Send {}
impl<T: Read + Write + Send> Stream for T {}

/// How a connection begins: as it is, or by a greeting over TLS.
pub(crate) type Greet = Arc<dyn Fn(TcpStream) -> Option<Box<dyn Stream>> + Send + Sync>;

impl Recorder {
    /// Serves the model `m`.
    pub(crate) fn start() -> Self {
        Self::greeting(Arc::new(|stream| Some(Box::new(stream))))
    }

    /// The same behind something else.
    pub(crate) fn greeting(greet: Greet) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let sent = Arc::<Mutex<Vec<Sent>>>::default();
        let is_over = Arc::<AtomicBool>::default();
        let behaviour = Arc::<Behaviour>::default();
        let kept = Arc::clone(&sent);
        let ends = Arc::clone(&is_over);
        let shown = Arc::clone(&behaviour);
        let spawn = |work: Box<dyn FnOnce() + Send>| {
            let _detached = std::thread::Builder::new().spawn(work).unwrap();
        };
        spawn(Box::new(move || {
            for stream in listener.incoming() {
                if ends.load(Relaxed) {
                    return;
                }
                let Ok(stream) = stream else { continue };
                shown.connections.fetch_add(1, Relaxed);
                stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
                let kept = Arc::clone(&kept);
                let greet = Arc::clone(&greet);
                let shown = Arc::clone(&shown);
                spawn(Box::new(move || {
                    if let Some(stream) = greet(stream) {
                        serve(stream, &kept, &shown);
                    }
                }));
            }
        }));
        Self { address, sent, behaviour, is_over }
    }

    /// Delays answers to posts from now on.
    pub(crate) fn answer_after(&self, time: Duration) {
        self.behaviour.pause.store(time.as_millis() as u64, Relaxed);
    }

    /// Adds so many bytes to answers to posts from now on.
    #[allow(dead_code, reason = "only the tests of batches have long answers")]
    pub(crate) fn pad(&self, bytes: usize) {
        self.behaviour.padding.store(bytes, Relaxed);
    }

    /// Requires this `authorization` from now on.
    pub(crate) fn want(&self, authorization: Option<&str>) {
        *self.behaviour.key.lock().unwrap() = authorization.map(str::to_owned);
    }

    /// Answers posts with this status from now on.
    pub(crate) fn refuse(&self, status: &'static str) {
        *self.behaviour.refusal.lock().unwrap() = Some(status);
    }

    /// Cannot stand prompts with the word `poison` from now on.
    #[allow(dead_code, reason = "not every test has such requests")]
    pub(crate) fn poison_with(&self, poison: Poison) {
        *self.behaviour.poison.lock().unwrap() = Some(poison);
    }

    /// Makes it one side of a pair from now on.
    pub(crate) fn meet(&self, side: Side) {
        *self.behaviour.side.lock().unwrap() = Some(side);
    }

    /// Redirects posts from now on.
    pub(crate) fn redirect(&self, url: &str) {
        *self.behaviour.redirect_to.lock().unwrap() = Some(url.to_owned());
    }

    /// The requests for a path so far.
    pub(crate) fn asked(&self, path: &str) -> Vec<Sent> {
        self.sent.lock().unwrap().iter().filter(|sent| sent.path == path).cloned().collect()
    }

    /// The posts of clients so far.
    pub(crate) fn posted(&self) -> Vec<Sent> {
        let sent = self.sent.lock().unwrap();
        sent.iter().filter(|sent| sent.is_request()).cloned().collect()
    }
}

impl Recorder {
    /// Connections that it has accepted so far.
    pub(crate) fn connections(&self) -> usize {
        self.behaviour.connections.load(Relaxed)
    }

    /// Posts that it has answered so far, also those whose connection was closed by then.
    pub(crate) fn answered(&self) -> usize {
        self.behaviour.answered.load(Relaxed)
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.is_over.store(true, Relaxed);
        // Wakes the listener.
        let _ = TcpStream::connect(self.address);
    }
}

fn serve(mut stream: Box<dyn Stream>, kept: &Mutex<Vec<Sent>>, behaviour: &Behaviour) {
    while let Some(sent) = read(&mut *stream) {
        let status = behaviour.head(&sent);
        let mut answer = answer(&sent);
        let is_post = sent.is_request();
        if is_post {
            answer.extend(std::iter::repeat_n(' ', behaviour.padding.load(Relaxed)));
        }
        let body = sent.body.clone();
        let poison = Poison::of(behaviour, &sent);
        let is_refused = behaviour.refusal_of(&sent).is_some();
        kept.lock().unwrap().push(sent);
        let side = behaviour.side.lock().unwrap().clone();
        if let Some(side) = side {
            side.meet(&body, is_refused);
        }
        if is_post {
            std::thread::sleep(Duration::from_millis(behaviour.pause.load(Relaxed)));
        }
        if is_post {
            behaviour.answered.fetch_add(1, Relaxed);
        }
        let length = match poison {
            Some(Poison::Closes) => return,
            Some(Poison::ClosesLate) => answer.len() + 99,
            _ => answer.len(),
        };
        let head = format!(
            "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n"
        );
        if stream.write_all(format!("{head}{answer}").as_bytes()).is_err() {
            return;
        }
        let _ = stream.flush();
        if matches!(poison, Some(Poison::ClosesLate)) {
            return;
        }
    }
}

fn read(stream: &mut dyn Stream) -> Option<Sent> {
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
    let mut sent = Sent { path, head, body: Value::Null };
    let length = sent.header("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
    let mut body = vec![0; length];
    stream.read_exact(&mut body).ok()?;
    sent.body = serde_json::from_slice(&body).unwrap_or_default();
    Some(sent)
}

fn answer(sent: &Sent) -> String {
    if sent.path == "/v1/models" {
        return json!({"object": "list", "data": [{"id": "m", "object": "model"}]}).to_string();
    }
    if sent.path == "/query" {
        return json!({"0": {"engine_id": "engine-1"}}).to_string();
    }
    let usage = json!({"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4});
    let choice = json!({"index": 0, "text": " word", "finish_reason": "stop"});
    let transfer = json!({"remote_block_ids": [[1, 2]], "remote_host": "h"});
    json!({
        "id": "x", "object": "text_completion", "choices": [choice], "usage": usage,
        "kv_transfer_params": transfer,
    })
    .to_string()
}
