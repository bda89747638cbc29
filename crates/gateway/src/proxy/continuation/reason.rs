//! Why a stream is continued, or is not, and how often.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use wornpath_execution::{CallError, Endpoint};
use wornpath_routing::PlanStep;

/// Why a stream left its pod.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum BreakCause {
    /// The connection was lost, or closed before the end of the stream.
    Lost,
    /// No chunk came in time.
    Stalled,
    /// The engine reported an error, or aborted the request.
    EngineError,
    /// The pod is being drained.
    Drained,
}

impl BreakCause {
    const ALL: [Self; 4] = [Self::Lost, Self::Stalled, Self::EngineError, Self::Drained];

    /// The cause of a body that broke off; none if another pod would not help.
    pub(super) const fn of(error: &CallError) -> Option<Self> {
        match error {
            CallError::Broken(_) | CallError::Unfinished => Some(Self::Lost),
            CallError::Stalled(_) => Some(Self::Stalled),
            CallError::Status(_) => Some(Self::EngineError),
            _ => None,
        }
    }

    /// Its name in metrics and traces.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Lost => "lost",
            Self::Stalled => "stalled",
            Self::EngineError => "engine_error",
            Self::Drained => "drained",
        }
    }
}

macro_rules! reasons {
    ($($id:ident $name:literal $text:literal;)*) => {
        /// Why a stream is not continued.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub(crate) enum NotContinued { $(#[doc = $text] $id,)* }

        impl NotContinued {
            const ALL: &[Self] = &[$(Self::$id),*];

            /// Its name in metrics.
            pub(crate) const fn name(self) -> &'static str {
                match self { $(Self::$id => $name,)* }
            }

            /// What the client is told.
            pub(crate) const fn text(self) -> &'static str {
                match self { $(Self::$id => $text,)* }
            }
        }
    };
}

reasons! {
    Off "off" "`continuation.mode` is `off`";
    Api "api" "it is not known how the engines read this request of this API";
    Choices "choices" "the request asks for several choices";
    Seed "seed" "the request has a `seed`, which another engine cannot resume";
    Grammar "grammar" "the answer has a grammar or a format, whose state is lost";
    Logprobs "logprobs" "the request asks for log probabilities";
    Penalties "penalties" "the request has penalties that count the tokens of the answer";
    Tools "tools" "the request has tools, whose parser's state is lost";
    Reasoning "reasoning" "the answer has reasoning";
    Media "media" "the prompt has parts that are not text";
    Prompt "prompt" "the prompt is not one text";
    Rewritten "rewritten" "an earlier step has rewritten the prompt";
    Prefilled "prefilled" "the last message is already one of the assistant";
    Field "field" "the request or the answer has a field that a continuation may not keep right";
    Kept "kept" "the body and the answer are longer than `continuation.kept`";
    Memory "memory" "what is kept of all streams is at `continuation.memory`";
    Engine "engine" "no other pod is known to continue a message";
    Limit "limit" "the stream was continued `continuation.most` times";
    NoPod "no_pod" "no other pod can take it";
    Refused "refused" "the other pod did not answer with a stream";
    Overlap "overlap" "too much of the text would have to be generated again";
    Diverged "diverged" "the other pod did not continue the text";
    Final "final" "another pod would not help";
}

/// The pod that continues a stream.
pub(crate) struct Moved {
    pub(crate) step: PlanStep,
    pub(crate) endpoint: Arc<Endpoint>,
    pub(crate) retries: u32,
    pub(crate) has_extra_usage: bool,
    pub(crate) cause: BreakCause,
    /// Tokens that the client had.
    pub(crate) tokens: u64,
}

/// What was continued, what was not, and what is kept for it.
#[derive(Debug)]
pub(crate) struct Continuations {
    continued: [AtomicU64; BreakCause::ALL.len()],
    broken: [AtomicU64; NotContinued::ALL.len()],
    kept_bytes: AtomicUsize,
}

impl Default for Continuations {
    fn default() -> Self {
        Self {
            continued: [const { AtomicU64::new(0) }; BreakCause::ALL.len()],
            broken: [const { AtomicU64::new(0) }; NotContinued::ALL.len()],
            kept_bytes: AtomicUsize::new(0),
        }
    }
}

impl Continuations {
    pub(super) fn count_continued(&self, cause: BreakCause) {
        self.continued[cause as usize].fetch_add(1, Relaxed);
    }

    pub(crate) fn count_broken(&self, why: NotContinued) {
        self.broken[why as usize].fetch_add(1, Relaxed);
    }

    /// Reserves bytes, if all that is kept then fits.
    pub(super) fn keep(&self, bytes: usize, limit: usize) -> bool {
        let next = |kept: usize| kept.checked_add(bytes).filter(|kept| *kept <= limit);
        self.kept_bytes.fetch_update(Relaxed, Relaxed, next).is_ok()
    }

    pub(super) fn release(&self, bytes: usize) {
        self.kept_bytes.fetch_sub(bytes, Relaxed);
    }

    /// Bytes that are kept.
    pub(crate) fn kept_bytes(&self) -> usize {
        self.kept_bytes.load(Relaxed)
    }

    /// Every outcome with its reason and its number.
    pub(crate) fn counts(&self) -> impl Iterator<Item = ([&'static str; 2], u64)> {
        let continued = BreakCause::ALL.iter().map(|cause| {
            (["continued", cause.name()], self.continued[*cause as usize].load(Relaxed))
        });
        let broken = NotContinued::ALL
            .iter()
            .map(|why| (["broken", why.name()], self.broken[*why as usize].load(Relaxed)));
        continued.chain(broken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_outcome_is_counted_under_its_own_name() {
        let all = Continuations::default();
        for cause in BreakCause::ALL {
            all.count_continued(cause);
        }
        NotContinued::ALL.iter().for_each(|why| all.count_broken(*why));
        let counts: Vec<_> = all.counts().collect();
        assert!(counts.iter().all(|(_, count)| *count == 1));
        for (at, (labels, _)) in counts.iter().enumerate() {
            assert!(counts[..at].iter().all(|(other, _)| other != labels), "{labels:?} twice");
        }
    }

    #[test]
    fn no_more_is_kept_than_the_limit() {
        let all = Continuations::default();
        assert!(all.keep(60, 100) && !all.keep(41, 100) && all.keep(40, 100));
        all.release(60);
        assert_eq!(all.kept_bytes(), 40);
        assert!(!all.keep(usize::MAX, 100));
    }
}
