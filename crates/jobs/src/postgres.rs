//! The store that several gateways share: everything in one PostgreSQL database.
//!
//! The primary key of the records guarantees one record per line, whichever gateway computes it.
//! Segments are leased, thousands of them and not millions of rows, with `SKIP LOCKED`, so that no
//! runner waits for another. A lease has an epoch from one sequence and an expiry by the server's
//! clock; publishing renews it in the same transaction that checks it, so a runner whose lease was
//! taken over writes nothing. The share that a runner leases at once depends on the number of
//! runners: all of it when it is alone, otherwise a part of what is left, which shrinks towards the
//! end.
//!
//! Limits: uploads and results pass through the database, which costs it about their size in
//! write-ahead log.

mod batches;
mod files;
mod leases;
mod pool;
mod results;
mod rows;
mod schema;

use crate::batch::{Batch, BatchStatus, UnixTime};
use crate::byte_check::ByteCheck;
use crate::file_entry::FileEntry;
use crate::record::{LineRecord, RecordKind};
use crate::result_log::InputMark;
use crate::store::{BatchState, Lease, Store};
use crate::store_error::StoreError;
use leases::{HeldLease, Runner};
use pool::Pool;
use results::ResultRange;
use std::io::Read;
use std::time::Duration;
use tokio::runtime::Handle;
use wornpath_tls::ClientTls;

/// A database and how to connect to it.
#[derive(Clone, PartialEq, Eq)]
pub struct PostgresServer {
    /// A libpq URL or `key=value` pairs, without a password.
    pub address: String,
    /// The user's password, if the server asks for one.
    pub password: Option<String>,
    /// Connections are encrypted if this is set, and only then.
    pub tls: Option<ClientTls>,
}

/// This gateway among those that share the database.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PostgresSharing {
    /// The name under which this gateway takes leases; it must be unique.
    pub runner: String,
    /// The time after which a lease expires that its holder does not renew.
    pub term: Duration,
}

/// A store in a PostgreSQL database.
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
    /// Connects, and creates the tables if they do not exist.
    ///
    /// # Errors
    /// If the address is invalid, or the database is unreachable or refuses.
    pub fn open(server: &PostgresServer, sharing: PostgresSharing) -> Result<Self, StoreError> {
        let store = Self { pool: Pool::new(server)?, sharing };
        store.pool.with(schema::make)?;
        Ok(store)
    }

    /// The runtime of its connections, which has one thread.
    #[must_use]
    pub fn event_loop(&self) -> &Handle {
        self.pool.event_loop()
    }

    fn runner(&self) -> Runner<'_> {
        Runner { name: &self.sharing.runner, term: self.term_seconds() }
    }

    fn held<'a>(&self, lease: &'a Lease) -> HeldLease<'a> {
        HeldLease { lease, term: self.term_seconds() }
    }

    /// The term of a lease in seconds, as the database counts them.
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

    fn entry_bytes(&self, owner: &str) -> Result<u64, StoreError> {
        self.pool.with(async |client| batches::entry_bytes(client, owner).await)
    }

    fn unfinished(&self) -> Result<Vec<Batch>, StoreError> {
        self.pool.with(async |client| {
            leases::register(client, self.runner()).await?;
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
        self.pool.with(async |client| leases::take(client, batch, self.runner()).await)
    }

    fn term(&self) -> Duration {
        self.sharing.term
    }

    fn renew(&self, lease: &Lease) -> Result<BatchStatus, StoreError> {
        self.pool.with(async |client| {
            leases::register(client, self.runner()).await?;
            leases::renew(client, self.held(lease)).await?;
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
        self.pool.with(async |client| leases::change(client, self.held(lease), change).await)
    }

    fn standing(&self, lease: &Lease, input: InputMark) -> Result<BatchState, StoreError> {
        self.pool.with(async |client| results::standing(client, self.held(lease), input).await)
    }

    fn begun(&self, batch: &str) -> Result<Option<InputMark>, StoreError> {
        self.pool.with(async |client| results::begun(client, batch).await)
    }

    fn publish(&self, lease: &Lease, records: &[LineRecord]) -> Result<usize, StoreError> {
        self.pool.with(async |client| results::publish(client, self.held(lease), records).await)
    }

    fn read_results(
        &self,
        batch: &str,
        kind: RecordKind,
        offset: u64,
        buffer: &mut [u8],
    ) -> Result<usize, StoreError> {
        self.pool.with(async |client| {
            results::read(client, ResultRange { batch, kind, offset }, buffer).await
        })
    }

    fn check_results(
        &self,
        batch: &str,
        kind: RecordKind,
        offset: u64,
    ) -> Result<ByteCheck, StoreError> {
        let end = self.pool.with(async |client| results::end(client, batch, kind).await)?;
        Ok(ByteCheck::length_only(batch, offset.min(end), end))
    }

    fn newest(&self) -> Result<Option<UnixTime>, StoreError> {
        self.pool.with(async |client| batches::newest(client).await)
    }

    fn sweep(&self, now: UnixTime, keep: u64) -> Result<usize, StoreError> {
        self.pool.with(async |client| schema::sweep(client, now, keep).await)
    }
}
