//! Clients that stall during an upload, a request or a download, and concurrent ones.

use crate::folder;
use crate::support::engines::Engines;
use crate::support::gateway::{Gateway, eventually};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

const QUOTA: usize = 64 << 20;

/// A gateway that waits for clients for so long at most.
fn impatient(engines: &Engines, name: &str, time: &str) -> Gateway {
    let config = format!(
        "pods: [{{url: \"http://{}\"}}]\nbatch: {{folder: kept, quota_bytes: {QUOTA}}}\nlimits: {{body_time: {time}}}\n\
         timeouts: {{between_bytes: {time}}}\nlisten: {{client: \"127.0.0.1:0\"}}\n",
        engines.engines[0].http
    );
    let path = folder(name).join("wornpath.yaml");
    std::fs::write(&path, config).unwrap();
    Gateway::start(&["-c", path.to_str().unwrap()], 1)
}

const FORM: &str = "--b\r\ncontent-disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n\
    --b\r\ncontent-disposition: form-data; name=\"file\"; filename=\"f\"\r\n\r\n";
const END: &str = "\r\n--b--\r\n";

fn connect(gateway: &Gateway) -> TcpStream {
    let stream = TcpStream::connect(&gateway.address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream
}

/// Begins a call of `length` bytes, of which `sent` come.
fn begin(gateway: &Gateway, path: &str, length: usize, sent: &str) -> TcpStream {
    let mut stream = connect(gateway);
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\
         content-type: multipart/form-data; boundary=b\r\ncontent-length: {length}\r\n\r\n"
    );
    stream.write_all(format!("{head}{sent}").as_bytes()).unwrap();
    stream
}

fn heard(mut stream: TcpStream) -> String {
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

/// Uploads so many bytes at once.
fn upload(gateway: &Gateway, bytes: usize) -> String {
    let body = format!("{FORM}{}{END}", "x".repeat(bytes));
    heard(begin(gateway, "/v1/files", body.len(), &body))
}

/// Whether the gateway has closed its end of a connection: then no process owns that end, and its
/// inode is 0.
fn is_closed_by_gateway(stream: &TcpStream) -> bool {
    let column = |address: SocketAddr| format!(":{:04X}", address.port());
    let ours = column(stream.local_addr().unwrap());
    let theirs = column(stream.peer_addr().unwrap());
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let is_open = |line: &str| {
        let columns: Vec<_> = line.split_whitespace().collect();
        columns[1].ends_with(&theirs) && columns[2].ends_with(&ours) && columns[9] != "0"
    };
    !table.lines().skip(1).any(is_open)
}

#[test]
fn a_stalled_upload_or_request_times_out_and_a_slow_one_does_not() {
    let engines = Engines::start(&[]);
    let gateway = impatient(&engines, "stopped", "1s");
    let stopped = begin(&gateway, "/v1/files", 10_000, FORM);
    let half = begin(&gateway, "/v1/batches", 100, "{\"endpoint\": ");
    let rest = format!("xxxxxxxx{END}");
    let mut slow = begin(&gateway, "/v1/files", FORM.len() + rest.len(), FORM);
    // Slower in all than a client may stall, and faster with each byte.
    for byte in rest.bytes() {
        std::thread::sleep(Duration::from_millis(90));
        slow.write_all(&[byte]).unwrap();
    }
    assert!(heard(slow).starts_with("HTTP/1.1 200 "), "it took longer than a piece may take");
    for late in [stopped, half] {
        let answer = heard(late);
        assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
        assert!(answer.contains("timed out after 1s"), "{answer}");
    }
    assert_eq!(gateway.get("/v1/files").json()["data"].as_array().unwrap().len(), 1);
}

#[test]
fn an_upload_that_trickles_is_given_up_although_no_byte_is_late() {
    let engines = Engines::start(&[]);
    let gateway = impatient(&engines, "trickle", "1s");
    let mut slow = begin(&gateway, "/v1/files", 10_000, FORM);
    slow.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    let mut answer = [0; 1_024];
    let mut sent = 0;
    let read = loop {
        slow.write_all(b"x").unwrap();
        sent += 1;
        assert!(sent < 200, "it goes on and on");
        // Waits for the answer until the next byte is due.
        if let Ok(read) = slow.read(&mut answer) {
            break read;
        }
    };
    let answer = String::from_utf8_lossy(&answer[..read]);
    assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
    assert!(answer.contains("upload is too slow: less than 1024 bytes per second"), "{answer}");
}

#[test]
fn stalled_uploads_block_only_uploads_and_time_out() {
    let engines = Engines::start(&[]);
    let gateway = impatient(&engines, "crowd", "3s");
    let mut standing = Vec::new();
    let mut refused = String::new();
    // The first are given up after three seconds: on a slow machine it takes more of them to have
    // no place left.
    eventually("there is no place left", || {
        standing.extend((0..100).map(|_| begin(&gateway, "/v1/files", 10_000, FORM)));
        refused = upload(&gateway, 10);
        refused.starts_with("HTTP/1.1 503 ")
    });
    assert!(refused.contains("\r\nretry-after: 1\r\n"), "{refused}");
    assert_eq!(gateway.get("/v1/files").status, 200, "who only asks is answered");
    eventually("they are given up", || upload(&gateway, 10).starts_with("HTTP/1.1 200 "));
}

#[test]
fn a_download_that_the_client_does_not_read_is_cut_off() {
    const BYTES: usize = 48 << 20;
    let engines = Engines::start(&[]);
    let gateway = impatient(&engines, "untaken", "1s");
    let uploaded = upload(&gateway, BYTES);
    let id = uploaded.split("\"id\":\"").nth(1).unwrap().split('"').next().unwrap().to_owned();
    let path = format!("/v1/files/{id}/content");
    let untaken: Vec<_> = (0..3)
        .map(|_| {
            let mut stream = connect(&gateway);
            stream.write_all(format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n").as_bytes()).unwrap();
            stream
        })
        .collect();
    eventually("they are cut off", || untaken.iter().all(is_closed_by_gateway));
    for mut untaken in untaken {
        let mut taken = Vec::new();
        // Part of it, and then the end or a reset.
        let _ = untaken.read_to_end(&mut taken);
        assert!(taken.starts_with(b"HTTP/1.1 200 ") && taken.len() < BYTES, "{}", taken.len());
    }
    assert_eq!(gateway.get(&path).text.len(), BYTES, "who takes it gets it");
}

#[test]
fn concurrent_uploads_share_one_storage_quota() {
    const BYTES: usize = 20 << 20;
    let engines = Engines::start(&[]);
    let gateway = impatient(&engines, "parallel", "10s");
    // All have begun before the first has ended.
    let body = format!("{FORM}{}", "x".repeat(BYTES));
    let length = body.len() + END.len();
    let mut begun: Vec<_> = (0..5).map(|_| begin(&gateway, "/v1/files", length, FORM)).collect();
    for upload in &mut begun {
        upload.write_all(&body.as_bytes()[FORM.len()..]).unwrap();
    }
    for upload in &mut begun {
        upload.write_all(END.as_bytes()).unwrap();
    }
    let answers: Vec<_> = begun.into_iter().map(heard).collect();
    let with = |status: &str| answers.iter().filter(|answer| answer.starts_with(status)).count();
    assert_eq!((with("HTTP/1.1 200 "), with("HTTP/1.1 403 ")), (3, 2), "{answers:?}");
    assert!(upload(&gateway, 5 << 20).starts_with("HTTP/1.1 403 "), "{QUOTA} bytes are all");
    assert!(upload(&gateway, 3 << 20).starts_with("HTTP/1.1 200 "));
}
