//! Fairness between the tenants of one priority: start-time fair queueing.
//!
//! Every tenant has a virtual time that grows by the work it gets, divided by its weight; the
//! tenant with the least is next. A tenant that comes back continues at the level's clock or at its
//! own virtual time, whichever is later: being idle neither saves up work nor sheds it. Deficit
//! round robin would do as well, but must visit tenants that cannot afford their next request.
//!
//! A tenant with much work would wait without end while the others always have some. So requests
//! that have been due for long go first, whatever tenant they are of.
//!
//! An idle tenant is kept only while its virtual time is ahead of the clock, and at most
//! [`MOST_IDLE`] of them; an empty level keeps none.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound::{Excluded, Unbounded};
use std::time::Duration;

use wornpath_index::Moment;

use super::rules::{QueueEntry, Tenant, Ticket};

const MOST_IDLE: usize = 1024;
/// The least a request counts, so that requests without cost cannot starve other tenants.
pub(super) const LEAST_WORK: Duration = Duration::from_millis(1);

/// The order of a tenant's requests: by the moment they are due, then by arrival.
pub(super) type FairnessKey = (Moment, Ticket);

#[derive(Debug, Default)]
pub(super) struct PriorityLevel {
    tenants: BTreeMap<Tenant, TenantQueue>,
    /// Tenants with requests, by virtual time.
    active: BTreeSet<(Duration, Tenant)>,
    /// Tenants without requests whose virtual time is ahead of the clock.
    idle: BTreeSet<(Duration, Tenant)>,
    clock: Duration,
    /// The requests of all tenants, by the moment they are due.
    due: BTreeSet<(FairnessKey, Tenant)>,
}

#[derive(Debug, Default)]
struct TenantQueue {
    /// The virtual time.
    served: Duration,
    keys: BTreeSet<FairnessKey>,
}

/// The refused offers of one poll.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    by_tenant: Vec<Refused>,
    /// The last that was offered because it had been due for long.
    last_overdue: Option<(FairnessKey, Tenant)>,
}

#[derive(Debug)]
struct Refused {
    tenant: Tenant,
    times: usize,
    /// The tenant's requests up to here were offered.
    last: FairnessKey,
}

impl PriorityLevel {
    pub(super) fn is_empty(&self) -> bool {
        self.active.is_empty()
    }

    pub(super) fn insert(&mut self, tenant: Tenant, key: FairnessKey) {
        let queue = self.tenants.entry(tenant).or_default();
        if queue.keys.is_empty() {
            self.idle.remove(&(queue.served, tenant));
            queue.served = queue.served.max(self.clock);
            self.active.insert((queue.served, tenant));
        }
        queue.keys.insert(key);
        self.due.insert((key, tenant));
    }

    pub(super) fn remove(&mut self, tenant: Tenant, key: FairnessKey) {
        self.due.remove(&(key, tenant));
        let Some(queue) = self.tenants.get_mut(&tenant) else { return };
        if queue.keys.remove(&key) && queue.keys.is_empty() {
            self.active.remove(&(queue.served, tenant));
            self.idle.insert((queue.served, tenant));
            self.forget();
        }
    }

    /// Removes a served request and charges its work to its tenant.
    pub(super) fn serve(&mut self, entry: &QueueEntry, key: FairnessKey) {
        let Some(queue) = self.tenants.get_mut(&entry.tenant) else { return };
        self.clock = self.clock.max(queue.served);
        self.active.remove(&(queue.served, entry.tenant));
        queue.served += entry.cost.max(LEAST_WORK) / entry.weight.max(1);
        self.active.insert((queue.served, entry.tenant));
        self.remove(entry.tenant, key);
    }

    /// The next request that was due by `overdue`, of whatever tenant.
    pub(super) fn next_overdue(
        &self,
        overdue: Moment,
        refusals: &mut Refusals,
    ) -> Option<(Tenant, FairnessKey)> {
        let next = match refusals.last_overdue {
            Some(last) => self.due.range((Excluded(last), Unbounded)).next(),
            None => self.due.first(),
        };
        let (key, tenant) = *next.filter(|((due, _), _)| *due <= overdue)?;
        refusals.last_overdue = Some((key, tenant));
        Some((tenant, key))
    }

    /// The request that a poll offers next. Tenants with fewer refusals come first, so that one
    /// tenant's requests, which often want the same pod, do not use up the poll.
    pub(super) fn next_offer(&self, refusals: &Refusals) -> Option<(Tenant, FairnessKey)> {
        let fresh = self.active.iter().find(|(_, tenant)| !refusals.has(*tenant));
        if let Some((_, tenant)) = fresh {
            return Some((*tenant, *self.tenants.get(tenant)?.keys.first()?));
        }
        let again = refusals.by_tenant.iter().filter_map(|Refused { tenant, times, last }| {
            let queue = self.tenants.get(tenant)?;
            let key = queue.keys.range((Excluded(*last), Unbounded)).next()?;
            Some(((*times, queue.served, *tenant), *key))
        });
        again.min_by_key(|(rank, _)| *rank).map(|((_, _, tenant), key)| (tenant, key))
    }

    /// The last request of the longest tenant queue, whose loss harms the other tenants least. Of
    /// equally long queues, that of `newcomer`.
    pub(super) fn last_of_longest(&self, newcomer: Tenant) -> Option<(Tenant, FairnessKey)> {
        self.tenants
            .iter()
            .max_by_key(|(tenant, queue)| (queue.keys.len(), **tenant == newcomer, **tenant))
            .and_then(|(tenant, queue)| Some((*tenant, *queue.keys.last()?)))
    }

    fn forget(&mut self) {
        if self.active.is_empty() {
            *self = Self::default();
        }
        while let Some((served, tenant)) = self.idle.first().copied()
            && (served <= self.clock || self.idle.len() > MOST_IDLE)
        {
            self.idle.pop_first();
            self.tenants.remove(&tenant);
        }
    }
}

impl Refusals {
    pub(super) fn add(&mut self, tenant: Tenant, key: FairnessKey) {
        match self.by_tenant.iter_mut().find(|refused| refused.tenant == tenant) {
            Some(refused) => {
                refused.times += 1;
                refused.last = key;
            }
            None => self.by_tenant.push(Refused { tenant, times: 1, last: key }),
        }
    }

    pub(super) fn clear(&mut self) {
        self.by_tenant.clear();
        self.last_overdue = None;
    }

    fn has(&self, tenant: Tenant) -> bool {
        self.by_tenant.iter().any(|refused| refused.tenant == tenant)
    }
}
