//! `wornpath batch` against a scripted gateway, and what it refuses before it sends a request.

use super::{folder, input, line, text};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::process::{Command, Output, Stdio};
use std::thread::JoinHandle;

/// What a refused command says.
fn refused(arguments: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_wornpath"));
    let output = command.arg("batch").args(arguments).stdin(Stdio::piped()).output().unwrap();
    assert!(!output.status.success(), "{output:?}");
    text(&output.stderr).to_owned()
}

#[test]
fn a_path_that_is_not_a_regular_file_is_refused() {
    for path in ["/dev/stdin", "/dev/null", "/"] {
        // Nothing listens there: the command is refused before it connects.
        let said = refused(&["submit", path, "--gateway", "http://127.0.0.1:1"]);
        assert!(said.contains(&format!("{path} is not a regular file")), "{said}");
    }
}

#[test]
fn a_gateway_with_a_path_is_refused_and_not_called_without_it() {
    for url in ["http://127.0.0.1:1/base", "http://127.0.0.1:1/?a=b"] {
        let said = refused(&["list", "--gateway", url]);
        assert!(said.contains("without a path: http://127.0.0.1:1"), "{said}");
    }
    let said = refused(&["list", "--gateway", "http://127.0.0.1:1/"]);
    assert!(said.contains("cannot reach the gateway"), "{said}");
}

/// A gateway that gives these answers, each on a connection of its own, and says what it was asked.
/// An empty one is none.
fn gateway(answers: &'static [(u16, &'static str)]) -> (String, JoinHandle<Vec<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let serve = move || {
        let answer = |(status, body): &(u16, &str)| {
            let mut stream = BufReader::new(listener.accept().unwrap().0);
            let mut head = String::new();
            let mut length = 0;
            while !head.ends_with("\r\n\r\n") {
                let start = head.len();
                stream.read_line(&mut head).unwrap();
                if let Some(bytes) = head[start..].strip_prefix("content-length: ") {
                    length = bytes.trim().parse().unwrap();
                }
            }
            stream.read_exact(&mut vec![0; length]).unwrap();
            if !body.is_empty() {
                let bytes = body.len();
                let head = format!("HTTP/1.1 {status} x\r\ncontent-length: {bytes}\r\n\r\n{body}");
                stream.get_mut().write_all(head.as_bytes()).unwrap();
            }
            head.split(" HTTP").next().unwrap().to_owned()
        };
        answers.iter().map(answer).collect()
    };
    (url, std::thread::Builder::new().spawn(serve).unwrap())
}

fn batch(url: &str, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_wornpath"));
    command.arg("batch").args(arguments).args(["--gateway", url]).output().unwrap()
}

#[test]
fn a_watched_batch_ends_with_1_unless_all_its_lines_were_answered() {
    let cases: [(&[_], i32); 4] = [
        (&[(200, r#"{"status":"completed","request_counts":{"failed":0}}"#)], 0),
        (&[(200, r#"{"status":"completed","request_counts":{"failed":1}}"#)], 1),
        (&[(200, r#"{"status":"expired","request_counts":{"failed":0}}"#)], 1),
        (&[(200, r#"{"status":"cancelled","request_counts":{"failed":0}}"#)], 1),
    ];
    for (answers, code) in cases {
        let (url, asked) = gateway(answers);
        let output = batch(&url, &["watch", "batch-1"]);
        assert_eq!(output.status.code(), Some(code), "{output:?}");
        assert_eq!(asked.join().unwrap(), ["GET /v1/batches/batch-1"]);
    }
}

#[test]
fn a_poll_is_retried_when_the_gateway_becomes_unreachable() {
    let (url, asked) = gateway(&[
        (200, r#"{"status":"in_progress"}"#),
        (0, ""),
        (200, r#"{"status":"completed","request_counts":{"failed":0}}"#),
    ]);
    let output = batch(&url, &["watch", "batch-1"]);
    assert!(output.status.success(), "{output:?}");
    assert!(text(&output.stderr).contains("retrying for 60 s"), "{output:?}");
    assert_eq!(asked.join().unwrap().len(), 3);
}

#[test]
fn the_first_poll_is_retried_while_the_gateway_is_unreachable() {
    let (url, asked) =
        gateway(&[(0, ""), (200, r#"{"status":"completed","request_counts":{"failed":0}}"#)]);
    let output = batch(&url, &["watch", "batch-1"]);
    assert!(output.status.success(), "{output:?}");
    assert!(text(&output.stderr).contains("retrying for 60 s"), "{output:?}");
    assert_eq!(asked.join().unwrap().len(), 2);
    let (url, asked) = gateway(&[(404, r#"{"error":{"message":"there is no batch"}}"#)]);
    let output = batch(&url, &["watch", "batch-1"]);
    assert!(text(&output.stderr).contains("there is no batch"), "{output:?}");
    assert_eq!(asked.join().unwrap().len(), 1);
}

#[test]
fn the_upload_of_a_refused_batch_is_deleted() {
    let (url, asked) = gateway(&[
        (200, r#"{"id":"file-1"}"#),
        (400, r#"{"error":{"message":"no such window"}}"#),
        (200, "{}"),
    ]);
    let input = input(&folder("refused_batch"), [line(0)].into_iter());
    let output = batch(&url, &["submit", &input, "--window", "never"]);
    assert!(!output.status.success(), "{output:?}");
    assert!(text(&output.stderr).contains("no such window"), "{output:?}");
    let expected = ["POST /v1/files", "POST /v1/batches", "DELETE /v1/files/file-1"];
    assert_eq!(asked.join().unwrap(), expected);
}

#[test]
fn failed_lines_are_printed_once_the_batch_has_ended() {
    const ENDED: &str =
        r#"{"status":"completed","error_file_id":"file-2","request_counts":{"failed":1}}"#;
    const NOTHING: &str = r#"{"status":"completed","request_counts":{"failed":0}}"#;
    const RUNNING: &str = r#"{"status":"in_progress","request_counts":{"failed":1}}"#;
    const WRONG: &str = r#"{"status":"failed","errors":{"data":[{"line":3,"message":"no body"}]}}"#;
    let (url, asked) = gateway(&[(200, ENDED), (200, "{\"custom_id\":\"a\"}\n")]);
    let output = batch(&url, &["errors", "batch-1"]);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(text(&output.stdout), "{\"custom_id\":\"a\"}\n");
    assert_eq!(asked.join().unwrap(), ["GET /v1/batches/batch-1", "GET /v1/files/file-2/content"]);
    let cases: [(&[_], bool, &str); 3] = [
        (&[(200, NOTHING)], true, "completed"),
        (&[(200, RUNNING)], false, "the batch has not ended"),
        (&[(200, WRONG)], true, "line 3: no body"),
    ];
    for (answers, is_done, told) in cases {
        let (url, asked) = gateway(answers);
        let output = batch(&url, &["errors", "batch-1"]);
        assert_eq!(output.status.success(), is_done, "{output:?}");
        assert!(text(&output.stderr).contains(told), "{output:?}");
        assert!(output.stdout.is_empty(), "{output:?}");
        assert_eq!(asked.join().unwrap().len(), 1);
    }
}
