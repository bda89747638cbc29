//! The load: a few clients, each with one connection and one request after the other.

use anyhow::ensure;
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tokio::net::TcpStream;

const CLIENTS: usize = 8;
/// The number of the next prompt. The end of each is new: a prompt that repeats would be found in
/// caches, also in those of the tokenizer.
static NEXT: AtomicUsize = AtomicUsize::new(0);

/// The size of the requests of a load.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Prompts {
    /// Of the body, about.
    pub(crate) bytes: usize,
    /// At the end of each prompt, those that no other prompt has; what is before is common to all.
    pub(crate) new: usize,
}

/// What a load has shown.
pub(crate) struct Load {
    pub(crate) requests: usize,
    /// In microseconds.
    pub(crate) p50: f64,
    pub(crate) seconds: f64,
}

fn next_body(Prompts { bytes, new }: Prompts) -> Bytes {
    let number = NEXT.fetch_add(1, Relaxed);
    let mut prompt = String::new();
    let mut line = 0;
    while prompt.len() < bytes - new {
        line += 1;
        prompt += &format!("Rule {line}: the town has {line} bridges, and a river below them. ");
    }
    prompt.truncate(bytes - new);
    let mut line = 0;
    while prompt.len() < bytes {
        line += 1;
        prompt += &format!("Question {number}, part {line}: how does {number} cross the river? ");
    }
    prompt.truncate(bytes.saturating_sub(60));
    let body = serde_json::json!({"model": "bench-model", "max_tokens": 16, "prompt": prompt});
    body.to_string().into()
}

async fn connect(address: SocketAddr) -> anyhow::Result<SendRequest<Full<Bytes>>> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let (sender, connection) = handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    Ok(sender)
}

async fn ask(sender: &mut SendRequest<Full<Bytes>>, body: Bytes) -> anyhow::Result<u16> {
    let request = Request::post("/v1/completions")
        .header("host", "bench")
        .header("content-type", "application/json")
        .body(Full::new(body))?;
    sender.ready().await?;
    let response = sender.send_request(request).await?;
    let status = response.status().as_u16();
    response.into_body().collect().await?;
    Ok(status)
}

/// Waits until a request is answered.
pub(crate) async fn until_served(address: SocketAddr, prompts: Prompts) -> anyhow::Result<()> {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        if let Ok(mut sender) = connect(address).await
            && ask(&mut sender, next_body(prompts)).await.is_ok_and(|status| status == 200)
        {
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "no answer at {address}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Runs the load for a time. Every answer must be good.
pub(crate) async fn run(
    address: SocketAddr,
    prompts: Prompts,
    time: Duration,
) -> anyhow::Result<Load> {
    let started = Instant::now();
    let clients = (0..CLIENTS).map(|_| {
        tokio::spawn(async move {
            let mut sender = connect(address).await?;
            let mut took = Vec::new();
            while started.elapsed() < time {
                let body = next_body(prompts);
                let sent = Instant::now();
                let status = ask(&mut sender, body).await?;
                ensure!(status == 200, "status {status}");
                took.push(sent.elapsed().as_secs_f64() * 1e6);
            }
            Ok(took)
        })
    });
    let clients: Vec<_> = clients.collect();
    let mut took = Vec::new();
    for client in clients {
        took.extend(client.await??);
    }
    let seconds = started.elapsed().as_secs_f64();
    took.sort_by(f64::total_cmp);
    let p50 = took.get(took.len() / 2).copied().unwrap_or(f64::NAN);
    Ok(Load { requests: took.len(), p50, seconds })
}
