//! What this router has told the others, and what is new since then.

use crate::report::{Origin, PodReport, TenantReport};
use crate::update::{Scope, SentBlocks, Update};
use std::collections::HashMap;

/// What this router has said of itself.
#[derive(Debug)]
pub struct Outbox {
    origin: Origin,
    sequence: u64,
    pods: Said<PodReport>,
    tenants: Said<TenantReport>,
}

impl Outbox {
    /// Of a router that has said nothing.
    #[must_use]
    pub fn new(origin: Origin) -> Self {
        Self { origin, sequence: 0, pods: Said::default(), tenants: Said::default() }
    }

    /// Who says it.
    #[must_use]
    pub const fn origin(&self) -> Origin {
        self.origin
    }

    /// What has changed, if anything has. `pods` and `tenants` are all that there are now: one that
    /// is missing has ended.
    pub fn changes<'p, 't>(
        &mut self,
        pods: impl Iterator<Item = (&'p str, PodReport)>,
        tenants: impl Iterator<Item = (&'t str, TenantReport)>,
        sent: Vec<SentBlocks>,
    ) -> Option<Update> {
        let pods = self.pods.changes(pods, PodReport::eq);
        let tenants = self.tenants.changes(tenants, TenantReport::is_same_use);
        if pods.is_empty() && tenants.is_empty() && sent.is_empty() {
            return None;
        }
        Some(Update { pods, tenants, sent, ..self.sign_of_life() })
    }

    /// An update without changes.
    pub fn sign_of_life(&mut self) -> Update {
        self.sequence += 1;
        self.update(Scope::Changes)
    }

    /// All that it has said and that still holds.
    #[must_use]
    pub fn full(&self) -> Update {
        let pods = self.pods.full();
        let tenants = self.tenants.full();
        Update { pods, tenants, ..self.update(Scope::Full) }
    }

    fn update(&self, scope: Scope) -> Update {
        let Self { origin, sequence, .. } = *self;
        let pods = Vec::new();
        Update { origin, sequence, scope, pods, tenants: Vec::new(), sent: Vec::new() }
    }
}

/// What was said last, by name.
#[derive(Debug)]
struct Said<T> {
    values: HashMap<String, Value<T>>,
    /// Grows with each look at all values.
    round: u64,
}

#[derive(Debug)]
struct Value<T> {
    value: T,
    /// When it was there last.
    round: u64,
}

impl<T> Default for Said<T> {
    fn default() -> Self {
        Self { values: HashMap::new(), round: 0 }
    }
}

impl<T: Copy + Default + PartialEq> Said<T> {
    fn changes<'a>(
        &mut self,
        now: impl Iterator<Item = (&'a str, T)>,
        is_same: impl Fn(&T, &T) -> bool,
    ) -> Vec<(String, T)> {
        self.round += 1;
        let round = self.round;
        let mut changes = Vec::new();
        let mut seen = 0;
        for (name, value) in now {
            if let Some(said) = self.values.get_mut(name) {
                seen += usize::from(said.round != round);
                said.round = round;
                if !is_same(&said.value, &value) {
                    changes.push((name.to_owned(), value));
                }
                said.value = value;
            } else if !is_same(&T::default(), &value) {
                seen += 1;
                self.values.insert(name.to_owned(), Value { value, round });
                changes.push((name.to_owned(), value));
            }
        }
        if seen < self.values.len() {
            self.values.retain(|name, said| {
                let is_there = said.round == round;
                if !is_there && !is_same(&T::default(), &said.value) {
                    changes.push((name.clone(), T::default()));
                }
                is_there
            });
        }
        changes
    }

    fn full(&self) -> Vec<(String, T)> {
        let values = self.values.iter().map(|(name, said)| (name.clone(), said.value));
        values.filter(|(_, value)| *value != T::default()).collect()
    }
}
