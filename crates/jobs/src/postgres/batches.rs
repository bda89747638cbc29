//! The table of batches: an entry each, the counts that publishers add to, and the segments that
//! are leased.

use super::rows::{batch_entry, file_entry, json, missing_batch, missing_file, signed, unsigned};
use crate::batch::{Batch, BatchStatus, UnixTime};
use crate::record::{Counts, TokenUsage};
use crate::store_error::StoreError;
use tokio_postgres::{Client, GenericClient, Row};

/// The bytes of an input per segment.
const SEGMENT_BYTES: u64 = 256 << 10;
const MAX_SEGMENTS: u64 = 256;

/// The columns that [`full`] reads.
const COLUMNS: &str = "entry, total, completed, failed, input_tokens, cached_tokens, output_tokens";

pub(super) async fn add(client: &mut Client, batch: &Batch) -> Result<(), StoreError> {
    let transaction = client.transaction().await?;
    let input = "SELECT entry FROM wornpath_files WHERE id = $1 FOR SHARE";
    let Some(locked) = transaction.query_opt(input, &[&batch.input_file_id]).await? else {
        return Err(missing_file(&batch.input_file_id));
    };
    let bytes = file_entry(&locked)?.bytes;
    let text = "INSERT INTO wornpath_batches \
                (id, owner, input, created_at, expires_at, is_cancelled, entry) \
                VALUES ($1, $2, $3, $4, $5, false, $6)";
    let created = signed(batch.created_at());
    let expires = signed(batch.expires_at);
    transaction
        .execute(
            text,
            &[&batch.id, &batch.owner, &batch.input_file_id, &created, &expires, &json(batch)],
        )
        .await?;
    let segments = (bytes / SEGMENT_BYTES).clamp(1, MAX_SEGMENTS) as i32;
    let text = "INSERT INTO wornpath_segments (batch, number) \
                SELECT $1, generate_series(0, $2::int - 1)";
    transaction.execute(text, &[&batch.id, &segments]).await?;
    Ok(transaction.commit().await?)
}

pub(super) async fn find(client: &impl GenericClient, id: &str) -> Result<Batch, StoreError> {
    let text = format!("SELECT {COLUMNS} FROM wornpath_batches WHERE id = $1");
    let row = client.query_opt(&text, &[&id]).await?;
    row.as_ref().map_or_else(|| Err(missing_batch(id)), full)
}

/// Finds a batch and locks its row until the end of the transaction.
pub(super) async fn find_locked(
    client: &impl GenericClient,
    id: &str,
) -> Result<Batch, StoreError> {
    let text = format!("SELECT {COLUMNS} FROM wornpath_batches WHERE id = $1 FOR UPDATE");
    let row = client.query_opt(&text, &[&id]).await?;
    row.as_ref().map_or_else(|| Err(missing_batch(id)), full)
}

pub(super) async fn of_owner(client: &Client, owner: &str) -> Result<Vec<Batch>, StoreError> {
    let text = format!(
        "SELECT {COLUMNS} FROM wornpath_batches WHERE owner = $1 ORDER BY created_at DESC, id DESC"
    );
    client.query(&text, &[&owner]).await?.iter().map(full).collect()
}

/// The bytes of the entries of an owner, of files too.
pub(super) async fn entry_bytes(client: &Client, owner: &str) -> Result<u64, StoreError> {
    let text = "SELECT coalesce(sum(octet_length(entry)), 0) FROM \
                (SELECT entry FROM wornpath_files WHERE owner = $1 \
                 UNION ALL SELECT entry FROM wornpath_batches WHERE owner = $1) AS entries";
    Ok(unsigned(client.query_one(text, &[&owner]).await?.get(0)))
}

/// The newest time of a file or a batch.
pub(super) async fn newest(client: &Client) -> Result<Option<UnixTime>, StoreError> {
    let text = "SELECT greatest((SELECT max(created_at) FROM wornpath_files), \
                (SELECT max(greatest(created_at, ended_at)) FROM wornpath_batches))";
    let newest: Option<i64> = client.query_one(text, &[]).await?.get(0);
    Ok(newest.map(unsigned))
}

pub(super) async fn unfinished(client: &Client) -> Result<Vec<Batch>, StoreError> {
    let text = format!("SELECT {COLUMNS} FROM wornpath_batches WHERE ended_at IS NULL ORDER BY id");
    client.query(&text, &[]).await?.iter().map(full).collect()
}

pub(super) async fn change(
    client: &mut Client,
    id: &str,
    change: &mut dyn FnMut(&mut Batch) -> Result<(), StoreError>,
) -> Result<Batch, StoreError> {
    let transaction = client.transaction().await?;
    let mut batch = find_locked(&transaction, id).await?;
    change(&mut batch)?;
    write(&transaction, &batch).await?;
    transaction.commit().await?;
    Ok(batch)
}

/// Writes a changed batch.
pub(super) async fn write(client: &impl GenericClient, batch: &Batch) -> Result<(), StoreError> {
    let text =
        "UPDATE wornpath_batches SET entry = $2, ended_at = $3, is_cancelled = $4 WHERE id = $1";
    let ended = batch.ended_at().map(signed);
    let is_cancelled = batch.status() == BatchStatus::Cancelling;
    client.execute(text, &[&batch.id, &json(batch), &ended, &is_cancelled]).await?;
    Ok(())
}

/// A batch with its counts, of a row with all [`COLUMNS`].
fn full(row: &Row) -> Result<Batch, StoreError> {
    let mut batch = batch_entry(row)?;
    let count = |at: usize| u32::try_from(row.get::<_, i32>(at)).unwrap_or(0);
    batch.counts = Counts { total: count(1), completed: count(2), failed: count(3) };
    let tokens = |at: usize| unsigned(row.get(at));
    batch.usage = TokenUsage { input: tokens(4), cached: tokens(5), output: tokens(6) };
    Ok(batch)
}
