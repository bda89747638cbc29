//! What a plugin is: one of four small traits, and what each is shown.
//!
//! Filter, score and pick get all candidates at once and write into buffers of the caller, so a
//! decision makes one call per plugin and allocates nothing per candidate. Plugins are shared by all
//! threads; one that remembers something keeps it behind atomics or a lock of its own.

use std::time::Duration;

use wornpath_index::{Holding, Index, Moment, PodId};

use crate::fleet::{Candidate, Fleet, Pod};
use crate::name::Role;
use crate::request::Request;
use crate::rng::Rng;
use crate::slot::{Reads, Slot, Slots, Writes};
use crate::values::BlockHashes;

/// Computes something from the request, once, before any pod is looked at.
pub trait Prepare: Send + Sync {
    /// Writes its slots, or leaves them empty if the request has nothing to say.
    ///
    /// # Errors
    /// If the request cannot be served at all.
    fn prepare(&self, scene: &mut Preparing<'_>) -> Result<(), Rejection>;
}

/// Says which pods cannot take a request.
pub trait Filter: Send + Sync {
    /// Sets `keep` to false for each candidate that must not get it. All are true on entry.
    fn keep(&self, scene: &Decision<'_>, candidates: &[Candidate], keep: &mut [bool]);

    /// Why a candidate was not kept, for people. Asked only when a decision is explained.
    fn why(&self, scene: &Decision<'_>, candidate: Candidate) -> String;

    /// What happens when nobody is left, unless the profile says otherwise.
    fn when_empty(&self) -> WhenEmpty {
        WhenEmpty::Reject
    }

    /// How a request is turned away when nobody is left.
    fn rejection(&self) -> Rejection {
        Rejection::unavailable("no pod is left")
    }
}

/// Says how well a pod suits a request.
pub trait Score: Send + Sync {
    /// What its numbers mean.
    fn scale(&self) -> Scale;

    /// Writes one number per candidate. All are zero on entry.
    fn score(&self, scene: &Decision<'_>, candidates: &[Candidate], scores: &mut [f64]);

    /// A plan was made, and this pod was chosen by the selector that this scorer is part of.
    fn chosen(&self, _scene: &Decision<'_>, _pod: Candidate) {}
}

/// Chooses among the candidates that are left.
pub trait Pick: Send + Sync {
    /// The position in the slate of the one that is chosen. The slate has at least one candidate.
    fn pick(&self, scene: &Decision<'_>, slate: Slate<'_>, rng: &mut Rng) -> Choice;

    /// Who takes over if the chosen one fails: positions in the slate, best first, at most `most`.
    fn fallbacks(
        &self,
        _scene: &Decision<'_>,
        slate: Slate<'_>,
        chosen: usize,
        fallbacks: &mut Fallbacks<'_>,
    ) {
        fallbacks.best_of(slate, chosen);
    }

    /// A plan was made with this pod.
    fn chosen(&self, _scene: &Decision<'_>, _pod: Candidate) {}
}

/// What a scorer's numbers mean.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scale {
    /// In `[0, 1]`; more is better.
    Unit,
    /// Milliseconds; less is better.
    Milliseconds,
}

/// What happens when a filter leaves nobody.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WhenEmpty {
    /// The request is turned away.
    Reject,
    /// The filter does not count, and the plan says so.
    Skip,
    /// The request waits until somebody passes.
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

/// A request that is turned away.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rejection {
    /// The HTTP status that says it best.
    pub status: u16,
    /// Why, for the client and the log.
    pub reason: String,
    /// When trying again may help.
    pub retry_after: Option<Duration>,
}

impl Rejection {
    /// Nobody can serve it now.
    #[must_use]
    pub fn unavailable(reason: &str) -> Self {
        Self { status: 503, reason: reason.into(), retry_after: Some(Duration::from_secs(1)) }
    }

    /// Everybody is busy.
    #[must_use]
    pub fn busy(reason: &str) -> Self {
        Self { status: 429, ..Self::unavailable(reason) }
    }

    /// The client asks for what cannot be.
    #[must_use]
    pub fn refused(status: u16, reason: impl Into<String>) -> Self {
        Self { status, reason: reason.into(), retry_after: None }
    }
}

/// What a preparer sees.
pub struct Preparing<'a> {
    pub(crate) request: &'a Request,
    pub(crate) slots: &'a mut Slots,
}

impl<'a> Preparing<'a> {
    /// The request.
    #[must_use]
    pub const fn request(&self) -> &'a Request {
        self.request
    }

    /// What an earlier preparer wrote for this request, if it did.
    #[must_use]
    pub fn read<T: Slot>(&self, handle: &Reads<T>) -> Option<&T> {
        self.slots.read(handle)
    }

    /// The slot, empty, to be filled.
    pub fn write<T: Slot>(&mut self, handle: &Writes<T>) -> &mut T {
        self.slots.write(handle)
    }

    /// The slot, empty, to be filled from another one. `fill` gets what was read, if it was written.
    pub fn derive<R: Slot, W: Slot>(
        &mut self,
        from: &Reads<R>,
        to: &Writes<W>,
        fill: impl FnOnce(&R, &mut W),
    ) {
        // Taken out for the moment, because both live in one array.
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
    pub fn pod(&self, candidate: Candidate) -> &'a Pod {
        &self.fleet[candidate]
    }

    /// Where among these candidates a pod is, if it is one of them.
    #[must_use]
    pub fn position(&self, candidates: &[Candidate], pod: PodId) -> Option<usize> {
        // Candidates are in the order of the fleet.
        candidates.binary_search(&self.fleet.find(pod)?).ok()
    }

    /// The time, since whenever the caller counts from.
    #[must_use]
    pub const fn now(&self) -> Moment {
        self.now
    }

    /// The role that is being filled.
    #[must_use]
    pub const fn role(&self) -> &'a Role {
        self.role
    }

    /// What a slot holds, if somebody wrote it for this request.
    #[must_use]
    pub fn read<T: Slot>(&self, handle: &Reads<T>) -> Option<&'a T> {
        self.slots.read(handle)
    }

    /// How much of the prompt each pod holds, if the prompt was hashed.
    #[inline]
    #[must_use]
    pub fn held(&self, handle: &Held) -> Option<HeldBlocks<'a>> {
        let prompt = self.slots.read(&handle.blocks)?;
        Some(HeldBlocks { prompt, depths: self.depths })
    }

    /// On which tiers a pod holds the first `depth` blocks of the prompt. Takes the pod's lock: for the
    /// best few candidates only.
    pub fn holdings(&self, handle: &Held, pod: &Pod, depth: u32, holdings: &mut Vec<Holding>) {
        holdings.clear();
        let Some(prompt) = self.slots.read(&handle.blocks) else { return };
        let held = &prompt.chain[..prompt.chain.len().min(depth as usize)];
        if self.index.holdings(pod.id(), held, holdings).is_err() {
            // Gone since the lookup: it holds nothing.
            holdings.clear();
        }
    }
}

/// The right to know how much of the prompt each pod holds. The index is asked once per decision,
/// wherever the prompt is hashed.
#[derive(Debug)]
pub struct Held {
    pub(crate) blocks: Reads<BlockHashes>,
}

/// How much of a prompt each pod holds.
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
    pub fn depth(&self, pod: &Pod) -> u32 {
        self.depths.get(pod.slot().position()).copied().unwrap_or(0)
    }

    /// Which share of the prompt's full blocks that is, in `[0, 1]`.
    #[inline]
    #[must_use]
    pub fn share(&self, pod: &Pod) -> f64 {
        f64::from(self.depth(pod)) / self.prompt.chain.len().max(1) as f64
    }

    /// What the pod would have to compute.
    #[inline]
    #[must_use]
    pub fn uncached_tokens(&self, pod: &Pod) -> u64 {
        self.prompt.uncached_tokens(self.depth(pod))
    }
}

/// Who can be picked, and how each scored in total: more is better, whatever the scale.
#[derive(Clone, Copy, Debug)]
pub struct Slate<'a> {
    /// At least one.
    pub candidates: &'a [Candidate],
    /// One for each candidate; all zero if the profile has no scorers. Never NaN.
    pub totals: &'a [f64],
}

/// Who was picked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Choice {
    /// The position in the slate.
    pub at: usize,
    /// What was unusual about it, to be shown in the plan and its explanation.
    pub mark: Option<&'static str>,
}

impl From<usize> for Choice {
    fn from(at: usize) -> Self {
        Self { at, mark: None }
    }
}

/// A short list of positions in a slate, best first.
#[derive(Debug)]
pub struct Fallbacks<'a> {
    pub(crate) positions: &'a mut Vec<usize>,
    pub(crate) most: usize,
}

impl Fallbacks<'_> {
    /// Whether no more are wanted.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.positions.len() >= self.most
    }

    /// Adds the next best, unless enough are there or it is there already.
    pub fn push(&mut self, position: usize) {
        if !self.is_full() && !self.positions.contains(&position) {
            self.positions.push(position);
        }
    }

    /// Adds those with the highest totals after the chosen one. Equals come in a circle that starts
    /// behind the chosen one, so that no pod is everybody's second choice.
    pub fn best_of(&mut self, slate: Slate<'_>, chosen: usize) {
        let (totals, given) = (slate.totals, self.positions.len());
        // What the worst of a full list has: whoever has no more is passed over with one comparison.
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

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
            let index = Index::new(wornpath_index::Limits::default(), 1);
            let pods = (0..count).map(|_| {
                let facts = crate::fleet::PodFacts::serving("p", "m");
                Pod::new(index.add_pod().unwrap(), facts)
            });
            let fleet = Fleet::new(pods.collect());
            let candidates: Vec<_> = fleet.candidates().collect();
            let slate = Slate { candidates: &candidates, totals: &totals };
            let mut positions = Vec::new();
            Fallbacks { positions: &mut positions, most }.best_of(slate, chosen);
            prop_assert_eq!(positions, expected);
        }
    }
}
