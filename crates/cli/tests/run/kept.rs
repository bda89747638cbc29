//! What is there stays: files that a run would write over, and results that it cannot go on with.

use crate::files::{Job, questions};
use crate::served::Served;
use std::fs;

#[test]
fn a_log_that_is_none_is_refused_and_the_results_stay() {
    let engines = Served::start(&[]);
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
fn errors_of_another_run_and_the_input_itself_are_not_written_over() {
    let engines = Served::start(&[]);
    let mut job = Job::new("errors_kept", questions(1, 2));
    fs::write(job.errors(), "precious").unwrap();
    let output = job.run(&engines, &[]);
    assert!(output.error.contains(".errors.jsonl exists; go on with --resume"), "{output:?}");
    assert_eq!(fs::read_to_string(job.errors()).unwrap(), "precious");

    fs::rename(&job.input, job.errors()).unwrap();
    job.input = job.errors();
    let before = fs::read(&job.input).unwrap();
    for more in [&[][..], &["--resume"]] {
        let output = job.run(&engines, more);
        assert!(output.error.contains("is the input, which would be overwritten"), "{output:?}");
    }
    assert_eq!(fs::read(&job.input).unwrap(), before);
}

#[test]
fn results_cannot_go_where_nothing_can_be_read_again() {
    let mut job = Job::new("to_output", questions(1, 1));
    job.output = "-".into();
    let output = job.run_at(&["http://127.0.0.1:9"], &[]);
    assert!(output.is(1) && output.error.contains("name a file"), "{output:?}");
}

#[test]
fn a_run_goes_on_in_the_order_that_it_was_begun_with() {
    let engines = Served::start_at("1", &["--fault", "hang"]);
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
    assert!(output.error.contains("begun with --preserve-order; give that"), "{output:?}");
    assert!(!with.output().exists());
    fs::write(without.output(), "{}\n").unwrap();
    let output = without.run(&engines, &["--resume", "--preserve-order"]);
    assert!(output.error.contains("begun without --preserve-order; leave that"), "{output:?}");
    assert!(!without.beside(".unordered").exists());
    engines.set_faults(0, "{}");
    for (job, resume) in [(with, &["--resume", "--preserve-order"][..]), (without, &["--resume"])] {
        assert!(job.run(&engines, resume).is(0));
        assert_eq!(job.ids().len(), 3);
    }
}
