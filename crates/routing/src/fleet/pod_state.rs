//! The current state of a pod: load, health, speed, and how far its cache events can be trusted.
//! Load is reserved for a request from the plan until its step ends.
//!
//! A few cache lines of relaxed atomics, one of them for the [learnt](super::learnt_rates) speed.
//! Each figure is exact on its own; two figures that are read one after another may be of slightly
//! different moments, which no policy can notice.
//!
//! Load counts from the moment a plan is made, so that the next decision sees it, and is given back
//! exactly once, when the [`Reservation`] is dropped, whatever way the request went.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use wornpath_index::Moment;

use super::learnt_rates::{LearntRate, LearntRates, MeasuredPrefill, PrefillWork};

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
    unanswered_tokens: AtomicU64,
    in_flight_tokens: AtomicU64,
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
    /// The mean of the samples, as bits of an `f32`.
    ms_per_token: AtomicU32,
    /// When the last sample was taken, in wrapping milliseconds.
    last_sample: AtomicU32,
    /// Number of samples in `ms_per_token`, saturating.
    samples: AtomicU8,
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
}

/// Three lines for every pod, of which a decision reads what its plugins ask for.
const _: () = assert!(size_of::<PodState>() <= 192);

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

    /// Milliseconds to the first token for each token that recent answers had to compute, and the
    /// number of samples, up to 255.
    #[inline]
    #[must_use]
    pub fn ms_per_token(&self) -> Option<(f64, u32)> {
        let known = u32::from(self.samples.load(Relaxed));
        (known > 0).then(|| (f64::from(f32::from_bits(self.ms_per_token.load(Relaxed))), known))
    }

    /// Time since the last sample; wraps after 49 days.
    #[inline]
    #[must_use]
    pub fn since_last_sample(&self, now: Moment) -> Duration {
        let ago =
            (now.since_zero().as_millis() as u32).wrapping_sub(self.last_sample.load(Relaxed));
        Duration::from_millis(u64::from(ago))
    }

    /// A sample: milliseconds for each token that an answer had to compute. The newest counts an
    /// eighth.
    pub fn add_sample(&self, per_token: f64, now: Moment) {
        const NEWEST: f64 = 1.0 / 8.0;
        let known = self.samples.load(Relaxed);
        let mean =
            self.ms_per_token().map_or(per_token, |(mean, _)| mean + NEWEST * (per_token - mean));
        self.ms_per_token.store((mean as f32).to_bits(), Relaxed);
        self.last_sample.store(now.since_zero().as_millis() as u32, Relaxed);
        self.samples.store(known.saturating_add(1), Relaxed);
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
        const MOST_WAITING: u32 = 4;
        if self.waiting() <= MOST_WAITING {
            self.learnt.first_token(sent, &self.rates_now(now));
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

/// Load that one step of a plan puts on one pod. Dropping it gives the load back.
#[derive(Debug)]
pub struct Reservation {
    pod_state: Arc<PodState>,
    prompt_tokens: u64,
    uncached_tokens: u64,
    /// What is still to be computed of the prompt.
    pending: u64,
    /// Tokens in the context, once it decodes.
    decoding: Option<u64>,
    /// The pod when the request was sent; later, when it got its first token.
    seen: Option<LearntRate>,
}

impl Reservation {
    /// One more request on the pod, whose prompt has `uncached_tokens` to compute.
    #[must_use]
    pub fn new(pod_state: &Arc<PodState>, prompt_tokens: u64, uncached_tokens: u64) -> Self {
        let pending = uncached_tokens.min(prompt_tokens);
        pod_state.admit(pending, pairs(prompt_tokens, pending));
        pod_state.unanswered_tokens.fetch_add(pending, Relaxed);
        pod_state.in_flight_tokens.fetch_add(pending, Relaxed);
        let uncached_tokens = pending;
        let pod_state = Arc::clone(pod_state);
        Self { pod_state, prompt_tokens, uncached_tokens, pending, decoding: None, seen: None }
    }

    /// It is sent at `now`: from here on the pod's speed is learnt from it.
    #[must_use]
    pub fn sent_at(mut self, now: Moment) -> Self {
        self.seen = Some(self.pod_state.rates_now(now));
        if self.pod_state.prefill_tokens() == self.pending {
            self.pod_state.progressed(now);
        }
        self
    }

    /// Prompt tokens that are still to be computed.
    #[must_use]
    pub const fn pending_tokens(&self) -> u64 {
        self.pending
    }

    /// The engine has computed `tokens` more of the prompt, as its events tell.
    pub fn computed(&mut self, tokens: u64) {
        let tokens = tokens.min(self.pending);
        let before = pairs(self.prompt_tokens, self.pending);
        self.pending -= tokens;
        self.pod_state.computed(tokens, before - pairs(self.prompt_tokens, self.pending));
    }

    /// The same, at `now`.
    pub fn computed_at(&mut self, tokens: u64, now: Moment) {
        self.computed(tokens);
        self.pod_state.progressed(now);
    }

    /// The first token came: the prompt is computed, its context now decodes.
    pub fn first_token(&mut self) {
        self.computed(self.pending);
        if self.decoding.is_none() {
            self.decoding = Some(self.prompt_tokens);
            self.pod_state.unanswered_tokens.fetch_sub(self.uncached_tokens, Relaxed);
            self.pod_state.start_decoding(self.prompt_tokens);
        }
    }

    /// The answer began `took` after the request was sent: what says whether the pod is slow for
    /// what it was sent. Short prompts count as [`LEAST_TOKENS`], because no engine begins at once.
    pub fn began(&self, took: Duration, now: Moment) {
        const LEAST_TOKENS: u64 = 512;
        let tokens = (self.uncached_tokens + LEAST_TOKENS) as f64;
        self.pod_state.add_sample(took.as_secs_f64() * 1e3 / tokens, now);
    }

    /// The first token came at `now`.
    pub fn first_token_at(&mut self, now: Moment) {
        let is_first = self.decoding.is_none();
        self.first_token();
        self.pod_state.progressed(now);
        if is_first && let Some(sent) = self.seen {
            self.pod_state.learn_prefill(&sent, now);
            self.seen = Some(self.pod_state.rates_now(now));
        }
    }

    /// The answer ended at `now`, whole.
    pub fn ended_at(&mut self, now: Moment) {
        if let (Some(context), Some(first)) = (self.decoding, self.seen.take()) {
            self.pod_state.learn_steps(&first, now, context - self.prompt_tokens);
        }
    }

    /// `tokens` more were generated.
    pub fn decoded(&mut self, tokens: u64) {
        if let Some(context) = &mut self.decoding {
            *context = context.saturating_add(tokens);
            self.pod_state.decoded(tokens);
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.pod_state.cancel_prefill(self.pending, pairs(self.prompt_tokens, self.pending));
        if let Some(context) = self.decoding {
            self.pod_state.stop_decoding(context);
            // Without generated tokens there is nothing to learn about the length of responses.
            if context > self.prompt_tokens {
                self.pod_state.answered(context - self.prompt_tokens);
            }
        } else {
            self.pod_state.unanswered_tokens.fetch_sub(self.uncached_tokens, Relaxed);
        }
        self.pod_state.in_flight_tokens.fetch_sub(self.uncached_tokens, Relaxed);
        self.pod_state.leave();
    }
}

/// Twice the pairs that the last `pending` tokens of a prompt attend to.
pub(super) fn pairs(prompt_tokens: u64, pending: u64) -> u64 {
    /// Longer prompts than any engine takes count as this long, so that no sum overflows.
    const LONGEST: u64 = 1 << 24;
    let done = (prompt_tokens - pending).min(LONGEST);
    prompt_tokens.min(LONGEST).pow(2) - done.pow(2)
}
