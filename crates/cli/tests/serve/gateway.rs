//! A running `wornpath serve`.

use crate::served::{Exchange, Response, Served};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A gateway, ended when dropped.
pub(crate) struct Gateway {
    pub(crate) child: Child,
    pub(crate) address: String,
}

impl Drop for Gateway {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Gateway {
    /// In front of all engines, once it has heard of as many as there are.
    pub(crate) fn before(engines: &Served, arguments: &[&str]) -> Self {
        let urls: Vec<_> = engines.engines.iter().map(|at| format!("http://{}", at.http)).collect();
        let pods = urls.iter().flat_map(|url| ["--pod", url.as_str()]);
        Self::start(&pods.chain(arguments.iter().copied()).collect::<Vec<_>>(), urls.len())
    }

    pub(crate) fn start(arguments: &[&str], pods: usize) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_wornpath"))
            .args(["serve", "--port", "0", "--reveal-pods", "--lame-duck", "0.2"])
            .args(arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let line = lines.next().expect("the gateway says where it listens").unwrap();
        let address = line.strip_prefix("listening: http://").unwrap().to_owned();
        let mut log = BufReader::new(child.stderr.take().unwrap()).lines();
        let mut up = 0;
        while up < pods {
            let line = log.next().expect("the gateway hears of its pods").unwrap();
            up += usize::from(line.contains("is up"));
        }
        // Read on, so that the gateway never waits for us; ends with the process.
        let _reader = std::thread::Builder::new().spawn(move || log.for_each(drop)).unwrap();
        Self { child, address }
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> Response {
        self.open(path, body).finish().unwrap()
    }

    pub(crate) fn open(&self, path: &str, body: &Value) -> Exchange {
        Exchange::open(&self.address, "POST", path, &body.to_string())
    }

    pub(crate) fn get(&self, path: &str) -> Response {
        Exchange::open(&self.address, "GET", path, "").finish().unwrap()
    }

    pub(crate) fn signal(&self, signal: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
    }
}

impl Response {
    /// A header's value.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.into_iter().find(|(known, _)| *known == name).map(|(_, value)| value)
    }

    /// Which pod answered.
    pub(crate) fn pod(&self) -> &str {
        self.header("x-wornpath-pod")
            .unwrap_or_else(|| panic!("no pod: {} {}", self.head, self.text))
    }
}

/// Waits until something is so.
pub(crate) fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !is_so() {
        assert!(Instant::now() < deadline, "never: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
