//! Errors of calls and plans: who is at fault, and whether a retry helps.

use crate::breaker::CallOutcome;
use crate::json_scan::NotAnObject;
use crate::transfer::MissingPart;
use hyper::StatusCode;
use std::io::ErrorKind;
use std::time::Duration;
use wornpath_routing::{Name, Rejection};
use wornpath_tls::tls_error;

/// Why a call to an endpoint failed.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The connection could not be opened.
    #[error("connection failed: {0}")]
    Connect(std::io::Error),
    /// The connection was not open in time.
    #[error("connect timeout after {0:?}")]
    ConnectTimeout(Duration),
    /// The connection broke, or what came over it is not HTTP.
    #[error("connection lost: {}", with_causes(.0))]
    Broken(hyper::Error),
    /// The first byte did not come in time.
    #[error("first byte timeout after {0:?}")]
    FirstByteTimeout(Duration),
    /// The connection was closed properly before the last event of the stream.
    #[error("stream ended before its last event")]
    Unfinished,
    /// A chunk came, and the next one did not come in time.
    #[error("stream stalled: no chunk within {0:?}")]
    Stalled(Duration),
    /// The response did not end in time.
    #[error("total timeout: response not complete after {0:?}")]
    TotalTimeout(Duration),
    /// The response did not end in time because the client read it too slowly.
    #[error("total timeout: client did not read the response within {0:?}")]
    ClientTooSlow(Duration),
    /// The response says its length twice, as a list or not as a number, so that others may read
    /// another length than we do.
    #[error("invalid `content-length` in the engine's response")]
    ContentLength,
    /// The response of a step that is read as a whole is too long.
    #[error("response too large: more than {0} bytes")]
    TooLarge(usize),
    /// The response of a step lacks the field that the next step repeats.
    #[error("response has no `{0}`, which the next step needs")]
    MissingField(&'static str),
    /// The response of a step lacks a part that a later step needs.
    #[error(transparent)]
    MissingPart(#[from] Box<MissingPart>),
    /// The engine could not load the KV cache that another pod had computed for it.
    #[error("KV load failure: the engine could not load the KV cache of the prefill step")]
    KvLoad,
    /// The prefill engine may have freed the KV cache already.
    #[error("prefill KV lease may have expired")]
    LeaseExpired,
    /// The pod was removed from the fleet.
    #[error("pod removed")]
    PodGone,
    /// A status that another pod may not have.
    #[error("engine returned status {0}")]
    Status(StatusCode),
    /// The step's fields cannot be set in the client's body.
    #[error(transparent)]
    Body(#[from] NotAnObject),
}

impl CallError {
    /// What it tells the breaker about the endpoint.
    #[must_use]
    pub fn outcome(&self) -> CallOutcome {
        match self {
            Self::Connect(error) if is_resource_shortage(error) => CallOutcome::Neutral,
            Self::Broken(_) | Self::Unfinished if !self.is_unsent() => CallOutcome::Lost,
            Self::Connect(_) | Self::ConnectTimeout(_) | Self::Broken(_) | Self::Unfinished => {
                CallOutcome::Gone
            }
            Self::Status(StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE) => {
                CallOutcome::Busy(None)
            }
            Self::Status(_) => CallOutcome::Errored,
            Self::FirstByteTimeout(_)
            | Self::Stalled(_)
            | Self::ContentLength
            | Self::TooLarge(_)
            | Self::MissingField(_)
            | Self::MissingPart(_)
            | Self::TotalTimeout(_) => CallOutcome::Failed,
            // A removed pod, another pod's KV cache, a body that is no object, a slow client and an
            // expired lease are not the endpoint's fault.
            Self::PodGone
            | Self::KvLoad
            | Self::Body(_)
            | Self::LeaseExpired
            | Self::ClientTooSlow(_) => CallOutcome::Neutral,
        }
    }

    /// Whether the engine may still compute the request.
    #[must_use]
    pub const fn is_late(&self) -> bool {
        matches!(self, Self::FirstByteTimeout(_) | Self::Stalled(_) | Self::TotalTimeout(_))
    }

    /// Whether a retry on another pod would fail in the same way.
    #[must_use]
    pub const fn is_final(&self) -> bool {
        matches!(self, Self::Body(_))
    }

    /// Whether the engine cannot have read the request: there was no connection, or the peer ended
    /// TLS with an alert, as one that requires another client certificate does.
    #[must_use]
    pub fn is_unsent(&self) -> bool {
        match self {
            Self::Connect(_) | Self::ConnectTimeout(_) => true,
            Self::Broken(error) => {
                matches!(tls_error(error), Some(rustls::Error::AlertReceived(_)))
            }
            _ => false,
        }
    }

    /// The HTTP status for the client.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        match self {
            Self::Body(_) => StatusCode::BAD_REQUEST,
            Self::FirstByteTimeout(_)
            | Self::Stalled(_)
            | Self::TotalTimeout(_)
            | Self::ClientTooSlow(_) => StatusCode::GATEWAY_TIMEOUT,
            _ => StatusCode::BAD_GATEWAY,
        }
    }
}

/// The text of an error and of all its sources.
fn with_causes(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

/// Whether this process has run out of descriptors, ports or memory.
fn is_resource_shortage(error: &std::io::Error) -> bool {
    const ENFILE: i32 = 23;
    const EMFILE: i32 = 24;
    matches!(error.kind(), ErrorKind::AddrNotAvailable | ErrorKind::OutOfMemory)
        || matches!(error.raw_os_error(), Some(ENFILE | EMFILE))
}

/// Why a plan failed. Nothing was sent to the client yet.
#[derive(Debug, thiserror::Error)]
pub enum CallFailure {
    /// The last pod that a step may try has failed.
    #[error("step `{step}` failed on {tried} pods; last error: {cause}")]
    Step {
        /// The step.
        step: Name,
        /// The number of pods tried.
        tried: usize,
        /// The error of the last pod.
        cause: CallError,
    },
    /// No pod was left to try.
    #[error("{}", .0.reason)]
    Rejected(Rejection),
}

impl CallFailure {
    /// The HTTP status for the client.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        match self {
            Self::Step { cause, .. } => cause.status(),
            Self::Rejected(rejection) => {
                StatusCode::from_u16(rejection.status).unwrap_or(StatusCode::SERVICE_UNAVAILABLE)
            }
        }
    }

    /// When a retry by the client may help.
    #[must_use]
    pub const fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Step { .. } => None,
            Self::Rejected(rejection) => rejection.retry_after,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Error;

    #[test]
    fn a_resource_shortage_of_the_router_is_no_blame_for_the_pod() {
        for own in [12, 23, 24, 99] {
            let error = CallError::Connect(Error::from_raw_os_error(own));
            assert_eq!(error.outcome(), CallOutcome::Neutral, "{error}");
        }
        for refused in [Error::from(ErrorKind::ConnectionRefused), Error::other("no address")] {
            assert_eq!(CallError::Connect(refused).outcome(), CallOutcome::Gone);
        }
    }
}
