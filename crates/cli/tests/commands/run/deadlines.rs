//! Lines with deadlines of their own.

use super::files::{Job, questions};
use crate::support::engines::Engines;
use serde_json::{Value, json};

/// Questions with long answers, of which the last ones are due at once.
fn lines() -> Vec<Value> {
    let mut lines: Vec<Value> = questions(60, 10).collect();
    for (number, line) in lines.iter_mut().enumerate() {
        line["body"]["max_tokens"] = json!(200);
        if number >= 580 {
            line["deadline"] = json!("1s");
        }
    }
    lines
}

#[test]
fn lines_that_are_due_are_answered_before_those_that_can_wait() {
    let engines = Engines::start_at("200", &[]);
    let job = Job::new("deadlines", lines());
    let output = job.run(&engines, &["--window", "4"]);
    assert!(output.is(0), "{output:?}");
    let answers = std::fs::read_to_string(job.output()).unwrap();
    let answered: Vec<usize> = answers
        .lines()
        .map(|line| {
            let line: Value = serde_json::from_str(line).unwrap();
            line["custom_id"].as_str().unwrap().trim_start_matches("id-").parse().unwrap()
        })
        .collect();
    assert_eq!(answered.len(), 600);
    let last = answered.iter().rposition(|number| *number >= 580).unwrap();
    // Of the 600 lines, the 20 that are due and some that share their documents.
    assert!(last < 300, "the last line that was due is answer {last}");
}

#[test]
fn a_deadline_that_is_no_duration_is_refused_with_its_line() {
    let engines = Engines::start(&[]);
    let mut lines: Vec<Value> = questions(1, 3).collect();
    lines[1]["deadline"] = json!("soon");
    let output = Job::new("no-duration", lines).run(&engines, &[]);
    assert!(output.is(1), "{output:?}");
    let said = "line 2: `deadline` is \"soon\"; it must be a duration such as \"90s\"";
    assert!(output.error.contains(said), "{output:?}");
}
