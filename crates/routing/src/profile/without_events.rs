//! `without_events`: what becomes of pods that never tell what they hold.
//!
//! Their caches can only be guessed from what they were sent. Whether that is good enough is for a profile to say, not
//! for the router to do in silence.

use wornpath_yaml::{Node, Problem, ProblemKind};

use super::render::ProfileView;
use super::slots;
use crate::assembly::Blueprint;
use crate::values::BlockHashes;

/// What becomes of pods that never tell what they hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WithoutEvents {
    /// What they hold is guessed from what they were sent.
    Approximate,
    /// A fleet that has any is refused.
    Refuse,
}

impl WithoutEvents {
    /// As it is written.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Approximate => "approximate",
            Self::Refuse => "refuse",
        }
    }
}

/// Reads `without_events`, which concerns profiles that look at what pods hold, and no others.
pub(super) fn without_events(
    node: Option<&Node>,
    blueprint: &mut Blueprint,
    sheet: &mut ProfileView,
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
        sheet.without_events = Some(chosen.word());
    }
    chosen
}
