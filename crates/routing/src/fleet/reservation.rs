//! The load that a request puts on a pod, from the plan until its step ends, and what is learnt from
//! its times.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use wornpath_index::Moment;

use super::learnt_loads::LoadedTokens;
use super::learnt_rates::LearntRate;
use super::pod_state::{EventTrust, PodState};
use super::slowness::{KnownWork, PublishedSpeed};

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
    /// The predicted time to the first token but for loads, and the tokens to load.
    expected: Option<(Duration, LoadedTokens)>,
    /// The speed that its answer is compared with.
    compared: Option<Comparison>,
}

/// How an answer shows the speed of its pod.
#[derive(Clone, Copy, Debug)]
struct Comparison {
    published: PublishedSpeed,
    /// Whether the pod had no other request, and what it has cached of the prompt is known.
    is_alone: bool,
    /// Tokens that were pending there for others.
    ahead: u64,
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
        Self {
            pod_state,
            prompt_tokens,
            uncached_tokens,
            pending,
            decoding: None,
            seen: None,
            expected: None,
            compared: None,
        }
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

    /// The first token is predicted after so long if nothing had to be loaded, but `loaded` tokens
    /// have to be: from here on the pod's times of loading are learnt from it.
    #[must_use]
    pub(crate) fn expected(mut self, first_token: Duration, loaded: LoadedTokens) -> Self {
        self.expected = Some((first_token, loaded));
        if loaded[1..].iter().any(|tokens| *tokens > 0) {
            // How long loads take is no property of the engine.
            self.compared = None;
        }
        self
    }

    /// It is sent at `now`, and its answer is compared with this speed, to notice a pod that is far
    /// slower than others.
    #[must_use]
    pub(crate) fn compared_with(mut self, published: PublishedSpeed, now: Moment) -> Self {
        let ahead = self.pod_state.prefill_tokens().saturating_sub(self.pending);
        let is_cache_known = self.uncached_tokens == self.prompt_tokens
            || self.pod_state.trust() == EventTrust::Exact;
        let is_alone = self.pod_state.requests() == 1 && is_cache_known;
        self.pod_state.sent_request(now);
        self.compared = Some(Comparison { published, is_alone, ahead });
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

    /// An answer that was not streamed has ended at `now`, with so many tokens.
    pub fn answered_at(&mut self, tokens: u64, now: Moment) {
        if let Some(sent) = self.seen.take() {
            self.learn_slowness(&sent, tokens, now);
        }
    }

    /// The first token came at `now`.
    pub fn first_token_at(&mut self, now: Moment) {
        let is_first = self.decoding.is_none();
        self.first_token();
        self.pod_state.progressed(now);
        if is_first && let Some(sent) = self.seen {
            self.pod_state.learn_prefill(&sent, now);
            let took = now.since_zero().as_secs_f64() * 1e3 - sent.milliseconds;
            self.learn_slowness(&sent, 0, now);
            if let Some((expected, loaded)) = self.expected.take() {
                let excess = took - expected.as_secs_f64() * 1e3;
                self.pod_state.learn_loads(excess, self.uncached_tokens, &loaded);
            }
            self.seen = Some(self.pod_state.rates_now(now));
        }
    }

    /// Learns from the time that its prompt and so many generated tokens took how slow the pod is.
    fn learn_slowness(&mut self, sent: &LearntRate, generated: u64, now: Moment) {
        let Some(Comparison { published, is_alone, ahead }) = self.compared.take() else { return };
        let uncached = self.uncached_tokens;
        let seen = self.pod_state.rates_now(now);
        let pending = self.pod_state.prefill_tokens();
        let done = seen.tokens.wrapping_sub(sent.tokens).saturating_add(pending);
        let others = done.saturating_sub(uncached);
        let pairs_done = seen.pairs.wrapping_sub(sent.pairs) + self.pod_state.prefill_pairs();
        let own_pairs = pairs(self.prompt_tokens, uncached);
        let own = KnownWork {
            tokens: uncached as f64,
            pairs: own_pairs as f64,
            decoding: 0.0,
            contexts: 0.0,
            generated: generated as f64,
        };
        let mut all = own;
        if !is_alone || others > 0 {
            // Others may have evicted what was cached of the prompt.
            all.tokens = (self.prompt_tokens + others) as f64;
            let of_others = pairs_done.saturating_sub(own_pairs);
            all.pairs = (pairs(self.prompt_tokens, self.prompt_tokens) + of_others) as f64;
            all.decoding = seen.decoding.max(sent.decoding);
            all.contexts = seen.contexts.max(sent.contexts);
        }
        // What was ahead is either computed or pending now, unless it was cancelled meanwhile.
        let is_bounded = done >= ahead + uncached && {
            let used = seen.contexts + (pending + self.prompt_tokens) as f64;
            self.pod_state.has_free_memory(used / published.kv_tokens)
        };
        let took = seen.milliseconds - sent.milliseconds;
        let range = published.range(took, &own, is_bounded.then_some(&all));
        self.pod_state.learn_slowness(range, now);
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
