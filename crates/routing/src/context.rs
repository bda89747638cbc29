//! What belongs to one request, and what belongs to one deciding thread.

use std::fmt;

use wornpath_index::{Answer, Holding, Index, Moment, Reader, Writer};

use crate::fleet::{Candidate, Fleet};
use crate::request::Request;
use crate::rng::Rng;
use crate::slot::Slots;

/// One request's values, from its arrival to the end of its response. Made by
/// [`Profile::context`](crate::Profile::context) and usable with that profile only.
pub struct RoutingContext {
    pub(crate) request: Request,
    pub(crate) slots: Slots,
}

impl RoutingContext {
    /// The request.
    #[must_use]
    pub const fn request(&self) -> &Request {
        &self.request
    }

    /// Makes the context another request's, and gives back the last one. Its buffers are kept, so a
    /// server that reuses contexts allocates little.
    pub fn reuse(&mut self, request: Request) -> Request {
        self.slots.clear();
        std::mem::replace(&mut self.request, request)
    }
}

impl fmt::Debug for RoutingContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RoutingContext").field("slots", &self.slots).finish_non_exhaustive()
    }
}

/// What one deciding thread has of the index, and its buffers.
#[derive(Debug)]
pub struct Desk {
    pub(crate) index: Index,
    pub(crate) reader: Reader,
    pub(crate) writer: Writer,
    pub(crate) scratch: Scratch,
}

/// Buffers that a decision fills and the next one fills again.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    pub(crate) answer: Answer,
    /// Blocks held, by the slot of the index.
    pub(crate) depths: Vec<u32>,
    pub(crate) candidates: Vec<Candidate>,
    pub(crate) keep: Vec<bool>,
    pub(crate) scores: Vec<f64>,
    pub(crate) totals: Vec<f64>,
    pub(crate) fallbacks: Vec<usize>,
    pub(crate) holdings: Vec<Holding>,
}

impl Desk {
    /// A desk of its own for each thread that decides.
    #[must_use]
    pub fn new(index: &Index) -> Self {
        Self {
            index: index.clone(),
            reader: index.reader(),
            writer: index.writer(),
            scratch: Scratch::default(),
        }
    }
}

/// What a decision looks at. Time and randomness are the caller's, so that the same world gives the
/// same decision.
#[derive(Debug)]
pub struct World<'a> {
    /// The pods.
    pub fleet: &'a Fleet,
    /// The index, through this thread's desk.
    pub desk: &'a mut Desk,
    /// The time, since whenever the caller counts from.
    pub now: Moment,
    /// Where chance comes from.
    pub rng: &'a mut Rng,
}
