//! `wornpath events`: tools to inspect the cache events of engines.

mod explain;
mod verify;

use anyhow::Context;
use clap::{Args, Subcommand};
use std::io::Write;
use std::time::Duration;
use tokio::time::timeout;
use wornpath_events::wire::{WireBatch, WireEvent, WireStored};
use wornpath_events::{
    Delivery, PodName, SourceMessage, SourceQuery, SourceSignal, Transport, ZeroMq, ZmqAddress,
};
use wornpath_index::EngineHash;

/// Inspect the cache events of engines
#[derive(Args)]
pub(crate) struct EventsArguments {
    #[command(subcommand)]
    command: EventsCommand,
}

#[derive(Subcommand)]
enum EventsCommand {
    /// Decode and print a live stream, one event a line
    Tail(TailArguments),
    /// Send prompts to an engine and compare its events with the cached tokens that it reports
    Verify(verify::VerifyArguments),
}

#[derive(Args)]
struct TailArguments {
    /// Publisher of the engine: zmq://host:port, with optional ?replay=port and &topic=prefix
    #[arg(long, value_name = "SOURCE")]
    from: ZmqAddress,
    /// Data-parallel rank to listen to, which publishes on port + rank
    #[arg(long, default_value_t = 0)]
    rank: u16,
    /// Start with this batch, if the engine can replay it
    #[arg(long, value_name = "SEQUENCE")]
    since: Option<u64>,
    /// Stop after this many batches
    #[arg(long, value_name = "BATCHES")]
    limit: Option<u64>,
}

pub(crate) fn run(arguments: &EventsArguments, out: &mut impl Write) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .context("cannot start the async runtime")?;
    match &arguments.command {
        EventsCommand::Verify(arguments) => runtime.block_on(verify::verify(arguments, out)),
        EventsCommand::Tail(arguments) => {
            let address = arguments.from.of_rank(arguments.rank)?;
            anyhow::ensure!(
                arguments.since.is_none() || address.replay.is_some(),
                "--since needs a replay socket; add ?replay=port to --from {address}"
            );
            runtime.block_on(tail(arguments, address, out))
        }
    }
}

/// How long a connection may take before its error is printed: the first one soon, later ones after
/// more than one attempt.
const FIRST_REPORT: Duration = Duration::from_secs(1);
const NEXT_REPORT: Duration = Duration::from_secs(6);

async fn tail(
    arguments: &TailArguments,
    address: ZmqAddress,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let pod: PodName = address.to_string().into();
    let mut transport = ZeroMq::new(pod.clone(), address);
    let mut expected = None;
    let mut left = arguments.limit.unwrap_or(u64::MAX);
    let mut replay_from = arguments.since;
    let mut is_connected = false;
    let mut reported = String::new();
    while left > 0 {
        let report_after = match (is_connected, reported.is_empty()) {
            (true, _) => Duration::MAX,
            (false, true) => FIRST_REPORT,
            (false, false) => NEXT_REPORT,
        };
        let Ok(signal) = timeout(report_after, transport.next()).await else {
            let reason = transport.last_error().unwrap_or("no response yet");
            if reported != reason {
                reason.clone_into(&mut reported);
                writeln!(out, "not connected to {pod}: {reason}; retrying")?;
            }
            continue;
        };
        let (SourceSignal::Pod(_, message) | SourceSignal::AllPods(message)) = signal;
        match message {
            SourceMessage::Connected => {
                is_connected = true;
                reported.clear();
                writeln!(out, "connected to {pod}")?;
                // A gap across a reconnect is not an error of the stream.
                expected = None;
                if let Some(from) = replay_from.take() {
                    transport.query(&pod, SourceQuery::Replay { from });
                }
            }
            SourceMessage::Disconnected => {
                is_connected = false;
                let reason = transport.last_error().unwrap_or("connection lost");
                writeln!(out, "disconnected: {reason}; reconnecting")?;
            }
            SourceMessage::Malformed { id, reason } => {
                let number = id.sequence.map_or("?".to_owned(), |sequence| sequence.to_string());
                writeln!(out, "#{number} malformed: {reason}")?;
            }
            SourceMessage::ReplayEnd => writeln!(out, "end of the replay")?,
            SourceMessage::Batch { id, delivery, batch } => {
                let sequence = id.sequence.unwrap_or_default();
                if delivery == Delivery::Live {
                    note_order(out, expected, sequence)?;
                    expected = sequence.checked_add(1);
                }
                print(out, sequence, &batch)?;
                left -= 1;
            }
            _ => {}
        }
    }
    Ok(())
}

fn note_order(out: &mut impl Write, expected: Option<u64>, found: u64) -> std::io::Result<()> {
    match expected {
        Some(expected) if found > expected => {
            writeln!(out, "#{expected} to #{} missing", found - 1)
        }
        Some(expected) if found < expected => {
            writeln!(out, "#{found} after #{}: duplicate, or the engine restarted", expected - 1)
        }
        _ => Ok(()),
    }
}

fn print(out: &mut impl Write, sequence: u64, batch: &WireBatch) -> std::io::Result<()> {
    let rank = batch.dp_rank.map_or(String::new(), |rank| format!(" rank {rank}"));
    if batch.is_empty() {
        writeln!(out, "#{sequence}{rank} empty")?;
    }
    for event in batch.events() {
        write!(out, "#{sequence}{rank} ")?;
        match event {
            WireEvent::Stored(stored) => print_stored(out, &stored)?,
            WireEvent::Removed(removed) => {
                write!(out, "removed {:?}{}", removed.tier, hashes(removed.blocks))?;
                print_group(out, removed.group)?;
            }
            WireEvent::Cleared => write!(out, "cleared")?,
        }
        writeln!(out)?;
    }
    if batch.unknown_events > 0 {
        writeln!(out, "#{sequence}{rank} {} events of unknown types", batch.unknown_events)?;
    }
    Ok(())
}

/// Prints a stored event without its tokens, which are prompts.
fn print_stored(out: &mut impl Write, stored: &WireStored<'_>) -> std::io::Result<()> {
    write!(out, "stored {:?}{}", stored.tier, hashes(stored.blocks))?;
    if stored.tokens.is_empty() {
        write!(out, " without tokens")?;
    } else {
        match stored.parent {
            Some(parent) => write!(out, " after {:016x}", parent.0)?,
            None => write!(out, " at the start of a prompt")?,
        }
        write!(out, ", {} tokens by {}", stored.tokens.len(), stored.block_size)?;
    }
    if let Some(name) = stored.lora_name {
        write!(out, ", adapter {name}")?;
    }
    let keyed = (0..stored.extra_keys.len()).filter(|block| {
        let mut keys = stored.extra_keys.block(*block);
        keys.next().is_some()
    });
    match keyed.count() {
        0 => {}
        blocks => write!(out, ", extra keys on {blocks}")?,
    }
    print_group(out, stored.group)
}

fn print_group(out: &mut impl Write, group: Option<u32>) -> std::io::Result<()> {
    group.map_or(Ok(()), |group| write!(out, ", group {group}"))
}

/// The first few hashes, and the number of the others.
fn hashes(blocks: &[EngineHash]) -> String {
    const SHOWN: usize = 4;
    let mut line = String::new();
    for block in blocks.iter().take(SHOWN) {
        line.push_str(&format!(" {:016x}", block.0));
    }
    if blocks.len() > SHOWN {
        line.push_str(&format!(" and {} more", blocks.len() - SHOWN));
    }
    line
}
