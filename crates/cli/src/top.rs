//! `wornpath top`: the dashboard in a terminal, from the same stream.

mod format;
mod screen;
mod table;

use crate::server::{CertificateArguments, Server};
use anyhow::{Context, bail, ensure};
use clap::Args;
use http_body_util::{BodyExt, Empty};
use hyper::Request;
use hyper::body::{Bytes, Incoming};
use screen::{Paint, Screen};
use serde_json::Value;
use std::io::ErrorKind::ConnectionRefused;
use std::io::{IsTerminal, Write};
use std::time::Duration;
use tokio::task::JoinSet;

/// How long the admin plane may be silent: it speaks once a second.
const PATIENCE: Duration = Duration::from_secs(10);
/// A snapshot is some kilobytes; nobody makes us keep more than this.
const MOST_BYTES: usize = 64 << 20;
/// The alternate screen without a cursor, and back.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";

/// What `--help` says after the options.
const MORE: &str = "\
Examples:
  wornpath top
  wornpath top --admin http://router:8081 --token \"$TOKEN\"
  wornpath top --once | head -3

The same, with explanations of decisions, is served for browsers at the admin address.";

/// Watch a router in the terminal: fleet, rates, decisions and batches
#[derive(Args)]
#[command(after_long_help = MORE)]
pub(crate) struct TopArguments {
    /// Address of the router's admin plane
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8081")]
    admin: String,
    /// Its token, if it has one
    #[arg(long, env = "WORNPATH_ADMIN_TOKEN", hide_env_values = true)]
    token: Option<String>,
    #[command(flatten)]
    certificates: CertificateArguments,
    /// Show it once, as plain text, and end
    #[arg(long)]
    once: bool,
}

/// Watches until ctrl-C, or looks once.
pub(crate) fn run(arguments: &TopArguments, out: &mut impl Write) -> anyhow::Result<()> {
    let is_terminal = std::io::stdout().is_terminal();
    ensure!(arguments.once || is_terminal, "the output is no terminal; use --once to look once");
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

/// Rates come with the second snapshot.
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
        // From the top, each line to its end, then whatever was below: nothing flickers.
        let lines: String =
            screen.draw(&snapshot).iter().map(|line| format!("{line}\x1b[K\r\n")).collect();
        write!(out, "\x1b[H{}\x1b[J", lines.trim_end())?;
        out.flush()?;
    }
}

/// The admin plane's stream of snapshots.
struct TopStream {
    body: Incoming,
    read: Vec<u8>,
    /// Drives the connection.
    _connection: JoinSet<()>,
}

impl TopStream {
    async fn open(arguments: &TopArguments) -> anyhow::Result<Self> {
        let named = ("--admin", arguments.admin.as_str());
        let server = Server::at("the admin plane", named, &arguments.certificates)?;
        let (address, token) = (server.address(), arguments.token.as_deref());
        let mut request = Request::get("/live").header("host", server.authority());
        if let Some(token) = token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let request = request.body(Empty::<Bytes>::new());
        let request = request
            .context("--token has a character that no header may have, such as a line's end")?;
        let mut connection = JoinSet::new();
        let answer =
            server.send(request, Some(PATIENCE), &mut connection).await.map_err(|error| {
                let is_refused = |cause: &std::io::Error| cause.kind() == ConnectionRefused;
                match error.root_cause().downcast_ref().is_some_and(is_refused) {
                    true => error.context("nobody is there; was the router started with --admin?"),
                    false => error,
                }
            })?;
        match answer.status().as_u16() {
            200 => Ok(Self { body: answer.into_body(), read: Vec::new(), _connection: connection }),
            401 if token.is_none() => {
                bail!(
                    "{address} wants a token; give --token or WORNPATH_ADMIN_TOKEN, if it is the admin address and not the clients'"
                )
            }
            401 => bail!("{address} does not know this token"),
            404 => bail!("{address} has no /live; is it the admin address, and not the clients'?"),
            status => bail!("{address} answered {status}"),
        }
    }

    async fn next(&mut self) -> anyhow::Result<Value> {
        loop {
            if let Some(end) = self.read.windows(2).position(|pair| pair == b"\n\n") {
                let event: Vec<u8> = self.read.drain(..end + 2).collect();
                let event = String::from_utf8_lossy(&event);
                if let Some(data) = event.lines().find_map(|line| line.strip_prefix("data: ")) {
                    return serde_json::from_str(data).context("the stream has no JSON");
                }
                continue;
            }
            let frame = tokio::time::timeout(PATIENCE, self.body.frame()).await;
            let frame = frame.context("the router has been silent for ten seconds")?;
            let frame =
                frame.context("the router ended the stream")?.context("the stream broke")?;
            if let Ok(data) = frame.into_data() {
                self.read.extend_from_slice(&data);
                ensure!(self.read.len() < MOST_BYTES, "the stream has an event without an end");
            }
        }
    }
}
