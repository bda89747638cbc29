//! Says in the log why cache events do not come: once for each reason, however often it is tried.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use wornpath_events::{FeedState, PodStatus};
use wornpath_index::Moment;

/// What has not been so for this long is told again.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(60);

/// What was told.
#[derive(Debug, Default)]
pub(crate) struct EventAlerts {
    /// By source.
    unreachable: AlertState,
    /// By pod.
    quarantined: AlertState,
}

/// Something to be told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum EventAlert<'a> {
    /// A source cannot be reached.
    Unreachable { pod: &'a str, source: &'a str, reason: &'a str },
    /// A pod's events are passed over.
    Quarantined { pod: &'a str, reason: &'a str },
}

impl EventAlerts {
    /// What is new, and to be told. Pods may share a source, of which the first is named.
    pub(crate) fn look<'a>(&mut self, pods: &'a [PodStatus], now: Moment) -> Vec<EventAlert<'a>> {
        self.unreachable.forget(now);
        self.quarantined.forget(now);
        let mut news = Vec::new();
        for PodStatus { pod, errors, status, .. } in pods {
            for trouble in errors {
                let (source, reason) = (&trouble.source, trouble.reason.as_str());
                if self.unreachable.is_new(source, reason, now) {
                    news.push(EventAlert::Unreachable { pod, source, reason });
                }
            }
            let reason = status.last_malformed.as_deref().unwrap_or_default();
            let is_quarantined = status.state == FeedState::Quarantined;
            if is_quarantined && self.quarantined.is_new(pod, reason, now) {
                news.push(EventAlert::Quarantined { pod, reason });
            }
        }
        news
    }
}

impl EventAlert<'_> {
    pub(crate) fn tell(self) {
        match self {
            Self::Unreachable { pod, source, reason } => {
                tracing::warn!(pod, source, "cache events cannot be had from there: {reason}");
            }
            Self::Quarantined { pod, reason } => {
                tracing::warn!(
                    pod,
                    "its cache events cannot be understood and are passed over for a while: {reason}"
                );
            }
        }
    }
}

/// The last reason, and when it was last seen.
#[derive(Debug, Default)]
struct AlertState(BTreeMap<Arc<str>, (String, Moment)>);

impl AlertState {
    fn forget(&mut self, now: Moment) {
        self.0.retain(|_, (_, seen)| now.saturating_sub(*seen) < FORGOTTEN_AFTER);
    }

    fn is_new(&mut self, who: &Arc<str>, reason: &str, now: Moment) -> bool {
        match self.0.get_mut(who) {
            Some((told, seen)) if *told == reason => {
                *seen = now;
                false
            }
            _ => {
                self.0.insert(Arc::clone(who), (reason.to_owned(), now));
                true
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wornpath_events::{Feed, FeedRules, SourceError};

    fn status(pod: &str, reason: &str) -> PodStatus {
        let trouble = SourceError { source: "redis://there".into(), reason: reason.to_owned() };
        PodStatus {
            pod: pod.into(),
            sources: Vec::new(),
            errors: vec![trouble],
            status: Feed::new(FeedRules::default()).status(Moment::ZERO),
        }
    }

    #[test]
    fn a_reason_is_told_once_for_a_source_until_it_changes_or_is_long_past() {
        let mut unheard = EventAlerts::default();
        let second = Duration::from_secs;
        let mut told =
            |reason, now| unheard.look(&[status("a", reason), status("b", reason)], now).len();
        assert_eq!(told("refused", second(0)), 1);
        assert_eq!(told("refused", second(50)), 0);
        assert_eq!(told("refused", second(100)), 0, "it is still so");
        assert_eq!(told("wrong password", second(101)), 1);
        assert_eq!(told("wrong password", second(200)), 1, "it was well in between");
    }

    #[test]
    fn a_pod_that_is_quarantined_is_told_once_with_what_was_wrong() {
        let mut quarantined = status("a", "");
        quarantined.errors.clear();
        quarantined.status.last_malformed = Some("block_size".to_owned());
        let (mut unheard, now) = (EventAlerts::default(), Moment::ZERO);
        assert_eq!(unheard.look(&[quarantined.clone()], now), []);
        quarantined.status.state = FeedState::Quarantined;
        let news = EventAlert::Quarantined { pod: "a", reason: "block_size" };
        assert_eq!(unheard.look(&[quarantined.clone()], now), [news]);
        assert_eq!(unheard.look(&[quarantined], now), []);
    }
}
