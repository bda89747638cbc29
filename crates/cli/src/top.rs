//! `wornpath top`: the dashboard in a terminal, fed by the same stream of snapshots.

mod format;
mod screen;
mod table;
mod view;

use crate::http::{Endpoint, EventStream, HttpClient, Payload, TlsArguments};
use anyhow::{Context, bail, ensure};
use clap::Args;
use crossterm::event::{Event, EventStream as KeyStream};
use futures_util::{FutureExt, StreamExt};
use hyper::Method;
use ratatui::DefaultTerminal;
use serde_json::Value;
use std::io::ErrorKind::ConnectionRefused;
use std::io::{IsTerminal, Write};
use std::time::Duration;
use view::{Flow, View};

/// Longest time without a snapshot: the admin plane sends one every second.
const SNAPSHOT_TIMEOUT: Duration = Duration::from_secs(10);

/// Shown by `--help` after the options.
const MORE: &str = "\
Examples:
  wornpath top
  wornpath top --admin http://router:8081 --token \"$TOKEN\"
  wornpath top --once | head -3

Keys: q quits, arrows and PgUp/PgDn select a pod, s sorts by the next column, r reverses the order,
/ filters, p pauses, ? shows all keys.

The admin address serves the same to browsers, with explanations of decisions.";

/// Watch a router in the terminal: fleet, rates, decisions and batches
#[derive(Args)]
#[command(after_long_help = MORE)]
pub(crate) struct TopArguments {
    /// Address of the router's admin plane
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8081")]
    admin: String,
    /// Token of the admin plane, if it requires one
    #[arg(long, env = "WORNPATH_ADMIN_TOKEN", hide_env_values = true)]
    token: Option<String>,
    #[command(flatten)]
    tls: TlsArguments,
    /// Print one snapshot as plain text and exit
    #[arg(long)]
    once: bool,
}

pub(crate) fn run(arguments: &TopArguments, out: &mut impl Write) -> anyhow::Result<()> {
    let is_terminal = std::io::stdout().is_terminal();
    ensure!(
        arguments.once || is_terminal,
        "the output is not a terminal; use --once to print one snapshot"
    );
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut stream = TopStream::open(arguments).await?;
        if arguments.once {
            return once(&mut stream, out).await;
        }
        watch(&mut stream).await
    })
}

/// Prints the first snapshot that has rates, which is the second one.
async fn once(stream: &mut TopStream, out: &mut impl Write) -> anyhow::Result<()> {
    loop {
        let snapshot = stream.next().await?;
        if !snapshot["rates"].is_null() {
            return Ok(writeln!(out, "{}", screen::plain(&snapshot).join("\n"))?);
        }
    }
}

/// Shows snapshots until a key or a signal ends it.
async fn watch(stream: &mut TopStream) -> anyhow::Result<()> {
    let interrupted = wornpath_gateway::shutdown_signal();
    tokio::pin!(interrupted);
    // The first poll begins to listen: no signal may end the process without restoring the terminal.
    if let Some(ended) = interrupted.as_mut().now_or_never() {
        return Ok(ended?);
    }
    let mut full_screen = FullScreen::enter()?;
    let mut keys = KeyStream::new();
    let mut view = View::default();
    let mut snapshot = Value::Null;
    loop {
        full_screen.0.draw(|frame| {
            let area = frame.area();
            screen::draw(&snapshot, &mut view, area, frame.buffer_mut());
        })?;
        tokio::select! {
            next = stream.next() => {
                let next = next?;
                if !view.is_paused || snapshot.is_null() {
                    snapshot = next;
                }
            }
            event = keys.next() => {
                let event = event.context("the terminal was closed")?;
                if let Event::Key(key) = event.context("cannot read keys from the terminal")?
                    && view.press(key) == Flow::Quit
                {
                    return Ok(());
                }
            }
            ended = &mut interrupted => return Ok(ended?),
        }
    }
}

/// The terminal in raw mode, on its alternate screen and without a cursor. It is restored when this
/// is dropped, and before the message of a panic is printed.
struct FullScreen(DefaultTerminal);

impl FullScreen {
    fn enter() -> anyhow::Result<Self> {
        ratatui::try_init().map(Self).context("cannot take over the terminal")
    }
}

impl Drop for FullScreen {
    fn drop(&mut self) {
        ratatui::restore();
        // A closed terminal needs no cursor.
        let _ = self.0.show_cursor();
    }
}

/// The admin plane's stream of snapshots.
struct TopStream(EventStream);

impl TopStream {
    async fn open(arguments: &TopArguments) -> anyhow::Result<Self> {
        let endpoint =
            Endpoint::new("the admin plane", "--admin", &arguments.admin, &arguments.tls)?;
        let admin = HttpClient::new(endpoint, arguments.token.as_deref())?
            .with_response_timeout(Some(SNAPSHOT_TIMEOUT));
        let response =
            admin.send(Method::GET, "/live", Payload::empty()).await.map_err(|error| {
                let is_refused = |cause: &std::io::Error| cause.kind() == ConnectionRefused;
                match error.root_cause().downcast_ref().is_some_and(is_refused) {
                    true => error.context("no router there; was the router started with --admin?"),
                    false => error,
                }
            })?;
        let address = admin.address();
        match response.status().as_u16() {
            200 => Ok(Self(response.events())),
            401 if arguments.token.is_none() => bail!(
                "{address} requires a token; give --token or WORNPATH_ADMIN_TOKEN, and check that it is the admin address, not the client address"
            ),
            401 => bail!("{address} rejected the token"),
            404 => bail!(
                "{address} has no /live; is it the admin address, and not the client address?"
            ),
            status => bail!("{address} answered with status {status}"),
        }
    }

    async fn next(&mut self) -> anyhow::Result<Value> {
        loop {
            let event = tokio::time::timeout(SNAPSHOT_TIMEOUT, self.0.next()).await;
            let event = event.with_context(|| {
                format!("timeout: no snapshot from the router for {} s", SNAPSHOT_TIMEOUT.as_secs())
            })?;
            let event = event?.context("the router ended the stream")?;
            if let Some(data) = event.lines().find_map(|line| line.strip_prefix("data: ")) {
                return serde_json::from_str(data).context("a snapshot is not JSON");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// Run by the test below, in a terminal.
    #[test]
    #[ignore = "takes over the terminal"]
    fn panics_on_the_full_screen() {
        let _full_screen = FullScreen::enter().unwrap();
        panic!("in the middle of a screen");
    }

    #[test]
    fn a_panic_restores_the_terminal_and_is_readable() {
        let test = std::env::current_exe().unwrap();
        let panics = "top::tests::panics_on_the_full_screen";
        let command = format!(
            "stty -g; {} --exact {panics} --ignored --nocapture; echo; stty -g",
            test.display()
        );
        let output = Command::new("script").args(["-qec", &command, "/dev/null"]).output().unwrap();
        let shown = String::from_utf8(output.stdout).unwrap();
        let entered = shown.find("\x1b[?1049h").unwrap_or_else(|| panic!("{shown:?}"));
        let left = shown.find("\x1b[?1049l").unwrap_or_else(|| panic!("{shown:?}"));
        let panicked = shown.find("in the middle of a screen").unwrap();
        assert!(entered < left && left < panicked, "{shown:?}");
        assert!(shown[entered..].contains("\x1b[?25h"), "the cursor is back: {shown:?}");
        let modes = |line: Option<&str>| line.unwrap().trim().to_owned();
        assert_eq!(modes(shown.lines().next()), modes(shown.lines().last()), "{shown:?}");
    }
}
