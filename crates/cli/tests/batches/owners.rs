//! Files and batches of a tenant, as others find them: not at all.

use crate::gateway::{Gateway, eventually};
use crate::served::{Exchange, Response, Served};
use crate::{folder, line};
use serde_json::json;

const FORM: &str = "content-type: multipart/form-data; boundary=edge\r\n";

fn ask(gateway: &Gateway, key: &str, call: &str, body: &str) -> Response {
    let head = format!("{call} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\n{FORM}");
    Exchange::send(&gateway.address, &head, body).finish().unwrap()
}

#[test]
fn what_a_tenant_has_is_not_there_for_another_and_nothing_is_without_a_key() {
    let (engines, kept) = (Served::start(&[]), folder("owners"));
    let keys = ["--api-key", "alice=secret-a", "--api-key", "bob=secret-b"];
    let batches = ["--batches", kept.to_str().unwrap()];
    let gateway = Gateway::before(&engines, &[&keys[..], &batches].concat());
    let form = format!(
        "--edge\r\ncontent-disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n\
         --edge\r\ncontent-disposition: form-data; name=\"file\"; filename=\"f\"\r\n\r\n{}\r\n--edge--\r\n",
        line(0)
    );
    let file = ask(&gateway, "secret-a", "POST /v1/files", &form).json();
    let file = file["id"].as_str().unwrap();
    let wanted = json!({
        "input_file_id": file, "endpoint": "/v1/chat/completions", "completion_window": "24h",
    });
    let wanted = wanted.to_string();
    let batch = ask(&gateway, "secret-a", "POST /v1/batches", &wanted).json();
    let batch = batch["id"].as_str().unwrap();
    let seen = |key: &str| ask(&gateway, key, &format!("GET /v1/batches/{batch}"), "");
    eventually("it is done", || seen("secret-a").json()["status"] == "completed");
    let results = seen("secret-a").json()["output_file_id"].as_str().unwrap().to_owned();
    let calls = [
        format!("GET /v1/files/{file}"),
        format!("GET /v1/files/{file}/content"),
        format!("GET /v1/files/{results}"),
        format!("GET /v1/files/{results}/content"),
        format!("DELETE /v1/files/{file}"),
        format!("GET /v1/batches/{batch}"),
        format!("GET /v1/batches/{batch}/plan"),
        format!("GET /v1/batches/{batch}/results"),
        format!("POST /v1/batches/{batch}/retry"),
        format!("POST /v1/batches/{batch}/cancel"),
        "POST /v1/batches".to_owned(),
    ];
    for call in &calls {
        let body = if call == "POST /v1/batches" { &wanted } else { "" };
        let answers = ["secret-b", "nobody"].map(|key| ask(&gateway, key, call, body));
        let [others, nobodys] = &answers;
        assert_eq!((others.status, nobodys.status), (404, 401), "{call}: {answers:?}");
    }
    for list in ["GET /v1/files", "GET /v1/batches"] {
        let count = |key| ask(&gateway, key, list, "").json()["data"].as_array().unwrap().len();
        assert_eq!(count("secret-b"), 0, "{list}");
        assert!(count("secret-a") > 0, "{list}");
    }
    assert_eq!(seen("secret-a").json()["status"], "completed", "nobody changed it");
}
