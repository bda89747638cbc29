//! A Hugging Face hub of our own: one repository at one commit, whose large file is on another host.

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex};

pub(crate) const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// A listening hub, ended when dropped.
pub(crate) struct Hub {
    pub(crate) address: SocketAddr,
    content: SocketAddr,
    state: Arc<HubState>,
}

#[derive(Default)]
struct HubState {
    /// `tokenizer.json`.
    vocabulary: Vec<u8>,
    /// `tokenizer_config.json`.
    config: Vec<u8>,
    /// The checksum that it says `tokenizer_config.json` has.
    config_blob: String,
    repository: String,
    /// The bearer token that it requires.
    token: Option<&'static str>,
    is_damaged: AtomicBool,
    /// Whether answers are held back.
    is_held: Mutex<bool>,
    released: Condvar,
    /// The heads of all requests, of the hub and of the other host.
    heads: Mutex<Vec<String>>,
    is_over: AtomicBool,
}

impl Hub {
    /// A hub with the files of a folder; it answers only requests with the token, if there is one.
    pub(crate) fn start(repository: &str, folder: &Path, token: Option<&'static str>) -> Self {
        let read = |name: &str| std::fs::read(folder.join(name)).unwrap();
        let blob = std::process::Command::new("git")
            .args(["hash-object", "--no-filters"])
            .arg(folder.join("tokenizer_config.json"))
            .output()
            .unwrap();
        let state = Arc::new(HubState {
            vocabulary: read("tokenizer.json"),
            config: read("tokenizer_config.json"),
            config_blob: String::from_utf8(blob.stdout).unwrap().trim().to_owned(),
            repository: repository.to_owned(),
            token,
            ..HubState::default()
        });
        let hub = TcpListener::bind("127.0.0.1:0").unwrap();
        let content = TcpListener::bind("127.0.0.1:0").unwrap();
        let [address, other] = [&hub, &content].map(|listener| listener.local_addr().unwrap());
        for listener in [hub, content] {
            let state = Arc::clone(&state);
            let _detached = std::thread::Builder::new().spawn(move || {
                for stream in listener.incoming().map_while(Result::ok) {
                    if state.is_over.load(Relaxed) {
                        return;
                    }
                    state.answer(stream, other);
                }
            });
        }
        Self { address, content: other, state }
    }

    /// Says that the small file has another checksum than it has, from now on.
    pub(crate) fn damage(&self) {
        self.state.is_damaged.store(true, Relaxed);
    }

    /// Holds answers back until [`Self::release`].
    pub(crate) fn hold(&self) {
        *self.state.is_held.lock().unwrap() = true;
    }

    pub(crate) fn release(&self) {
        *self.state.is_held.lock().unwrap() = false;
        self.state.released.notify_all();
    }

    /// The paths that were asked for.
    pub(crate) fn paths(&self) -> Vec<String> {
        let heads = self.state.heads.lock().unwrap();
        heads.iter().map(|head| head.split(' ').nth(1).unwrap().to_owned()).collect()
    }

    /// The heads of requests for a path.
    pub(crate) fn heads(&self, path: &str) -> Vec<String> {
        let heads = self.state.heads.lock().unwrap();
        heads.iter().filter(|head| head.split(' ').nth(1) == Some(path)).cloned().collect()
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        self.state.is_over.store(true, Relaxed);
        self.release();
        for address in [self.address, self.content] {
            let _ = TcpStream::connect(address);
        }
    }
}

impl HubState {
    fn answer(&self, mut stream: TcpStream, content: SocketAddr) {
        let mut head = String::new();
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        while !head.ends_with("\r\n\r\n") {
            if !reader.read_line(&mut head).is_ok_and(|bytes| bytes > 0) {
                return;
            }
        }
        let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
        self.heads.lock().unwrap().push(head.clone());
        let held = self.is_held.lock().unwrap();
        drop(self.released.wait_while(held, |is_held| *is_held).unwrap());
        let file = |name: &str| format!("/{}/resolve/{COMMIT}/{name}", self.repository);
        let (status, body) = match &*path {
            "/blob" => ("200 OK".to_owned(), self.vocabulary.clone()),
            _ if !self.admits(&head) => ("401 Unauthorized".to_owned(), Vec::new()),
            path if *path
                == format!("/api/models/{}/revision/main?blobs=true", self.repository) =>
            {
                ("200 OK".to_owned(), self.list().to_string().into())
            }
            path if path == file("tokenizer.json") => {
                (format!("302 Found\r\nlocation: http://{content}/blob"), Vec::new())
            }
            path if path == file("tokenizer_config.json") => {
                ("200 OK".to_owned(), self.config.clone())
            }
            _ => ("404 Not Found".to_owned(), Vec::new()),
        };
        let length = body.len();
        let head =
            format!("HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n");
        let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&body));
    }

    fn admits(&self, head: &str) -> bool {
        let Some(token) = self.token else { return true };
        head.lines().any(|line| line == format!("authorization: Bearer {token}"))
    }

    fn list(&self) -> Value {
        let digits =
            |bytes: &[u8]| -> String { bytes.iter().map(|byte| format!("{byte:02x}")).collect() };
        let sha256 = digits(&Sha256::digest(&self.vocabulary));
        let damaged = self.is_damaged.load(Relaxed);
        let blob = if damaged { "0".repeat(40) } else { self.config_blob.clone() };
        json!({"sha": COMMIT, "siblings": [
            {"rfilename": "model.safetensors", "size": 9_000_000_000_u64, "blobId": "00"},
            {"rfilename": "tokenizer.json", "size": 130, "blobId": "00",
                "lfs": {"sha256": sha256, "size": self.vocabulary.len()}},
            {"rfilename": "tokenizer_config.json", "size": self.config.len(), "blobId": blob},
        ]})
    }
}
