//! What each pod computes when, in the simulated run of the plan.

use super::forest::name;
use super::prompts::Prompts;
use crate::page::{Axis, Heat, HeatCell, HeatRow, escaped, time};
use std::time::Duration;
use wornpath_planner::{Forest, PromptGroup, PromptGroups};
use wornpath_sim::offline::OfflineRecord;

const SLICES: usize = 120;
/// Prefixes with a colour of their own: those that save the most, none inside another, of so many
/// candidates.
const COLOURED: [&str; 4] = ["c0", "c1", "c2", "c3"];
const CANDIDATES: usize = 64;
/// Requests that share another prefix, and those that share none.
const OTHER: usize = COLOURED.len();
const ALONE: usize = OTHER + 1;
/// The faintest shade of a pod with any request.
const FAINTEST: f64 = 0.35;

/// What each request shares: one of the coloured prefixes, another, or none.
pub(super) struct Kinds {
    of_request: Vec<u8>,
    /// What sets the coloured prefixes apart.
    names: Vec<String>,
}

impl Kinds {
    pub(super) fn of(groups: &PromptGroups, forest: &Forest, prompts: &Prompts) -> Self {
        let order = forest.order();
        let requests = order.iter().map(|job| job.index() + 1).max().unwrap_or(0);
        let mut of_request = vec![ALONE as u8; requests];
        for group in groups.all() {
            for position in group.positions.clone() {
                of_request[order[position].index()] = OTHER as u8;
            }
        }
        let mut coloured: Vec<&PromptGroup> = Vec::new();
        for id in groups.biggest(CANDIDATES) {
            let group = &groups.all()[id.index()];
            let own = &group.positions;
            let overlaps = |other: &&PromptGroup| {
                other.positions.start < own.end && own.start < other.positions.end
            };
            if coloured.len() < COLOURED.len() && !coloured.iter().any(overlaps) {
                coloured.push(group);
            }
        }
        let mut names = Vec::new();
        for (number, group) in coloured.into_iter().enumerate() {
            for position in group.positions.clone() {
                of_request[order[position].index()] = number as u8;
            }
            names.push(name(groups, group, forest, prompts));
        }
        Self { of_request, names }
    }
}

/// The pods over time, from the start of the run to its end.
pub(super) struct Timeline {
    pods: usize,
    makespan: Duration,
    names: Vec<String>,
    /// Requests in flight by pod, slice and kind, in shares of a slice.
    in_flight: Vec<[[f64; ALONE + 1]; SLICES]>,
    requests: Vec<usize>,
    busy_until: Vec<Duration>,
    has: [bool; ALONE + 1],
}

impl Timeline {
    pub(super) fn of(records: &[OfflineRecord], pods: usize, kinds: Kinds) -> Self {
        let end = records.iter().map(|record| record.end).max().unwrap_or_default();
        let makespan = end.max(Duration::from_millis(1));
        let mut timeline = Self {
            pods,
            makespan,
            names: kinds.names,
            in_flight: vec![[[0.0; ALONE + 1]; SLICES]; pods],
            requests: vec![0; pods],
            busy_until: vec![Duration::ZERO; pods],
            has: [false; ALONE + 1],
        };
        let scale = SLICES as f64 / makespan.as_secs_f64();
        for (request, record) in records.iter().enumerate() {
            let OfflineRecord { pod, sent, end } = *record;
            let kind = usize::from(kinds.of_request.get(request).copied().unwrap_or(ALONE as u8));
            timeline.has[kind] = true;
            timeline.requests[pod] += 1;
            timeline.busy_until[pod] = timeline.busy_until[pod].max(end);
            let from = sent.as_secs_f64() * scale;
            let to = end.as_secs_f64() * scale;
            for at in from as usize..=(to as usize).min(SLICES - 1) {
                let share = to.min((at + 1) as f64) - from.max(at as f64);
                timeline.in_flight[pod][at][kind] += share.max(0.0);
            }
        }
        timeline
    }

    pub(super) fn markup(&self) -> String {
        let loads = self.in_flight.iter().flatten().map(|kinds| kinds.iter().sum::<f64>());
        let most = loads.fold(1.0, f64::max);
        let row = |pod: usize| HeatRow {
            name: format!("pod {pod}"),
            cells: (0..SLICES).map(|at| self.cell(pod, at, most)).collect(),
            more: format!("{} requests, until {}", self.requests[pod], time(self.busy_until[pod])),
        };
        let rows = (0..self.pods).map(row).collect();
        let x = Axis::seconds("time since the start of the run", self.makespan.as_secs_f64());
        self.legend() + &Heat { label: "What each pod computes over time", x, rows }.markup()
    }

    /// The kind with the most requests in flight, if there are any.
    fn cell(&self, pod: usize, at: usize, most: f64) -> Option<HeatCell> {
        let kinds = &self.in_flight[pod][at];
        let all: f64 = kinds.iter().sum();
        let (kind, _) = kinds.iter().enumerate().max_by(|(_, one), (_, two)| one.total_cmp(two))?;
        let name = || match kind {
            ALONE => "requests that share nothing",
            OTHER => "other prefixes",
            kind => &self.names[kind],
        };
        (all > 0.0).then(|| HeatCell {
            colour: colour(kind),
            strength: FAINTEST + (1.0 - FAINTEST) * all / most,
            title: format!("pod {pod}: {all:.0} requests, mostly {}", name()),
        })
    }

    fn legend(&self) -> String {
        let mut out = "<div class=\"legend-row\">".to_owned();
        let named = self.names.iter().map(String::as_str).enumerate();
        let rest = [(OTHER, "other prefixes"), (ALONE, "requests that share nothing")];
        for (kind, name) in named.chain(rest).filter(|(kind, _)| self.has[*kind]) {
            out.push_str(&format!(
                "<span class=\"{}\"><span class=\"square\"></span>{}</span>",
                colour(kind),
                escaped(name)
            ));
        }
        out + "</div>\n"
    }
}

const fn colour(kind: usize) -> &'static str {
    match kind {
        OTHER => "rest",
        ALONE => "alone",
        kind => COLOURED[kind],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_pod_shows_what_it_mostly_computes_and_nothing_where_it_is_idle() {
        let seconds = Duration::from_secs;
        let record = |pod, sent, end| OfflineRecord { pod, sent: seconds(sent), end: seconds(end) };
        let records = [record(0, 0, 60), record(0, 0, 60), record(0, 60, 120), record(1, 0, 30)];
        let kinds = Kinds { of_request: vec![0, 0, 5, 4], names: vec!["a<b".to_owned()] };
        let timeline = Timeline::of(&records, 2, kinds);
        let colour = |pod: usize, at: usize| timeline.cell(pod, at, 2.0).map(|cell| cell.colour);
        assert_eq!([colour(0, 0), colour(0, 119)], [Some("c0"), Some("alone")]);
        assert_eq!([colour(1, 0), colour(1, 60)], [Some("rest"), None]);
        let markup = timeline.markup();
        assert!(
            markup.contains("a&lt;b") && markup.contains("3 requests, until 2.0 min"),
            "{markup}"
        );
        assert!(markup.contains("other prefixes") && markup.contains("share nothing"), "{markup}");
    }
}
