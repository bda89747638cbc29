//! The answers of one stream, while its session runs.
//!
//! The connection polls the answers, and that runs the session: a stream needs no task of its own,
//! and a session runs only as fast as the data plane takes its answers.

use super::proto::ProcessingResponse;
use crate::proxy::body_budget::BodyReservation;
use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use tonic::Status;
use tonic::codegen::tokio_stream::Stream;

/// Where a session puts its answers.
#[derive(Clone, Debug, Default)]
pub(super) struct Outbox(Arc<Mutex<VecDeque<Outgoing>>>);

#[derive(Debug)]
struct Outgoing {
    answer: ProcessingResponse,
    /// What this answer and those before it hold of the budget of all bodies.
    held: Option<BodyReservation>,
}

impl Outbox {
    pub(super) fn push(&self, answer: ProcessingResponse) {
        self.lock().push_back(Outgoing { answer, held: None });
    }

    /// Gives a body's bytes back to the budget when the last answer so far is taken.
    pub(super) fn release_after_last(&self, reservation: BodyReservation) {
        if let Some(last) = self.lock().back_mut() {
            last.held = Some(reservation);
        }
    }

    fn pop(&self) -> Option<ProcessingResponse> {
        let Outgoing { answer, held } = self.lock().pop_front()?;
        drop(held);
        Some(answer)
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Outgoing>> {
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
