//! A small Kubernetes API server: list with pages, watch with bookmarks, and the ways in which a
//! real one fails.
//!
//! Objects are JSON, as a client would send them; the server adds `uid` and `resourceVersion`. A
//! watch begins after the version that the client names, and ends with an error event if that
//! version was compacted. Deletion and leaving a selector are the same event, `DELETED`.

use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// The bearer token that callers must send.
pub(crate) const TOKEN: &str = "token-of-the-router";

/// How often a watch without changes gets a bookmark. A real server sends one a minute.
const BOOKMARK_INTERVAL: Duration = Duration::from_millis(200);

/// An API server, stopped when dropped.
pub(crate) struct KubeApi {
    address: SocketAddr,
    shared: Arc<Shared>,
    /// Set for the listener that runs now.
    running: Mutex<Option<Arc<AtomicBool>>>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    version: u64,
    /// By resource and name.
    objects: BTreeMap<(String, String), Value>,
    history: Vec<Change>,
    /// Versions before this one are compacted.
    compacted: u64,
    /// How often that happened.
    compactions: u64,
    /// How many requests are still refused, and how.
    refused: (usize, Refusal),
    /// Whether a watch of a compacted version is refused with a status instead of an event.
    refuses_watches: bool,
    /// The largest page, whatever the client asks for.
    largest_page: usize,
    /// Verbs and resources that the caller may not use, such as `watch pods`.
    forbidden: Vec<String>,
    /// Request lines.
    requests: Vec<String>,
    /// The version of the last bookmark.
    bookmarked: u64,
}

/// How every request is refused for a while.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Refusal {
    /// There are too many.
    #[default]
    Throttled,
    /// The rights of the caller are not known yet, as right after a start.
    Forbidden,
}

impl Refusal {
    fn answer(self) -> (&'static str, Value) {
        match self {
            Self::Throttled => {
                let text = "too many requests, please try again later";
                let head = "429 Too Many Requests\r\nretry-after: 1";
                (head, failure(429, "TooManyRequests", text))
            }
            Self::Forbidden => {
                let text = "pods is forbidden: User \"router\" cannot list resource \"pods\"";
                ("403 Forbidden", failure(403, "Forbidden", text))
            }
        }
    }
}

struct Change {
    version: u64,
    resource: String,
    before: Option<Value>,
    after: Option<Value>,
}

impl KubeApi {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::<Shared>::default();
        shared.state().largest_page = 500;
        let api = Self { address, shared, running: Mutex::new(None) };
        api.listen(listener);
        api
    }

    fn listen(&self, listener: TcpListener) {
        let running = Arc::new(AtomicBool::new(true));
        *self.running.lock().unwrap() = Some(Arc::clone(&running));
        let shared = Arc::clone(&self.shared);
        let accept = move || {
            for stream in listener.incoming() {
                if !running.load(SeqCst) {
                    return;
                }
                let shared = Arc::clone(&shared);
                let running = Arc::clone(&running);
                let answer = move || {
                    // A client may disconnect at any time.
                    let _ = Connection { shared, running }.answer(stream.unwrap());
                };
                let _answering = std::thread::Builder::new().spawn(answer).unwrap();
            }
        };
        let _accepting = std::thread::Builder::new().spawn(accept).unwrap();
    }

    /// Stops: breaks all connections and refuses new ones.
    pub(crate) fn stop(&self) {
        let Some(running) = self.running.lock().unwrap().take() else { return };
        running.store(false, SeqCst);
        self.shared.changed.notify_all();
        // Wakes the accepting thread, which drops its listener.
        let _ = TcpStream::connect(self.address);
        while TcpStream::connect(self.address).is_ok() {}
    }

    /// Starts again at the same address, with the same objects.
    pub(crate) fn restart(&self) {
        self.stop();
        self.listen(TcpListener::bind(self.address).unwrap());
    }

    /// A kubeconfig whose context has this namespace.
    pub(crate) fn kubeconfig(&self, namespace: &str) -> String {
        format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: test\n\
             clusters: [{{name: test, cluster: {{server: 'http://{}'}}}}]\n\
             users: [{{name: test, user: {{token: {TOKEN}}}}}]\n\
             contexts: [{{name: test, context: {{cluster: test, user: test, namespace: {namespace}}}}}]\n",
            self.address
        )
    }

    /// Creates or replaces an object.
    pub(crate) fn apply(&self, resource: &str, mut object: Value) {
        let mut state = self.shared.state();
        let name = object["metadata"]["name"].as_str().unwrap().to_owned();
        let key = (resource.to_owned(), name);
        let before = state.objects.get(&key).cloned();
        state.version += 1;
        let version = state.version;
        object["metadata"]["resourceVersion"] = json!(version.to_string());
        let uid = before.as_ref().map(|before| before["metadata"]["uid"].clone());
        object["metadata"]["uid"] = uid.unwrap_or_else(|| json!(format!("uid-{version}")));
        state.objects.insert(key, object.clone());
        let resource = resource.to_owned();
        state.history.push(Change { version, resource, before, after: Some(object) });
        drop(state);
        self.shared.changed.notify_all();
    }

    /// Changes an object.
    pub(crate) fn edit(&self, resource: &str, name: &str, edit: impl FnOnce(&mut Value)) {
        let key = (resource.to_owned(), name.to_owned());
        let mut object = self.shared.state().objects[&key].clone();
        edit(&mut object);
        self.apply(resource, object);
    }

    /// Removes an object.
    pub(crate) fn delete(&self, resource: &str, name: &str) {
        let mut state = self.shared.state();
        let before = state.objects.remove(&(resource.to_owned(), name.to_owned()));
        state.version += 1;
        let version = state.version;
        let resource = resource.to_owned();
        state.history.push(Change { version, resource, before, after: None });
        drop(state);
        self.shared.changed.notify_all();
    }

    /// Forgets the history before now, and ends all watches.
    pub(crate) fn compact(&self) {
        self.shared.state().compact();
        self.shared.changed.notify_all();
    }

    /// Removes an object and forgets that before any watch is told.
    pub(crate) fn delete_and_compact(&self, resource: &str, name: &str) {
        let mut state = self.shared.state();
        state.objects.remove(&(resource.to_owned(), name.to_owned()));
        state.version += 1;
        state.compact();
        drop(state);
        self.shared.changed.notify_all();
    }

    pub(crate) fn refuse(&self, requests: usize, refusal: Refusal) {
        self.shared.state().refused = (requests, refusal);
    }

    pub(crate) fn set_refuses_watches(&self, refuses: bool) {
        self.shared.state().refuses_watches = refuses;
    }

    pub(crate) fn set_largest_page(&self, objects: usize) {
        self.shared.state().largest_page = objects;
    }

    pub(crate) fn forbid(&self, what: &[&str]) {
        self.shared.state().forbidden = what.iter().map(|&what| what.to_owned()).collect();
    }

    /// How many requests had this text in their first line.
    pub(crate) fn requests(&self, text: &str) -> usize {
        self.shared.state().requests.iter().filter(|line| line.contains(text)).count()
    }

    /// The version of the last change.
    pub(crate) fn version(&self) -> u64 {
        self.shared.state().version
    }

    /// The version of the last bookmark.
    pub(crate) fn bookmarked(&self) -> u64 {
        self.shared.state().bookmarked
    }

    /// How many requests will still be refused.
    pub(crate) fn refused(&self) -> usize {
        self.shared.state().refused.0
    }
}

impl Drop for KubeApi {
    fn drop(&mut self) {
        self.stop();
    }
}

impl State {
    fn compact(&mut self) {
        self.compacted = self.version;
        self.compactions += 1;
        self.history.clear();
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }
}

struct Connection {
    shared: Arc<Shared>,
    running: Arc<AtomicBool>,
}

/// A request for objects.
struct Query {
    resource: String,
    parameters: BTreeMap<String, String>,
}

impl Connection {
    fn answer(&self, stream: TcpStream) -> std::io::Result<()> {
        let mut reader = BufReader::new(stream.try_clone()?);
        let mut writer = stream;
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line)? == 0 || !self.running.load(SeqCst) {
                return Ok(());
            }
            let mut length = 0;
            let mut token = String::new();
            loop {
                let mut header = String::new();
                reader.read_line(&mut header)?;
                let Some((name, value)) = header.trim_end().split_once(": ") else { break };
                match name.to_ascii_lowercase().as_str() {
                    "content-length" => length = value.parse().unwrap(),
                    "authorization" => token = value.to_owned(),
                    _ => {}
                }
            }
            let mut body = vec![0; length];
            reader.read_exact(&mut body)?;
            let line = line.trim_end().to_owned();
            let refusal = {
                let mut state = self.shared.state();
                state.requests.push(line.clone());
                let (left, refusal) = &mut state.refused;
                let is_refused = *left > 0;
                *left = left.saturating_sub(1);
                is_refused.then_some(*refusal)
            };
            if let Some(refusal) = refusal {
                let (head, failure) = refusal.answer();
                send(&mut writer, head, &failure)?;
            } else if token != format!("Bearer {TOKEN}") {
                send(
                    &mut writer,
                    "401 Unauthorized",
                    &failure(401, "Unauthorized", "Unauthorized"),
                )?;
            } else if line.starts_with("POST") {
                send(&mut writer, "201 Created", &self.review(&serde_json::from_slice(&body)?))?;
            } else {
                self.read(&line, &mut writer)?;
            }
        }
    }

    /// Whether the caller may do what a `SelfSubjectAccessReview` asks.
    fn review(&self, review: &Value) -> Value {
        let asked = &review["spec"]["resourceAttributes"];
        let text = |key: &str| asked[key].as_str().unwrap_or_default();
        let what = format!("{} {}", text("verb"), text("resource"));
        let allowed = !self.shared.state().forbidden.contains(&what);
        let mut answer = review.clone();
        answer["status"] = json!({"allowed": allowed});
        answer
    }

    fn read(&self, line: &str, writer: &mut TcpStream) -> std::io::Result<()> {
        let target = line.split(' ').nth(1).unwrap();
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let resource = path.rsplit('/').next().unwrap().to_owned();
        let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
        let parameters: BTreeMap<_, _> =
            pairs.map(|(key, value)| (key.to_owned(), decoded(value))).collect();
        let query = Query { resource, parameters };
        let is_watch = query.get("watch").is_some_and(|watch| watch != "false");
        let what = format!("{} {}", if is_watch { "watch" } else { "list" }, query.resource);
        if self.shared.state().forbidden.contains(&what) {
            let text = format!("User \"router\" cannot {what}");
            return send(writer, "403 Forbidden", &failure(403, "Forbidden", &text));
        }
        if is_watch { self.watch(&query, writer) } else { self.list(&query, writer) }
    }

    fn list(&self, query: &Query, writer: &mut TcpStream) -> std::io::Result<()> {
        let state = self.shared.state();
        // A token is the version of the first page, and the last name of the page before.
        let (version, after) = match query.get("continue") {
            Some(token) => {
                let (version, after) = token.split_once('|').unwrap();
                (version.parse().unwrap(), Some(after.to_owned()))
            }
            None => (state.version, None),
        };
        if after.is_some() && version < state.compacted {
            let text = "The provided continue parameter is too old";
            return send(writer, "410 Gone", &failure(410, "Expired", text));
        }
        let all = state
            .objects
            .iter()
            .filter(|((resource, _), object)| *resource == query.resource && query.selects(object));
        let rest: Vec<_> = all
            .map(|((_, name), object)| (name, object))
            .filter(|(name, _)| after.as_ref().is_none_or(|after| *name > after))
            .collect();
        let limit = query.get("limit").map_or(usize::MAX, |limit| limit.parse().unwrap());
        let page = &rest[..rest.len().min(limit).min(state.largest_page)];
        let items: Vec<_> = page.iter().map(|(_, object)| (*object).clone()).collect();
        let mut metadata = json!({"resourceVersion": version.to_string()});
        if let (true, Some((last, _))) = (page.len() < rest.len(), page.last()) {
            metadata["continue"] = json!(format!("{version}|{last}"));
        }
        let kind = if query.resource == "pods" { "PodList" } else { "InferencePoolList" };
        let list = json!({"kind": kind, "apiVersion": "v1", "metadata": metadata, "items": items});
        drop(state);
        send(writer, "200 OK", &list)
    }

    fn watch(&self, query: &Query, writer: &mut TcpStream) -> std::io::Result<()> {
        let mut version: u64 = query.get("resourceVersion").unwrap_or("0").parse().unwrap();
        let mut state = self.shared.state();
        let gone = failure(410, "Expired", &format!("too old resource version: {version}"));
        let is_gone = version < state.compacted;
        let compactions = state.compactions;
        if is_gone && state.refuses_watches {
            drop(state);
            return send(writer, "410 Gone", &gone);
        }
        writer.write_all(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n")?;
        if is_gone {
            drop(state);
            chunk(writer, &json!({"type": "ERROR", "object": gone}))?;
            return writer.write_all(b"0\r\n\r\n");
        }
        let seconds = query.get("timeoutSeconds").map_or(300, |text| text.parse().unwrap());
        let deadline = Instant::now() + Duration::from_secs(seconds);
        while Instant::now() < deadline {
            if !self.running.load(SeqCst) {
                // As a killed server: without an end.
                return writer.shutdown(std::net::Shutdown::Both);
            }
            if state.compactions > compactions {
                break;
            }
            let news = state.history.iter().filter(|change| change.version > version);
            let events: Vec<_> = news.filter_map(|change| query.event(change)).collect();
            version = state.version;
            drop(state);
            for event in events {
                chunk(writer, &event)?;
            }
            state = self.shared.state();
            if state.version > version {
                continue;
            }
            let waited = self.shared.changed.wait_timeout(state, BOOKMARK_INTERVAL).unwrap();
            state = waited.0;
            if waited.1.timed_out() && query.get("allowWatchBookmarks") == Some("true") {
                drop(state);
                let kind = if query.resource == "pods" { "Pod" } else { "InferencePool" };
                let metadata = json!({"resourceVersion": version.to_string()});
                let object =
                    json!({"kind": kind, "apiVersion": "v1", "metadata": metadata, "spec": {}});
                chunk(writer, &json!({"type": "BOOKMARK", "object": object}))?;
                state = self.shared.state();
                state.bookmarked = state.bookmarked.max(version);
            }
        }
        drop(state);
        writer.write_all(b"0\r\n\r\n")
    }
}

impl Query {
    fn get(&self, key: &str) -> Option<&str> {
        self.parameters.get(key).map(String::as_str)
    }

    fn selects(&self, object: &Value) -> bool {
        let name = object["metadata"]["name"].as_str().unwrap();
        let by_name =
            self.get("fieldSelector").and_then(|text| text.strip_prefix("metadata.name="));
        by_name.is_none_or(|wanted| wanted == name)
            && self.get("labelSelector").unwrap_or_default().split(',').all(|term| {
                let label = |key: &str| object["metadata"]["labels"][key].as_str();
                match (term.split_once("!="), term.split_once('=')) {
                    (Some((key, value)), _) => label(key) != Some(value),
                    (None, Some((key, value))) => label(key) == Some(value.trim_start_matches('=')),
                    (None, None) => term.is_empty() || label(term).is_some(),
                }
            })
    }

    /// The event of a change as this watch sees it.
    fn event(&self, change: &Change) -> Option<Value> {
        if change.resource != self.resource {
            return None;
        }
        let was = change.before.as_ref().filter(|object| self.selects(object));
        let is = change.after.as_ref().filter(|object| self.selects(object));
        let (kind, mut object) = match (was, is) {
            (None, None) => return None,
            (None, Some(is)) => ("ADDED", is.clone()),
            (Some(_), Some(is)) => ("MODIFIED", is.clone()),
            (Some(was), None) => ("DELETED", was.clone()),
        };
        object["metadata"]["resourceVersion"] = json!(change.version.to_string());
        Some(json!({"type": kind, "object": object}))
    }
}

fn failure(code: u16, reason: &str, message: &str) -> Value {
    json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": message, "reason": reason, "code": code,
    })
}

fn send(writer: &mut TcpStream, status: &str, body: &Value) -> std::io::Result<()> {
    let body = body.to_string();
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n"
    );
    writer.write_all(format!("{head}{body}").as_bytes())
}

fn chunk(writer: &mut TcpStream, event: &Value) -> std::io::Result<()> {
    let line = format!("{event}\n");
    writer.write_all(format!("{:x}\r\n{line}\r\n", line.len()).as_bytes())
}

fn decoded(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let digits: Vec<u8> = rest.by_ref().take(2).collect();
                u8::from_str_radix(std::str::from_utf8(&digits).unwrap(), 16).unwrap()
            }
            b'+' => b' ',
            byte => byte,
        });
    }
    String::from_utf8(bytes).unwrap()
}
