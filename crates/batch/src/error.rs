//! Errors of the Files and Batches APIs, in OpenAI's format.

use bytes::Bytes;
use hyper::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use hyper::{Response, StatusCode};
use serde_json::json;
use std::time::Duration;
use wornpath_gateway::log_limit::LogLimit;
use wornpath_gateway::proxy::min_rate::MIN_RATE;
use wornpath_gateway::reply::ClientReply;
use wornpath_jobs::StoreError;
use wornpath_routing::Problems;

/// The batch service cannot start.
#[derive(Debug, thiserror::Error)]
pub enum BatchesError {
    /// The store cannot be opened.
    #[error("batches: {0}")]
    Store(#[from] StoreError),
    /// PostgreSQL support is not compiled in.
    #[error(
        "batches: this build has no support for PostgreSQL; build it with `--features postgres`"
    )]
    NotBuilt,
    /// The profile of batch requests is not valid with the current settings.
    #[error("batches: {0}")]
    Profile(Problems),
}

/// Clients retry what fails for now.
static STORE_LOG: LogLimit = LogLimit::new(Duration::from_secs(10));

/// An error response.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{message}")]
pub(crate) struct BatchError {
    status: StatusCode,
    message: String,
    param: Option<&'static str>,
}

impl BatchError {
    pub(crate) const fn new(status: StatusCode, message: String) -> Self {
        Self { status, message, param: None }
    }

    pub(crate) fn invalid(message: &str, param: Option<&'static str>) -> Self {
        Self { status: StatusCode::BAD_REQUEST, message: message.to_owned(), param }
    }

    pub(crate) fn not_found(message: String) -> Self {
        Self::new(StatusCode::NOT_FOUND, message)
    }

    pub(crate) fn shutting_down() -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "the gateway is shutting down".to_owned())
    }

    /// The client sends too slowly.
    pub(crate) fn timeout(what: &str, time: Duration) -> Self {
        Self::new(StatusCode::REQUEST_TIMEOUT, format!("{what} timed out after {time:?}"))
    }

    /// The client sends, but less than the minimum rate.
    pub(crate) fn too_slow(what: &str) -> Self {
        let message = format!("{what} is too slow: less than {MIN_RATE} bytes per second");
        Self::new(StatusCode::REQUEST_TIMEOUT, message)
    }

    pub(crate) fn is_timeout(&self) -> bool {
        self.status == StatusCode::REQUEST_TIMEOUT
    }

    /// The limit of concurrent transfers is reached.
    pub(crate) fn busy(what: &str, most: usize) -> Self {
        let message = format!("too many concurrent {what} (limit {most}); retry later");
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
        if matches!(error, StoreError::Full { .. } | StoreError::Unreachable(_))
            && STORE_LOG.is_due()
        {
            tracing::error!(%error, "batch store cannot be used for now");
        }
        let status = match &error {
            StoreError::Full { .. } => StatusCode::INSUFFICIENT_STORAGE,
            StoreError::Missing(_) => StatusCode::NOT_FOUND,
            StoreError::Conflict(_) | StoreError::Fenced(_) => StatusCode::CONFLICT,
            StoreError::Unreachable(_) => StatusCode::SERVICE_UNAVAILABLE,
            // It was logged, and names no path of this machine.
            StoreError::DamagedFile { .. } => StatusCode::INTERNAL_SERVER_ERROR,
            StoreError::Damaged { .. } => {
                let message = "stored data is damaged; see the gateway's log".to_owned();
                return Self::new(StatusCode::INTERNAL_SERVER_ERROR, message);
            }
            _ => {
                // The error may contain paths of this machine, so the client does not see it.
                tracing::error!(%error, "batch store failed");
                let message = "batch store failed; see the gateway's log".to_owned();
                return Self::new(StatusCode::INTERNAL_SERVER_ERROR, message);
            }
        };
        let message = match &error {
            // Both may contain paths and addresses of this machine.
            StoreError::Full { .. } => "batch store is full; retry later".to_owned(),
            StoreError::Unreachable(_) => "batch store unreachable; retry later".to_owned(),
            other => other.to_string(),
        };
        Self::new(status, message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_for_clients_name_no_file_and_no_database_of_this_machine() {
        let io = std::io::Error::other("no");
        for error in [
            StoreError::Io { doing: "write", path: "/srv/batches/log".into(), cause: io },
            StoreError::Full { path: "/srv/batches/log".into() },
            StoreError::Unreachable("cannot connect to /srv/batches at 10.0.0.1".to_owned()),
        ] {
            let shown = BatchError::from(error);
            assert!(shown.status.is_server_error(), "{shown:?}");
            assert!(
                !shown.message.contains("/srv") && !shown.message.contains("10.0"),
                "{shown:?}"
            );
        }
    }
}
