//! The answers of one stream, while its session runs.
//!
//! The connection polls the answers, and that runs the session: a stream needs no task of its own,
//! and a session runs only as fast as the data plane takes its answers.

use super::proto::ProcessingResponse;
use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use tonic::Status;
use tonic::codegen::tokio_stream::Stream;

/// Where a session puts its answers.
#[derive(Clone, Debug, Default)]
pub(super) struct Outbox(Arc<Mutex<VecDeque<ProcessingResponse>>>);

impl Outbox {
    pub(super) fn push(&self, answer: ProcessingResponse) {
        self.lock().push_back(answer);
    }

    fn pop(&self) -> Option<ProcessingResponse> {
        self.lock().pop_front()
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<ProcessingResponse>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

type Session = Pin<Box<dyn Future<Output = Result<(), Status>> + Send>>;

/// The answers of a session, in their order; then its error, if it failed.
pub(super) struct Answers {
    /// None once it has ended.
    session: Option<Session>,
    outbox: Outbox,
    failure: Option<Status>,
}

impl Answers {
    pub(super) fn new<F>(run: impl FnOnce(Outbox) -> F) -> Self
    where
        F: Future<Output = Result<(), Status>> + Send + 'static,
    {
        let outbox = Outbox::default();
        Self { session: Some(Box::pin(run(outbox.clone()))), outbox, failure: None }
    }
}

impl Stream for Answers {
    type Item = Result<ProcessingResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Some(answer) = self.outbox.pop() {
                return Poll::Ready(Some(Ok(answer)));
            }
            let Some(session) = &mut self.session else {
                return Poll::Ready(self.failure.take().map(Err));
            };
            match session.as_mut().poll(context) {
                Poll::Ready(ended) => {
                    self.session = None;
                    self.failure = ended.err();
                }
                Poll::Pending if self.outbox.lock().is_empty() => return Poll::Pending,
                Poll::Pending => {}
            }
        }
    }
}
