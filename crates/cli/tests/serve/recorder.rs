//! An engine that answers little and writes down everything: what a pod is really sent.

use serde_json::{Value, json};
use std::collections::HashSet;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// One request as it came.
#[derive(Clone, Debug)]
pub(crate) struct Sent {
    pub(crate) path: String,
    pub(crate) head: String,
    pub(crate) body: Value,
}

impl Sent {
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
    manners: Arc<Manners>,
    is_over: Arc<AtomicBool>,
}

/// How it answers.
#[derive(Default)]
struct Manners {
    /// Milliseconds before each answer to a post.
    pause: AtomicU64,
    /// What it wants to see as `authorization`, as engines do: below `/v1/` only.
    key: Mutex<Option<String>>,
    /// Where it sends whoever posts.
    elsewhere: Mutex<Option<String>>,
    /// What it answers posts with, if not with 200.
    refusal: Mutex<Option<&'static str>>,
    /// Where it meets others.
    side: Mutex<Option<Side>>,
}

/// Rooms in which a prompt waits that was computed for another engine.
pub(crate) type Rooms = Arc<Mutex<HashSet<u64>>>;

/// One of two engines that meet in the room that a request names.
#[derive(Clone)]
pub(crate) enum Side {
    /// Computes prompts.
    Gives(Rooms),
    /// Answers when the prompt is there, or at once if it is to compute it by itself.
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

impl Manners {
    /// The first lines of an answer, the length aside.
    fn head(&self, sent: &Sent) -> String {
        let key = self.key.lock().unwrap();
        if key.is_some()
            && sent.path.starts_with("/v1/")
            && sent.header("authorization") != key.as_deref()
        {
            return "401 Unauthorized".to_owned();
        }
        match &*self.elsewhere.lock().unwrap() {
            Some(url) if sent.head.starts_with("POST") => {
                format!("307 Temporary Redirect\r\nlocation: {url}")
            }
            _ => self.refusal_of(sent).unwrap_or("200 OK").to_owned(),
        }
    }

    fn refusal_of(&self, sent: &Sent) -> Option<&'static str> {
        self.refusal.lock().unwrap().filter(|_| sent.head.starts_with("POST"))
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
        let (sent, is_over) = (Arc::<Mutex<Vec<Sent>>>::default(), Arc::<AtomicBool>::default());
        let manners = Arc::<Manners>::default();
        let (kept, ends, shown) = (Arc::clone(&sent), Arc::clone(&is_over), Arc::clone(&manners));
        let spawn = |work: Box<dyn FnOnce() + Send>| {
            let _detached = std::thread::Builder::new().spawn(work).unwrap();
        };
        spawn(Box::new(move || {
            for stream in listener.incoming() {
                if ends.load(Relaxed) {
                    return;
                }
                let Ok(stream) = stream else { continue };
                stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
                let (kept, greet) = (Arc::clone(&kept), Arc::clone(&greet));
                let shown = Arc::clone(&shown);
                spawn(Box::new(move || {
                    if let Some(stream) = greet(stream) {
                        serve(stream, &kept, &shown);
                    }
                }));
            }
        }));
        Self { address, sent, manners, is_over }
    }

    /// From now on it takes so long for every answer to a post.
    pub(crate) fn answer_after(&self, time: Duration) {
        self.manners.pause.store(time.as_millis() as u64, Relaxed);
    }

    /// From now on it answers nobody who does not show this.
    pub(crate) fn want(&self, authorization: Option<&str>) {
        *self.manners.key.lock().unwrap() = authorization.map(str::to_owned);
    }

    /// From now on it refuses posts with that status.
    pub(crate) fn refuse(&self, status: &'static str) {
        *self.manners.refusal.lock().unwrap() = Some(status);
    }

    /// From now on it meets others.
    pub(crate) fn meet(&self, side: Side) {
        *self.manners.side.lock().unwrap() = Some(side);
    }

    /// From now on it sends whoever posts elsewhere.
    pub(crate) fn redirect(&self, url: &str) {
        *self.manners.elsewhere.lock().unwrap() = Some(url.to_owned());
    }

    /// What came for a path so far.
    pub(crate) fn asked(&self, path: &str) -> Vec<Sent> {
        self.sent.lock().unwrap().iter().filter(|sent| sent.path == path).cloned().collect()
    }

    /// What was posted so far.
    pub(crate) fn posted(&self) -> Vec<Sent> {
        let sent = self.sent.lock().unwrap();
        sent.iter().filter(|sent| sent.head.starts_with("POST")).cloned().collect()
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.is_over.store(true, Relaxed);
        // One more connection, so that it notices.
        let _ = TcpStream::connect(self.address);
    }
}

fn serve(mut stream: Box<dyn Stream>, kept: &Mutex<Vec<Sent>>, manners: &Manners) {
    while let Some(sent) = read(&mut *stream) {
        let (status, answer) = (manners.head(&sent), answer(&sent));
        let is_post = sent.head.starts_with("POST");
        let (body, is_refused) = (sent.body.clone(), manners.refusal_of(&sent).is_some());
        kept.lock().unwrap().push(sent);
        let side = manners.side.lock().unwrap().clone();
        if let Some(side) = side {
            side.meet(&body, is_refused);
        }
        if is_post {
            std::thread::sleep(Duration::from_millis(manners.pause.load(Relaxed)));
        }
        let length = answer.len();
        let head = format!(
            "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n"
        );
        if stream.write_all(format!("{head}{answer}").as_bytes()).is_err() {
            return;
        }
        let _ = stream.flush();
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
