//! A page as a shell script: its commands in order, in one folder of its own, against processes of
//! its own.

use super::console_block::{ConsoleCommand, matches, parse};
use super::page::{Block, Mark, Page, root};
use super::ports::{distance, moved};
use rustix::process::{Pid, Signal, kill_process_group};
use std::fmt::Write as _;
use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const WITHIN: Duration = Duration::from_secs(90);

/// A process that was just started may not listen yet: `curl` tries again. What is refused fails,
/// except where the page shows what is said.
const PRELUDE: &str = r#"set -Eeuo pipefail
at=start
trap 'echo "$at: status $?: $BASH_COMMAND" >&2' ERR
curl() {
  local try status=0 fail=--fail-with-body
  [ -z "${shown-}" ] || fail=
  for try in $(seq 80); do
    status=0
    command curl -sS --max-time 20 --retry 4 --retry-max-time 8 $fail "$@" || status=$?
    [ "$status" = 7 ] || return "$status"
    sleep 0.1
  done
  return 7
}
"#;

/// A page's commands.
pub(crate) struct Story {
    page: String,
    script: String,
    expected: Vec<(usize, ConsoleCommand)>,
    folder: PathBuf,
}

/// The story of a page, if it has anything to run.
pub(crate) fn story(page: &Page, number: usize) -> Option<Story> {
    let distance = distance(&page.text, number);
    let folder =
        std::env::temp_dir().join(format!("wornpath-docs-{}-{number}", std::process::id()));
    let mut story =
        Story { page: page.path.clone(), script: String::new(), expected: Vec::new(), folder };
    for block in page.blocks() {
        let block = Block { text: moved(&block.text, distance), ..block };
        story.tell(page, &block);
    }
    (!story.script.is_empty()).then_some(story)
}

impl Story {
    fn tell(&mut self, page: &Page, block: &Block) {
        let place = format!("at='{}:{}'\n", self.page, block.line);
        let write = |name: &str| {
            format!("cat > '{name}' <<'end of the block'\n{}end of the block\n", block.text)
        };
        let script = match (block.language.as_str(), &block.mark) {
            (_, Mark::NotRun(_)) => return,
            (_, Mark::Input(name)) => write(name),
            ("yaml", Mark::File(name)) => format!("{}wornpath check '{name}'\n", write(name)),
            ("yaml", Mark::None) if !page.is_generated() => {
                let name = format!("line-{}.yaml", block.line);
                format!("{}wornpath check '{name}'\n", write(&name))
            }
            (_, Mark::File(name)) => write(name),
            ("sh", Mark::None) => block.text.clone(),
            ("console", Mark::None) => self.show(block),
            _ => return,
        };
        self.script.push_str(&place);
        self.script.push_str(&script);
    }

    /// What a command says is kept, and compared when the page has ended.
    fn show(&mut self, block: &Block) -> String {
        // A request is noted when its client already has the answer; a page may ask for it at once.
        let mut script = "sleep 0.2\n".to_owned();
        for command in parse(&block.text) {
            let file = format!("said.{}", self.expected.len());
            let line = &command.command;
            let _ = writeln!(script, "shown=yes\n{{ {line}\n}} > {file} 2>&1 || true\nshown=");
            self.expected.push((block.line, command));
        }
        script
    }

    /// Runs it, and says what went wrong.
    pub(crate) fn run(&self) -> Vec<String> {
        fs::create_dir_all(self.folder.join("bin")).unwrap();
        symlink(env!("CARGO_BIN_EXE_wornpath"), self.folder.join("bin/wornpath")).unwrap();
        symlink(root().join("profiles"), self.folder.join("profiles")).unwrap();
        symlink(root().join("examples"), self.folder.join("examples")).unwrap();
        // Any tokenizer does where a page says which folder to give.
        symlink(root().join("crates/blocks/tests/models/tiny-llama"), self.folder.join("Qwen3-8B"))
            .unwrap();
        fs::write(self.folder.join("story.sh"), format!("{PRELUDE}{}", self.script)).unwrap();
        let wrong = match self.play() {
            Ok(()) => self.compared(),
            Err(wrong) => vec![wrong],
        };
        fs::remove_dir_all(&self.folder).unwrap();
        wrong
    }

    /// What the commands leave behind ends with them: all are one group of processes.
    fn play(&self) -> Result<(), String> {
        let log = File::create(self.folder.join("log")).unwrap();
        let path =
            format!("{}:{}", self.folder.join("bin").display(), std::env::var("PATH").unwrap());
        let mut shell = Command::new("bash")
            .arg("story.sh")
            .current_dir(&self.folder)
            .env("PATH", path)
            .env("HOME", &self.folder)
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .process_group(0)
            .spawn()
            .unwrap();
        let started = Instant::now();
        let mut ended = None;
        while ended.is_none() && started.elapsed() < WITHIN {
            ended = shell.try_wait().unwrap();
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = kill_process_group(Pid::from_child(&shell), Signal::KILL);
        shell.wait().unwrap();
        let log = fs::read_to_string(self.folder.join("log")).unwrap_or_default();
        let page = &self.page;
        match ended {
            Some(status) if status.success() => Ok(()),
            Some(_) => Err(format!("{page} does not work:\n{log}")),
            None => Err(format!("{page} did not end within {WITHIN:?}:\n{log}")),
        }
    }

    fn compared(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        for (number, (line, command)) in self.expected.iter().enumerate() {
            let output = fs::read_to_string(self.folder.join(format!("said.{number}"))).unwrap();
            if !matches(&command.expected, &output) {
                let ConsoleCommand { command, expected } = command;
                let page = &self.page;
                wrong.push(format!(
                    "{page}:{line}: `{command}` should print\n{expected}\nand printed\n{output}"
                ));
            }
        }
        wrong
    }
}
