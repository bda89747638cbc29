//! Input files of lines.

use anyhow::{Context, anyhow, bail, ensure};
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

/// Default limit of prompt hashes in memory while a file is planned, in bytes: about those of a
/// million lines of 16 blocks.
pub(crate) const PLANNING_MEMORY: usize = 128 << 20;

/// The longest line: no engine takes a prompt that long, so the file is not one of lines.
pub(crate) const MAX_LINE_BYTES: usize = 64 << 20;

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

/// Opens a file of lines.
pub(crate) fn open_lines(path: &Path) -> anyhow::Result<BufReader<File>> {
    refuse_gzip(path)?;
    let file = File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(BufReader::with_capacity(1 << 20, file))
}

/// Reads the next line with its line break, and returns its bytes; zero at the end. A line that is
/// too long is never in memory as a whole.
pub(crate) fn read_line(
    file: &mut impl BufRead,
    path: &Path,
    number: usize,
    line: &mut String,
) -> anyhow::Result<usize> {
    let mut bytes = std::mem::take(line).into_bytes();
    bytes.clear();
    let read = file.take(MAX_LINE_BYTES as u64 + 1).read_until(b'\n', &mut bytes);
    let read = read.with_context(|| format!("cannot read {}", path.display()))?;
    let name = path.display();
    ensure!(
        read <= MAX_LINE_BYTES || bytes.ends_with(b"\n"),
        "{name}: line {number} is longer than {MAX_LINE_BYTES} bytes; write one JSON object a line"
    );
    *line = String::from_utf8(bytes)
        .map_err(|_| anyhow!("{name}: line {number} is not UTF-8; convert the file"))?;
    Ok(read)
}

/// Reads a file of lines as a whole.
pub(crate) fn read_lines(path: &Path) -> anyhow::Result<String> {
    let mut file = open_lines(path)?;
    let mut text = String::new();
    let mut line = String::new();
    let mut number = 1;
    while read_line(&mut file, path, number, &mut line)? > 0 {
        text.push_str(&line);
        number += 1;
    }
    Ok(text)
}
