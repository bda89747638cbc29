//! The endpoints of the admin plane, as a table that is served and from which the OpenAPI
//! description is generated.

use serde_json::Value;

use crate::call::Verb::{self, Delete, Get, Post, Put};
use crate::call::{AdminBody, AdminCall, AdminError, AdminReply, AdminResult, AdminRoute};
use crate::table::Pattern;
use crate::viewers::TooManyViewers;
use crate::{batches, decisions, live, openapi, page, pods, prefixes, search, setup};

/// The OpenAPI description of the admin plane.
#[must_use]
pub fn description() -> Value {
    openapi::describe(ROUTES)
}

fn get_description(_: &AdminCall<'_>) -> AdminResult {
    Ok(AdminReply::Json(description()))
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
        query: &[],
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
    let full =
        |TooManyViewers| AdminError::new(503, "too many dashboards are open; close another one");
    live::watch(call.admin).map(AdminReply::Stream).map_err(full)
}

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
    returning("Decisions", AdminRoute { query: search::PARAMETERS, ..route(Get, "/decisions", "listDecisions", "The last requests and the failures of a day, the latest first.", decisions::list) }),
    returning("Decision", AdminRoute { named: "The request's `x-request-id`, percent-encoded.", ..route(Get, "/decisions/{name}", "getDecision", "One request, with its decision if that was recorded.", decisions::get) }),
    returning("History", AdminRoute { query: &[("seconds", "integer", "The length of the range; an hour by default, a day at most."), ("pod", "string", "The pod whose times are wanted; by default those of the 32 pods with the longest ones.")], ..route(Get, "/history", "getHistory", "Rates and times of the last `?seconds=`, times by pod, and what changed meanwhile: one value per second up to an hour (by pod, per ten seconds), beyond it one per minute (by pod, per five minutes); null where nothing is known.", decisions::history) }),
    returning("Traffic", AdminRoute { query: &[("after", "integer", "The sequence number of the last known request; all by default.")], ..route(Get, "/traffic", "listTraffic", "Requests that finished since `?after=`, as lengths and block hashes; each call enables recording for 10 s.", decisions::traffic) }),
    returning("Explained", taking(route(Post, "/explain", "explain", "Explain how a request would be routed now.", decisions::explain), AdminBody::Json, "`{\"path\": \"/v1/chat/completions\", \"headers\": {…}, \"tenant\": \"…\", \"body\": {…}}`")),
    returning("Profiles", route(Get, "/profiles", "listProfiles", "The profiles in use, with every default, and their routes.", setup::profiles)),
    returning("Checked", taking(route(Post, "/profiles/check", "checkProfile", "Check a profile; changes nothing.", setup::check_profile), AdminBody::Text, "A profile.")),
    returning("Config", route(Get, "/config", "getConfig", "The configuration file, and its problems when it was last read.", setup::config)),
    returning("Effective", route(Get, "/config/effective", "getEffectiveConfig", "Every key of the configuration in force, and where its value comes from.", setup::effective)),
    returning("Checked", taking(route(Post, "/config/check", "checkConfig", "Check a configuration; changes nothing.", setup::check_config), AdminBody::Text, "A configuration.")),
    returning("Reloaded", route(Post, "/config/reload", "reloadConfig", "Reload the configuration; an invalid one changes nothing.", setup::reload)),
    returning("LogLevel", route(Get, "/log-level", "getLogLevel", "The log level.", setup::log_level)),
    returning("LogLevel", taking(route(Put, "/log-level", "setLogLevel", "Set the log level.", setup::set_log_level), AdminBody::Json, "`{\"level\": \"debug\"}`")),
    AdminRoute { answers: AdminBody::Text, ..route(Get, "/metrics", "getMetrics", "The metrics, for Prometheus.", setup::metrics) },
    returning("object", route(Get, "/openapi.json", "getDescription", "This description.", get_description)),
];
