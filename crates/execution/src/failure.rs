//! What can go wrong with a call and with a plan: who is at fault, and whether trying again helps.

use crate::breaker::CallOutcome;
use crate::splice::NotAnObject;
use hyper::StatusCode;
use std::io::ErrorKind;
use std::time::Duration;
use wornpath_routing::{Name, Rejection};

/// Why a call to an endpoint failed.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// No connection.
    #[error("no connection: {0}")]
    Connect(std::io::Error),
    /// No connection in time.
    #[error("no connection within {0:?}")]
    ConnectTimeout(Duration),
    /// The connection broke, or what came over it is not HTTP.
    #[error("the connection broke: {}", with_causes(.0))]
    Broken(hyper::Error),
    /// Nothing came.
    #[error("no answer within {0:?}")]
    NoFirstByte(Duration),
    /// The connection was closed in good order before the stream had said that it is over.
    #[error("the stream ended before its last event")]
    Unfinished,
    /// Something came, and then nothing more.
    #[error("no more of the answer within {0:?}")]
    Stalled(Duration),
    /// It took too long in total.
    #[error("the answer was not complete within {0:?}")]
    TooLong(Duration),
    /// The engine was done, or could have been, and whoever reads took too long in total.
    #[error("the answer was not taken within {0:?}")]
    Untaken(Duration),
    /// More than a step's answer may have.
    #[error("the answer is longer than {0} bytes")]
    TooLarge(usize),
    /// The answer of a step lacks what the next step needs.
    #[error("the answer has no `{0}`, which the next step needs")]
    Lacks(&'static str),
    /// Its engine could not load what another pod had computed for it.
    #[error("KV load failure: its engine could not load what the step before it computed")]
    KvLoad,
    /// What the step before left behind may be gone by now.
    #[error("what the step before it left was not surely there any more")]
    Lapsed,
    /// The pod is none that is known.
    #[error("the pod has gone")]
    PodGone,
    /// An answer that says that somebody else should try.
    #[error("it answered {0}")]
    Status(StatusCode),
    /// The body cannot be changed as the step wants.
    #[error(transparent)]
    Body(#[from] NotAnObject),
}

impl CallError {
    /// What it says about the endpoint.
    #[must_use]
    pub fn verdict(&self) -> CallOutcome {
        match self {
            Self::Connect(error) if is_our_own(error) => CallOutcome::Neutral,
            Self::Connect(_) | Self::ConnectTimeout(_) | Self::Broken(_) | Self::Unfinished => {
                CallOutcome::Gone
            }
            Self::NoFirstByte(_)
            | Self::Stalled(_)
            | Self::TooLarge(_)
            | Self::Lacks(_)
            | Self::TooLong(_)
            | Self::Status(_) => CallOutcome::Failed,
            // A pod that was taken out, another pod's KV cache, a strange body, a slow client and time that has passed
            // are not its fault.
            Self::PodGone | Self::KvLoad | Self::Body(_) | Self::Lapsed | Self::Untaken(_) => {
                CallOutcome::Neutral
            }
        }
    }

    /// Whether the pod may still be at it.
    #[must_use]
    pub const fn is_late(&self) -> bool {
        matches!(self, Self::NoFirstByte(_) | Self::Stalled(_) | Self::TooLong(_))
    }

    /// Whether every pod would come to the same.
    #[must_use]
    pub const fn is_final(&self) -> bool {
        matches!(self, Self::Body(_))
    }

    /// Whether nobody there has read what was sent: there was no connection, or TLS was ended by the other side, as by
    /// one who wants another certificate.
    #[must_use]
    pub fn is_unread(&self) -> bool {
        match self {
            Self::Connect(_) | Self::ConnectTimeout(_) => true,
            Self::Broken(error) => {
                matches!(tls_error(error), Some(rustls::Error::AlertReceived(_)))
            }
            _ => false,
        }
    }

    /// The status that tells a client best.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        match self {
            Self::Body(_) => StatusCode::BAD_REQUEST,
            Self::NoFirstByte(_) | Self::Stalled(_) | Self::TooLong(_) | Self::Untaken(_) => {
                StatusCode::GATEWAY_TIMEOUT
            }
            _ => StatusCode::BAD_GATEWAY,
        }
    }
}

/// What an error says, and what those say that caused it.
fn with_causes(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

/// What went wrong with TLS, if that is what lies behind an error.
#[must_use]
pub fn tls_error<'a>(error: &'a (dyn std::error::Error + 'static)) -> Option<&'a rustls::Error> {
    let of_this = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
    of_this.and_then(|inner| inner.downcast_ref()).or_else(|| error.source().and_then(tls_error))
}

/// Whether it is this process that has nothing left to connect with: descriptors, ports or memory.
fn is_our_own(error: &std::io::Error) -> bool {
    const ENFILE: i32 = 23;
    const EMFILE: i32 = 24;
    matches!(error.kind(), ErrorKind::AddrNotAvailable | ErrorKind::OutOfMemory)
        || matches!(error.raw_os_error(), Some(ENFILE | EMFILE))
}

/// Why a plan could not be carried out. Nothing was sent to the client.
#[derive(Debug, thiserror::Error)]
pub enum CallFailure {
    /// All that was tried failed.
    #[error("step `{step}` failed on {tried} pods, on the last: {cause}")]
    Step {
        /// The step.
        step: Name,
        /// Pods tried.
        tried: usize,
        /// What the last of them did.
        cause: CallError,
    },
    /// Nobody was left to try.
    #[error("{}", .0.reason)]
    Rejected(Rejection),
}

impl CallFailure {
    /// The status that tells a client best.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        match self {
            Self::Step { cause, .. } => cause.status(),
            Self::Rejected(rejection) => {
                StatusCode::from_u16(rejection.status).unwrap_or(StatusCode::SERVICE_UNAVAILABLE)
            }
        }
    }

    /// When trying again may help.
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
    fn what_the_router_itself_has_no_more_of_says_nothing_of_the_pod() {
        for own in [12, 23, 24, 99] {
            let error = CallError::Connect(Error::from_raw_os_error(own));
            assert_eq!(error.verdict(), CallOutcome::Neutral, "{error}");
        }
        for refused in [Error::from(ErrorKind::ConnectionRefused), Error::other("no address")] {
            assert_eq!(CallError::Connect(refused).verdict(), CallOutcome::Gone);
        }
    }
}
