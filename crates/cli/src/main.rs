//! The `wornpath` binary: reads its arguments and hands over to one module per subcommand.
#![forbid(unsafe_code)]

mod demo;
mod engine;
mod events;

use clap::{Parser, Subcommand};
use std::io::{self, Write};

/// Routes LLM requests to the pod whose KV cache already holds their prefix.
///
/// Start with `wornpath demo`: it needs no network, no GPU and no configuration.
#[derive(Parser)]
#[command(name = "wornpath", version, arg_required_else_help = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Replay the cache events of three real engines and show which of them holds how much of a prompt
    Demo,
    Engine(Box<engine::EngineArguments>),
    Events(events::EventsArguments),
}

fn main() -> anyhow::Result<()> {
    let Arguments { command } = Arguments::parse();
    let mut out = io::stdout().lock();
    let result = match command {
        Command::Demo => demo::run(&mut out),
        Command::Engine(arguments) => engine::run(&arguments, &mut out),
        Command::Events(arguments) => events::run(&arguments, &mut out),
    };
    ignore_closed_pipe(result.and_then(|()| Ok(out.flush()?)))
}

/// A reader that has seen enough (`wornpath demo | head`) is no failure.
fn ignore_closed_pipe(result: anyhow::Result<()>) -> anyhow::Result<()> {
    match result {
        Err(error)
            if error
                .downcast_ref::<io::Error>()
                .is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe) =>
        {
            Ok(())
        }
        other => other,
    }
}
