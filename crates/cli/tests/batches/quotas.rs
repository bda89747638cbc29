//! What a tenant can make the store keep: metadata, entries of ended batches, and pages of lists.

use super::{folder, line};
use crate::support::engines::{Engines, Exchange, Response};
use crate::support::gateway::{Gateway, eventually};
use serde_json::{Map, Value, json};

/// A gateway with two tenants, `a` and `b`, whose entries may have so many bytes.
fn gateway(engines: &Engines, name: &str, quota_entries: usize) -> Gateway {
    let path = folder(name).join("wornpath.yaml");
    let config = json!({
        "pods": [{"url": format!("http://{}", engines.engines[0].http)}],
        "batch": {"folder": "kept", "quota_entries": quota_entries},
        "listen": {"client": "127.0.0.1:0"},
    });
    std::fs::write(&path, config.to_string()).unwrap();
    let keys = ["--api-key", "a=key-a", "--api-key", "b=key-b"];
    Gateway::start(&[&["-c", path.to_str().unwrap()], &keys[..]].concat(), 1)
}

fn ask(gateway: &Gateway, tenant: &str, request: &str, body: &str) -> Response {
    let head = format!("{request} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer key-{tenant}\r\n");
    Exchange::send(&gateway.address, &head, body).finish().unwrap()
}

/// Uploads a file of one line.
fn upload(gateway: &Gateway, tenant: &str) -> Response {
    let form = format!(
        "--b\r\ncontent-disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n--b\r\ncontent-disposition: form-data; \
         name=\"file\"; filename=\"in.jsonl\"\r\n\r\n{}\r\n--b--\r\n",
        line(0),
    );
    let request =
        "POST /v1/files HTTP/1.1\r\nhost: x\r\ncontent-type: multipart/form-data; boundary=b";
    let head = format!("{request}\r\nauthorization: Bearer key-{tenant}\r\n");
    Exchange::send(&gateway.address, &head, &form).finish().unwrap()
}

fn create(gateway: &Gateway, tenant: &str, file: &Value, metadata: &Value) -> Response {
    let new = json!({
        "input_file_id": file,
        "endpoint": "/v1/chat/completions",
        "completion_window": "24h",
        "metadata": metadata,
    });
    ask(gateway, tenant, "POST /v1/batches", &new.to_string())
}

#[test]
fn metadata_beyond_openais_limits_is_refused_and_leaves_nothing_in_the_journal() {
    let engines = Engines::start(&[]);
    let gateway = gateway(&engines, "metadata", 1 << 20);
    let file = upload(&gateway, "a").json()["id"].clone();
    for (metadata, told) in [
        (json!({"big": "x".repeat(960_000)}), "key `big` of `metadata` has 960000 characters"),
        (json!({"k".repeat(65): ""}), "has 65 characters; at most 64 are allowed"),
        (json!({"a": {"b": "c"}}), "value of key `a` of `metadata` must be a string"),
        (json!("text"), "`metadata` must be an object of strings"),
    ] {
        let refused = create(&gateway, "a", &file, &metadata);
        let error = &refused.json()["error"];
        assert_eq!((refused.status, &error["param"]), (400, &json!("metadata")), "{error}");
        assert!(error["message"].as_str().unwrap().contains(told), "{error}");
    }
    let journal = folder_of("metadata").join("kept/journal");
    assert!(std::fs::metadata(journal).unwrap().len() < 2_000, "only the file is in it");
    let kept = create(&gateway, "a", &file, &json!({"k".repeat(64): "é".repeat(512)}));
    assert_eq!(kept.status, 200, "{}", kept.text);
}

/// The folder of a test, as it is.
fn folder_of(name: &str) -> std::path::PathBuf {
    std::path::PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("batches").join(name)
}

#[test]
fn ended_batches_count_against_the_entry_quota_of_their_tenant_alone() {
    let engines = Engines::start(&[]);
    let gateway = gateway(&engines, "entries", 32 << 10);
    let file = upload(&gateway, "a").json()["id"].clone();
    let mut made = 0;
    let refused = loop {
        let answer = create(&gateway, "a", &file, &json!({"note": "x".repeat(500)}));
        if answer.status != 200 {
            break answer;
        }
        made += 1;
        assert!(made < 100, "no quota stopped it");
        let id = answer.json()["id"].as_str().unwrap().to_owned();
        eventually("it has ended", || {
            ask(&gateway, "a", &format!("GET /v1/batches/{id}"), "").json()["status"] == "completed"
        });
    };
    assert_eq!(refused.status, 403, "{}", refused.text);
    assert!(refused.text.contains("entry quota exceeded"), "{}", refused.text);
    assert!(refused.text.contains("(limit 32768)"), "{}", refused.text);
    assert!(made >= 5, "{made}");
    assert_eq!(upload(&gateway, "a").status, 403, "an upload has an entry, too");
    assert_eq!(upload(&gateway, "b").status, 200, "another tenant has its own quota");
    let list = ask(&gateway, "a", "GET /v1/batches?limit=100", "").json();
    assert_eq!(list["data"].as_array().unwrap().len(), made, "what there is stays");
}

#[test]
fn a_list_of_long_entries_comes_in_pages_of_bounded_size() {
    const BATCHES: usize = 45;
    let engines = Engines::start(&[]);
    let gateway = gateway(&engines, "pages", 64 << 20);
    let file = upload(&gateway, "a").json()["id"].clone();
    // Characters of four bytes: 32 KiB each.
    let pair = |number: usize| (number.to_string(), json!("😀".repeat(512)));
    let metadata = Value::Object((0..16).map(pair).collect::<Map<_, _>>());
    for _ in 0..BATCHES {
        let made = create(&gateway, "a", &file, &metadata);
        assert_eq!(made.status, 200, "{}", made.text);
    }
    let mut seen = 0;
    let mut after = String::new();
    loop {
        let page = ask(&gateway, "a", &format!("GET /v1/batches?limit=100{after}"), "");
        assert!(page.text.len() < 1_100_000, "{} bytes", page.text.len());
        let page = page.json();
        seen += page["data"].as_array().unwrap().len();
        if page["has_more"] == false {
            break;
        }
        after = format!("&after={}", page["last_id"].as_str().unwrap());
    }
    assert_eq!(seen, BATCHES, "each is on one page");
}
