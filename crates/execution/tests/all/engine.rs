//! A mock engine whose reaction a test scripts, request by request.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// The reaction to one request.
#[derive(Clone, Debug)]
pub(crate) enum Act {
    /// Responds with a status, headers and a body, and keeps the connection open.
    Says(u16, &'static str, &'static str),
    /// Responds with a body after a delay.
    SaysAfter(Duration, &'static str),
    /// Closes the connection after a delay, without a response.
    Closes(Duration),
    /// Sends a head and one byte, and stalls.
    Begins,
    /// Sends headers and a part of a chunked body, and closes the connection.
    Cuts(&'static str, &'static str),
    /// Sends a head, and then one byte per interval.
    Streams(Duration),
    /// Responds well, or as the other act says if the request loads the KV cache of a pod that is
    /// gone.
    Loads(&'static Act),
    /// Never responds.
    Hangs,
}

/// A successful response.
pub(crate) const ANSWERS: Act = Act::Says(200, "", "{}");

/// Computes a prompt for another pod, and crashes before that one has loaded it.
pub(crate) const PREFILLS_AND_DIES: Act =
    Act::Says(200, "", r#"{"kv_transfer_params": {"remote_host": "gone"}}"#);

/// Computes a prompt for another pod.
pub(crate) const PREFILLS: Act =
    Act::Says(200, "", r#"{"kv_transfer_params": {"remote_host": "here"}}"#);

/// A mock engine on its own port.
#[derive(Clone)]
pub(crate) struct Engine {
    pub(crate) port: u16,
    acts: Arc<Vec<Act>>,
    bodies: Arc<Mutex<Vec<String>>>,
    /// Requests whose connection was closed before their response.
    cancelled: Arc<AtomicUsize>,
}

impl Engine {
    /// Handles the nth request by the nth act, and all further ones by the last act.
    pub(crate) async fn new(acts: &[Act]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let acts = Arc::new(acts.to_vec());
        let engine = Self { port, acts, bodies: Arc::default(), cancelled: Arc::default() };
        let serving = engine.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serving.clone().serve(stream));
            }
        });
        engine
    }

    /// The number of requests.
    pub(crate) fn requests(&self) -> usize {
        self.bodies.lock().unwrap().len()
    }

    /// The bodies of all requests.
    pub(crate) fn bodies(&self) -> Vec<String> {
        self.bodies.lock().unwrap().clone()
    }

    /// The number of requests that named a pod to load KV cache from.
    pub(crate) fn load_requests(&self) -> usize {
        let bodies = self.bodies.lock().unwrap();
        bodies.iter().filter(|body| body.contains("kv_transfer_params")).count()
    }

    /// The number of requests that their sender cancelled.
    pub(crate) fn cancelled(&self) -> usize {
        self.cancelled.load(SeqCst)
    }

    async fn serve(self, mut stream: TcpStream) -> Option<()> {
        loop {
            let body = read(&mut stream).await?;
            let is_gone = body.contains(r#""gone""#);
            let number = {
                let mut bodies = self.bodies.lock().unwrap();
                bodies.push(body);
                bodies.len()
            };
            let act = match self.acts[number.min(self.acts.len()) - 1].clone() {
                Act::Loads(fails) if is_gone => fails.clone(),
                Act::Loads(_) => ANSWERS,
                act => act,
            };
            match act {
                Act::Says(status, headers, body) => say(&mut stream, status, headers, body).await,
                Act::SaysAfter(time, body) => {
                    tokio::select! {
                        () = tokio::time::sleep(time) => say(&mut stream, 200, "", body).await,
                        () = closed(&mut stream) => {
                            self.cancelled.fetch_add(1, SeqCst);
                            return None;
                        }
                    }
                }
                Act::Closes(time) => {
                    tokio::time::sleep(time).await;
                    return None;
                }
                Act::Begins => {
                    let head = b"HTTP/1.1 200 so\r\ncontent-length: 9\r\n\r\n{";
                    stream.write_all(head).await.ok()?;
                    closed(&mut stream).await;
                    self.cancelled.fetch_add(1, SeqCst);
                    return None;
                }
                Act::Cuts(headers, body) => {
                    let head = "HTTP/1.1 200 so\r\ntransfer-encoding: chunked\r\n";
                    let chunk = format!("{head}{headers}\r\n{:x}\r\n{body}\r\n", body.len());
                    stream.write_all(chunk.as_bytes()).await.ok()?;
                    return None;
                }
                Act::Streams(pause) => {
                    let head = b"HTTP/1.1 200 so\r\ncontent-length: 9999\r\n\r\n";
                    stream.write_all(head).await.ok()?;
                    loop {
                        stream.write_all(b".").await.ok()?;
                        tokio::time::sleep(pause).await;
                    }
                }
                Act::Loads(_) | Act::Hangs => {
                    closed(&mut stream).await;
                    self.cancelled.fetch_add(1, SeqCst);
                    return None;
                }
            }
        }
    }
}

async fn say(stream: &mut TcpStream, status: u16, headers: &str, body: &str) {
    let length = body.len();
    let head = format!("HTTP/1.1 {status} so\r\n{headers}content-length: {length}\r\n\r\n");
    let _gone = stream.write_all(format!("{head}{body}").as_bytes()).await;
}

/// Waits until the client has closed the connection.
async fn closed(stream: &mut TcpStream) {
    while stream.read(&mut [0; 64]).await.is_ok_and(|read| read > 0) {}
}

/// The body of the next request; none at the end of the connection.
async fn read(stream: &mut TcpStream) -> Option<String> {
    let mut seen = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&seen).to_lowercase();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head.split("content-length: ").nth(1).map_or(0, |rest| {
                rest.lines().next().and_then(|length| length.trim().parse().ok()).unwrap_or(0)
            });
            if body.len() >= length {
                return Some(body.to_owned());
            }
        }
        if stream.read_buf(&mut seen).await.ok()? == 0 {
            return None;
        }
    }
}
