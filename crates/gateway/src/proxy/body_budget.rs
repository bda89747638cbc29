//! One budget of bytes for the request bodies that the gateway holds in memory.
//!
//! Clients can send most of a large body and then stall, on as many connections as there may be. So
//! a body takes bytes from the budget as it arrives, in steps, and gives them back when the
//! response begins or the request fails. A declared length takes nothing: it would cost a client
//! only a head to hold the budget.
//!
//! Bytes are counted by owner: the tenant, or the client's address where there are no tenants. An
//! owner may hold as much as it leaves free: half of the budget if it is alone, and half of what
//! others have left. So there is always room for one more, which a fixed share does not give.
//! Switches divide their memory among ports by this rule (Choudhury and Hahne, "Dynamic queue
//! length thresholds", 1998).
//!
//! A body that finds no room is not read for one to two seconds, then it is refused. Bodies that
//! hold bytes while they wait for more could all wait for each other; they give up at different
//! times, and what the first ones give back lets the others go on.
//!
//! Limits: the first [`UNCOUNTED`] bytes are free, so that requests of ordinary length pay nothing
//! and are never refused here; `limits.connections` bounds them. Behind a proxy all clients have one
//! address, and without tenants they share one half.

use crate::proxy::sender::Sender;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::{Instant, sleep_until};

/// Bodies up to this length are not counted. A connection's read buffer is as long.
pub(crate) const UNCOUNTED: usize = 64 << 10;

/// A body takes as many bytes again as it has, but at most this many, so that most bytes of the
/// budget are in use and a long body takes them a few times only.
const LARGEST_STEP: usize = 1 << 20;

/// How long a body waits for room at least, and half of how long at most.
const SHORTEST_WAIT: Duration = Duration::from_secs(1);

/// Different waits: bodies that began to wait one after another give up 16 ms apart.
const WAITS: u64 = 64;

/// How often a waiting body looks for room. Each release would otherwise have to visit all of them.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(40);

/// Why a body got no bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Shortage {
    /// All bodies together are at the limit.
    #[error(
        "request bodies in memory are at their limit of {limit} bytes (`limits.bodies`); retry \
         later, or raise the limit"
    )]
    Budget {
        /// The budget.
        limit: usize,
    },
    /// The bodies of one tenant or address are at its share.
    #[error(
        "bodies of this tenant or client address hold {held} bytes, its share of {limit} bytes \
         (`limits.bodies`); send fewer large requests at a time, or raise the limit"
    )]
    Share {
        /// What its bodies hold.
        held: usize,
        /// The budget.
        limit: usize,
    },
}

/// Bytes by owner: the rule alone, without threads and time.
#[derive(Debug, Default)]
struct Ledger {
    total: usize,
    /// Only owners that hold something.
    owners: HashMap<Sender, usize>,
}

impl Ledger {
    /// Takes bytes, if the owner then holds no more than is left.
    fn reserve(&mut self, owner: &Sender, bytes: usize, limit: usize) -> Result<(), Shortage> {
        let held = self.owners.get(owner).copied().unwrap_or(0);
        let total = self.total.saturating_add(bytes);
        let Some(left) = limit.checked_sub(total) else {
            return Err(Shortage::Budget { limit });
        };
        if held + bytes > left {
            return Err(Shortage::Share { held, limit });
        }
        self.total = total;
        *self.owners.entry(owner.clone()).or_default() += bytes;
        Ok(())
    }

    /// Gives back what was taken.
    fn release(&mut self, owner: &Sender, bytes: usize) {
        self.total -= bytes;
        if let Some(held) = self.owners.get_mut(owner) {
            *held -= bytes;
            if *held == 0 {
                self.owners.remove(owner);
            }
        }
    }
}

/// The budget, and how often it was exceeded.
#[derive(Debug, Default)]
pub struct BodyBudget {
    ledger: Mutex<Ledger>,
    /// Bodies that have waited.
    waited: AtomicU64,
    refused_by_budget: AtomicU64,
    refused_by_share: AtomicU64,
    too_slow: AtomicU64,
}

/// Bodies that were ended, by the reason.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RefusedBodies {
    /// No room in the budget.
    pub budget: u64,
    /// No room in the share of a tenant or an address.
    pub share: u64,
    /// Below the minimum rate.
    pub slow: u64,
}

impl BodyBudget {
    /// Bytes that bodies hold now.
    #[must_use]
    pub fn held(&self) -> usize {
        self.ledger().total
    }

    /// Bodies that were ended so far.
    #[must_use]
    pub fn refused(&self) -> RefusedBodies {
        RefusedBodies {
            budget: self.refused_by_budget.load(Relaxed),
            share: self.refused_by_share.load(Relaxed),
            slow: self.too_slow.load(Relaxed),
        }
    }

    /// Counts a body that was ended because it was too slow.
    pub(crate) fn count_too_slow(&self) {
        self.too_slow.fetch_add(1, Relaxed);
    }

    /// How long the next body waits.
    fn next_wait(&self) -> Duration {
        let number = self.waited.fetch_add(1, Relaxed) % WAITS;
        SHORTEST_WAIT + SHORTEST_WAIT * number as u32 / WAITS as u32
    }

    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The bytes of one body; given back when dropped.
#[derive(Debug)]
pub struct BodyReservation {
    budget: Arc<BodyBudget>,
    owner: Sender,
    bytes: usize,
}

impl BodyReservation {
    /// A body without bytes.
    pub(crate) fn new(budget: &Arc<BodyBudget>, owner: Sender) -> Self {
        Self { budget: Arc::clone(budget), owner, bytes: 0 }
    }

    /// Bytes that it holds.
    pub(crate) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Takes bytes until `length` are held, and some more for what follows, but no more than
    /// `most` in all. Waits if there is no room in the budget of `limit` bytes.
    pub(crate) async fn grow(
        &mut self,
        length: usize,
        most: usize,
        limit: usize,
    ) -> Result<(), Shortage> {
        let ahead = self.bytes + self.bytes.clamp(UNCOUNTED, LARGEST_STEP);
        let target = ahead.min(most).max(length);
        if self.try_grow(target, limit).is_ok() {
            return Ok(());
        }
        Box::pin(self.wait(length, limit)).await
    }

    async fn wait(&mut self, length: usize, limit: usize) -> Result<(), Shortage> {
        let deadline = Instant::now() + self.budget.next_wait();
        let mut pause = FIRST_PAUSE;
        loop {
            let Err(shortage) = self.try_grow(length, limit) else { return Ok(()) };
            let now = Instant::now();
            if now >= deadline {
                let refused = match shortage {
                    Shortage::Budget { .. } => &self.budget.refused_by_budget,
                    Shortage::Share { .. } => &self.budget.refused_by_share,
                };
                refused.fetch_add(1, Relaxed);
                return Err(shortage);
            }
            sleep_until(deadline.min(now + pause)).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    fn try_grow(&mut self, length: usize, limit: usize) -> Result<(), Shortage> {
        self.budget.ledger().reserve(&self.owner, length - self.bytes, limit)?;
        self.bytes = length;
        Ok(())
    }

    /// The body has ended: gives back what it did not need.
    pub(crate) fn shrink(&mut self, length: usize) {
        self.budget.ledger().release(&self.owner, self.bytes - length);
        self.bytes = length;
    }
}

impl Drop for BodyReservation {
    fn drop(&mut self) {
        self.budget.ledger().release(&self.owner, self.bytes);
    }
}

#[cfg(test)]
mod tests;
