//! Secrets that other users of the machine could see, and files that are none.

use crate::support::gateway::{Gateway, folder, refused};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

const POD: &str = "http://127.0.0.1:1";

fn check(path: &Path, options: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_wornpath"));
    command.arg("check").args(options).arg(path).output().unwrap()
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
}

#[test]
fn a_secret_file_that_others_can_read_is_a_warning_of_check_and_of_serve() {
    let folder = folder("exposed");
    let path = folder.join("wornpath.yaml");
    let key = folder.join("pod.key");
    fs::write(&key, "private").unwrap();
    fs::write(&path, format!("pods: [{{url: \"{POD}\", key_file: pod.key}}]\n")).unwrap();
    let cure = format!("run `chmod 600 {}`", key.display());
    set_mode(&key, 0o644);
    let output = check(&path, &[]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "a warning is no error: {text}");
    assert!(text.contains("warning: `key_file`") && text.contains("mode 0644"), "{text}");
    assert!(text.contains(&cure) && text.contains(": good"), "{text}");
    let json: serde_json::Value =
        serde_json::from_slice(&check(&path, &["--json"]).stdout).unwrap();
    assert!(json[0]["warnings"][0].as_str().unwrap().contains(&cure), "{json}");
    let gateway = Gateway::start(&["-c", path.to_str().unwrap()], 0);
    crate::support::gateway::eventually("serve warns", || gateway.log().contains(&cure));
    set_mode(&key, 0o600);
    let text = String::from_utf8(check(&path, &[]).stdout).unwrap();
    assert!(!text.contains("warning"), "{text}");
}

#[test]
fn a_key_on_the_command_line_is_a_warning_and_one_in_a_file_is_not() {
    let warned = "`ps` shows";
    let given = Gateway::start(&["--pod", POD, "--api-key", "team=private"], 0);
    crate::support::gateway::eventually("serve warns", || given.log().contains(warned));
    assert!(!given.log().contains("private"));
    let file = folder("api_keys").join("keys");
    fs::write(&file, "team=private\n").unwrap();
    set_mode(&file, 0o600);
    let arguments = ["--pod", POD, "--api-key-file", file.to_str().unwrap()];
    let filed = Gateway::start(&arguments, 0);
    assert_eq!(filed.get("/v1/unknown").status, 401, "a key is needed");
    assert!(!filed.log().contains(warned) && !filed.log().contains("chmod"), "{}", filed.log());
}

#[test]
fn a_checkpoint_that_is_no_regular_file_is_refused() {
    let folder = folder("special");
    let pipe = folder.join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let path = folder.join("wornpath.yaml");
    for special in ["/dev/zero", "pipe"] {
        let text = format!("pods: [{{url: \"{POD}\"}}]\ncheckpoint: {{file: {special}}}\n");
        fs::write(&path, text).unwrap();
        let (code, shown) = refused(&["-c", path.to_str().unwrap()]);
        assert_eq!(code, Some(78), "{special}: {shown}");
        assert!(shown.contains("which is not a regular file"), "{special}: {shown}");
    }
}
