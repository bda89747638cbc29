//! Reads `speculate` and `without_events`: what the index is told that no engine has confirmed.
//!
//! A pod that was just sent a prompt will hold it soon, and `speculate` says for how long the index
//! believes so. A pod without events never confirms anything, so its cache can only be approximated
//! from what it was sent; whether that is good enough is the profile's decision.

use std::time::Duration;

use wornpath_yaml::{Node, Problem, ProblemKind, Takes, Value, writer};

use super::render::ProfileView;
use super::slots;
use crate::plugin::Blueprint;
use crate::values::BlockHashes;

/// How pods without cache events are treated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WithoutEvents {
    /// Their caches are approximated from what they were sent.
    Approximate,
    /// A fleet with such a pod is refused.
    Refuse,
}

impl WithoutEvents {
    /// Its word in YAML.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Approximate => "approximate",
            Self::Refuse => "refuse",
        }
    }
}

/// Reads `speculate`: `off`, or how long the index believes that a pod holds what it was sent. Ten
/// seconds by default, if the profile hashes prompts.
pub(super) fn speculate(
    node: Option<&Node>,
    blueprint: &mut Blueprint,
    view: &mut ProfileView,
) -> Option<Duration> {
    let time = match node {
        None => slots::is_written::<BlockHashes>(blueprint).then_some(Duration::from_secs(10)),
        Some(node) if node.text() == Some("off") => None,
        Some(node) => match Takes::Time.read(node) {
            Some(Value::Time(time)) => {
                slots::pipeline_reads::<BlockHashes>(blueprint, "speculate", node.span);
                Some(time)
            }
            _ => {
                let found = node.text().unwrap_or_else(|| node.kind());
                let message = format!("`speculate` is `{found}`");
                blueprint.problems.push(Problem::new(ProblemKind::BadParameter, node.span, message).cure(
                    "give `off`, or how long a pod is expected to hold what it was sent, such as `10s`",
                ));
                None
            }
        },
    };
    view.speculate = time.map_or_else(|| "off".to_owned(), writer::time);
    time
}

/// Reads `without_events`, which has an effect only in profiles that look prompts up.
pub(super) fn without_events(
    node: Option<&Node>,
    blueprint: &mut Blueprint,
    view: &mut ProfileView,
) -> WithoutEvents {
    let chosen = match node.map(|node| (node, node.text())) {
        None | Some((_, Some("approximate"))) => WithoutEvents::Approximate,
        Some((_, Some("refuse"))) => WithoutEvents::Refuse,
        Some((node, text)) => {
            let message = format!("`without_events` is `{}`", text.unwrap_or_else(|| node.kind()));
            let problem = Problem::new(ProblemKind::BadParameter, node.span, message);
            blueprint.problems.push(problem.cure("give `approximate` or `refuse`"));
            WithoutEvents::Approximate
        }
    };
    if let Some(node) = node {
        slots::pipeline_reads::<BlockHashes>(blueprint, "without_events", node.span);
    }
    if slots::is_written::<BlockHashes>(blueprint) {
        view.without_events = Some(chosen.word());
    }
    chosen
}
