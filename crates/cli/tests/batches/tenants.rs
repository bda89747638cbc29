//! Files and batches belong to the tenant that created them; other tenants cannot see them.

use crate::support::engines::{Engines, Exchange, Response};
use crate::support::gateway::{Gateway, eventually};
use crate::{folder, line};
use serde_json::Value;

fn ask(gateway: &Gateway, key: &str, request: &str, body: &str) -> Response {
    let head = format!("{request} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\n");
    Exchange::send(&gateway.address, &head, body).finish().unwrap()
}

/// Submits lines as a tenant.
fn submit(gateway: &Gateway, key: &str, lines: &str) -> String {
    let url = format!("http://{}", gateway.address);
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_wornpath"));
    let arguments = ["batch", "submit", lines, "--gateway", &url, "--api-key", key];
    let output = command.args(arguments).output().unwrap();
    crate::text(&output.stdout).split_whitespace().next().unwrap().to_owned()
}

#[test]
fn long_batches_of_one_tenant_leave_another_its_turn() {
    let engines = Engines::start_at("1", &[]);
    let kept = folder("fair");
    let keys = ["--api-key", "a=key-a", "--api-key", "b=key-b"];
    let gateway = Gateway::in_front_of(
        &engines,
        &[&["--batches", kept.to_str().unwrap()], &keys[..]].concat(),
    );
    let long = crate::input(&kept, (0..3_000).map(line));
    let running: Vec<_> = (0..5).map(|_| submit(&gateway, "key-a", &long)).collect();
    let status = |key: &str, id: &str| {
        ask(&gateway, key, &format!("GET /v1/batches/{id}"), "").json()["status"].clone()
    };
    let count = |wanted: &str| running.iter().filter(|id| status("key-a", id) == wanted).count();
    eventually("four run", || count("in_progress") == 4);
    let short = crate::input(&kept, (0..1).map(line));
    let short = submit(&gateway, "key-b", &short);
    let begun = std::time::Instant::now();
    while status("key-b", &short) != "completed" {
        assert!(begun.elapsed().as_secs() < 90, "{}", status("key-b", &short));
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    assert_eq!(count("completed"), 0, "no long batch had to end");
    assert!(gateway.log().contains("another tenant waits"), "{}", gateway.log());
    eventually("four run again", || count("in_progress") >= 4);
}

/// A file of two lines, as a form.
fn upload(gateway: &Gateway, key: &str) -> String {
    let form = format!(
        "--b\r\ncontent-disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n--b\r\ncontent-disposition: form-data; \
         name=\"file\"; filename=\"in.jsonl\"\r\n\r\n{}\n{}\r\n--b--\r\n",
        line(0),
        line(1)
    );
    let head = format!(
        "POST /v1/files HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\ncontent-type: multipart/form-data; boundary=b\r\n"
    );
    let answer = Exchange::send(&gateway.address, &head, &form).finish().unwrap();
    assert_eq!(answer.status, 200, "{}", answer.text);
    id(&answer.json())
}

fn id(object: &Value) -> String {
    object["id"].as_str().unwrap().to_owned()
}

#[test]
fn a_tenant_cannot_see_use_or_cancel_files_and_batches_of_another() {
    let engines = Engines::start(&[]);
    let kept = folder("tenants");
    let arguments =
        ["--batches", kept.to_str().unwrap(), "--api-key", "a=key-a", "--api-key", "b=key-b"];
    let gateway = Gateway::in_front_of(&engines, &arguments);
    let file = upload(&gateway, "key-a");
    let new = |file: &str| {
        format!(
            r#"{{"input_file_id": "{file}", "endpoint": "/v1/chat/completions", "completion_window": "24h"}}"#
        )
    };
    let made = ask(&gateway, "key-a", "POST /v1/batches", &new(&file));
    assert_eq!(made.status, 200, "{}", made.text);
    let batch = id(&made.json());
    let state = || ask(&gateway, "key-a", &format!("GET /v1/batches/{batch}"), "").json();
    eventually("it is done", || state()["status"] == "completed");
    let output = state()["output_file_id"].as_str().unwrap().to_owned();

    for request in [
        format!("GET /v1/files/{file}"),
        format!("GET /v1/files/{file}/content"),
        format!("GET /v1/files/{output}/content"),
        format!("GET /v1/batches/{batch}"),
        format!("GET /v1/batches/{batch}/results"),
        format!("GET /v1/batches/{batch}/plan"),
        format!("POST /v1/batches/{batch}/cancel"),
        format!("POST /v1/batches/{batch}/retry"),
        format!("DELETE /v1/files/{output}"),
        format!("DELETE /v1/files/{file}"),
    ] {
        let answer = ask(&gateway, "key-b", &request, "");
        assert_eq!(answer.status, 404, "{request}: {}", answer.text);
        assert_eq!(ask(&gateway, "key-c", &request, "").status, 401, "{request}");
    }
    let taken = ask(&gateway, "key-b", "POST /v1/batches", &new(&file));
    assert!(taken.status == 404 || taken.status == 400, "{}", taken.text);
    for list in ["GET /v1/files", "GET /v1/batches"] {
        let count = |key: &str| {
            ask(&gateway, key, list, "").json()["data"].as_array().map(Vec::len).unwrap()
        };
        assert!(count("key-a") > 0 && count("key-b") == 0, "{list}");
    }
    let content = ask(&gateway, "key-a", &format!("GET /v1/files/{output}/content"), "");
    assert_eq!((content.status, content.text.lines().count()), (200, 2), "its own it still has");
}
