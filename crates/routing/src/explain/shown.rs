//! An explanation as a table for people and as JSON for machines.

use std::fmt::{self, Write};
use std::time::Duration;

use serde_json::{Value, json};

use super::{CandidateExplanation, Explanation, JudgeExplanation, StepExplanation};
use crate::stage::{Scale, WhenEmpty};

impl Explanation {
    /// As data. Times are in microseconds.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let prepare = self.prepare.iter().map(|(name, took)| timed(name, *took));
        json!({
            "prepare": prepare.collect::<Vec<_>>(),
            "lookup_us": self.lookup.map(micros),
            "steps": self.steps.iter().map(StepExplanation::json).collect::<Vec<_>>(),
            "hold": self.hold.iter().map(JudgeExplanation::json).collect::<Vec<_>>(),
        })
    }
}

impl JudgeExplanation {
    fn json(&self) -> Value {
        json!({
            "name": self.name, "pod": self.pod.as_str(), "objection": self.objection,
            "took_us": micros(self.took),
        })
    }
}

impl StepExplanation {
    fn json(&self) -> Value {
        let filters = self.filters.iter().map(|filter| {
            json!({
                "name": filter.name, "dropped": filter.dropped,
                "skipped": filter.emptied == Some(WhenEmpty::Skip),
                "on_empty": filter.emptied.map(WhenEmpty::word), "took_us": micros(filter.took),
            })
        });
        let scorers = self.scorers.iter().map(|scorer| {
            let scale = match scorer.scale {
                Scale::Unit => "unit",
                Scale::Milliseconds => "milliseconds",
            };
            json!({
                "name": scorer.name, "scale": scale, "weight": scorer.weight,
                "scale_ms": scorer.scale_ms, "took_us": micros(scorer.took),
            })
        });
        let candidates = self.candidates.iter().map(|pod| {
            let dropped = pod.dropped.as_ref().map(|(by, why)| json!({"by": by, "why": why}));
            json!({
                "pod": pod.name.as_str(), "blocks": pod.blocks, "dropped": dropped,
                "scores": pod.scores, "contributions": pod.contributions, "total": pod.total,
            })
        });
        let pick = self.pick.as_ref().map(|pick| {
            let pod = self.candidates.iter().find(|candidate| candidate.pod == pick.pod);
            json!({
                "name": pick.name, "pod": pod.map(|pod| pod.name.as_str()), "ties": pick.ties,
                "mark": pick.mark, "took_us": micros(pick.took),
            })
        });
        json!({
            "step": self.step.as_str(), "role": self.role.as_str(),
            "filters": filters.collect::<Vec<_>>(), "scorers": scorers.collect::<Vec<_>>(),
            "candidates": candidates.collect::<Vec<_>>(), "pick": pick,
        })
    }

    /// One row for each pod, the best first, those that were dropped last.
    fn rows(&self) -> Vec<Vec<String>> {
        let mut head = vec![String::new(), "pod".into(), "blocks".into()];
        for scorer in &self.scorers {
            let scale = scorer.scale_ms.map(|ms| format!(" × {ms} ms")).unwrap_or_default();
            head.push(format!("{} × {}{scale}", scorer.name, scorer.weight));
        }
        head.push("total".into());
        let mut order: Vec<&CandidateExplanation> = self.candidates.iter().collect();
        order.sort_by(|a, b| {
            let rank = |pod: &CandidateExplanation| pod.total.unwrap_or(f64::NEG_INFINITY);
            a.dropped.is_some().cmp(&b.dropped.is_some()).then(rank(b).total_cmp(&rank(a)))
        });
        let picked = self.pick.as_ref().map(|pick| pick.pod);
        let row = |pod: &CandidateExplanation| {
            let mark = if Some(pod.pod) == picked { "→" } else { "" };
            let mut row = vec![mark.to_owned(), pod.name.to_string(), pod.blocks.to_string()];
            match &pod.dropped {
                Some((by, why)) => row.push(format!("dropped by {by}: {why}")),
                None => {
                    for (score, added) in pod.scores.iter().zip(&pod.contributions) {
                        row.push(format!("{score:.3} ({added:+.3})"));
                    }
                    row.extend(pod.total.map(|total| format!("{total:.3}")));
                }
            }
            row
        };
        std::iter::once(head).chain(order.into_iter().map(row)).collect()
    }
}

/// As a table.
impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut prepare = String::new();
        for (name, took) in &self.prepare {
            let _ = write!(prepare, "{name} {}, ", shown(*took));
        }
        if let Some(took) = self.lookup {
            let _ = write!(prepare, "index {}, ", shown(took));
        }
        if !prepare.is_empty() {
            writeln!(f, "prepare: {}", prepare.trim_end_matches(", "))?;
        }
        for step in &self.steps {
            writeln!(f, "\nstep {} (role {})", step.step, step.role)?;
            table(f, &step.rows())?;
            for filter in &step.filters {
                let what = match (filter.emptied, filter.dropped) {
                    (Some(WhenEmpty::Skip), _) => "would drop every pod; skipped".to_owned(),
                    (Some(WhenEmpty::Hold), count) => {
                        format!("dropped {count}, no pod left: the request waits")
                    }
                    (Some(WhenEmpty::Reject), count) => {
                        format!("dropped {count}, no pod left: the request is rejected")
                    }
                    (None, count) => format!("dropped {count}"),
                };
                writeln!(f, "  filter {}: {what}, {}", filter.name, shown(filter.took))?;
            }
            for scorer in &step.scorers {
                writeln!(f, "  score {}: {}", scorer.name, shown(scorer.took))?;
            }
            if let Some(pick) = &step.pick {
                let mark = pick.mark.map(|mark| format!(", {mark}")).unwrap_or_default();
                let name = pick.name;
                let ties = pick.ties;
                let took = shown(pick.took);
                writeln!(f, "  pick {name}: one of {ties} with that total{mark}, {took}")?;
            }
        }
        for judge in &self.hold {
            let JudgeExplanation { name, pod, .. } = judge;
            let what = match &judge.objection {
                Some(why) => format!("the request waits, because {pod} does not pass: {why}"),
                None => format!("{pod} passes"),
            };
            writeln!(f, "  hold unless {name}: {what}, {}", shown(judge.took))?;
        }
        Ok(())
    }
}

/// Columns as wide as their widest cell; a row may have fewer cells, and its last may be wider.
fn table(f: &mut fmt::Formatter<'_>, rows: &[Vec<String>]) -> fmt::Result {
    let columns = rows.first().map_or(0, Vec::len);
    let width = |column: usize| {
        let cells =
            rows.iter().filter(|row| row.len() == columns).map(|row| row[column].chars().count());
        cells.max().unwrap_or(0)
    };
    let mut widths: Vec<_> = (0..columns).map(width).collect();
    for row in rows {
        for (column, cell) in row.iter().enumerate().take(3) {
            widths[column] = widths[column].max(cell.chars().count());
        }
    }
    for row in rows {
        let mut line = String::from(" ");
        for (column, cell) in row.iter().enumerate() {
            let _ = write!(line, " {cell:<width$} ", width = widths[column]);
        }
        writeln!(f, "{}", line.trim_end())?;
    }
    Ok(())
}

fn timed(name: &str, took: Duration) -> Value {
    json!({"name": name, "took_us": micros(took)})
}

fn micros(took: Duration) -> f64 {
    took.as_nanos() as f64 / 1e3
}

fn shown(took: Duration) -> String {
    format!("{:.1} µs", micros(took))
}
