//! A call to the admin plane: its request, its response, and the endpoint that answers it.

use crate::admin::Admin;
use crate::table::Pattern;
use crate::viewers::LiveStream;
use hyper::Method;
use serde_json::Value;
use std::sync::Arc;
use wornpath_gateway::http::metrics_page::PageFormat;

/// The format of a body.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum AdminBody {
    Json,
    /// The Prometheus text format in responses, YAML in requests.
    Text,
    /// Server-sent events, until the client disconnects.
    Stream,
    /// A file of the dashboard.
    Asset,
}

/// HTTP methods of the admin plane.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verb {
    Get,
    Post,
    Put,
    Delete,
}

impl Verb {
    pub(crate) const fn method(self) -> Method {
        match self {
            Self::Get => Method::GET,
            Self::Post => Method::POST,
            Self::Put => Method::PUT,
            Self::Delete => Method::DELETE,
        }
    }

    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::Post => "post",
            Self::Put => "put",
            Self::Delete => "delete",
        }
    }
}

/// A request to the admin plane.
pub(crate) struct AdminCall<'a> {
    pub(crate) admin: &'a Arc<Admin>,
    /// The name in the path.
    pub(crate) name: &'a str,
    pub(crate) query: &'a str,
    /// The format that it asks for where there are several: of the metrics.
    pub(crate) page_format: PageFormat,
    pub(crate) body: &'a [u8],
}

/// A response.
pub(crate) enum AdminReply {
    Json(Value),
    Text { kind: &'static str, text: String },
    Stream(LiveStream),
    Asset(Asset),
}

/// An error response.
pub(crate) struct AdminError {
    pub(crate) status: u16,
    pub(crate) message: String,
    pub(crate) problems: Option<Value>,
}

impl AdminError {
    pub(crate) fn new(status: u16, message: impl Into<String>) -> Self {
        Self { status, message: message.into(), problems: None }
    }
}

pub(crate) type AdminResult = Result<AdminReply, AdminError>;

/// One endpoint.
#[derive(Clone, Copy)]
pub(crate) struct AdminRoute {
    pub(crate) method: Verb,
    pub(crate) path: Pattern,
    pub(crate) id: &'static str,
    pub(crate) summary: &'static str,
    /// Description of `{name}` in the path.
    pub(crate) named: &'static str,
    /// The query parameters, with their types and descriptions.
    pub(crate) query: &'static [(&'static str, &'static str, &'static str)],
    /// The format and the description of the request body.
    pub(crate) takes: Option<(AdminBody, &'static str)>,
    pub(crate) answers: AdminBody,
    /// The schema of a JSON response: a name in `schemas.json`, or a type.
    pub(crate) schema: &'static str,
    pub(crate) answer: fn(&AdminCall<'_>) -> AdminResult,
}

/// A file of the dashboard.
#[derive(Clone, Copy)]
pub(crate) struct Asset {
    pub(crate) kind: &'static str,
    pub(crate) text: &'static str,
}
