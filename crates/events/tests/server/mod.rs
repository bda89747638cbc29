//! Real brokers as processes that can be started, killed, wiped and paused.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering::Relaxed};

pub(crate) struct Server {
    program: &'static str,
    scheme: &'static str,
    arguments: fn(port: &str, folder: &str) -> Vec<String>,
    port: u16,
    /// Where it really listens, if it chooses that itself and says so.
    chosen: Option<Arc<AtomicU16>>,
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

    /// Speaks TLS only, with the files `server.crt`, `server.key` and `ca.crt` in its folder.
    #[cfg(feature = "redis")]
    #[allow(dead_code, reason = "each test binary uses its part of this module")]
    pub(crate) fn tls_redis() -> Option<Self> {
        let arguments = |port: &str, folder: &str| {
            let words = ["--port", "0", "--tls-port", port, "--bind", "127.0.0.1", "--save", ""];
            let file = |option: &str, name: &str| [option.to_owned(), format!("{folder}/{name}")];
            let words = words.into_iter().chain(["--dir", folder, "--tls-auth-clients", "no"]);
            let files = [
                file("--tls-cert-file", "server.crt"),
                file("--tls-key-file", "server.key"),
                file("--tls-ca-cert-file", "ca.crt"),
            ];
            words.map(str::to_owned).chain(files.concat()).collect()
        };
        Self::new("redis-server", "rediss", arguments)
    }

    /// Speaks TLS only, with the files `server.crt` and `server.key` in its folder.
    #[cfg(feature = "nats")]
    #[allow(dead_code, reason = "each test binary uses its part of this module")]
    pub(crate) fn tls_nats() -> Option<Self> {
        let arguments = |port: &str, folder: &str| {
            let words = ["--port", port, "--addr", "127.0.0.1", "--jetstream", "--tls"];
            let file = |option: &str, name: &str| [option.to_owned(), format!("{folder}/{name}")];
            let files = [
                file("--store_dir", "store"),
                file("--tlscert", "server.crt"),
                file("--tlskey", "server.key"),
            ];
            words.map(str::to_owned).into_iter().chain(files.concat()).collect()
        };
        Self::new("nats-server", "tls", arguments)
    }

    /// Writes a file to its folder.
    #[allow(dead_code, reason = "each test binary uses its part of this module")]
    pub(crate) fn put(&self, name: &str, text: &str) {
        std::fs::create_dir_all(&self.folder).unwrap();
        std::fs::write(self.folder.join(name), text).unwrap();
    }

    /// Wants a user and a password.
    #[cfg(feature = "nats")]
    #[allow(dead_code, reason = "each test binary uses its part of this module")]
    pub(crate) fn guarded_nats() -> Option<Self> {
        let arguments = |port: &str, folder: &str| {
            let words =
                ["--port", port, "--addr", "127.0.0.1", "--jetstream", "--store_dir", folder];
            words.into_iter().chain(["--user", "me", "--pass", "p@ss"]).map(str::to_owned).collect()
        };
        Self::new("nats-server", "nats", arguments)
    }

    /// Wants a token.
    #[cfg(feature = "nats")]
    #[allow(dead_code, reason = "each test binary uses its part of this module")]
    pub(crate) fn nats_with_token() -> Option<Self> {
        let arguments = |port: &str, folder: &str| {
            let words =
                ["--port", port, "--addr", "127.0.0.1", "--jetstream", "--store_dir", folder];
            words.into_iter().chain(["--auth", "t0ken"]).map(str::to_owned).collect()
        };
        Self::new("nats-server", "nats", arguments)
    }

    /// Wants a password.
    #[cfg(feature = "redis")]
    #[allow(dead_code, reason = "each test binary uses its part of this module")]
    pub(crate) fn guarded_redis() -> Option<Self> {
        let arguments = |port: &str, folder: &str| {
            let words = ["--port", port, "--bind", "127.0.0.1", "--dir", folder, "--save", ""];
            words.into_iter().chain(["--requirepass", "p@ss:w/rd"]).map(str::to_owned).collect()
        };
        Self::new("redis-server", "redis", arguments)
    }

    /// Chooses another port at each start, so clients are led to it from the one they know.
    #[cfg(feature = "kafka")]
    pub(crate) fn kafka() -> Option<Self> {
        let probe = Command::new("python3").args(["-c", "import confluent_kafka"]).status();
        let here = probe.is_ok_and(|status| status.success());
        let required = std::env::var("WORNPATH_PEERS").is_ok_and(|value| value == "required");
        assert!(here || !required, "python3 with confluent-kafka is missing");
        if !here {
            eprintln!("SKIPPED: python3 with confluent-kafka is missing");
            return None;
        }
        const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/server/kafka.py");
        let mut server = Self::new("python3", "kafka", |_, _| {
            [SCRIPT, "kv", "kv-alive"].map(str::to_owned).to_vec()
        })?;
        let chosen = Arc::<AtomicU16>::default();
        let known = TcpListener::bind(("127.0.0.1", server.port)).unwrap();
        let target = Arc::clone(&chosen);
        let _door = std::thread::Builder::new().spawn(move || lead(&known, &target)).unwrap();
        server.chosen = Some(chosen);
        Some(server)
    }

    /// Nothing, said aloud, where the program is not installed; a failure with
    /// `WORNPATH_PEERS=required`.
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
        Some(Self { program, scheme, arguments, port, chosen: None, folder, child: None })
    }

    pub(crate) fn url(&self) -> String {
        format!("{}://127.0.0.1:{}", self.scheme, self.port)
    }

    /// The port that a started broker tells its clients.
    #[cfg(feature = "kafka")]
    #[allow(dead_code, reason = "each test binary uses its part of this module")]
    pub(crate) fn advertised(&self) -> u16 {
        self.chosen.as_ref().unwrap().load(Relaxed)
    }

    pub(crate) fn start(&mut self) {
        std::fs::create_dir_all(&self.folder).unwrap();
        let arguments = (self.arguments)(&self.port.to_string(), self.folder.to_str().unwrap());
        let mut command = Command::new(self.program);
        command.args(arguments).stdout(Stdio::null()).stderr(Stdio::null());
        if let Some(chosen) = &self.chosen {
            let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
            let mut line = String::new();
            BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
            chosen.store(line.trim().parse().unwrap(), Relaxed);
            self.child = Some(child);
            return;
        }
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

/// Leads every connection on to wherever the server is now; for as long as the process lives.
#[cfg(feature = "kafka")]
fn lead(known: &TcpListener, target: &AtomicU16) {
    use std::io::copy;
    use std::net::TcpStream;
    for client in known.incoming() {
        let Ok(client) = client else { continue };
        let Ok(server) = TcpStream::connect(("127.0.0.1", target.load(Relaxed))) else { continue };
        let mut from = client.try_clone().unwrap();
        let mut to = server.try_clone().unwrap();
        let there = move || {
            let _ = copy(&mut from, &mut to);
            let _ = to.shutdown(std::net::Shutdown::Both);
        };
        let mut from = server;
        let mut to = client;
        let back = move || {
            let _ = copy(&mut from, &mut to);
            let _ = to.shutdown(std::net::Shutdown::Both);
        };
        let _threads =
            [std::thread::Builder::new().spawn(there), std::thread::Builder::new().spawn(back)];
    }
}
