//! The endpoints of the admin plane, as a table that is served and from which the OpenAPI
//! description is generated.

use hyper::Method;
use serde_json::Value;

use std::sync::Arc;

use crate::admin::Admin;
use crate::live::{self, LiveStream};
use crate::page::{self, Asset};
use crate::table::Pattern;
use crate::{batches, decisions, pods, prefixes, setup};

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
    pub(crate) body: &'a [u8],
}

/// A response.
pub(crate) enum AdminReply {
    Json(Value),
    Text(String),
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
    /// The query parameter and its description.
    pub(crate) query: Option<(&'static str, &'static str)>,
    /// The format and the description of the request body.
    pub(crate) takes: Option<(AdminBody, &'static str)>,
    pub(crate) answers: AdminBody,
    /// The schema of a JSON response: a name in `schemas.json`, or a type.
    pub(crate) schema: &'static str,
    pub(crate) answer: fn(&AdminCall<'_>) -> AdminResult,
}

const fn route(
    method: Verb,
    path: &'static str,
    id: &'static str,
    summary: &'static str,
    answer: fn(&AdminCall<'_>) -> AdminResult,
) -> AdminRoute {
    AdminRoute {
        method,
        path: Pattern(path),
        id,
        summary,
        named: "The pod's name, percent-encoded.",
        query: None,
        takes: None,
        answers: AdminBody::Json,
        schema: "",
        answer,
    }
}

const fn returning(schema: &'static str, route: AdminRoute) -> AdminRoute {
    AdminRoute { schema, ..route }
}

const fn taking(route: AdminRoute, kind: AdminBody, what: &'static str) -> AdminRoute {
    AdminRoute { takes: Some((kind, what)), ..route }
}

impl AdminRoute {
    /// Whether it is served without a token: only the static files, which are public.
    pub(crate) fn is_public(&self) -> bool {
        self.answers == AdminBody::Asset
    }
}

/// Streams a snapshot every second.
fn live(call: &AdminCall<'_>) -> AdminResult {
    let full = |live::TooManyViewers| {
        AdminError::new(503, "too many dashboards are open; close another one")
    };
    live::watch(call.admin).map(AdminReply::Stream).map_err(full)
}

use Verb::{Delete, Get, Post, Put};

/// All endpoints.
#[rustfmt::skip]
pub(crate) const ROUTES: &[AdminRoute] = &[
    AdminRoute { answers: AdminBody::Asset, ..route(Get, "/", "getDashboard", "The dashboard, for browsers.", page::page) },
    AdminRoute { answers: AdminBody::Asset, named: "The file's name.", ..route(Get, "/dashboard/{name}", "getDashboardFile", "A file of the dashboard.", page::file) },
    AdminRoute { answers: AdminBody::Stream, ..route(Get, "/live", "watch", "A snapshot of the router every second, as server-sent events `snapshot` with JSON.", live) },
    returning("Pods", route(Get, "/pods", "listPods", "All pods with their properties, load, health, breaker and events.", pods::list)),
    returning("Added", taking(route(Post, "/pods", "addPod", "Add a pod until it is removed or the router exits.", pods::add), AdminBody::Json, "A pod as in `pods` of the configuration.")),
    returning("Pod", route(Get, "/pods/{name}", "getPod", "One pod.", pods::get)),
    returning("Removed", route(Delete, "/pods/{name}", "removePod", "Remove a pod; its requests in flight may finish.", pods::remove)),
    returning("Draining", route(Post, "/pods/{name}/drain", "drainPod", "Drain a pod: it gets no new requests.", pods::drain)),
    returning("Resumed", route(Post, "/pods/{name}/resume", "resumePod", "Resume a drained pod, once it passes a probe.", pods::resume)),
    returning("Index", route(Get, "/index", "getIndex", "The size of the index, in total and per pod.", pods::index)),
    returning("Prefixes", route(Get, "/index/prefixes", "listPrefixes", "The largest cached prefixes, and the pods that hold them.", prefixes::list)),
    returning("Forest", AdminRoute { named: "The batch's id.", ..route(Get, "/batches/{name}/forest", "getBatchForest", "The prefix forest of a batch's plan, while it runs and for the last ten finished batches.", batches::forest) }),
    returning("Decisions", AdminRoute { query: Some(("last", "Maximum number of requests; 20 by default.")), ..route(Get, "/decisions", "listDecisions", "The last requests and their pods; `?last=20`.", decisions::list) }),
    returning("Decision", AdminRoute { named: "The request's `x-request-id`, percent-encoded.", ..route(Get, "/decisions/{name}", "getDecision", "One request, with its decision if that was recorded.", decisions::get) }),
    returning("Traffic", AdminRoute { query: Some(("after", "The sequence number of the last known request; all by default.")), ..route(Get, "/traffic", "listTraffic", "Requests that finished since `?after=`, as lengths and block hashes; each call enables recording for 10 s.", decisions::traffic) }),
    returning("Explained", taking(route(Post, "/explain", "explain", "Explain how a request would be routed now.", decisions::explain), AdminBody::Json, "`{\"path\": \"/v1/chat/completions\", \"headers\": {…}, \"tenant\": \"…\", \"body\": {…}}`")),
    returning("Profiles", route(Get, "/profiles", "listProfiles", "The profiles in use, with every default, and their routes.", setup::profiles)),
    returning("Checked", taking(route(Post, "/profiles/check", "checkProfile", "Check a profile; changes nothing.", setup::check_profile), AdminBody::Text, "A profile.")),
    returning("Config", route(Get, "/config", "getConfig", "The configuration file, and its problems when it was last read.", setup::config)),
    returning("Checked", taking(route(Post, "/config/check", "checkConfig", "Check a configuration; changes nothing.", setup::check_config), AdminBody::Text, "A configuration.")),
    returning("Reloaded", route(Post, "/config/reload", "reloadConfig", "Reload the configuration; an invalid one changes nothing.", setup::reload)),
    returning("LogLevel", route(Get, "/log-level", "getLogLevel", "The log level.", setup::log_level)),
    returning("LogLevel", taking(route(Put, "/log-level", "setLogLevel", "Set the log level.", setup::set_log_level), AdminBody::Json, "`{\"level\": \"debug\"}`")),
    AdminRoute { answers: AdminBody::Text, ..route(Get, "/metrics", "getMetrics", "The metrics, for Prometheus.", setup::metrics) },
    returning("object", route(Get, "/openapi.json", "getDescription", "This description.", setup::description)),
];
