//! The four stages of the pipeline: one small trait each, and what its plugins can see.
//!
//! Filter, score and pick get all candidates at once and write into buffers of the caller, so a
//! decision makes one call per plugin and allocates nothing per candidate. All threads share a
//! plugin; one with state keeps it behind atomics or a lock of its own.

use std::time::Duration;

use wornpath_index::{BlockLocation, Index, Moment, PodId, Tier};

use crate::fleet::{Candidate, Fleet, FleetPod};
use crate::models::Untokenized;
use crate::name::Role;
use crate::request::Request;
use crate::rng::Rng;
use crate::slot::{BlockHashes, Reads, Slot, Slots, Writes};

/// A stage of the pipeline.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Stage {
    /// Computes values from the request, once.
    Prepare,
    /// Drops the pods that cannot serve the request.
    Filter,
    /// Ranks the remaining pods.
    Score,
    /// Chooses one of them.
    Pick,
}

impl Stage {
    /// All four, in order.
    pub const ALL: [Self; 4] = [Self::Prepare, Self::Filter, Self::Score, Self::Pick];

    /// Its key in a profile.
    #[must_use]
    pub const fn key(self) -> &'static str {
        match self {
            Self::Prepare => "prepare",
            Self::Filter => "filter",
            Self::Score => "score",
            Self::Pick => "pick",
        }
    }
}

/// Computes values from the request, once, before any pod is considered.
pub trait Prepare: Send + Sync {
    /// Writes its slots, or leaves them empty if the request lacks the input.
    ///
    /// # Errors
    /// If the request cannot be served at all.
    fn prepare(&self, preparing: &mut Preparing<'_>) -> Result<(), Rejection>;
}

/// Drops the pods that cannot serve a request.
pub trait Filter: Send + Sync {
    /// Sets `keep` to false for each candidate to drop. All are true on entry.
    fn keep(&self, decision: &Decision<'_>, candidates: &[Candidate], keep: &mut [bool]);

    /// The reason a candidate was dropped, for people. Called only when a decision is explained.
    fn why(&self, decision: &Decision<'_>, candidate: Candidate) -> String;

    /// How long the pod computes the request's uncached tokens, if the filter knows its speed.
    fn prefill_time(&self, _decision: &Decision<'_>, _candidate: Candidate) -> Option<Duration> {
        None
    }

    /// What happens when it drops every candidate, unless the profile sets `on_empty`.
    fn when_empty(&self) -> WhenEmpty {
        WhenEmpty::Reject
    }

    /// The rejection when it drops every candidate.
    fn rejection(&self, _decision: &Decision<'_>) -> Rejection {
        Rejection::unavailable("no pod passes the filters")
    }
}

/// Rates how well each pod suits a request.
pub trait Score: Send + Sync {
    /// The unit of its scores.
    fn scale(&self) -> Scale;

    /// Writes one score per candidate. All are zero on entry.
    fn score(&self, decision: &Decision<'_>, candidates: &[Candidate], scores: &mut [f64]);

    /// The predicted time to first token on a pod, if the scorer predicts it.
    fn first_token(&self, _decision: &Decision<'_>, _candidate: Candidate) -> Option<Duration> {
        None
    }

    /// The same if all cached blocks were on the GPU: what a request takes beyond it is the time to
    /// load them from slower tiers.
    fn first_token_without_loads(
        &self,
        _decision: &Decision<'_>,
        _candidate: Candidate,
    ) -> Option<Duration> {
        None
    }

    /// Called when a plan uses a pod that this scorer's selector chose.
    fn chosen(&self, _decision: &Decision<'_>, _pod: Candidate) {}
}

/// Chooses one of the remaining candidates.
pub trait Pick: Send + Sync {
    /// The position of the chosen candidate. There is at least one candidate.
    fn pick(&self, decision: &Decision<'_>, set: CandidateSet<'_>, rng: &mut Rng) -> Choice;

    /// The candidates to try if the chosen one fails, by position, best first.
    fn fallbacks(
        &self,
        _decision: &Decision<'_>,
        set: CandidateSet<'_>,
        chosen: usize,
        fallbacks: &mut Fallbacks<'_>,
    ) {
        fallbacks.best_of(set, chosen);
    }

    /// Called when a plan uses the chosen pod.
    fn chosen(&self, _decision: &Decision<'_>, _pod: Candidate) {}

    /// Called when no plan uses the chosen pod: the request waits or is rejected, or the step is
    /// left out.
    fn not_used(&self, _decision: &Decision<'_>, _pod: Candidate) {}

    /// How to cure a profile that has scorers beside this picker, if they would not count.
    fn ignores_scores(&self) -> Option<&'static str> {
        None
    }
}

/// The unit of a scorer's scores.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scale {
    /// In `[0, 1]`; more is better.
    Unit,
    /// Milliseconds; less is better.
    Milliseconds,
}

/// What happens when a filter drops every candidate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WhenEmpty {
    /// The request is rejected.
    Reject,
    /// The filter is skipped, and the plan is marked.
    Skip,
    /// The request waits until a pod passes.
    Hold,
}

impl WhenEmpty {
    /// All three.
    pub(crate) const ALL: [Self; 3] = [Self::Reject, Self::Skip, Self::Hold];

    /// Its word in YAML.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Reject => "reject",
            Self::Skip => "skip",
            Self::Hold => "hold",
        }
    }
}

/// What a preparer sees.
pub struct Preparing<'a> {
    pub(crate) request: &'a Request,
    pub(crate) slots: &'a mut Slots,
    pub(crate) untokenized: &'a mut Option<Untokenized>,
}

impl<'a> Preparing<'a> {
    /// The request.
    #[must_use]
    pub const fn request(&self) -> &'a Request {
        self.request
    }

    /// The value that an earlier preparer wrote for this request.
    #[must_use]
    pub fn read<T: Slot>(&self, handle: &Reads<T>) -> Option<&T> {
        self.slots.read(handle)
    }

    /// Why the prompt is not to be read, if it is not.
    #[must_use]
    pub const fn untokenized(&self) -> Option<Untokenized> {
        *self.untokenized
    }

    /// Withdraws the slot of the tokens: the request is routed without them.
    pub fn leave_untokenized<T: Slot>(&mut self, tokens: &Writes<T>, reason: Untokenized) {
        self.slots.withdraw(tokens);
        *self.untokenized = Some(reason);
    }

    /// The slot, emptied, to be written.
    pub fn write<T: Slot>(&mut self, handle: &Writes<T>) -> &mut T {
        self.slots.write(handle)
    }

    /// Writes a slot from another one. `fill` runs only if that one was written.
    pub fn derive<R: Slot, W: Slot>(
        &mut self,
        from: &Reads<R>,
        to: &Writes<W>,
        fill: impl FnOnce(&R, &mut W),
    ) {
        // Taken out while the other slot is borrowed: both are in one array.
        let mut value = std::mem::take(self.slots.write(to));
        match self.slots.read(from) {
            Some(source) => {
                fill(source, &mut value);
                *self.slots.write(to) = value;
            }
            None => self.slots.withdraw(to),
        }
    }
}

/// What a filter, scorer or picker sees.
#[derive(Clone, Copy)]
pub struct Decision<'a> {
    pub(crate) request: &'a Request,
    pub(crate) fleet: &'a Fleet,
    pub(crate) now: Moment,
    pub(crate) role: &'a Role,
    pub(crate) slots: &'a Slots,
    pub(crate) depths: &'a [u32],
    pub(crate) index: &'a Index,
}

impl<'a> Decision<'a> {
    /// The request.
    #[must_use]
    pub const fn request(&self) -> &'a Request {
        self.request
    }

    /// The pods; index it by a [`Candidate`].
    #[must_use]
    pub const fn fleet(&self) -> &'a Fleet {
        self.fleet
    }

    /// One pod.
    #[inline]
    #[must_use]
    pub fn pod(&self, candidate: Candidate) -> &'a FleetPod {
        &self.fleet[candidate]
    }

    /// The position of a pod among these candidates.
    #[must_use]
    pub fn position(&self, candidates: &[Candidate], pod: PodId) -> Option<usize> {
        // Candidates are in the order of the fleet.
        candidates.binary_search(&self.fleet.find(pod)?).ok()
    }

    /// The time, on the caller's clock.
    #[must_use]
    pub const fn now(&self) -> Moment {
        self.now
    }

    /// The role that the step needs.
    #[must_use]
    pub const fn role(&self) -> &'a Role {
        self.role
    }

    /// The value of a slot, if a plugin wrote it for this request.
    #[must_use]
    pub fn read<T: Slot>(&self, handle: &Reads<T>) -> Option<&'a T> {
        self.slots.read(handle)
    }

    /// How many blocks of the prompt each pod holds, if the prompt was hashed.
    #[inline]
    #[must_use]
    pub fn held(&self, handle: &HeldDepth) -> Option<HeldBlocks<'a>> {
        let prompt = self.slots.read(&handle.blocks)?;
        Some(HeldBlocks { prompt, depths: self.depths })
    }

    /// Tokens of the prompt that a pod holds on each tier, in the order of [`Tier::ALL`], and need
    /// not compute. Takes the pod's lock: for the best few candidates only.
    pub fn held_tokens_by_tier(
        &self,
        handle: &HeldDepth,
        pod: &FleetPod,
    ) -> [u64; Tier::ALL.len()] {
        let Some(held) = self.held(handle) else { return Default::default() };
        let prompt = held.prompt();
        let counted = (held.depth(pod) as usize).min(prompt.countable_blocks());
        let blocks = &prompt.chain[..counted.min(prompt.chain.len())];
        // A pod that was removed since the lookup holds nothing.
        let counts = self.index.blocks_by_tier(pod.id(), blocks).unwrap_or_default();
        counts.map(|count| (count * prompt.block_tokens) as u64)
    }

    /// On which tiers a pod holds the first `depth` blocks of the prompt. Takes the pod's lock: for
    /// the best few candidates only.
    pub fn holdings(
        &self,
        handle: &HeldDepth,
        pod: &FleetPod,
        depth: u32,
        holdings: &mut Vec<BlockLocation>,
    ) {
        holdings.clear();
        let Some(prompt) = self.slots.read(&handle.blocks) else { return };
        let held = &prompt.chain[..prompt.chain.len().min(depth as usize)];
        if self.index.block_locations(pod.id(), held, holdings).is_err() {
            // Removed since the lookup: it holds nothing.
            holdings.clear();
        }
    }
}

/// The right to read how many blocks of the prompt each pod holds. A decision looks the prompt up
/// once, for all plugins.
#[derive(Debug)]
pub struct HeldDepth {
    pub(crate) blocks: Reads<BlockHashes>,
}

/// How many blocks of a prompt each pod holds.
#[derive(Clone, Copy, Debug)]
pub struct HeldBlocks<'a> {
    prompt: &'a BlockHashes,
    depths: &'a [u32],
}

impl<'a> HeldBlocks<'a> {
    /// The prompt.
    #[must_use]
    pub const fn prompt(&self) -> &'a BlockHashes {
        self.prompt
    }

    /// How many leading blocks the pod holds.
    #[inline]
    #[must_use]
    pub fn depth(&self, pod: &FleetPod) -> u32 {
        self.depths.get(pod.slot().position()).copied().unwrap_or(0)
    }

    /// The held share of the prompt's full blocks, in `[0, 1]`.
    #[inline]
    #[must_use]
    pub fn share(&self, pod: &FleetPod) -> f64 {
        f64::from(self.depth(pod)) / self.prompt.chain.len().max(1) as f64
    }

    /// The tokens that the pod would have to compute.
    #[inline]
    #[must_use]
    pub fn uncached_tokens(&self, pod: &FleetPod) -> u64 {
        self.prompt.uncached_tokens(self.depth(pod))
    }
}

/// The candidates and their total scores: more is better, whatever the scale.
#[derive(Clone, Copy, Debug)]
pub struct CandidateSet<'a> {
    /// The candidates; at least one.
    pub candidates: &'a [Candidate],
    /// The total of each candidate; all zero if the profile has no scorers. Never NaN.
    pub totals: &'a [f64],
}

/// The choice of a picker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Choice {
    /// The position among the candidates.
    pub at: usize,
    /// What was unusual about it, to be shown in the plan and its explanation.
    pub mark: Option<&'static str>,
}

impl From<usize> for Choice {
    fn from(at: usize) -> Self {
        Self { at, mark: None }
    }
}

/// A short list of positions among the candidates, best first.
#[derive(Debug)]
pub struct Fallbacks<'a> {
    pub(crate) positions: &'a mut Vec<usize>,
    pub(crate) most: usize,
}

impl Fallbacks<'_> {
    /// Whether the list is complete.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.positions.len() >= self.most
    }

    /// Adds the next best, unless the list is complete or has it already.
    pub fn push(&mut self, position: usize) {
        if !self.is_full() && !self.positions.contains(&position) {
            self.positions.push(position);
        }
    }

    /// Adds the candidates with the highest totals after the chosen one. Ties are broken in a
    /// circle that starts behind the chosen one, so that no pod is the first fallback of all
    /// others.
    pub fn best_of(&mut self, set: CandidateSet<'_>, chosen: usize) {
        let totals = set.totals;
        let given = self.positions.len();
        // The total of the worst in a full list: one comparison rules most candidates out.
        let mut least = f64::NEG_INFINITY;
        for position in (chosen + 1..totals.len()).chain(0..chosen.min(totals.len())) {
            let is_full = self.is_full();
            if is_full && (given == self.most || totals[position] <= least) {
                continue;
            }
            if self.positions[..given].contains(&position) {
                continue;
            }
            if is_full {
                self.positions.pop();
            }
            let worse = |other: &usize| totals[*other] < totals[position];
            let at = self.positions[given..].iter().position(worse);
            self.positions.insert(at.map_or(self.positions.len(), |at| given + at), position);
            least = totals[self.positions[self.positions.len() - 1]];
        }
    }
}

/// The answer to a request that no pod serves.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rejection {
    /// The HTTP status.
    pub status: u16,
    /// The reason, for the client and the log.
    pub reason: String,
    /// When a retry may succeed.
    pub retry_after: Option<Duration>,
    /// What it is about, for callers that must tell more than the status.
    pub cause: RejectionCause,
}

/// What a rejection is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RejectionCause {
    /// No pod can serve the request.
    NoPod,
    /// Pods, queues or memory are full.
    Saturated,
    /// The request waited until its deadline.
    Expired,
    /// The router is shutting down.
    ShuttingDown,
    /// The request itself.
    Request,
}

impl Rejection {
    /// 503: no pod can serve the request now.
    #[must_use]
    pub fn unavailable(reason: &str) -> Self {
        let retry_after = Some(Duration::from_secs(1));
        Self { status: 503, reason: reason.into(), retry_after, cause: RejectionCause::NoPod }
    }

    /// 503: the router is shutting down.
    #[must_use]
    pub fn shutting_down() -> Self {
        let cause = RejectionCause::ShuttingDown;
        Self { cause, ..Self::unavailable("the gateway is shutting down") }
    }

    /// 429: every pod is busy.
    #[must_use]
    pub fn busy(reason: &str) -> Self {
        Self { status: 429, cause: RejectionCause::Saturated, ..Self::unavailable(reason) }
    }

    /// The request itself is at fault; a retry does not help.
    #[must_use]
    pub fn refused(status: u16, reason: impl Into<String>) -> Self {
        Self { status, reason: reason.into(), retry_after: None, cause: RejectionCause::Request }
    }
}

/// A filter as a profile configures it.
pub(crate) struct ConfiguredFilter {
    pub(crate) name: &'static str,
    pub(crate) filter: Box<dyn Filter>,
    pub(crate) when_empty: WhenEmpty,
}

/// A scorer as a profile configures it.
pub(crate) struct ConfiguredScorer {
    pub(crate) name: &'static str,
    pub(crate) scorer: Box<dyn Score>,
    pub(crate) weight: f64,
    /// What a whole unit is worth in milliseconds, where units and milliseconds are added.
    pub(crate) scale_ms: Option<f64>,
}

/// A picker as a profile configures it.
pub(crate) struct ConfiguredPicker {
    pub(crate) name: &'static str,
    pub(crate) picker: Box<dyn Pick>,
}

impl ConfiguredScorer {
    /// A score `s` adds `offset + factor * s` to the total, of which more is always better.
    pub(crate) fn linear(&self) -> (f64, f64) {
        match (self.scorer.scale(), self.scale_ms) {
            (Scale::Unit, None) => (0.0, self.weight),
            (Scale::Unit, Some(ms)) => (-self.weight * ms, self.weight * ms),
            (Scale::Milliseconds, _) => (0.0, -self.weight),
        }
    }

    /// What a score adds to the total. Without weight it adds nothing, even if a cost is infinite:
    /// the product would be NaN.
    pub(crate) fn adds(&self, score: f64) -> f64 {
        let (offset, factor) = self.linear();
        if factor == 0.0 { 0.0 } else { offset + factor * score }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::fleet::PodFacts;

    proptest! {
        #[test]
        fn fallbacks_are_the_best_others_in_a_circle_behind_the_chosen_one(
            totals in prop::collection::vec((-2..3_i8).prop_map(f64::from), 1..20),
            chosen in any::<prop::sample::Index>(),
            most in 0..6_usize,
        ) {
            let chosen = chosen.index(totals.len());
            let count = totals.len();
            let mut expected: Vec<_> = (1..count).map(|step| (chosen + step) % count).collect();
            expected.sort_by(|a, b| totals[*b].total_cmp(&totals[*a]));
            expected.truncate(most);
            let index = Index::new(wornpath_index::IndexLimits::default(), 1);
            let pods = (0..count).map(|_| {
                let facts = PodFacts::serving("p", "m");
                FleetPod::new(index.add_pod().unwrap(), facts)
            });
            let fleet = Fleet::new(pods.collect());
            let candidates: Vec<_> = fleet.candidates().collect();
            let set = CandidateSet { candidates: &candidates, totals: &totals };
            let mut positions = Vec::new();
            Fallbacks { positions: &mut positions, most }.best_of(set, chosen);
            prop_assert_eq!(positions, expected);
        }
    }
}
