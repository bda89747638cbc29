//! Response bodies: JSON, or a stream that is written while its tokens are generated.

use super::answer::AnswerScript;
use super::call::CallRefusal;
use super::driver::{DriverCommand, SubmissionProgress};
use crate::request::RequestId;
use bytes::Bytes;
use hyper::Response;
use hyper::body::{Body, Frame};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use serde_json::Value;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::sync::{mpsc, watch};

/// The connection is closed before the end of the response, by a fault or a crash.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("connection closed before the end of the response")]
pub(super) struct Cut;

/// A request in the engine. Dropping it cancels the request, so that a client that disconnects
/// frees its blocks.
pub(super) struct SimTicket {
    pub(super) id: RequestId,
    pub(super) progress: mpsc::UnboundedReceiver<SubmissionProgress>,
    pub(super) commands: mpsc::UnboundedSender<DriverCommand>,
}

impl Drop for SimTicket {
    fn drop(&mut self) {
        // The send fails only if the engine has stopped.
        let _ = self.commands.send(DriverCommand::Cancel(self.id));
    }
}

/// Waits until a request has finished and returns the whole answer.
pub(super) async fn collect(mut ticket: SimTicket, script: &AnswerScript) -> Result<Value, Cut> {
    let mut tokens = 0;
    let mut cached = 0;
    loop {
        if script.faults.cut_after_tokens.is_some_and(|most| tokens >= most) {
            return Err(Cut);
        }
        if script.faults.stall_after_tokens.is_some_and(|most| tokens >= most) {
            std::future::pending::<()>().await;
        }
        match ticket.progress.recv().await {
            Some(SubmissionProgress::Admitted { cached_tokens }) => cached = cached_tokens,
            Some(SubmissionProgress::Token) => tokens += 1,
            Some(SubmissionProgress::Finished) => return Ok(script.whole(cached)),
            Some(SubmissionProgress::Accepted | SubmissionProgress::Refused(_)) => {}
            None => return Err(Cut),
        }
    }
}

/// A JSON response.
pub(super) fn json_response(value: &Value) -> Response<SimBody> {
    let mut response = Response::new(SimBody::Whole(Some(Bytes::from(value.to_string()))));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// The error response to a refused call.
pub(super) fn error_response(refusal: &CallRefusal) -> Response<SimBody> {
    let mut response = json_response(&refusal.body());
    *response.status_mut() = refusal.status;
    response
}

/// A response's body.
pub(super) enum SimBody {
    Whole(Option<Bytes>),
    /// A whole body after which the engine crashes.
    BeforeCrash(Option<Bytes>, #[expect(dead_code, reason = "it acts when it is dropped")] Crash),
    Stream(Box<SimStream>),
    /// The beginning of a stream, after which the connection is closed.
    Truncated {
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

/// A streamed answer that is written while its tokens are generated.
pub(super) struct SimStream {
    ticket: SimTicket,
    script: AnswerScript,
    tokens: usize,
    cached_tokens: usize,
    ended: bool,
    flushed: bool,
}

impl SimStream {
    pub(super) fn new(ticket: SimTicket, script: AnswerScript) -> Self {
        Self { ticket, script, tokens: 0, cached_tokens: 0, ended: false, flushed: false }
    }

    fn poll_bytes(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Bytes, Cut>>> {
        let mut out = Vec::new();
        while !self.ended {
            if self.script.faults.cut_after_tokens.is_some_and(|most| self.tokens >= most) {
                if !out.is_empty() {
                    break;
                }
                let cut = cut(&mut self.flushed, context);
                self.ended = cut.is_ready();
                return cut.map(|cut| Some(Err(cut)));
            }
            if self.script.faults.stall_after_tokens.is_some_and(|most| self.tokens >= most) {
                break;
            }
            match self.ticket.progress.poll_recv(context) {
                Poll::Pending => break,
                Poll::Ready(Some(SubmissionProgress::Admitted { cached_tokens })) => {
                    self.cached_tokens = cached_tokens;
                }
                Poll::Ready(Some(SubmissionProgress::Token)) => {
                    self.script.chunk(self.tokens, &mut out);
                    self.tokens += 1;
                }
                Poll::Ready(Some(SubmissionProgress::Finished)) => {
                    self.script.ending(self.cached_tokens, &mut out);
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

/// Pending once, so that the connection sends its buffer before it is closed.
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
            Self::Whole(bytes) | Self::BeforeCrash(bytes, _) => {
                Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes))))
            }
            Self::Truncated { bytes, flushed } => match bytes.take() {
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
            Self::Whole(bytes) | Self::BeforeCrash(bytes, _) => {
                hyper::body::SizeHint::with_exact(bytes.as_ref().map_or(0, Bytes::len) as u64)
            }
            Self::Stream(_) | Self::Truncated { .. } => hyper::body::SizeHint::default(),
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Whole(None) | Self::BeforeCrash(None, _))
    }
}
