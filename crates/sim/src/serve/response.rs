//! An answer on its way to the client: whole, or token by token.

use super::call::{CallDelivery, CallKind, ContentPart, EngineCall};
use super::driver::{DriverCommand, SubmissionProgress};
use super::faults::{CachedTokens, Faults};
use crate::request::RequestId;
use bytes::Bytes;
use hyper::body::{Body, Frame};
use serde_json::{Value, json};
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::sync::{mpsc, watch};

/// The connection is closed in the middle of an answer, as a fault asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("cut, as a fault asked")]
pub(super) struct Cut;

/// A request in the engine. Dropping it takes the request out, so a client that goes frees its place.
pub(super) struct SimTicket {
    pub(super) id: RequestId,
    pub(super) progress: mpsc::UnboundedReceiver<SubmissionProgress>,
    pub(super) commands: mpsc::UnboundedSender<DriverCommand>,
}

impl Drop for SimTicket {
    fn drop(&mut self) {
        // A stopped engine needs no telling.
        let _ = self.commands.send(DriverCommand::Cancel(self.id));
    }
}

/// Everything that is written about a request.
pub(super) struct AnswerScript {
    pub(super) id: String,
    pub(super) created: u64,
    pub(super) call: EngineCall,
    /// The text of each token.
    pub(super) pieces: Vec<String>,
    pub(super) faults: Faults,
    /// For the engine that will decode.
    pub(super) transfer: Value,
}

impl AnswerScript {
    /// What is said of cached tokens, by the faults of the moment.
    pub(super) fn told_cached(&self, cached_tokens: usize) -> usize {
        match self.faults.cached_tokens {
            CachedTokens::True => cached_tokens,
            CachedTokens::Zero => 0,
            CachedTokens::All => self.call.prompt.len(),
        }
    }

    fn usage(&self, cached_tokens: usize) -> Value {
        let (prompt, completion) = (self.call.prompt.len(), self.pieces.len());
        let cached_tokens = self.told_cached(cached_tokens);
        json!({
            "prompt_tokens": prompt,
            "total_tokens": prompt + completion,
            "completion_tokens": completion,
            "prompt_tokens_details": {"cached_tokens": cached_tokens},
        })
    }

    pub(super) fn frame(&self, object: &str, choices: &Value) -> Value {
        json!({
            "id": self.id,
            "object": object,
            "created": self.created,
            "model": self.call.model,
            "choices": choices,
        })
    }

    /// The whole answer.
    fn whole(&self, cached_tokens: usize) -> Value {
        let text = self.pieces.concat();
        let reason = self.finish();
        let (object, choice) = match self.call.kind {
            CallKind::Messages => return self.message(),
            CallKind::Responses => return self.response(cached_tokens),
            CallKind::Chat => {
                let message = self.chat_message();
                let choice = json!({"index": 0, "message": message, "logprobs": null, "finish_reason": reason});
                ("chat.completion", choice)
            }
            CallKind::Completion => {
                let choice =
                    json!({"index": 0, "text": text, "logprobs": null, "finish_reason": reason});
                ("text_completion", choice)
            }
        };
        let mut body = self.frame(object, &json!([choice]));
        body["usage"] = self.usage(cached_tokens);
        body["kv_transfer_params"] = if self.call.part == ContentPart::Prefill {
            self.transfer.clone()
        } else {
            Value::Null
        };
        body
    }

    /// The events that carry token `index`.
    fn chunk(&self, index: usize, out: &mut Vec<u8>) {
        let reason = (index + 1 == self.pieces.len()).then(|| self.finish());
        let piece = &self.pieces[index];
        let choice = |field: &str, value: Value, reason: Option<&str>| json!([{"index": 0, field: value, "logprobs": null, "finish_reason": reason}]);
        match self.call.kind {
            CallKind::Chat => {
                if index == 0 {
                    let role = self.chat_beginning();
                    event(&self.frame("chat.completion.chunk", &choice("delta", role, None)), out);
                }
                let delta = choice("delta", self.chat_delta(index), reason);
                event(&self.frame("chat.completion.chunk", &delta), out);
            }
            CallKind::Completion => {
                event(&self.frame("text_completion", &choice("text", json!(piece), reason)), out);
            }
            CallKind::Messages => self.message_chunk(index, out),
            CallKind::Responses => self.response_chunk(index, out),
        }
    }

    /// The events after the last token.
    fn ending(&self, cached_tokens: usize, out: &mut Vec<u8>) {
        match self.call.kind {
            CallKind::Messages => return self.message_ending(out),
            CallKind::Responses => return self.response_ending(cached_tokens, out),
            CallKind::Chat | CallKind::Completion => {}
        }
        if self.call.delivery == CallDelivery::StreamWithUsage {
            let object = match self.call.kind {
                CallKind::Chat => "chat.completion.chunk",
                _ => "text_completion",
            };
            let mut usage = self.frame(object, &json!([]));
            usage["usage"] = self.usage(cached_tokens);
            event(&usage, out);
        }
        out.extend_from_slice(b"data: [DONE]\n\n");
    }
}

pub(super) fn event(value: &Value, out: &mut Vec<u8>) {
    out.extend_from_slice(b"data: ");
    out.extend_from_slice(value.to_string().as_bytes());
    out.extend_from_slice(b"\n\n");
}

/// Waits for the end of an answer and writes it in one piece.
pub(super) async fn whole(mut ticket: SimTicket, story: &AnswerScript) -> Result<Value, Cut> {
    let (mut tokens, mut cached) = (0, 0);
    loop {
        if story.faults.cut_after_tokens.is_some_and(|most| tokens >= most) {
            return Err(Cut);
        }
        if story.faults.stall_after_tokens.is_some_and(|most| tokens >= most) {
            std::future::pending::<()>().await;
        }
        match ticket.progress.recv().await {
            Some(SubmissionProgress::Admitted { cached_tokens }) => cached = cached_tokens,
            Some(SubmissionProgress::Token) => tokens += 1,
            Some(SubmissionProgress::Finished) => return Ok(story.whole(cached)),
            Some(SubmissionProgress::Accepted | SubmissionProgress::Refused(_)) => {}
            None => return Err(Cut),
        }
    }
}

/// A response's body.
pub(super) enum SimBody {
    Whole(Option<Bytes>),
    /// The last one of its engine.
    Last(Option<Bytes>, #[expect(dead_code, reason = "it acts when it is dropped")] Crash),
    Stream(Box<SimStream>),
    /// The beginning of a stream whose connection is closed then.
    Begun {
        bytes: Option<Bytes>,
        flushed: bool,
    },
}

/// Crashes its engine when it is dropped.
pub(super) struct Crash(pub(super) watch::Sender<bool>);

impl Drop for Crash {
    fn drop(&mut self) {
        self.0.send_replace(true);
    }
}

/// An answer that is written as it comes about.
pub(super) struct SimStream {
    ticket: SimTicket,
    story: AnswerScript,
    tokens: usize,
    cached_tokens: usize,
    ended: bool,
    flushed: bool,
}

impl SimStream {
    pub(super) fn new(ticket: SimTicket, story: AnswerScript) -> Self {
        Self { ticket, story, tokens: 0, cached_tokens: 0, ended: false, flushed: false }
    }

    fn poll_bytes(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Bytes, Cut>>> {
        let mut out = Vec::new();
        while !self.ended {
            if self.story.faults.cut_after_tokens.is_some_and(|most| self.tokens >= most) {
                if !out.is_empty() {
                    break;
                }
                let cut = cut(&mut self.flushed, context);
                self.ended = cut.is_ready();
                return cut.map(|cut| Some(Err(cut)));
            }
            if self.story.faults.stall_after_tokens.is_some_and(|most| self.tokens >= most) {
                break;
            }
            match self.ticket.progress.poll_recv(context) {
                Poll::Pending => break,
                Poll::Ready(Some(SubmissionProgress::Admitted { cached_tokens })) => {
                    self.cached_tokens = cached_tokens;
                }
                Poll::Ready(Some(SubmissionProgress::Token)) => {
                    self.story.chunk(self.tokens, &mut out);
                    self.tokens += 1;
                }
                Poll::Ready(Some(SubmissionProgress::Finished)) => {
                    self.story.ending(self.cached_tokens, &mut out);
                    self.ended = true;
                }
                Poll::Ready(Some(
                    SubmissionProgress::Accepted | SubmissionProgress::Refused(_),
                )) => {}
                Poll::Ready(None) => {
                    self.ended = true;
                    return Poll::Ready(Some(Err(Cut)));
                }
            }
        }
        match (out.is_empty(), self.ended) {
            (false, _) => Poll::Ready(Some(Ok(Bytes::from(out)))),
            (true, true) => Poll::Ready(None),
            (true, false) => Poll::Pending,
        }
    }
}

/// Pending once, so that the connection sends what it has before it is cut.
fn cut(flushed: &mut bool, context: &Context<'_>) -> Poll<Cut> {
    if !std::mem::replace(flushed, true) {
        context.waker().wake_by_ref();
        return Poll::Pending;
    }
    Poll::Ready(Cut)
}

impl Body for SimBody {
    type Data = Bytes;
    type Error = Cut;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        match self.get_mut() {
            Self::Whole(bytes) | Self::Last(bytes, _) => {
                Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes))))
            }
            Self::Begun { bytes, flushed } => match bytes.take() {
                Some(bytes) => Poll::Ready(Some(Ok(Frame::data(bytes)))),
                None => cut(flushed, context).map(|cut| Some(Err(cut))),
            },
            Self::Stream(stream) => {
                stream.poll_bytes(context).map(|bytes| bytes.map(|bytes| bytes.map(Frame::data)))
            }
        }
    }

    fn size_hint(&self) -> hyper::body::SizeHint {
        match self {
            Self::Whole(bytes) | Self::Last(bytes, _) => {
                hyper::body::SizeHint::with_exact(bytes.as_ref().map_or(0, Bytes::len) as u64)
            }
            Self::Stream(_) | Self::Begun { .. } => hyper::body::SizeHint::default(),
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Whole(None) | Self::Last(None, _))
    }
}
