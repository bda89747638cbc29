//! A full disk: a small file system under the gateway's folder.

use super::{batch, folder, input, line, text};
use crate::support::engines::{Engines, Exchange, Response};
use crate::support::gateway::{Gateway, eventually};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// A gateway whose folder has so many KiB. It sees that file system, and others only through its
/// process.
struct Small {
    gateway: Gateway,
    inside: PathBuf,
}

impl Small {
    fn start(name: &str, kib: usize, engines: &Engines) -> Option<Self> {
        let kept = folder(name).join("kept");
        std::fs::create_dir_all(&kept).unwrap();
        let urls: Vec<_> = engines.engines.iter().map(|at| format!("http://{}", at.http)).collect();
        let pods = urls.iter().flat_map(|url| ["--pod", url.as_str()]);
        let own = ["--batches", kept.to_str().unwrap(), "--admin", "127.0.0.1:0"];
        let arguments: Vec<_> = pods.chain(own).collect();
        let Some(gateway) = Gateway::on_small_disk(&kept, kib, &arguments, urls.len()) else {
            eprintln!("NOT CHECKED: a full disk over HTTP, because no file system can be mounted");
            return None;
        };
        let root = PathBuf::from(format!("/proc/{}/root", gateway.child.id()));
        let inside = root.join(kept.strip_prefix("/").unwrap());
        Some(Self { gateway, inside })
    }

    /// Uploads a file of so many bytes.
    fn upload(&self, bytes: usize) -> Response {
        let head = "POST /v1/files HTTP/1.1\r\nhost: x\r\ncontent-type: multipart/form-data; boundary=edge\r\n";
        let body = format!(
            "--edge\r\ncontent-disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n\
             --edge\r\ncontent-disposition: form-data; name=\"file\"; filename=\"f\"\r\n\r\n{}\r\n--edge--\r\n",
            "x".repeat(bytes)
        );
        Exchange::send(&self.gateway.address, head, &body).finish().unwrap()
    }

    fn call(&self, method: &str, path: &str) -> Response {
        Exchange::open(&self.gateway.address, method, path, "").finish().unwrap()
    }

    /// Names in one of its folders.
    fn names(&self, folder: &str) -> BTreeSet<String> {
        let entries = std::fs::read_dir(self.inside.join(folder)).unwrap();
        entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect()
    }
}

/// Writes until there is no room left.
fn fill(path: &Path) {
    use std::io::Write;
    let mut file = std::fs::File::create(path).unwrap();
    while file.write_all(&[0; 512]).is_ok() {}
}

#[test]
fn an_upload_without_disk_space_gets_507_and_succeeds_later() {
    let engines = Engines::start(&[]);
    let Some(small) = Small::start("full", 8 << 10, &engines) else { return };
    let first = small.upload(4 << 20);
    assert_eq!(first.status, 200, "{}", first.text);
    let first = first.json()["id"].as_str().unwrap().to_owned();
    // More than sockets hold: the client is still sending when there is no room any more.
    for _ in 0..3 {
        let refused = small.upload(7 << 20);
        assert_eq!(refused.status, 507, "{}", refused.text);
        let error = refused.json()["error"].clone();
        assert_eq!(error["type"], "server_error");
        assert_eq!(error["message"], "batch store is full; retry later");
    }
    let log = small.gateway.log();
    assert!(log.contains("disk full: cannot write"), "{log}");
    assert_eq!(log.matches("disk full").count(), 1, "not with every request: {log}");
    assert_eq!(small.names("files"), BTreeSet::from([first.clone()]), "nothing is left of them");
    assert_eq!(small.call("GET", "/v1/files").json()["data"].as_array().unwrap().len(), 1);
    assert_eq!(small.call("DELETE", &format!("/v1/files/{first}")).status, 200);
    let second = small.upload(7 << 20);
    assert_eq!(second.status, 200, "{}", second.text);
    let content = format!("/v1/files/{}/content", second.json()["id"].as_str().unwrap());
    assert_eq!(small.call("GET", &content).text.len(), 7 << 20);
}

#[test]
fn a_batch_waits_for_disk_space_for_its_results() {
    let engines = Engines::start_at("20", &["--engines", "2"]);
    let Some(small) = Small::start("blocked", 2 << 10, &engines) else { return };
    let gateway = &small.gateway;
    let input = input(&folder("blocked-input"), (0..400).map(line));
    let submitted = batch(gateway, &["submit", &input]);
    assert!(submitted.status.success(), "{}", text(&submitted.stderr));
    let id = text(&submitted.stdout).split_whitespace().next().unwrap().to_owned();
    let done = || {
        let json = gateway.get(&format!("/v1/batches/{id}")).json();
        json["request_counts"]["completed"].as_u64().unwrap()
    };
    eventually("some lines are there", || done() >= 40);
    let filler = small.inside.join("filler");
    fill(&filler);
    let admin = gateway.admin.as_ref().unwrap();
    let told = Exchange::open(admin, "GET", "/live", "").read_past("disk full");
    assert!(told.contains(&id), "operators see which batch waits: {told}");
    let before = done();
    assert!(before < 400, "it was not done before the disk was full");
    assert_eq!(small.upload(100_000).status, 507, "and clients are told");
    assert_eq!(done(), before, "nothing is acknowledged that was not written");
    std::fs::remove_file(filler).unwrap();
    let watched = batch(gateway, &["watch", &id]);
    let told = text(&watched.stdout);
    assert!(told.contains("completed: 400 of 400 answered, 0 failed"), "{watched:?}");
    let results = batch(gateway, &["results", &id]);
    let ids: Vec<String> = text(&results.stdout)
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["custom_id"].to_string())
        .collect();
    assert_eq!((ids.len(), ids.iter().collect::<BTreeSet<_>>().len()), (400, 400));
}
