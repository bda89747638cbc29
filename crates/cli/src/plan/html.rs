//! The page of `plan --html`: what planning gains, the prefixes that requests share, what each pod
//! would compute when, and what to change in the prompts.

use super::forest::SharedCell;
use super::report::{PlanMethod, PlanReport, SharedPrefix, small};
use super::timeline::Timeline;
use crate::page::{Cell, Page, TableCell, Tile, count, escaped, icicle, percent, time};
use wornpath_planner::lint::Finding;

/// What only the page shows.
pub(super) struct Drawing {
    pub(super) cells: Vec<SharedCell>,
    pub(super) timeline: Timeline,
    /// Prompts that the linter has read.
    pub(super) linted: usize,
}

pub(super) fn page(report: &PlanReport, drawing: &Drawing) -> String {
    let mut page = Page::new("plan", &report.file, &facts(report));
    page.verdict(&[report.verdict()]);
    tiles(report, &mut page);
    methods(report, &mut page);
    forest(report, &drawing.cells, &mut page);
    page.section(
        "What each pod computes when",
        "The simulated run of the plan. Each row is a pod; the colour is the prefix that most of its requests share, and \
         a stronger one means more requests at once. Rows that end together mean that the work is balanced.",
    );
    page.push(drawing.timeline.markup());
    changes(report, drawing.linted, &mut page);
    page.finish()
}

fn facts(report: &PlanReport) -> String {
    let unit = if report.exact { "tokens" } else { "tokens, estimated as 4 bytes each" };
    let engines = format!("{} engines {}, simulated", report.pods, report.engine);
    let part = report.whole.as_ref().map_or_else(String::new, |whole| {
        format!(
            "; the file has {} requests, and the first {} were simulated",
            whole.requests, report.requests
        )
    });
    let requests = report.requests;
    let prompt = count(report.prompt_tokens as f64);
    format!("{requests} requests, {prompt} prompt {unit}; on {engines}{part}")
}

fn tiles(report: &PlanReport, page: &mut Page) {
    let plan = report.ways.iter().find(|way| way.name == "plan");
    let least = count(report.least_tokens as f64);
    let mut tiles = vec![
        Tile {
            name: "Requests",
            value: count(report.requests as f64),
            more: format!("{} prompt tokens", count(report.prompt_tokens as f64)),
        },
        Tile {
            name: "Can be shared",
            value: percent(report.sharable()),
            more: format!("at least {least} tokens must be computed"),
        },
    ];
    if let Some(plan) = plan {
        tiles.push(Tile {
            name: "Shared by the plan",
            value: percent(report.hit_rate(plan)),
            more: format!("{} tokens computed", count(plan.computed as f64)),
        });
        tiles.push(Tile {
            name: "Planned run",
            value: time(plan.makespan),
            more: format!("no order takes less than {}", time(report.least_time)),
        });
    }
    page.tiles(&tiles);
}

fn methods(report: &PlanReport, page: &mut Page) {
    page.section(
        "Three ways to run the file",
        "In the order of the file under round-robin, through the online router with cache-aware routing, and planned. The \
         best of each column is green.",
    );
    let cost = if report.price_per_hour.is_some() { "cost" } else { "pod hours" };
    let heads =
        ["", "time", "prefill tokens", "times the least", "hit rate", cost, "KV per decode step"];
    let best =
        |value: fn(&PlanMethod) -> f64| report.ways.iter().map(value).fold(f64::INFINITY, f64::min);
    let fastest = best(|way| way.makespan.as_secs_f64());
    let fewest = best(|way| way.computed as f64);
    let row = |way: &PlanMethod| {
        let is_fastest = way.makespan.as_secs_f64() <= fastest;
        let is_least = way.computed as f64 <= fewest;
        let of_least = way.computed as f64 / report.least_tokens as f64;
        let price = report.pod_hours(way) * report.price_per_hour.unwrap_or(1.0);
        vec![
            TableCell::text(way.name),
            TableCell::text(time(way.makespan)).best_if(is_fastest),
            TableCell::text(count(way.computed as f64)).best_if(is_least),
            TableCell::text(format!("{of_least:.2}x")).best_if(is_least),
            TableCell::text(percent(report.hit_rate(way))).best_if(is_least),
            TableCell::text(small(price)).best_if(is_fastest),
            TableCell::text(format!("{:.2} GB", report.gigabytes_per_step(way))),
        ]
    };
    let rows: Vec<_> = report.ways.iter().map(row).collect();
    page.table(&heads, &rows);
}

fn forest(report: &PlanReport, cells: &[SharedCell], page: &mut Page) {
    page.section(
        "Prefixes that requests share",
        "Each cell is a prefix: wide means many requests, and what stands below a cell begins with it. Cells are named by \
         the text that sets them apart; those with the strongest colour hold the most prompt tokens. Gaps are requests that share nothing more.",
    );
    if cells.is_empty() {
        page.push("<p class=\"empty\">No two requests share a whole block.</p>\n");
        return;
    }
    let requests = report.whole.as_ref().map_or(report.requests, |whole| whole.requests);
    let weight = |cell: &SharedCell| (cell.own_tokens * cell.positions.len()) as f64;
    let most = cells.iter().map(weight).fold(1.0, f64::max);
    let drawn = |cell: &SharedCell| Cell {
        row: cell.row,
        left: cell.positions.start as f64 / requests as f64,
        width: cell.positions.len() as f64 / requests as f64,
        name: cell.name.clone(),
        size: format!("{} requests · {} tokens", cell.positions.len(), count(cell.tokens as f64)),
        strength: (weight(cell) / most).sqrt(),
    };
    let drawn: Vec<Cell> = cells.iter().map(drawn).collect();
    page.push(icicle("Prefixes that requests share", &drawn));
    let heads = ["set apart by", "first line", "requests", "tokens", "saved tokens"];
    let row = |group: &SharedPrefix| {
        vec![
            TableCell::text(&group.name),
            TableCell::text(group.line),
            TableCell::text(group.requests),
            TableCell::text(count(group.tokens as f64)),
            TableCell::text(count(group.saved_tokens as f64)),
        ]
    };
    page.push("<h3>The prefixes that save the most</h3>\n");
    let rows: Vec<_> = report.biggest.iter().map(row).collect();
    page.table(&heads, &rows);
}

fn changes(report: &PlanReport, linted: usize, page: &mut Page) {
    page.section(
        "What to change in the prompts",
        "Fields that vary without need make everything behind them unique to a cache. Each is shown where two of the \
         prompts part; whether it can be moved is for the author to say.",
    );
    if report.findings.is_empty() {
        let why = match linted {
            0 => "The file has numbered blocks instead of text, so that there is nothing to read."
                .to_owned(),
            linted => format!(
                "Nothing: in the {linted} prompts that were read, no timestamp, identifier, number or order of JSON keys \
                 keeps more than a twentieth of their text from being shared."
            ),
        };
        page.push(format_args!("<p class=\"empty\">{}</p>\n", escaped(&why)));
    }
    for finding in &report.findings {
        page.push(card(finding));
    }
    page.push(format_args!("<p class=\"quiet read\">{}</p>\n", escaped(&report.decoding())));
}

fn card(finding: &Finding) -> String {
    let Finding { kind, example, byte, texts, shared_now, shared_then } = finding;
    let bar = |name: &str, share: f64, class: &str| {
        format!(
            "<span>{name}</span><span class=\"bar {class}\" style=\"--share:{share:.3}\"></span><span class=\"number\">{}</span>",
            percent(share)
        )
    };
    let varying = marked(&texts.0, &texts.1);
    let other = marked(&texts.1, &texts.0);
    format!(
        "<div class=\"card finding\"><h3>Lines {} and {} part at byte {byte}: {}</h3>\n\
         <p class=\"cure\">Cure: {}.</p>\n<pre>{varying}\n{other}</pre>\n<div class=\"sharing\">{}{}</div></div>\n",
        example.0,
        example.1,
        escaped(kind.name()),
        escaped(kind.cure()),
        bar("shared now", *shared_now, ""),
        bar("shared then", *shared_then, "saved"),
    )
}

/// The first text, with what differs from the other one marked.
fn marked(text: &str, other: &str) -> String {
    let before = text.bytes().zip(other.bytes()).take_while(|(one, two)| one == two).count();
    let start = text.floor_char_boundary(before);
    let rest = &text[start..];
    let behind = rest.bytes().rev().zip(other[other.floor_char_boundary(before)..].bytes().rev());
    let behind = behind.take_while(|(one, two)| one == two).count();
    let end = text.ceil_char_boundary(text.len() - behind).max(start);
    format!(
        "{}<mark>{}</mark>{}",
        escaped(&text[..start]),
        escaped(&text[start..end]),
        escaped(&text[end..])
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_differs_is_marked() {
        assert_eq!(marked("at 10:05 <b>", "at 10:17 <b>"), "at 10:<mark>05</mark> &lt;b&gt;");
        assert_eq!(marked("größe ä", "größe ö"), "größe <mark>ä</mark>");
        assert_eq!(marked("ab", "abc"), "ab<mark></mark>");
        assert_eq!(marked("abc", "ab"), "ab<mark>c</mark>");
    }
}
