//! The screen, drawn for a terminal that is not there.

use super::*;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::KeyCode;
use ratatui::style::Color;
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

/// What a terminal of this size shows.
fn drawn(snapshot: &Value, view: &mut View, width: u16, height: u16) -> Buffer {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    let frame = terminal.draw(|frame| {
        let area = frame.area();
        draw(snapshot, view, area, frame.buffer_mut());
    });
    frame.unwrap().buffer.clone()
}

fn shown(snapshot: &Value, view: &mut View, width: u16, height: u16) -> Vec<String> {
    lines(&drawn(snapshot, view, width, height))
}

fn press(view: &mut View, keys: &str) {
    for key in keys.chars() {
        view.press(KeyCode::Char(key).into());
    }
}

/// A fleet of `count` pods that are up.
fn fleet(count: usize) -> Value {
    let mut snapshot = snapshot();
    let pods = (0..count).map(|number| {
        let mut pod = snapshot["pods"][0].clone();
        pod["name"] = format!("pod-{number}").into();
        pod["load"]["requests"] = number.into();
        pod
    });
    let pods: Vec<_> = pods.collect();
    snapshot["pods"] = pods.into();
    snapshot
}

#[test]
fn a_wide_screen_shows_all_figures() {
    let text = shown(&snapshot(), &mut View::default(), 200, 40).join("\n");
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
        "by problems · ? help · q quit",
    ] {
        assert!(text.contains(wanted), "no `{wanted}` in\n{text}");
    }
}

#[test]
fn every_size_can_be_drawn_with_the_title_first_and_the_keys_last() {
    let snapshot = fleet(64);
    for (width, height) in [(1, 1), (3, 2), (10, 5), (40, 8), (80, 24), (132, 50), (300, 100)] {
        for keys in ["", "?", "/pod"] {
            let mut view = View::default();
            press(&mut view, keys);
            let lines = shown(&snapshot, &mut view, width, height);
            assert_eq!(lines.len(), usize::from(height), "{width}x{height}");
            if keys.is_empty() && width >= 40 {
                assert!(lines[0].starts_with("wornpath 1"), "{lines:#?}");
                assert!(lines[usize::from(height) - 1].starts_with("by problems"), "{lines:#?}");
                assert!(lines.iter().any(|line| line.starts_with("pod-0 ")), "{lines:#?}");
            }
        }
    }
}

#[test]
fn a_pod_that_is_down_is_first_and_red() {
    let buffer = drawn(&snapshot(), &mut View::default(), 120, 24);
    let row = lines(&buffer).iter().position(|line| line.contains("down")).unwrap();
    assert_eq!(row, 4, "{buffer:?}");
    assert_eq!(buffer[(0, row as u16)].fg, Color::Red);
    assert_eq!(buffer[(0, row as u16 + 1)].fg, Color::Reset);
}

#[test]
fn on_a_narrow_screen_columns_go_and_no_number_is_cut() {
    let words = |lines: &[String]| {
        lines.join(" ").split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    let whole = words(&shown(&snapshot(), &mut View::default(), 200, 40));
    for width in [40, 60, 80, 100, 120] {
        let narrow = shown(&snapshot(), &mut View::default(), width, 40);
        for word in words(&narrow) {
            assert!(whole.contains(&word), "`{word}` of width {width} is cut:\n{narrow:#?}");
        }
    }
    let text = shown(&snapshot(), &mut View::default(), 80, 24).join("\n");
    for wanted in ["BLOCKS", "12.3k", "HITS", "EVENTS", "live, 2 behind", "100/90", "32/64"] {
        assert!(text.contains(wanted), "no `{wanted}` in eighty columns:\n{text}");
    }
}

#[test]
fn pods_beyond_the_screen_are_reached_by_keys() {
    let snapshot = fleet(64);
    let mut view = View::default();
    let is_shown = |view: &mut View, pod: &str| {
        let lines = shown(&snapshot, view, 80, 24);
        lines[4..].iter().any(|line| line.starts_with(&format!("{pod} ")))
    };
    assert!(is_shown(&mut view, "pod-0") && !is_shown(&mut view, "pod-63"));
    view.press(KeyCode::PageDown.into());
    let page = usize::from(view.page);
    assert!(is_shown(&mut view, &format!("pod-{page}")), "a page further: {:?}", view.pods);
    view.press(KeyCode::End.into());
    assert!(is_shown(&mut view, "pod-63") && !is_shown(&mut view, "pod-0"));
    view.press(KeyCode::Home.into());
    assert!(is_shown(&mut view, "pod-0"));
}

#[test]
fn order_filter_pause_and_help_are_seen() {
    let snapshot = fleet(5);
    let mut view = View::default();
    press(&mut view, "ss");
    let lines = shown(&snapshot, &mut view, 80, 30);
    assert!(lines[4].starts_with("pod-4") && lines[29].starts_with("by load"), "{lines:#?}");
    press(&mut view, "rp");
    let lines = shown(&snapshot, &mut view, 80, 30);
    assert!(lines[4].starts_with("pod-0"), "{lines:#?}");
    assert!(lines[29].starts_with("PAUSED, p continues · by load, reversed"), "{lines:#?}");
    press(&mut view, "/d-3");
    let lines = shown(&snapshot, &mut view, 80, 30);
    assert!(lines[4].starts_with("pod-3") && !lines[5].starts_with("pod-"), "{lines:#?}");
    assert!(lines.iter().any(|line| line == "No recent request matches the filter."));
    assert_eq!(lines[29], "/d-3▏");
    view.press(KeyCode::Enter.into());
    press(&mut view, "?");
    let text = shown(&snapshot, &mut view, 80, 30).join("\n");
    assert!(text.contains("Keys") && text.contains("reverse the order"), "{text}");
}

#[test]
fn a_plain_snapshot_has_every_pod_and_ten_decisions() {
    let lines = plain(&fleet(64));
    assert_eq!(lines.iter().filter(|line| line.starts_with("pod-")).count(), 64);
    assert_eq!(lines.iter().filter(|line| line.starts_with("r1 ")).count(), DECISIONS);
    assert!(lines.iter().all(|line| !line.contains('\x1b') && line.width() <= 120));
    assert!(!lines.concat().contains("q quit"), "there are no keys: {lines:#?}");
}

#[test]
fn a_pod_without_checked_predictions_shows_a_dash() {
    let mut snapshot = snapshot();
    snapshot["pods"][0]["predictions"] =
        json!({"checked": 0, "predicted_tokens": 0, "actual_tokens": 0});
    let text = plain(&snapshot).join("\n");
    assert!(!text.contains("0/0"), "{text}");
}

#[test]
fn an_empty_snapshot_is_drawn_with_dashes() {
    let lines = plain(&json!({}));
    assert!(lines[0].contains("0 of 0 pods up"), "{lines:?}");
    assert_eq!(lines.last().unwrap(), "No requests yet.");
}
