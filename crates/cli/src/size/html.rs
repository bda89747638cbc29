//! The page of `size --html`: the answer, and the curve of each objective over the number of pods.

use super::report::{SizeReport, shown};
use crate::page::{Axis, Chart, Page, Series, TableCell, percent};
use std::time::Duration;
use wornpath_sim::sizing::Measured;

/// A value that is this many times its limit is drawn at the upper end.
const HIGHEST: f64 = 4.0;

impl SizeReport<'_> {
    pub(super) fn html(&self) -> String {
        let heading = format!("How many pods for {}?", self.objectives());
        let mut page = Page::new("size", &heading, &self.title());
        page.verdict(&self.sentences());
        page.section(
            "The curve",
            "What each number of pods achieves, from whole replays; the dashed line is the limit. A value of more than four \
             times the limit is drawn at the upper end.",
        );
        page.push("<div class=\"plots\">\n");
        for at in 0..self.sizing.objectives.len() {
            page.push(self.chart(at));
        }
        page.push("</div>\n");
        self.table(&mut page);
        page.finish()
    }

    /// The curve of an objective.
    fn chart(&self, at: usize) -> String {
        let objective = &self.sizing.objectives[at];
        let limit = objective.limit().as_secs_f64();
        let value = |measured: &Measured| {
            let value = measured.figures.as_ref()?.values[at];
            let seconds = value.map_or(f64::INFINITY, |value| value.as_secs_f64());
            Some((measured.size.pods as f64, seconds.min(HIGHEST * limit)))
        };
        let points: Vec<_> = self.curve.iter().filter_map(value).collect();
        let most = points.iter().map(|(_, value)| *value).fold(1.25 * limit, f64::max);
        let pods = points.iter().map(|(pods, _)| *pods).fold(1.0, f64::max);
        let name = objective.name();
        Chart {
            title: &objective.to_string(),
            x: Axis::count("pods", pods),
            y: Axis::seconds(&name, most),
            series: vec![Series { number: 0, name: "", points }],
            limit: Some((limit, format!("limit {}", shown(Some(objective.limit()))))),
        }
        .markup()
    }

    fn table(&self, page: &mut Page) {
        let names: Vec<String> = self.sizing.objectives.iter().map(|it| it.name()).collect();
        let mut heads = vec!["fleet", "verdict"];
        heads.extend(names.iter().map(String::as_str));
        heads.extend(["hit rate", "busiest pod", "failed"]);
        let row = |measured: &Measured| {
            let pods = measured.size.pods;
            let verdict = if measured.is_met { "meets" } else { "misses" };
            let verdict = TableCell::text(verdict).best_if(Some(pods) == self.found);
            let plural = if pods == 1 { "" } else { "s" };
            let mut row = vec![TableCell::text(format!("{pods} pod{plural}")), verdict];
            let Some(figures) = &measured.figures else {
                let ended = format!("stopped after {}", percent(measured.ended));
                row.push(TableCell::text(ended));
                return row;
            };
            let is_met = |at: usize, value: &Option<Duration>| {
                value.is_some_and(|it| it <= self.sizing.objectives[at].limit())
            };
            let values = figures.values.iter().enumerate();
            row.extend(
                values.map(|(at, value)| TableCell::text(shown(*value)).best_if(is_met(at, value))),
            );
            row.push(TableCell::text(percent(figures.hit_rate)));
            row.push(TableCell::text(format!("{:.2}x", figures.imbalance)));
            row.push(TableCell::text(figures.failures));
            row
        };
        let rows: Vec<_> = self.curve.iter().map(row).collect();
        page.table(&heads, &rows);
    }
}
