//! Timeouts of calls to pods: while connecting, and of an answer without end.

use crate::support::engines::Engines;
use crate::support::gateway::{Gateway, eventually};
use crate::support::recorder::Recorder;
use serde_json::json;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc;
use std::time::{Duration, Instant};

const ASK: &str = "/v1/completions";

/// An address where an engine listens that has stopped to accept connections, and whose queue of
/// them is full: a new connection is not even refused.
struct Clogged {
    address: SocketAddr,
    /// Asks the engine to stop, and gets its socket, which must stay open.
    stop: Option<mpsc::Receiver<TcpListener>>,
    /// What fills the queue.
    queue: Vec<TcpStream>,
    _listener: Option<TcpListener>,
}

impl Clogged {
    /// At first it answers what it is asked, as one that serves the model `m`.
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (gives_back, stop) = mpsc::channel();
        let serve = move || {
            loop {
                let (mut stream, _) = listener.accept().unwrap();
                let mut request = [0; 4096];
                let read = stream.read(&mut request).unwrap_or(0);
                if request[..read].starts_with(b"STOP") {
                    gives_back.send(listener).unwrap();
                    return;
                }
                let models = r#"{"data": [{"id": "m"}]}"#;
                let length = models.len();
                let head =
                    format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\nconnection: close");
                let _ = stream.write_all(format!("{head}\r\n\r\n{models}").as_bytes());
            }
        };
        let _ends_when_told = std::thread::Builder::new().spawn(serve).unwrap();
        Self { address, stop: Some(stop), queue: Vec::new(), _listener: None }
    }

    fn clog(&mut self) {
        TcpStream::connect(self.address).unwrap().write_all(b"STOP").unwrap();
        self._listener = Some(self.stop.take().unwrap().recv().unwrap());
        let soon = Duration::from_millis(300);
        while let Ok(stream) = TcpStream::connect_timeout(&self.address, soon) {
            self.queue.push(stream);
            assert!(self.queue.len() < 10_000, "the queue has no end");
        }
    }
}

#[test]
fn a_pod_that_accepts_no_connections_is_abandoned_after_the_connect_timeout() {
    let engines = Engines::start(&["--model", "m"]);
    let mut clogged = Clogged::start();
    let good = &engines.engines[0].http;
    let text = format!(
        "pods: [{{url: \"http://{}\"}}, {{url: \"http://{good}\"}}]\ntimeouts: {{connect: 400ms}}\n\
         profiles:\n  even: {{filter: [healthy, model], pick: round_robin}}\n",
        clogged.address
    );
    let gateway = Gateway::configured("timeouts_connect", &text, 2);
    clogged.clog();
    let slowest = (0..2).map(|_| {
        let started = Instant::now();
        let answer = gateway.post(ASK, &json!({"prompt": "a"}));
        assert_eq!((answer.status, answer.pod()), (200, &**good));
        started.elapsed()
    });
    let slowest = slowest.max().unwrap();
    // By itself the system would try for minutes, and the first byte has two of them.
    assert!(
        slowest >= Duration::from_millis(400) && slowest < Duration::from_secs(4),
        "{slowest:?}"
    );
    let calls = gateway.ask("GET", "/decisions?last=2", "").text;
    assert!(calls.contains("connect timeout after 400ms"), "{calls}");
}

#[test]
fn an_answer_without_end_is_ended_after_the_total_timeout_and_frees_the_engine() {
    let engines = Engines::start_at("1", &["--model", "m"]);
    let text = format!(
        "pods: [{{url: \"http://{}\"}}]\ntimeouts: {{total: 1s}}\n",
        engines.engines[0].http
    );
    let gateway = Gateway::configured("timeouts_total", &text, 1);
    let running = || engines.metric(0, "vllm:num_requests_running");
    let mut body = json!({"prompt": "a", "max_tokens": 100_000, "ignore_eos": true});
    for (stream, status) in [(true, 200), (false, 504)] {
        body["stream"] = json!(stream);
        let started = Instant::now();
        let answer = gateway.post(ASK, &body);
        let took = started.elapsed();
        assert_eq!(answer.status, status, "{}", answer.text);
        assert!(took >= Duration::from_secs(1) && took < Duration::from_secs(5), "{took:?}");
        let last = answer.text.trim_end().rsplit("\n\n").next().unwrap();
        assert!(last.contains("total timeout: response not complete after 1s"), "{last}");
        if stream {
            let pieces = answer.text.matches("\"text\":").count();
            assert!(pieces > 10, "it was under way: {}", answer.text);
            assert!(last.starts_with("event: error\n") && last.contains("\"upstream_lost\""));
            assert!(!answer.text.contains("[DONE]"));
        }
        eventually("the engine has stopped", || running() < 1.0);
    }
}

#[test]
fn an_answer_that_is_not_streamed_has_the_time_that_generating_it_takes() {
    let slow = Recorder::start();
    let text = format!(
        "pods: [{{url: \"http://{}\", model: m}}]\ntimeouts: {{first_byte: 300ms, unstreamed: 20s}}\n",
        slow.address
    );
    let gateway = Gateway::configured("timeouts_unstreamed", &text, 1);
    slow.answer_after(Duration::from_millis(900));
    let answer = gateway.post(ASK, &json!({"model": "m", "prompt": "a"}));
    assert_eq!((answer.status, slow.posted().len()), (200, 1), "{}", answer.text);
    let streamed = gateway.post(ASK, &json!({"model": "m", "prompt": "a", "stream": true}));
    assert_eq!(streamed.status, 504, "{}", streamed.text);
    let embedded = gateway.post("/v1/embeddings", &json!({"model": "m", "input": "a"}));
    assert_eq!(embedded.status, 504, "nothing is generated: {}", embedded.text);
}
