//! Existing files: those that a run would overwrite, and results that it cannot resume.

use super::files::{Job, questions};
use crate::support::engines::Engines;
use serde_json::json;
use std::fs;

#[test]
fn an_invalid_progress_log_is_refused_and_the_results_stay() {
    let engines = Engines::start(&[]);
    let job = Job::new("no_log", questions(1, 4));
    assert!(job.run(&engines, &[]).is(0));
    let results = job.lines();
    for log in ["", "something else"] {
        fs::write(job.beside(".progress"), log).unwrap();
        let output = job.run(&engines, &["--resume"]);
        assert!(output.is(1) && output.error.contains("is damaged at byte 0"), "{output:?}");
        assert_eq!(job.lines(), results);
        assert_eq!(fs::read_to_string(job.beside(".progress")).unwrap(), log);
    }
}

#[test]
fn errors_of_another_run_and_the_input_itself_are_not_overwritten() {
    let engines = Engines::start(&[]);
    let mut job = Job::new("errors_kept", questions(1, 2));
    fs::write(job.errors(), "precious").unwrap();
    let output = job.run(&engines, &[]);
    assert!(output.error.contains(".errors.jsonl exists; continue with --resume"), "{output:?}");
    assert_eq!(fs::read_to_string(job.errors()).unwrap(), "precious");

    fs::rename(&job.input, job.errors()).unwrap();
    job.input = job.errors();
    let before = fs::read(&job.input).unwrap();
    for more in [&[][..], &["--resume"]] {
        let output = job.run(&engines, more);
        assert!(output.error.contains("would overwrite the input"), "{output:?}");
    }
    assert_eq!(fs::read(&job.input).unwrap(), before);
}

#[test]
fn results_cannot_be_written_to_standard_output() {
    let mut job = Job::new("to_output", questions(1, 1));
    job.output = "-".into();
    let output = job.run_at(&["http://127.0.0.1:9"], &[]);
    assert!(output.is(1) && output.error.contains("name a file"), "{output:?}");
}

#[test]
fn a_run_is_resumed_with_the_same_order_option() {
    let engines = Engines::start_at("1", &["--fault", "hang"]);
    let begun = ["with", "without"].map(|how| {
        let job = Job::new(&format!("begun_{how}"), questions(1, 3));
        let order: &[&str] = if how == "with" { &["--preserve-order"] } else { &[] };
        let output = job.run(&engines, &[&["--deadline", "1s"], order].concat());
        assert!(output.is(3), "{output:?}");
        job
    });
    // As if one answer had come; what counts is where it stands.
    let [with, without] = begun;
    fs::write(with.beside(".unordered"), "{}\n").unwrap();
    let output = with.run(&engines, &["--resume"]);
    assert!(output.error.contains("started with --preserve-order; give that"), "{output:?}");
    assert!(!with.output().exists());
    fs::write(without.output(), "{}\n").unwrap();
    let output = without.run(&engines, &["--resume", "--preserve-order"]);
    assert!(output.error.contains("started without --preserve-order; leave that"), "{output:?}");
    assert!(!without.beside(".unordered").exists());
    engines.set_faults(0, "{}");
    for (job, resume) in [(with, &["--resume", "--preserve-order"][..]), (without, &["--resume"])] {
        assert!(job.run(&engines, resume).is(0));
        assert_eq!(job.ids().len(), 3);
    }
}

#[test]
fn damaged_results_are_not_reported_as_complete() {
    let engines = Engines::start(&["--model", "m"]);
    let lines = questions(1, 4).chain([json!({
        "custom_id": "bad",
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": {"model": "other", "messages": [{"role": "user", "content": "a"}]},
    })]);
    let job = Job::new("not_whole", lines);
    assert!(job.run(&engines, &[]).is(1));
    assert!(job.run(&engines, &["--resume"]).is(1), "a line has failed");
    let results = fs::read(job.output()).unwrap();
    let errors = fs::read(job.errors()).unwrap();
    let refused = || {
        let output = job.run(&engines, &["--resume"]);
        assert!(output.is(1) && output.error.contains("damaged"), "{output:?}");
    };
    fs::write(job.output(), &results[..100]).unwrap();
    refused();
    fs::remove_file(job.output()).unwrap();
    refused();
    refused();
    fs::write(job.output(), &results).unwrap();
    fs::remove_file(job.errors()).unwrap();
    refused();
    fs::write(job.errors(), &errors).unwrap();
    let output = job.run(&engines, &["--resume"]);
    assert!(output.is(1) && output.out.contains("all lines are done"), "{output:?}");
}

#[test]
fn the_exit_status_of_a_run_is_the_same_with_a_closed_pipe() {
    let engines = Engines::start(&["--model", "m"]);
    let bad = json!({"prompt": "a", "model": "other"});
    let job = Job::new("unread", [bad]);
    let mut child = job.start(&engines, &[]);
    drop((child.stdout.take(), child.stderr.take()));
    assert_eq!(child.wait().unwrap().code(), Some(1));
    assert!(job.errors().exists());
}
