//! Leases on segments: which runner computes what, by the database's clock.

use super::batches;
use super::rows::{missing_batch, signed, unsigned};
use crate::batch::Batch;
use crate::store::Lease;
use crate::store_error::StoreError;
use tokio_postgres::{Client, GenericClient, Transaction};

/// A segment that a runner may lease; `$2` is its name.
const IS_FREE: &str =
    "NOT is_settled AND (holder IS NULL OR holder = $2 OR until < clock_timestamp())";

/// A gateway that takes leases.
#[derive(Clone, Copy)]
pub(super) struct Runner<'a> {
    pub(super) name: &'a str,
    /// The seconds of its leases.
    pub(super) term: f64,
}

/// A lease that an operation needs, and renews.
#[derive(Clone, Copy)]
pub(super) struct HeldLease<'a> {
    pub(super) lease: &'a Lease,
    /// The seconds that it is renewed for.
    pub(super) term: f64,
}

/// The epoch and the segments of a new lease.
struct LeasedSegments {
    epoch: u64,
    segments: Vec<u32>,
}

/// Registers a live runner, so that others leave it a share.
pub(super) async fn register(
    client: &impl GenericClient,
    runner: Runner<'_>,
) -> Result<(), StoreError> {
    let text = "INSERT INTO wornpath_runners (name, until) \
                VALUES ($1, clock_timestamp() + make_interval(secs => $2)) \
                ON CONFLICT (name) DO UPDATE SET until = EXCLUDED.until";
    client.execute(text, &[&runner.name, &runner.term]).await?;
    Ok(())
}

pub(super) async fn take(
    client: &mut Client,
    batch: &str,
    runner: Runner<'_>,
) -> Result<Option<Lease>, StoreError> {
    register(client, runner).await?;
    let transaction = client.transaction().await?;
    let state = "SELECT ended_at IS NOT NULL, \
                 is_cancelled OR expires_at <= extract(epoch FROM clock_timestamp()), \
                 (SELECT count(*) FROM wornpath_segments WHERE batch = $1), \
                 (SELECT count(*) FROM wornpath_runners WHERE until > clock_timestamp()), \
                 (SELECT count(*) FROM wornpath_segments WHERE batch = $1 AND NOT is_settled) \
                 FROM wornpath_batches WHERE id = $1";
    let state = transaction.query_opt(state, &[&batch]).await?;
    let state = state.ok_or_else(|| missing_batch(batch))?;
    if state.get(0) {
        return Err(has_ended(batch));
    }
    let is_over: bool = state.get(1);
    let of: i64 = state.get(2);
    let runners: i64 = state.get(3);
    let open: i64 = state.get(4);
    let taken = match open {
        0 => reopen(&transaction, batch, runner).await?,
        _ => {
            let free = free(&transaction, batch, runner.name).await?;
            // Alone: all of it. Otherwise a part, so that the runner that is done first takes more.
            let part = 2 * runners.max(1);
            let share = (free + part - 1) / part;
            let most = if runners <= 1 || is_over { free } else { share };
            claim(&transaction, batch, runner, most).await?
        }
    };
    transaction.commit().await?;
    let Some(LeasedSegments { epoch, segments }) = taken else { return Ok(None) };
    Ok(Some(Lease { batch: batch.to_owned(), epoch, segments, of: of as u32 }))
}

async fn free(client: &Transaction<'_>, batch: &str, runner: &str) -> Result<i64, StoreError> {
    let text = format!("SELECT count(*) FROM wornpath_segments WHERE batch = $1 AND {IS_FREE}");
    Ok(client.query_one(&text, &[&batch, &runner]).await?.get(0))
}

async fn claim(
    client: &Transaction<'_>,
    batch: &str,
    runner: Runner<'_>,
    most: i64,
) -> Result<Option<LeasedSegments>, StoreError> {
    // One epoch for all of them: the sequence is advanced once, before the rows are read.
    let text = format!(
        "WITH fresh AS MATERIALIZED (SELECT nextval('wornpath_epochs') AS epoch), \
         mine AS (SELECT number FROM wornpath_segments WHERE batch = $1 AND {IS_FREE} \
                  ORDER BY number LIMIT $4 FOR UPDATE SKIP LOCKED) \
         UPDATE wornpath_segments s SET epoch = fresh.epoch, holder = $2, \
         until = clock_timestamp() + make_interval(secs => $3) \
         FROM fresh, mine WHERE s.batch = $1 AND s.number = mine.number \
         RETURNING s.epoch, s.number"
    );
    Ok(taken(&client.query(&text, &[&batch, &runner.name, &runner.term, &most]).await?))
}

/// Leases a batch whose segments are all settled and that has not ended: its last runner crashed,
/// or lines are left. None as long as a runner that settled still has its lease, because it may be
/// about to end the batch.
async fn reopen(
    client: &Transaction<'_>,
    batch: &str,
    runner: Runner<'_>,
) -> Result<Option<LeasedSegments>, StoreError> {
    // Of several runners that come at once, the others see the lease of the first.
    if batches::find_locked(client, batch).await?.status().is_final() {
        return Err(has_ended(batch));
    }
    let text = "WITH fresh AS MATERIALIZED (SELECT nextval('wornpath_epochs') AS epoch) \
                UPDATE wornpath_segments s SET epoch = fresh.epoch, holder = $2, \
                is_settled = false, until = clock_timestamp() + make_interval(secs => $3) \
                FROM fresh WHERE s.batch = $1 AND NOT EXISTS \
                (SELECT 1 FROM wornpath_segments o WHERE o.batch = $1 AND (NOT o.is_settled OR \
                 o.holder IS NOT NULL AND o.holder <> $2 AND o.until >= clock_timestamp())) \
                RETURNING s.epoch, s.number";
    Ok(taken(&client.query(text, &[&batch, &runner.name, &runner.term]).await?))
}

fn has_ended(batch: &str) -> StoreError {
    StoreError::Conflict(format!("batch `{batch}` has ended"))
}

fn taken(rows: &[tokio_postgres::Row]) -> Option<LeasedSegments> {
    let first = rows.first()?;
    let mut segments: Vec<_> = rows.iter().map(|row| row.get::<_, i32>(1) as u32).collect();
    segments.sort_unstable();
    Some(LeasedSegments { epoch: unsigned(first.get(0)), segments })
}

/// Renews a lease if it is the latest of all its segments.
pub(super) async fn renew(
    client: &impl GenericClient,
    HeldLease { lease, term }: HeldLease<'_>,
) -> Result<(), StoreError> {
    let text = "UPDATE wornpath_segments SET until = clock_timestamp() + make_interval(secs => $3) \
                WHERE batch = $1 AND epoch = $2";
    let held = client.execute(text, &[&lease.batch, &signed(lease.epoch), &term]).await?;
    match held == lease.segments.len() as u64 {
        true => Ok(()),
        false => Err(StoreError::Fenced(lease.batch.clone())),
    }
}

/// Locks the batch of a lease until the end of the transaction, and renews the lease.
pub(super) async fn lock_batch(
    client: &Transaction<'_>,
    held: HeldLease<'_>,
) -> Result<Batch, StoreError> {
    let batch = batches::find_locked(client, &held.lease.batch).await?;
    if batch.status().is_final() {
        return Err(StoreError::Fenced(held.lease.batch.clone()));
    }
    renew(client, held).await?;
    Ok(batch)
}

pub(super) async fn change(
    client: &mut Client,
    held: HeldLease<'_>,
    change: &mut dyn FnMut(&mut Batch) -> Result<(), StoreError>,
) -> Result<Batch, StoreError> {
    let transaction = client.transaction().await?;
    let mut batch = lock_batch(&transaction, held).await?;
    change(&mut batch)?;
    batches::write(&transaction, &batch).await?;
    transaction.commit().await?;
    Ok(batch)
}

pub(super) async fn settle(client: &Client, lease: &Lease) -> Result<(), StoreError> {
    let text = "UPDATE wornpath_segments SET is_settled = true WHERE batch = $1 AND epoch = $2";
    let settled = client.execute(text, &[&lease.batch, &signed(lease.epoch)]).await?;
    match settled == lease.segments.len() as u64 {
        true => Ok(()),
        false => Err(StoreError::Fenced(lease.batch.clone())),
    }
}

pub(super) async fn release(client: &Client, lease: &Lease) -> Result<(), StoreError> {
    // No lease has epoch 0: later writes of the former holder are refused.
    let text = "UPDATE wornpath_segments SET holder = NULL, until = NULL, epoch = 0 \
                WHERE batch = $1 AND epoch = $2";
    client.execute(text, &[&lease.batch, &signed(lease.epoch)]).await?;
    Ok(())
}
