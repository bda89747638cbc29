//! Wait queue: holds requests that no pod has room for yet.
//!
//! Late binding wins. A request sent to a busy pod waits there, although another pod may be free
//! first or may hold more of its prefix by then. So it waits here and is decided again whenever a
//! pod gets room. The queue decides nothing about pods; it only orders the requests:
//!
//! 1. by priority, where waiting raises a request one priority at a time;
//! 2. within a priority, requests that have been due for longer than [`QueueRules::fair_for`];
//! 3. then by tenant: the tenant that got the least work is next ([`fairness`]);
//! 4. within a tenant, by the profile's [`QueueOrder`].
//!
//! No request starves: every request rises to the highest priority, tenants share it, and within a
//! tenant a request is overtaken only by those that arrived before it was due. The length is
//! bounded; a full queue drops the last request of the longest tenant queue of the lowest priority.
//!
//! A state machine: time is an argument, and [`WaitQueue::next_wakeup`] says when to poll next.

mod fairness;
mod rules;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap};

use wornpath_index::Moment;

use fairness::{FairnessKey, PriorityLevel, Refusals};
pub use rules::{Priority, QueueEntry, QueueOrder, QueueRules, QueueRulesError, Tenant, Ticket};

/// Requests that wait for a pod. `T` is what the caller needs to decide them again.
#[derive(Debug)]
pub struct WaitQueue<T> {
    rules: QueueRules,
    next_ticket: u64,
    requests: HashMap<Ticket, QueuedRequest<T>>,
    /// By priority, lowest first.
    levels: [PriorityLevel; Priority::LEVELS],
    deadlines: BTreeSet<(Moment, Ticket)>,
    promotions: BTreeSet<(Moment, Ticket)>,
    refusals: Refusals,
}

#[derive(Debug)]
struct QueuedRequest<T> {
    entry: QueueEntry,
    /// Its own priority, or the one that waiting has raised it to.
    priority: Priority,
    due: Moment,
    promotion: Moment,
    item: T,
}

/// The result of a push.
#[derive(Debug)]
pub struct Enqueued<T> {
    /// Names the request, to cancel it.
    pub ticket: Ticket,
    /// The request that a full queue dropped for it.
    pub displaced: Option<T>,
}

/// The queue is full, and no waiting request is dropped for this one. Gives the request back.
#[derive(Debug, thiserror::Error)]
#[error("wait queue full: {waiting} requests (limit: `capacity` of the queue); retry later")]
pub struct QueueFull<T> {
    /// The request.
    pub item: T,
    /// How many wait.
    pub waiting: usize,
}

impl<T> WaitQueue<T> {
    /// An empty queue.
    ///
    /// # Errors
    /// If no queue can work by the rules.
    pub fn new(rules: QueueRules) -> Result<Self, QueueRulesError> {
        Ok(Self {
            rules: rules.check()?,
            next_ticket: 0,
            requests: HashMap::new(),
            levels: Default::default(),
            deadlines: BTreeSet::new(),
            promotions: BTreeSet::new(),
            refusals: Refusals::default(),
        })
    }

    /// How many wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.requests.len()
    }

    /// Whether no request waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// The highest priority of the waiting requests, promotions included.
    #[must_use]
    pub fn highest(&self) -> Option<Priority> {
        self.requests.values().map(|request| request.priority).max()
    }

    /// Adds a request. A full queue drops the last request of the longest tenant queue of the
    /// lowest priority, so that neither offline work nor one busy tenant can lock the others out.
    ///
    /// # Errors
    /// Gives the request back if it would be the one dropped.
    pub fn push(
        &mut self,
        now: Moment,
        entry: QueueEntry,
        item: T,
    ) -> Result<Enqueued<T>, Box<QueueFull<T>>> {
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        let due = self.rules.order.due(now, &entry);
        let promotion = now.saturating_add(self.rules.promote_after);
        let priority = entry.priority;
        self.requests.insert(ticket, QueuedRequest { entry, priority, due, promotion, item });
        self.level(priority).insert(entry.tenant, (due, ticket));
        self.deadlines.insert((entry.deadline, ticket));
        if priority != Priority::HIGHEST {
            self.promotions.insert((promotion, ticket));
        }
        if self.requests.len() <= self.rules.capacity {
            return Ok(Enqueued { ticket, displaced: None });
        }
        let dropped = self.to_drop(entry.tenant).unwrap_or(ticket);
        let displaced = self.cancel(dropped);
        match displaced {
            Some(item) if dropped == ticket => {
                Err(Box::new(QueueFull { item, waiting: self.len() }))
            }
            displaced => Ok(Enqueued { ticket, displaced }),
        }
    }

    /// Removes a request, for instance because its client has disconnected.
    pub fn cancel(&mut self, ticket: Ticket) -> Option<T> {
        let request = self.requests.remove(&ticket)?;
        let key = (request.due, ticket);
        self.level(request.priority).remove(request.entry.tenant, key);
        self.unschedule(ticket, &request);
        Some(request.item)
    }

    /// Removes one request whose deadline has passed, earliest first; call until there is none.
    pub fn pop_expired(&mut self, now: Moment) -> Option<T> {
        let (deadline, ticket) = *self.deadlines.first()?;
        if deadline > now {
            return None;
        }
        self.cancel(ticket)
    }

    /// Offers requests in order until `lookahead` of them were refused. A request for which `offer`
    /// returns `Some` leaves the queue and is appended to `bound`; the others stay.
    ///
    /// Expired requests are offered as well: remove them first with [`Self::pop_expired`].
    pub fn poll<R>(
        &mut self,
        now: Moment,
        bound: &mut Vec<(T, R)>,
        mut offer: impl FnMut(&mut T) -> Option<R>,
    ) {
        self.promote(now);
        let overdue = now.since_zero().checked_sub(self.rules.fair_for).map(Moment::at);
        let mut left = self.rules.lookahead;
        for level in (0..Priority::LEVELS).rev() {
            self.refusals.clear();
            while left > 0 {
                let queue = &self.levels[level];
                let first = overdue.and_then(|due| queue.next_overdue(due, &mut self.refusals));
                let next = first.or_else(|| queue.next_offer(&self.refusals));
                let Some((tenant, key)) = next else { break };
                match self.offer_one(tenant, key, &mut offer) {
                    Some(accepted) => bound.push(accepted),
                    None => left -= 1,
                }
            }
        }
    }

    /// When to poll even if nothing changes: the next deadline.
    #[must_use]
    pub fn next_wakeup(&self) -> Option<Moment> {
        self.deadlines.first().map(|(deadline, _)| *deadline)
    }

    /// The number of scheduled promotions: one for each request below the highest priority.
    #[cfg(test)]
    fn promotions_ahead(&self) -> usize {
        self.promotions.len()
    }

    fn offer_one<R>(
        &mut self,
        tenant: Tenant,
        key: FairnessKey,
        offer: &mut impl FnMut(&mut T) -> Option<R>,
    ) -> Option<(T, R)> {
        let ticket = key.1;
        let answer = self.requests.get_mut(&ticket).and_then(|request| offer(&mut request.item));
        let Some(answer) = answer else {
            self.refusals.add(tenant, key);
            return None;
        };
        let request = self.requests.remove(&ticket)?;
        self.level(request.priority).serve(&request.entry, key);
        self.unschedule(ticket, &request);
        Some((request.item, answer))
    }

    /// Promotes the requests that have waited long enough. A request rises at most seven times.
    fn promote(&mut self, now: Moment) {
        while let Some((moment, ticket)) = self.promotions.first().copied()
            && moment <= now
        {
            self.promotions.pop_first();
            let Some(request) = self.requests.get_mut(&ticket) else { continue };
            let Some(raised) = request.priority.raised() else { continue };
            let from = std::mem::replace(&mut request.priority, raised);
            request.promotion = moment.saturating_add(self.rules.promote_after);
            let tenant = request.entry.tenant;
            let key = (request.due, ticket);
            if raised != Priority::HIGHEST {
                self.promotions.insert((request.promotion, ticket));
            }
            self.level(from).remove(tenant, key);
            self.level(raised).insert(tenant, key);
        }
    }

    fn to_drop(&self, newcomer: Tenant) -> Option<Ticket> {
        let lowest = self.levels.iter().find(|level| !level.is_empty())?;
        lowest.last_of_longest(newcomer).map(|(_, (_, ticket))| ticket)
    }

    fn level(&mut self, priority: Priority) -> &mut PriorityLevel {
        &mut self.levels[usize::from(priority.level())]
    }

    fn unschedule(&mut self, ticket: Ticket, request: &QueuedRequest<T>) {
        self.deadlines.remove(&(request.entry.deadline, ticket));
        self.promotions.remove(&(request.promotion, ticket));
    }
}
