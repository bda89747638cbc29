//! Draws a snapshot as lines of text. Pure, so that it can be tested without a terminal.

use super::format::{count, micros, percent, rate, seconds};
use super::table::{self, Column, Tone};
use serde_json::Value;

/// Cells of a bar.
const BAR: usize = 8;
/// Rows reserved below the pods for decisions and their heading.
const BELOW: usize = 8;
/// Decisions that are shown if the number of rows is unlimited.
const DECISIONS: usize = 10;

/// Whether the text is coloured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Paint {
    Plain,
    Coloured,
}

/// The size of the screen, and how it is painted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Screen {
    pub(super) width: usize,
    /// None if they are unlimited.
    pub(super) rows: Option<usize>,
    pub(super) paint: Paint,
}

impl Screen {
    /// The lines, cut to the size of the screen.
    pub(super) fn draw(&self, snapshot: &Value) -> Vec<String> {
        let mut lines = vec![self.line(Tone::Usual, &table::joined(&title(snapshot), self.width))];
        lines.push(self.line(Tone::Usual, &table::joined(&figures(snapshot), self.width)));
        lines.push(String::new());
        let mut pods: Vec<_> = items(&snapshot["pods"]).map(pod_row).collect();
        // Pods with problems come first, because the last ones may not fit.
        pods.sort_by_key(|(tone, _)| match tone {
            Tone::Bad => 0,
            Tone::Warn => 1,
            Tone::Usual | Tone::Head => 2,
        });
        let rows_left =
            self.rows.map_or(usize::MAX, |rows| rows.saturating_sub(lines.len() + BELOW));
        let left_out = pods.len().saturating_sub(rows_left.max(1));
        pods.truncate(pods.len() - left_out);
        lines.extend(table::fit(&POD_COLUMNS, pods, self.width).iter().map(|row| self.row(row)));
        if left_out > 0 {
            lines.push(self.line(Tone::Head, &format!("… and {left_out} more")));
        }
        let batches: Vec<_> = items(&snapshot["batches"]).map(batch_line).collect();
        if !batches.is_empty() {
            lines.push(String::new());
            let joined = |parts: Vec<String>| table::joined(&parts, self.width);
            lines.extend(batches.into_iter().map(|parts| self.line(Tone::Usual, &joined(parts))));
        }
        lines.push(String::new());
        let rows_left = self.rows.map_or(DECISIONS, |rows| rows.saturating_sub(lines.len() + 1));
        let decisions: Vec<_> =
            items(&snapshot["decisions"]).take(rows_left).map(decision_row).collect();
        match decisions.is_empty() {
            true => lines.push(self.line(Tone::Head, "No requests yet.")),
            false => {
                let rows = table::fit(&DECISION_COLUMNS, decisions, self.width);
                lines.extend(rows.iter().map(|row| self.row(row)));
            }
        }
        lines.truncate(self.rows.unwrap_or(usize::MAX));
        lines
    }

    fn row(&self, (tone, text): &(Tone, String)) -> String {
        self.line(*tone, text)
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

fn pod_row(pod: &Value) -> (Tone, Vec<String>) {
    let health = word(&pod["health"]);
    let breaker = word(&pod["breaker"]);
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
    let is_checked = hits["checked"].as_u64().is_some_and(|checked| checked > 0);
    let compared = match is_checked {
        true => format!("{}/{}", count(&hits["predicted_tokens"]), count(&hits["actual_tokens"])),
        false => count(&Value::Null),
    };
    let row = vec![
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
mod tests {
    use super::*;
    use serde_json::json;

    fn snapshot() -> Value {
        let pod = |name: &str, health: &str| {
            json!({
                "name": name, "health": health, "breaker": "closed", "blocks": 12_300, "hit_rate": 0.5,
                "load": {"requests": 10}, "engine": {"kv_usage": 0.25}, "requests_per_second": 3.0,
                "predictions": {"checked": 5, "predicted_tokens": 100, "actual_tokens": 90},
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
    fn a_wide_screen_shows_all_figures() {
        let screen = Screen { width: 200, rows: None, paint: Paint::Plain };
        let text = screen.draw(&snapshot()).join("\n");
        for wanted in [
            "1 of 2 pods up",
            "12 requests/s · 0 failed · 50% of prompt tokens cached · first byte 20 ms p50",
            "█████░░░    10",
            "██░░░░░░  25%",
            "12.3k",
            "100/90",
            "live, 2 behind",
            "32/64",
            " 50% · 5 of 10 lines · 1 failed · about 30.0 s left · in progress · batch_1",
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
    fn on_a_narrow_screen_columns_go_and_no_number_is_cut() {
        let wide = Screen { width: 200, rows: None, paint: Paint::Plain }.draw(&snapshot());
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let whole = words(&wide.join(" "));
        for width in [40, 60, 80, 100, 120] {
            let screen = Screen { width, rows: None, paint: Paint::Plain };
            let narrow = screen.draw(&snapshot());
            for word in words(&narrow.join(" ")) {
                assert!(whole.contains(&word), "`{word}` of width {width} is cut:\n{narrow:#?}");
            }
        }
        let screen = Screen { width: 80, rows: Some(24), paint: Paint::Plain };
        let text = screen.draw(&snapshot()).join("\n");
        for wanted in ["BLOCKS", "12.3k", "HITS", "EVENTS", "live, 2 behind", "100/90", "32/64"] {
            assert!(text.contains(wanted), "no `{wanted}` in eighty columns:\n{text}");
        }
    }

    #[test]
    fn a_pod_without_checked_predictions_shows_a_dash() {
        let mut snapshot = snapshot();
        snapshot["pods"][0]["predictions"] =
            json!({"checked": 0, "predicted_tokens": 0, "actual_tokens": 0});
        let screen = Screen { width: 200, rows: None, paint: Paint::Plain };
        let text = screen.draw(&snapshot).join("\n");
        assert!(!text.contains("0/0"), "{text}");
    }

    #[test]
    fn an_empty_snapshot_is_drawn_with_dashes() {
        let screen = Screen { width: 80, rows: None, paint: Paint::Plain };
        let lines = screen.draw(&json!({}));
        assert!(lines[0].contains("0 of 0 pods up"), "{lines:?}");
        assert_eq!(lines.last().unwrap(), "No requests yet.");
    }
}
