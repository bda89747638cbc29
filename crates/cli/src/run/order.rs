//! Results in the order of their prompts, once all are there.

use anyhow::Context;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use wornpath_jobs::{Disk, InputMark, RecordKind, ResultPaths, places};

/// Writes the output to `ordered`, which is there as a whole or not at all, and removes the unordered one.
pub(super) fn put_in_order(
    disk: &dyn Disk,
    paths: &ResultPaths,
    input: InputMark,
    ordered: &Path,
) -> anyhow::Result<()> {
    let mut places = places(disk, paths, input)?;
    places.retain(|place| place.kind == RecordKind::Output);
    places.sort_unstable_by_key(|place| place.line);
    let writing = || format!("cannot write {}", ordered.display());
    let unordered = File::open(&paths.output)
        .with_context(|| format!("cannot read {}", paths.output.display()))?;
    let mut name = ordered.as_os_str().to_owned();
    name.push(".ordering");
    let name = Path::new(&name);
    let mut file = BufWriter::with_capacity(1 << 20, File::create(name).with_context(writing)?);
    let mut line = Vec::new();
    for place in places {
        line.resize(place.bytes as usize, 0);
        unordered.read_exact_at(&mut line, place.offset)?;
        file.write_all(&line).with_context(writing)?;
    }
    let file =
        file.into_inner().map_err(std::io::IntoInnerError::into_error).with_context(writing)?;
    file.sync_all().with_context(writing)?;
    disk.rename(name, ordered).with_context(writing)?;
    disk.sync_folder(ordered.parent().unwrap_or(Path::new("."))).with_context(writing)?;
    disk.remove(&paths.output).with_context(writing)
}
