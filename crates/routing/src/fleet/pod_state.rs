//! The current state of a pod: load, health, speed, and how far its cache events can be trusted.
//! Load is reserved for a request from the plan until its step ends.
//!
//! A few cache lines of relaxed atomics, one of them for the [learnt](super::learnt_rates) speed.
//! Each figure is exact on its own; two figures that are read one after another may be of slightly
//! different moments, which no policy can notice.
//!
//! Load counts from the moment a plan is made, so that the next decision sees it, and is given back
//! exactly once, when the [`Reservation`](super::Reservation) is dropped, whatever way the request went.

use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use wornpath_index::{Moment, Tier};

use super::learnt_loads::{LearntLoads, LoadedTokens};
use super::learnt_rates::{LearntRate, LearntRates, MeasuredPrefill, PrefillWork};
use super::router_load::{OthersLoad, RouterLoad};
use super::slowness::{ProvenSlowness, SlownessRange};

/// Whether a pod answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Health {
    /// It answers.
    #[default]
    Up,
    /// It finishes its requests and gets no new ones.
    Draining,
    /// It does not answer.
    Down,
}

/// The state of a pod's circuit breaker.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum BreakerState {
    /// Requests pass.
    #[default]
    Closed,
    /// One request at a time may try.
    HalfOpen,
    /// No request passes: it does not answer, or only with errors.
    Open,
    /// It answered that it is busy, and gets no requests for a while.
    Resting,
    /// It answered that it is busy, but so might every other pod: for a while it gets requests only
    /// if no other pod can take them.
    Avoided,
}

/// How far the index's knowledge of a pod can be trusted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum EventTrust {
    /// Every event arrived.
    #[default]
    Exact,
    /// An event is missing and is being fetched.
    Unsure,
    /// Nothing in the index is false, but something may be missing.
    Partial,
    /// The engine sends no events: its cache is approximated from routing.
    Guessed,
}

/// A pod's figures. Shared by the fleets it is in.
#[derive(Debug, Default)]
#[repr(align(64))]
pub struct PodState {
    requests: AtomicU32,
    decoding: AtomicU32,
    prefill_tokens: AtomicU64,
    prefill_pairs: AtomicU64,
    decode_tokens: AtomicU64,
    pub(super) unanswered_tokens: AtomicU64,
    pub(super) in_flight_tokens: AtomicU64,
    held_tokens: AtomicU64,
    held_pairs: AtomicU64,
    /// Tokens plus one; zero for unknown.
    cached_tokens: AtomicU64,
    /// Microseconds plus one; zero for never.
    last_event: AtomicU64,
    waiting: AtomicU32,
    kv_usage: AtomicU32,
    /// As bits of an `f32`; zero for unknown.
    answer_tokens: AtomicU32,
    /// The last progress of its prefills, in wrapping milliseconds; zero for never.
    progress: AtomicU32,
    /// Until when it rests, in wrapping milliseconds.
    rests_until: AtomicU32,
    health: AtomicU8,
    breaker: AtomicU8,
    trust: AtomicU8,
    /// The share of its known blocks that decisions disregard, in 255ths.
    faded: AtomicU8,
    /// How many times slower than its engine's profile it is configured to be, in sixteenths; zero:
    /// not configured.
    slowdown: AtomicU8,
    learnt: LearntRates,
    loads: LearntLoads,
    others: OthersLoad,
    proven: ProvenSlowness,
}

/// Five lines for every pod, of which a decision reads what its plugins ask for, and never the last.
const _: () = assert!(size_of::<PodState>() <= 320);

impl PodState {
    /// Requests sent and not finished.
    #[inline]
    #[must_use]
    pub fn requests(&self) -> u32 {
        self.requests.load(Relaxed)
    }

    /// Requests of those whose prompt is computed.
    #[must_use]
    pub fn decoding(&self) -> u32 {
        self.decoding.load(Relaxed)
    }

    /// Prompt tokens sent, not cached and not computed yet.
    #[inline]
    #[must_use]
    pub fn prefill_tokens(&self) -> u64 {
        self.prefill_tokens.load(Relaxed)
    }

    /// Twice the pairs of tokens that these must attend to: what makes long prompts slower than
    /// short ones of as many tokens together.
    #[inline]
    #[must_use]
    pub fn prefill_pairs(&self) -> u64 {
        self.prefill_pairs.load(Relaxed)
    }

    /// Tokens in the contexts of the requests that are decoding.
    #[must_use]
    pub fn decode_tokens(&self) -> u64 {
        self.decode_tokens.load(Relaxed)
    }

    /// Uncached prompt tokens of requests without a first token. Unlike [`Self::prefill_tokens`],
    /// a prompt counts whole until its first token.
    #[must_use]
    pub fn unanswered_tokens(&self) -> u64 {
        self.unanswered_tokens.load(Relaxed)
    }

    /// Uncached prompt tokens of all requests in flight: a prompt counts until its answer ends.
    #[must_use]
    pub fn in_flight_tokens(&self) -> u64 {
        self.in_flight_tokens.load(Relaxed)
    }

    /// The part of its load that this router put on it. The figures above are of all routers that
    /// are known.
    #[must_use]
    pub fn own_load(&self) -> RouterLoad {
        let all = RouterLoad {
            requests: self.requests(),
            decoding: self.decoding(),
            prefill_tokens: self.prefill_tokens(),
            prefill_pairs: self.prefill_pairs(),
            decode_tokens: self.decode_tokens(),
            unanswered_tokens: self.unanswered_tokens(),
            in_flight_tokens: self.in_flight_tokens(),
        };
        all.saturating_sub(self.others.read())
    }

    /// The part of its load that other routers put on it.
    #[must_use]
    pub fn others_load(&self) -> RouterLoad {
        self.others.read()
    }

    /// Other routers have this load on it. For one thread at a time.
    pub fn set_others_load(&self, load: RouterLoad) {
        let before = self.others.replace(load);
        self.requests.fetch_add(load.requests.wrapping_sub(before.requests), Relaxed);
        self.decoding.fetch_add(load.decoding.wrapping_sub(before.decoding), Relaxed);
        for (sum, load, before) in [
            (&self.prefill_tokens, load.prefill_tokens, before.prefill_tokens),
            (&self.prefill_pairs, load.prefill_pairs, before.prefill_pairs),
            (&self.decode_tokens, load.decode_tokens, before.decode_tokens),
            (&self.unanswered_tokens, load.unanswered_tokens, before.unanswered_tokens),
            (&self.in_flight_tokens, load.in_flight_tokens, before.in_flight_tokens),
        ] {
            sum.fetch_add(load.wrapping_sub(before), Relaxed);
        }
    }

    /// Prompt tokens that it has computed for this router, and twice the pairs that these attended
    /// to.
    #[must_use]
    pub fn own_computed(&self) -> (u64, u64) {
        let (tokens, pairs) = self.learnt.counts();
        let (others_tokens, others_pairs) = self.others.counts();
        (tokens.wrapping_sub(others_tokens), pairs.wrapping_sub(others_pairs))
    }

    /// It has computed so much for other routers.
    pub fn computed_for_others(&self, tokens: u64, pairs: u64, now: Moment) {
        self.learnt.computed(tokens, pairs);
        self.others.computed(tokens, pairs);
        self.progressed(now);
    }

    /// Uncached prompt tokens of requests in the router's wait queue that would go to the pod, as
    /// far as they are ahead of the request that is being decided.
    #[inline]
    #[must_use]
    pub fn held_tokens(&self) -> u64 {
        self.held_tokens.load(Relaxed)
    }

    /// Twice the pairs of tokens that these must attend to.
    #[inline]
    #[must_use]
    pub fn held_pairs(&self) -> u64 {
        self.held_pairs.load(Relaxed)
    }

    /// Prompt tokens in its KV cache, in use or not; `None` if unknown.
    #[inline]
    #[must_use]
    pub fn cached_tokens(&self) -> Option<u64> {
        self.cached_tokens.load(Relaxed).checked_sub(1)
    }

    /// Sets the prompt tokens in its KV cache, as the index knows them.
    pub fn set_cached_tokens(&self, tokens: u64) {
        self.cached_tokens.store(tokens.saturating_add(1), Relaxed);
    }

    /// Requests that wait inside the engine, as it reports.
    #[must_use]
    pub fn waiting(&self) -> u32 {
        self.waiting.load(Relaxed)
    }

    /// The share of its KV cache in use, as it reports, in `[0, 1]`.
    #[must_use]
    pub fn kv_usage(&self) -> f64 {
        f64::from(f32::from_bits(self.kv_usage.load(Relaxed)))
    }

    /// How many tokens its recent answers had on average, if any has ended here.
    #[inline]
    #[must_use]
    pub fn answer_tokens(&self) -> Option<f64> {
        let mean = f32::from_bits(self.answer_tokens.load(Relaxed));
        (mean > 0.0).then(|| f64::from(mean))
    }

    /// How many times longer its answers take than its engine's published speed says, as a logarithm
    /// to base two; and the number of answers that prove it, up to 255.
    #[inline]
    #[must_use]
    pub fn slowness_log2(&self) -> Option<(f64, u32)> {
        self.proven.read()
    }

    /// Whether it had no request for as long as an outlier gets none: `pause`, and up to 16 times
    /// that while it stays slow.
    #[inline]
    #[must_use]
    pub fn has_paused(&self, pause: Duration, now: Moment) -> bool {
        self.requests() == 0 && self.proven.has_paused(pause, now)
    }

    /// A request is sent at `now` whose answer will show its speed.
    pub(super) fn sent_request(&self, now: Moment) {
        self.proven.sent(now);
    }

    /// An answer of it shows its slowness, without other work.
    #[cfg(test)]
    pub(crate) fn add_sample(&self, took: f64, nominal: f64, now: Moment) {
        let log2 = (took / nominal).log2();
        self.proven.add(SlownessRange { least: log2, most: log2 }, now);
    }

    /// How many times longer than `model` says it takes for some work, by its measured requests.
    #[inline]
    pub(crate) fn slowness(
        &self,
        paced: MeasuredPrefill,
        model: impl Fn(&PrefillWork) -> f64,
    ) -> f64 {
        let configured = match self.slowdown.load(Relaxed) {
            0 => 1.0,
            sixteenths => f64::from(sixteenths) / 16.0,
        };
        self.learnt.pace(paced, configured, model)
    }

    /// Milliseconds to load a cached token from a tier, if `assumed` is what is known from elsewhere.
    #[inline]
    pub(crate) fn load_rate(&self, tier: Tier, assumed: f64) -> f64 {
        self.loads.rate(tier, assumed)
    }

    /// Whether its speed of prefill was measured or configured.
    #[inline]
    pub(crate) fn is_speed_known(&self) -> bool {
        self.slowdown.load(Relaxed) != 0 || self.learnt.is_measured()
    }

    /// How long its prefills have made no progress. Progress is a prompt sent to an idle pod, a
    /// computed part of a prompt, or a first token.
    #[inline]
    #[must_use]
    pub fn computing(&self, now: Moment) -> Duration {
        let passed =
            (now.since_zero().as_millis() as u32).wrapping_sub(self.progress.load(Relaxed));
        match self.progress.load(Relaxed) {
            0 => Duration::ZERO,
            // The progress is later than `now`.
            _ if passed > u32::MAX / 2 => Duration::ZERO,
            _ => Duration::from_millis(passed.into()),
        }
    }

    pub(super) fn hold_work(&self, tokens: u64, pairs: u64) {
        self.held_tokens.fetch_add(tokens, Relaxed);
        self.held_pairs.fetch_add(pairs, Relaxed);
    }

    pub(super) fn release_held_work(&self, tokens: u64, pairs: u64) {
        self.held_tokens.fetch_sub(tokens, Relaxed);
        self.held_pairs.fetch_sub(pairs, Relaxed);
    }

    pub(super) fn progressed(&self, now: Moment) {
        self.progress.store((now.since_zero().as_millis() as u32).max(1), Relaxed);
    }

    /// It takes so many times longer than its engine's profile says, by configuration. What is
    /// measured counts more as soon as there are samples.
    pub fn set_slowdown(&self, factor: f64) {
        // Clamped to the range.
        self.slowdown.store((factor * 16.0).round().max(1.0) as u8, Relaxed);
    }

    /// Whether it answers.
    #[inline]
    #[must_use]
    pub fn health(&self) -> Health {
        match self.health.load(Relaxed) {
            0 => Health::Up,
            1 => Health::Draining,
            _ => Health::Down,
        }
    }

    /// The state of its circuit breaker.
    #[inline]
    #[must_use]
    pub fn breaker(&self) -> BreakerState {
        match self.breaker.load(Relaxed) {
            0 => BreakerState::Closed,
            1 => BreakerState::HalfOpen,
            2 => BreakerState::Open,
            3 => BreakerState::Resting,
            _ => BreakerState::Avoided,
        }
    }

    /// How long it still rests, if it does. Right for weeks.
    #[must_use]
    pub fn rest(&self, now: Moment) -> Option<Duration> {
        if self.breaker() != BreakerState::Resting {
            return None;
        }
        let left = self.rests_until.load(Relaxed).wrapping_sub(now.since_zero().as_millis() as u32);
        // The time may be over before the breaker was closed.
        let left = if left > u32::MAX / 2 { 0 } else { left };
        Some(Duration::from_millis(left.into()))
    }

    /// How far its cache events can be trusted.
    #[inline]
    #[must_use]
    pub fn trust(&self) -> EventTrust {
        match self.trust.load(Relaxed) {
            0 => EventTrust::Exact,
            1 => EventTrust::Unsure,
            2 => EventTrust::Partial,
            _ => EventTrust::Guessed,
        }
    }

    /// The part of `blocks` known blocks that still counts after a long silence of its event
    /// stream.
    #[inline]
    #[must_use]
    pub fn fresh_part(&self, blocks: u32) -> u32 {
        match self.faded.load(Relaxed) {
            0 => blocks,
            faded => (u64::from(blocks) * u64::from(u8::MAX - faded) / u64::from(u8::MAX)) as u32,
        }
    }

    /// Sets the share of its known blocks that still counts, in `[0, 1]`.
    pub fn set_freshness(&self, freshness: f64) {
        let faded = (1.0 - freshness.clamp(0.0, 1.0)) * f64::from(u8::MAX);
        self.faded.store(faded.round() as u8, Relaxed);
    }

    /// The time since the last sign of life of its event stream; `None` if there was none.
    #[inline]
    #[must_use]
    pub fn silence(&self, now: Moment) -> Option<Duration> {
        let last_event = self.last_event.load(Relaxed).checked_sub(1)?;
        Some(now.since(Moment::from_micros(last_event)))
    }

    /// Records a sign of life of its event stream: an event, a heartbeat, a matching digest.
    pub fn heard_at(&self, now: Moment) {
        let micros = u64::try_from(now.since_zero().as_micros()).unwrap_or(u64::MAX - 1);
        self.last_event.store(micros + 1, Relaxed);
    }

    /// What the engine reports of itself. A usage outside `[0, 1]` counts as the nearer end.
    pub fn report(&self, waiting: u32, kv_usage: f64) {
        self.waiting.store(waiting, Relaxed);
        let usage = if kv_usage.is_nan() { 0.0 } else { kv_usage.clamp(0.0, 1.0) };
        self.kv_usage.store((usage as f32).to_bits(), Relaxed);
    }

    /// A probe, a failure or an operator changed its health.
    pub fn set_health(&self, health: Health) {
        self.health.store(health as u8, Relaxed);
    }

    /// The breaker opened or closed.
    pub fn set_breaker(&self, breaker: BreakerState) {
        self.breaker.store(breaker as u8, Relaxed);
    }

    /// It rests until then.
    pub fn set_rest(&self, until: Moment) {
        self.rests_until.store(until.since_zero().as_millis() as u32, Relaxed);
    }

    /// Its events became more or less trustworthy.
    pub fn set_trust(&self, trust: EventTrust) {
        self.trust.store(trust as u8, Relaxed);
    }

    pub(super) fn admit(&self, prefill_tokens: u64, prefill_pairs: u64) {
        self.requests.fetch_add(1, Relaxed);
        self.prefill_tokens.fetch_add(prefill_tokens, Relaxed);
        self.prefill_pairs.fetch_add(prefill_pairs, Relaxed);
    }

    pub(super) fn leave(&self) {
        self.requests.fetch_sub(1, Relaxed);
    }

    pub(super) fn computed(&self, prefill_tokens: u64, prefill_pairs: u64) {
        self.cancel_prefill(prefill_tokens, prefill_pairs);
        self.learnt.computed(prefill_tokens, prefill_pairs);
    }

    /// Prefill that will not be computed after all.
    pub(super) fn cancel_prefill(&self, prefill_tokens: u64, prefill_pairs: u64) {
        self.prefill_tokens.fetch_sub(prefill_tokens, Relaxed);
        self.prefill_pairs.fetch_sub(prefill_pairs, Relaxed);
    }

    pub(super) fn rates_now(&self, now: Moment) -> LearntRate {
        let (tokens, pairs) = self.learnt.counts();
        LearntRate {
            milliseconds: now.since_zero().as_secs_f64() * 1e3,
            tokens,
            pairs,
            decoding: f64::from(self.decoding()),
            contexts: self.decode_tokens() as f64,
        }
    }

    /// A request that was sent when the pod was seen as `sent` has its first token. What waited
    /// inside the engine for memory tells nothing about its speed.
    pub(super) fn learn_prefill(&self, sent: &LearntRate, now: Moment) {
        if self.waiting() <= MOST_WAITING {
            self.learnt.first_token(sent, &self.rates_now(now));
        }
    }

    /// The same, for how far it is from the published speed.
    pub(super) fn learn_slowness(&self, range: SlownessRange, now: Moment) {
        self.proven.add(range, now);
    }

    /// Whether no request waits inside it for memory, if requests use this share of its KV cache as
    /// far as the router knows.
    pub(super) fn has_free_memory(&self, used: f64) -> bool {
        const MOST_USED: f64 = 0.5;
        self.waiting() == 0 && used.max(self.kv_usage()) <= MOST_USED
    }

    /// The same, for what a request took beyond the prediction without loads.
    pub(super) fn learn_loads(&self, excess: f64, uncached: u64, loaded: &LoadedTokens) {
        if self.waiting() <= MOST_WAITING {
            self.loads.first_token(excess, uncached, loaded);
        }
    }

    pub(super) fn learn_steps(&self, first: &LearntRate, now: Moment, tokens: u64) {
        self.learnt.decoded(first, &self.rates_now(now), tokens);
    }

    pub(super) fn start_decoding(&self, tokens: u64) {
        self.decoding.fetch_add(1, Relaxed);
        self.decode_tokens.fetch_add(tokens, Relaxed);
    }

    pub(super) fn decoded(&self, tokens: u64) {
        self.decode_tokens.fetch_add(tokens, Relaxed);
    }

    /// An answer of so many tokens has ended: the newest counts a thirty-second. Two that end at
    /// the same moment may count as one, which the next ones make up for.
    pub(super) fn answered(&self, tokens: u64) {
        const NEWEST: f64 = 1.0 / 32.0;
        let mean = self
            .answer_tokens()
            .map_or(tokens as f64, |mean| mean + NEWEST * (tokens as f64 - mean));
        self.answer_tokens.store((mean as f32).to_bits(), Relaxed);
    }

    pub(super) fn stop_decoding(&self, tokens: u64) {
        self.decoding.fetch_sub(1, Relaxed);
        self.decode_tokens.fetch_sub(tokens, Relaxed);
    }
}

/// With more requests waiting inside the engine, times tell about its memory and not its speed.
const MOST_WAITING: u32 = 4;
