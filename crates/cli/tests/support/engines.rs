//! Simulated engines in a process of their own, and a small HTTP client.

use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Addresses of an engine, `host:port` each.
#[derive(Clone, Debug)]
pub(crate) struct Ports {
    pub(crate) http: String,
    pub(crate) events: String,
    pub(crate) replay: String,
}

/// A running `wornpath engine`, ended when dropped.
pub(crate) struct Engines {
    child: Child,
    pub(crate) engines: Vec<Ports>,
    pub(crate) control: String,
}

impl Drop for Engines {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Engines {
    /// Starts engines on free ports, a hundred times faster than real ones.
    pub(crate) fn start(arguments: &[&str]) -> Self {
        Self::start_at("100", arguments)
    }

    pub(crate) fn start_at(speed: &str, arguments: &[&str]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_wornpath"))
            .args(["engine", "--port", "0", "--speed", speed])
            .args(arguments)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut engines = Vec::new();
        loop {
            let line = lines.next().expect("the engine prints its addresses").unwrap();
            let addresses: Vec<_> = line
                .split("//")
                .skip(1)
                .map(|rest| rest.split(' ').next().unwrap().to_owned())
                .collect();
            match &addresses[..] {
                [http, events, replay] => engines.push(Ports {
                    http: http.clone(),
                    events: events.clone(),
                    replay: replay.clone(),
                }),
                [control] => return Self { child, engines, control: control.clone() },
                _ => panic!("unexpected line: {line}"),
            }
        }
    }

    pub(crate) fn control(&self, method: &str, path: &str, body: &str) -> Response {
        Exchange::open(&self.control, method, path, body).finish().unwrap()
    }

    pub(crate) fn set_faults(&self, engine: usize, faults: &str) {
        let response = self.control("PUT", &format!("/engines/{engine}/faults"), faults);
        assert_eq!(response.status, 200, "{}", response.text);
    }

    pub(crate) fn complete(&self, engine: usize, body: &Value) -> Response {
        self.post(engine, "/v1/completions", body)
    }

    pub(crate) fn post(&self, engine: usize, path: &str, body: &Value) -> Response {
        let address = &self.engines[engine].http;
        Exchange::open(address, "POST", path, &body.to_string()).finish().unwrap()
    }

    pub(crate) fn get(&self, engine: usize, path: &str) -> Response {
        Exchange::open(&self.engines[engine].http, "GET", path, "").finish().unwrap()
    }

    /// The value of a metric, labels aside.
    pub(crate) fn metric(&self, engine: usize, name: &str) -> f64 {
        let page = self.get(engine, "/metrics").text;
        let line = page.lines().find(|line| line.starts_with(name));
        line.unwrap_or_else(|| panic!("no {name} in {page}"))
            .rsplit(' ')
            .next()
            .unwrap()
            .parse()
            .unwrap()
    }
}

#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) text: String,
}

impl Response {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|_| panic!("not JSON: {}", self.text))
    }

    pub(crate) fn cached_tokens(&self) -> u64 {
        let json = self.json();
        json["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().expect(&self.text)
    }

    /// The payloads of a stream of events.
    pub(crate) fn events(&self) -> Vec<&str> {
        self.text.split("\n\n").filter_map(|event| event.strip_prefix("data: ")).collect()
    }
}

/// A request in flight.
pub(crate) struct Exchange {
    stream: BufReader<TcpStream>,
}

/// The connection closed in the middle of a response.
#[derive(Debug)]
pub(crate) struct Broken {
    pub(crate) text: String,
}

impl Exchange {
    pub(crate) fn open(address: &str, method: &str, path: &str, body: &str) -> Self {
        Self::send(address, &format!("{method} {path} HTTP/1.1\r\nhost: {address}\r\n"), body)
    }

    /// Posts with more headers.
    #[allow(dead_code, reason = "only the tests of the gateway need headers")]
    pub(crate) fn open_with(
        address: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &Value,
    ) -> Self {
        let more: String =
            headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        let head = format!("POST {path} HTTP/1.1\r\nhost: {address}\r\n{more}");
        Self::send(address, &head, &body.to_string())
    }

    /// Sends a head, to which the length of the body is added, and the body.
    pub(crate) fn send(address: &str, head: &str, body: &str) -> Self {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
        let length = body.len();
        let is_typed = body.is_empty() || head.to_lowercase().contains("\r\ncontent-type:");
        let kind = if is_typed { "" } else { "content-type: application/json\r\n" };
        // In one write: a server that refuses the head may close the connection before the rest.
        let all =
            format!("{head}{kind}connection: close\r\ncontent-length: {length}\r\n\r\n{body}");
        stream.write_all(all.as_bytes()).unwrap();
        Self { stream: BufReader::new(stream) }
    }

    /// Whether no byte arrives within `time`.
    pub(crate) fn is_silent_for(&mut self, time: Duration) -> bool {
        self.stream.get_ref().set_read_timeout(Some(time)).unwrap();
        self.stream.fill_buf().is_err()
    }

    /// Reads lines until one has `text` in it.
    pub(crate) fn read_past(&mut self, text: &str) -> String {
        let mut read = String::new();
        while !read.contains(text) {
            assert!(self.stream.read_line(&mut read).unwrap() > 0, "ended before `{text}`: {read}");
        }
        read
    }

    /// The body of an answer of which [`Self::read_past`] has read the beginning.
    #[allow(dead_code, reason = "only the tests of continued streams stop in the middle")]
    pub(crate) fn finish_after(mut self, begun: &str) -> std::io::Result<String> {
        let mut rest = String::new();
        self.stream.read_to_string(&mut rest)?;
        let all = format!("{begun}{rest}");
        let (_, mut chunks) = all.split_once("\r\n\r\n").unwrap_or_default();
        let mut text = String::new();
        while let Some((size, chunk)) = chunks.split_once("\r\n") {
            let size = usize::from_str_radix(size, 16).unwrap_or_default();
            if size == 0 {
                break;
            }
            text.push_str(&chunk[..size]);
            chunks = &chunk[size + 2..];
        }
        Ok(text)
    }

    pub(crate) fn finish(mut self) -> Result<Response, Broken> {
        let broken = |text: &str| Broken { text: text.to_owned() };
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if !self.stream.read_line(&mut head).is_ok_and(|bytes| bytes > 0) {
                return Err(broken(&head));
            }
        }
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let mut text = String::new();
        if !head.contains("transfer-encoding: chunked") {
            self.stream.read_to_string(&mut text).unwrap();
            return Ok(Response { status, head, text });
        }
        loop {
            let mut size = String::new();
            if !self.stream.read_line(&mut size).is_ok_and(|bytes| bytes > 0) {
                return Err(broken(&text));
            }
            let size = usize::from_str_radix(size.trim(), 16).unwrap();
            let mut chunk = vec![0; size + 2];
            self.stream.read_exact(&mut chunk).map_err(|_| broken(&text))?;
            if size == 0 {
                return Ok(Response { status, head, text });
            }
            text.push_str(std::str::from_utf8(&chunk[..size]).unwrap());
        }
    }
}
