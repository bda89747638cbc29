//! Inputs whose hashes exceed the memory limit.

use super::files::{Job, questions};
use crate::support::engines::Engines;
use std::process::Command;

/// So little that every few lines go to disk.
const LITTLE: [&str; 2] = ["--planning-memory", "2000"];

fn predicted(out: &str) -> &str {
    out.split("predicted: ").nth(1).unwrap().split('%').next().unwrap()
}

#[test]
fn a_plan_made_on_disk_is_the_plan_made_in_memory() {
    let job = Job::new("plan-on-disk", questions(12, 15));
    let folder = job.input.with_file_name("scratch");
    std::fs::create_dir_all(&folder).unwrap();
    let plan = |extra: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_wornpath"));
        command.arg("plan").arg(&job.input).args(["--pods", "3", "--json"]).args(extra);
        let output = command.env("TMPDIR", &folder).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(plan(&LITTLE), plan(&[]));
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0, "nothing is left");
    // It did need that folder.
    std::fs::remove_dir(&folder).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_wornpath"));
    let command = command.arg("plan").arg(&job.input).args(LITTLE).env("TMPDIR", &folder);
    let error = String::from_utf8(command.output().unwrap().stderr).unwrap();
    assert!(error.contains("too many prompts to plan in memory"), "{error}");
    assert!(error.contains(folder.to_str().unwrap()), "{error}");
}

#[test]
fn a_run_planned_on_disk_answers_every_line_and_is_resumed() {
    let engines = Engines::start_at("20", &["--engines", "2"]);
    let whole = Job::new("in-memory", questions(8, 15));
    let in_memory = whole.run(&engines, &[]);
    assert!(in_memory.is(0), "{in_memory:?}");
    let job = Job::new("on-disk", questions(8, 15));
    let mut child = job.start(&engines, &[&LITTLE[..], &["--window", "3"]].concat());
    job.wait_for_lines(20);
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(!job.beside(".spill").exists(), "nothing is left after a death");
    let output = job.run(&engines, &[&LITTLE[..], &["--resume"]].concat());
    assert!(output.is(0), "{output:?}");
    assert_eq!(job.ids(), (0..120).map(|id| format!("\"id-{id}\"")).collect::<Vec<_>>());
    let again = Job::new("on-disk-whole", questions(8, 15));
    let on_disk = again.run(&engines, &LITTLE);
    assert_eq!(predicted(&on_disk.out), predicted(&in_memory.out), "{on_disk:?}");
    assert!(!again.beside(".spill").exists());
}

/// A file system of so many KiB under the folder of a job's output.
fn on_small_disk(job: &Job, kib: usize) -> Option<Command> {
    let small = || {
        let mut command = Command::new("unshare");
        let mount = format!("mount -t tmpfs -o size={kib}k none \"$0\" && exec \"$@\"");
        command.args(["--map-root-user", "--mount", "sh", "-c", &mount]);
        command.arg(job.output().parent().unwrap());
        command
    };
    small().arg("true").status().is_ok_and(|status| status.success()).then(small)
}

#[test]
fn a_full_disk_for_spilled_hashes_is_reported() {
    let job = Job::new("no-room", questions(40, 30));
    let input = job.input.with_file_name("../no-room.jsonl");
    std::fs::copy(&job.input, &input).unwrap();
    let Some(mut command) = on_small_disk(&job, 16) else {
        eprintln!("NOT CHECKED: a full disk while planning, because no file system can be mounted");
        return;
    };
    command.arg(env!("CARGO_BIN_EXE_wornpath")).arg("run").arg(&input);
    command.arg("-o").arg(job.output()).args(["--pod", "http://127.0.0.1:9"]).args(LITTLE);
    let output = command.output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success());
    assert!(error.contains("has no space for more than 0 MiB of their hashes"), "{error}");
    assert!(error.contains("free some there, or write the output elsewhere"), "{error}");
}
