//! Turns between the tenants of one priority: start-time fair queueing.
//!
//! Every tenant has a virtual time that grows by the work it is given, divided by its weight; the
//! tenant with the least is next. A tenant that comes back continues at the level's clock or where it
//! was, whichever is later: it can neither save up turns while away nor shed what it had by leaving.
//! Deficit round robin would do as well, but must visit tenants that cannot afford their next request.
//!
//! A tenant without requests is remembered only while its virtual time is ahead of the clock, and at
//! most [`MOST_REMEMBERED`] of them; when nobody waits, all is forgotten.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound::{Excluded, Unbounded};
use std::time::Duration;

use wornpath_index::Moment;

use super::rules::{QueueEntry, Tenant};
use super::wait_queue::Ticket;

const MOST_REMEMBERED: usize = 1024;
/// The least a request counts, lest requests that cost nothing be served without end.
pub(super) const LEAST_WORK: Duration = Duration::from_millis(1);

/// A place in a tenant's line: due first, then the order of arrival.
pub(super) type FairnessKey = (Moment, Ticket);

#[derive(Debug, Default)]
pub(super) struct PriorityLevel {
    lines: BTreeMap<Tenant, TenantQueue>,
    /// Tenants that wait, by what they were given.
    turns: BTreeSet<(Duration, Tenant)>,
    /// Tenants that do not wait but are ahead of the clock.
    away: BTreeSet<(Duration, Tenant)>,
    clock: Duration,
}

#[derive(Debug, Default)]
struct TenantQueue {
    served: Duration,
    places: BTreeSet<FairnessKey>,
}

/// What one poll has refused, tenant by tenant: how often, and up to which place.
#[derive(Debug, Default)]
pub(super) struct Refusals(Vec<(Tenant, usize, FairnessKey)>);

impl PriorityLevel {
    pub(super) fn is_empty(&self) -> bool {
        self.turns.is_empty()
    }

    pub(super) fn insert(&mut self, tenant: Tenant, place: FairnessKey) {
        let line = self.lines.entry(tenant).or_default();
        if line.places.is_empty() {
            self.away.remove(&(line.served, tenant));
            line.served = line.served.max(self.clock);
            self.turns.insert((line.served, tenant));
        }
        line.places.insert(place);
    }

    pub(super) fn remove(&mut self, tenant: Tenant, place: FairnessKey) {
        let Some(line) = self.lines.get_mut(&tenant) else { return };
        if line.places.remove(&place) && line.places.is_empty() {
            self.turns.remove(&(line.served, tenant));
            self.away.insert((line.served, tenant));
            self.forget();
        }
    }

    /// The request is served: its tenant pays for it.
    pub(super) fn serve(&mut self, waiting: &QueueEntry, place: FairnessKey) {
        let Some(line) = self.lines.get_mut(&waiting.tenant) else { return };
        self.clock = self.clock.max(line.served);
        self.turns.remove(&(line.served, waiting.tenant));
        line.served += waiting.cost.max(LEAST_WORK) / waiting.weight.max(1);
        self.turns.insert((line.served, waiting.tenant));
        self.remove(waiting.tenant, place);
    }

    /// Who is offered next in a poll. Tenants that were refused less often come first, so that one
    /// tenant's requests, which often want the same pod, do not use up the poll for all.
    pub(super) fn next_offer(&self, refusals: &Refusals) -> Option<(Tenant, FairnessKey)> {
        let fresh = self.turns.iter().find(|(_, tenant)| !refusals.knows(*tenant));
        if let Some((_, tenant)) = fresh {
            return Some((*tenant, *self.lines.get(tenant)?.places.first()?));
        }
        let again = refusals.0.iter().filter_map(|(tenant, times, seen)| {
            let line = self.lines.get(tenant)?;
            let place = line.places.range((Excluded(*seen), Unbounded)).next()?;
            Some(((*times, line.served, *tenant), *place))
        });
        again.min_by_key(|(turn, _)| *turn).map(|((_, _, tenant), place)| (tenant, place))
    }

    /// The last of the longest line, where cutting does the least harm to others. Of equally long
    /// ones, that of `newcomer`.
    pub(super) fn last_of_longest(&self, newcomer: Tenant) -> Option<(Tenant, FairnessKey)> {
        self.lines
            .iter()
            .max_by_key(|(tenant, line)| (line.places.len(), **tenant == newcomer, **tenant))
            .and_then(|(tenant, line)| Some((*tenant, *line.places.last()?)))
    }

    fn forget(&mut self) {
        if self.turns.is_empty() {
            *self = Self::default();
        }
        while let Some((served, tenant)) = self.away.first().copied()
            && (served <= self.clock || self.away.len() > MOST_REMEMBERED)
        {
            self.away.pop_first();
            self.lines.remove(&tenant);
        }
    }
}

impl Refusals {
    pub(super) fn add(&mut self, tenant: Tenant, place: FairnessKey) {
        match self.0.iter_mut().find(|(known, ..)| *known == tenant) {
            Some((_, times, seen)) => (*times, *seen) = (*times + 1, place),
            None => self.0.push((tenant, 1, place)),
        }
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    fn knows(&self, tenant: Tenant) -> bool {
        self.0.iter().any(|(known, ..)| *known == tenant)
    }
}
