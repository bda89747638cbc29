//! Draws a snapshot into a buffer of cells, so that it can be tested without a terminal.

use super::format::{count, micros, percent, rate, seconds};
use super::table::{self, Column, TableRow};
use super::view::{Input, KEYS, View, severity};
use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::Style;
use ratatui::text::{Line, Text};
use ratatui::widgets::{Block, Clear, Paragraph, StatefulWidget, Widget};
use serde_json::Value;
use unicode_width::UnicodeWidthStr;

/// Cells of a bar.
const BAR: usize = 8;
/// Rows reserved below the pods for decisions and their heading.
const BELOW: u16 = 8;
/// Decisions of a plain snapshot.
const DECISIONS: usize = 10;
/// Columns of a plain snapshot.
const PLAIN_WIDTH: u16 = 120;

/// Draws a snapshot as the user has chosen to see it.
pub(super) fn draw(snapshot: &Value, view: &mut View, area: Rect, buffer: &mut Buffer) {
    let parts = Parts::of(snapshot, view);
    let footer = Line::from(footer(view, area.width.into())).style(Style::new().dim());
    let [body, last] = Layout::vertical([Constraint::Fill(1), Constraint::Length(1)]).areas(area);
    parts.draw(view, body, buffer);
    footer.render(last, buffer);
    if view.input == Input::Help {
        draw_help(area, buffer);
    }
}

/// The lines of a snapshot with all its pods, for a reader that is no terminal.
pub(super) fn plain(snapshot: &Value) -> Vec<String> {
    let mut view = View::default();
    let mut parts = Parts::of(snapshot, &view);
    parts.decisions.truncate(DECISIONS);
    let rows = parts.pods.len() + parts.batches.len() + DECISIONS + 2 * usize::from(BELOW);
    let area = Rect::new(0, 0, PLAIN_WIDTH, u16::try_from(rows).unwrap_or(u16::MAX));
    let mut buffer = Buffer::empty(area);
    parts.draw(&mut view, area, &mut buffer);
    let mut lines = lines(&buffer);
    let used = lines.iter().rposition(|line| !line.is_empty()).map_or(0, |last| last + 1);
    lines.truncate(used);
    lines
}

/// The text of a buffer, a line for each row, without the blanks at its end.
pub(super) fn lines(buffer: &Buffer) -> Vec<String> {
    let row = |y: u16| {
        let mut line = String::new();
        let mut x = 0;
        while x < buffer.area.width {
            let symbol = buffer[(x, y)].symbol();
            line.push_str(symbol);
            // The cell after a wide character belongs to it.
            x += symbol.width().max(1) as u16;
        }
        line.trim_end().to_owned()
    };
    (0..buffer.area.height).map(row).collect()
}

/// What a snapshot shows, top down.
struct Parts {
    title: Vec<String>,
    figures: Vec<String>,
    pods: Vec<TableRow>,
    batches: Vec<Vec<String>>,
    decisions: Vec<TableRow>,
    /// In place of decisions, if there are none.
    no_decisions: &'static str,
}

impl Parts {
    fn of(snapshot: &Value, view: &View) -> Self {
        let is_shown = |pod: &&Value| view.matches(&[&pod["name"], &pod["health"]]);
        let mut pods: Vec<_> = items(&snapshot["pods"]).filter(is_shown).collect();
        view.sort(&mut pods);
        let is_shown =
            |record: &&Value| view.matches(&[&record["id"], &record["pod"], &record["status"]]);
        Self {
            title: title(snapshot),
            figures: figures(snapshot),
            pods: pods.into_iter().map(pod_row).collect(),
            batches: items(&snapshot["batches"]).map(batch_line).collect(),
            decisions: items(&snapshot["decisions"]).filter(is_shown).map(decision_row).collect(),
            no_decisions: match view.filter.is_empty() {
                true => "No requests yet.",
                false => "No recent request matches the filter.",
            },
        }
    }

    fn draw(&self, view: &mut View, area: Rect, buffer: &mut Buffer) {
        let width = usize::from(area.width);
        let batches = match self.batches.len() {
            0 => 0,
            lines => 1 + u16::try_from(lines).unwrap_or(u16::MAX),
        };
        let pods = u16::try_from(self.pods.len()).unwrap_or(u16::MAX).saturating_add(1);
        let room = area.height.saturating_sub(3 + BELOW).saturating_sub(batches).max(2);
        let heights = [3, pods.min(room), batches].map(Constraint::Length);
        let [top, middle, lines, below] =
            Layout::vertical(heights.into_iter().chain([Constraint::Fill(1)])).areas(area);
        let text = |lines: &[&Vec<String>]| -> Text<'static> {
            lines.iter().map(|parts| Line::from(table::joined(parts, width))).collect()
        };
        text(&[&self.title, &self.figures]).render(top, buffer);
        view.page = middle.height.saturating_sub(1);
        let table = table::fit(&POD_COLUMNS, &self.pods, width);
        StatefulWidget::render(table, middle, buffer, &mut view.pods);
        let batches: Vec<_> = self.batches.iter().collect();
        text(&batches).render(without_first_row(lines), buffer);
        let below = without_first_row(below);
        if self.decisions.is_empty() {
            Line::from(self.no_decisions).style(Style::new().dim()).render(below, buffer);
        } else {
            Widget::render(table::fit(&DECISION_COLUMNS, &self.decisions, width), below, buffer);
        }
    }
}

/// The area below an empty row.
fn without_first_row(area: Rect) -> Rect {
    let blank = area.height.min(1);
    Rect { y: area.y + blank, height: area.height - blank, ..area }
}

/// The last line: the filter while it is typed, or the state of the screen and its keys.
fn footer(view: &View, width: usize) -> String {
    if view.input == Input::Filter {
        return format!("/{}▏", view.filter);
    }
    let mut parts = Vec::new();
    if view.is_paused {
        parts.push("PAUSED, p continues".to_owned());
    }
    if !view.filter.is_empty() {
        parts.push(format!("only `{}`", view.filter));
    }
    let reversed = if view.is_reversed { ", reversed" } else { "" };
    parts.push(format!("by {}{reversed}", view.order.label()));
    let keys = ["? help", "q quit", "s sort", "r reverse", "/ filter", "p pause", "↑↓ select"];
    parts.extend(keys.map(str::to_owned));
    table::joined(&parts, width)
}

fn draw_help(area: Rect, buffer: &mut Buffer) {
    let lines: Text<'static> =
        KEYS.iter().map(|(key, action)| Line::from(format!(" {key:<16}{action} "))).collect();
    let width = u16::try_from(lines.width() + 2).unwrap_or(u16::MAX);
    let middle = area.centered(
        Constraint::Length(width.min(area.width)),
        Constraint::Length((KEYS.len() as u16 + 2).min(area.height)),
    );
    Clear.render(middle, buffer);
    Paragraph::new(lines).block(Block::bordered().title(" Keys ")).render(middle, buffer);
}

/// On a narrow screen, bars are dropped first, whose number is beside them, and then the least
/// important columns.
const POD_COLUMNS: [Column; 11] = [
    Column::name("POD", 0),
    Column::word("STATE", 0),
    Column::bar(10),
    Column::number("LOAD", 0),
    Column::number("REQ/S", 2),
    Column::bar(9),
    Column::number("KV", 3),
    Column::number("BLOCKS", 4),
    Column::number("HITS", 5),
    Column::number("PREDICTED/ACTUAL", 7),
    Column::word("EVENTS", 6),
];

const DECISION_COLUMNS: [Column; 6] = [
    Column::name("REQUEST", 0),
    Column::name("POD", 0),
    Column::number("STATUS", 0),
    Column::number("FIRST BYTE", 1),
    Column::number("TOTAL", 3),
    Column::number("CACHED/PROMPT", 2),
];

fn items(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().into_iter().flatten()
}

fn word(value: &Value) -> &str {
    value.as_str().unwrap_or("–")
}

fn title(snapshot: &Value) -> Vec<String> {
    let pods = items(&snapshot["pods"]).count();
    let is_up = |pod: &&Value| pod["health"] == "up";
    let up = items(&snapshot["pods"]).filter(is_up).count();
    vec![
        format!("wornpath {}", word(&snapshot["version"])),
        word(&snapshot["readiness"]).to_owned(),
        format!("{up} of {pods} pods up"),
        format!("{} requests waiting", count(&snapshot["totals"]["waiting"])),
        format!("up {}", seconds(&snapshot["uptime_seconds"])),
    ]
}

/// Figures, the most important first: those that do not fit are left out.
fn figures(snapshot: &Value) -> Vec<String> {
    let rates = &snapshot["rates"];
    let times = &rates["first_byte_seconds"];
    vec![
        format!("{} requests/s", rate(&rates["requests"])),
        format!("{} failed", rate(&rates["failed"])),
        format!("{} of prompt tokens cached", percent(&rates["hit_rate"])),
        format!(
            "first byte {} p50, {} p90, {} p99",
            seconds(&times["p50"]),
            seconds(&times["p90"]),
            seconds(&times["p99"])
        ),
        format!("{} tokens saved/s", rate(&rates["saved_tokens"])),
    ]
}

fn bar(share: f64) -> String {
    let full = (share.clamp(0.0, 1.0) * BAR as f64).round() as usize;
    format!("{}{}", "█".repeat(full), "░".repeat(BAR - full))
}

fn pod_row(pod: &Value) -> TableRow {
    let health = word(&pod["health"]);
    let breaker = word(&pod["breaker"]);
    let style = match severity(pod) {
        0 => Style::new(),
        1 => Style::new().yellow(),
        _ => Style::new().red(),
    };
    let state = match breaker {
        "closed" => health.to_owned(),
        _ => format!("{health}, {breaker}"),
    };
    let load = pod["load"]["requests"].as_f64().unwrap_or(0.0);
    let usage = pod["engine"]["kv_usage"].as_f64().unwrap_or(0.0);
    let feed = &pod["events"]["feed"];
    let events = match (feed.as_object(), feed["lag"].as_u64()) {
        (None, _) if word(&pod["precision"]["mode"]) == "approximate" => "approximate".to_owned(),
        (None, _) => word(&pod["events"]["trust"]).to_owned(),
        (_, Some(lag)) if lag > 0 => format!("{}, {lag} behind", word(&feed["state"])),
        _ => word(&feed["state"]).to_owned(),
    };
    let hits = &pod["predictions"];
    let is_checked = hits["checked"].as_u64().is_some_and(|checked| checked > 0);
    let is_exact = word(&pod["precision"]["mode"]) != "approximate";
    let compared = match is_checked {
        true if !is_exact => {
            format!("~{}/{}", count(&hits["predicted_tokens"]), count(&hits["actual_tokens"]))
        }
        true => format!("{}/{}", count(&hits["predicted_tokens"]), count(&hits["actual_tokens"])),
        false => count(&Value::Null),
    };
    let cells = vec![
        word(&pod["name"]).to_owned(),
        state,
        // Sixteen requests fill the bar.
        bar(load / 16.0),
        count(&pod["load"]["requests"]),
        rate(&pod["requests_per_second"]),
        bar(usage),
        percent(&pod["engine"]["kv_usage"]),
        count(&pod["blocks"]),
        percent(&pod["hit_rate"]),
        compared,
        events,
    ];
    TableRow { style, cells }
}

fn decision_row(record: &Value) -> TableRow {
    let style = match record["status"].as_u64() {
        Some(500..) => Style::new().red(),
        Some(400..) => Style::new().yellow(),
        _ => Style::new(),
    };
    let cells = vec![
        word(&record["id"]).to_owned(),
        word(&record["pod"]).to_owned(),
        count(&record["status"]),
        micros(&record["first_byte_us"]),
        micros(&record["total_us"]),
        format!(
            "{}/{}",
            count(&record["cached_tokens"]["actual"]),
            count(&record["prompt_tokens"])
        ),
    ];
    TableRow { style, cells }
}

fn batch_line(batch: &Value) -> Vec<String> {
    let lines = &batch["lines"];
    let number = |name: &str| lines[name].as_f64().unwrap_or(0.0);
    let done = number("completed") + number("failed");
    let share = if number("total") > 0.0 { done / number("total") } else { 0.0 };
    let mut parts = vec![
        format!("{} {:>3.0}%", bar(share), share * 100.0),
        format!("{done:.0} of {:.0} lines", number("total")),
        format!("{} failed", count(&lines["failed"])),
    ];
    if batch["seconds_left"].is_number() && share < 1.0 {
        parts.push(format!("about {} left", seconds(&batch["seconds_left"])));
    }
    parts.extend([word(&batch["status"]).replace('_', " "), word(&batch["id"]).to_owned()]);
    parts
}

#[cfg(test)]
mod tests;
