//! Bodies that end with trailers, and large ones, behind Envoy.

use crate::envoy::{Envoy, Failure, Pods, free_port, is_here};
use crate::picks::{is_idle, total};
use crate::support::gateway::Gateway;
use crate::support::recorder::Recorder;
use serde_json::json;
use std::io::{BufRead, BufReader, Read, Write};
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

/// Reads a head, then its body by length or in chunks, and returns the body.
fn read_body(stream: &mut TcpStream) -> Vec<u8> {
    let mut reader = BufReader::new(stream);
    let line = |reader: &mut BufReader<&mut TcpStream>| {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        line.trim_end().to_ascii_lowercase()
    };
    let mut length = None;
    loop {
        let header = line(&mut reader);
        if header.is_empty() {
            break;
        }
        if let Some(value) = header.strip_prefix("content-length: ") {
            length = Some(value.parse::<usize>().unwrap());
        }
    }
    let mut body = Vec::new();
    let mut take = |reader: &mut BufReader<&mut TcpStream>, bytes: usize| {
        let from = body.len();
        body.resize(from + bytes, 0);
        reader.read_exact(&mut body[from..]).unwrap();
    };
    match length {
        Some(length) => take(&mut reader, length),
        None => loop {
            let size = usize::from_str_radix(&line(&mut reader), 16).unwrap();
            if size > 0 {
                take(&mut reader, size);
            }
            line(&mut reader);
            if size == 0 {
                break;
            }
        },
    }
    body
}

/// How a large body is framed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Framing {
    Length,
    /// In chunks of so many bytes.
    Chunks(usize),
}

impl Framing {
    fn write(self, stream: &mut TcpStream, head: &str, body: &[u8]) {
        match self {
            Self::Length => {
                let head = format!("{head}content-length: {}\r\n\r\n", body.len());
                stream.write_all(head.as_bytes()).unwrap();
                stream.write_all(body).unwrap();
            }
            Self::Chunks(bytes) => {
                let head = format!("{head}transfer-encoding: chunked\r\n\r\n");
                stream.write_all(head.as_bytes()).unwrap();
                for chunk in body.chunks(bytes) {
                    stream.write_all(format!("{:x}\r\n", chunk.len()).as_bytes()).unwrap();
                    stream.write_all(chunk).unwrap();
                    stream.write_all(b"\r\n").unwrap();
                }
                stream.write_all(b"0\r\n\r\n").unwrap();
            }
        }
    }
}

const LARGE: usize = 1 << 20;

/// Text without a period that chunks of a body could have, too.
fn large_text(seed: u64) -> String {
    let mut state = seed;
    let mut text = String::with_capacity(LARGE);
    while text.len() < LARGE {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        text += &format!("{:x} ", state >> 32);
    }
    text
}

/// In both directions, in every framing.
#[test]
fn bodies_of_a_megabyte_pass_unchanged_in_both_directions() {
    if !is_here() {
        return;
    }
    let received = Arc::<Mutex<Vec<u8>>>::default();
    let framing = Arc::new(Mutex::new(Framing::Length));
    let answer = json!({
        "choices": [{"text": large_text(7)}], "usage": {"prompt_tokens": 3, "completion_tokens": 1},
    });
    let answer = Arc::new(answer.to_string());
    let pod = Recorder::greeting({
        let received = Arc::clone(&received);
        let framing = Arc::clone(&framing);
        let answer = Arc::clone(&answer);
        Arc::new(move |mut stream| {
            let mut method = [0; 4];
            if stream.peek(&mut method).is_ok() && &method != b"POST" {
                return Some(Box::new(stream));
            }
            *received.lock().unwrap() = read_body(&mut stream);
            let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n";
            framing.lock().unwrap().write(&mut stream, head, answer.as_bytes());
            None
        })
    });
    let port = free_port();
    let url = format!("http://{}", pod.address);
    let epp = format!("127.0.0.1:{port}");
    let arguments = ["--pod", &url, "--model", "m", "--tokenizer", "bytes", "--epp", &epp];
    let picker = Gateway::start(&arguments, 1);
    let pods = Pods::Listed(vec![pod.address.to_string()]);
    let envoy = Envoy::start("large-bodies", port, &pods, Failure::Close);
    let head = "POST /v1/completions HTTP/1.1\r\nhost: h\r\ncontent-type: application/json\r\n\
                connection: close\r\n";
    for (number, framed) in
        [Framing::Length, Framing::Chunks(1000), Framing::Chunks(200_000)].into_iter().enumerate()
    {
        let body = json!({"model": "m", "prompt": large_text(number as u64), "max_tokens": 1});
        let body = body.to_string();
        *framing.lock().unwrap() = framed;
        let mut client = TcpStream::connect(&envoy.address).unwrap();
        client.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        framed.write(&mut client, head, body.as_bytes());
        let read = read_body(&mut client);
        assert!(*received.lock().unwrap() == body.as_bytes(), "{framed:?}: the pod's bytes differ");
        assert!(read == answer.as_bytes(), "{framed:?}: the client's bytes differ");
    }
    is_idle(&picker);
    assert_eq!(total(&picker, "wornpath_output_tokens_total"), 3);
}
