//! A gateway with its admin plane in this process, and a small HTTP client.
#![allow(dead_code, reason = "each test uses its part")]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use crate::log;
use serde_json::Value;
use tokio::runtime::Runtime;
use wornpath_admin::{AdminContext, Logging, Setup, start};
use wornpath_config::{Config, Tokenizers};
use wornpath_gateway::Gateway;

/// An empty folder for one test.
pub(crate) fn folder(test: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(test);
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

/// A gateway that runs until it is dropped.
pub(crate) struct TestServer {
    pub(crate) gateway: Arc<Gateway>,
    pub(crate) context: AdminContext,
    /// Last, so that it is dropped after all that runs on it.
    pub(crate) runtime: Runtime,
}

pub(crate) struct Levels(Mutex<String>);

impl Logging for Levels {
    fn level(&self) -> String {
        self.0.lock().unwrap().clone()
    }

    fn set_level(&self, level: &str) -> Result<(), String> {
        if !["error", "warn", "info", "debug", "trace"].contains(&level) {
            return Err(format!("`{level}` is no level"));
        }
        level.clone_into(&mut self.0.lock().unwrap());
        Ok(())
    }
}

impl TestServer {
    /// Starts with the configuration at `path`.
    pub(crate) fn start(path: &Path) -> Self {
        log::keep();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        let config = Config::read(path).unwrap();
        let mut tokenizers = Tokenizers::new(path);
        let settings = config.settings(&mut tokenizers).unwrap();
        let gateway = Gateway::new(settings, runtime.handle().clone(), 7).unwrap();
        let logging = Box::new(Levels(Mutex::new("info".to_owned())));
        let setup =
            Setup { path: Some(path.to_owned()), config, tokenizers, logging, options: Vec::new() };
        let context = start(&gateway, setup).unwrap();
        Self { gateway, context, runtime }
    }

    pub(crate) fn admin(&self) -> SocketAddr {
        self.context.admin.unwrap()
    }

    /// Sends a request to the admin plane, with the content type that its path takes.
    pub(crate) fn ask(&self, method: &str, path: &str, body: &str) -> (u16, Value) {
        let kind = if path.ends_with("/check") { "application/yaml" } else { "application/json" };
        let (status, text) = call(self.admin(), method, path, &[("content-type", kind)], body);
        (status, serde_json::from_str(&text).unwrap_or(Value::String(text)))
    }

    /// The names of all pods.
    pub(crate) fn pods(&self) -> Vec<String> {
        let snapshot = self.gateway.snapshot();
        snapshot.entries().iter().map(|entry| entry.pod.facts().name.to_string()).collect()
    }

    /// Polls until a condition holds, for at most 15 s.
    pub(crate) fn until(&self, what: &str, holds: impl Fn(&Self) -> bool) {
        self.runtime.block_on(async {
            for _ in 0..600 {
                if holds(self) {
                    return;
                }
                tokio::time::sleep(std::time::Duration::from_millis(25)).await;
            }
            panic!("not within 15 s: {what}");
        });
    }
}

/// Sends one HTTP request on a new connection.
pub(crate) fn call(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> (u16, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    let mut head = format!(
        "{method} {path} HTTP/1.1\r\nconnection: close\r\ncontent-length: {}\r\n",
        body.len()
    );
    if !headers.iter().any(|(name, _)| *name == "host") {
        head.push_str(&format!("host: {address}\r\n"));
    }
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    stream.write_all(format!("{head}\r\n{body}").as_bytes()).unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).unwrap();
    let (head, body) = response.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, body.to_owned())
}
