//! Duplicate lines, computed once with `--identical-once`.

use super::files::Job;
use crate::support::engines::Engines;
use serde_json::{Value, json};

/// Five questions, asked in turns; the last of them without saying that its answer is
/// deterministic.
fn lines(count: usize) -> impl Iterator<Item = Value> {
    (0..count).map(|number| {
        let question = number % 5;
        let content = format!("Question {question}: {}", "why? ".repeat(60));
        let mut body =
            json!({"max_tokens": 12, "messages": [{"role": "user", "content": content}]});
        match question {
            4 => {}
            0 => body["seed"] = json!(7),
            _ => body["temperature"] = json!(0),
        }
        json!({"custom_id": format!("id-{number}"), "url": "/v1/chat/completions", "body": body})
    })
}

fn computed(engines: &Engines) -> usize {
    engines.metric(0, "vllm:time_to_first_token_seconds_count") as usize
}

#[test]
fn equal_lines_are_computed_once_if_asked_and_every_one_has_its_record() {
    let engines = Engines::start_at("20", &[]);
    let plain = Job::new("each", lines(50));
    assert!(plain.run(&engines, &[]).is(0));
    assert_eq!(computed(&engines), 50, "not without the option");
    let job = Job::new("identical", lines(50));
    let output = job.run(&engines, &["--identical-once"]);
    assert!(output.is(0), "{output:?}");
    assert!(output.out.contains("50 of 50 lines answered, 0 failed, 0 left"), "{output:?}");
    assert!(output.out.contains("36 duplicate lines were not computed again"), "{output:?}");
    assert_eq!(computed(&engines) - 50, 4 + 10, "four that are deterministic, ten that are not");
    assert_eq!(job.ids(), (0..50).map(|id| format!("\"id-{id}\"")).collect::<Vec<_>>());
    let results = job.results_by_id();
    for (number, line) in results.iter().enumerate() {
        let own = &line["response"]["body"];
        let first = &results[number % 5]["response"]["body"];
        assert_eq!(own["id"] == first["id"], number % 5 < 4 || number < 5, "line {number}");
        assert_eq!(own["choices"], first["choices"]);
    }
    let names: std::collections::BTreeSet<_> =
        results.iter().map(|line| line["id"].to_string()).collect();
    assert_eq!(names.len(), 50, "records have names of their own");
    // Tokens are counted where they were computed.
    let tokens: u64 =
        results.iter().take(5).map(prompt_tokens).sum::<u64>() + 9 * prompt_tokens(&results[4]);
    assert!(output.out.contains(&format!("{tokens} prompt tokens")), "{tokens}: {output:?}");
}

fn prompt_tokens(line: &Value) -> u64 {
    line["response"]["body"]["usage"]["prompt_tokens"].as_u64().unwrap()
}

#[test]
fn a_run_that_is_killed_among_duplicates_answers_every_line_once() {
    let engines = Engines::start_at("20", &[]);
    let job = Job::new("killed-copies", lines(6_000));
    let mut lives = 1;
    let mut deaths = Vec::new();
    loop {
        let resume: &[&str] = if lives == 1 { &[] } else { &["--resume"] };
        let before = job.lines().len();
        let mut child =
            job.start(&engines, &[&["--identical-once", "--window", "4"], resume].concat());
        job.wait_for_lines((before + 900).min(6_000));
        child.kill().unwrap();
        child.wait().unwrap();
        deaths.push(job.lines().len());
        lives += 1;
        if lives == 5 {
            break;
        }
    }
    println!("killed with {deaths:?} of 6000 lines published");
    assert!(deaths[0] < 6_000, "in the middle: {deaths:?}");
    let output = job.run(&engines, &["--resume", "--identical-once"]);
    assert!(output.is(0), "{output:?}");
    assert_eq!(job.ids(), (0..6_000).map(|id| format!("\"id-{id}\"")).collect::<Vec<_>>());
    // Four questions and 1,200 lines; and at each death what was in the air, or answered and in the
    // group of at most 1,024 lines that was being gathered and synced: one in five of them. Who
    // computed published lines again would need two thousand more.
    let most = 1_204 + 256 * deaths.len();
    assert!(computed(&engines) <= most, "{} of at most {most}", computed(&engines));
}

#[test]
fn a_refused_line_is_refused_for_all_its_duplicates() {
    let engines = Engines::start(&[]);
    let wrong = |number: usize| json!({"custom_id": format!("id-{number}"), "url": "/v1/completions", "body": {"model": "none", "prompt": "x", "seed": 1}});
    let job = Job::new("refused-copies", (0..3).map(wrong));
    let output = job.run(&engines, &["--identical-once"]);
    assert!(output.is(1), "{output:?}");
    let errors = std::fs::read_to_string(job.errors()).unwrap();
    let ids: Vec<_> = errors
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["custom_id"].clone())
        .collect();
    assert_eq!(ids, ["id-0", "id-1", "id-2"]);
}
