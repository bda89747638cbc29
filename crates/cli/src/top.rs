//! `wornpath top`: the dashboard in a terminal, fed by the same stream of snapshots.

mod format;
mod screen;
mod table;

use crate::http::{Endpoint, EventStream, HttpClient, Payload, TlsArguments};
use anyhow::{Context, bail, ensure};
use clap::Args;
use hyper::Method;
use screen::{Paint, Screen};
use serde_json::Value;
use std::io::ErrorKind::ConnectionRefused;
use std::io::{IsTerminal, Write};
use std::time::Duration;

/// Longest time without a snapshot: the admin plane sends one every second.
const SNAPSHOT_TIMEOUT: Duration = Duration::from_secs(10);
/// The alternate screen without a cursor, and back.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";

/// Shown by `--help` after the options.
const MORE: &str = "\
Examples:
  wornpath top
  wornpath top --admin http://router:8081 --token \"$TOKEN\"
  wornpath top --once | head -3

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
        write!(out, "{ENTER}")?;
        let watched = tokio::select! {
            watched = watch(&mut stream, out) => watched,
            ended = wornpath_gateway::shutdown_signal() => Ok(ended?),
        };
        write!(out, "{LEAVE}")?;
        out.flush()?;
        watched
    })
}

/// Prints the first snapshot that has rates, which is the second one.
async fn once(stream: &mut TopStream, out: &mut impl Write) -> anyhow::Result<()> {
    loop {
        let snapshot = stream.next().await?;
        if !snapshot["rates"].is_null() {
            let screen = Screen { width: 120, rows: None, paint: Paint::Plain };
            return Ok(writeln!(out, "{}", screen.draw(&snapshot).join("\n"))?);
        }
    }
}

async fn watch(stream: &mut TopStream, out: &mut impl Write) -> anyhow::Result<()> {
    loop {
        let snapshot = stream.next().await?;
        let size = rustix::termios::tcgetwinsize(std::io::stdout());
        let (width, rows) = size.map_or((80, 24), |size| (size.ws_col.max(40), size.ws_row.max(8)));
        let screen =
            Screen { width: width.into(), rows: Some(rows.into()), paint: Paint::Coloured };
        // Overwrites line by line and then clears below, so that nothing flickers.
        let lines: String =
            screen.draw(&snapshot).iter().map(|line| format!("{line}\x1b[K\r\n")).collect();
        write!(out, "\x1b[H{}\x1b[J", lines.trim_end())?;
        out.flush()?;
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
