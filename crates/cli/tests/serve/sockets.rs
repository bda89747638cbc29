//! Malformed and smuggled requests over a raw socket: each is refused, or goes on as exactly one
//! request.

use crate::support::gateway::{Gateway, eventually};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Everything that comes back for these bytes, until the other side closes or is silent.
pub(crate) fn exchange(address: &str, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_millis(1500))).unwrap();
    // A gateway that has refused already may have closed.
    let _ = stream.write_all(bytes);
    let mut answer = Vec::new();
    let mut buffer = [0; 4096];
    while let Ok(count @ 1..) = stream.read(&mut buffer) {
        answer.extend_from_slice(&buffer[..count]);
    }
    String::from_utf8_lossy(&answer).into_owned()
}

/// An engine that keeps every byte it gets, and answers each connection once.
struct Witness {
    address: String,
    seen: Arc<Mutex<Vec<String>>>,
    /// Connections that are not recorded yet.
    open: Arc<AtomicUsize>,
}

impl Witness {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let seen = Arc::<Mutex<Vec<String>>>::default();
        let kept = Arc::clone(&seen);
        let open = Arc::<AtomicUsize>::default();
        let counted = Arc::clone(&open);
        let _listening = std::thread::Builder::new()
            .spawn(move || {
                for stream in listener.incoming().flatten() {
                    let kept = Arc::clone(&kept);
                    let open = Arc::clone(&counted);
                    open.fetch_add(1, Relaxed);
                    let _one = std::thread::Builder::new().spawn(move || {
                        answer(stream, &kept);
                        open.fetch_sub(1, Relaxed);
                    });
                }
            })
            .unwrap();
        Self { address, seen, open }
    }

    /// Waits until every connection that was made before is recorded. They are accepted in order.
    fn settle(&self) {
        let last = exchange(&self.address, b"GET /health HTTP/1.1\r\n\r\n");
        assert!(last.starts_with("HTTP/1.1 200 "), "{last}");
        eventually("all connections are recorded", || self.open.load(Relaxed) == 0);
    }
}

/// What the router asks on its own account.
const OWN: [&str; 8] = [
    "GET /v1/models",
    "GET /metrics",
    "GET /health",
    "GET /version",
    "GET /kv_event_sources",
    "GET /get_server_info",
    "GET /tokenizer_info",
    "POST /tokenize ",
];

fn answer(mut stream: TcpStream, kept: &Mutex<Vec<String>>) {
    stream.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    let mut all = Vec::new();
    let mut buffer = [0; 65_536];
    while let Ok(count @ 1..) = stream.read(&mut buffer) {
        all.extend_from_slice(&buffer[..count]);
        if is_complete(&all) {
            break;
        }
    }
    let text = String::from_utf8_lossy(&all).into_owned();
    let body = if text.starts_with("GET /v1/models") {
        r#"{"data":[{"id":"m"}]}"#
    } else {
        r#"{"witness":true}"#
    };
    let _ = write!(
        stream,
        "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    // What comes after a complete request would be a smuggled second one.
    while let Ok(count @ 1..) = stream.read(&mut buffer) {
        all.extend_from_slice(&buffer[..count]);
    }
    let text = String::from_utf8_lossy(&all).into_owned();
    // The gateway itself asks for these.
    let is_own = OWN.iter().any(|own| text.starts_with(own));
    if !is_own && !text.is_empty() {
        kept.lock().unwrap().push(text);
    }
}

fn is_complete(bytes: &[u8]) -> bool {
    let text = String::from_utf8_lossy(bytes);
    let Some((head, body)) = text.split_once("\r\n\r\n") else { return false };
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    body.len() >= length.map_or(0, |length| length.parse().unwrap())
}

/// What must become of the bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Becomes {
    /// Refused; nothing reaches an engine.
    Refused,
    /// One request reaches an engine.
    One,
    /// Either: both are safe.
    AtMostOne,
}

const BODY: &str = r#"{"prompt":"a"}"#;

fn cases() -> Vec<(String, Becomes)> {
    use Becomes::{AtMostOne, One, Refused};
    let length = BODY.len();
    let mut cases = Vec::new();
    let mut heads = |becomes, heads: &[&str]| {
        for head in heads {
            let request =
                format!("POST /v1/completions HTTP/1.1\r\nhost: h\r\n{head}\r\n\r\n{BODY}");
            cases.push((request, becomes));
        }
    };
    let good = format!("content-length: {length}");
    let also = |line: &str| format!("content-length: {length}\r\n{line}");
    heads(
        One,
        &[&good, &also("x-a: b"), &also("connection: close"), &also("expect: 100-continue")],
    );
    heads(
        One,
        &[
            &also("connection: x-a\r\nx-a: b"),
            &also("te: trailers"),
            &also("upgrade: h2c\r\nconnection: upgrade"),
        ],
    );
    heads(One, &[&also("x-empty:"), &also("keep-alive: 5"), &also("x-forwarded-for: 1.2.3.4")]);
    heads(AtMostOne, &[&also(&good)]);
    heads(
        AtMostOne,
        &[
            "content-length: +14",
            "content-length: 14, 14",
            "content-length:14 ",
            "Content-Length\t: 14",
        ],
    );
    heads(
        Refused,
        &[
            "content-length: 1e1",
            "content-length: -1",
            "content-length: 0x0e",
            "content-length: 14 14",
        ],
    );
    heads(
        Refused,
        &["content-length: 99999999999999999999", "content-length: abc", "content-length: 14;q=1"],
    );
    heads(Refused, &["content-length: 13\r\ncontent-length: 14", "content-length: 17179869184"]);
    heads(
        Refused,
        &[
            "transfer-encoding: gzip",
            "transfer-encoding: chunked, identity",
            "transfer-encoding: identity, gzip",
        ],
    );
    heads(
        AtMostOne,
        &[
            &also("transfer-encoding: chunked"),
            &also("transfer-encoding: xchunked"),
            &also("transfer-encoding: identity"),
        ],
    );
    heads(
        AtMostOne,
        &[
            "transfer-encoding: chunked\r\ntransfer-encoding: chunked",
            "transfer-encoding: chunked, chunked",
        ],
    );
    heads(
        AtMostOne,
        &[
            "transfer-encoding:\tchunked",
            "transfer-encoding: \"chunked\"",
            "transfer-encoding: chunked;x=1",
        ],
    );
    heads(Refused, &["bad header", "x y: z", ": empty", "x\u{0}: y", "x-a: \u{1}b", "x-a : b"]);
    heads(Refused, &[" folded: yes", "x-a: b\r\n folded", "x-a: b\r\n\tfolded"]);
    heads(
        Refused,
        &[
            &also("content-encoding: gzip"),
            &also("content-encoding: br"),
            &also("content-encoding: deflate, gzip"),
        ],
    );
    let mut lines = |becomes, lines: &[&str]| {
        for line in lines {
            cases.push((format!("{line}\r\nhost: h\r\n{good}\r\n\r\n{BODY}"), becomes));
        }
    };
    lines(
        Refused,
        &[
            "POST /v1/completions HTTP/1.2",
            "POST /v1/completions HTTP/9",
            "POST /v1/completions",
            "POST",
        ],
    );
    lines(
        Refused,
        &[
            "POST  /v1/completions HTTP/1.1",
            "POST /v1/completions  HTTP/1.1",
            "POST /v1/comp letions HTTP/1.1",
        ],
    );
    lines(
        Refused,
        &[
            "PO ST /v1/completions HTTP/1.1",
            "P\u{0}ST /v1/completions HTTP/1.1",
            " POST /v1/completions HTTP/1.1",
        ],
    );
    lines(
        Refused,
        &[
            "POST v1/completions HTTP/1.1",
            "POST \\v1 HTTP/1.1",
            "GET / HTTP/1.1\u{b}",
            "CONNECT h:80 HTTP/1.1",
        ],
    );
    lines(
        Refused,
        &[
            "POST /v1/completions http/1.1",
            "POST /v1/completions HTTP/1.1 x",
            "\u{16}\u{3}\u{1}",
            "PRI * HTTP/2.0",
        ],
    );
    lines(
        AtMostOne,
        &[
            "POST http://other/v1/completions HTTP/1.1",
            "POST /v1/completions?a=b HTTP/1.1",
            "POST //v1/completions HTTP/1.1",
        ],
    );
    lines(
        AtMostOne,
        &[
            "POST /v1/../v1/completions HTTP/1.1",
            "POST /v1/completions%00 HTTP/1.1",
            "POST /v1/completions HTTP/1.0",
            "OPTIONS * HTTP/1.1",
        ],
    );
    lines(
        AtMostOne,
        &[
            "POST /v1/completions#x HTTP/1.1",
            "\r\nPOST /v1/completions HTTP/1.1",
            "TRACE /v1/completions HTTP/1.1",
        ],
    );
    let mut chunks = |becomes, chunks: &[&str]| {
        for chunk in chunks {
            let head = "POST /v1/completions HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked";
            cases.push((format!("{head}\r\n\r\n{chunk}"), becomes));
        }
    };
    let e = format!("e\r\n{BODY}\r\n");
    chunks(
        One,
        &[
            &format!("{e}0\r\n\r\n"),
            &format!("7\r\n{}\r\n7\r\n{}\r\n0\r\n\r\n", &BODY[..7], &BODY[7..]),
        ],
    );
    chunks(
        AtMostOne,
        &[
            &format!("e;x=y\r\n{BODY}\r\n0\r\n\r\n"),
            &format!("00e\r\n{BODY}\r\n0\r\n\r\n"),
            &format!("{e}0\r\nx-trailer: 1\r\n\r\n"),
        ],
    );
    chunks(
        AtMostOne,
        &[
            &format!("{e}0;a=b\r\n\r\n"),
            &format!("E\r\n{BODY}\r\n0\r\n\r\n"),
            &format!("e \r\n{BODY}\r\n0\r\n\r\n"),
        ],
    );
    chunks(Refused, &["x\r\n", "-1\r\n", "0x0e\r\n", "\r\n", "fffffffffffffffff\r\n", "e\n\r\n"]);
    chunks(
        Refused,
        &[&format!("e\r\n{BODY}xx0\r\n\r\n"), &format!("d\r\n{BODY}\r\n0\r\n\r\n"), "e"],
    );
    chunks(Refused, &["ffffffff\r\nabc", "1000001\r\n"]);
    let mut bodies = |becomes, bodies: &[&str]| {
        for body in bodies {
            let head = format!(
                "POST /v1/completions HTTP/1.1\r\nhost: h\r\ncontent-length: {}",
                body.len()
            );
            cases.push((format!("{head}\r\n\r\n{body}"), becomes));
        }
    };
    bodies(
        Refused,
        &[
            "",
            "{",
            "[]",
            "null",
            "{\"a\":1}}",
            "{\"a\":1}{\"b\":2}",
            "{'a':1}",
            "{\"a\":NaN}",
            "\u{feff}{}",
            "{\"a\":\"\u{1}\"}",
        ],
    );
    bodies(
        Refused,
        &[
            &"[".repeat(10_000),
            &"{\"a\":".repeat(10_000),
            "{\"model\":1}",
            "{\"a\":01}",
            "{\"a\":\"\\ud800\"}x",
        ],
    );
    let many: String = (0..200).map(|number| format!("x-{number}: y\r\n")).collect();
    cases.push((format!("GET /version HTTP/1.1\r\nhost: h\r\n{many}\r\n"), Refused));
    let long = "x".repeat(200_000);
    cases.push((format!("GET /version HTTP/1.1\r\nhost: h\r\nx: {long}\r\n\r\n"), Refused));
    cases.push((format!("GET /{long} HTTP/1.1\r\nhost: h\r\n\r\n"), Refused));
    cases
}

#[test]
fn a_raw_request_is_refused_or_forwarded_as_exactly_one_request() {
    let witness = Witness::start();
    let url = format!("http://{}", witness.address);
    let gateway = Gateway::start(&["--pod", &url, "--policy", "round-robin"], 1);
    let cases = cases();
    assert!(cases.len() >= 100, "only {} cases", cases.len());
    let numbered = || cases.iter().enumerate();
    let try_all = |cases: &mut dyn Iterator<Item = (usize, &(String, Becomes))>| {
        std::thread::scope(|scope| {
            for (number, (bytes, becomes)) in cases {
                let address = &gateway.address;
                scope.spawn(move || one(address, number, bytes, *becomes));
            }
        });
    };
    try_all(&mut numbered().filter(|(_, (_, becomes))| *becomes == Becomes::Refused));
    witness.settle();
    let reached = witness.seen.lock().unwrap().clone();
    assert!(reached.is_empty(), "no refused request reaches an engine: {reached:?}");
    try_all(&mut numbered().filter(|(_, (_, becomes))| *becomes != Becomes::Refused));
    assert_eq!(gateway.get("/health").status, 200);
    witness.settle();
    let seen = witness.seen.lock().unwrap();
    for request in seen.iter() {
        let heads = request.matches(" HTTP/1.1\r\n").count();
        assert_eq!(heads, 1, "two requests in one: {request}");
        let lower = request.to_ascii_lowercase();
        for never in ["transfer-encoding", "connection:", "keep-alive", "te:", "upgrade", "expect"]
        {
            assert!(!lower.contains(&format!("\r\n{never}")), "{never} went on: {request}");
        }
    }
    let expected = cases.iter().filter(|(_, becomes)| *becomes == Becomes::One).count();
    assert!(seen.len() >= expected, "{} of at least {expected} came", seen.len());
}

fn one(address: &str, number: usize, bytes: &str, becomes: Becomes) {
    let answer = exchange(address, bytes.as_bytes());
    let shown = &bytes[..bytes.len().min(200)];
    let went_on = answer.matches("{\"witness\":true}").count();
    match becomes {
        Becomes::One => assert_eq!(went_on, 1, "case {number}: {shown:?} gave {answer}"),
        Becomes::AtMostOne => assert!(went_on <= 1, "case {number}: {shown:?} gave {answer}"),
        Becomes::Refused => assert_eq!(went_on, 0, "case {number}: {shown:?} gave {answer}"),
    }
}
