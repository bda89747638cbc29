//! `wornpath run` against simulated engines: both are the real binary, as a user runs it.

mod deadlines;
mod dedup;
mod existing_files;
mod external_sort;
mod files;
mod interruptions;
mod terminal;

use crate::support::engines::Engines;
use files::{Job, questions};
use serde_json::{Value, json};

#[test]
fn every_line_is_answered_once_and_shared_prefixes_are_found_in_caches() {
    let engines = Engines::start(&["--engines", "2"]);
    let job = Job::new("once", questions(6, 10));
    let output = job.run(&engines, &[]);
    assert!(output.is(0), "{output:?}");
    assert_eq!(job.ids(), (0..60).map(|id| format!("\"id-{id}\"")).collect::<Vec<_>>());
    assert!(!job.errors().exists(), "nothing failed");
    assert!(output.out.contains("60 of 60 lines answered, 0 failed, 0 left"), "{output:?}");
    let percent = |before: &str| {
        let rest = output.out.split(before).nth(1).unwrap();
        rest.split('%').next().unwrap().parse::<f64>().unwrap()
    };
    let observed = percent("prompt tokens, ");
    let predicted = percent("predicted: ");
    assert!((observed - predicted).abs() < 8.0 && observed > 70.0, "{output:?}");
    let again = job.run(&engines, &["--resume"]);
    assert!(again.is(0) && again.out.contains("nothing to do"), "{again:?}");
}

#[test]
fn no_cached_tokens_are_predicted_for_embeddings_because_engines_report_none() {
    let engines = Engines::start(&[]);
    let lines = questions(3, 5).map(|mut line| {
        line["url"] = json!("/v1/embeddings");
        line["body"] = json!({"input": line["body"]["messages"][0]["content"]});
        line
    });
    let job = Job::new("embeddings", lines);
    let output = job.run(&engines, &[]);
    assert!(output.is(0), "{output:?}");
    assert!(output.out.contains(" prompt tokens; 0 output tokens"), "{output:?}");
    assert!(!output.out.contains("caches"), "{output:?}");
}

#[test]
fn an_answer_that_was_streamed_is_what_the_engine_says_in_one_piece() {
    let engines = Engines::start(&[]);
    let lines: Vec<_> = questions(1, 3).collect();
    let job = Job::new("streamed", lines.clone());
    assert!(job.run(&engines, &[]).is(0));
    for (line, answer) in lines.iter().zip(job.results_by_id()) {
        let whole = engines.post(0, "/v1/chat/completions", &line["body"]).json();
        let body = &answer["response"]["body"];
        assert_eq!(body["choices"], whole["choices"]);
        assert_eq!(body["object"], whole["object"]);
        for count in ["prompt_tokens", "completion_tokens", "total_tokens"] {
            assert_eq!(body["usage"][count], whole["usage"][count]);
        }
        assert_eq!(answer["response"]["status_code"], 200);
    }
}

#[test]
fn a_line_that_an_engine_refuses_is_an_error_and_the_others_are_answered() {
    let engines = Engines::start(&[]);
    let mut lines: Vec<Value> = questions(2, 4).collect();
    lines[3]["body"]["model"] = json!("no-such-model");
    let job = Job::new("refused", lines);
    let output = job.run(&engines, &[]);
    assert!(output.is(1), "{output:?}");
    assert!(output.out.contains("\n  1 failed: status 404"), "{output:?}");
    assert!(output.out.contains("no-such-model") && output.out.contains("(first: id-3)"));
    assert_eq!(job.ids().len(), 7);
    let errors = std::fs::read_to_string(job.errors()).unwrap();
    let error: Value = serde_json::from_str(errors.trim_end()).unwrap();
    assert_eq!(
        (&error["custom_id"], &error["response"]["status_code"]),
        (&json!("id-3"), &json!(404))
    );
    let again = job.run(&engines, &["--resume"]);
    assert!(again.is(1) && again.out.contains("nothing to do"), "{again:?}");
    assert!(again.out.contains("\n  1 failed: status 404"), "{again:?}");
}

#[test]
fn without_a_terminal_a_run_prints_failures_when_they_occur_and_its_progress_now_and_then() {
    let engines = Engines::start_at("1", &["--fault", "slow=2"]);
    let mut lines: Vec<Value> = questions(4, 10).collect();
    for line in &mut lines[..3] {
        line["body"]["model"] = json!("no-such-model");
    }
    let job = Job::new("told", lines);
    let output = job.run(&engines, &["--window", "2"]);
    assert!(output.is(1), "{output:?}");
    let told: Vec<&str> = output.error.lines().collect();
    let first = told.iter().position(|line| line.contains(" failed: status 404"));
    let left =
        told.iter().position(|line| line.contains(" of 40 lines, ") && line.contains(" left"));
    assert!(first.is_some() && left.is_some() && first < left, "{output:?}");
    assert_eq!(output.error.matches(" failed: status 404").count(), 1, "{output:?}");
    assert!(output.out.contains("\n  3 failed: status 404"), "{output:?}");
}

#[test]
fn preserve_order_writes_results_in_the_order_of_the_prompts() {
    let engines = Engines::start(&["--engines", "2"]);
    let bare = (0..20).map(|number| json!({"prompt": format!("{} of {number}", "abc ".repeat(number % 3 * 40)), "max_tokens": 1 + number % 7}));
    let job = Job::new("ordered", bare);
    assert!(job.run(&engines, &["--preserve-order"]).is(0));
    let order: Vec<_> = job.results().iter().map(|line| line["custom_id"].to_string()).collect();
    assert_eq!(order, (1..=20).map(|number| format!("\"line-{number}\"")).collect::<Vec<_>>());
    assert!(!job.beside(".unordered").exists());
    let again = job.run(&engines, &["--preserve-order", "--resume"]);
    assert!(again.is(0) && again.out.contains("nothing to do"), "{again:?}");
}

#[test]
fn a_plan_reads_the_cache_sizes_of_its_engines() {
    let engines = Engines::start(&["--engines", "2", "--kv-tokens", "48000"]);
    let job = Job::new("asked", questions(6, 10));
    let plan = |extra: &[&str]| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_wornpath"));
        command.arg("plan").arg(&job.input).args(extra);
        for engine in &engines.engines {
            command.args(["--pod", &format!("http://{}", engine.http)]);
        }
        command.output().unwrap()
    };
    let output = plan(&["--json"]);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["pods"], 2);
    let told = report["asked"][1].as_str().unwrap();
    assert!(told.ends_with("KV cache of 48000 tokens"), "{told}");
    let other = plan(&["--block-size", "32"]);
    let error = String::from_utf8_lossy(&other.stderr);
    assert!(
        error.contains("has blocks of 16 tokens") && error.contains("give --block-size 16"),
        "{error}"
    );
}

#[test]
fn invalid_input_is_refused_before_anything_is_sent() {
    let engines = Engines::start(&[]);
    let mut no_file = Job::new("no_file", []);
    no_file.input = "/dev/null".into();
    let no_file = no_file.run(&engines, &[]);
    assert!(no_file.error.contains("/dev/null is not a regular file"), "{no_file:?}");
    let job = Job::new("wrong", [json!({"prompt": "a"}), json!({"x": 1}), json!({"prompt": ""})]);
    let output = job.run(&engines, &[]);
    assert!(output.error.contains("2 invalid lines"), "{output:?}");
    assert!(output.error.contains("line 2: none of `messages`"), "{output:?}");
    assert!(output.error.contains("line 3: the prompt is empty"), "{output:?}");
    assert!(!job.output().exists());
    let job = Job::new("taken", questions(1, 2));
    assert!(job.run(&engines, &[]).is(0));
    assert!(job.run(&engines, &[]).error.contains("exists; continue with --resume"));
    let other = Job::with("taken", questions(1, 3));
    let output = other.run(&engines, &["--resume"]);
    assert!(
        output.error.contains("started with an input of 2 lines, and this one has 3"),
        "{output:?}"
    );
    let output = other.run_at(&["ftp://engine"], &["--resume"]);
    assert!(output.error.contains("does not start with `http://`"), "{output:?}");
    let output = other.run_at(&["http://user:private@engine"], &["--resume"]);
    assert!(output.error.contains("a user or a password"), "{output:?}");
    assert!(!output.error.contains("private"), "{output:?}");
    let output = other.run_at(&["https://engine"], &["--resume", "--ca", "none.pem"]);
    assert!(output.error.contains("--ca: cannot read none.pem"), "{output:?}");
    let output = other.run_at(&["http://engine:8000/v1"], &["--resume"]);
    assert!(
        output.error.contains("give it without /v1, which requests add: http://engine:8000\n"),
        "{output:?}"
    );
}
