//! What the admin plane can be asked: one line for each, which is served and described alike.

use hyper::Method;
use serde_json::Value;

use std::sync::Arc;

use crate::admin::Admin;
use crate::live::{self, LiveStream};
use crate::page::{self, Asset};
use crate::table::Pattern;
use crate::{batches, decisions, pods, prefixes, setup};

/// What a body is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum AdminBody {
    Json,
    /// Prometheus' format in answers, YAML in requests.
    Text,
    /// Server-sent events, for as long as somebody listens.
    Stream,
    /// A file of the dashboard.
    Asset,
}

/// The methods that are used.
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

/// What somebody asks.
pub(crate) struct AdminCall<'a> {
    pub(crate) admin: &'a Arc<Admin>,
    /// The name in the path.
    pub(crate) name: &'a str,
    pub(crate) query: &'a str,
    pub(crate) body: &'a [u8],
}

/// What is answered.
pub(crate) enum AdminReply {
    Json(Value),
    Text(String),
    Stream(LiveStream),
    Asset(Asset),
}

/// Why nothing is answered.
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

/// One thing that can be asked.
#[derive(Clone, Copy)]
pub(crate) struct AdminRoute {
    pub(crate) method: Verb,
    pub(crate) path: Pattern,
    pub(crate) id: &'static str,
    pub(crate) summary: &'static str,
    /// What the name in the path is.
    pub(crate) named: &'static str,
    /// What may be asked for after the path's `?`, and what it means.
    pub(crate) query: Option<(&'static str, &'static str)>,
    /// What must be posted.
    pub(crate) takes: Option<(AdminBody, &'static str)>,
    pub(crate) answers: AdminBody,
    /// What is answered in JSON: a name in `schemas.json`, or a type.
    pub(crate) tells: &'static str,
    pub(crate) answer: fn(&AdminCall<'_>) -> AdminResult,
}

const fn route(
    method: Verb,
    path: &'static str,
    id: &'static str,
    summary: &'static str,
    answer: fn(&AdminCall<'_>) -> AdminResult,
) -> AdminRoute {
    let (named, answers) = ("The pod's name, percent-encoded.", AdminBody::Json);
    let path = Pattern(path);
    let (query, takes, tells) = (None, None, "");
    AdminRoute { method, path, id, summary, named, query, takes, answers, tells, answer }
}

const fn telling(tells: &'static str, route: AdminRoute) -> AdminRoute {
    AdminRoute { tells, ..route }
}

const fn taking(route: AdminRoute, kind: AdminBody, what: &'static str) -> AdminRoute {
    AdminRoute { takes: Some((kind, what)), ..route }
}

impl AdminRoute {
    /// Whether it is answered before a token is shown: only what everybody can read in the source.
    pub(crate) fn is_public(&self) -> bool {
        self.answers == AdminBody::Asset
    }
}

/// Everything that changes, once a second.
fn live(call: &AdminCall<'_>) -> AdminResult {
    let full = |live::TooManyViewers| {
        AdminError::new(503, "too many watch already; close another dashboard")
    };
    live::watch(call.admin).map(AdminReply::Stream).map_err(full)
}

use Verb::{Delete, Get, Post, Put};

/// Everything that can be asked.
#[rustfmt::skip]
pub(crate) const ROUTES: &[AdminRoute] = &[
    AdminRoute { answers: AdminBody::Asset, ..route(Get, "/", "getDashboard", "The dashboard, for browsers.", page::page) },
    AdminRoute { answers: AdminBody::Asset, named: "The file's name.", ..route(Get, "/dashboard/{name}", "getDashboardFile", "A file of the dashboard.", page::file) },
    AdminRoute { answers: AdminBody::Stream, ..route(Get, "/live", "watch", "Everything that changes, once a second, as events `snapshot` with JSON.", live) },
    telling("Pods", route(Get, "/pods", "listPods", "Every pod: who it is, its load, health, breaker and events.", pods::list)),
    telling("Added", taking(route(Post, "/pods", "addPod", "Add a pod until it is removed or the router ends.", pods::add), AdminBody::Json, "A pod as in `pods` of the configuration.")),
    telling("Pod", route(Get, "/pods/{name}", "getPod", "One pod.", pods::get)),
    telling("Removed", route(Delete, "/pods/{name}", "removePod", "Remove a pod; requests that it works on may finish.", pods::remove)),
    telling("Draining", route(Post, "/pods/{name}/drain", "drainPod", "Send a pod nothing new.", pods::drain)),
    telling("Resumed", route(Post, "/pods/{name}/resume", "resumePod", "Send a drained pod requests again, once it has answered.", pods::resume)),
    telling("Index", route(Get, "/index", "getIndex", "How large the index is, in all and for every pod.", pods::index)),
    telling("Prefixes", route(Get, "/index/prefixes", "listPrefixes", "The largest prefixes in the caches, and who holds them.", prefixes::list)),
    telling("Forest", AdminRoute { named: "The batch's id.", ..route(Get, "/batches/{name}/forest", "getBatchForest", "The prefix forest of a batch's plan, while it runs and for the last ten that ended.", batches::forest) }),
    telling("Decisions", AdminRoute { query: Some(("last", "How many; 20 if not given.")), ..route(Get, "/decisions", "listDecisions", "The last requests and who answered them; `?last=20`.", decisions::list) }),
    telling("Decision", AdminRoute { named: "The request's `x-request-id`, percent-encoded.", ..route(Get, "/decisions/{name}", "getDecision", "One request, with everything that was taken down of it.", decisions::get) }),
    telling("Traffic", AdminRoute { query: Some(("after", "The number of the last one that is known; all if not given.")), ..route(Get, "/traffic", "listTraffic", "Requests that ended since `?after=`, as lengths and names of blocks; asking begins to take them down, for 10 s.", decisions::traffic) }),
    telling("Explained", taking(route(Post, "/explain", "explain", "How a request would be decided now, and why.", decisions::explain), AdminBody::Json, "`{\"path\": \"/v1/chat/completions\", \"headers\": {…}, \"tenant\": \"…\", \"body\": {…}}`")),
    telling("Profiles", route(Get, "/profiles", "listProfiles", "The profiles that decide, with every default, and the routes to them.", setup::profiles)),
    telling("Checked", taking(route(Post, "/profiles/check", "checkProfile", "What is wrong with a profile; changes nothing.", setup::check_profile), AdminBody::Text, "A profile.")),
    telling("Config", route(Get, "/config", "getConfig", "Which file is configured, and what was wrong with it the last time it was read.", setup::config)),
    telling("Checked", taking(route(Post, "/config/check", "checkConfig", "What is wrong with a configuration; changes nothing.", setup::check_config), AdminBody::Text, "A configuration.")),
    telling("Reloaded", route(Post, "/config/reload", "reloadConfig", "Read the configuration again; a bad one changes nothing.", setup::reload)),
    telling("LogLevel", route(Get, "/log-level", "getLogLevel", "What is logged.", setup::log_level)),
    telling("LogLevel", taking(route(Put, "/log-level", "setLogLevel", "Log more or less.", setup::set_log_level), AdminBody::Json, "`{\"level\": \"debug\"}`")),
    AdminRoute { answers: AdminBody::Text, ..route(Get, "/metrics", "getMetrics", "The metrics, for Prometheus.", setup::metrics) },
    telling("object", route(Get, "/openapi.json", "getDescription", "This description.", setup::description)),
];
