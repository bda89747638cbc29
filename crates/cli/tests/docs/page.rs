//! Markdown as far as the rules need it: blocks of code with their marks, spans of code, links,
//! headings.

use std::fs;
use std::path::{Path, PathBuf};

/// One Markdown file.
pub(crate) struct Page {
    /// From the repository's root, with forward slashes.
    pub(crate) path: String,
    pub(crate) text: String,
}

/// A fenced block of code.
pub(crate) struct Block {
    /// The line of its fence.
    pub(crate) line: usize,
    /// What stands behind the fence, such as `sh`.
    pub(crate) language: String,
    pub(crate) text: String,
    pub(crate) mark: Mark,
}

/// What the comment before a block says of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Mark {
    /// Nothing: it is run or checked.
    None,
    /// `<!-- not run: why -->`
    NotRun(String),
    /// `<!-- file: name -->`: it is written there, and checked if it is YAML.
    File(String),
    /// `<!-- input: name -->`: it is written there.
    Input(String),
}

impl Page {
    /// Every fenced block. Fences in lists are indented, and so is what they hold.
    pub(crate) fn blocks(&self) -> Vec<Block> {
        let mut blocks = Vec::new();
        let mut lines = (1..).zip(self.text.lines());
        let mut before = "";
        while let Some((number, line)) = lines.next() {
            if let Some(language) = line.trim_start().strip_prefix("```") {
                let indent = line.len() - line.trim_start().len();
                let mut text = String::new();
                for (_, line) in lines.by_ref() {
                    if line.trim_start().starts_with("```") {
                        break;
                    }
                    text.push_str(line.get(indent..).unwrap_or_default());
                    text.push('\n');
                }
                let language = language.trim().to_owned();
                let mark = mark(before);
                blocks.push(Block { line: number, language, text, mark });
                before = "";
            } else if !line.trim().is_empty() {
                before = line.trim();
            }
        }
        blocks
    }

    /// The lines outside of blocks, numbered from one.
    pub(crate) fn prose(&self) -> Vec<(usize, &str)> {
        let mut is_code = false;
        let outside = |(_, line): &(usize, &str)| {
            let is_fence = line.trim_start().starts_with("```");
            is_code ^= is_fence;
            !is_code && !is_fence
        };
        (1..).zip(self.text.lines()).filter(outside).collect()
    }

    /// What stands in backticks outside of blocks.
    pub(crate) fn spans(&self) -> Vec<(usize, &str)> {
        let spans = |(number, line)| {
            let line: &str = line;
            line.split('`').skip(1).step_by(2).map(move |span| (number, span))
        };
        self.prose().into_iter().flat_map(spans).collect()
    }

    /// Where links lead, as written.
    pub(crate) fn links(&self) -> Vec<(usize, &str)> {
        let links = |(number, line)| {
            let line: &str = line;
            let targets = line.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
            targets.map(move |(target, _)| (number, target))
        };
        self.prose().into_iter().flat_map(links).collect()
    }

    /// What links to its headings end in.
    pub(crate) fn anchors(&self) -> Vec<String> {
        let heading = |(_, line): (usize, &str)| {
            let title = line.trim_start_matches('#');
            (title.len() < line.len()).then(|| anchor(title.trim()))
        };
        self.prose().into_iter().filter_map(heading).collect()
    }

    /// Whether a test of another crate writes it from the code, and so answers for what it says.
    pub(crate) fn is_generated(&self) -> bool {
        self.text.contains("Written from the code by a test; do not edit.")
    }
}

/// As GitHub makes them: lower case, hyphens for blanks, and nothing but words.
fn anchor(title: &str) -> String {
    let kept = |sign: &char| sign.is_alphanumeric() || " -_".contains(*sign);
    title.to_lowercase().chars().filter(kept).collect::<String>().replace(' ', "-")
}

fn mark(line: &str) -> Mark {
    let comment = line.strip_prefix("<!--").and_then(|rest| rest.strip_suffix("-->"));
    let Some((kind, what)) = comment.and_then(|comment| comment.split_once(':')) else {
        return Mark::None;
    };
    let what = what.trim().to_owned();
    match kind.trim() {
        "not run" => Mark::NotRun(what),
        "file" => Mark::File(what),
        "input" => Mark::Input(what),
        _ => Mark::None,
    }
}

/// Every Markdown file of the repository, build output aside.
pub(crate) fn pages() -> Vec<Page> {
    let mut pages = Vec::new();
    collect(&root(), &mut pages);
    pages.sort_by(|a, b| a.path.cmp(&b.path));
    assert!(pages.len() > 10, "found only {} pages: the rules check nothing", pages.len());
    pages
}

fn collect(folder: &Path, pages: &mut Vec<Page>) {
    for entry in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        let name = entry.file_name().unwrap().to_str().unwrap();
        if entry.is_dir() && !["target", "corpus"].contains(&name) && !name.starts_with('.') {
            collect(&entry, pages);
        } else if name.ends_with(".md") {
            let path = entry.strip_prefix(root()).unwrap().to_str().unwrap().replace('\\', "/");
            pages.push(Page { path, text: fs::read_to_string(&entry).unwrap() });
        }
    }
}

pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

#[test]
fn blocks_marks_and_links_are_read() {
    let text = "# A title\n<!-- not run: it needs a GPU -->\n\n  ```sh\n  one\n    two\n  ```\n`x` [y](z.md)\n";
    let page = Page { path: String::new(), text: text.to_owned() };
    let blocks = page.blocks();
    assert_eq!(blocks[0].text, "one\n  two\n");
    assert_eq!(blocks[0].mark, Mark::NotRun("it needs a GPU".to_owned()));
    assert_eq!((page.spans(), page.links()), (vec![(8, "x")], vec![(8, "z.md")]));
    assert_eq!(page.anchors(), ["a-title"]);
}
