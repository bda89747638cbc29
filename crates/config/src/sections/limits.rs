//! How much, how long, how often: limits of the client plane, timeouts, retries, breakers, draining.

use std::time::Duration;

use wornpath_execution::{BreakerRules, BudgetRules, Timeouts};
use wornpath_routing::document::Node;
use wornpath_routing::{Parameter, Problem, ProblemKind, Takes};

use crate::diagnostics::Diagnostics;
use crate::section::Section;
use crate::settings::{Drain, GatewayLimits, Settings};

#[rustfmt::skip]
pub(crate) const LIMITS: &[Parameter] = &[
    Parameter::with_default("body", Takes::Size(1 << 10, 1 << 32), "16MiB", "The largest body of a request; larger ones are answered with 413."),
    Parameter::with_default("headers", Takes::Whole(16, 1024), "100", "Header lines of a request."),
    Parameter::with_default("head", Takes::Size(8 << 10, 1 << 20), "64KiB", "Bytes of a request's line and headers."),
    Parameter::with_default("connections", Takes::Whole(1, 1 << 20), "16384", "Clients' connections at a time."),
    Parameter::with_default("head_time", Takes::Time, "60s", "How long a client may take to send the head of a request, the time between two requests included."),
    Parameter::with_default("body_time", Takes::Time, "60s", "How long a client may take to send its body."),
    Parameter::with_default("inline", Takes::Size(0, 1 << 32), "64KiB", "Bodies from this size on are tokenized apart, so that they keep nobody waiting."),
    Parameter::with_default("waiting", Takes::Size(1 << 10, 1 << 40), "256MiB", "Bytes of the bodies of all requests that wait for a pod; how many may wait, each profile says."),
    Parameter::with_default("pods", Takes::Whole(1, 4096), "256", "Pods that there is room for, counting those that are found or added later; there is always room for the pods that are listed. Memory is set aside for 256, 1024 or 4096."),
];

#[rustfmt::skip]
pub(crate) const TIMEOUTS: &[Parameter] = &[
    Parameter::with_default("connect", Takes::Time, "2s", "Until a connection to a pod stands."),
    Parameter::with_default("first_byte", Takes::Time, "120s", "From sending a request to the first byte of its answer."),
    Parameter::with_default("unstreamed", Takes::Time, "600s", "The same where the client wants no stream and the answer is generated: its first byte comes when all of it is. Never less than `first_byte`."),
    Parameter::with_default("between_bytes", Takes::Time, "60s", "Between two pieces of an answer, from the engine or taken by the client."),
    Parameter::with_default("total", Takes::Time, "3600s", "A whole call."),
];

#[rustfmt::skip]
pub(crate) const RETRIES: &[Parameter] = &[
    Parameter::with_default("share", Takes::Number(0.0, 1.0), "0.2", "Retries for each request, over all requests."),
    Parameter::with_default("per_second", Takes::Number(0.0, 1e6), "10", "Retries a second besides."),
    Parameter::with_default("most", Takes::Number(1.0, 1e6), "100", "Retries that may be saved up."),
];

#[rustfmt::skip]
pub(crate) const BREAKER: &[Parameter] = &[
    Parameter::with_default("failures", Takes::Whole(1, 1000), "5", "Failures in a row that cut a pod off; one that refuses connections is cut off at once."),
    Parameter::with_default("first_pause", Takes::Time, "100ms", "How long until it is probed; doubled each time, up to a second."),
    Parameter::with_default("longest_rest", Takes::Time, "10s", "The longest that a busy pod is left alone, whether it asked for it or not."),
];

#[rustfmt::skip]
pub(crate) const DRAIN: &[Parameter] = &[
    Parameter::with_default("lame_duck", Takes::Time, "1s", "How long connections are still accepted after SIGTERM, while `/ready` says no."),
    Parameter::with_default("grace", Takes::Time, "30s", "How long requests may take to finish after that. 2s later the process has ended, whatever is stuck."),
];

/// Fills in the bounds of `settings`.
pub(crate) fn bounds(root: &Node, settings: &mut Settings, notes: &mut Diagnostics) {
    let mut section = |key, parameters: &[Parameter]| {
        Section::of(root.get(key), (key, root.span), parameters, &mut notes.problems)
    };
    let limits = section("limits", LIMITS);
    let timeouts = section("timeouts", TIMEOUTS);
    let retries = section("retries", RETRIES);
    let breaker = section("breaker", BREAKER);
    let drain = section("drain", DRAIN);
    let time = |section: &Section<'_>, key| section.or(key, Duration::ZERO);
    let never_zero: [(&Section<'_>, &[&'static str]); 3] = [
        (&limits, &["head_time", "body_time"]),
        (&timeouts, &["connect", "first_byte", "unstreamed", "between_bytes", "total"]),
        (&breaker, &["first_pause"]),
    ];
    for (section, keys) in never_zero {
        for key in keys {
            notes.must_not_be_zero(section, key);
        }
    }
    settings.limits = GatewayLimits {
        body_bytes: limits.or("body", 0),
        headers: limits.or("headers", 0),
        head_bytes: limits.or("head", 0),
        connections: limits.or("connections", 0),
        head_time: time(&limits, "head_time"),
        body_time: time(&limits, "body_time"),
        inline_bytes: limits.or("inline", 0),
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
    settings.drain = Drain { lame_duck: time(&drain, "lame_duck"), grace: time(&drain, "grace") };
    whole_is_longest(&timeouts, (settings.timeouts, settings.unstreamed), notes);
}

/// A part that may take longer than the whole never ends a call, which whoever wrote it expects.
fn whole_is_longest(
    section: &Section<'_>,
    (timeouts, unstreamed): (Timeouts, Duration),
    notes: &mut Diagnostics,
) {
    let Timeouts { connect, first_byte, between_bytes, total } = timeouts;
    for (key, part) in [
        ("connect", connect),
        ("first_byte", first_byte),
        ("unstreamed", unstreamed),
        ("between_bytes", between_bytes),
    ] {
        if part > total && section.node(key).is_some() {
            let message = format!("`{key}` is longer than `total`, so it never ends a call");
            let problem = Problem::new(ProblemKind::Unreachable, section.at(key), message);
            notes.problems.push(problem.cure("make it shorter than `total`"));
        }
    }
}
