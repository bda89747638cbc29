//! Real brokers as processes that can be started, killed, wiped and paused.

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

pub(crate) struct Server {
    program: &'static str,
    scheme: &'static str,
    arguments: fn(port: &str, folder: &str) -> Vec<String>,
    port: u16,
    folder: PathBuf,
    child: Option<Child>,
}

impl Server {
    #[cfg(feature = "redis")]
    pub(crate) fn redis() -> Option<Self> {
        let arguments = |port: &str, folder: &str| {
            let words = ["--port", port, "--bind", "127.0.0.1", "--dir", folder];
            let safe = ["--appendonly", "yes", "--appendfsync", "always", "--save", ""];
            words.into_iter().chain(safe).map(str::to_owned).collect()
        };
        Self::new("redis-server", "redis", arguments)
    }

    #[cfg(feature = "nats")]
    pub(crate) fn nats() -> Option<Self> {
        let arguments = |port: &str, folder: &str| {
            let words =
                ["--port", port, "--addr", "127.0.0.1", "--jetstream", "--store_dir", folder];
            words.into_iter().map(str::to_owned).collect()
        };
        Self::new("nats-server", "nats", arguments)
    }

    /// Nothing, said aloud, where the program is not installed; a failure with `WORNPATH_PEERS=required`.
    fn new(
        program: &'static str,
        scheme: &'static str,
        arguments: fn(&str, &str) -> Vec<String>,
    ) -> Option<Self> {
        let here = Command::new(program).arg("--version").stdout(Stdio::null()).status().is_ok();
        let required = std::env::var("WORNPATH_PEERS").is_ok_and(|value| value == "required");
        assert!(here || !required, "{program} is missing");
        if !here {
            eprintln!("SKIPPED: {program} is missing");
            return None;
        }
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let folder = std::env::temp_dir().join(format!("wornpath-{program}-{port}"));
        Some(Self { program, scheme, arguments, port, folder, child: None })
    }

    pub(crate) fn url(&self) -> String {
        format!("{}://127.0.0.1:{}", self.scheme, self.port)
    }

    pub(crate) fn start(&mut self) {
        std::fs::create_dir_all(&self.folder).unwrap();
        let arguments = (self.arguments)(&self.port.to_string(), self.folder.to_str().unwrap());
        let mut command = Command::new(self.program);
        command.args(arguments).stdout(Stdio::null()).stderr(Stdio::null());
        self.child = Some(command.spawn().unwrap());
    }

    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    pub(crate) fn wipe(&self) {
        std::fs::remove_dir_all(&self.folder).unwrap();
    }

    pub(crate) fn pause(&self) {
        self.signal("-STOP");
    }

    pub(crate) fn resume(&self) {
        self.signal("-CONT");
    }

    fn signal(&self, signal: &str) {
        let id = self.child.as_ref().unwrap().id().to_string();
        assert!(Command::new("kill").args([signal, &id]).status().unwrap().success());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}
