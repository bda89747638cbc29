//! The `wornpath` program as a library: parses the command line and runs one module per subcommand.
//!
//! A program of its own with further plugins is one call, [`main_with`]; `examples/plugin` is one.
#![forbid(unsafe_code)]

mod address;
mod batch;
mod broken_pipe;
mod check;
mod command_error;
mod completions;
mod demo;
mod engine;
mod events;
mod explain;
mod failures;
mod fleet;
mod http;
mod input;
mod kv_cache;
mod man;
mod model_files;
mod numbers;
mod output_files;
mod page;
mod plan;
mod progress;
mod relay;
mod replay;
mod run;
mod serve;
mod size;
mod top;
mod trace;
mod trace_file;

use broken_pipe::{BrokenPipe, ignore_broken_pipe};
use clap::{CommandFactory, Parser, Subcommand};
use command_error::print_error;
use std::io::{self, Write};
use std::process::ExitCode;
use wornpath_routing::Registry;

/// What plugins are written against.
pub use wornpath_routing as routing;

/// A request makes dozens of allocations, and the system's allocator returns the pages of large
/// ones to the kernel each time: with mimalloc a prompt of 32 KB costs a tenth less.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

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
    Batch(batch::BatchArguments),
    Check(check::CheckArguments),
    Completions(completions::CompletionsArguments),
    Demo(demo::DemoArguments),
    Engine(Box<engine::EngineArguments>),
    Epp(Box<serve::EppArguments>),
    Explain(explain::ExplainArguments),
    Events(events::EventsArguments),
    Man(man::ManArguments),
    Relay(relay::RelayArguments),
    Plan(plan::PlanArguments),
    Replay(replay::ReplayArguments),
    Run(Box<run::RunArguments>),
    Serve(Box<serve::ServeArguments>),
    Size(Box<size::SizeArguments>),
    Top(top::TopArguments),
    Trace(trace::TraceArguments),
}

/// Runs the command line with these plugins: the whole `wornpath` program, its allocator included.
/// Every command knows them, in profiles that it checks, explains, replays or serves.
///
/// ```no_run
/// use wornpath::routing::Registry;
///
/// fn main() -> std::process::ExitCode {
///     wornpath::main_with(Registry::shipped())
/// }
/// ```
pub fn main_with(plugins: Registry) -> ExitCode {
    let installed = plugins.install().map_err(anyhow::Error::from);
    installed.and_then(|()| run()).unwrap_or_else(|error| {
        // There is nowhere left to report a failure of this.
        let _ = print_error(&error, &mut io::stderr().lock());
        ExitCode::FAILURE
    })
}

fn run() -> anyhow::Result<ExitCode> {
    let Arguments { command } = Arguments::parse();
    let mut out = io::stdout().lock();
    let done = |()| ExitCode::SUCCESS;
    let out = &mut out;
    let result = match command {
        Command::Batch(arguments) => batch::run(&arguments, out),
        Command::Check(arguments) => check::run(&arguments, &mut BrokenPipe(&mut *out)),
        Command::Completions(arguments) => {
            completions::run(&arguments, Arguments::command(), out).map(done)
        }
        Command::Demo(arguments) => demo::run(&arguments, out),
        Command::Engine(arguments) => engine::run(&arguments, out).map(done),
        Command::Epp(arguments) => serve::run(&arguments.serve(), out),
        Command::Explain(arguments) => explain::run(&arguments, out),
        Command::Events(arguments) => events::run(&arguments, out).map(done),
        Command::Man(arguments) => man::run(&arguments, Arguments::command(), out).map(done),
        Command::Relay(arguments) => relay::run(&arguments, out).map(done),
        Command::Plan(arguments) => plan::run(&arguments, out).map(done),
        Command::Replay(arguments) => replay::run(&arguments, out),
        Command::Run(arguments) => run::run(&arguments, &mut BrokenPipe(&mut *out)),
        Command::Serve(arguments) => serve::run(&arguments, out),
        Command::Size(arguments) => size::run(&arguments, out),
        Command::Top(arguments) => top::run(&arguments, out).map(done),
        Command::Trace(arguments) => trace::run(&arguments, out).map(done),
    };
    succeed_on_broken_pipe(
        result.and_then(|code| Ok(ignore_broken_pipe(out.flush(), ()).map(|()| code)?)),
    )
}

/// A reader that closes the pipe early, as in `wornpath demo | head`, is not a failure.
fn succeed_on_broken_pipe(result: anyhow::Result<ExitCode>) -> anyhow::Result<ExitCode> {
    match result {
        Err(error)
            if error
                .downcast_ref::<io::Error>()
                .is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe) =>
        {
            Ok(ExitCode::SUCCESS)
        }
        other => other,
    }
}
