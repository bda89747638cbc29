//! Which requests a pod may decode beside those that it has.
//!
//! Requests that decode apart ([`DecodeGroup`]) gain as long as no other request decodes on their
//! pod. So before a request is sent, the engine's times are compared: those of a step with the
//! requests on the pod and the group of the next one, and those of a step of each. Nothing waits on
//! an empty pod.
//!
//! A group counts as a whole, with its requests that are still queued: one more request would nearly
//! always look cheap. The first of a group comes alone, because the others wait for its prompt. It
//! is sent as soon as it costs the requests on the pod no more than its share of its own group's
//! steps, so that a prefix is computed while the last answers before it come to their end.

use super::range_set::RangeSet;
use crate::decode::{DecodeBatch, DecodeGroup, DecodeRates};
use std::collections::BTreeMap;

/// The decode groups of a plan, and the times that decide about them.
#[derive(Clone, Debug)]
pub(super) struct Admission {
    /// None if no request decodes apart.
    rates: Option<DecodeRates>,
    groups: Vec<DecodeGroup>,
}

/// Requests on a pod, by their group; none for those that decode among others.
#[derive(Clone, Debug, Default)]
pub(super) struct OnPod(BTreeMap<Option<usize>, DecodeBatch>);

/// A request that could be sent next.
pub(super) struct Candidate<'a> {
    pub(super) position: usize,
    /// Tokens of its prompt.
    pub(super) prompt_tokens: usize,
    /// Stops that its pod has not been given yet.
    pub(super) queued: &'a RangeSet,
    /// Requests that the pod takes at once.
    pub(super) most: usize,
}

impl Admission {
    pub(super) fn new(rates: Option<DecodeRates>, groups: Vec<DecodeGroup>) -> Self {
        let rates = rates.filter(|_| !groups.is_empty());
        Self { rates, groups }
    }

    /// Whether a request may be sent now.
    pub(super) fn allows(&self, on_pod: &OnPod, next: &Candidate<'_>) -> bool {
        let Some(rates) = &self.rates else { return true };
        let own_group = self.group_of(next.position);
        let others = on_pod.0.iter().filter(|(group, _)| **group != own_group);
        let others = others.fold(DecodeBatch::default(), |sum, (group, batch)| {
            sum.beside(if group.is_some() { self.whole(*group, *batch, next) } else { *batch })
        });
        if others.sequences == 0 {
            return true;
        }
        let own = on_pod.0.get(&own_group).copied().unwrap_or_default();
        let whole = self.whole(own_group, own, next);
        match own_group.is_some() && own.sequences == 0 {
            true => {
                let both = others.beside(alone(next.prompt_tokens));
                let share = rates.step_time(&whole) / whole.sequences as f64;
                rates.step_time(&both) <= rates.step_time(&others) + share
            }
            false => rates.gains_together(others, whole),
        }
    }

    pub(super) fn sent(&self, on_pod: &mut OnPod, position: usize, prompt_tokens: usize) {
        if self.rates.is_none() {
            return;
        }
        let group = self.group_of(position);
        let batch = on_pod.0.entry(group).or_default();
        batch.sequences += 1;
        batch.context_tokens += prompt_tokens;
        batch.longest_context = batch.longest_context.max(prompt_tokens);
        batch.shared_tokens = group.map_or(0, |group| self.groups[group].shared_tokens);
    }

    pub(super) fn left(&self, on_pod: &mut OnPod, position: usize, prompt_tokens: usize) {
        let group = self.group_of(position);
        if let Some(batch) = on_pod.0.get_mut(&group) {
            batch.sequences -= 1;
            batch.context_tokens -= prompt_tokens;
            if batch.sequences == 0 {
                on_pod.0.remove(&group);
            }
        }
    }

    fn group_of(&self, position: usize) -> Option<usize> {
        let group = self.groups.partition_point(|group| group.stops.end <= position);
        self.groups.get(group).filter(|it| it.stops.start <= position).map(|_| group)
    }

    /// The requests of a group on a pod, with those that are still queued, as far as the pod takes
    /// them at once. Those among others are queued up to the next group.
    fn whole(&self, group: Option<usize>, batch: DecodeBatch, next: &Candidate<'_>) -> DecodeBatch {
        let stops = match group {
            Some(group) => self.groups[group].stops.clone(),
            None => next.position..self.next_group(next.position),
        };
        let queued = next.queued.count_in(&stops);
        let mean = match batch.sequences {
            0 => next.prompt_tokens,
            sequences => batch.context_tokens / sequences,
        };
        let all = DecodeBatch {
            sequences: batch.sequences + queued,
            context_tokens: batch.context_tokens + queued * mean,
            longest_context: batch.longest_context.max(mean),
            shared_tokens: group.map_or(0, |group| self.groups[group].shared_tokens),
        };
        all.at_most(next.most.max(batch.sequences))
    }

    /// Where the first group behind a position begins.
    fn next_group(&self, position: usize) -> usize {
        let next = self.groups.partition_point(|group| group.stops.start <= position);
        self.groups.get(next).map_or(usize::MAX, |group| group.stops.start)
    }
}

fn alone(prompt_tokens: usize) -> DecodeBatch {
    DecodeBatch {
        sequences: 1,
        context_tokens: prompt_tokens,
        longest_context: prompt_tokens,
        shared_tokens: 0,
    }
}
