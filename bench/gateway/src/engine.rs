//! Mock engines that cost as little as possible: many listeners in one process with one thread,
//! which parse nothing but lengths.
//!
//! A line on standard input sets the pace: milliseconds to the first token, milliseconds between
//! tokens and the number of tokens. The process exits at the end of standard input.

use anyhow::Context;
use std::cell::Cell;
use std::io::{BufRead, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::LocalSet;

use crate::clock::nanos;

/// The pace of answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Pace {
    pub(crate) first: Duration,
    pub(crate) between: Duration,
    pub(crate) tokens: usize,
}

impl Pace {
    /// As fast as possible.
    pub(crate) const NONE: Self =
        Self { first: Duration::ZERO, between: Duration::ZERO, tokens: 16 };
    /// Like an engine: a token every 5 ms, the first after 20.
    pub(crate) const ENGINE: Self =
        Self { first: Duration::from_millis(20), between: Duration::from_millis(5), tokens: 32 };

    /// The line that sets this pace.
    pub(crate) fn line(self) -> String {
        format!("{} {} {}\n", self.first.as_millis(), self.between.as_millis(), self.tokens)
    }

    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split_ascii_whitespace().map(str::parse::<u64>);
        let mut next = || words.next()?.ok();
        let first = Duration::from_millis(next()?);
        let between = Duration::from_millis(next()?);
        Some(Self { first, between, tokens: usize::try_from(next()?).ok()? })
    }
}

const WHOLE: &str = r#"{"id":"chatcmpl-1","object":"chat.completion","created":1700000000,"model":"bench-model","choices":[{"index":0,"message":{"role":"assistant","content":"This is the whole answer of an engine that computes nothing at all and is glad of it."},"logprobs":null,"finish_reason":"stop"}],"usage":{"prompt_tokens":200,"completion_tokens":16,"total_tokens":216,"prompt_tokens_details":null}}"#;
const MODELS: &str = r#"{"object":"list","data":[{"id":"bench-model","object":"model","created":1700000000,"owned_by":"bench","root":"bench-model","parent":null,"max_model_len":1000000}]}"#;
const METRICS: &str = "vllm:num_requests_running{model_name=\"bench-model\"} 0\nvllm:num_requests_waiting{model_name=\"bench-model\"} 0\nvllm:kv_cache_usage_perc{model_name=\"bench-model\"} 0.1\n";
const STREAM_HEAD: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n";

/// Listens at `pods` ports, prints them, and answers.
pub(crate) fn run(pods: usize) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (paces, pace_lines) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            if let Some(pace) = Pace::parse(&line) {
                let _ = paces.send(pace);
            }
        }
        std::process::exit(0);
    });
    LocalSet::new().block_on(&runtime, async move {
        let pace = Rc::new(Cell::new(Pace::NONE));
        let mut ports = Vec::new();
        for _ in 0..pods {
            let listener = TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).await?;
            ports.push(listener.local_addr()?.port().to_string());
            tokio::task::spawn_local(accept(listener, Rc::clone(&pace)));
        }
        println!("{}", ports.join(" "));
        std::io::stdout().flush()?;
        loop {
            tokio::time::sleep(Duration::from_millis(5)).await;
            while let Ok(new) = pace_lines.try_recv() {
                pace.set(new);
            }
        }
    })
}

async fn accept(listener: TcpListener, pace: Rc<Cell<Pace>>) {
    while let Ok((stream, _)) = listener.accept().await {
        if stream.set_nodelay(true).is_ok() {
            let pace = Rc::clone(&pace);
            tokio::task::spawn_local(async move {
                // Clients disconnect at the end of a run.
                let _ = answer(stream, &pace).await;
            });
        }
    }
}

async fn answer(mut stream: TcpStream, pace: &Cell<Pace>) -> anyhow::Result<()> {
    let mut buffer = Vec::with_capacity(64 << 10);
    let mut chunk = Vec::with_capacity(512);
    loop {
        let end = match head_end(&buffer) {
            Some(end) => end,
            None => {
                if stream.read_buf(&mut buffer).await? == 0 {
                    return Ok(());
                }
                continue;
            }
        };
        let length = content_length(&buffer[..end])?;
        while buffer.len() < end + length {
            if stream.read_buf(&mut buffer).await? == 0 {
                return Ok(());
            }
        }
        let (head, body) = buffer[..end + length].split_at(end);
        if body.is_empty() {
            stream.write_all(control_response(head).as_bytes()).await?;
        } else if contains(&body[..body.len().min(512)], br#""stream":true"#)
            || contains(&body[body.len().saturating_sub(512)..], br#""stream":true"#)
        {
            tokens(&mut stream, pace.get(), &mut chunk).await?;
        } else {
            wait(pace.get().first).await;
            stream.write_all(whole("application/json", WHOLE).as_bytes()).await?;
        }
        buffer.drain(..end + length);
    }
}

async fn tokens(stream: &mut TcpStream, pace: Pace, chunk: &mut Vec<u8>) -> anyhow::Result<()> {
    wait(pace.first).await;
    let started = tokio::time::Instant::now();
    for token in 0..pace.tokens {
        chunk.clear();
        if token == 0 {
            chunk.extend_from_slice(STREAM_HEAD.as_bytes());
        } else if !pace.between.is_zero() {
            tokio::time::sleep_until(started + pace.between * token as u32).await;
        }
        let event = format!(
            "data: {{\"id\":\"chatcmpl-{:020}\",\"object\":\"chat.completion.chunk\",\"created\":1700000000,\"model\":\"bench-model\",\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\" token\"}},\"logprobs\":null,\"finish_reason\":null}}]}}\n\n",
            nanos()
        );
        write!(chunk, "{:x}\r\n{event}\r\n", event.len())?;
        stream.write_all(chunk).await?;
    }
    stream.write_all(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n").await?;
    Ok(())
}

async fn wait(time: Duration) {
    if !time.is_zero() {
        tokio::time::sleep(time).await;
    }
}

/// Answers the requests that routers send besides inference.
fn control_response(head: &[u8]) -> String {
    let path = head.split(|byte| *byte == b' ').nth(1).unwrap_or_default();
    match path {
        b"/v1/models" => whole("application/json", MODELS),
        b"/metrics" => whole("text/plain", METRICS),
        b"/health" => whole("text/plain", ""),
        b"/get_server_info" | b"/server_info" | b"/get_model_info" | b"/model_info" => whole(
            "application/json",
            r#"{"model_path":"bench-model","served_model_name":"bench-model","is_generation":true}"#,
        ),
        _ => "HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n".to_owned(),
    }
}

fn whole(kind: &str, body: &str) -> String {
    let length = body.len();
    format!("HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-length: {length}\r\n\r\n{body}")
}

/// The end of the head, once it is complete.
pub(crate) fn head_end(bytes: &[u8]) -> Option<usize> {
    bytes.windows(4).position(|window| window == b"\r\n\r\n").map(|at| at + 4)
}

/// The length of the body; routers send no chunked requests to these engines.
fn content_length(head: &[u8]) -> anyhow::Result<usize> {
    let head = std::str::from_utf8(head)?;
    for line in head.split("\r\n") {
        if let Some((name, value)) = line.split_once(':') {
            if name.eq_ignore_ascii_case("content-length") {
                return value.trim().parse().context("content-length");
            }
            anyhow::ensure!(!name.eq_ignore_ascii_case("transfer-encoding"), "a chunked request");
        }
    }
    Ok(0)
}

fn contains(bytes: &[u8], pattern: &[u8]) -> bool {
    bytes.windows(pattern.len()).any(|window| window == pattern)
}
