//! A snapshot as lines of text: pure, so that what a terminal shows can be tested without one.

use super::words::{count, micros, percent, rate, seconds};
use serde_json::Value;

/// Cells of a bar.
const BAR: usize = 8;
/// Decisions that are shown where there is room without end.
const DECISIONS: usize = 10;

/// Whether colours say what is wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Paint {
    Plain,
    Coloured,
}

/// Where a snapshot is drawn.
#[derive(Clone, Copy, Debug)]
pub(super) struct Screen {
    pub(super) width: usize,
    /// None if there is no end to them.
    pub(super) rows: Option<usize>,
    pub(super) paint: Paint,
}

/// What a line wants to say beside its text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Tone {
    Usual,
    Head,
    Warn,
    Bad,
}

impl Screen {
    /// The lines, none wider than the screen and no more than it has.
    pub(super) fn draw(&self, snapshot: &Value) -> Vec<String> {
        let mut lines = vec![self.line(Tone::Usual, &title(snapshot))];
        lines.push(self.line(Tone::Usual, &figures(snapshot)));
        lines.push(String::new());
        lines.extend(self.table(&POD_COLUMNS, items(&snapshot["pods"]).map(pod_row).collect()));
        let batches: Vec<_> = items(&snapshot["batches"]).map(batch_line).collect();
        if !batches.is_empty() {
            lines.push(String::new());
            lines.extend(batches.into_iter().map(|text| self.line(Tone::Usual, &text)));
        }
        lines.push(String::new());
        let room = self.rows.map_or(DECISIONS, |rows| rows.saturating_sub(lines.len() + 1));
        let decisions: Vec<_> =
            items(&snapshot["decisions"]).take(room).map(decision_row).collect();
        match decisions.is_empty() {
            true => lines.push(self.line(Tone::Head, "No request has ended yet.")),
            false => lines.extend(self.table(&DECISION_COLUMNS, decisions)),
        }
        lines.truncate(self.rows.unwrap_or(usize::MAX));
        lines
    }

    fn table(&self, columns: &[Column], rows: Vec<(Tone, Vec<String>)>) -> Vec<String> {
        let shown = |cells: &[String]| -> String {
            let cells = columns.iter().zip(cells).map(|(column, cell)| column.cell(cell));
            cells.collect::<Vec<_>>().join("  ")
        };
        let head: Vec<_> = columns.iter().map(|column| column.name.to_owned()).collect();
        let mut lines = vec![self.line(Tone::Head, &shown(&head))];
        lines.extend(rows.into_iter().map(|(tone, cells)| self.line(tone, &shown(&cells))));
        lines
    }

    fn line(&self, tone: Tone, text: &str) -> String {
        let text: String = text.trim_end().chars().take(self.width).collect();
        let code = match (self.paint, tone) {
            (Paint::Plain, _) | (_, Tone::Usual) => return text,
            (_, Tone::Head) => "2",
            (_, Tone::Warn) => "33",
            (_, Tone::Bad) => "31",
        };
        format!("\x1b[{code}m{text}\x1b[0m")
    }
}

/// A column: its name, how wide it is, and whether its cells are numbers.
struct Column {
    name: &'static str,
    width: usize,
    side: Side,
}

#[derive(Clone, Copy)]
enum Side {
    Left,
    Right,
}

impl Column {
    fn cell(&self, text: &str) -> String {
        let text: String = text.chars().take(self.width).collect();
        match self.side {
            Side::Left => format!("{text:<width$}", width = self.width),
            Side::Right => format!("{text:>width$}", width = self.width),
        }
    }
}

const fn left(name: &'static str, width: usize) -> Column {
    Column { name, width, side: Side::Left }
}

const fn right(name: &'static str, width: usize) -> Column {
    Column { name, width, side: Side::Right }
}

const POD_COLUMNS: [Column; 9] = [
    left("POD", 18),
    left("STATE", 14),
    left("LOAD", 13),
    right("REQ/S", 6),
    left("KV USED", 13),
    right("BLOCKS", 7),
    right("HITS", 5),
    right("PREDICTED/ACTUAL", 16),
    left("EVENTS", 20),
];

const DECISION_COLUMNS: [Column; 6] = [
    left("REQUEST", 18),
    left("POD", 18),
    right("STATUS", 6),
    right("FIRST BYTE", 10),
    right("TOTAL", 8),
    right("CACHED/PROMPT", 15),
];

fn items(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().into_iter().flatten()
}

fn word(value: &Value) -> &str {
    value.as_str().unwrap_or("–")
}

fn title(snapshot: &Value) -> String {
    let pods = items(&snapshot["pods"]).count();
    let is_up = |pod: &&Value| pod["health"] == "up";
    let up = items(&snapshot["pods"]).filter(is_up).count();
    format!(
        "wornpath {} · {} · up {} · {up} of {pods} pods up · {} requests waiting",
        word(&snapshot["version"]),
        word(&snapshot["readiness"]),
        seconds(&snapshot["uptime_seconds"]),
        count(&snapshot["totals"]["waiting"]),
    )
}

fn figures(snapshot: &Value) -> String {
    let (rates, times) = (&snapshot["rates"], &snapshot["rates"]["first_byte_seconds"]);
    format!(
        "{} requests/s, {} failed · first byte {} p50, {} p90, {} p99 · {} of prompt tokens cached, {} saved/s",
        rate(&rates["requests"]),
        rate(&rates["failed"]),
        seconds(&times["p50"]),
        seconds(&times["p90"]),
        seconds(&times["p99"]),
        percent(&rates["hit_rate"]),
        rate(&rates["saved_tokens"]),
    )
}

fn bar(share: f64) -> String {
    let full = (share.clamp(0.0, 1.0) * BAR as f64).round() as usize;
    format!("{}{}", "█".repeat(full), "░".repeat(BAR - full))
}

fn pod_row(pod: &Value) -> (Tone, Vec<String>) {
    let (health, breaker) = (word(&pod["health"]), word(&pod["breaker"]));
    let tone = match (health, breaker) {
        ("down", _) => Tone::Bad,
        ("up", "closed") => Tone::Usual,
        _ => Tone::Warn,
    };
    let state = match breaker {
        "closed" => health.to_owned(),
        _ => format!("{health}, {breaker}"),
    };
    let load = pod["load"]["requests"].as_f64().unwrap_or(0.0);
    let usage = pod["engine"]["kv_usage"].as_f64().unwrap_or(0.0);
    let feed = &pod["events"]["feed"];
    let events = match (feed.as_object(), feed["lag"].as_u64()) {
        (None, _) => word(&pod["events"]["trust"]).to_owned(),
        (_, Some(lag)) if lag > 0 => format!("{}, {lag} behind", word(&feed["state"])),
        _ => word(&feed["state"]).to_owned(),
    };
    let hits = &pod["predictions"];
    let row = vec![
        word(&pod["name"]).to_owned(),
        state,
        // A pod with twenty requests is full on this scale, whoever else has more.
        format!("{} {}", bar(load / 20.0), count(&pod["load"]["requests"])),
        rate(&pod["requests_per_second"]),
        format!("{} {}", bar(usage), percent(&pod["engine"]["kv_usage"])),
        count(&pod["blocks"]),
        percent(&pod["hit_rate"]),
        format!("{}/{}", count(&hits["predicted_tokens"]), count(&hits["actual_tokens"])),
        events,
    ];
    (tone, row)
}

fn decision_row(record: &Value) -> (Tone, Vec<String>) {
    let tone = match record["status"].as_u64() {
        Some(500..) => Tone::Bad,
        Some(400..) => Tone::Warn,
        _ => Tone::Usual,
    };
    let row = vec![
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
    (tone, row)
}

fn batch_line(batch: &Value) -> String {
    let lines = &batch["lines"];
    let number = |name: &str| lines[name].as_f64().unwrap_or(0.0);
    let done = number("completed") + number("failed");
    let share = if number("total") > 0.0 { done / number("total") } else { 0.0 };
    let left = match batch["seconds_left"].as_f64() {
        Some(_) if share < 1.0 => format!(", about {} left", seconds(&batch["seconds_left"])),
        _ => String::new(),
    };
    format!(
        "{}  {} {:>3.0}%  {done:.0} of {:.0} lines, {} failed{left}  {}",
        word(&batch["id"]),
        bar(share),
        share * 100.0,
        number("total"),
        count(&lines["failed"]),
        word(&batch["status"]),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn snapshot() -> Value {
        let pod = |name: &str, health: &str| {
            json!({
                "name": name, "health": health, "breaker": "closed", "blocks": 12_300, "hit_rate": 0.5,
                "load": {"requests": 10}, "engine": {"kv_usage": 0.25}, "requests_per_second": 3.0,
                "predictions": {"predicted_tokens": 100, "actual_tokens": 90},
                "events": {"trust": "exact", "feed": {"state": "live", "lag": 2}},
            })
        };
        let decision = json!({
            "id": "r1", "pod": "a", "status": 503, "first_byte_us": 1500, "total_us": 9000,
            "prompt_tokens": 64, "cached_tokens": {"actual": 32},
        });
        json!({
            "version": "1", "readiness": "ready", "uptime_seconds": 60.0, "totals": {"waiting": 0},
            "rates": {"requests": 12.0, "failed": 0.0, "hit_rate": 0.5, "saved_tokens": 10.0,
                "first_byte_seconds": {"p50": 0.02, "p90": 0.03, "p99": 0.4}},
            "pods": [pod("a", "up"), pod("b", "down")],
            "decisions": vec![decision; 40],
            "batches": [{"id": "batch_1", "status": "in_progress", "seconds_left": 30.0,
                "lines": {"total": 10, "completed": 4, "failed": 1}}],
        })
    }

    #[test]
    fn everything_that_counts_stands_on_the_screen() {
        let screen = Screen { width: 200, rows: None, paint: Paint::Plain };
        let text = screen.draw(&snapshot()).join("\n");
        for wanted in [
            "1 of 2 pods up",
            "12 requests/s, 0 failed · first byte 20 ms p50",
            "████░░░░ 10",
            "██░░░░░░ 25%",
            "12.3k",
            "100/90",
            "live, 2 behind",
            "32/64",
            "50%  5 of 10 lines, 1 failed, about 30.0 s left",
        ] {
            assert!(text.contains(wanted), "no `{wanted}` in\n{text}");
        }
        assert!(!text.contains('\x1b'), "plain is plain");
    }

    #[test]
    fn no_line_is_too_wide_and_none_too_many_and_what_is_down_is_red() {
        for (width, rows) in [(40, 8), (80, 24), (132, 50)] {
            let screen = Screen { width, rows: Some(rows), paint: Paint::Plain };
            let lines = screen.draw(&snapshot());
            assert!(lines.len() <= rows, "{} lines in {rows} rows", lines.len());
            assert!(lines.iter().all(|line| line.chars().count() <= width));
        }
        let screen = Screen { width: 120, rows: Some(24), paint: Paint::Coloured };
        let lines = screen.draw(&snapshot());
        let down = lines.iter().find(|line| line.contains("down")).unwrap();
        assert!(down.starts_with("\x1b[31m") && down.ends_with("\x1b[0m"), "{down:?}");
    }

    #[test]
    fn what_is_not_known_is_a_dash_and_no_failure() {
        let screen = Screen { width: 80, rows: None, paint: Paint::Plain };
        let lines = screen.draw(&json!({}));
        assert!(lines[0].contains("0 of 0 pods up"), "{lines:?}");
        assert_eq!(lines.last().unwrap(), "No request has ended yet.");
    }
}
