//! The store in a database: processes that crash at any message to a real server, a server that
//! crashes, and several gateways at once.

use crate::disk::{Crash, Cut, Dice};
use crate::server::{Database, address};
use crate::suite::{
    INPUT, LINES, TestedStore, batch, die_often, entry, grow_old, output, race, record,
    run_until_done,
};
use crate::wait::eventually;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;
use wornpath_jobs::{
    BatchStatus, Lease, Postgres, PostgresServer, PostgresSharing, Store, StoreError,
};

fn sharing(runner: &str, term: Duration) -> PostgresSharing {
    PostgresSharing { runner: runner.to_owned(), term }
}

fn open(address: &str, runner: &str, term: Duration) -> Result<Postgres, StoreError> {
    let server = PostgresServer { address: address.to_owned(), password: None, tls: None };
    Postgres::open(&server, sharing(runner, term))
}

/// Waits until the server has started.
fn connected(database: &Database, runner: &str, term: Duration) -> Postgres {
    eventually("the server has started", || match open(&database.address(), runner, term) {
        Ok(store) => Some(store),
        Err(StoreError::Unreachable(_)) => None,
        Err(error) => panic!("{error}"),
    })
}

#[derive(Default)]
struct State {
    operations: usize,
    dies_at: Option<(usize, Cut)>,
    is_dead: bool,
    connections: Vec<TcpStream>,
}

impl State {
    /// The process has crashed: the server sees its connections close.
    fn die(&mut self) {
        self.is_dead = true;
        for connection in self.connections.drain(..) {
            let _ = connection.shutdown(Shutdown::Both);
        }
    }
}

/// A proxy between a process and the server that crashes the process at a chosen message.
#[derive(Clone)]
struct Wire {
    state: Arc<Mutex<State>>,
    port: u16,
}

impl Wire {
    fn to(server: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let wire = Self { state: Arc::default(), port };
        let accepting = wire.clone();
        // Until the end of the test process.
        let _accepts = thread::Builder::new().spawn(move || {
            for client in listener.incoming() {
                let client = client.unwrap();
                let wire = accepting.clone();
                let server = TcpStream::connect(("127.0.0.1", server)).unwrap();
                let _ = (client.set_nodelay(true), server.set_nodelay(true));
                let mut state = wire.state.lock().unwrap();
                if state.is_dead {
                    continue;
                }
                state
                    .connections
                    .extend([client.try_clone().unwrap(), server.try_clone().unwrap()]);
                drop(state);
                let _carries = thread::Builder::new().spawn(move || wire.carry(client, server));
            }
        });
        wire
    }

    /// Forwards one exchange after another: the client's messages up to where it waits, and the
    /// whole reply.
    fn carry(&self, mut client: TcpStream, mut server: TcpStream) -> Option<()> {
        let mut said = first_message(&mut client)?;
        loop {
            let cut = {
                let mut state = self.state.lock().unwrap();
                state.operations += 1;
                state.dies_at.filter(|(at, _)| *at == state.operations).map(|(_, cut)| cut)
            };
            match cut {
                Some(Cut::Before) => {}
                Some(Cut::Torn) => server.write_all(&said[..said.len() / 2]).ok()?,
                None | Some(Cut::After) => {
                    server.write_all(&said).ok()?;
                    let answer = messages(&mut server, b"Z")?;
                    if cut.is_none() {
                        client.write_all(&answer).ok()?;
                    }
                }
            }
            if cut.is_some() {
                self.state.lock().unwrap().die();
                return None;
            }
            said = messages(&mut client, b"SQ")?;
        }
    }
}

/// The startup message, the only one without a type byte.
fn first_message(from: &mut TcpStream) -> Option<Vec<u8>> {
    let mut length = [0; 4];
    from.read_exact(&mut length).ok()?;
    let mut bytes = vec![0; u32::from_be_bytes(length) as usize];
    bytes[..4].copy_from_slice(&length);
    from.read_exact(&mut bytes[4..]).ok()?;
    Some(bytes)
}

/// The messages up to one of these types.
fn messages(from: &mut TcpStream, last: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    loop {
        let mut head = [0; 5];
        from.read_exact(&mut head).ok()?;
        let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
        let begin = bytes.len() + 5;
        bytes.extend(head);
        bytes.resize(begin + length - 4, 0);
        from.read_exact(&mut bytes[begin..]).ok()?;
        if last.contains(&head[0]) {
            return Some(bytes);
        }
    }
}

impl TestedStore for Wire {
    fn open(&self) -> Result<Box<dyn Store>, StoreError> {
        // Under the same name after each start: it need not wait until its own leases expire.
        Ok(Box::new(open(&address(self.port), "one", Duration::from_secs(600))?))
    }

    fn crash_at(&self, operation: usize, cut: Cut) {
        self.state.lock().unwrap().dies_at = Some((operation, cut));
    }

    fn is_dead(&self) -> bool {
        self.state.lock().unwrap().is_dead
    }

    fn reboot(&self, _: Crash, _: &mut Dice) {
        *self.state.lock().unwrap() = State::default();
    }

    fn live_on(&self) {
        *self.state.lock().unwrap() = State::default();
    }

    fn operations(&self) -> usize {
        self.state.lock().unwrap().operations
    }
}

#[test]
fn a_process_that_crashes_before_any_message_to_the_database_keeps_what_it_accepted() {
    crash_at_every_message(Cut::Before, 0..20);
}

#[test]
fn a_process_that_crashes_after_any_message_to_the_database_keeps_what_it_accepted() {
    crash_at_every_message(Cut::After, 20..40);
}

/// A process crashes at each fifth message once, or at each one in the long run, and then, for each seed, at several of them.
fn crash_at_every_message(cut: Cut, seeds: std::ops::Range<u64>) {
    let Some(database) = Database::start() else { return };
    drop(connected(&database, "first", Duration::from_millis(1)));
    let wire = Wire::to(database.port);
    wire.live_on();
    let all = run_until_done(&wire, 0, &[], Crash::Process, &mut Dice(0));
    let is_thorough = std::env::var_os("WORNPATH_THOROUGH").is_some();
    let first = if cut == Cut::Before { 1 } else { 2 };
    for operation in (first..=all).step_by(if is_thorough { 1 } else { 5 }) {
        run_until_done(&wire, operation, &[(operation, cut)], Crash::Process, &mut Dice(0));
    }
    seeds.for_each(|seed| die_often(&wire, seed, all));
    assert!(all >= 100, "only {all} messages");
}

#[test]
fn the_database_keeps_what_the_folder_keeps() {
    let Some(database) = Database::start() else { return };
    let store = connected(&database, "one", Duration::from_secs(600));
    race(&store);
    grow_old(&store);
    shares_segments(&store, &database);
    takes_over(&database);
}

/// Two gateways share one batch, and each line is published once.
fn shares_segments(first: &Postgres, database: &Database) {
    let second = connected(database, "two", Duration::from_secs(600));
    // It is registered, and the others leave it a share.
    second.unfinished().unwrap();
    let big = vec![b'x'; 2 << 20];
    first.add_file(entry("file-big"), &mut &big[..]).unwrap();
    let mut read = vec![0; big.len() + 10];
    assert_eq!(second.read_file("file-big", 0, &mut read).unwrap(), big.len());
    first.add_batch(batch("batch_big", "file-big")).unwrap();
    let leases = [first, &second].map(|store| store.lease("batch_big").unwrap().unwrap());
    let [one, two] = &leases;
    assert_eq!((one.of, &one.segments[..]), (8, &[0, 1][..]), "a quarter, as there are two");
    assert_eq!(two.segments, [2, 3], "a quarter of the rest, rounded up");
    publish_both(&[first, &second], &leases);
    // A runner that is done leases more, ever less at once, until nothing is left.
    let mut sizes = Vec::new();
    let last = loop {
        let store = [first, &second][sizes.len() % 2];
        let lease = store.lease("batch_big").unwrap().unwrap();
        if lease.is_whole() {
            break lease;
        }
        store.settle(&lease).unwrap();
        store.release(&lease).unwrap();
        sizes.push(lease.segments.len());
    };
    assert_eq!(sizes, [1, 1, 1, 1]);
    // All segments were settled and released, and the batch has not ended: the next runner gets all
    // of it, once.
    assert_eq!(second.lease("batch_big").unwrap(), None, "the other runner has it");
    first.settle(&last).unwrap();
    assert_eq!(second.lease("batch_big").unwrap(), None, "it is about to end it");
    first.renew(&last).unwrap();
    for status in [BatchStatus::Cancelling, BatchStatus::Cancelled] {
        first.change_leased(&last, &mut |batch| batch.reach(status, 9)).unwrap();
    }
    let late = first.publish(&last, &[record(0, "late")]);
    assert!(matches!(late, Err(StoreError::Fenced(_))), "{late:?}");
}

/// Two runners publish all lines at the same time.
fn publish_both(stores: &[&Postgres; 2], leases: &[Lease; 2]) {
    for (store, lease) in stores.iter().zip(leases) {
        store.standing(lease, INPUT).unwrap();
    }
    thread::scope(|scope| {
        for (store, lease) in stores.iter().zip(leases) {
            scope.spawn(move || {
                for line in 0..LINES {
                    store.publish(lease, &[record(line, &lease.epoch.to_string())]).unwrap();
                }
                store.settle(lease).unwrap();
                store.release(lease).unwrap();
            });
        }
    });
    let text = output(stores[0], "batch_big");
    assert_eq!(text.lines().count(), LINES as usize, "{text}");
    assert_eq!(stores[1].batch("batch_big").unwrap().counts.pending(), 0);
}

/// A lease that is not renewed expires; one that is released is free at once.
fn takes_over(database: &Database) {
    let term = Duration::from_millis(300);
    let first = connected(database, "third", term);
    let second = connected(database, "fourth", term);
    first.add_file(entry("file-left"), &mut &b"x"[..]).unwrap();
    first.add_batch(batch("batch_left", "file-left")).unwrap();
    let given = second.lease("batch_left").unwrap().unwrap();
    assert_eq!(first.lease("batch_left").unwrap(), None, "another has it");
    second.release(&given).unwrap();
    let lost = first.lease("batch_left").unwrap().unwrap();
    assert!(matches!(second.renew(&given), Err(StoreError::Fenced(_))));
    first.standing(&lost, INPUT).unwrap();
    first.publish(&lost, &[record(0, "third")]).unwrap();
    // The first runner does not renew its lease until it expires.
    let taken = eventually("the lease expires", || second.lease("batch_left").unwrap());
    assert!(taken.epoch > lost.epoch);
    assert_eq!(second.standing(&taken, INPUT).unwrap().missing, [1, 2, 3, 4, 5]);
    let late = first.publish(&lost, &[record(1, "third")]);
    assert!(matches!(late, Err(StoreError::Fenced(_))), "{late:?}");
    let records: Vec<_> = (0..LINES).map(|line| record(line, "fourth")).collect();
    assert_eq!(second.publish(&taken, &records).unwrap(), 5);
    assert_eq!(output(&second, "batch_left").matches("third").count(), 1);
    // The second runner settles, and crashes before it has ended the batch.
    second.settle(&taken).unwrap();
    let ending = eventually("the lease expires", || first.lease("batch_left").unwrap());
    assert!(ending.is_whole() && ending.epoch > taken.epoch);
    assert!(matches!(second.renew(&taken), Err(StoreError::Fenced(_))));
}

#[test]
fn a_server_that_crashes_loses_and_duplicates_nothing() {
    let Some(mut database) = Database::start() else { return };
    let store = connected(&database, "one", Duration::from_secs(600));
    store.add_file(entry("file-a"), &mut &b"x"[..]).unwrap();
    store.add_batch(batch("batch_a", "file-a")).unwrap();
    let lease = store.lease("batch_a").unwrap().unwrap();
    let lines = 4_000;
    let input = wornpath_jobs::InputMark { lines, ..INPUT };
    store.standing(&lease, input).unwrap();
    let acknowledged = AtomicU32::new(0);
    thread::scope(|scope| {
        scope.spawn(|| {
            for first in (0..lines).step_by(10) {
                let group: Vec<_> = (first..first + 10).map(|line| record(line, "one")).collect();
                eventually("the server is back", || match store.publish(&lease, &group) {
                    Ok(_) => Some(()),
                    Err(StoreError::Unreachable(_)) => None,
                    Err(error) => panic!("{error}"),
                });
                acknowledged.fetch_add(10, Relaxed);
            }
        });
        for seed in 0..4 {
            let crash_at = seed as u32 * 900 + Dice(seed).below(300) as u32;
            eventually("so many are published", || {
                (acknowledged.load(Relaxed) >= crash_at).then_some(())
            });
            database.crash();
            database.run();
        }
    });
    let acknowledged = acknowledged.into_inner();
    let batch = store.batch("batch_a").unwrap();
    assert_eq!((acknowledged, batch.counts.completed, batch.counts.pending()), (lines, lines, 0));
    assert!(store.standing(&lease, input).unwrap().missing.is_empty());
    let mut buffer = vec![0; 1 << 20];
    let read =
        store.read_results("batch_a", wornpath_jobs::RecordKind::Output, 0, &mut buffer).unwrap();
    assert_eq!(buffer[..read].split(|byte| *byte == b'\n').count(), lines as usize + 1);
}
