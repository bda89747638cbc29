//! `wornpath man`: man pages, generated from the declaration of the arguments.

use anyhow::Context;
use clap::{Args, Command};
use clap_mangen::Man;
use std::fs;
use std::io::Write;
use std::path::PathBuf;

/// Print the man page, or write the man pages of all commands into a folder
#[derive(Args)]
#[command(after_help = "Examples:
  wornpath man | man -l -
  wornpath man --folder /usr/local/share/man/man1")]
pub(crate) struct ManArguments {
    /// Write wornpath.1, wornpath-serve.1 and so on into this folder; created if it does not exist
    #[arg(long, value_name = "FOLDER")]
    folder: Option<PathBuf>,
}

pub(crate) fn run(
    arguments: &ManArguments,
    command: Command,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let Some(folder) = &arguments.folder else { return Ok(Man::new(command).render(out)?) };
    fs::create_dir_all(folder)
        .and_then(|()| clap_mangen::generate_to(command, folder))
        .with_context(|| format!("cannot write man pages into {}", folder.display()))
}
