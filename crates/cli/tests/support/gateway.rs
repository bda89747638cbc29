//! A running `wornpath serve`.

use super::engines::{Engines, Exchange, Response};
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// A gateway, ended when dropped.
pub(crate) struct Gateway {
    pub(crate) child: Child,
    pub(crate) address: String,
    /// Address of the admin plane, if `--admin` was given.
    pub(crate) admin: Option<String>,
    log: Arc<Mutex<String>>,
}

impl Drop for Gateway {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Gateway {
    /// Starts a gateway in front of all engines, and waits until they are up.
    pub(crate) fn in_front_of(engines: &Engines, arguments: &[&str]) -> Self {
        let urls: Vec<_> = engines.engines.iter().map(|at| format!("http://{}", at.http)).collect();
        let pods = urls.iter().flat_map(|url| ["--pod", url.as_str()]);
        Self::start(&pods.chain(arguments.iter().copied()).collect::<Vec<_>>(), urls.len())
    }

    /// Starts a gateway with a configuration, and waits until so many pods are up.
    pub(crate) fn configured(test: &str, text: &str, pods: usize) -> Self {
        let path = folder(test).join("wornpath.yaml");
        fs::write(&path, text).unwrap();
        Self::start(&["-c", path.to_str().unwrap(), "--admin", "127.0.0.1:0"], pods)
    }

    pub(crate) fn start(arguments: &[&str], pods: usize) -> Self {
        Self::spawn(command(arguments), arguments, pods)
    }

    /// Starts a gateway with a file system of its own at `folder`, of so many KiB; none where
    /// mounting is not allowed.
    #[allow(dead_code, reason = "only the tests of batches have small disks")]
    pub(crate) fn on_small_disk(
        folder: &Path,
        kib: usize,
        arguments: &[&str],
        pods: usize,
    ) -> Option<Self> {
        Self::mounting(&format!("mount -t tmpfs -o size={kib}k none"), folder, arguments, pods)
    }

    /// Starts a gateway in a mount namespace after `mount PLACE`; none where mounting is not
    /// allowed.
    pub(crate) fn mounting(
        mount: &str,
        place: &Path,
        arguments: &[&str],
        pods: usize,
    ) -> Option<Self> {
        let apart = || {
            let mut command = Command::new("unshare");
            let script = format!("{mount} \"$0\" && exec \"$@\"");
            command.args(["--map-root-user", "--mount", "sh", "-c", &script]).arg(place);
            command
        };
        if !apart().arg("true").status().is_ok_and(|status| status.success()) {
            return None;
        }
        let plain = command(arguments);
        let mut command = apart();
        command.arg(plain.get_program()).args(plain.get_args());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        Some(Self::spawn(command, arguments, pods))
    }

    pub(crate) fn spawn(mut command: Command, arguments: &[&str], pods: usize) -> Self {
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut errors = BufReader::new(child.stderr.take().unwrap()).lines();
        let mut address = || {
            let Some(line) = lines.next() else {
                let why: Vec<_> = errors.by_ref().map_while(Result::ok).collect();
                panic!("the gateway did not start: {}", why.join("\n"));
            };
            line.unwrap().split_once("://").unwrap().1.to_owned()
        };
        let client = address();
        let admin = arguments.contains(&"--admin").then(&mut address);
        let log = Arc::<Mutex<String>>::default();
        let mut up = 0;
        while up < pods {
            let line = errors.next().expect("the gateway reports its pods as up").unwrap();
            up += usize::from(line.contains("pod up"));
            log.lock().unwrap().push_str(&format!("{line}\n"));
        }
        // Drains the log, so that the gateway never blocks on it; ends with the process.
        let kept = Arc::clone(&log);
        let read_on = move || {
            for line in errors.map_while(Result::ok) {
                kept.lock().unwrap().push_str(&format!("{line}\n"));
            }
        };
        let _reader = std::thread::Builder::new().spawn(read_on).unwrap();
        Self { child, address: client, admin, log }
    }

    /// The log so far.
    pub(crate) fn log(&self) -> String {
        self.log.lock().unwrap().clone()
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

    /// Sends a request to the admin plane.
    pub(crate) fn ask(&self, method: &str, path: &str, body: &str) -> Response {
        let admin = self.admin.as_ref().expect("the gateway was started with --admin");
        let kind = if path.ends_with("/check") { "application/yaml" } else { "application/json" };
        let head = format!("{method} {path} HTTP/1.1\r\nhost: {admin}\r\ncontent-type: {kind}\r\n");
        Exchange::send(admin, &head, body).finish().unwrap()
    }

    /// The value of a metric: of the first line with this prefix.
    pub(crate) fn metric(&self, line: &str) -> f64 {
        let page = self.get("/metrics").text;
        let found = page.lines().find_map(|known| known.strip_prefix(line));
        found.unwrap_or_else(|| panic!("no {line} in {page}")).trim().parse().unwrap()
    }

    /// A figure of its memory in MiB, by its name in `/proc`.
    pub(crate) fn memory(&self, figure: &str) -> f64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let find = |line: &str| line.strip_prefix(figure)?.strip_prefix(':').map(str::to_owned);
        let line = status.lines().find_map(find).unwrap();
        line.trim().trim_end_matches(" kB").parse::<f64>().unwrap() / 1024.0
    }

    pub(crate) fn signal(&self, signal: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
    }
}

/// Starts a router with the configuration in a file; also where clients and operators connect to.
pub(crate) fn serve_file(log_level: &str, configuration: &Path) -> (Child, [String; 2]) {
    let mut router = Command::new(env!("CARGO_BIN_EXE_wornpath"))
        .args(["serve", "--log-level", log_level, "-c"])
        .arg(configuration)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(router.stdout.take().unwrap()).lines();
    let mut address = || {
        let line = lines.next().expect("the router says where it listens").unwrap();
        line.split("http://").nth(1).unwrap().to_owned()
    };
    let addresses = [address(), address()];
    (router, addresses)
}

pub(crate) fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_wornpath"));
    command
        .args(["serve", "--port", "0", "--reveal-pods"])
        .args(arguments)
        // No test asks a hub that is not its own.
        .env("HF_HUB_OFFLINE", "1")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    if !arguments.contains(&"--lame-duck") {
        command.args(["--lame-duck", "0.2"]);
    }
    command
}

/// Exit status and standard error of a gateway that does not start.
pub(crate) fn refused(arguments: &[&str]) -> (Option<i32>, String) {
    let output = command(arguments).output().unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

/// An empty folder for one test.
pub(crate) fn folder(test: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("serve").join(test);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    folder
}

impl Response {
    /// A header's value.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.into_iter().find(|(known, _)| *known == name).map(|(_, value)| value)
    }

    /// The pod that answered.
    pub(crate) fn pod(&self) -> &str {
        self.header("x-wornpath-pod")
            .unwrap_or_else(|| panic!("no pod: {} {}", self.head, self.text))
    }
}

const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Waits until a condition holds, for ten seconds at most.
pub(crate) fn eventually(what: &str, condition: impl FnMut() -> bool) {
    eventually_within(Duration::from_secs(10), what, condition);
}

/// Waits until a condition holds, with a deadline.
pub(crate) fn eventually_within(
    timeout: Duration,
    what: &str,
    mut condition: impl FnMut() -> bool,
) {
    let deadline = Instant::now() + timeout;
    while !condition() {
        assert!(Instant::now() < deadline, "not within {timeout:?}: {what}");
        std::thread::sleep(POLL_INTERVAL);
    }
}
