//! Orders siblings by the length of their answers, the longest first.
//!
//! Depth-first order does not fix which of a node's children comes first. A segment ends with its
//! last answer, and an engine with a few long answers left is nearly idle, so long answers start
//! early. Nothing else changes: the requests that need a prefix still form one run.

use crate::decode::DecodeGroup;
use crate::groups::{GroupId, PromptGroup, PromptGroups};
use crate::queue::Queue;
use crate::route::RouteStop;
use std::cmp::Reverse;
use std::time::Duration;

/// A child of a node: another node, or a request.
#[derive(Clone, Copy)]
enum Child {
    Group(GroupId),
    Stop(u32),
}

/// What the order of a segment depends on, besides prefixes.
pub(crate) struct Ordering<'a> {
    pub(crate) queue: &'a Queue,
    /// Requests that decode apart come first: one between two such groups would decode alone.
    pub(crate) apart: &'a [DecodeGroup],
    /// Requests that are due by then come before those that can wait.
    pub(crate) deadline: Option<Duration>,
}

impl Ordering<'_> {
    /// The stops of a segment in their best order, by their index, each with the blocks it shares
    /// with the previous one.
    pub(crate) fn of(&self, stops: &[RouteStop]) -> Vec<(usize, u32)> {
        let shared = stops.iter().enumerate();
        let groups =
            PromptGroups::of(shared.map(|(at, stop)| if at == 0 { 0 } else { stop.shared }));
        let mut children = Children::of(self, stops, &groups);
        let mut order = Vec::with_capacity(stops.len());
        let mut open: Vec<(Child, u32)> = Vec::new();
        open.extend(children.take(None).into_iter().rev().map(|child| (child, 0)));
        while let Some((child, shared)) = open.pop() {
            match child {
                Child::Stop(at) => order.push((at as usize, shared)),
                Child::Group(id) => {
                    let own = groups.all()[id.index()].blocks as u32;
                    let members = children.take(Some(id));
                    let last = members.len() - 1;
                    // In reverse, so that the first member is on top of the stack; it shares with
                    // the stop before the group what the group itself shares, the others share its
                    // whole prefix.
                    for (at, member) in members.into_iter().rev().enumerate() {
                        open.push((member, if at == last { shared } else { own }));
                    }
                }
            }
        }
        order
    }
}

/// The children of each node.
struct Children {
    /// Sorted by parent, the top level first, then in the order of computation.
    all: Vec<(u32, OrderingKey, Child)>,
    /// Where the children of each parent start.
    starts: Vec<usize>,
}

/// Requests that end with the prefix itself come first, because they compute its last block anyway;
/// then those that decode apart, those that are due, and the longest.
type OrderingKey = (Reverse<bool>, Reverse<bool>, Reverse<bool>, Reverse<u32>, u32);

impl Children {
    fn of(ordering: &Ordering<'_>, stops: &[RouteStop], groups: &PromptGroups) -> Self {
        let Ordering { queue, apart, .. } = ordering;
        let is_due = |at: usize| {
            let deadline = || queue.deadline(stops[at].job);
            ordering.deadline.is_some_and(|limit| deadline().is_some_and(|own| own <= limit))
        };
        // Whether a group decodes apart, or contains one that does.
        let is_apart = |group: &PromptGroup| {
            let first = apart.partition_point(|it| it.stops.start < group.positions.start);
            apart.get(first).is_some_and(|it| it.stops.end <= group.positions.end)
        };
        let output = |at: usize| queue.output_tokens(stops[at].job) as u32;
        let parent = |id: Option<GroupId>| id.map_or(0, |id| id.0 + 1);
        let mut longest = vec![0; groups.all().len()];
        let mut due = vec![false; groups.all().len()];
        for at in 0..stops.len() {
            if let Some(id) = groups.at_position(at) {
                longest[id.index()] = output(at).max(longest[id.index()]);
                due[id.index()] |= is_due(at);
            }
        }
        // From the deepest up, so that a child's longest answer is known before its parent's.
        let mut deepest: Vec<_> = (0..groups.all().len()).collect();
        deepest.sort_unstable_by_key(|index| Reverse(groups.all()[*index].blocks));
        let mut all = Vec::with_capacity(stops.len() + deepest.len());
        for index in deepest {
            let group = &groups.all()[index];
            let PromptGroup { parent: above, positions, .. } = group;
            if let Some(above) = above {
                longest[above.index()] = longest[above.index()].max(longest[index]);
                due[above.index()] |= due[index];
            }
            let key = (
                Reverse(false),
                Reverse(is_apart(group)),
                Reverse(due[index]),
                Reverse(longest[index]),
                positions.start as u32,
            );
            all.push((parent(*above), key, Child::Group(GroupId(index as u32))));
        }
        for (at, stop) in stops.iter().enumerate() {
            let around = groups.at_position(at);
            let whole = queue.prompt_tokens(stop.job) / queue.block_size();
            let ends = around.is_some_and(|id| {
                groups.all()[id.index()].blocks == whole && queue.reusable_blocks(stop.job) < whole
            });
            let key = (
                Reverse(ends),
                Reverse(false),
                Reverse(is_due(at)),
                Reverse(output(at)),
                at as u32,
            );
            all.push((parent(around), key, Child::Stop(at as u32)));
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
