//! `wornpath completions`: what a shell needs to complete commands and options, made from their declaration.

use clap::{Args, Command};
use clap_complete::Shell;
use std::io::Write;

/// Print what a shell needs to complete wornpath's commands and options
#[derive(Args)]
#[command(after_help = "Examples:
  wornpath completions bash > /etc/bash_completion.d/wornpath
  wornpath completions zsh > ~/.zfunc/_wornpath
  wornpath completions fish > ~/.config/fish/completions/wornpath.fish")]
pub(crate) struct CompletionsArguments {
    /// The shell
    shell: Shell,
}

/// Prints the script for `command`.
pub(crate) fn run(
    arguments: &CompletionsArguments,
    mut command: Command,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    // The generator panics if it cannot write; a buffer always takes everything.
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut command, "wornpath", &mut script);
    Ok(out.write_all(&script)?)
}
