//! Siblings by length of answer, the longest first.
//!
//! Depth-first order leaves open which of a node's children comes first. A segment ends when its last answer
//! does, and an engine with a few long answers left is a nearly idle engine; so what takes long starts
//! early. Nothing else changes: each prefix is still needed in one run.

use crate::groups::{GroupId, PromptGroup, PromptGroups};
use crate::queue::{JobId, Queue};
use crate::route::RouteStop;
use std::cmp::Reverse;

/// A child of a node: another node, or a request.
#[derive(Clone, Copy)]
enum Child {
    Group(GroupId),
    Place(u32),
}

/// The stops of a segment in their best order, each with the blocks that it shares with the one before.
pub(crate) fn longest_first(queue: &Queue, stops: &[RouteStop]) -> Vec<(JobId, u32)> {
    let shared = stops.iter().enumerate();
    let groups =
        PromptGroups::of(shared.map(|(place, stop)| if place == 0 { 0 } else { stop.shared }));
    let mut children = Children::of(queue, stops, &groups);
    let mut order = Vec::with_capacity(stops.len());
    let mut open: Vec<(Child, u32)> = Vec::new();
    open.extend(children.take(None).into_iter().rev().map(|child| (child, 0)));
    while let Some((child, shared)) = open.pop() {
        match child {
            Child::Place(place) => order.push((stops[place as usize].job, shared)),
            Child::Group(id) => {
                let own = groups.all()[id.index()].blocks as u32;
                let members = children.take(Some(id));
                let last = members.len() - 1;
                // From the back: the first member is on top, and alone shares only what the group itself does.
                for (place, member) in members.into_iter().rev().enumerate() {
                    open.push((member, if place == last { shared } else { own }));
                }
            }
        }
    }
    order
}

/// The children of every node.
struct Children {
    /// Sorted by parent, the top level first, and then in the wanted order.
    all: Vec<(u32, OrderingKey, Child)>,
    /// Where the children of each parent start.
    starts: Vec<usize>,
}

/// Requests that end with the prefix itself come first, for they compute its last block anyway.
type OrderingKey = (Reverse<bool>, Reverse<u32>, u32);

impl Children {
    fn of(queue: &Queue, stops: &[RouteStop], groups: &PromptGroups) -> Self {
        let output = |place: usize| queue.output_tokens(stops[place].job) as u32;
        let parent = |id: Option<GroupId>| id.map_or(0, |id| id.0 + 1);
        let mut longest = vec![0; groups.all().len()];
        for place in 0..stops.len() {
            if let Some(id) = groups.of_place(place) {
                longest[id.index()] = output(place).max(longest[id.index()]);
            }
        }
        // From the deepest up, so that a child's longest answer is known before its parent's.
        let mut deepest: Vec<_> = (0..groups.all().len()).collect();
        deepest.sort_unstable_by_key(|index| Reverse(groups.all()[*index].blocks));
        let mut all = Vec::with_capacity(stops.len() + deepest.len());
        for index in deepest {
            let PromptGroup { parent: above, places, .. } = &groups.all()[index];
            if let Some(above) = above {
                longest[above.index()] = longest[above.index()].max(longest[index]);
            }
            let key = (Reverse(false), Reverse(longest[index]), places.start as u32);
            all.push((parent(*above), key, Child::Group(GroupId(index as u32))));
        }
        for (place, stop) in stops.iter().enumerate() {
            let around = groups.of_place(place);
            let whole = queue.prompt_tokens(stop.job) / queue.block_size();
            let ends = around.is_some_and(|id| {
                groups.all()[id.index()].blocks == whole && queue.reusable_blocks(stop.job) < whole
            });
            let key = (Reverse(ends), Reverse(output(place)), place as u32);
            all.push((parent(around), key, Child::Place(place as u32)));
        }
        all.sort_unstable_by_key(|(parent, key, _)| (*parent, *key));
        let starts = (0..=groups.all().len() as u32 + 1)
            .map(|parent| all.partition_point(|(other, ..)| *other < parent))
            .collect();
        Self { all, starts }
    }

    fn take(&mut self, parent: Option<GroupId>) -> Vec<Child> {
        let parent = parent.map_or(0, |id| id.index() + 1);
        let range = self.starts[parent]..self.starts[parent + 1];
        self.all[range].iter().map(|(_, _, child)| *child).collect()
    }
}
