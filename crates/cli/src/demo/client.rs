//! A client of the gateway: one chat request, timed.

use anyhow::{Context, bail, ensure};
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::Instant;

const ANSWER_TOKENS: usize = 32;

/// How an answer is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum DemoDelivery {
    /// Token by token.
    Stream,
    /// In one piece: until that is there, the gateway can ask another pod.
    Whole,
}

/// A whole answer.
#[derive(Debug, Default)]
pub(super) struct DemoAnswer {
    /// What the gateway calls the request.
    pub(super) id: String,
    pub(super) text: String,
    /// From sending the request to the first token; to the whole answer if it is not streamed.
    pub(super) first_token: Duration,
    pub(super) prompt_tokens: usize,
    /// Of those, not computed again.
    pub(super) cached_tokens: usize,
    /// Who answered.
    pub(super) pod: String,
}

/// The body of a chat request.
pub(super) fn chat_body(model: &str, messages: &[Value]) -> Value {
    json!({"model": model, "messages": messages, "max_tokens": ANSWER_TOKENS})
}

/// Sends a chat to the gateway and reads its answer to the end.
pub(super) async fn chat(
    gateway: SocketAddr,
    mut body: Value,
    delivery: DemoDelivery,
) -> anyhow::Result<DemoAnswer> {
    if delivery == DemoDelivery::Stream {
        body["stream"] = json!(true);
        body["stream_options"] = json!({"include_usage": true});
    }
    let sent = Instant::now();
    // Dropped with this call, and the connection with it.
    let mut connection = JoinSet::new();
    let response = post(gateway, "/v1/chat/completions", &body, &mut connection).await?;
    let status = response.status();
    let header = |name: &str| {
        let value = response.headers().get(name).and_then(|value| value.to_str().ok());
        value.unwrap_or_default().to_owned()
    };
    let mut answer = DemoAnswer {
        id: header("x-request-id"),
        pod: header("x-wornpath-pod"),
        ..DemoAnswer::default()
    };
    if delivery == DemoDelivery::Stream && status.is_success() {
        read_stream(response.into_body(), sent, &mut answer).await?;
        return Ok(answer);
    }
    let bytes = response.into_body().collect().await.context("the answer broke off")?.to_bytes();
    ensure!(status.is_success(), "{status}: {}", String::from_utf8_lossy(&bytes));
    let value: Value = serde_json::from_slice(&bytes).context("the answer is not JSON")?;
    answer.first_token = sent.elapsed();
    value["choices"][0]["message"]["content"]
        .as_str()
        .context("the answer has no text")?
        .clone_into(&mut answer.text);
    take_usage(&value, &mut answer);
    Ok(answer)
}

/// Makes an engine forget what it has cached, and say so. Engines publish only with a step, and an idle
/// one takes none: hence a prompt that is too short to be cached.
pub(super) async fn forget(engine: SocketAddr, model: &str) -> anyhow::Result<()> {
    let prompt = json!({"model": model, "prompt": "a", "max_tokens": 1});
    for (path, body) in [("/reset_prefix_cache", Value::Null), ("/v1/completions", prompt)] {
        let mut connection = JoinSet::new();
        let response = post(engine, path, &body, &mut connection).await?;
        let status = response.status();
        ensure!(status.is_success(), "engine {engine} answers {status} to {path}");
        response.into_body().collect().await.context("the answer broke off")?;
    }
    Ok(())
}

async fn post(
    address: SocketAddr,
    path: &str,
    body: &Value,
    connection: &mut JoinSet<()>,
) -> anyhow::Result<Response<Incoming>> {
    let stream =
        TcpStream::connect(address).await.with_context(|| format!("cannot reach {address}"))?;
    stream.set_nodelay(true)?;
    let (mut sender, driver) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    connection.spawn(async move {
        // What goes wrong is told to whoever waits for the response.
        let _ = driver.await;
    });
    let request = Request::post(path)
        .header("host", address.to_string())
        .header("content-type", "application/json")
        .body(Full::new(Bytes::from(body.to_string())))?;
    Ok(sender.send_request(request).await?)
}

async fn read_stream(
    mut body: Incoming,
    sent: Instant,
    answer: &mut DemoAnswer,
) -> anyhow::Result<()> {
    let (mut unread, mut is_done) = (Vec::new(), false);
    while let Some(frame) = body.frame().await {
        let frame = frame.context("the stream broke off")?;
        let Some(bytes) = frame.data_ref() else { continue };
        unread.extend_from_slice(bytes);
        while let Some(end) = unread.windows(2).position(|pair| pair == b"\n\n") {
            let event: Vec<u8> = unread.drain(..end + 2).collect();
            let event = String::from_utf8_lossy(&event);
            let Some(payload) = event.trim_end().strip_prefix("data: ") else {
                bail!("the stream says: {}", event.trim_end());
            };
            if payload == "[DONE]" {
                is_done = true;
                continue;
            }
            let value: Value = serde_json::from_str(payload).context("an event is not JSON")?;
            let piece = value["choices"][0]["delta"]["content"].as_str().unwrap_or_default();
            if answer.text.is_empty() && !piece.is_empty() {
                answer.first_token = sent.elapsed();
            }
            answer.text.push_str(piece);
            take_usage(&value, answer);
        }
    }
    ensure!(is_done && !answer.text.is_empty(), "the stream ended before its answer did");
    Ok(())
}

fn take_usage(value: &Value, answer: &mut DemoAnswer) {
    let usage = &value["usage"];
    let number = |value: &Value| value.as_u64().map(|number| number as usize);
    if let Some(tokens) = number(&usage["prompt_tokens"]) {
        answer.prompt_tokens = tokens;
        answer.cached_tokens =
            number(&usage["prompt_tokens_details"]["cached_tokens"]).unwrap_or(0);
    }
}
