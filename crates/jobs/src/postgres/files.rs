//! The table of files: an entry each, and their bytes in pieces.
//!
//! Pieces come first and the entry last: an upload that was interrupted leaves pieces without an
//! entry, which are swept later.

use super::pool::Pool;
use super::results::{self, ResultRange};
use super::rows::{batch_entry, file_entry, json, missing_file, signed};
use crate::file_entry::FileEntry;
use crate::store::still_needed;
use crate::store_error::StoreError;
use std::io::{ErrorKind, Read};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, GenericClient, Transaction};

/// Bytes of a piece.
const PIECE: usize = 256 << 10;

pub(super) fn add(
    pool: &Pool,
    mut entry: FileEntry,
    content: &mut dyn Read,
) -> Result<FileEntry, StoreError> {
    if entry.of.is_none() {
        let written = write_pieces(pool, &mut entry, content);
        if written.is_err() {
            // Pieces that cannot be removed now are swept later.
            let _ = pool.with(async |client| remove_pieces(client, &entry.id).await);
        }
        written?;
    }
    pool.with(async |client| {
        let text = "INSERT INTO wornpath_files (id, owner, created_at, expires_at, batch, entry) \
                    VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT (id) DO UPDATE \
                    SET created_at = $3, expires_at = $4, entry = $6 WHERE wornpath_files.batch = $5";
        let created = signed(entry.created_at);
        let expires = entry.expires_at.map(signed);
        let batch = entry.of.as_ref().map(|(batch, _)| batch);
        let values: [&(dyn ToSql + Sync); 6] =
            [&entry.id, &entry.owner, &created, &expires, &batch, &json(&entry)];
        client.execute(text, &values).await?;
        Ok(())
    })?;
    Ok(entry)
}

/// Writes the content in pieces. Sets its length and checksum.
fn write_pieces(
    pool: &Pool,
    entry: &mut FileEntry,
    content: &mut dyn Read,
) -> Result<(), StoreError> {
    let id = &entry.id;
    let mut crc = crc32fast::Hasher::new();
    let mut bytes = 0;
    let mut piece = vec![0; PIECE];
    for number in 0_i32.. {
        let filled = fill(content, &mut piece).map_err(|error| {
            StoreError::Unreachable(format!("cannot receive the upload: {error}"))
        })?;
        if filled > 0 {
            // An id belongs to one upload: an existing piece was left by a call that was
            // interrupted.
            let text = "INSERT INTO wornpath_pieces (file, number, content) VALUES ($1, $2, $3) \
                        ON CONFLICT (file, number) DO UPDATE SET content = EXCLUDED.content";
            let part = &piece[..filled];
            pool.with(async |client| Ok(client.execute(text, &[&id, &number, &part]).await?))?;
        }
        crc.update(&piece[..filled]);
        bytes += filled as u64;
        if filled < PIECE {
            break;
        }
    }
    entry.bytes = bytes;
    entry.crc = Some(crc.finalize());
    Ok(())
}

fn fill(content: &mut dyn Read, buffer: &mut [u8]) -> std::io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match content.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

pub(super) async fn find(client: &impl GenericClient, id: &str) -> Result<FileEntry, StoreError> {
    let row = client.query_opt("SELECT entry FROM wornpath_files WHERE id = $1", &[&id]).await?;
    row.as_ref().map_or_else(|| Err(missing_file(id)), file_entry)
}

pub(super) async fn of_owner(client: &Client, owner: &str) -> Result<Vec<FileEntry>, StoreError> {
    let text =
        "SELECT entry FROM wornpath_files WHERE owner = $1 ORDER BY created_at DESC, id DESC";
    client.query(text, &[&owner]).await?.iter().map(file_entry).collect()
}

pub(super) async fn read(
    client: &Client,
    id: &str,
    offset: u64,
    buffer: &mut [u8],
) -> Result<usize, StoreError> {
    let entry = find(client, id).await?;
    if let Some((batch, kind)) = entry.of {
        let range = ResultRange { batch: &batch, kind, offset };
        return results::read(client, range, buffer).await;
    }
    let text = "SELECT substring(content FROM $3 FOR $4) FROM wornpath_pieces \
                WHERE file = $1 AND number = $2";
    let mut read = 0;
    while read < buffer.len() && offset + (read as u64) < entry.bytes {
        let at = offset + read as u64;
        let number = i32::try_from(at / PIECE as u64).unwrap_or(i32::MAX);
        let within = (at % PIECE as u64) as i32 + 1;
        let wanted = i32::try_from(buffer.len() - read).unwrap_or(i32::MAX);
        let row = client.query_opt(text, &[&id, &number, &within, &wanted]).await?;
        let row = row.ok_or_else(|| {
            StoreError::Refused(format!("piece {number} of file `{id}` is missing in the database"))
        })?;
        let bytes: &[u8] = row.get(0);
        if bytes.is_empty() {
            break;
        }
        buffer[read..read + bytes.len()].copy_from_slice(bytes);
        read += bytes.len();
    }
    Ok(read)
}

pub(super) async fn remove(client: &mut Client, id: &str) -> Result<(), StoreError> {
    let transaction = client.transaction().await?;
    // Locked against a batch that is being created from it.
    let found = "SELECT entry FROM wornpath_files WHERE id = $1 FOR UPDATE";
    let found = transaction.query_opt(found, &[&id]).await?;
    let found = found.as_ref().map(file_entry).transpose()?;
    let Some(found) = found else { return Err(missing_file(id)) };
    let needed = "SELECT entry FROM wornpath_batches WHERE input = $1 AND ended_at IS NULL LIMIT 1";
    if let Some(row) = transaction.query_opt(needed, &[&id]).await? {
        return Err(still_needed(id, &batch_entry(&row)?));
    }
    transaction.execute("DELETE FROM wornpath_files WHERE id = $1", &[&id]).await?;
    if let Some((batch, _)) = found.of {
        remove_results(&transaction, &[batch]).await?;
    }
    transaction.commit().await?;
    remove_pieces(client, id).await
}

/// Removes the results of ended batches whose result files are all removed.
pub(super) async fn remove_results(
    transaction: &Transaction<'_>,
    batches: &[String],
) -> Result<(), StoreError> {
    let text = "DELETE FROM wornpath_records r WHERE batch = ANY($1) \
                AND NOT EXISTS (SELECT 1 FROM wornpath_files f WHERE f.batch = r.batch) \
                AND EXISTS (SELECT 1 FROM wornpath_batches b WHERE b.id = r.batch AND b.ended_at IS NOT NULL)";
    transaction.execute(text, &[&batches]).await?;
    Ok(())
}

async fn remove_pieces(client: &Client, id: &str) -> Result<(), StoreError> {
    client.execute("DELETE FROM wornpath_pieces WHERE file = $1", &[&id]).await?;
    Ok(())
}
