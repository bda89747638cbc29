//! The documentation is correct: commands run, configurations check, links resolve, names exist.
//!
//! A block in `sh` or `console` is run and one in `yaml` is checked, page by page, in order. One
//! that cannot be says why, in a comment before it: `<!-- not run: needs a GPU -->`. `<!-- file:
//! name -->` writes a block to a file first, `<!-- input: name -->` only writes it. Figures of kept
//! runs name their raw files ([`figures`]).
#![allow(clippy::unwrap_used, reason = "a panic is how a test says no")]
#![allow(clippy::disallowed_methods, reason = "commands run in real time")]

mod book;
mod console_block;
mod evidence;
mod figures;
mod help;
mod page;
mod ports;
mod story;

use help::Help;
use page::{Block, Mark, Page, pages, root};
use ports::DISTANCES;
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::sync::Mutex;
use story::story;

/// What commands in pages begin with.
const COMMANDS: [&str; 14] = [
    "wornpath",
    "cargo",
    "curl",
    "./test",
    "bench/run",
    "docker",
    "kubectl",
    "python3",
    "pip",
    "vllm",
    "systemctl",
    "openssl",
    "printf",
    "sudo",
];

#[test]
fn the_commands_and_configurations_of_every_page_work() {
    let pages = pages();
    // Numbered one after another: stories with other numbers use other ports.
    let mut stories = Vec::new();
    for page in &pages {
        stories.extend(story(page, stories.len()));
    }
    assert!(stories.len() > 5, "only {} pages have anything to run", stories.len());
    assert!(stories.len() <= DISTANCES, "two pages would use the same ports");
    let wrong = Mutex::new(Vec::new());
    let rest = Mutex::new(stories.iter());
    let work = || {
        loop {
            let Some(story) = rest.lock().unwrap().next() else { return };
            let found = story.run();
            wrong.lock().unwrap().extend(found);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(work);
        }
    });
    report(&wrong.into_inner().unwrap());
}

#[test]
fn a_block_that_is_not_run_says_why() {
    report(
        &pages()
            .iter()
            .flat_map(|page| page.blocks().into_iter().filter_map(|block| silent(page, &block)))
            .collect::<Vec<_>>(),
    );
}

/// What is wrong with how a block is marked.
fn silent(page: &Page, block: &Block) -> Option<String> {
    let is_command = |line: &str| {
        let word = line.trim_start_matches("$ ").split_whitespace().next();
        word.is_some_and(|word| COMMANDS.contains(&word))
    };
    let why = match (block.language.as_str(), &block.mark) {
        (_, Mark::NotRun(why)) if why.len() < 10 => "the mark does not say why it is not run",
        ("bash" | "shell" | "shell-session" | "zsh", _) => {
            "write `sh`, or `console` with what it says"
        }
        ("" | "text", Mark::None) if block.text.lines().any(is_command) => {
            "it holds commands; write `sh`, or say `<!-- not run: why -->` before it"
        }
        _ => return None,
    };
    Some(format!("{}:{}: {why}", page.path, block.line))
}

#[test]
fn every_option_and_command_that_a_page_names_exists() {
    let help = Help::default();
    let mut wrong = Vec::new();
    for page in &pages() {
        let mut lines: Vec<(usize, String)> =
            page.spans().iter().map(|(number, span)| (*number, (*span).to_owned())).collect();
        for block in page.blocks() {
            let whole = block.text.replace("\\\n", " ");
            lines.extend(
                whole.lines().map(|line| (block.line, line.trim_start_matches("$ ").to_owned())),
            );
        }
        for (number, line) in lines {
            let command = line.split(['|', '>', '#', '…', '&']).next().unwrap_or_default().trim();
            if command.starts_with("wornpath ")
                && let Some(objection) = help.objects(command)
            {
                wrong.push(format!("{}:{number}: {objection}", page.path));
            }
        }
    }
    report(&wrong);
}

/// In tables from other routers' options to ours, the column after the other's is ours.
#[test]
fn every_option_of_ours_in_the_tables_for_movers_exists() {
    let help = Help::default();
    let mut wrong = Vec::new();
    let mut seen = 0;
    for page in pages().iter().filter(|page| page.path == "docs/migrating.md") {
        for (number, line) in page.prose().into_iter().filter(|(_, line)| line.starts_with('|')) {
            let ours = line.split('|').nth(2).unwrap_or_default();
            for option in ours.split('`').skip(1).step_by(2).filter(|span| span.starts_with("--")) {
                seen += 1;
                let option = option.split_whitespace().next().unwrap();
                if !help.serve_takes(option) {
                    wrong.push(format!(
                        "{}:{number}: `wornpath serve` has no `{option}`",
                        page.path
                    ));
                }
            }
        }
    }
    assert!(seen > 20, "only {seen} options were found in the tables");
    report(&wrong);
}

#[test]
fn every_link_inside_the_repository_leads_somewhere() {
    let pages = pages();
    let mut wrong = Vec::new();
    for page in &pages {
        for (number, link) in page.links() {
            if link.contains("://") || link.starts_with("mailto:") {
                continue;
            }
            let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = if path.is_empty() { page.path.clone() } else { beside(&page.path, path) };
            let place = format!("{}:{number}: {link}", page.path);
            if !root().join(&target).exists() {
                wrong.push(format!("{place}: there is no {target}"));
            } else if let Some(page) = pages.iter().find(|page| page.path == target)
                && !anchor.is_empty()
                && !page.anchors().iter().any(|known| known == anchor)
            {
                wrong.push(format!("{place}: {target} has no such heading"));
            }
        }
    }
    report(&wrong);
}

#[test]
fn every_page_says_what_it_is_for_and_is_found_from_the_index() {
    let pages = pages();
    let index = pages.iter().find(|page| page.path == "docs/README.md").expect("docs/README.md");
    let linked: Vec<_> = index.links().iter().map(|(_, link)| beside(&index.path, link)).collect();
    let mut wrong = Vec::new();
    let is_page =
        |page: &&Page| page.path.starts_with("docs/") && !page.path.ends_with("SUMMARY.md");
    for page in pages.iter().filter(is_page) {
        if page.path != index.path && !linked.contains(&page.path) {
            wrong.push(format!("{}: docs/README.md has no link to it", page.path));
        }
        let mut lines = page.text.lines().filter(|line| !line.trim().is_empty());
        let opens = lines.next().is_some_and(|line| line.starts_with("# "))
            && lines.next().is_some_and(|line| {
                !line.starts_with(['#', '|', '<', '-']) && !line.starts_with("```")
            });
        if !opens {
            wrong.push(format!("{}: it does not open with a title and a sentence", page.path));
        }
    }
    report(&wrong);
}

/// Tests, metrics and keys that pages name are those that there are.
#[test]
fn every_test_metric_and_key_that_a_page_names_exists() {
    let sources = rust(&root().join("crates"));
    let metrics = fs::read_to_string(root().join("docs/metrics.md")).unwrap();
    let keys = fs::read_to_string(root().join("docs/configuration.md")).unwrap();
    let mut wrong = Vec::new();
    for page in pages().iter().filter(|page| !page.is_generated()) {
        for (number, span) in page.spans() {
            let is_word = span
                .bytes()
                .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_');
            let problem = if is_word && span.starts_with("wornpath_") {
                (!metrics.contains(&format!("`{span}`"))).then_some("is no metric")
            } else if is_word && span.matches('_').count() > 3 {
                (!sources.contains(&format!("fn {span}"))).then_some("is no test")
            } else {
                (is_key(span, &keys) == Some(false)).then_some("is no key of wornpath.yaml")
            };
            wrong.extend(
                problem.map(|problem| format!("{}:{number}: `{span}` {problem}", page.path)),
            );
        }
    }
    report(&wrong);
}

/// Whether `section.key` exists, if there is such a section.
fn is_key(span: &str, keys: &str) -> Option<bool> {
    let (section, key) = span.split_once('.')?;
    let is_plain =
        |text: &str| text.bytes().all(|byte| byte.is_ascii_lowercase() || b"_[].".contains(&byte));
    let headings = || keys.lines().filter(|line| line.starts_with("## "));
    let name = section.trim_end_matches("[]");
    let is_section =
        headings().any(|heading| heading[3..].split(['.', '[', ',', ':']).next() == Some(name));
    if !is_plain(span) || !is_section || ["md", "yaml", "rs"].contains(&key) {
        return None;
    }
    let last = key.rsplit('.').next().unwrap_or(key);
    Some(
        keys.contains(&format!("| `{last}` |"))
            || headings()
                .any(|heading| heading.contains(span) || heading.contains(&format!(".{last}"))),
    )
}

/// The last column of the glossary: a type or a key that the code has, or a module by its path.
#[test]
fn every_word_of_the_glossary_is_in_the_code() {
    let code = rust(&root().join("crates"));
    let glossary = fs::read_to_string(root().join("docs/glossary.md")).unwrap();
    let mut wrong = Vec::new();
    for line in glossary.lines().filter(|line| line.starts_with("| ")) {
        let names = line.trim_end_matches(" |").rsplit(" | ").next().unwrap_or_default();
        for name in names.split('`').skip(1).step_by(2) {
            let is_there = match name.split_once('/') {
                Some(_) => is_module(name),
                None => code.contains(name.rsplit(['.', ':']).next().unwrap_or(name)),
            };
            if !is_there {
                wrong.push(format!("`{name}` of `{line}` is not in the code"));
            }
        }
    }
    report(&wrong);
}

/// Whether some crate has a module at this path, with or without the crate's name.
fn is_module(path: &str) -> bool {
    let crates = fs::read_dir(root().join("crates")).unwrap();
    crates.map(|entry| entry.unwrap()).any(|entry| {
        let name = entry.file_name().into_string().unwrap();
        let inside = path.strip_prefix(&format!("{name}/")).unwrap_or(path);
        let module = entry.path().join("src").join(inside);
        module.is_dir() || module.with_extension("rs").is_file()
    })
}

/// All Rust files below a folder, one after another.
fn rust(folder: &Path) -> String {
    let mut text = String::new();
    for entry in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        if entry.is_dir() {
            text.push_str(&rust(&entry));
        } else if entry.extension().is_some_and(|end| end == "rs") {
            text.push_str(&fs::read_to_string(&entry).unwrap());
        }
    }
    text
}

/// The path that a link of a page means, from the repository's root.
fn beside(page: &str, link: &str) -> String {
    let joined = Path::new(page).parent().unwrap().join(link.split('#').next().unwrap());
    let mut plain = PathBuf::new();
    for part in joined.components() {
        match part {
            Component::ParentDir => drop(plain.pop()),
            Component::CurDir => {}
            part => plain.push(part),
        }
    }
    plain.to_str().unwrap().replace('\\', "/")
}

fn report(wrong: &[String]) {
    assert!(wrong.is_empty(), "{} found:\n{}", wrong.len(), wrong.join("\n"));
}
