//! The values of one request: typed slots, through which plugins pass values to each other, and the
//! values that the shipped plugins have.
//!
//! A plugin can touch a slot only through a handle, and only assembly makes handles. So holding one
//! is the declaration that assembly checks, and undeclared access does not compile:
//!
//! ```compile_fail,E0451
//! use wornpath_routing::{Reads, Tokens};
//! let forged: Reads<Tokens> = Reads { at: 0, profile: panic!(), value: std::marker::PhantomData };
//! ```
//!
//! ```compile_fail,E0308
//! use wornpath_routing::{Preparing, Reads, Tokens};
//! fn a_reader_cannot_write(scene: &mut Preparing<'_>, tokens: &Reads<Tokens>) {
//!     scene.write(tokens);
//! }
//! ```
//!
//! ```compile_fail,E0308
//! use wornpath_routing::{BlockHashes, Decision, Reads, Tokens};
//! fn tokens_are_not_hashes<'a>(scene: &Decision<'a>, tokens: &Reads<Tokens>) -> Option<&'a BlockHashes> {
//!     scene.read(tokens)
//! }
//! ```
//!
//! A handle is a position in a small array. It also carries its profile's identity, and a context
//! made by another profile refuses it.

use std::any::{Any, TypeId};
use std::fmt;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};

use wornpath_blocks::{BlockHash, EncodeLimits};
use wornpath_index::PodId;

use crate::models::Untokenized;
use crate::name::Name;
use crate::request::{AllowedPods, Request};

/// A value that plugins pass on. It is cleared between requests, not dropped, so that buffers are
/// reused.
pub trait Slot: Default + Send + Sync + 'static {
    /// Its name in diagnostics.
    const NAME: &'static str;

    /// Makes it empty; types with buffers keep their memory.
    fn clear(&mut self) {
        *self = Self::default();
    }
}

/// The identity of an assembled profile.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ProfileId(u64);

impl ProfileId {
    pub(crate) fn next() -> Self {
        static ASSEMBLED: AtomicU64 = AtomicU64::new(0);
        Self(ASSEMBLED.fetch_add(1, Ordering::Relaxed))
    }
}

/// The right to read a slot.
pub struct Reads<T> {
    at: u16,
    profile: ProfileId,
    value: PhantomData<fn() -> T>,
}

/// The right to write a slot.
pub struct Writes<T> {
    at: u16,
    profile: ProfileId,
    value: PhantomData<fn(T)>,
}

impl<T> Reads<T> {
    pub(crate) const fn new(at: u16, profile: ProfileId) -> Self {
        Self { at, profile, value: PhantomData }
    }
}

impl<T> Writes<T> {
    pub(crate) const fn new(at: u16, profile: ProfileId) -> Self {
        Self { at, profile, value: PhantomData }
    }
}

impl<T: Slot> fmt::Debug for Reads<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Reads<{}>", T::NAME)
    }
}

impl<T: Slot> fmt::Debug for Writes<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Writes<{}>", T::NAME)
    }
}

/// A slot whose type only its handles know.
trait Erased: Any + Send + Sync {
    fn clear(&mut self);
}

impl<T: Slot> Erased for T {
    fn clear(&mut self) {
        Slot::clear(self);
    }
}

/// One slot of a profile: how to make its value, and what it is called.
#[derive(Clone)]
pub(crate) struct SlotKind {
    pub(crate) name: &'static str,
    /// The step that a pick belongs to, since there are several slots of that type.
    pub(crate) of: Option<String>,
    value: TypeId,
    make: fn() -> Cell,
}

impl SlotKind {
    pub(crate) fn of<T: Slot>(of: Option<&str>) -> Self {
        let make = || Cell { filled: false, value: Box::new(T::default()) };
        Self { name: T::NAME, of: of.map(str::to_owned), value: TypeId::of::<T>(), make }
    }

    pub(crate) fn same(&self, other: &Self) -> bool {
        self.value == other.value && self.of == other.of
    }
}

impl fmt::Display for SlotKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.of {
            Some(of) => write!(f, "{}({of})", self.name),
            None => f.write_str(self.name),
        }
    }
}

struct Cell {
    filled: bool,
    value: Box<dyn Erased>,
}

/// The slots of one request.
pub(crate) struct Slots {
    profile: ProfileId,
    cells: Vec<Cell>,
}

impl Slots {
    pub(crate) fn new(profile: ProfileId, kinds: &[SlotKind]) -> Self {
        Self { profile, cells: kinds.iter().map(|kind| (kind.make)()).collect() }
    }

    pub(crate) fn belongs_to(&self, profile: ProfileId) -> bool {
        self.profile == profile
    }

    pub(crate) fn clear(&mut self) {
        for cell in &mut self.cells {
            cell.filled = false;
        }
    }

    #[inline]
    pub(crate) fn read<T: Slot>(&self, handle: &Reads<T>) -> Option<&T> {
        assert!(self.profile == handle.profile, "{handle:?} belongs to another profile");
        let cell = &self.cells[usize::from(handle.at)];
        let value: &dyn Any = &*cell.value;
        cell.filled.then(|| value.downcast_ref().expect("assembly gave this position to `T` alone"))
    }

    /// The cleared value, which counts as written from now on.
    #[inline]
    pub(crate) fn write<T: Slot>(&mut self, handle: &Writes<T>) -> &mut T {
        assert!(self.profile == handle.profile, "{handle:?} belongs to another profile");
        let cell = &mut self.cells[usize::from(handle.at)];
        cell.filled = true;
        cell.value.clear();
        let value: &mut dyn Any = &mut *cell.value;
        value.downcast_mut().expect("assembly gave this position to `T` alone")
    }

    pub(crate) fn is_filled<T: Slot>(&self, handle: &Writes<T>) -> bool {
        self.cells[usize::from(handle.at)].filled
    }

    /// Makes the slot empty, as before it was written.
    pub(crate) fn withdraw<T: Slot>(&mut self, handle: &Writes<T>) {
        assert!(self.profile == handle.profile, "{handle:?} belongs to another profile");
        self.cells[usize::from(handle.at)].filled = false;
    }
}

impl fmt::Debug for Slots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let filled = self.cells.iter().filter(|cell| cell.filled).count();
        write!(f, "Slots({filled} of {} filled)", self.cells.len())
    }
}

/// One request's values, from its arrival to the end of its response. Made by
/// [`Profile::context`](crate::Profile::context) and usable with that profile only.
pub struct RoutingContext {
    pub(crate) request: Request,
    pub(crate) slots: Slots,
    pub(crate) untokenized: Option<Untokenized>,
}

impl RoutingContext {
    /// The request.
    #[must_use]
    pub const fn request(&self) -> &Request {
        &self.request
    }

    /// Replaces the request and returns the last one. Buffers are kept, so a server that reuses
    /// contexts allocates little.
    pub fn reuse(&mut self, request: Request) -> Request {
        self.slots.clear();
        self.untokenized = None;
        std::mem::replace(&mut self.request, request)
    }

    /// Limits how far the prompt is tokenized.
    pub const fn set_encode_limits(&mut self, limits: EncodeLimits) {
        self.request.encode_limits = limits;
    }

    /// Limits the pods that a further decision may choose.
    pub fn set_allowed(&mut self, pods: AllowedPods) {
        self.request.allowed = Some(pods);
    }

    /// Prepares the request without reading its prompt.
    pub const fn skip_tokenization(&mut self, reason: Untokenized) {
        self.untokenized = Some(reason);
    }

    /// Why the request is routed without the tokens of its prompt, if it is.
    #[must_use]
    pub const fn untokenized(&self) -> Option<Untokenized> {
        self.untokenized
    }
}

impl fmt::Debug for RoutingContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RoutingContext").field("slots", &self.slots).finish_non_exhaustive()
    }
}

/// The prompt's token ids.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Tokens(pub Vec<u32>);

impl Slot for Tokens {
    const NAME: &'static str = "Tokens";

    fn clear(&mut self) {
        self.0.clear();
    }
}

/// The prompt's chain of block hashes, which is looked up in the index.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct BlockHashes {
    /// One hash for every full block.
    pub chain: Vec<BlockHash>,
    /// Tokens in a block.
    pub block_tokens: usize,
    /// Tokens in the whole prompt, exact or estimated.
    pub prompt_tokens: usize,
}

impl BlockHashes {
    /// The tokens that a pod must compute if it holds the first `depth` blocks.
    #[inline]
    #[must_use]
    pub const fn uncached_tokens(&self, depth: u32) -> u64 {
        self.prompt_tokens.saturating_sub(depth as usize * self.block_tokens) as u64
    }

    /// Blocks that need not be computed if they are cached: engines always compute the last token,
    /// and with it its whole block.
    #[must_use]
    pub fn countable_blocks(&self) -> usize {
        self.prompt_tokens.saturating_sub(1) / self.block_tokens.max(1)
    }
}

impl Slot for BlockHashes {
    const NAME: &'static str = "BlockHashes";

    fn clear(&mut self) {
        self.chain.clear();
        self.block_tokens = 0;
        self.prompt_tokens = 0;
    }
}

/// The session of a request: a hash of the client's name for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SessionKey(pub u64);

impl Slot for SessionKey {
    const NAME: &'static str = "SessionKey";
}

/// The key of consistent hashing, hashed once.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RingKey(pub u64);

impl Slot for RingKey {
    const NAME: &'static str = "RingKey";
}

/// Named values taken from headers and body fields.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Attributes(pub Vec<(Name, Name)>);

impl Attributes {
    /// The value of that name.
    #[must_use]
    pub fn get(&self, name: &Name) -> Option<&Name> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, value)| value)
    }
}

impl Slot for Attributes {
    const NAME: &'static str = "Attributes";

    fn clear(&mut self) {
        self.0.clear();
    }
}

/// The pod that an offline plan assigned the request to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PlanHint(pub Option<PodId>);

impl Slot for PlanHint {
    const NAME: &'static str = "PlanHint";
}

/// The pod of an earlier step of the same plan. The workflow writes it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Picked(pub Option<PodId>);

impl Slot for Picked {
    const NAME: &'static str = "Picked";
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slots(profile: ProfileId) -> Slots {
        Slots::new(profile, &[SlotKind::of::<Tokens>(None)])
    }

    #[test]
    fn a_slot_is_empty_until_written_and_again_after_clearing() {
        let profile = ProfileId::next();
        let reads = Reads::<Tokens>::new(0, profile);
        let writes = Writes::<Tokens>::new(0, profile);
        let mut slots = slots(profile);
        assert!(slots.read(&reads).is_none());
        slots.write(&writes).0.push(7);
        assert_eq!(slots.read(&reads).unwrap().0, [7]);
        slots.clear();
        assert!(slots.read(&reads).is_none());
        assert!(slots.write(&writes).0.is_empty(), "what the last request wrote is gone");
    }

    #[test]
    #[should_panic(expected = "Reads<Tokens> belongs to another profile")]
    fn a_handle_of_another_profile_is_refused() {
        let reads = Reads::<Tokens>::new(0, ProfileId::next());
        slots(ProfileId::next()).read(&reads);
    }
}
