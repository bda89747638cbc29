//! Errors that the gateway itself answers, in the error format of the API that the client uses.

use crate::dialect::Api;
use crate::reply::ClientReply;
use hyper::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use hyper::{Response, StatusCode};
use std::time::Duration;
use wornpath_execution::CallFailure;
use wornpath_routing::{Rejection, RejectionCause};

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
