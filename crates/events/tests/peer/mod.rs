//! Real peers, in Python, for tests that show we speak the same language.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// Whether the peers can run. Without them the test says so and passes, unless
/// `WORNPATH_PEERS=required`.
#[allow(dead_code, reason = "each test binary uses its part of this module")]
pub(crate) fn zmq_is_here() -> bool {
    has("import zmq", "pyzmq")
}

/// Whether Python can do this, which `packages` would let it.
pub(crate) fn has(probe: &str, packages: &str) -> bool {
    let probe = Command::new("python3").args(["-c", probe]).stderr(Stdio::null()).status();
    let here = probe.is_ok_and(|status| status.success());
    let required = std::env::var("WORNPATH_PEERS").is_ok_and(|value| value == "required");
    assert!(
        here || !required,
        "python3 with {packages} is missing; install it with `pip install {packages}`"
    );
    if !here {
        eprintln!("SKIPPED: python3 with {packages} is missing");
    }
    here
}

/// A peer that runs until it is dropped.
pub(crate) struct Peer {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Peer {
    pub(crate) fn start(script: &str, arguments: &[&str]) -> Self {
        let path = format!("{}/../events/tests/peer/{script}", env!("CARGO_MANIFEST_DIR"));
        let mut child = Command::new("python3")
            .arg(path)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().unwrap());
        Self { child, input, output }
    }

    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// Ends its input, and with it the peer.
    #[allow(dead_code, reason = "each test binary uses its part of this module")]
    pub(crate) fn end(&mut self) {
        self.input = None;
    }

    #[allow(dead_code, reason = "each test binary uses its part of this module")]
    pub(crate) fn tell(&mut self, line: &str) {
        writeln!(self.input.as_mut().unwrap(), "{line}").unwrap();
    }

    #[allow(dead_code, reason = "each test binary uses its part of this module")]
    pub(crate) fn say(&mut self, command: &str, payload: &[u8]) {
        let hex: String = payload.iter().map(|byte| format!("{byte:02x}")).collect();
        writeln!(self.input.as_mut().unwrap(), "{command} {hex}").unwrap();
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.input = None;
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
