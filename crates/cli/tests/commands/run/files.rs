//! Files of prompts, and the binary that runs them.

use crate::support::engines::Engines;
use crate::support::gateway::eventually_within;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// An input and where its results go.
pub(crate) struct Job {
    pub(crate) input: PathBuf,
    pub(crate) output: PathBuf,
}

/// How a run ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) status: Option<i32>,
    pub(crate) out: String,
    pub(crate) error: String,
}

impl Ended {
    pub(crate) fn is(&self, status: i32) -> bool {
        self.status == Some(status)
    }
}

/// Questions about documents, the documents taking turns, as batch lines.
pub(crate) fn questions(documents: usize, each: usize) -> impl Iterator<Item = Value> {
    (0..documents * each).map(move |number| {
        let document = format!("Document {}. ", number % documents).repeat(100);
        let content = format!("{document}\nQuestion {number}: why?");
        json!({
            "custom_id": format!("id-{number}"),
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": {"max_tokens": 12, "messages": [{"role": "user", "content": content}]},
        })
    })
}

impl Job {
    /// In a folder of its own, without anything from before.
    pub(crate) fn new(name: &str, lines: impl IntoIterator<Item = Value>) -> Self {
        let _ = std::fs::remove_dir_all(folder(name));
        Self::with(name, lines)
    }

    /// Another input for the same output.
    pub(crate) fn with(name: &str, lines: impl IntoIterator<Item = Value>) -> Self {
        let folder = folder(name);
        std::fs::create_dir_all(&folder).unwrap();
        let job = Self { input: folder.join("in.jsonl"), output: folder.join("out.jsonl") };
        let text: Vec<_> = lines.into_iter().map(|line| line.to_string()).collect();
        std::fs::write(&job.input, text.join("\n")).unwrap();
        job
    }

    pub(crate) fn output(&self) -> &PathBuf {
        &self.output
    }

    pub(crate) fn beside(&self, suffix: &str) -> PathBuf {
        PathBuf::from(format!("{}{suffix}", self.output.display()))
    }

    pub(crate) fn errors(&self) -> PathBuf {
        self.beside(".errors.jsonl")
    }

    pub(crate) fn run(&self, engines: &Engines, arguments: &[&str]) -> Ended {
        self.end(self.start(engines, arguments))
    }

    pub(crate) fn run_at(&self, urls: &[&str], arguments: &[&str]) -> Ended {
        self.end(self.start_at(urls, arguments))
    }

    pub(crate) fn start(&self, engines: &Engines, arguments: &[&str]) -> Child {
        let urls: Vec<_> = engines.engines.iter().map(|at| format!("http://{}", at.http)).collect();
        self.start_at(&urls.iter().map(String::as_str).collect::<Vec<_>>(), arguments)
    }

    fn start_at(&self, urls: &[&str], arguments: &[&str]) -> Child {
        Command::new(env!("CARGO_BIN_EXE_wornpath"))
            .arg("run")
            .arg(&self.input)
            .arg("-o")
            .arg(&self.output)
            .args(urls.iter().flat_map(|url| ["--pod", url]))
            .args(arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    }

    pub(crate) fn end(&self, child: Child) -> Ended {
        let output = child.wait_with_output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Ended { status: output.status.code(), out: text(output.stdout), error: text(output.stderr) }
    }

    /// The lines of the output, as they stand there; a torn last one left out.
    pub(crate) fn lines(&self) -> Vec<String> {
        let text = std::fs::read(&self.output).unwrap_or_default();
        let text = String::from_utf8_lossy(&text).into_owned();
        text.split_inclusive('\n').filter(|line| line.ends_with('\n')).map(str::to_owned).collect()
    }

    /// Lines of the output that the log has too, and that therefore stay: those that stood there
    /// before its next entry, or when there was nothing more to publish.
    pub(crate) fn logged_lines(&self) -> Vec<String> {
        let entries = || std::fs::metadata(self.beside(".progress")).map_or(0, |log| log.len());
        let lines = self.lines();
        let before = entries();
        let deadline = Instant::now() + Duration::from_secs(5);
        while entries() == before && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
        lines
    }

    pub(crate) fn wait_for_lines(&self, lines: usize) {
        let what = format!("there are {lines} lines");
        eventually_within(Duration::from_secs(20), &what, || self.lines().len() >= lines);
    }

    pub(crate) fn results(&self) -> Vec<Value> {
        self.lines().iter().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// By the number in their ids.
    pub(crate) fn results_by_id(&self) -> Vec<Value> {
        let number =
            |line: &Value| line["custom_id"].as_str().unwrap()[3..].parse::<u32>().unwrap();
        let mut results = self.results();
        results.sort_by_key(number);
        results
    }

    /// All ids, as JSON, by their numbers.
    pub(crate) fn ids(&self) -> Vec<String> {
        self.results_by_id().iter().map(|line| line["custom_id"].to_string()).collect()
    }
}

fn folder(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("run").join(name)
}
