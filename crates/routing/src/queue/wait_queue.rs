//! The queue itself: who waits, until when, and who is offered next.

use std::collections::{BTreeSet, HashMap};

use wornpath_index::Moment;

use super::fairness::{FairnessKey, PriorityLevel, Refusals};
use super::rules::{Priority, QueueEntry, QueueRules, QueueRulesError, Tenant};

/// Names a waiting request. Never used twice by one queue; a later one is larger.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Ticket(u64);

/// Requests that wait for a pod. `T` is whatever the caller needs to decide them again.
#[derive(Debug)]
pub struct WaitQueue<T> {
    rules: QueueRules,
    next: u64,
    requests: HashMap<Ticket, QueuedRequest<T>>,
    /// By priority, lowest first.
    levels: [PriorityLevel; Priority::LEVELS],
    deadlines: BTreeSet<(Moment, Ticket)>,
    promotions: BTreeSet<(Moment, Ticket)>,
    refusals: Refusals,
}

#[derive(Debug)]
struct QueuedRequest<T> {
    waiting: QueueEntry,
    /// Where it has risen to.
    priority: Priority,
    due: Moment,
    promotion: Moment,
    item: T,
}

/// A request that now waits.
#[derive(Debug)]
pub struct Enqueued<T> {
    /// For cancelling it.
    pub ticket: Ticket,
    /// Who had to go for it, because the queue was full.
    pub displaced: Option<T>,
}

/// The queue is full, and nobody in it has less right to wait. Gives the request back.
#[derive(Debug, thiserror::Error)]
#[error("{waiting} requests wait already, as many as the queue's `capacity`; retry later")]
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
    /// If the rules make no sense.
    pub fn new(rules: QueueRules) -> Result<Self, QueueRulesError> {
        Ok(Self {
            rules: rules.check()?,
            next: 0,
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

    /// Whether nobody waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// The highest priority that somebody who waits has, or has risen to.
    #[must_use]
    pub fn highest(&self) -> Option<Priority> {
        self.requests.values().map(|request| request.priority).max()
    }

    /// The request waits from now on. In a full queue the last of the longest line of the lowest
    /// priority goes, so that neither offline work nor one busy tenant can shut everybody else out.
    ///
    /// # Errors
    /// Gives the request back if it would be the one to go.
    pub fn push(
        &mut self,
        now: Moment,
        waiting: QueueEntry,
        item: T,
    ) -> Result<Enqueued<T>, Box<QueueFull<T>>> {
        let ticket = Ticket(self.next);
        self.next += 1;
        let due = self.rules.order.due(now, &waiting);
        let promotion = now.saturating_add(self.rules.promote_after);
        let priority = waiting.priority;
        self.requests.insert(ticket, QueuedRequest { waiting, priority, due, promotion, item });
        self.level(priority).insert(waiting.tenant, (due, ticket));
        self.deadlines.insert((waiting.deadline, ticket));
        if priority != Priority::HIGHEST {
            self.promotions.insert((promotion, ticket));
        }
        if self.requests.len() <= self.rules.capacity {
            return Ok(Enqueued { ticket, displaced: None });
        }
        let victim = self.victim(waiting.tenant).unwrap_or(ticket);
        let displaced = self.cancel(victim);
        match displaced {
            Some(item) if victim == ticket => {
                Err(Box::new(QueueFull { item, waiting: self.len() }))
            }
            displaced => Ok(Enqueued { ticket, displaced }),
        }
    }

    /// Takes a request out, for instance because its client has gone.
    pub fn cancel(&mut self, ticket: Ticket) -> Option<T> {
        let request = self.requests.remove(&ticket)?;
        let place = (request.due, ticket);
        self.level(request.priority).remove(request.waiting.tenant, place);
        self.unschedule(ticket, &request);
        Some(request.item)
    }

    /// Gives back one request whose deadline has come, earliest first; call until there is none.
    pub fn pop_expired(&mut self, now: Moment) -> Option<T> {
        let (deadline, ticket) = *self.deadlines.first()?;
        if deadline > now {
            return None;
        }
        self.cancel(ticket)
    }

    /// Offers requests in order until `lookahead` of them were refused. What `offer` answers with
    /// `Some` leaves the queue and is appended to `bound`; what it answers with `None` stays.
    ///
    /// Expired requests are offered as well: take them out first with [`Self::pop_expired`].
    pub fn poll<R>(
        &mut self,
        now: Moment,
        bound: &mut Vec<(T, R)>,
        mut offer: impl FnMut(&mut T) -> Option<R>,
    ) {
        self.promote(now);
        let mut left = self.rules.lookahead;
        for level in (0..Priority::LEVELS).rev() {
            self.refusals.clear();
            while left > 0
                && let Some((tenant, place)) = self.levels[level].next_offer(&self.refusals)
            {
                match self.offer_one(tenant, place, &mut offer) {
                    Some(taken) => bound.push(taken),
                    None => left -= 1,
                }
            }
        }
    }

    /// When to come back even if nothing changes: the next deadline.
    #[must_use]
    pub fn next_wakeup(&self) -> Option<Moment> {
        self.deadlines.first().map(|(deadline, _)| *deadline)
    }

    /// Who has still to rise: everybody below the top, and nobody who has left.
    #[cfg(test)]
    pub(super) fn promotions_ahead(&self) -> usize {
        self.promotions.len()
    }

    fn offer_one<R>(
        &mut self,
        tenant: Tenant,
        place: FairnessKey,
        offer: &mut impl FnMut(&mut T) -> Option<R>,
    ) -> Option<(T, R)> {
        let ticket = place.1;
        let answer = self.requests.get_mut(&ticket).and_then(|request| offer(&mut request.item));
        let Some(answer) = answer else {
            self.refusals.add(tenant, place);
            return None;
        };
        let request = self.requests.remove(&ticket)?;
        self.level(request.priority).serve(&request.waiting, place);
        self.unschedule(ticket, &request);
        Some((request.item, answer))
    }

    /// Raises everybody who has waited long enough. A request rises at most seven times.
    fn promote(&mut self, now: Moment) {
        while let Some((moment, ticket)) = self.promotions.first().copied()
            && moment <= now
        {
            self.promotions.pop_first();
            let Some(request) = self.requests.get_mut(&ticket) else { continue };
            let Some(raised) = request.priority.raised() else { continue };
            let from = std::mem::replace(&mut request.priority, raised);
            request.promotion = moment.saturating_add(self.rules.promote_after);
            let (tenant, place) = (request.waiting.tenant, (request.due, ticket));
            if raised != Priority::HIGHEST {
                self.promotions.insert((request.promotion, ticket));
            }
            self.level(from).remove(tenant, place);
            self.level(raised).insert(tenant, place);
        }
    }

    fn victim(&self, newcomer: Tenant) -> Option<Ticket> {
        let lowest = self.levels.iter().find(|level| !level.is_empty())?;
        lowest.last_of_longest(newcomer).map(|(_, (_, ticket))| ticket)
    }

    fn level(&mut self, priority: Priority) -> &mut PriorityLevel {
        &mut self.levels[usize::from(priority.level())]
    }

    fn unschedule(&mut self, ticket: Ticket, request: &QueuedRequest<T>) {
        self.deadlines.remove(&(request.waiting.deadline, ticket));
        self.promotions.remove(&(request.promotion, ticket));
    }
}
