//! `limits`, `timeouts`, `retries`, `breaker` and `drain`.

use std::time::Duration;

use wornpath_execution::{BreakerRules, BudgetRules, Timeouts};
use wornpath_yaml::{Node, Parameter, Problem, ProblemKind, Takes};

use crate::diagnostics::Diagnostics;
use crate::section::Section;
use crate::settings::{Drain, GatewayLimits, Settings};

#[rustfmt::skip]
pub(crate) const LIMITS: &[Parameter] = &[
    Parameter::with_default("body", Takes::Size(1 << 10, 1 << 32), "16MiB", "Maximum request body size; larger ones get 413."),
    Parameter::with_default("bodies", Takes::Size(1 << 20, 1 << 40), "512MiB", "Maximum total size of request bodies in memory, from their first byte until the response begins; at least twice `body`. Bodies up to 64KiB are not counted. A tenant, or a client address if there are no tenants, may hold as much as it leaves free: half, if it is alone. A body that finds no room waits for one to two seconds, then gets 503."),
    Parameter::with_default("headers", Takes::Whole(16, 1024), "100", "Maximum number of request headers."),
    Parameter::with_default("head", Takes::Size(8 << 10, 1 << 20), "64KiB", "Maximum size of the request line and headers."),
    Parameter::with_default("connections", Takes::Whole(1, 1 << 20), "16384", "Maximum open client connections."),
    Parameter::with_default("head_time", Takes::Time, "60s", "Timeout for receiving a request's headers, including idle time between two requests."),
    Parameter::with_default("body_time", Takes::Time, "60s", "Timeout for receiving a request body."),
    Parameter::with_default("body_grace", Takes::Time, "20s", "How long a request body may arrive at less than 1KiB per second; then it gets 408."),
    Parameter::with_default("inline", Takes::Size(0, 1 << 32), "64KiB", "Bodies of at least this size are tokenized on another thread, so that they do not delay other requests."),
    Parameter::with_default("tokenize_time", Takes::Time, "5s", "Time for tokenizing such a body, including its wait for a thread. A prompt that is not tokenized by then is routed by load, without a prediction."),
    Parameter::with_default("prompt_tokens", Takes::Whole(1 << 10, 1 << 32), "1048576", "Prompts of more tokens are routed by load, without a prediction, unless the engines report or the pods configure another context length of the model."),
    Parameter::with_default("waiting", Takes::Size(1 << 10, 1 << 40), "256MiB", "Maximum total body size of requests in the wait queue, and also of bodies that wait for tokenizing; the maximum number of queued requests is set by each profile."),
    Parameter::with_default("pods", Takes::Whole(1, 4096), "256", "Minimum capacity for pods, including those discovered or added later; the listed pods always fit. Memory is allocated for 256, 1024 or 4096 pods."),
];

#[rustfmt::skip]
pub(crate) const TIMEOUTS: &[Parameter] = &[
    Parameter::with_default("connect", Takes::Time, "2s", "Establishing a connection to a pod."),
    Parameter::with_default("first_byte", Takes::Time, "120s", "From sending a request to the first byte of its response."),
    Parameter::with_default("unstreamed", Takes::Time, "600s", "The same for a generated response that is not streamed: its first byte arrives when generation ends. Never less than `first_byte`."),
    Parameter::with_default("between_bytes", Takes::Time, "60s", "Between two chunks of a response, read from the engine or written to the client."),
    Parameter::with_default("total", Takes::Time, "3600s", "The whole call."),
];

#[rustfmt::skip]
pub(crate) const RETRIES: &[Parameter] = &[
    Parameter::with_default("share", Takes::Number(0.0, 1.0), "0.2", "Retry budget: retries per request, averaged over all requests."),
    Parameter::with_default("per_second", Takes::Number(0.0, 1e6), "10", "Additional retries per second."),
    Parameter::with_default("most", Takes::Number(1.0, 1e6), "100", "Maximum size of the retry budget."),
];

#[rustfmt::skip]
pub(crate) const BREAKER: &[Parameter] = &[
    Parameter::with_default("failures", Takes::Whole(1, 1000), "5", "Consecutive failures that open a pod's circuit breaker; a refused connection opens it at once."),
    Parameter::with_default("first_pause", Takes::Time, "100ms", "Time until the first probe of an open breaker; doubled each time, up to one second."),
    Parameter::with_default("longest_rest", Takes::Time, "10s", "Maximum backoff for an overloaded pod, whatever its `retry-after` says."),
];

#[rustfmt::skip]
pub(crate) const DRAIN: &[Parameter] = &[
    Parameter::with_default("lame_duck", Takes::Time, "1s", "Time after SIGTERM in which connections are still accepted while `/ready` fails."),
    Parameter::with_default("grace", Takes::Time, "30s", "Time for in-flight requests to finish after that. The process exits at most 2s later."),
    Parameter::optional("move_after", Takes::Time, "How long a draining pod finishes its streams before those that can be continued (`continuation`) move to other pods; by default they stay."),
];

/// Reads these five sections into `settings`.
pub(crate) fn bounds(root: &Node, settings: &mut Settings, diagnostics: &mut Diagnostics) {
    let mut section = |key, parameters: &[Parameter]| {
        Section::of(root.get(key), key, root.span, parameters, &mut diagnostics.problems)
    };
    let limits = section("limits", LIMITS);
    let timeouts = section("timeouts", TIMEOUTS);
    let retries = section("retries", RETRIES);
    let breaker = section("breaker", BREAKER);
    let drain = section("drain", DRAIN);
    let time = |section: &Section<'_>, key| section.or(key, Duration::ZERO);
    let never_zero: [(&Section<'_>, &[&'static str]); 3] = [
        (&limits, &["head_time", "body_time", "body_grace", "tokenize_time"]),
        (&timeouts, &["connect", "first_byte", "unstreamed", "between_bytes", "total"]),
        (&breaker, &["first_pause"]),
    ];
    for (section, keys) in never_zero {
        for key in keys {
            diagnostics.check_nonzero(section, key);
        }
    }
    settings.limits = GatewayLimits {
        body_bytes: limits.or("body", 0),
        bodies_bytes: limits.or("bodies", 0),
        headers: limits.or("headers", 0),
        head_bytes: limits.or("head", 0),
        connections: limits.or("connections", 0),
        head_time: time(&limits, "head_time"),
        body_time: time(&limits, "body_time"),
        body_grace: time(&limits, "body_grace"),
        inline_bytes: limits.or("inline", 0),
        tokenize_time: time(&limits, "tokenize_time"),
        prompt_tokens: limits.or("prompt_tokens", 0),
        waiting_bytes: limits.or("waiting", 0),
        pods: limits.or("pods", 0),
    };
    settings.timeouts = Timeouts {
        connect: time(&timeouts, "connect"),
        first_byte: time(&timeouts, "first_byte"),
        between_bytes: time(&timeouts, "between_bytes"),
        total: time(&timeouts, "total"),
    };
    settings.unstreamed = time(&timeouts, "unstreamed");
    settings.retries = BudgetRules {
        share: retries.or("share", 0.0),
        per_second: retries.or("per_second", 0.0),
        most: retries.or("most", 0.0),
    };
    settings.breaker = BreakerRules {
        failures: breaker.or("failures", 1),
        first_pause: time(&breaker, "first_pause"),
        longest_rest: time(&breaker, "longest_rest"),
    };
    settings.drain = Drain {
        lame_duck: time(&drain, "lame_duck"),
        grace: time(&drain, "grace"),
        move_after: drain.maybe("move_after"),
    };
    check_bodies_fit(&limits, &settings.limits, diagnostics);
    check_total_is_longest(&timeouts, settings.timeouts, settings.unstreamed, diagnostics);
}

/// Reports a budget in which the largest body never fits: one client gets half of it.
fn check_bodies_fit(section: &Section<'_>, limits: &GatewayLimits, diagnostics: &mut Diagnostics) {
    if section.node("bodies").is_some() && limits.bodies_bytes < limits.body_budget() {
        let message = "`bodies` is less than twice `body`, so a body of that size never fits";
        let problem = Problem::new(ProblemKind::Unreachable, section.at("bodies"), message);
        diagnostics.problems.push(problem.cure("give at least twice `body`, or lower `body`"));
    }
}

/// Reports timeouts longer than `total`, which would never take effect.
fn check_total_is_longest(
    section: &Section<'_>,
    timeouts: Timeouts,
    unstreamed: Duration,
    diagnostics: &mut Diagnostics,
) {
    let Timeouts { connect, first_byte, between_bytes, total } = timeouts;
    for (key, part) in [
        ("connect", connect),
        ("first_byte", first_byte),
        ("unstreamed", unstreamed),
        ("between_bytes", between_bytes),
    ] {
        if part > total && section.node(key).is_some() {
            let message = format!("`{key}` is longer than `total`, so it never takes effect");
            let problem = Problem::new(ProblemKind::Unreachable, section.at(key), message);
            diagnostics.problems.push(problem.cure("make it shorter than `total`"));
        }
    }
}
