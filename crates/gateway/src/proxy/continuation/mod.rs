//! Continuation: goes on with a stream on another pod when its own is lost.
//!
//! A pod that dies, hangs or is drained breaks the streams of all its clients. What it has
//! generated is text, though, and any engine that serves the model can go on from there: the prompt
//! and the text so far are a prompt as well. So the request is decided again, by the same profile
//! and without the pod that was lost, and sent with what the client has of the answer. The client
//! sees one stream.
//!
//! | file | contents |
//! |---|---|
//! | `rules`, `stop_strings` | which requests a continuation keeps right |
//! | `sent`, `written_text` | what the client has got |
//! | `token_ids` | the ids of its tokens, which the client does not get |
//! | `request`, `as_chat`, `continued_body` | the request to the next engine |
//! | `run` | its decision and its call |
//! | `chat_event` | a chat's events from those of a completion |
//! | `named_stream`, `named_writer` | the events of messages and responses, and those from a chat's |
//! | `seam` | the rest of the stream, from the next engine's events |
//! | `stream` | one stream over all its pods |
//! | `reason` | why a stream is continued, or is not |
//!
//! A wrong continuation is worse than a broken stream. So a stream is continued only if every field
//! of its request and of its events is known to stay right, on engines that are known to go on with
//! a message, and it ends with an error event if the next engine generates another text.
//!
//! Engines that give the ids of their tokens go on with those. Limits elsewhere: the text is
//! tokenized again, and may be cut into other tokens than those that were generated; an event
//! counts as one token, as engines send them by default.

mod as_chat;
mod chat_event;
mod continued_body;
mod event;
mod framing;
#[cfg(test)]
mod id_tests;
mod named_stream;
#[cfg(test)]
mod named_tests;
mod named_writer;
pub(crate) mod reason;
mod request;
mod rules;
mod run;
mod seam;
mod sent;
mod stop_strings;
pub(crate) mod stream;
#[cfg(test)]
mod tests;
pub(crate) mod token_ids;
mod written_text;

use crate::dialect::Api;
use crate::observe::summary::RequestSummary;
use crate::proxy::ingress::Arrival;
use crate::proxy::route::Routed;
use crate::proxy::run_plan::SentRequest;
use crate::proxy::worker::Worker;
use bytes::Bytes;
use event::{Stop, StreamForm};
use reason::NotContinued;
use request::continued;
use seam::Seam;
use sent::SentText;
use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Arc;
use wornpath_blocks::EngineRules;
use wornpath_config::ContinuationMode;
use wornpath_index::Moment;
use wornpath_routing::queue::Priority;
use wornpath_routing::{Name, PlanStep, PromptReading};

/// What is kept of a request beside its call.
#[derive(Clone, Debug)]
pub(crate) struct RequestFacts {
    api: Api,
    form: StreamForm,
    tenant: Option<Name>,
    priority: Priority,
    weight: u32,
    fairness: Option<Name>,
    /// Seconds since 1970 at its arrival.
    wall: u64,
    arrived: Moment,
    address: IpAddr,
}

/// What is kept of a request, so that its stream can be continued.
pub(crate) struct KeptRequest {
    facts: RequestFacts,
    sent: SentRequest,
    bytes: KeptBytes,
    asks_ids: bool,
}

/// Whether the stream of a request can be continued; none if its answer is no stream.
pub(crate) fn keeping(
    worker: &Worker,
    routed: &Routed,
    summary: &RequestSummary,
    arrival: &Arrival,
) -> Option<Result<RequestFacts, NotContinued>> {
    let request = routed.decided.context.as_ref()?.request();
    if !request.is_streamed() || !summary.api.generates() {
        return None;
    }
    let settings = worker.gateway.settings();
    if settings.continuation.mode == ContinuationMode::Off {
        return Some(Err(NotContinued::Off));
    }
    if routed.decided.plan.steps.iter().any(PlanStep::is_rewritten) {
        // The step might write something else the next time.
        return Some(Err(NotContinued::Rewritten));
    }
    let is_list = request.has_prompt_list;
    let checked = rules::form(summary.api).and_then(|form| {
        rules::check(form, &request.fields, &request.prompt)?;
        if !is_read_alike(form, &request.reading) {
            return Err(NotContinued::Api);
        }
        if is_list { Err(NotContinued::Prompt) } else { Ok(form) }
    });
    Some(checked.map(|form| RequestFacts {
        api: summary.api,
        form,
        tenant: request.tenant.clone(),
        priority: request.priority,
        weight: request.weight,
        fairness: request.fairness.clone(),
        wall: request.wall,
        arrived: arrival.at,
        address: arrival.address,
    }))
}

/// Whether engines are known to make the chat of a request that its continuation is.
fn is_read_alike(form: StreamForm, reading: &PromptReading) -> bool {
    match form {
        StreamForm::Chat | StreamForm::Completion => true,
        StreamForm::Messages | StreamForm::Responses => {
            let is_vllm = reading.engine == Some(EngineRules::Vllm);
            !reading.is_unknown && !reading.continues && (reading.is_plain || is_vllm)
        }
    }
}

/// The ids of a prompt take about twice the bytes of its text, which the body has as well.
const BYTES_WITH_IDS: usize = 3;

/// Asks for the token ids of a stream that can be continued, if every pod that might serve it gives
/// them, and if there is room to keep them.
pub(crate) fn ask_for_ids(worker: &Worker, facts: &RequestFacts, routed: &mut Routed) -> bool {
    let gateway = &worker.gateway;
    let Some(context) = &routed.decided.context else { return false };
    let gives_ids = ["chat", "completions"].contains(&facts.api.name());
    if !gives_ids
        || context.request().fields.contains_key(token_ids::FIELD)
        || routed.decided.plan.steps.len() > 1
        || routed.call.body.len() * BYTES_WITH_IDS > gateway.settings().continuation.kept
        || !gateway.snapshot().gives_token_ids()
    {
        return false;
    }
    let Some(body) = token_ids::asked(&routed.call.body) else { return false };
    routed.call.body = body;
    true
}

impl RequestFacts {
    /// Keeps the request, if there is room for it.
    pub(crate) fn keep(
        self,
        worker: &Arc<Worker>,
        sent: SentRequest,
        asks_ids: bool,
    ) -> Result<KeptRequest, NotContinued> {
        let bytes = KeptBytes::of(worker, sent.call.body.len())?;
        Ok(KeptRequest { facts: self, sent, bytes, asks_ids })
    }
}

/// Bytes that a stream keeps, in the count of all that is kept.
struct KeptBytes {
    worker: Arc<Worker>,
    counted: usize,
}

impl KeptBytes {
    /// A text grows in steps, so that few tokens touch the count of all streams.
    const STEP: usize = 4 << 10;

    fn of(worker: &Arc<Worker>, bytes: usize) -> Result<Self, NotContinued> {
        let mut kept = Self { worker: Arc::clone(worker), counted: 0 };
        kept.grow_to(bytes)?;
        Ok(kept)
    }

    /// Counts so many bytes at least.
    fn grow_to(&mut self, bytes: usize) -> Result<(), NotContinued> {
        if bytes <= self.counted {
            return Ok(());
        }
        let gateway = &self.worker.gateway;
        let limits = gateway.settings().continuation;
        if bytes > limits.kept {
            return Err(NotContinued::Kept);
        }
        let more = bytes.next_multiple_of(Self::STEP) - self.counted;
        if !gateway.continuations.keep(more, limits.memory) {
            return Err(NotContinued::Memory);
        }
        self.counted += more;
        Ok(())
    }
}

impl Drop for KeptBytes {
    fn drop(&mut self) {
        self.worker.gateway.continuations.release(self.counted);
    }
}

/// What a client gets of an engine's chunks, and then of those of another that continues the
/// stream; for the fuzz targets.
pub(crate) fn passed<'a>(
    api: Api,
    mut first: impl Iterator<Item = &'a [u8]>,
    second: impl Iterator<Item = &'a [u8]>,
) -> Vec<u8> {
    let Ok(form) = rules::form(api) else { return Vec::new() };
    let body = match form {
        StreamForm::Chat => r#"{"messages":[{"role":"user","content":"a"}],"stop":"ab"}"#,
        StreamForm::Completion => r#"{"prompt":"a","max_tokens":9,"min_tokens":2}"#,
        StreamForm::Messages => r#"{"messages":[{"role":"user","content":"a"}],"max_tokens":9}"#,
        StreamForm::Responses => r#"{"input":"a","stop":"ab"}"#,
    };
    let mut sent = SentText::new(form);
    let mut out = Vec::new();
    while let Some(chunk) = first.next() {
        let passed = sent.pass(Bytes::copy_from_slice(chunk), &mut VecDeque::new());
        out.extend_from_slice(&passed.bytes);
        if let Some(Stop::NotContinued(_)) = passed.stop {
            first.for_each(|chunk| out.extend_from_slice(chunk));
            return out;
        }
        if passed.stop.is_some() {
            break;
        }
    }
    sent.rest();
    let Ok(continued) = continued(&Bytes::from_static(body.as_bytes()), &sent) else { return out };
    let Some(mut seam) = Seam::after(&sent, &continued) else { return out };
    for chunk in second {
        let passed = seam.pass(Bytes::copy_from_slice(chunk), &mut VecDeque::new());
        out.extend_from_slice(&passed.bytes);
        if passed.stop.is_some() {
            break;
        }
    }
    out
}
