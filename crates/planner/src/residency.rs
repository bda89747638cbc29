//! Which prefix is needed until when.
//!
//! Every prefix that two or more requests of a segment share is worth keeping from the first of them to the
//! last. [`Residency`] knows how many still need it, and says when it may go: for reports, and for
//! engines that can be told.

use crate::groups::{GroupId, PromptGroups};
use crate::plan::Plan;
use crate::queue::{JobId, Queue};
use std::collections::BTreeMap;
use wornpath_blocks::BlockHash;

/// A shared prefix that nobody needs any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Released {
    /// The hash of its last block.
    pub last: BlockHash,
    /// Blocks of it that only this prefix needed: those behind the longest prefix still needed.
    pub blocks: usize,
}

/// How many requests still need each shared prefix.
#[derive(Clone, Debug)]
pub struct Residency {
    groups: PromptGroups,
    hashes: Vec<BlockHash>,
    needed: Vec<u32>,
    places: BTreeMap<JobId, usize>,
}

impl Residency {
    /// What a plan needs before anything is computed.
    #[must_use]
    pub fn of(queue: &Queue, plan: &Plan) -> Self {
        let stops = plan.route().stops();
        let groups = PromptGroups::of(stops.iter().map(|stop| stop.shared));
        let hash = |group: &crate::groups::PromptGroup| {
            queue.chain(stops[group.places.start].job)[group.blocks - 1]
        };
        Self {
            hashes: groups.all().iter().map(hash).collect(),
            needed: groups.all().iter().map(|group| group.places.len() as u32).collect(),
            places: stops.iter().enumerate().map(|(place, stop)| (stop.job, place)).collect(),
            groups,
        }
    }

    /// Requests that still need a group's prefix.
    #[must_use]
    pub fn needed(&self, group: GroupId) -> usize {
        self.needed[group.index()] as usize
    }

    /// The groups of the plan's route.
    #[must_use]
    pub const fn groups(&self) -> &PromptGroups {
        &self.groups
    }

    /// A request is done, once: what only it still needed may go, the longest prefix first.
    pub fn finished(&mut self, job: JobId) -> Vec<Released> {
        let mut released = Vec::new();
        let place = self.places.remove(&job);
        let mut next = place.and_then(|place| self.groups.of_place(place));
        while let Some(id) = next {
            let group = &self.groups.all()[id.index()];
            self.needed[id.index()] -= 1;
            if self.needed[id.index()] == 0 {
                let blocks = group.blocks - self.groups.blocks_above(group);
                released.push(Released { last: self.hashes[id.index()], blocks });
            }
            next = group.parent;
        }
        released
    }
}
