//! Why a call about files or batches is turned away, in OpenAI's words.

use bytes::Bytes;
use hyper::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use hyper::{Response, StatusCode};
use serde_json::json;
use std::time::Duration;
use wornpath_gateway::reply::ClientReply;
use wornpath_jobs::StoreError;
use wornpath_routing::Problems;

/// Batches that cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum BatchesError {
    /// What was kept cannot be opened.
    #[error("batches: {0}")]
    Store(#[from] StoreError),
    /// The database's client is not part of this binary.
    #[error("batches: this binary cannot speak to PostgreSQL; build it with `--features postgres`")]
    NotBuilt,
    /// The profile for planned requests does not fit.
    #[error("batches: {0}")]
    Profile(Problems),
}

/// A call that is turned away.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct BatchError {
    status: StatusCode,
    message: String,
    param: Option<&'static str>,
}

impl BatchError {
    pub(crate) const fn new(status: StatusCode, message: String) -> Self {
        Self { status, message, param: None }
    }

    pub(crate) fn bad(message: &str, param: Option<&'static str>) -> Self {
        Self { status: StatusCode::BAD_REQUEST, message: message.to_owned(), param }
    }

    pub(crate) fn missing(what: &str) -> Self {
        Self::new(StatusCode::NOT_FOUND, format!("there is no {what}"))
    }

    pub(crate) fn ending() -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "the gateway is shutting down".to_owned())
    }

    /// The client takes too long.
    pub(crate) fn late(what: &str, time: Duration) -> Self {
        Self::new(StatusCode::REQUEST_TIMEOUT, format!("{what} within {time:?}"))
    }

    pub(crate) fn is_late(&self) -> bool {
        self.status == StatusCode::REQUEST_TIMEOUT
    }

    /// As many are under way as may be.
    pub(crate) fn busy(what: &str, most: usize) -> Self {
        let message = format!("{most} {what} are under way, the most at a time; try again later");
        Self::new(StatusCode::SERVICE_UNAVAILABLE, message)
    }

    pub(crate) fn response(&self) -> Response<ClientReply> {
        let kind = match self.status.as_u16() {
            400..500 => "invalid_request_error",
            _ => "server_error",
        };
        let error =
            json!({"message": self.message, "type": kind, "param": self.param, "code": null});
        let mut response =
            Response::new(ClientReply::whole(Bytes::from(json!({"error": error}).to_string())));
        *response.status_mut() = self.status;
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if self.status == StatusCode::SERVICE_UNAVAILABLE {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}

impl From<StoreError> for BatchError {
    fn from(error: StoreError) -> Self {
        let status = match &error {
            StoreError::Full { .. } => StatusCode::INSUFFICIENT_STORAGE,
            StoreError::Missing(_) => StatusCode::NOT_FOUND,
            StoreError::Conflict(_) | StoreError::Fenced(_) => StatusCode::CONFLICT,
            StoreError::Unreachable(_) => StatusCode::SERVICE_UNAVAILABLE,
            _ => {
                // Paths of this machine are nothing for clients.
                tracing::error!(%error, "the store of batches fails");
                let message = "the store of batches fails; see the gateway's log".to_owned();
                return Self::new(StatusCode::INTERNAL_SERVER_ERROR, message);
            }
        };
        let message = match &error {
            StoreError::Full { .. } => "no room to keep it; try again later".to_owned(),
            other => other.to_string(),
        };
        Self::new(status, message)
    }
}
