//! Files of lines: what they begin with, if it is no line.

use anyhow::{Context, bail};
use std::fs::File;
use std::io::Read;
use std::path::Path;

const GZIP: [u8; 2] = [0x1f, 0x8b];

/// Refuses a file that is packed: none of its lines could be read.
pub(crate) fn refuse_packed(path: &Path) -> anyhow::Result<()> {
    let (name, mut start) = (path.display(), Vec::new());
    let cannot = || format!("cannot read {}", path.display());
    let file = File::open(path).with_context(cannot)?;
    // What is a pipe would lose its first bytes to whoever looks at them.
    if !file.metadata().with_context(cannot)?.is_file() {
        return Ok(());
    }
    file.take(2).read_to_end(&mut start).with_context(cannot)?;
    if start == GZIP {
        bail!("{name} is a gzip file; unpack it: gzip -dc {name} > FILE");
    }
    Ok(())
}
