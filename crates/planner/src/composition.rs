//! Which requests decode together.
//!
//! Every prefix that enough requests share is a candidate, and candidates contain each other as
//! prefixes do. From the longest prefix up, requests decode apart where the engine's own times say
//! that this is faster than what was found best for the longer prefixes inside, or than decoding
//! among all others. Where an engine cannot read a shared prefix once, nothing decodes apart.
//!
//! Each group that decodes apart leaves fewer requests among others, and their steps cost the same
//! with fewer sequences. So the groups are taken in the order of what they save, as many as are
//! best for all requests together.

use crate::decode::{DecodeGroup, DecodeRates, DecodeWork};
use crate::groups::PromptGroups;
use crate::queue::Queue;
use crate::rates::PlannerRates;
use crate::route::RouteStop;
use std::cmp::Reverse;
use std::ops::Range;

/// The groups that decode apart on so many pods, in the order of their stops.
pub(crate) fn compose(
    queue: &Queue,
    stops: &[RouteStop],
    rates: &PlannerRates,
    pods: usize,
) -> Vec<DecodeGroup> {
    let Some(decode) = rates.decode_rates.filter(|decode| decode.cascade.is_some()) else {
        return Vec::new();
    };
    let shared = stops.iter().enumerate();
    let groups = PromptGroups::of(shared.map(|(at, stop)| if at == 0 { 0 } else { stop.shared }));
    let mut composer = Composer::new(queue, stops, &groups, decode);
    composer.pods = pods as f64;
    let chosen = composer.choose();
    let mut outermost: Vec<usize> = Vec::new();
    let mut ids: Vec<_> = (0..chosen.len()).filter(|id| chosen[*id].is_some()).collect();
    // A group comes before those inside it.
    ids.sort_unstable_by_key(|id| {
        let positions = &groups.all()[*id].positions;
        (positions.start, Reverse(positions.end))
    });
    for id in ids {
        let end = |id: usize| groups.all()[id].positions.end;
        if outermost.last().is_none_or(|last| end(*last) < end(id)) {
            outermost.push(id);
        }
    }
    let mut best = composer.best(outermost, &chosen);
    best.sort_unstable_by_key(|id| groups.all()[*id].positions.start);
    let group = |id: usize| {
        let positions = &groups.all()[id].positions;
        let among: f64 = stops[positions.clone()]
            .iter()
            .map(|stop| rates.decode(queue.prompt_tokens(stop.job), queue.output_tokens(stop.job)))
            .sum();
        DecodeGroup {
            stops: positions.clone(),
            shared_tokens: groups.all()[id].blocks * queue.block_size().get(),
            share: chosen[id].map_or(1.0, |apart| apart / among),
        }
    };
    best.into_iter().map(group).collect()
}

/// Sums over requests.
#[derive(Clone, Copy, Default)]
struct Sums {
    /// Decode steps.
    steps: f64,
    /// Context tokens of all decode steps.
    context_steps: f64,
}

struct Composer<'a> {
    block_size: usize,
    pods: f64,
    groups: &'a PromptGroups,
    decode: DecodeRates,
    /// Sums before each position.
    sums: Vec<Sums>,
    /// Decode steps of the longest answer in each group; first only of those directly in it.
    longest: Vec<f64>,
}

impl<'a> Composer<'a> {
    fn new(
        queue: &Queue,
        stops: &[RouteStop],
        groups: &'a PromptGroups,
        decode: DecodeRates,
    ) -> Self {
        let mut sums = Vec::with_capacity(stops.len() + 1);
        let mut sum = Sums::default();
        sums.push(sum);
        let mut longest = vec![0.0_f64; groups.all().len()];
        for (position, stop) in stops.iter().enumerate() {
            let steps = queue.output_tokens(stop.job).saturating_sub(1) as f64;
            let context = queue.prompt_tokens(stop.job) as f64 + steps / 2.0;
            sum.steps += steps;
            sum.context_steps += steps * context;
            sums.push(sum);
            if let Some(id) = groups.at_position(position) {
                longest[id.index()] = longest[id.index()].max(steps);
            }
        }
        let block_size = queue.block_size().get();
        Self { block_size, pods: 1.0, groups, decode, sums, longest }
    }

    /// For each group that decodes apart the milliseconds of that; the groups inside it may be
    /// chosen as well.
    fn choose(&mut self) -> Vec<Option<f64>> {
        let groups = self.groups;
        let all = groups.all();
        let mut deepest: Vec<_> = (0..all.len()).collect();
        deepest.sort_unstable_by_key(|id| Reverse(all[*id].blocks));
        for id in &deepest {
            if let Some(above) = all[*id].parent {
                self.longest[above.index()] = self.longest[above.index()].max(self.longest[*id]);
            }
        }
        let everything = self.sum(&(0..self.sums.len() - 1));
        let each_step =
            self.steps(everything.steps, self.longest_beside(&[])) / everything.steps.max(1.0);
        let mut chosen = vec![None; all.len()];
        // Milliseconds that the best choice inside each group saves.
        let mut saved = vec![0.0; all.len()];
        for id in deepest {
            let group = &all[id];
            let sum = self.sum(&group.positions);
            let work = DecodeWork {
                requests: group.positions.len(),
                steps: sum.steps,
                longest: self.longest[id],
                context_steps: sum.context_steps,
            };
            let among = self.own(sum) + each_step * sum.steps * self.decode.step;
            if let Some(apart) = self.decode.apart(&work, group.blocks * self.block_size)
                && among - apart > saved[id]
            {
                saved[id] = among - apart;
                chosen[id] = Some(apart);
            }
            if let Some(above) = group.parent {
                saved[above.index()] += saved[id];
            }
        }
        chosen
    }

    /// Those of some disjoint groups whose decoding apart is best for all requests together.
    fn best(&self, mut ids: Vec<usize>, apart: &[Option<f64>]) -> Vec<usize> {
        let all = self.groups.all();
        let apart = |id: usize| apart[id].unwrap_or(f64::INFINITY);
        let gain = |id: usize| self.own(self.sum(&all[id].positions)) / apart(id);
        ids.sort_by(|one, two| gain(*two).total_cmp(&gain(*one)).then(one.cmp(two)));
        let mut others = self.sum(&(0..self.sums.len() - 1));
        let mut saved = 0.0;
        for id in &ids {
            let sum = self.sum(&all[*id].positions);
            others.steps -= sum.steps;
            saved += self.own(sum) - apart(*id);
        }
        let mut longest = self.longest_beside(&ids);
        let cost = |steps: f64, longest: f64| self.decode.step * self.steps(steps, longest);
        let mut best = ids.len();
        let mut least = cost(others.steps, longest) - saved;
        for count in (0..ids.len()).rev() {
            let id = ids[count];
            let sum = self.sum(&all[id].positions);
            others.steps += sum.steps;
            saved -= self.own(sum) - apart(id);
            longest = longest.max(self.longest[id]);
            let total = cost(others.steps, longest) - saved;
            if total <= least {
                least = total;
                best = count;
            }
        }
        ids.truncate(best);
        ids
    }

    /// Decode steps of the longest answer outside of some disjoint groups.
    fn longest_beside(&self, ids: &[usize]) -> f64 {
        let all = self.groups.all();
        let mut inside: Vec<_> = ids.iter().map(|id| all[*id].positions.clone()).collect();
        inside.sort_unstable_by_key(|range| range.start);
        let mut longest = 0.0_f64;
        let mut next = 0;
        for (position, pair) in self.sums.windows(2).enumerate() {
            next += usize::from(inside.get(next).is_some_and(|range| range.end == position));
            if inside.get(next).is_none_or(|range| position < range.start) {
                longest = longest.max(pair[1].steps - pair[0].steps);
            }
        }
        longest
    }

    /// Steps that requests take among each other on all pods.
    fn steps(&self, steps: f64, longest: f64) -> f64 {
        (steps / self.decode.max_sequences as f64).max(longest * self.pods.min(steps))
    }

    /// Milliseconds of decoding among others, without the steps' own.
    fn own(&self, sum: Sums) -> f64 {
        sum.steps * self.decode.per_sequence + sum.context_steps * self.decode.per_context_token
    }

    fn sum(&self, range: &Range<usize>) -> Sums {
        let before = self.sums[range.start];
        let after = self.sums[range.end];
        Sums {
            steps: after.steps - before.steps,
            context_steps: after.context_steps - before.context_steps,
        }
    }
}
