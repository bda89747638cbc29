//! A terminal that a command runs in: a pseudo terminal, and what a screen would show.

use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Termios, Winsize, tcgetattr, tcsetwinsize};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read, Write};
use std::num::NonZero;
use std::os::unix::ffi::OsStrExt;
use std::process::{Child, Command};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;
use tokio::time::Instant;

const TIMEOUT: Duration = Duration::from_secs(20);
/// Runs its arguments, tells their exit status, and waits for a line.
const SCRIPT: &str = r#""$@"; echo "exit status $?"; read -r line"#;

/// A command in a terminal of its own.
pub(crate) struct Terminal {
    keyboard: File,
    output: Receiver<Vec<u8>>,
    screen: vt100::Parser,
    shell: Child,
    before: Termios,
}

fn size(rows: u16, columns: u16) -> Winsize {
    Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }
}

fn nonzero(cells: u16) -> NonZero<u16> {
    NonZero::new(cells).unwrap()
}

impl Terminal {
    /// Runs a command, with its arguments, in a terminal of `rows` and `columns`.
    pub(crate) fn run(command: &[&str], rows: u16, columns: u16) -> Self {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        let open = || {
            let path = OsStr::from_bytes(name.as_bytes());
            File::options().read(true).write(true).open(path).unwrap()
        };
        tcsetwinsize(&master, size(rows, columns)).unwrap();
        let before = tcgetattr(&master).unwrap();
        // `setsid` makes the terminal the controlling one, so that a resize is signalled. The shell
        // outlives the command: with the last process, a terminal's modes are reset.
        let shell = Command::new("setsid")
            .args(["--ctty", "sh", "-c", SCRIPT, "sh"])
            .args(command)
            .env("TERM", "xterm-256color")
            .env_remove("NO_COLOR")
            .stdin(open())
            .stdout(open())
            .stderr(open())
            .spawn()
            .unwrap();
        let keyboard = File::from(master);
        let mut reader = keyboard.try_clone().unwrap();
        let (sender, output) = channel();
        let read = move || {
            let mut bytes = [0; 4096];
            // The end of the command is an error here.
            while let Ok(read @ 1..) = reader.read(&mut bytes) {
                if sender.send(bytes[..read].to_vec()).is_err() {
                    return;
                }
            }
        };
        let _ends_with_the_command = std::thread::Builder::new().spawn(read).unwrap();
        let screen = vt100::Parser::new(nonzero(rows), nonzero(columns), 0);
        Self { keyboard, output, screen, shell, before }
    }

    /// Presses keys, as the bytes that a terminal sends for them.
    pub(crate) fn press(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).unwrap();
    }

    pub(crate) fn resize(&mut self, rows: u16, columns: u16) {
        self.screen.screen_mut().set_size(nonzero(rows), nonzero(columns));
        tcsetwinsize(&self.keyboard, size(rows, columns)).unwrap();
    }

    /// Sends a signal to the command.
    pub(crate) fn signal(&self, signal: Signal) {
        let shell = self.shell.id();
        let children = format!("/proc/{shell}/task/{shell}/children");
        let command = std::fs::read_to_string(children).unwrap().trim().parse().unwrap();
        kill_process(Pid::from_raw(command).unwrap(), signal).unwrap();
    }

    /// Waits until the screen is as wanted.
    pub(crate) fn wait(&mut self, what: &str, wanted: impl Fn(&vt100::Screen) -> bool) {
        let deadline = Instant::now() + TIMEOUT;
        while !wanted(self.screen.screen()) {
            match self.output.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(bytes) => self.screen.process(&bytes),
                Err(error) => {
                    panic!("{what}: {error}; it shows:\n{}", self.screen.screen().contents())
                }
            }
        }
    }

    /// Waits until the screen shows a text.
    pub(crate) fn wait_for(&mut self, text: &str) {
        self.wait(text, |screen| screen.contents().contains(text));
    }

    /// The rows of the screen.
    pub(crate) fn rows(&self) -> Vec<String> {
        let columns = self.screen.screen().size().1;
        self.screen.screen().rows(0, columns.get()).map(|row| row.trim_end().to_owned()).collect()
    }

    /// Waits until the command has ended, with this exit status; the terminal must be as it was
    /// before. Returns what it shows.
    pub(crate) fn end(mut self, status: u8) -> String {
        self.wait_for(&format!("exit status {status}"));
        let after = tcgetattr(&self.keyboard).unwrap();
        assert_eq!(after.local_modes, self.before.local_modes);
        assert!(after.local_modes.contains(LocalModes::ICANON | LocalModes::ECHO));
        assert_eq!(after.input_modes, self.before.input_modes);
        assert_eq!(after.output_modes, self.before.output_modes);
        let screen = self.screen.screen();
        assert!(!screen.alternate_screen() && !screen.hide_cursor(), "{}", screen.contents());
        let shown = screen.contents();
        self.press("\n");
        self.shell.wait().unwrap();
        shown
    }
}
