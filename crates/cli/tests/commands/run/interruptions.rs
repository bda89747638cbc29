//! Runs that are interrupted, killed, race each other, or lose their engines.

use super::files::{Job, questions};
use crate::support::engines::Engines;
use std::process::Command;
use std::time::Duration;

#[test]
fn a_run_that_is_killed_again_and_again_answers_every_line_once() {
    let engines = Engines::start_at("20", &["--engines", "2"]);
    let job = Job::new("killed", questions(10, 20));
    let mut kept: Vec<String> = Vec::new();
    for round in 0..8 {
        let resume: &[&str] =
            if round == 0 { &["--window", "6"] } else { &["--window", "6", "--resume"] };
        let mut child = job.start(&engines, resume);
        job.wait_for_lines(kept.len() + 7 + round);
        let seen = job.logged_lines();
        child.kill().unwrap();
        child.wait().unwrap();
        let now = job.lines();
        assert!(round > 0 || now.len() < 200, "killed before the end");
        assert_eq!(now[..kept.len()], kept[..], "published lines stay as they are");
        kept = seen;
        // On a slow machine much is published before the signal comes.
        if now.len() > 160 {
            break;
        }
    }
    let output = job.run(&engines, &["--resume"]);
    assert!(output.is(0), "{output:?}");
    assert_eq!(job.ids(), (0..200).map(|id| format!("\"id-{id}\"")).collect::<Vec<_>>());
    assert_eq!(job.lines()[..kept.len()], kept[..]);
}

/// Killed a moment after some line has been published; which one, and how long after, come from a
/// seed.
#[test]
fn a_run_that_is_killed_at_random_answers_every_line_once() {
    let engines = Engines::start_at("10", &["--engines", "2"]);
    for seed in 1..=4_u64 {
        let job = Job::new(&format!("random-{seed}"), questions(10, 30));
        let mut dice = seed;
        let mut deaths = Vec::new();
        let mut below = |most: u64| {
            dice = dice
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (dice >> 33) % most
        };
        for round in 0..4 {
            let published = job.lines().len();
            if published > 240 {
                break;
            }
            let resume: &[&str] = if round == 0 { &[] } else { &["--resume"] };
            let mut child = job.start(&engines, &[&["--window", "3"], resume].concat());
            job.wait_for_lines(published + 1 + below(40) as usize);
            // The moment of the crash, from the seed.
            std::thread::sleep(Duration::from_micros(below(30_000)));
            child.kill().unwrap();
            child.wait().unwrap();
            deaths.push(job.lines().len());
        }
        println!("seed {seed}: killed with {deaths:?} of 300 lines published");
        assert!((1..300).contains(&deaths[0]), "in the middle: {deaths:?}");
        let output = job.run(&engines, &["--resume"]);
        assert!(output.is(0), "seed {seed}, {deaths:?}: {output:?}");
        let all = (0..300).map(|id| format!("\"id-{id}\"")).collect::<Vec<_>>();
        assert_eq!(job.ids(), all, "seed {seed}, {deaths:?}");
    }
}

#[test]
fn an_interrupted_run_keeps_its_results_and_says_how_to_resume() {
    let engines = Engines::start_at("20", &[]);
    for signal in ["INT", "TERM"] {
        let job = Job::new(&format!("interrupted-{signal}"), questions(5, 20));
        let child = job.start(&engines, &["--window", "4"]);
        job.wait_for_lines(5);
        let pid = child.id().to_string();
        assert!(Command::new("kill").args(["-s", signal, &pid]).status().unwrap().success());
        let output = job.end(child);
        assert!(output.is(130) && output.out.contains("--resume"), "{signal}: {output:?}");
        let kept = job.lines();
        assert!((5..100).contains(&kept.len()), "{signal}: {}", kept.len());
        let output = job.run(&engines, &["--resume"]);
        assert!(output.is(0), "{output:?}");
        assert_eq!(job.lines()[..kept.len()], kept[..], "nothing is run again");
        assert_eq!(job.ids().len(), 100);
    }
}

#[test]
fn a_deadline_leaves_the_rest_to_be_resumed() {
    let engines = Engines::start_at("1", &["--fault", "hang"]);
    let job = Job::new("deadline", questions(1, 3));
    let output = job.run(&engines, &["--deadline", "1s"]);
    assert!(output.is(3) && output.out.contains("3 left"), "{output:?}");
    assert!(output.out.contains("deadline exceeded; run the rest with --resume"));
    engines.set_faults(0, "{}");
    let output = job.run(&engines, &["--deadline", "1h", "--resume"]);
    assert!(output.is(0), "{output:?}");
}

#[test]
fn of_two_runs_with_one_output_the_second_is_refused() {
    let engines = Engines::start_at("1", &["--fault", "slow=3"]);
    let job = Job::new("raced", questions(4, 5));
    let mut first = job.start(&engines, &[]);
    job.wait_for_lines(1);
    let second = job.run(&engines, &["--resume"]);
    assert!(second.error.contains("is in use by another process"), "{second:?}");
    first.kill().unwrap();
    first.wait().unwrap();
}

#[test]
fn requests_of_a_crashed_engine_are_answered_by_the_other() {
    let engines = Engines::start_at("20", &["--engines", "2"]);
    let job = Job::new("lost", questions(8, 12));
    let child = job.start(&engines, &["--window", "4"]);
    job.wait_for_lines(10);
    engines.control("POST", "/engines/0/crash", "");
    let output = job.end(child);
    assert!(output.is(0), "{output:?}");
    assert_eq!(job.ids().len(), 96);
}

#[test]
fn a_run_without_a_reachable_engine_stops_after_give_up_after() {
    let job = Job::new("unreachable", questions(1, 2));
    let output = job.run_at(&["http://127.0.0.1:9"], &["--give-up-after", "1s"]);
    assert!(output.is(3) && output.out.contains("no engine reachable"), "{output:?}");
    assert!(output.out.contains("0 of 2 lines answered, 0 failed, 2 left"), "{output:?}");
    let unreachable = "engines unreachable: 1 (http://127.0.0.1:9: connection failed: ";
    assert_eq!(output.error.matches(unreachable).count(), 1, "{output:?}");
}

#[test]
fn an_input_that_becomes_unreadable_ends_the_run_and_fails_no_line() {
    let engines = Engines::start_at("1", &["--fault", "slow=3"]);
    let job = Job::new("unreadable", questions(4, 10));
    let whole = std::fs::read(&job.input).unwrap();
    let child = job.start(&engines, &["--window", "2"]);
    job.wait_for_lines(1);
    std::fs::OpenOptions::new().write(true).open(&job.input).unwrap().set_len(0).unwrap();
    let output = job.end(child);
    assert!(output.is(1) && output.error.contains("cannot read"), "{output:?}");
    assert!(output.error.contains("in.jsonl") && output.error.contains("--resume"), "{output:?}");
    std::fs::write(&job.input, whole).unwrap();
    engines.set_faults(0, "{}");
    let output = job.run(&engines, &["--resume"]);
    assert!(output.is(0), "{output:?}");
    assert_eq!(job.ids().len(), 40);
}
