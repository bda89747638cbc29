//! The prefix forest of a plan, reduced for display: the segment of each pod, and the groups of
//! requests whose common prefix saves the most tokens, nested.
//!
//! Groups follow the planned order, so a prefix that two pods compute appears twice.

use serde_json::{Value, json};
use std::collections::BTreeMap;
use wornpath_planner::{GroupId, JobId, Plan, PromptGroups, Queue};

/// Maximum number of groups: more than a screen can show.
const MOST: usize = 96;

/// The positions of each pod's requests and of each group in the planned order, with shared and
/// saved tokens. `line` returns the input line of a request.
pub(crate) fn forest_json(
    plan: &Plan,
    queue: &Queue,
    pods: &[String],
    line: impl Fn(JobId) -> u32,
) -> Value {
    let stops = plan.route().stops();
    let groups = PromptGroups::of(stops.iter().map(|stop| stop.shared));
    let block = queue.block_size().get();
    let mut listed = groups.biggest(MOST);
    let range = |id: &GroupId| &groups.all()[id.index()].positions;
    // An enclosing group comes before the groups inside it.
    listed.sort_by_key(|id| (range(id).start, std::cmp::Reverse(range(id).end)));
    let positions: BTreeMap<GroupId, usize> = listed.iter().copied().zip(0..).collect();
    let segments = plan.segments();
    let shown = listed.iter().map(|id| {
        let group = &groups.all()[id.index()];
        let above = groups.blocks_above(group);
        let mut around = std::iter::successors(group.parent, |id| groups.all()[id.index()].parent);
        json!({
            "follows": around.find_map(|id| positions.get(&id)),
            "segment": segments.partition_point(|part| part.stops.end <= group.positions.start),
            "from": group.positions.start,
            "requests": group.positions.len(),
            "shared_tokens": group.blocks * block,
            "saved_tokens": group.saved_blocks(above) * block as u64,
            "line": line(stops[group.positions.start].job),
        })
    });
    let shown: Vec<_> = shown.collect();
    let parts = segments.iter().map(|part| {
        json!({"pod": pods[part.pod], "from": part.stops.start, "requests": part.stops.len()})
    });
    json!({
        "requests": stops.len(),
        "groups_in_all": groups.all().len(),
        "segments": parts.collect::<Vec<_>>(),
        "groups": shown,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::num::NonZeroUsize;
    use wornpath_blocks::BlockHash;
    use wornpath_planner::{Job, PlannerRates, Speeds};

    fn planned(chains: &[&[u64]]) -> Value {
        let mut queue = Queue::new(NonZeroUsize::new(16).unwrap());
        for chain in chains {
            let chain: Vec<_> = chain.iter().copied().map(BlockHash).collect();
            let prompt_tokens = chain.len() * 16 + 1;
            let job = Job { chain: &chain, prompt_tokens, output_tokens: 1, identity: None };
            queue.push(&job).unwrap();
        }
        let plan = Plan::new(&queue, &Speeds::equal(1).unwrap(), &PlannerRates::flat(1.0, 1.0));
        forest_json(&plan, &queue, &["pod-0".to_owned()], |job| job.0 + 1)
    }

    #[test]
    fn groups_are_nested_and_stay_within_their_pod() {
        let forest_json = planned(&[&[1, 2, 3], &[1, 2, 4], &[1, 5, 6], &[7, 8, 9]]);
        assert_eq!(forest_json["segments"], json!([{"pod": "pod-0", "from": 0, "requests": 4}]));
        let groups = forest_json["groups"].as_array().unwrap();
        assert_eq!(groups.len(), 2, "{forest_json}");
        let fact = |group: usize, name: &str| groups[group][name].as_u64();
        assert_eq!((fact(0, "requests"), fact(0, "shared_tokens")), (Some(3), Some(16)));
        assert_eq!((fact(1, "requests"), fact(1, "shared_tokens")), (Some(2), Some(32)));
        assert_eq!((fact(0, "follows"), fact(1, "follows")), (None, Some(0)));
        let within = |group: usize| {
            let from = fact(group, "from").unwrap();
            from..from + fact(group, "requests").unwrap()
        };
        assert!(
            within(0).start <= within(1).start && within(1).end <= within(0).end,
            "{forest_json}"
        );
        assert_eq!(fact(0, "saved_tokens"), Some(2 * 16), "computed once instead of three times");
    }

    #[test]
    fn of_many_groups_the_largest_are_listed_and_none_refers_to_an_unlisted_one() {
        let mut chains = Vec::new();
        for group in 0..200_u64 {
            for number in 0..2 {
                chains.push(vec![group * 10 + 1, group * 10 + 2, 1_000_000 + group * 2 + number]);
            }
        }
        let chains: Vec<&[u64]> = chains.iter().map(Vec::as_slice).collect();
        let forest_json = planned(&chains);
        assert_eq!(forest_json["groups_in_all"], 200);
        let groups = forest_json["groups"].as_array().unwrap();
        assert_eq!(groups.len(), MOST);
        assert!(groups.iter().all(|group| group["follows"].is_null()));
    }
}
