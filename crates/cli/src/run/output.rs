//! The files of a run: results, errors and progress, and the results in the order of their prompts.

use super::arguments::RunArguments;
use anyhow::{Context, ensure};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use wornpath_jobs::{Disk, InputMark, RecordKind, ResultPaths, ResultPosition, places};

/// Suffix of the file that holds results until they are put in order.
const UNORDERED: &str = ".unordered";

pub(super) fn paths(arguments: &RunArguments) -> ResultPaths {
    let beside = |suffix: &str| beside(&arguments.output, suffix);
    let output = match arguments.preserve_order {
        true => beside(UNORDERED),
        false => arguments.output.clone(),
    };
    ResultPaths { output, errors: beside(".errors.jsonl"), log: beside(".progress") }
}

/// The path of a file next to the output, by its suffix.
pub(super) fn beside(output: &Path, suffix: &str) -> PathBuf {
    let mut name = output.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

/// Refuses to overwrite files, and to resume a run with other options for its files.
pub(super) fn check_paths(arguments: &RunArguments, paths: &ResultPaths) -> anyhow::Result<()> {
    ensure!(
        arguments.output != Path::new("-"),
        "results cannot go to standard output, because --resume reads them again; name a file"
    );
    let input = arguments.prompts.canonicalize().ok();
    for path in [&arguments.output, &paths.output, &paths.errors, &paths.log] {
        let name = path.display();
        ensure!(
            !path.exists() || path.canonicalize().ok() != input,
            "{name} would overwrite the input; name another output"
        );
        ensure!(
            arguments.resume || !path.exists(),
            "{name} exists; continue with --resume, or name another output"
        );
    }
    let log = paths.log.display();
    ensure!(
        arguments.preserve_order || is_empty(&beside(&arguments.output, UNORDERED)),
        "{log}: this run was started with --preserve-order; give that option again"
    );
    Ok(())
}

/// Whether a file is empty or missing.
pub(super) fn is_empty(path: &Path) -> bool {
    std::fs::metadata(path).map_or(true, |found| found.len() == 0)
}

/// Refuses files of output and errors that lack published results.
pub(super) fn check_complete(
    positions: &[ResultPosition],
    files: [&PathBuf; 2],
) -> anyhow::Result<()> {
    for (kind, file) in [RecordKind::Output, RecordKind::Error].into_iter().zip(files) {
        let records = positions.iter().filter(|position| position.kind == kind);
        let expected: u64 = records.map(|position| u64::from(position.bytes)).sum();
        let found = std::fs::metadata(file).map_or(0, |found| found.len());
        ensure!(
            found >= expected,
            "{}: damaged: {found} bytes, but {expected} were written; restore it, or run again with another output",
            file.display()
        );
    }
    Ok(())
}

/// Writes the results to `ordered` in the order of their prompts, atomically, and removes the
/// unordered file.
pub(super) fn put_in_order(
    disk: &dyn Disk,
    paths: &ResultPaths,
    input: InputMark,
    ordered: &Path,
) -> anyhow::Result<()> {
    let mut positions = places(disk, paths, input)?;
    positions.retain(|position| position.kind == RecordKind::Output);
    positions.sort_unstable_by_key(|position| position.line);
    let cannot_write = || format!("cannot write {}", ordered.display());
    let unordered = File::open(&paths.output)
        .with_context(|| format!("cannot read {}", paths.output.display()))?;
    let name = beside(ordered, ".ordering");
    let mut options = File::options();
    // As the file that it replaces: prompts and answers are private.
    let file = options.write(true).create(true).truncate(true).mode(0o600).open(&name);
    let file = file.with_context(cannot_write)?;
    let mut file = BufWriter::with_capacity(1 << 20, file);
    let mut line = Vec::new();
    for position in positions {
        line.resize(position.bytes as usize, 0);
        unordered.read_exact_at(&mut line, position.offset)?;
        file.write_all(&line).with_context(cannot_write)?;
    }
    let file = file
        .into_inner()
        .map_err(std::io::IntoInnerError::into_error)
        .with_context(cannot_write)?;
    file.sync_all().with_context(cannot_write)?;
    disk.rename(&name, ordered).with_context(cannot_write)?;
    disk.sync_folder(ordered.parent().unwrap_or(Path::new("."))).with_context(cannot_write)?;
    disk.remove(&paths.output).with_context(cannot_write)
}
