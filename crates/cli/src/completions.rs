//! `wornpath completions`: shell completion scripts, generated from the declaration of the
//! arguments.

use clap::{Args, Command};
use clap_complete::Shell;
use std::io::Write;

/// Print the completion script for a shell
#[derive(Args)]
#[command(after_help = "Examples:
  wornpath completions bash > /etc/bash_completion.d/wornpath
  wornpath completions zsh > ~/.zfunc/_wornpath
  wornpath completions fish > ~/.config/fish/completions/wornpath.fish")]
pub(crate) struct CompletionsArguments {
    /// Shell to generate the script for
    shell: Shell,
}

pub(crate) fn run(
    arguments: &CompletionsArguments,
    mut command: Command,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    // The generator panics if it cannot write; writing to a buffer cannot fail.
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut command, "wornpath", &mut script);
    Ok(out.write_all(&script)?)
}
