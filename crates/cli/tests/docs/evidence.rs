//! The evidence page is true: what it says `./test` runs is run there, every result file says where
//! it comes from, and figures that are older than the code they speak of are listed as such.
//!
//! Age is counted in commits to the crates that a file speaks of, not in days: figures do not age
//! while the code stays as it is. `UPDATE=1 cargo test -p wornpath --test docs evidence` writes
//! the list anew. Between two ages either is accepted, so that not every commit changes the page.

use crate::page::root;
use crate::report;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

/// Commits to the crates concerned up to which a figure must not be listed as old.
const FRESH_COMMITS: usize = 30;

/// Commits to the crates concerned after which a figure must be listed as old.
const OLD_COMMITS: usize = 60;

/// The result files, and the folders whose code they speak of.
const SUBJECTS: &[(&str, &[&str])] = &[
    ("brokers.txt", &["crates/events", "crates/gateway"]),
    ("chaos.txt", &["crates/exchange", "crates/execution", "crates/gateway"]),
    ("churn.txt", &["crates/execution", "crates/gateway"]),
    ("epp-churn.txt", &["crates/execution", "crates/gateway"]),
    ("dashboard.txt", &["crates/admin", "crates/gateway"]),
    ("decision.txt", &["crates/blocks", "crates/index", "crates/routing"]),
    ("disaggregation.txt", &["crates/routing", "crates/sim"]),
    ("epp.txt", &["crates/gateway", "crates/routing"]),
    ("events.txt", &["crates/events", "crates/index"]),
    ("fidelity.txt", &["crates/blocks", "crates/events", "crates/gateway", "crates/index"]),
    ("fuzz.txt", &["crates", "fuzz"]),
    ("gateway-busy.txt", &["crates/execution", "crates/gateway"]),
    ("gateway-delays-before.txt", &["crates/execution", "crates/gateway"]),
    ("gateway-delays.txt", &["crates/execution", "crates/gateway"]),
    ("gateway-earlier.txt", &["crates/execution", "crates/gateway"]),
    ("gateway.txt", &["crates/blocks", "crates/execution", "crates/gateway", "crates/routing"]),
    ("gpu.txt", &["crates/events", "crates/gateway", "crates/routing"]),
    ("index-full.txt", &["crates/index"]),
    ("index.txt", &["crates/blocks", "crates/index"]),
    ("offline-long.txt", &["crates/jobs", "crates/planner"]),
    ("offline.txt", &["crates/jobs", "crates/planner", "crates/sim"]),
    ("promises.txt", &["crates/events", "crates/planner", "crates/routing", "crates/sim"]),
    ("real-gain.txt", &["crates/gateway", "crates/routing", "profiles"]),
    ("replay-scale.txt", &["crates/index", "crates/routing", "crates/sim"]),
    ("routing-made.txt", &["crates/routing", "crates/sim"]),
    ("routing.txt", &["crates/routing", "crates/sim", "profiles"]),
    ("sidecar.txt", &["python/wornpath/sidecar"]),
    ("soak.txt", &["crates/execution", "crates/gateway"]),
    ("test-long.txt", &["crates"]),
    ("tokenization.txt", &["crates/blocks"]),
    ("tokenizers.txt", &["crates/blocks"]),
];

const PAGE: &str = "docs/evidence.md";
const LIST_BEGINS: &str = "<!-- old figures: begin -->\n";
const LIST_ENDS: &str = "<!-- old figures: end -->";

fn text(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// A row of the page: what was run, and what runs it again.
struct Row {
    line: usize,
    commands: Vec<String>,
    runs_in: String,
}

fn rows(page: &str) -> Vec<Row> {
    let spans = |cell: &str| cell.split('`').skip(1).step_by(2).map(str::to_owned).collect();
    let row = |(line, text): (usize, &str)| {
        let cells: Vec<_> = text.strip_prefix("| ")?.split(" | ").collect();
        let [_, commands, runs_in, _, _] = cells[..] else { return None };
        Some(Row { line, commands: spans(commands), runs_in: runs_in.to_owned() })
    };
    (1..).zip(page.lines()).filter_map(row).filter(|row| row.runs_in != "run by").collect()
}

#[test]
fn what_the_evidence_page_says_runs_a_claim_runs_it() {
    let rows = rows(&text(PAGE));
    assert!(rows.len() > 30, "only {} rows were found in {PAGE}", rows.len());
    let script = text("test");
    let mut wrong = Vec::new();
    for Row { line, commands, runs_in } in rows {
        let mut add = |problem: String| wrong.push(format!("{PAGE}:{line}: {problem}"));
        if commands.is_empty() {
            add("no command".to_owned());
        }
        let steps = runs_in.trim_matches('`').strip_prefix("./test long ").map(str::to_owned);
        for command in &commands {
            let problem = match (runs_in.as_str(), &steps) {
                ("`./test`", _) => not_in_test(command),
                ("by hand", _) => not_by_hand(command),
                (_, Some(step)) => not_in_step(command, step, &script),
                _ => Some(format!("`{runs_in}` is none of `./test`, `./test long STEP`, by hand")),
            };
            problem.into_iter().for_each(&mut add);
        }
    }
    report(&wrong);
}

/// Why `./test` does not run a command: it runs every test of the workspace, as it is.
fn not_in_test(command: &str) -> Option<String> {
    let words: Vec<_> = command.split_whitespace().collect();
    if !command.starts_with("cargo nextest run ") && !command.starts_with("cargo test ") {
        return (command != "./test").then(|| format!("`./test` does not run `{command}`"));
    }
    if let Some(word) =
        words.iter().find(|word| ["--release", "--profile", "--ignored", "--bench"].contains(word))
    {
        return Some(format!("`./test` runs nothing with `{word}`"));
    }
    unknown_tests(&words)
}

/// The package, test target or filter of a command that does not exist.
fn unknown_tests(words: &[&str]) -> Option<String> {
    let after = |option: &str| {
        let at = words.iter().position(|word| *word == option)?;
        words.get(at + 1).copied()
    };
    let package = match after("-p")? {
        "wornpath" => "cli",
        other => other.strip_prefix("wornpath-")?,
    };
    let folder = match package {
        "fuzz" => root().join("fuzz"),
        _ => root().join("crates").join(package),
    };
    if !folder.is_dir() {
        return Some(format!("there is no package `{package}`"));
    }
    let known = names(&folder);
    let mut rest = words.iter().skip(if words[1] == "nextest" { 3 } else { 2 });
    while let Some(word) = rest.next() {
        match *word {
            "--" => return None,
            "-p" | "--features" => drop(rest.next()),
            "--test" => {
                let target = rest.next()?;
                let place = folder.join("tests").join(target);
                if !place.is_dir() && !place.with_extension("rs").is_file() {
                    return Some(format!("`{package}` has no tests called `{target}`"));
                }
            }
            option if option.starts_with('-') => {}
            filter => {
                let parts = filter.split("::").filter(|part| !part.is_empty());
                for part in parts {
                    if !known.iter().any(|name| name.contains(part)) {
                        return Some(format!("`{package}` has no test or module `{filter}`"));
                    }
                }
            }
        }
    }
    None
}

/// The names of all functions and files below a folder.
fn names(folder: &Path) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    for path in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        let stem = path.file_stem().unwrap().to_str().unwrap();
        if path.is_dir() && stem != "corpus" {
            all.insert(stem.to_owned());
            all.extend(names(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            all.insert(stem.to_owned());
            let text = fs::read_to_string(&path).unwrap();
            let functions =
                text.split("fn ").skip(1).filter_map(|rest| rest.split(['(', '<']).next());
            all.extend(functions.map(str::to_owned));
        }
    }
    all
}

/// Why a step of `./test long` does not run a command: the step sets its variables and names its
/// tests.
fn not_in_step(command: &str, step: &str, script: &str) -> Option<String> {
    let step = step.trim_matches('"');
    let Some(line) = script.lines().find(|line| line.contains(&format!("step \"{step}\" "))) else {
        return Some(format!("`./test long` has no step `{step}`"));
    };
    let function = line.split(&format!("step \"{step}\" ")).nth(1)?.split_whitespace().next()?;
    let body = script.split(&format!("\n{function}() {{")).nth(1)?;
    let body = body.split("\n}").next()?.split("\n\n").next()?;
    let words = command.split_whitespace();
    let wanted = words.filter(|word| word.contains('=') || word.starts_with("wornpath"));
    let lacks = |word: &str| match word.split_once('=') {
        Some((variable, _)) => !body.contains(&format!("{variable}=")),
        None => !body.contains("--workspace") && !body.contains(word),
    };
    let missing = wanted.into_iter().find(|word| lacks(word))?;
    Some(format!("the step `{step}` of `./test long` has no `{missing}`"))
}

/// Why a command cannot be run by hand: its program does not exist.
fn not_by_hand(command: &str) -> Option<String> {
    let words: Vec<_> = command.split_whitespace().skip_while(|word| word.contains('=')).collect();
    if let Some(at) = words.iter().position(|word| *word == "--example") {
        let name = words.get(at + 1)?;
        let crates = fs::read_dir(root().join("crates")).unwrap();
        let file = format!("examples/{name}.rs");
        let exists =
            crates.map(|entry| entry.unwrap().path()).any(|path| path.join(&file).is_file());
        return (!exists).then(|| format!("there is no example `{name}`"));
    }
    let program = words.iter().find(|word| !["cargo", "python3"].contains(word))?;
    let is_path = program.contains('/');
    (is_path && !root().join(program).is_file()).then(|| format!("there is no `{program}`"))
}

/// The value of a line at the head of a result file: `commit: …`, or `commit   …`.
fn head<'a>(result: &'a str, key: &str) -> Option<&'a str> {
    let value = |line: &'a str| {
        let rest = line.strip_prefix(key)?;
        let value = rest.strip_prefix(':').or_else(|| rest.strip_prefix("  "))?.trim();
        (!value.is_empty()).then_some(value)
    };
    result.lines().take(12).find_map(value)
}

#[test]
fn every_result_file_says_its_date_commit_machine_and_command() {
    let mut wrong = Vec::new();
    let mut files = BTreeSet::new();
    for entry in fs::read_dir(root().join("bench/results")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let result = text(&format!("bench/results/{name}"));
        for keys in [&["date"][..], &["commit"], &["cpu", "machine"], &["command"]] {
            if !keys.iter().any(|key| head(&result, key).is_some()) {
                wrong.push(format!("bench/results/{name}: no line `{}: …`", keys.join("` or `")));
            }
        }
        files.insert(name);
    }
    let known: BTreeSet<_> = SUBJECTS.iter().map(|(name, _)| (*name).to_owned()).collect();
    for name in files.symmetric_difference(&known) {
        wrong.push(format!(
            "bench/results/{name}: either the file or its line in SUBJECTS is missing"
        ));
    }
    report(&wrong);
}

/// What git prints, if it succeeds.
fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").current_dir(root()).args(arguments).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Of the commits that a file names and the history has, the one with most commits to the folders
/// since, and their number. Of a file that names none, because its commits were rebased: the
/// commit that changed it last.
fn oldest_commit(path: &str, result: &str, folders: &[&str]) -> Option<(usize, String)> {
    let hashes = head(result, "commit")?.split(|sign: char| !sign.is_ascii_hexdigit());
    let known = hashes.filter(|word| {
        word.len() >= 7 && git(&["merge-base", "--is-ancestor", word, "HEAD"]).is_some()
    });
    let oldest = known.map(|hash| (commits_since(hash, folders), hash.to_owned())).max();
    oldest.or_else(|| {
        let hash =
            git(&["log", "-1", "--format=%h", "--", path]).filter(|hash| !hash.is_empty())?;
        Some((commits_since(&hash, folders), hash))
    })
}

/// The commits to these folders since one.
fn commits_since(commit: &str, folders: &[&str]) -> usize {
    let range = format!("{commit}..HEAD");
    let count = [&["rev-list", "--count", "--no-merges", &range, "--"], folders].concat();
    git(&count).and_then(|count| count.parse().ok()).unwrap_or(usize::MAX)
}

#[test]
fn figures_older_than_the_code_they_speak_of_are_listed_on_the_page() {
    if git(&["rev-parse", "--is-shallow-repository"]).as_deref() != Some("false") {
        println!("NOT CHECKED: the age of figures, because this copy has no history of commits");
        return;
    }
    let page = text(PAGE);
    let (before, rest) = page.split_once(LIST_BEGINS).expect("the page has a list of old figures");
    let (written, after) = rest.split_once(LIST_ENDS).expect("the list ends");
    let update = std::env::var_os("UPDATE").is_some();
    let mut list = String::new();
    for (name, folders) in SUBJECTS {
        let path = format!("bench/results/{name}");
        let result = text(&path);
        let oldest = oldest_commit(&path, &result, folders);
        let age = oldest.as_ref().map_or(0, |(age, _)| *age);
        let is_listed = written.contains(&format!("| [{name}]("));
        let limit = if is_listed || update { FRESH_COMMITS } else { OLD_COMMITS };
        if age <= limit {
            continue;
        }
        let date = head(&result, "date").unwrap_or_default();
        let date = date.get(..10).unwrap_or(date);
        let commit = oldest.map_or_else(String::new, |(_, commit)| format!("`{commit}`"));
        let folders = folders.iter().map(|folder| format!("`{folder}`")).collect::<Vec<_>>();
        let folders = folders.join(", ");
        list.push_str(&format!("| [{name}](../{path}) | {date} | {commit} | {folders} |\n"));
    }
    let table = format!("| figures | of | commit | older than |\n|---|---|---|---|\n{list}");
    if written == table {
        return;
    }
    if update {
        let page = format!("{before}{LIST_BEGINS}{table}{LIST_ENDS}{after}");
        fs::write(root().join(PAGE), page).unwrap();
        return;
    }
    let cure = "measure again, or write the list with `UPDATE=1 cargo test -p wornpath --test docs evidence`";
    report(&[format!(
        "{PAGE}: the figures with more than {OLD_COMMITS} commits since are\n{table}{cure}"
    )]);
}
