//! How many times slower a pod is than its engine's published speed, as its answers prove.
//!
//! The time to a first token says little of a pod that has other work: a queue, a batch that
//! decodes, memory that others hold. So an answer does not give a figure but a range. At most, the
//! pod was so slow that it did nothing but this prompt in that time. At least, it was so slow that it
//! did everything that it could have done in it: all prompts that were ahead or came later, each
//! whole, this one without its cached tokens, and the largest batch in every step. Where even that
//! is no bound, because requests may have waited for memory, there is none from below. The
//! estimate moves to the nearer end of a range that it is outside of, and not at all within. An
//! answer of a pod without other work has a range of one figure.
//!
//! The limit: the load of routers that this one does not hear of is seen only in what the engine
//! reports, which is late.

use std::sync::atomic::{AtomicU8, AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use wornpath_index::Moment;

/// An engine's published speed, in milliseconds, and its sizes, in tokens.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct PublishedSpeed {
    /// Of every step.
    pub(crate) base: f64,
    /// Per prompt token, and per pair of attended tokens, counted twice.
    pub(crate) token: f64,
    pub(crate) pair: f64,
    /// Per decoding request and per token of its context, in every step.
    pub(crate) sequence: f64,
    pub(crate) context: f64,
    pub(crate) step_tokens: f64,
    pub(crate) kv_tokens: f64,
}

/// Work on a pod, as its router knows it.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(super) struct KnownWork {
    pub(super) tokens: f64,
    pub(super) pairs: f64,
    pub(super) decoding: f64,
    pub(super) contexts: f64,
    /// Tokens that it generates itself, one a step.
    pub(super) generated: f64,
}

/// How many times the published time an answer took, from both sides, as logarithms to base two.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct SlownessRange {
    pub(super) least: f64,
    pub(super) most: f64,
}

impl PublishedSpeed {
    fn time(&self, work: &KnownWork) -> f64 {
        let steps = 1.0 + work.tokens / self.step_tokens + work.generated;
        let step = self.base + self.sequence * work.decoding + self.context * work.contexts;
        self.token * work.tokens + self.pair * work.pairs + steps * step
    }

    /// The range that follows from an answer after `took` milliseconds, if the pod did `own` in this
    /// time and no more than `all`; none for `all` if there is no such bound.
    pub(super) fn range(
        &self,
        took: f64,
        own: &KnownWork,
        all: Option<&KnownWork>,
    ) -> SlownessRange {
        // What a network and an engine's own overhead take, which no speed explains: as much as
        // keeps short answers from differing from long ones on an engine that is slower or faster
        // than its published speed, or answers some 30 ms late.
        const OVERHEAD: f64 = 8.0;
        let times =
            |work: &KnownWork| ((took + OVERHEAD / 2.0) / (self.time(work) + OVERHEAD)).log2();
        SlownessRange { least: all.map_or(f64::NEG_INFINITY, times), most: times(own) }
    }
}

/// A pod's estimate. Two answers at the same moment may count as one.
#[derive(Debug, Default)]
pub(super) struct ProvenSlowness {
    /// The estimate, as the bits of an `f32`.
    log2: AtomicU32,
    /// When an answer last moved or confirmed it, and when a request was last sent, in wrapping
    /// milliseconds.
    last_answer: AtomicU32,
    last_sent: AtomicU32,
    /// Number of answers in `log2`, saturating.
    answers: AtomicU8,
    /// How many answers in a row, each long after the one before, have confirmed it.
    confirmed: AtomicU8,
}

impl ProvenSlowness {
    #[inline]
    pub(super) fn read(&self) -> Option<(f64, u32)> {
        let known = u32::from(self.answers.load(Relaxed));
        (known > 0).then(|| (f64::from(f32::from_bits(self.log2.load(Relaxed))), known))
    }

    pub(super) fn sent(&self, now: Moment) {
        self.last_sent.store(millis(now), Relaxed);
    }

    /// Whether the pod has had no request for as long as an outlier gets none: `pause`, and twice as
    /// long for each answer in a row that has confirmed its slowness after such a time.
    pub(super) fn has_paused(&self, pause: Duration, now: Moment) -> bool {
        let ago = |time: &AtomicU32| millis(now).wrapping_sub(time.load(Relaxed));
        let idle = ago(&self.last_sent).min(ago(&self.last_answer));
        Duration::from_millis(idle.into()) >= pause * (1 << self.confirmed.load(Relaxed))
    }

    /// Moves the estimate to the range of an answer. The newest counts an eighth, or half if the
    /// one before is old: then it is a trial of a pod that was slow.
    pub(super) fn add(&self, range: SlownessRange, now: Moment) {
        const OLD_MILLIS: u32 = 5_000;
        const NEWEST: f64 = 0.125;
        /// An answer within a factor of two confirms the estimate.
        const CLOSE: f64 = 1.0;
        /// The longest pause is 16 times the shortest.
        const MOST_CONFIRMED: u8 = 4;
        let Some((estimate, answers)) = self.read() else {
            if range.most - range.least < CLOSE {
                self.log2.store((range.least as f32).to_bits(), Relaxed);
                self.answers.store(1, Relaxed);
                self.last_answer.store(millis(now), Relaxed);
            }
            return;
        };
        let sample = estimate.max(range.least).min(range.most);
        let is_exact = range.most == range.least;
        if sample == estimate && !is_exact {
            return;
        }
        let passed = millis(now).wrapping_sub(self.last_answer.load(Relaxed));
        let mut newest = NEWEST.max(1.0 / f64::from(answers + 1));
        if passed > OLD_MILLIS {
            newest = newest.max(0.5);
            let confirmed = match (sample - estimate).abs() < CLOSE {
                true => (self.confirmed.load(Relaxed) + 1).min(MOST_CONFIRMED),
                false => 0,
            };
            self.confirmed.store(confirmed, Relaxed);
        }
        let estimate = estimate + newest * (sample - estimate);
        self.log2.store((estimate as f32).to_bits(), Relaxed);
        self.last_answer.store(millis(now), Relaxed);
        self.answers.store((answers + 1).min(u32::from(u8::MAX)) as u8, Relaxed);
    }
}

/// Wraps after 49 days.
fn millis(now: Moment) -> u32 {
    now.since_zero().as_millis() as u32
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::fleet::{PodState, Reservation};

    const SPEED: PublishedSpeed = PublishedSpeed {
        base: 4.0,
        token: 0.02,
        pair: 0.0,
        sequence: 0.05,
        context: 0.0,
        step_tokens: 8192.0,
        kv_tokens: 100_000.0,
    };

    fn millis(millis: u64) -> Moment {
        Moment::from_millis(1_000_000 + millis)
    }

    fn send(pod: &Arc<PodState>, prompt: u64, uncached: u64, at: u64) -> Reservation {
        let sent = Reservation::new(pod, prompt, uncached).sent_at(millis(at));
        sent.compared_with(SPEED, millis(at))
    }

    /// A pod whose one answer was as fast as published.
    fn measured() -> Arc<PodState> {
        let pod = Arc::<PodState>::default();
        send(&pod, 2_000, 2_000, 0).first_token_at(millis(45));
        assert!(estimate(&pod).abs() < 0.2, "{}", estimate(&pod));
        pod
    }

    fn estimate(pod: &PodState) -> f64 {
        pod.slowness_log2().map_or(f64::NAN, |(estimate, _)| estimate)
    }

    #[test]
    fn the_answer_of_a_pod_without_other_work_shows_its_slowness() {
        let pod = Arc::<PodState>::default();
        send(&pod, 2_000, 2_000, 0).first_token_at(millis(20 * 45));
        assert!((3.9..4.4).contains(&estimate(&pod)), "{}", estimate(&pod));
    }

    #[test]
    fn what_load_explains_is_no_slowness() {
        // Behind another prompt, and before it.
        for [first, second] in [[200, 245], [245, 200]] {
            let pod = measured();
            let mut long = send(&pod, 8_000, 8_000, 100);
            let mut short = send(&pod, 2_000, 2_000, 100);
            long.first_token_at(millis(100 + first));
            short.first_token_at(millis(100 + second));
            assert!(estimate(&pod).abs() < 0.2, "{first}: {}", estimate(&pod));
        }
        // What was taken for cached was evicted by the request ahead.
        let pod = measured();
        let _ahead = send(&pod, 100, 100, 100);
        send(&pod, 8_000, 100, 100).first_token_at(millis(270));
        assert!(estimate(&pod).abs() < 0.2, "{}", estimate(&pod));
    }

    #[test]
    fn what_no_load_explains_moves_it() {
        let pod = measured();
        let _ahead = send(&pod, 2_000, 2_000, 100);
        send(&pod, 2_000, 2_000, 100).first_token_at(millis(100 + 20 * 90));
        assert!(estimate(&pod) > 1.5, "{}", estimate(&pod));
    }

    #[test]
    fn a_wait_for_memory_proves_nothing() {
        let full = |pod: &PodState| pod.report(0, 0.6);
        let waits = |pod: &PodState| pod.report(1, 0.1);
        for report in [full, waits] {
            let pod = measured();
            let before = pod.slowness_log2();
            let mut sent = send(&pod, 2_000, 2_000, 100);
            report(&pod);
            sent.first_token_at(millis(10_000));
            assert_eq!(pod.slowness_log2(), before);
        }
        let pod = measured();
        let before = pod.slowness_log2();
        let mut decodes = send(&pod, 60_000, 60_000, 100);
        decodes.first_token_at(millis(1_400));
        let before_next = pod.slowness_log2();
        assert_eq!(before_next, before, "a prompt that fills half of the cache");
        send(&pod, 2_000, 2_000, 1_500).first_token_at(millis(10_000));
        assert_eq!(pod.slowness_log2(), before);
    }

    #[test]
    fn a_cancelled_request_hides_what_was_done_for_it() {
        let pod = measured();
        let before = pod.slowness_log2();
        let ahead = send(&pod, 40_000, 40_000, 100);
        let mut behind = send(&pod, 2_000, 2_000, 100);
        drop(ahead);
        behind.first_token_at(millis(900));
        assert_eq!(pod.slowness_log2(), before);
    }

    #[test]
    fn the_pause_doubles_while_trials_are_slow_and_not_beyond_sixteen_times() {
        let pod = Arc::<PodState>::default();
        let pause = Duration::from_secs(10);
        let mut now = 0;
        for times in [1, 2, 4, 8, 16, 16] {
            send(&pod, 2_000, 2_000, now).first_token_at(millis(now + 900));
            now += 900 + 10_000 * times;
            assert!(!pod.has_paused(pause, millis(now - 1)), "{times}");
            assert!(pod.has_paused(pause, millis(now)), "{times}");
        }
        send(&pod, 2_000, 2_000, now).first_token_at(millis(now + 45));
        assert!(pod.has_paused(pause, millis(now + 45 + 10_000)), "it is fast again");
    }
}
