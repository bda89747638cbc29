//! Files of the folder that were cut, changed or lost: an error names them, and the rest is served.

use super::{folder, line, text};
use crate::support::engines::{Engines, Exchange};
use crate::support::gateway::{Gateway, eventually};
use serde_json::{Value, json};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn start(engines: &Engines, kept: &Path) -> Gateway {
    Gateway::in_front_of(engines, &["--batches", kept.to_str().unwrap()])
}

fn verify(kept: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_wornpath"));
    command.args(["batch", "verify"]).arg(kept).output().unwrap()
}

/// Uploads lines.
fn upload(gateway: &Gateway, lines: &[Value]) -> String {
    let lines: Vec<_> = lines.iter().map(Value::to_string).collect();
    let form = format!(
        "--b\r\ncontent-disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n--b\r\ncontent-disposition: form-data; \
         name=\"file\"; filename=\"in.jsonl\"\r\n\r\n{}\r\n--b--\r\n",
        lines.join("\n"),
    );
    let head =
        "POST /v1/files HTTP/1.1\r\nhost: x\r\ncontent-type: multipart/form-data; boundary=b\r\n";
    let answer = Exchange::send(&gateway.address, head, &form).finish().unwrap();
    answer.json()["id"].as_str().unwrap().to_owned()
}

fn create(gateway: &Gateway, file: &str) -> String {
    let new = json!({
        "input_file_id": file,
        "endpoint": "/v1/chat/completions",
        "completion_window": "24h",
    });
    let made = gateway.post("/v1/batches", &new);
    made.json()["id"].as_str().unwrap_or_else(|| panic!("{}", made.text)).to_owned()
}

/// Waits for the end of a batch.
fn ended(gateway: &Gateway, id: &str) -> Value {
    let state = || gateway.get(&format!("/v1/batches/{id}")).json();
    let is_final = |state: &Value| {
        let status = state["status"].as_str().unwrap().to_owned();
        ["completed", "failed", "expired", "cancelled"].contains(&&*status)
    };
    eventually("the batch has ended", || is_final(&state()));
    state()
}

/// Changes one byte of a file.
fn flip(path: &Path, offset: u64) {
    let file = std::fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset).unwrap();
    // Text stays text.
    file.write_all_at(&[byte[0] ^ 1], offset).unwrap();
}

fn cut(path: &Path, length: u64) {
    std::fs::OpenOptions::new().write(true).open(path).unwrap().set_len(length).unwrap();
}

fn stored(kept: &Path, file: &str) -> PathBuf {
    kept.join("files").join(file)
}

fn times(gateway: &Gateway, text: &str) -> usize {
    gateway.log().matches(text).count()
}

#[test]
fn an_input_cut_at_a_line_boundary_fails_its_batch_and_names_the_file() {
    let engines = Engines::start(&[]);
    let kept = folder("cut-input");
    let gateway = start(&engines, &kept);
    let lines: Vec<_> = (0..100).map(line).collect();
    let file = upload(&gateway, &lines);
    let whole = upload(&gateway, &lines[..2]);
    let half: usize = lines[..50].iter().map(|line| line.to_string().len() + 1).sum();
    cut(&stored(&kept, &file), half as u64);
    let failed = ended(&gateway, &create(&gateway, &file));
    assert_eq!(failed["status"], "failed", "{failed}");
    let problem = &failed["errors"]["data"][0];
    assert_eq!(problem["code"], "input_file_damaged");
    let message = problem["message"].as_str().unwrap();
    assert!(message.contains(&format!("file `{file}` is damaged in the store")), "{message}");
    assert_eq!(failed["request_counts"]["total"], 0, "nothing was sent");
    for _ in 0..3 {
        let refused = gateway.get(&format!("/v1/files/{file}/content"));
        assert_eq!(refused.status, 500, "{}", refused.text);
        assert!(refused.text.contains(&format!("file `{file}` is damaged")), "{}", refused.text);
    }
    assert_eq!(times(&gateway, "damaged file in the batch store"), 1, "{}", gateway.log());
    let other = ended(&gateway, &create(&gateway, &whole));
    assert_eq!(other["status"], "completed", "the rest works: {other}");
}

#[test]
fn lost_and_changed_files_are_refused_before_their_first_byte_or_break_off() {
    let engines = Engines::start(&[]);
    let kept = folder("changed-files");
    let gateway = start(&engines, &kept);
    let [lost, short, long] = [1, 1, 6_000].map(|count: usize| {
        let lines: Vec<_> = (0..count).map(line).collect();
        upload(&gateway, &lines)
    });
    std::fs::remove_file(stored(&kept, &lost)).unwrap();
    flip(&stored(&kept, &short), 60);
    flip(&stored(&kept, &long), 3_000_000);
    for (file, told) in [(&lost, "it is missing on disk"), (&short, "its checksum is not")] {
        let refused = gateway.get(&format!("/v1/files/{file}/content"));
        assert_eq!(refused.status, 500, "{}", refused.text);
        assert!(refused.text.contains(told), "{}", refused.text);
        let failed = ended(&gateway, &create(&gateway, file));
        assert_eq!(failed["errors"]["data"][0]["code"], "input_file_damaged", "{failed}");
        assert!(failed.to_string().contains(told), "{failed}");
    }
    let path = format!("/v1/files/{long}/content");
    let broken = Exchange::open(&gateway.address, "GET", &path, "").finish();
    let broken = broken.expect_err("a response that ends is taken for the file");
    assert!(broken.text.len() > 3_000_000, "{}", broken.text.len());
    assert_eq!(gateway.get("/v1/files").json()["data"].as_array().unwrap().len(), 3);
    let gone = Exchange::open(&gateway.address, "DELETE", &format!("/v1/files/{lost}"), "");
    assert_eq!(gone.finish().unwrap().status, 200, "it can be deleted");
}

#[test]
fn a_batch_whose_input_is_damaged_while_it_runs_keeps_its_results_and_names_the_other_lines() {
    let engines = Engines::start_at("20", &["--engines", "2"]);
    let kept = folder("damaged-later");
    let gateway = start(&engines, &kept);
    let lines: Vec<_> = (0..400).map(line).collect();
    let file = upload(&gateway, &lines);
    let id = create(&gateway, &file);
    let done = |gateway: &Gateway| {
        let state = gateway.get(&format!("/v1/batches/{id}")).json();
        state["request_counts"]["completed"].as_u64().unwrap()
    };
    eventually("some lines are there", || done(&gateway) >= 40);
    drop(gateway);
    flip(&stored(&kept, &file), 1_000);
    let gateway = start(&engines, &kept);
    let ended = ended(&gateway, &id);
    let counts = &ended["request_counts"];
    let [completed, failed] = ["completed", "failed"].map(|of| counts[of].as_u64().unwrap());
    assert!(completed >= 40 && failed > 0 && completed + failed == 400, "{ended}");
    let errors = ended["error_file_id"].as_str().unwrap();
    let errors = gateway.get(&format!("/v1/files/{errors}/content")).text;
    assert_eq!(errors.matches("\"code\":\"input_file_damaged\"").count() as u64, failed);
    let output = ended["output_file_id"].as_str().unwrap();
    let output = gateway.get(&format!("/v1/files/{output}/content")).text;
    assert_eq!(output.lines().count() as u64, completed);
}

#[test]
fn a_result_log_that_lost_its_end_hides_no_result_and_cuts_no_file() {
    let engines = Engines::start(&[]);
    let kept = folder("cut-log");
    let gateway = start(&engines, &kept);
    let lines: Vec<_> = (0..300).map(line).collect();
    let file = upload(&gateway, &lines);
    let id = create(&gateway, &file);
    let output = ended(&gateway, &id)["output_file_id"].as_str().unwrap().to_owned();
    drop(gateway);
    let log = kept.join(format!("results/{id}.log"));
    cut(&log, std::fs::metadata(&log).unwrap().len() / 2);
    let gateway = start(&engines, &kept);
    let paths = [format!("/v1/files/{output}/content"), format!("/v1/batches/{id}/results")];
    for path in &paths {
        assert_eq!(gateway.get(path).text.lines().count(), 300, "{path}");
    }
    drop(gateway);
    let results = kept.join(format!("results/{id}.output.jsonl"));
    let length = std::fs::metadata(&results).unwrap().len();
    let told = verify(&kept);
    assert_eq!(told.status.code(), Some(1), "{told:?}");
    assert!(text(&told.stdout).contains(&format!("damaged: {}", log.display())), "{told:?}");
    flip(&results, length / 2);
    let gateway = start(&engines, &kept);
    for path in &paths {
        let answer = Exchange::open(&gateway.address, "GET", path, "").finish();
        assert!(!answer.is_ok_and(|answer| answer.status == 200), "{path} was served");
    }
    assert_eq!(gateway.get(&format!("/v1/batches/{id}")).json()["status"], "completed");
    drop(gateway);
    cut(&results, length - 10);
    let gateway = start(&engines, &kept);
    let refused = gateway.get(&paths[0]);
    assert_eq!(refused.status, 500, "{}", refused.text);
    assert!(refused.text.contains(&format!("file `{output}` is damaged")), "{}", refused.text);
    assert_eq!(gateway.get(&format!("/v1/files/{file}/content")).status, 200, "the input is there");
}

#[test]
fn a_folder_is_verified_offline_and_each_damaged_thing_is_named() {
    let engines = Engines::start(&[]);
    let kept = folder("verified");
    let gateway = start(&engines, &kept);
    let lines: Vec<_> = (0..20).map(line).collect();
    let [cut_one, lost, changed, fine] = [0; 4].map(|_| upload(&gateway, &lines));
    let [first, second] = [0; 2].map(|_| create(&gateway, &fine));
    for id in [&first, &second] {
        assert_eq!(ended(&gateway, id)["status"], "completed");
    }
    let busy = verify(&kept);
    assert!(!busy.status.success(), "{busy:?}");
    assert!(text(&busy.stderr).contains("is in use by another process"), "{busy:?}");
    drop(gateway);
    let good = verify(&kept);
    assert!(good.status.success(), "{good:?}");
    assert_eq!(text(&good.stdout), "4 files and the results of 2 batches checked, 0 damaged\n");
    cut(&stored(&kept, &cut_one), 100);
    std::fs::remove_file(stored(&kept, &lost)).unwrap();
    flip(&stored(&kept, &changed), 200);
    flip(&kept.join(format!("results/{second}.output.jsonl")), 50);
    let before = std::fs::read(kept.join("journal")).unwrap();
    let found = verify(&kept);
    assert_eq!(found.status.code(), Some(1), "{found:?}");
    let told = text(&found.stdout);
    for (name, what) in [
        (&cut_one, "100 bytes are there"),
        (&lost, "it is missing on disk"),
        (&changed, "its checksum is not the recorded one"),
        (&second.replace("batch_", ""), "its checksum is not the recorded one"),
    ] {
        let is_named = |line: &str| line.contains(name.as_str()) && line.contains(what);
        assert!(told.lines().any(is_named), "{name}: {told}");
    }
    assert_eq!(told.matches("damaged: ").count(), 4, "{told}");
    assert!(!told.contains(&fine) && !told.contains(&first), "{told}");
    assert_eq!(std::fs::read(kept.join("journal")).unwrap(), before, "nothing was changed");
    let none = verify(&kept.join("files"));
    assert!(text(&none.stderr).contains("journal"), "{none:?}");
}
