//! Errors that the gateway itself answers, in the error format of the API that the client uses.

use crate::dialect::Api;
use crate::reply::ClientReply;
use hyper::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use hyper::{Response, StatusCode};
use std::time::Duration;
use wornpath_execution::CallFailure;
use wornpath_routing::{Name, Rejection, RejectionCause};

use crate::fleet::snapshot::FleetSnapshot;
use crate::observe::summary::{Refusal, RefusalCause};

/// The error that a refused or failed request is answered with.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ErrorResponse {
    pub(crate) status: StatusCode,
    message: String,
    pub(crate) retry_after: Option<Duration>,
    /// What a rejection is about; none for an error of one call or of the request.
    pub(crate) cause: Option<RejectionCause>,
}

impl ErrorResponse {
    pub(crate) const fn new(status: StatusCode, message: String) -> Self {
        Self { status, message, retry_after: None, cause: None }
    }

    pub(crate) const fn bad(message: String) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message)
    }

    /// The message for the client: what is wrong and how to fix it.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// What operators see of it: nothing that the client wrote.
    pub(crate) fn refusal(&self, snapshot: &FleetSnapshot) -> Refusal {
        let cause = match (self.cause, self.status.as_u16()) {
            (Some(RejectionCause::NoPod), _) => RefusalCause::NoPod,
            (Some(RejectionCause::Saturated), _) | (None, 429) => RefusalCause::Saturated,
            (Some(RejectionCause::Expired), _) => RefusalCause::Expired,
            (Some(RejectionCause::ShuttingDown), _) => RefusalCause::ShuttingDown,
            (None, 500..) => RefusalCause::CallsFailed,
            (Some(RejectionCause::Request) | None, _) => RefusalCause::Request,
        };
        let reason = match (cause, self.status.as_u16()) {
            // The other messages quote the request.
            (RefusalCause::Request, 401 | 403) => "API key missing or unknown".to_owned(),
            (RefusalCause::Request, 404) => "unknown model, path or object".to_owned(),
            (RefusalCause::Request, 408) => "the request body came too slowly".to_owned(),
            (RefusalCause::Request, 413) => "the request body is too large".to_owned(),
            (RefusalCause::Request, 502) => {
                "the request had broken connections to two pods".to_owned()
            }
            (RefusalCause::Request, _) => {
                "the request is invalid; its response says what is wrong".to_owned()
            }
            _ => without_unknown_names(&self.message, snapshot),
        };
        Refusal { cause, reason }
    }

    /// The body in the form that clients of the API expect.
    #[must_use]
    pub(crate) fn body(&self, api: Api) -> String {
        api.dialect().error_body(kind(self.status), self.status, &self.message).to_string()
    }

    /// The response in the form that clients of the API expect.
    #[must_use]
    pub fn response(&self, api: Api) -> Response<ClientReply> {
        let mut response = Response::new(ClientReply::whole(self.body(api).into()));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(after) = self.retry_after {
            headers.insert(RETRY_AFTER, HeaderValue::from(after.as_secs().max(1)));
        }
        response
    }
}

impl From<Rejection> for ErrorResponse {
    fn from(rejection: Rejection) -> Self {
        let status = StatusCode::from_u16(rejection.status);
        Self {
            status: status.unwrap_or(StatusCode::SERVICE_UNAVAILABLE),
            message: rejection.reason,
            retry_after: rejection.retry_after,
            cause: Some(rejection.cause),
        }
    }
}

impl From<CallFailure> for ErrorResponse {
    fn from(failure: CallFailure) -> Self {
        Self {
            status: failure.status(),
            message: failure.to_string(),
            retry_after: failure.retry_after(),
            cause: None,
        }
    }
}

/// Leaves out what lies between the first quoted name that the fleet does not have and the last
/// quote: a client may have written the name, and quotes within it.
fn without_unknown_names(message: &str, snapshot: &FleetSnapshot) -> String {
    let is_known = |name: &str| {
        snapshot.knows(&Name::from(name))
            || snapshot.fleet().roles().any(|role| role.as_str() == name)
            || snapshot.named(name).is_some()
    };
    let mut quotes = message.match_indices('`').map(|(at, _)| at);
    while let (Some(open), Some(close)) = (quotes.next(), quotes.next()) {
        if !is_known(&message[open + 1..close]) {
            let last = message.rfind('`').unwrap_or(close);
            return format!("{}…{}", &message[..=open], &message[last..]);
        }
    }
    message.to_owned()
}

/// The error type of a status, as Anthropic's API names it.
const fn kind(status: StatusCode) -> &'static str {
    match status.as_u16() {
        401 => "authentication_error",
        404 => "not_found_error",
        413 => "request_too_large",
        429 => "rate_limit_error",
        503 => "overloaded_error",
        400..500 => "invalid_request_error",
        _ => "api_error",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operators_see_why_a_request_was_refused_and_nothing_that_its_client_wrote() {
        let snapshot = FleetSnapshot::default();
        let shown = |error: ErrorResponse| error.refusal(&snapshot);
        let refused =
            Rejection::unavailable("no pod reports that it serves `my secret`; retry later");
        let refusal = shown(refused.into());
        assert_eq!(refusal.cause, RefusalCause::NoPod);
        assert_eq!(refusal.reason, "no pod reports that it serves `…`; retry later");
        let quoted = Rejection::unavailable("no pod serves `a` my secret `b`; retry later");
        assert_eq!(shown(quoted.into()).reason, "no pod serves `…`; retry later");
        let refusal = shown(ErrorResponse::bad("`my secret` is not valid".to_owned()));
        assert_eq!(refusal.cause, RefusalCause::Request);
        assert!(!refusal.reason.contains("secret"), "{}", refusal.reason);
        let quota = Rejection::busy("tenant quota exceeded: 4 requests in flight (limit 4)");
        let refusal = shown(quota.into());
        assert_eq!(refusal.cause.word(), "saturated");
        assert!(refusal.reason.starts_with("tenant quota exceeded"));
    }
}
