//! Input files of lines.

use anyhow::{Context, bail};
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// Default limit of prompt hashes in memory while a file is planned, in bytes: about those of a
/// million lines of 16 blocks.
pub(crate) const PLANNING_MEMORY: usize = 128 << 20;

const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

/// Refuses a gzip file, none of whose lines could be read.
pub(crate) fn refuse_gzip(path: &Path) -> anyhow::Result<()> {
    let cannot_read = || format!("cannot read {}", path.display());
    let file = File::open(path).with_context(cannot_read)?;
    // Reading the start of a pipe would consume it.
    if !file.metadata().with_context(cannot_read)?.is_file() {
        return Ok(());
    }
    let mut start = Vec::new();
    file.take(2).read_to_end(&mut start).with_context(cannot_read)?;
    if start == GZIP_MAGIC {
        let name = path.display();
        bail!("{name} is a gzip file; unpack it: gzip -dc {name} > FILE");
    }
    Ok(())
}
