//! Slow pods: those that take several times as long as their peers.
//!
//! Pods are compared with those of the same models and roles: a larger model, or a prefill pod, is
//! slower by nature. A time to the first token depends on what is cached, so a pod that computes
//! more of its prompts than its peers may take longer by as much. A pod is measured over a few
//! seconds if it answers enough requests, else over at most a minute, and is called slow after two
//! measurements in a row. With less than three measured pods there is no saying which one is slow.

use std::collections::BTreeMap;
use std::time::Duration;

use wornpath_index::Moment;

use crate::observe::metrics::pod_times::PodTimes;

/// A slow pod takes this many times as long as half of its peers.
const SLOW: f64 = 3.0;
/// And is no longer slow below this many times.
const USUAL: f64 = 2.0;
/// Pods that must have been measured.
const MIN_PEERS: usize = 3;
/// A measurement takes at least this long.
const SHORTEST: Duration = Duration::from_secs(4);
/// And ends after this time, whatever was counted.
const LONGEST: Duration = Duration::from_secs(60);
/// Measurements in a row after which a pod is slow.
const IN_A_ROW: u32 = 2;

/// Of which time a pod is slow.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum PodTime {
    /// To the first token.
    FirstToken,
    /// Between two tokens.
    InterToken,
}

impl PodTime {
    /// Both.
    pub const ALL: [Self; 2] = [Self::FirstToken, Self::InterToken];

    /// Its name in metrics and JSON.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::FirstToken => "first_token",
            Self::InterToken => "inter_token",
        }
    }

    /// As people say it.
    const fn phrase(self) -> &'static str {
        match self {
            Self::FirstToken => "to the first token",
            Self::InterToken => "between two tokens",
        }
    }

    /// Seconds by which a slow pod differs at least: less is noise.
    const fn noticed(self) -> f64 {
        match self {
            Self::FirstToken => 0.1,
            Self::InterToken => 0.005,
        }
    }

    /// Counted times that make a measurement.
    const fn enough(self) -> u64 {
        match self {
            Self::FirstToken => 5,
            Self::InterToken => 50,
        }
    }

    /// Counted times without which a measurement says nothing.
    const fn least(self) -> u64 {
        match self {
            Self::FirstToken => 3,
            Self::InterToken => 20,
        }
    }

    fn measured(self, times: &PodTimes) -> Option<f64> {
        let measured = match self {
            Self::FirstToken => times.first_token(),
            Self::InterToken => times.inter_token(),
        };
        measured.filter(|_| self.counted(times) >= self.least())
    }

    fn counted(self, times: &PodTimes) -> u64 {
        match self {
            Self::FirstToken => times.first_tokens(),
            Self::InterToken => times.gaps(),
        }
    }
}

/// A pod that takes several times as long as its peers.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct SlowPod {
    /// Which of its times.
    pub time: PodTime,
    /// What it takes, in seconds.
    pub seconds: f64,
    /// What half of its peers take at most.
    pub usual: f64,
}

impl std::fmt::Display for SlowPod {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { time, seconds, usual } = self;
        let own = in_words(*seconds);
        let usual = in_words(*usual);
        write!(f, "{own} {}; half of its peers take {usual} at most", time.phrase())
    }
}

/// With the digits that matter.
fn in_words(seconds: f64) -> String {
    let millis = seconds * 1e3;
    match millis {
        ..10.0 => format!("{millis:.1} ms"),
        10.0..1000.0 => format!("{millis:.0} ms"),
        _ => format!("{seconds:.1} s"),
    }
}

/// How fast a pod is.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct PodSpeed {
    /// Half of the times to the first token are below this many seconds.
    pub first_token: Option<f64>,
    /// The mean time between two tokens, in seconds.
    pub inter_token: Option<f64>,
    /// Whether that is slow.
    pub slow: Option<SlowPod>,
}

/// The speeds of all pods.
#[derive(Default)]
pub(crate) struct PodSpeeds(BTreeMap<String, MeasuredPod>);

struct MeasuredPod {
    /// The models and roles of its peers.
    kind: String,
    /// The times at the start of the measurement in progress.
    before: PodTimes,
    since: Moment,
    /// The last measurement.
    last: PodTimes,
    /// Measurements in a row by which it is slow.
    slow_in_a_row: u32,
    slow: Option<SlowPod>,
}

impl PodSpeeds {
    /// Measures all pods of the fleet, each given with its models and roles, and returns those that
    /// became slow, or are no longer.
    pub(crate) fn update(
        &mut self,
        now: Moment,
        times: &BTreeMap<String, PodTimes>,
        kinds: &BTreeMap<String, String>,
    ) -> Vec<(String, Option<SlowPod>)> {
        self.0.retain(|pod, _| kinds.contains_key(pod));
        let nothing = PodTimes::default();
        let mut measured = Vec::new();
        for (pod, kind) in kinds {
            let counted = times.get(pod).unwrap_or(&nothing);
            let known = self.0.entry(pod.clone()).or_insert_with(|| MeasuredPod::new(counted, now));
            known.kind.clone_from(kind);
            if known.measure(counted, now) {
                measured.push(pod.clone());
            }
        }
        let judged: Vec<_> = measured.into_iter().map(|pod| (self.judged(&pod), pod)).collect();
        let mut changed = Vec::new();
        for (verdict, name) in judged {
            let Some(pod) = self.0.get_mut(&name) else { continue };
            let was_slow = pod.slow.is_some();
            pod.settle(verdict);
            if pod.slow.is_some() != was_slow {
                changed.push((name, pod.slow));
            }
        }
        changed
    }

    /// The speed of a pod by its last measurement.
    pub(crate) fn of(&self, pod: &str) -> PodSpeed {
        let Some(pod) = self.0.get(pod) else { return PodSpeed::default() };
        PodSpeed {
            first_token: pod.last.first_token(),
            inter_token: pod.last.inter_token(),
            slow: pod.slow,
        }
    }

    /// How a pod compares with its peers; the time that is the most out of proportion.
    fn judged(&self, pod: &str) -> Verdict {
        let pod = &self.0[pod];
        let peers: Vec<_> = self.0.values().filter(|peer| peer.kind == pod.kind).collect();
        let mut verdict = Verdict::Unknown;
        for time in PodTime::ALL {
            let Some(seconds) = time.measured(&pod.last) else { continue };
            let Some(usual) = median(peers.iter().filter_map(|peer| time.measured(&peer.last)))
            else {
                continue;
            };
            let mut allowed = 1.0;
            if time == PodTime::FirstToken {
                let usual = median(peers.iter().filter_map(|peer| peer.last.computed_tokens()));
                let more =
                    pod.last.computed_tokens().zip(usual).map(|(own, usual)| own / usual.max(1.0));
                allowed = more.unwrap_or(1.0).max(1.0);
            }
            let is_above = |factor: f64| {
                seconds > factor * allowed * usual && seconds > usual + time.noticed()
            };
            if is_above(SLOW) {
                return Verdict::Slow(SlowPod { time, seconds, usual });
            }
            if is_above(USUAL) {
                verdict = Verdict::Between;
            } else if verdict == Verdict::Unknown {
                verdict = Verdict::Usual;
            }
        }
        verdict
    }
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Verdict {
    /// Nothing was measured, or too few peers.
    Unknown,
    Usual,
    /// Not slow enough to be called so, and not fast enough to be called so no more.
    Between,
    Slow(SlowPod),
}

impl MeasuredPod {
    fn new(before: &PodTimes, since: Moment) -> Self {
        let last = PodTimes::default();
        let kind = String::new();
        Self { kind, before: *before, since, last, slow_in_a_row: 0, slow: None }
    }

    /// Ends the measurement if enough was counted, or after a long time. Returns whether it did.
    fn measure(&mut self, counted: &PodTimes, now: Moment) -> bool {
        let own = counted.since(&self.before);
        let is_enough = PodTime::ALL.iter().any(|time| time.counted(&own) >= time.enough());
        let age = now.since(self.since);
        if age < SHORTEST || (!is_enough && age < LONGEST) {
            return false;
        }
        self.last = own;
        self.before = *counted;
        self.since = now;
        true
    }

    fn settle(&mut self, verdict: Verdict) {
        match verdict {
            Verdict::Slow(slow) => {
                self.slow_in_a_row += 1;
                if self.slow.is_some() || self.slow_in_a_row >= IN_A_ROW {
                    self.slow = Some(slow);
                }
            }
            Verdict::Between => {}
            Verdict::Usual | Verdict::Unknown => {
                self.slow_in_a_row = 0;
                self.slow = None;
            }
        }
    }
}

/// The lower median, if there are enough values.
fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<_> = values.collect();
    if values.len() < MIN_PEERS {
        return None;
    }
    values.sort_by(f64::total_cmp);
    values.get((values.len() - 1) / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a pod has counted after so many seconds of this speed.
    fn counted(seconds: u64, first_token_ms: u64, gap_ms: u64, computed: u64) -> PodTimes {
        let requests = 2 * seconds;
        PodTimes::counted(
            Duration::from_millis(first_token_ms),
            requests,
            Duration::from_millis(gap_ms),
            20 * requests,
            computed,
        )
    }

    /// Watches a fleet for a minute, and returns what changed, with the second.
    fn watch(speeds: &mut PodSpeeds, pods: &[(&str, &str, [u64; 3])]) -> Vec<(u64, String, bool)> {
        watch_after(speeds, |_| PodTimes::default(), 0, pods)
    }

    /// The same after so many seconds, in which each pod has counted what `before` says.
    fn watch_after(
        speeds: &mut PodSpeeds,
        before: impl Fn(&str) -> PodTimes,
        start: u64,
        pods: &[(&str, &str, [u64; 3])],
    ) -> Vec<(u64, String, bool)> {
        let kinds = pods.iter().map(|(name, kind, _)| ((*name).into(), (*kind).into())).collect();
        let mut changed = Vec::new();
        for second in (2..60).step_by(2) {
            let times = pods.iter().map(|(name, _, [first, gap, computed])| {
                ((*name).to_owned(), counted(second, *first, *gap, *computed).and(&before(name)))
            });
            let now = Moment::from_secs(start + second);
            for (pod, slow) in speeds.update(now, &times.collect(), &kinds) {
                changed.push((second, pod, slow.is_some()));
            }
        }
        changed
    }

    #[test]
    fn a_pod_that_is_several_times_slower_than_its_peers_is_found_within_seconds() {
        let mut speeds = PodSpeeds::default();
        let pods = [
            ("a", "m", [100, 10, 50]),
            ("b", "m", [120, 11, 50]),
            ("c", "m", [1400, 10, 50]),
            ("d", "m", [90, 10, 50]),
            // A large model is slower by nature.
            ("e", "xl", [1400, 90, 50]),
        ];
        assert_eq!(watch(&mut speeds, &pods), [(10, "c".to_owned(), true)]);
        let slow = speeds.of("c").slow.unwrap();
        assert_eq!(slow.time, PodTime::FirstToken);
        let told = slow.to_string();
        assert!(told.contains(" s to the first token; half of its peers take "), "{told}");
        assert!(told.ends_with(" ms at most"), "{told}");
        assert_eq!(speeds.of("e").slow, None);
        assert!(speeds.of("a").first_token.is_some_and(|seconds| (0.09..0.12).contains(&seconds)));
    }

    #[test]
    fn a_pod_that_decodes_slowly_is_found_too_and_recovers() {
        let mut speeds = PodSpeeds::default();
        let pods =
            |gap| [("a", "m", [100, 10, 9]), ("b", "m", [100, gap, 9]), ("c", "m", [100, 10, 9])];
        assert_eq!(watch(&mut speeds, &pods(40)), [(10, "b".to_owned(), true)]);
        assert_eq!(speeds.of("b").slow.unwrap().time, PodTime::InterToken);
        let before = |pod: &str| counted(58, 100, if pod == "b" { 40 } else { 10 }, 9);
        let recovered = watch_after(&mut speeds, before, 58, &pods(11));
        assert_eq!(recovered, [(4, "b".to_owned(), false)]);
        assert_eq!(speeds.of("b").slow, None);
    }

    #[test]
    fn neither_a_cold_cache_nor_noise_nor_two_pods_alone_make_a_slow_one() {
        let mut speeds = PodSpeeds::default();
        let cold = [
            ("a", "m", [100, 10, 500]),
            ("b", "m", [100, 10, 500]),
            // It computes ten times as much.
            ("c", "m", [900, 10, 5000]),
        ];
        assert_eq!(watch(&mut speeds, &cold), []);
        let noise = [("a", "m", [10, 1, 0]), ("b", "m", [10, 1, 0]), ("c", "m", [80, 5, 0])];
        assert_eq!(watch(&mut PodSpeeds::default(), &noise), []);
        let two = [("a", "m", [100, 10, 50]), ("b", "m", [4000, 90, 50])];
        assert_eq!(watch(&mut PodSpeeds::default(), &two), []);
    }
}
