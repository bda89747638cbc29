//! The store for several gateways: everything in one PostgreSQL database.
//!
//! The primary key of the records is the promise: a line has one, whoever computes it. Segments are leased, thousands
//! of them and not millions of rows, with `SKIP LOCKED`, so that nobody waits for another's turn. A lease has a
//! number from one sequence and an end by the server's clock; publishing renews it in the same transaction that
//! checks it, so a runner whose lease was taken over writes nothing. How much a runner takes at once depends on
//! how many there are: all of it when it is alone, else a part of what is left, which shrinks towards the end.
//!
//! Limits: connections are not encrypted, so the database belongs on a network that is trusted; uploads and results
//! pass through the database, which costs it about their size in write-ahead log.

mod batches;
mod files;
mod leases;
mod pool;
mod results;
mod schema;

use crate::batch::{Batch, BatchStatus, UnixTime};
use crate::problem::StoreError;
use crate::record::{LineRecord, RecordKind};
use crate::results::InputMark;
use crate::store::{BatchState, FileEntry, Lease, Store};
use pool::Pool;
use std::io::Read;
use std::time::Duration;
use tokio::runtime::Handle;

/// How a database is shared.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PostgresSharing {
    /// Under which name this gateway takes leases; no other may have it at the same time.
    pub runner: String,
    /// How long a lease lasts if nothing is heard of its holder.
    pub term: Duration,
}

/// A store in a database.
pub struct Postgres {
    pool: Pool,
    sharing: PostgresSharing,
}

impl std::fmt::Debug for Postgres {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Postgres(as {})", self.sharing.runner)
    }
}

impl Postgres {
    /// Connects, and makes the tables if there are none. `address` is a URL or `key=value` pairs, as libpq has them.
    ///
    /// # Errors
    /// If the address is none, or the database cannot be reached or refuses.
    pub fn open(address: &str, sharing: PostgresSharing) -> Result<Self, StoreError> {
        let store = Self { pool: Pool::new(address)?, sharing };
        store.pool.with(schema::make)?;
        Ok(store)
    }

    /// The event loop of its connections, which has one thread.
    #[must_use]
    pub fn event_loop(&self) -> &Handle {
        self.pool.event_loop()
    }

    /// Seconds of a lease, as the database counts them.
    fn term_seconds(&self) -> f64 {
        self.sharing.term.as_secs_f64()
    }
}

impl Store for Postgres {
    fn add_file(&self, entry: FileEntry, content: &mut dyn Read) -> Result<FileEntry, StoreError> {
        files::add(&self.pool, entry, content)
    }

    fn file(&self, id: &str) -> Result<FileEntry, StoreError> {
        self.pool.with(async |client| files::find(client, id).await)
    }

    fn files(&self, owner: &str) -> Result<Vec<FileEntry>, StoreError> {
        self.pool.with(async |client| files::of_owner(client, owner).await)
    }

    fn read_file(&self, id: &str, offset: u64, buffer: &mut [u8]) -> Result<usize, StoreError> {
        self.pool.with(async |client| files::read(client, id, offset, buffer).await)
    }

    fn remove_file(&self, id: &str) -> Result<(), StoreError> {
        self.pool.with(async |client| files::remove(client, id).await)
    }

    fn add_batch(&self, batch: Batch) -> Result<(), StoreError> {
        self.pool.with(async |client| batches::add(client, &batch).await)
    }

    fn batch(&self, id: &str) -> Result<Batch, StoreError> {
        self.pool.with(async |client| batches::find(client, id).await)
    }

    fn batches(&self, owner: &str) -> Result<Vec<Batch>, StoreError> {
        self.pool.with(async |client| batches::of_owner(client, owner).await)
    }

    fn unfinished(&self) -> Result<Vec<Batch>, StoreError> {
        self.pool.with(async |client| {
            leases::attend(client, &self.sharing.runner, self.term_seconds()).await?;
            batches::unfinished(client).await
        })
    }

    fn result_bytes(&self, batch: &str, kind: RecordKind) -> Result<u64, StoreError> {
        self.pool.with(async |client| results::bytes(client, batch, kind).await)
    }

    fn change(
        &self,
        id: &str,
        change: &mut dyn FnMut(&mut Batch) -> Result<(), StoreError>,
    ) -> Result<Batch, StoreError> {
        self.pool.with(async |client| batches::change(client, id, change).await)
    }

    fn lease(&self, batch: &str) -> Result<Option<Lease>, StoreError> {
        let (runner, term) = (&self.sharing.runner, self.term_seconds());
        self.pool.with(async |client| leases::take(client, batch, (runner, term)).await)
    }

    fn term(&self) -> Duration {
        self.sharing.term
    }

    fn renew(&self, lease: &Lease) -> Result<BatchStatus, StoreError> {
        let (runner, term) = (&self.sharing.runner, self.term_seconds());
        self.pool.with(async |client| {
            leases::attend(client, runner, term).await?;
            leases::hold(client, lease, term).await?;
            Ok(batches::find(client, &lease.batch).await?.status())
        })
    }

    fn settle(&self, lease: &Lease) -> Result<(), StoreError> {
        self.pool.with(async |client| leases::settle(client, lease).await)
    }

    fn release(&self, lease: &Lease) -> Result<(), StoreError> {
        self.pool.with(async |client| leases::release(client, lease).await)
    }

    fn change_leased(
        &self,
        lease: &Lease,
        change: &mut dyn FnMut(&mut Batch) -> Result<(), StoreError>,
    ) -> Result<Batch, StoreError> {
        let term = self.term_seconds();
        self.pool.with(async |client| leases::change(client, (lease, term), change).await)
    }

    fn standing(&self, lease: &Lease, input: InputMark) -> Result<BatchState, StoreError> {
        let term = self.term_seconds();
        self.pool.with(async |client| results::standing(client, (lease, term), input).await)
    }

    fn publish(&self, lease: &Lease, records: &[LineRecord]) -> Result<usize, StoreError> {
        let term = self.term_seconds();
        self.pool.with(async |client| results::publish(client, (lease, term), records).await)
    }

    fn read_results(
        &self,
        batch: &str,
        kind: RecordKind,
        offset: u64,
        buffer: &mut [u8],
    ) -> Result<usize, StoreError> {
        self.pool.with(async |client| results::read(client, (batch, kind), offset, buffer).await)
    }

    fn sweep(&self, now: UnixTime, keep: u64) -> Result<usize, StoreError> {
        self.pool.with(async |client| schema::sweep(client, now, keep).await)
    }
}

/// A number as the database has it.
fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// A number as we have it; the database holds none below zero.
fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}
