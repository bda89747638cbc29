//! `wornpath batch verify`: checks the folder of a gateway that is not running.

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use wornpath_jobs::{FolderReport, RealDisk, verify};

/// Prints what is damaged, and what could not be checked completely; fails if anything is damaged.
pub(super) fn run(folder: &Path, out: &mut impl Write) -> anyhow::Result<ExitCode> {
    let FolderReport { files, batches, without_checksum, damaged } = verify(&RealDisk, folder)?;
    for thing in &damaged {
        writeln!(out, "damaged: {thing}")?;
    }
    for thing in &without_checksum {
        writeln!(out, "length only: {thing} has no recorded checksum; an older version stored it")?;
    }
    let found = damaged.len();
    writeln!(out, "{files} files and the results of {batches} batches checked, {found} damaged")?;
    Ok(if damaged.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
