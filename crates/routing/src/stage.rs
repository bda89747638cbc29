//! What a plugin is: one of four small traits, and what each is shown.
//!
//! Filter, score and pick get all candidates at once and write into buffers of the caller, so a
//! decision makes one call per plugin and allocates nothing per candidate. Plugins are shared by all
//! threads; one that remembers something keeps it behind atomics or a lock of its own.

mod candidate_set;
mod rejection;

pub use candidate_set::{CandidateSet, Choice, Fallbacks};
pub use rejection::Rejection;
use wornpath_index::{BlockLocation, Index, Moment, PodId};

use crate::fleet::{Candidate, Fleet, FleetPod};
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
    fn rejection(&self, _scene: &Decision<'_>) -> Rejection {
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
    fn pick(&self, scene: &Decision<'_>, slate: CandidateSet<'_>, rng: &mut Rng) -> Choice;

    /// Who takes over if the chosen one fails: positions in the slate, best first, at most `most`.
    fn fallbacks(
        &self,
        _scene: &Decision<'_>,
        slate: CandidateSet<'_>,
        chosen: usize,
        fallbacks: &mut Fallbacks<'_>,
    ) {
        fallbacks.best_of(slate, chosen);
    }

    /// A plan was made with this pod.
    fn chosen(&self, _scene: &Decision<'_>, _pod: Candidate) {}

    /// No plan was made with the pod that was picked: the request waits or is turned away, or does
    /// without the step.
    fn passed_over(&self, _scene: &Decision<'_>, _pod: Candidate) {}
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
    pub fn pod(&self, candidate: Candidate) -> &'a FleetPod {
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
    pub fn held(&self, handle: &HeldDepth) -> Option<HeldBlocks<'a>> {
        let prompt = self.slots.read(&handle.blocks)?;
        Some(HeldBlocks { prompt, depths: self.depths })
    }

    /// On which tiers a pod holds the first `depth` blocks of the prompt. Takes the pod's lock: for the
    /// best few candidates only.
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
            // Gone since the lookup: it holds nothing.
            holdings.clear();
        }
    }
}

/// The right to know how much of the prompt each pod holds. The index is asked once per decision,
/// wherever the prompt is hashed.
#[derive(Debug)]
pub struct HeldDepth {
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
    pub fn depth(&self, pod: &FleetPod) -> u32 {
        self.depths.get(pod.slot().position()).copied().unwrap_or(0)
    }

    /// Which share of the prompt's full blocks that is, in `[0, 1]`.
    #[inline]
    #[must_use]
    pub fn share(&self, pod: &FleetPod) -> f64 {
        f64::from(self.depth(pod)) / self.prompt.chain.len().max(1) as f64
    }

    /// What the pod would have to compute.
    #[inline]
    #[must_use]
    pub fn uncached_tokens(&self, pod: &FleetPod) -> u64 {
        self.prompt.uncached_tokens(self.depth(pod))
    }
}
