//! A chat client of the gateway that measures its requests.

use crate::http::{Endpoint, EventStream, HttpClient, Payload};
use anyhow::{Context, bail, ensure};
use hyper::Method;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

const ANSWER_TOKENS: usize = 32;

/// How the answer is delivered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum DemoDelivery {
    /// Token by token.
    Stream,
    /// In one piece: until it is complete, the gateway can retry on another pod.
    Whole,
}

/// A complete answer.
#[derive(Debug, Default)]
pub(super) struct DemoAnswer {
    /// The gateway's id of the request.
    pub(super) id: String,
    pub(super) text: String,
    /// From sending the request to the first token; to the whole answer if it is not streamed.
    pub(super) first_token: Duration,
    pub(super) prompt_tokens: usize,
    /// Prompt tokens that came from a cache.
    pub(super) cached_tokens: usize,
    /// Name of the pod that answered.
    pub(super) pod: String,
}

/// The body of a chat request.
pub(super) fn chat_body(model: &str, messages: &[Value]) -> Value {
    json!({"model": model, "messages": messages, "max_tokens": ANSWER_TOKENS})
}

/// A client of the gateway that many users share.
#[derive(Clone)]
pub(super) struct DemoClient(Arc<HttpClient>);

impl DemoClient {
    pub(super) fn new(gateway: SocketAddr) -> anyhow::Result<Self> {
        let client = HttpClient::new(Endpoint::plain("the gateway", gateway), None)?;
        Ok(Self(Arc::new(client.with_response_timeout(None))))
    }

    /// Sends a chat request and reads its answer to the end.
    pub(super) async fn chat(
        &self,
        mut body: Value,
        delivery: DemoDelivery,
    ) -> anyhow::Result<DemoAnswer> {
        if delivery == DemoDelivery::Stream {
            body["stream"] = json!(true);
            body["stream_options"] = json!({"include_usage": true});
        }
        let sent = Instant::now();
        let payload = Payload::json(&body);
        let response = self.0.send(Method::POST, "/v1/chat/completions", payload).await?;
        let response = response.successful().await?;
        let mut answer = DemoAnswer {
            id: response.header("x-request-id").to_owned(),
            pod: response.header("x-wornpath-pod").to_owned(),
            ..DemoAnswer::default()
        };
        if delivery == DemoDelivery::Stream {
            read_stream(response.events(), sent, &mut answer).await?;
            return Ok(answer);
        }
        let value = response.json().await?;
        answer.first_token = sent.elapsed();
        value["choices"][0]["message"]["content"]
            .as_str()
            .context("the answer has no text")?
            .clone_into(&mut answer.text);
        read_usage(&value, &mut answer);
        Ok(answer)
    }
}

/// Resets an engine's cache and makes it publish that. Engines publish with a step, and an idle one
/// takes none: hence a prompt that is too short to be cached.
pub(super) async fn reset_cache(engine: SocketAddr, model: &str) -> anyhow::Result<()> {
    let prompt = json!({"model": model, "prompt": "a", "max_tokens": 1});
    let client = HttpClient::new(Endpoint::plain("the engine", engine), None)?;
    for (path, body) in [("/reset_prefix_cache", Value::Null), ("/v1/completions", prompt)] {
        let response = client.send(Method::POST, path, Payload::json(&body)).await?;
        let response = response.successful().await.with_context(|| format!("{engine}{path}"))?;
        response.bytes().await?;
    }
    Ok(())
}

async fn read_stream(
    mut events: EventStream,
    sent: Instant,
    answer: &mut DemoAnswer,
) -> anyhow::Result<()> {
    let mut is_done = false;
    while let Some(event) = events.next().await? {
        let Some(payload) = event.strip_prefix("data: ") else {
            bail!("unexpected event in the stream: {event}");
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
        read_usage(&value, answer);
    }
    ensure!(is_done && !answer.text.is_empty(), "the stream ended before the answer was complete");
    Ok(())
}

fn read_usage(value: &Value, answer: &mut DemoAnswer) {
    let usage = &value["usage"];
    let number = |value: &Value| value.as_u64().map(|number| number as usize);
    if let Some(tokens) = number(&usage["prompt_tokens"]) {
        answer.prompt_tokens = tokens;
        answer.cached_tokens =
            number(&usage["prompt_tokens_details"]["cached_tokens"]).unwrap_or(0);
    }
}
