//! An engine that does what a test wants, request by request.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// What an engine does with a request.
#[derive(Clone, Debug)]
pub(crate) enum Act {
    /// Answers with a status, more headers and a body, and keeps the connection.
    Says(u16, &'static str, &'static str),
    /// The same, after a while.
    SaysAfter(Duration, &'static str),
    /// Closes the connection after a while, without a word.
    Closes(Duration),
    /// Sends a head and a byte, and nothing more.
    Begins,
    /// Sends headers and the beginning of a chunked body, and closes the connection.
    Cuts(&'static str, &'static str),
    /// Sends a head, and a byte every so often.
    Streams(Duration),
    /// Answers well, or as the other act says if the request is to load what a pod that is gone computed.
    Loads(&'static Act),
    /// Sends nothing.
    Hangs,
}

/// A good answer.
pub(crate) const ANSWERS: Act = Act::Says(200, "", "{}");

/// Computes a prompt for another pod, and is gone before that one has loaded it.
pub(crate) const PREFILLS_AND_DIES: Act =
    Act::Says(200, "", r#"{"kv_transfer_params": {"remote_host": "gone"}}"#);

/// Computes a prompt for another pod.
pub(crate) const PREFILLS: Act =
    Act::Says(200, "", r#"{"kv_transfer_params": {"remote_host": "here"}}"#);

/// An engine on a port of its own.
#[derive(Clone)]
pub(crate) struct Engine {
    pub(crate) port: u16,
    acts: Arc<Vec<Act>>,
    bodies: Arc<Mutex<Vec<String>>>,
    /// Requests whose connection was closed before their answer.
    left: Arc<AtomicUsize>,
}

impl Engine {
    /// Does with each request what stands in its place, and with the rest what stands last.
    pub(crate) async fn new(acts: &[Act]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let acts = Arc::new(acts.to_vec());
        let engine = Self { port, acts, bodies: Arc::default(), left: Arc::default() };
        let serving = engine.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serving.clone().serve(stream));
            }
        });
        engine
    }

    /// How many requests came.
    pub(crate) fn asked(&self) -> usize {
        self.bodies.lock().unwrap().len()
    }

    /// How many requests named another pod to load the prompt from.
    pub(crate) fn told_to_load(&self) -> usize {
        let bodies = self.bodies.lock().unwrap();
        bodies.iter().filter(|body| body.contains("kv_transfer_params")).count()
    }

    /// How many requests were given up by their sender.
    pub(crate) fn left(&self) -> usize {
        self.left.load(SeqCst)
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
                Act::Says(status, headers, body) => say(&mut stream, (status, headers), body).await,
                Act::SaysAfter(time, body) => {
                    tokio::select! {
                        () = tokio::time::sleep(time) => say(&mut stream, (200, ""), body).await,
                        () = closed(&mut stream) => {
                            self.left.fetch_add(1, SeqCst);
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
                    self.left.fetch_add(1, SeqCst);
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
                    self.left.fetch_add(1, SeqCst);
                    return None;
                }
            }
        }
    }
}

async fn say(stream: &mut TcpStream, (status, headers): (u16, &str), body: &str) {
    let length = body.len();
    let head = format!("HTTP/1.1 {status} so\r\n{headers}content-length: {length}\r\n\r\n");
    let _gone = stream.write_all(format!("{head}{body}").as_bytes()).await;
}

/// Until whoever asked has gone.
async fn closed(stream: &mut TcpStream) {
    while stream.read(&mut [0; 64]).await.is_ok_and(|read| read > 0) {}
}

/// The body of the next request; none if there is no more.
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
