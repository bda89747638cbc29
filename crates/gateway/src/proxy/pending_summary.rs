//! The summary of a request before its answer: observers learn of every request once, also of one
//! whose client disconnects.

use crate::dialect::Api;
use crate::observe::summary::{RequestEnd, RequestSummary};
use crate::proxy::error_response::ErrorResponse;
use crate::proxy::worker::Worker;
use wornpath_index::Moment;

/// The summary of a request that has no answer yet. If it is dropped as such, the client has
/// disconnected: status 499.
pub(crate) struct PendingSummary<'a> {
    worker: &'a Worker,
    /// None once observers were told, or the relay took it over.
    summary: Option<RequestSummary>,
    arrived: Moment,
}

/// The status that nginx logs for a client that closed its connection.
pub(crate) const CLIENT_CLOSED_REQUEST: u16 = 499;

impl<'a> PendingSummary<'a> {
    pub(crate) const fn new(worker: &'a Worker, summary: RequestSummary, arrived: Moment) -> Self {
        Self { worker, summary: Some(summary), arrived }
    }

    pub(crate) fn get(&mut self) -> &mut RequestSummary {
        self.summary.get_or_insert_with(|| RequestSummary::new("", Api::OTHER))
    }

    /// Hands the summary to the relay, which ends it.
    pub(crate) fn take(mut self) -> RequestSummary {
        self.summary.take().unwrap_or_else(|| RequestSummary::new("", Api::OTHER))
    }

    /// The client gets this error.
    pub(crate) fn refused(&mut self, error: &ErrorResponse) {
        let refusal = error.refusal(&self.worker.gateway.snapshot());
        let summary = self.get();
        summary.refusal = Some(Box::new(refusal));
        summary.reason = Some(error.message().into());
        self.end(RequestEnd::Refused, error.status.as_u16());
    }

    fn end(&mut self, end: RequestEnd, status: u16) {
        let Some(mut summary) = self.summary.take() else { return };
        summary.ended = end;
        summary.status = status;
        summary.total = self.worker.gateway.now().since(self.arrived);
        self.worker.gateway.ended(&summary);
    }
}

impl Drop for PendingSummary<'_> {
    fn drop(&mut self) {
        self.end(RequestEnd::ClientLeft, CLIENT_CLOSED_REQUEST);
    }
}
