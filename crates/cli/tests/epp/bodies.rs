//! Bodies that end with trailers, behind Envoy.

use crate::envoy::{Envoy, Failure, Pods, free_port, is_here};
use crate::picks::{is_idle, total};
use crate::support::gateway::Gateway;
use crate::support::recorder::Recorder;
use serde_json::json;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::{Arc, Mutex};
use std::time::Duration;

const ANSWER: &str =
    r#"{"choices":[{"text":"a"}],"usage":{"prompt_tokens":3,"completion_tokens":1}}"#;

/// A body in one chunk, and a trailer.
fn chunked(body: &str, trailer: &str) -> String {
    format!("{:x}\r\n{body}\r\n0\r\n{trailer}\r\n\r\n", body.len())
}

/// Reads a message to the end of its trailers.
fn read_message(stream: &mut TcpStream) -> String {
    let mut read = Vec::new();
    let mut byte = [0];
    let has_ended = |read: &[u8]| {
        let last = read.windows(5).position(|window| window == b"\r\n0\r\n");
        last.is_some() && read.ends_with(b"\r\n\r\n")
    };
    while !has_ended(&read) && stream.read(&mut byte).unwrap_or(0) > 0 {
        read.push(byte[0]);
    }
    String::from_utf8(read).unwrap()
}

#[test]
fn trailers_pass_in_both_directions_and_the_response_is_counted() {
    if !is_here() {
        return;
    }
    let received = Arc::<Mutex<String>>::default();
    let kept = Arc::clone(&received);
    let pod = Recorder::greeting(Arc::new(move |mut stream| {
        let mut method = [0; 4];
        if stream.peek(&mut method).is_ok() && &method != b"POST" {
            return Some(Box::new(stream));
        }
        *kept.lock().unwrap() = read_message(&mut stream);
        let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n";
        let answer = format!("{head}{}", chunked(ANSWER, "x-answer: 2"));
        stream.write_all(answer.as_bytes()).unwrap();
        None
    }));
    let port = free_port();
    let url = format!("http://{}", pod.address);
    let epp = format!("127.0.0.1:{port}");
    let arguments = ["--pod", &url, "--model", "m", "--tokenizer", "bytes", "--epp", &epp];
    let picker = Gateway::start(&arguments, 1);
    let pods = Pods::Listed(vec![pod.address.to_string()]);
    let envoy = Envoy::start("trailers", port, &pods, Failure::Close);

    let body = json!({"model": "m", "prompt": "x", "max_tokens": 1}).to_string();
    let mut client = TcpStream::connect(&envoy.address).unwrap();
    client.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let head = "POST /v1/completions HTTP/1.1\r\nhost: h\r\ncontent-type: application/json\r\n\
                te: trailers\r\ntransfer-encoding: chunked\r\n\r\n";
    client.write_all(format!("{head}{}", chunked(&body, "x-question: 1")).as_bytes()).unwrap();
    let answer = read_message(&mut client);
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(answer.contains(ANSWER) && answer.ends_with("x-answer: 2\r\n\r\n"), "{answer}");
    let received = received.lock().unwrap().clone();
    assert!(received.contains(&body), "{received}");
    assert!(received.ends_with("x-question: 1\r\n\r\n"), "{received}");
    is_idle(&picker);
    assert_eq!(total(&picker, "wornpath_output_tokens_total"), 1);
}
