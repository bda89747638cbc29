//! `wornpath plan`, run as a user runs it.

use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn file(name: &str, lines: impl IntoIterator<Item = Value>) -> PathBuf {
    let text: Vec<_> = lines.into_iter().map(|line| line.to_string()).collect();
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&path, text.join("\n")).unwrap();
    path
}

fn plan(path: &PathBuf, arguments: &[&str]) -> Output {
    let binary = env!("CARGO_BIN_EXE_wornpath");
    Command::new(binary).arg("plan").arg(path).args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// Questions about documents, the documents taking turns, as batch lines.
fn questions(documents: usize, each: usize) -> impl Iterator<Item = Value> {
    (0..documents * each).map(move |number| {
        let document = format!("Document {}. ", number % documents).repeat(3_000);
        let content = format!("{document}\nQuestion {number}: why?");
        json!({
            "custom_id": number.to_string(),
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": {"model": "m", "max_tokens": 20, "messages": [{"role": "user", "content": content}]},
        })
    })
}

#[test]
fn interleaved_documents_are_computed_about_once() {
    let path = file("documents.jsonl", questions(12, 6));
    let page = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("documents.html");
    let arguments =
        ["--pods", "2", "--kv-tokens", "30000", "--json", "--html", page.to_str().unwrap()];
    let output = plan(&path, &arguments);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let figure = |way: usize, name: &str| report["ways"][way][name].as_f64().unwrap();
    let least = report["least_prefill_tokens"].as_f64().unwrap();
    assert_eq!(report["ways"][2]["name"], "plan");
    assert!(report["sharable"].as_f64().unwrap() > 0.8, "{report}");
    assert!(figure(2, "prefill_tokens") < 1.15 * least, "{report}");
    assert!(figure(0, "prefill_tokens") > 2.0 * least, "{report}");
    assert!(figure(2, "makespan_seconds") < 1.01 * figure(1, "makespan_seconds"), "{report}");
    assert_eq!(report["biggest"][0]["requests"], 6);
    let page = std::fs::read_to_string(page).unwrap();
    assert!(
        page.contains("6 requests · ") && page.contains("<span>user Document 9. Document 9. "),
        "the forest is drawn"
    );
    assert!(page.contains(">pod 1</span>") && page.contains("<rect "), "the pods are drawn");
    assert!(page.contains("Nothing: in the 72 prompts"), "nothing to change");
    assert!(!page.contains("http://") && !page.contains("src="), "nothing from elsewhere");
}

#[test]
fn the_planned_order_has_every_line_once_and_each_document_on_one_pod() {
    let path = file("ordered.jsonl", questions(6, 4));
    let order = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("order.jsonl");
    let output = plan(&path, &["--pods", "2", "--order", order.to_str().unwrap()]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("24 requests for 2 pods; "), "{}", text(&output.stdout));
    let rows: Vec<Value> = std::fs::read_to_string(order)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let number = |row: &Value, key: &str| row[key].as_u64().unwrap();
    let mut lines: Vec<_> = rows.iter().map(|row| number(row, "line")).collect();
    lines.sort_unstable();
    assert_eq!(lines, (1..=24).collect::<Vec<_>>());
    // The documents take turns in the file; line 1 is of document 0.
    let document = |row: &Value| (number(row, "line") - 1) % 6;
    let is_new = |at: usize| at == 0 || document(&rows[at]) != document(&rows[at - 1]);
    assert_eq!((0..rows.len()).filter(|at| is_new(*at)).count(), 6, "each document is one run");
    for (at, row) in rows.iter().enumerate() {
        let shared = number(row, "shared_tokens");
        assert!(if is_new(at) { shared < 100 } else { shared > 5_000 }, "{rows:?}");
    }
    let pods: Vec<_> = rows.iter().map(|row| number(row, "pod")).collect();
    assert_eq!((pods[0], pods[23]), (0, 1));
    assert!(pods.is_sorted(), "{pods:?}");
}

#[test]
fn little_gain_is_called_little() {
    let lines =
        (0..40).map(|number| json!({"prompt": format!("{number} says hello. ").repeat(40)}));
    let output = plan(&file("unrelated.jsonl", lines), &["--pods", "2"]);
    let said = text(&output.stdout);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(said.contains("Planning gains"), "{said}");
    assert!(said.contains("little") || said.contains("nothing"), "{said}");
}

#[test]
fn a_timestamp_at_the_beginning_is_named_with_its_byte() {
    let rules = "Answer politely and in full sentences. ".repeat(30);
    let lines = (0..30).map(|number| {
        let time = format!("2026-11-15T08:{:02}:{:02}Z", number % 60, number * 7 % 60);
        json!({"prompt": format!("Time: {time}\n{rules}\nCase {number}")})
    });
    let output = plan(&file("stamped.jsonl", lines), &["--pods", "2"]);
    let said = text(&output.stdout);
    assert!(said.contains("lint: lines ") && said.contains("(a timestamp)"), "{said}");
    assert!(said.contains("Time: 2026-11-15T08:"), "{said}");
}

#[test]
fn invalid_lines_are_listed_with_their_numbers() {
    let path =
        file("bad.jsonl", [json!({"prompt": "fine"}), json!({"messages": null}), json!([1])]);
    let output = plan(&path, &[]);
    let said = text(&output.stderr);
    assert!(!output.status.success());
    assert!(said.contains("2 invalid lines"), "{said}");
    assert!(said.contains("line 2: none of `messages`, `prompt`, `input`"), "{said}");
    assert!(said.contains("line 3: "), "{said}");
}

#[test]
fn a_prompt_that_fits_no_cache_is_refused_with_the_cure() {
    let path = file("long.jsonl", [json!({"prompt": "word ".repeat(4_000)})]);
    let output = plan(&path, &["--kv-tokens", "2000"]);
    let said = text(&output.stderr);
    assert!(
        !output.status.success()
            && said.contains("more than the 2000 of an engine's KV cache; give a larger"),
        "{said}"
    );
}

#[test]
#[ignore = "is about the release build; ./test long runs it"]
fn a_hundred_thousand_text_prompts_are_planned_within_ten_seconds() {
    let line = |number: usize| {
        let document = format!("The story of {:05} goes on and on. ", number % 2_000).repeat(30);
        let content = format!("{document}\nQuestion {number}: who, what, where, when, and why?");
        json!({"messages": [{"role": "user", "content": content}]})
    };
    let path = file("hundred-thousand.jsonl", (0..100_000).map(line));
    let began = std::time::Instant::now();
    let output = plan(&path, &[]);
    let seconds = began.elapsed().as_secs_f64();
    assert!(output.status.success(), "{}", text(&output.stderr));
    println!("plan: 100000 text prompts in {seconds:.1} s");
    assert!(text(&output.stdout).contains("100000 requests"), "{}", text(&output.stdout));
    assert!(seconds <= 10.0, "{seconds} s");
    std::fs::remove_file(path).unwrap();
}

/// The most memory that a process has had, in KiB, for as long as it can be asked.
fn peak(child: &std::process::Child) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

/// Lines in a file, each with its end of line.
fn lines(name: &str, count: usize, line: impl Fn(usize) -> Value) -> PathBuf {
    use std::io::Write;
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    let mut file = std::io::BufWriter::new(std::fs::File::create(&path).unwrap());
    (0..count).for_each(|number| writeln!(file, "{}", line(number)).unwrap());
    file.flush().unwrap();
    path
}

/// Plans a file, and reads and plans it for a run, each within 512 MiB; then takes it away.
fn stays_small(path: &Path, what: &str, extra: &[&str]) {
    let binary = env!("CARGO_BIN_EXE_wornpath");
    let output = path.with_extension("out");
    let _ = std::fs::remove_file(&output);
    let _ = std::fs::remove_file(output.with_extension("out.progress"));
    let plan = vec!["plan", path.to_str().unwrap(), "--json"];
    // No engine listens there: the run reads, plans, and stops.
    let pods = ["--pod", "http://127.0.0.1:9", "--give-up-after", "1s"];
    let run =
        [&["run", path.to_str().unwrap(), "-o", output.to_str().unwrap()][..], &pods].concat();
    for (arguments, status) in [(plan, 0), (run, 3)] {
        let mut child = Command::new(binary)
            .args(&arguments)
            .args(extra)
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .spawn()
            .unwrap();
        let mut most = 0;
        let began = std::time::Instant::now();
        let ended = loop {
            if let Some(ended) = child.try_wait().unwrap() {
                break ended;
            }
            most = peak(&child).unwrap_or(0).max(most);
            std::thread::sleep(std::time::Duration::from_millis(20));
        };
        let seconds = began.elapsed().as_secs_f64();
        println!("{}: {what} in {seconds:.1} s, {} MiB at most", arguments[0], most >> 10);
        assert_eq!(ended.code(), Some(status), "it came to its end");
        assert!(most > 50 << 10, "it was looked at");
        assert!(most <= 512 << 10, "{} MiB", most >> 10);
    }
    std::fs::remove_file(path).unwrap();
}

#[test]
#[ignore = "writes a gigabyte and takes minutes; ./test long runs it"]
fn a_million_lines_are_planned_and_run_within_512_mib() {
    // Up to 16 blocks each.
    let path = lines("million.jsonl", 1_000_000, |number| {
        let shared = format!("Record {:05}. ", number % 20_000).repeat(40 + number % 20);
        json!({"prompt": format!("{shared}Item {number}?"), "max_tokens": 8})
    });
    stays_small(&path, "a million lines", &[]);
}

#[test]
#[ignore = "writes a gigabyte and takes minutes; ./test long runs it"]
fn three_million_lines_whose_hashes_fill_1_5_gib_are_planned_and_run_within_512_mib() {
    // About 64 blocks of one token each: memory is filled by hashes, not by text.
    let path = lines("three-million.jsonl", 3_000_000, |number| {
        let mut shared = format!("Record {:05}. ", number % 20_000).repeat(12 + number % 8);
        shared.truncate(248 - number % 8);
        json!({"prompt": format!("{shared}{number}?"), "max_tokens": 8})
    });
    stays_small(&path, "three million lines of 64 blocks", &["--block-size", "1"]);
}
