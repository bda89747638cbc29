//! The guarantees of every store, with crashes at any operation: accepted data is there, and of two
//! runners only one writes. The folder and the database run the very same suite.

use crate::disk::{Crash, Cut, Dice};
use std::collections::{BTreeMap, BTreeSet};
use wornpath_jobs::{
    Batch, BatchStatus, FileEntry, InputMark, Interface, Lease, LineRecord, NewBatch, RecordKind,
    Store, StoreError, TokenUsage,
};

pub(crate) const LINES: u32 = 6;
pub(crate) const INPUT: InputMark = InputMark { bytes: 50, hash: 3, lines: LINES };

/// A store under test, and how its process crashes.
pub(crate) trait TestedStore {
    /// Opens the store, as its process does after each start.
    fn open(&self) -> Result<Box<dyn Store>, StoreError>;
    /// Lets the process crash at an operation, counted from its start.
    fn crash_at(&self, operation: usize, cut: Cut);
    /// Whether it has crashed.
    fn is_dead(&self) -> bool;
    /// Restarts the process.
    fn reboot(&self, crash: Crash, dice: &mut Dice);
    /// Injects no more crashes.
    fn live_on(&self);
    /// The number of operations since the start.
    fn operations(&self) -> usize;
}

pub(crate) fn entry(id: &str) -> FileEntry {
    FileEntry {
        id: id.into(),
        owner: String::new(),
        filename: "in.jsonl".into(),
        purpose: "batch".into(),
        bytes: 0,
        created_at: 1,
        expires_at: None,
        crc: None,
        of: None,
    }
}

pub(crate) fn batch(id: &str, input: &str) -> Batch {
    let new = NewBatch {
        id: id.into(),
        owner: String::new(),
        interface: Interface::Chat,
        input_file_id: input.into(),
        window: ("24h".into(), 1 << 40),
        metadata: None,
    };
    Batch::new(new, 1)
}

pub(crate) fn record(line: u32, runner: &str) -> LineRecord {
    let bytes = format!("{{\"line\":{line},\"runner\":\"{runner}\"}}").into_bytes();
    LineRecord { line, kind: RecordKind::Output, bytes, usage: TokenUsage::default() }
}

pub(crate) fn output(store: &dyn Store, batch: &str) -> String {
    let mut buffer = vec![0; 4_096];
    let read = store.read_results(batch, RecordKind::Output, 0, &mut buffer).unwrap();
    // A read at any offset returns the same bytes.
    for offset in (0..read).step_by(7) {
        let mut rest = vec![0; 4_096];
        let left = store.read_results(batch, RecordKind::Output, offset as u64, &mut rest).unwrap();
        assert_eq!(rest[..left], buffer[offset..read]);
    }
    String::from_utf8(buffer[..read].to_vec()).unwrap()
}

fn leased(store: &dyn Store, batch: &str) -> Result<Lease, StoreError> {
    Ok(store.lease(batch)?.expect("no other runner has any of it"))
}

/// What the store has acknowledged.
#[derive(Default)]
struct Acknowledged {
    file: bool,
    batch: bool,
    completed: bool,
    lines: BTreeMap<u32, String>,
}

/// Uploads, creates, runs and completes a batch, as far as that is not done; crashes somewhere.
fn work(
    tested: &dyn TestedStore,
    file: &str,
    id: &str,
    acknowledged: &mut Acknowledged,
    process: usize,
) -> Result<(), StoreError> {
    let store = tested.open()?;
    match store.file(file) {
        Err(StoreError::Missing(_)) => {
            assert!(!acknowledged.file, "an accepted file is lost");
            store.add_file(entry(file), &mut &b"content of the file"[..])?;
        }
        found => drop(found?),
    }
    acknowledged.file = true;
    let mut buffer = [0; 64];
    assert_eq!(store.read_file(file, 0, &mut buffer)?, 19, "all of it or nothing");
    match store.batch(id) {
        Err(StoreError::Missing(_)) => {
            assert!(!acknowledged.batch, "an accepted batch is lost");
            store.add_batch(batch(id, file))?;
        }
        found => drop(found?),
    }
    acknowledged.batch = true;
    let status = store.batch(id)?.status();
    assert!(
        !acknowledged.completed || status == BatchStatus::Completed,
        "a final status never changes"
    );
    if status == BatchStatus::Completed {
        return Ok(());
    }
    // The runner of a former process still uses its lease.
    let old = leased(&*store, id)?;
    let lease = leased(&*store, id)?;
    assert!(lease.epoch > old.epoch);
    let standing = store.standing(&lease, INPUT)?;
    for line in acknowledged.lines.keys() {
        assert!(!standing.missing.contains(line), "line {line} was acknowledged and is lost");
    }
    if status == BatchStatus::Validating {
        store.change_leased(&lease, &mut |batch| batch.reach(BatchStatus::InProgress, 2))?;
    }
    let runner = format!("runner-{process}");
    for group in standing.missing.chunks(2) {
        match store.publish(&old, &[record(group[0], "late")]) {
            Err(StoreError::Fenced(_)) => {}
            other => return other.map(|_| panic!("an old lease wrote")),
        }
        let records: Vec<_> = group.iter().map(|line| record(*line, &runner)).collect();
        // A duplicate response.
        let twice: Vec<_> = records.iter().chain([&record(group[0], "twice")]).cloned().collect();
        store.publish(&lease, &twice)?;
        for line in group {
            acknowledged.lines.insert(*line, runner.clone());
        }
        let counts = store.batch(id)?.counts;
        assert_eq!(counts.completed + counts.pending(), LINES);
    }
    store.settle(&lease)?;
    if store.batch(id)?.status() == BatchStatus::InProgress {
        store.change_leased(&lease, &mut |batch| batch.reach(BatchStatus::Finalizing, 3))?;
    }
    store.change_leased(&lease, &mut |batch| batch.reach(BatchStatus::Completed, 4))?;
    acknowledged.completed = true;
    Ok(())
}

/// Restarts until all is done; `run` separates runs in one store. Returns the operations of the
/// last process.
pub(crate) fn run_until_done(
    tested: &dyn TestedStore,
    run: usize,
    crashes: &[(usize, Cut)],
    crash: Crash,
    dice: &mut Dice,
) -> usize {
    let file = format!("file-{run}");
    let id = format!("batch_{run}");
    let mut acknowledged = Acknowledged::default();
    for process in 0.. {
        if let Some((operation, cut)) = crashes.get(process) {
            tested.crash_at(*operation, *cut);
        }
        match work(tested, &file, &id, &mut acknowledged, process) {
            Ok(()) if !tested.is_dead() => break,
            Ok(()) | Err(StoreError::Io { .. } | StoreError::Unreachable(_)) => {
                assert!(tested.is_dead());
            }
            Err(error) => panic!("run {run}, crashes {crashes:?}, process {process}: {error}"),
        }
        tested.reboot(crash, dice);
    }
    let operations = tested.operations();
    tested.live_on();
    let store = tested.open().unwrap();
    let text = output(&*store, &id);
    let lines: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let numbers: BTreeSet<_> = lines.iter().map(|line| line["line"].as_u64().unwrap()).collect();
    assert_eq!((lines.len(), numbers.len()), (LINES as usize, LINES as usize), "{text}");
    for line in &lines {
        let number = line["line"].as_u64().unwrap() as u32;
        if let Some(runner) = acknowledged.lines.get(&number) {
            assert_eq!(line["runner"], runner.as_str());
        }
    }
    let batch = store.batch(&id).unwrap();
    assert_eq!((batch.counts.completed, batch.counts.pending()), (LINES, 0));
    operations
}

/// Several crashes in a row, from a seed.
pub(crate) fn die_often(tested: &dyn TestedStore, seed: u64, all: usize) {
    let mut dice = Dice(seed);
    let one = |dice: &mut Dice| {
        (1 + dice.below(all), [Cut::Before, Cut::Torn, Cut::After][dice.below(3)])
    };
    let crashes: Vec<_> = (0..1 + dice.below(5)).map(|_| one(&mut dice)).collect();
    let crash = [Crash::Process, Crash::Machine][dice.below(2)];
    run_until_done(tested, 1_000_000 + seed as usize, &crashes, crash, &mut dice);
}

/// Of two runners that race only the later one publishes.
pub(crate) fn race(store: &dyn Store) {
    store.add_file(entry("file-race"), &mut &b"x"[..]).unwrap();
    store.add_batch(batch("batch_race", "file-race")).unwrap();
    let first = leased(store, "batch_race").unwrap();
    store.standing(&first, INPUT).unwrap();
    store.publish(&first, &[record(0, "first"), record(1, "first")]).unwrap();
    let second = leased(store, "batch_race").unwrap();
    let missing = store.standing(&second, INPUT).unwrap().missing;
    assert_eq!(missing, [2, 3, 4, 5], "only the rest");
    let other = InputMark { hash: 4, ..INPUT };
    assert!(matches!(store.standing(&second, other), Err(StoreError::OtherInput { .. })));
    for refused in [
        store.publish(&first, &[record(2, "first")]).map(drop),
        store.change_leased(&first, &mut |batch| batch.reach(BatchStatus::InProgress, 2)).map(drop),
        store.renew(&first).map(drop),
        store.settle(&first),
    ] {
        assert!(matches!(refused, Err(StoreError::Fenced(_))), "{refused:?}");
    }
    assert_eq!(store.renew(&second).unwrap(), BatchStatus::Validating);
    assert_eq!(store.publish(&second, &[record(1, "second"), record(2, "second")]).unwrap(), 1);
    let text = output(store, "batch_race");
    let runners: Vec<_> = text.lines().map(|line| line.contains("\"first\"")).collect();
    assert_eq!(runners, [true, true, false]);
}

/// Expired data is removed completely, and data that is needed stays.
pub(crate) fn grow_old(store: &dyn Store) {
    let passing = FileEntry { expires_at: Some(100), ..entry("file-old") };
    store.add_file(passing, &mut &b"some lines"[..]).unwrap();
    store.add_batch(batch("batch_old", "file-old")).unwrap();
    let error = store.remove_file("file-old").unwrap_err().to_string();
    assert!(error.contains("is the input of batch `batch_old`, which is validating"), "{error}");
    let mut orphan = batch("batch_orphan", "file-none");
    orphan.owner = "another".into();
    assert!(matches!(store.add_batch(orphan), Err(StoreError::Missing(_))));
    assert_eq!(store.sweep(100, 1_000).unwrap(), 0, "a batch still reads it");
    let lease = leased(store, "batch_old").unwrap();
    store.standing(&lease, INPUT).unwrap();
    let records: Vec<_> = (0..LINES).map(|line| record(line, "one")).collect();
    store.publish(&lease, &records).unwrap();
    let result = FileEntry {
        bytes: store.result_bytes("batch_old", RecordKind::Output).unwrap(),
        of: Some(("batch_old".into(), RecordKind::Output)),
        expires_at: Some(500),
        ..entry("file-result")
    };
    // A runner that ends a batch may be interrupted, and repeat it.
    for created_at in [2, 3] {
        let result = FileEntry { created_at, ..result.clone() };
        store.add_file(result, &mut std::io::empty()).unwrap();
        assert_eq!(store.file("file-result").unwrap().created_at, created_at);
    }
    for (status, time) in
        [(BatchStatus::InProgress, 3), (BatchStatus::Finalizing, 4), (BatchStatus::Completed, 200)]
    {
        store.change_leased(&lease, &mut |batch| batch.reach(status, time)).unwrap();
    }
    let ended = store.change("batch_old", &mut |batch| batch.reach(BatchStatus::Cancelling, 201));
    assert!(matches!(ended, Err(StoreError::Conflict(_))), "a final status never changes");
    assert!(matches!(store.lease("batch_old"), Err(StoreError::Conflict(_))));
    assert_eq!(store.sweep(99, 1_000).unwrap(), 0);
    assert_eq!(store.sweep(100, 1_000).unwrap(), 1, "the input");
    assert!(matches!(store.file("file-old"), Err(StoreError::Missing(_))));
    let mut buffer = [0; 64];
    assert!(store.read_file("file-result", 0, &mut buffer).unwrap() > 0);
    assert_eq!(store.sweep(500, 1_000).unwrap(), 1, "the last file of its results");
    let left = store.read_results("batch_old", RecordKind::Output, 0, &mut buffer).unwrap();
    assert_eq!(left, 0, "and the results with it");
    assert_eq!(store.batch("batch_old").unwrap().counts.completed, LINES);
    assert_eq!(store.sweep(1_199, 1_000).unwrap(), 0);
    assert_eq!(store.sweep(1_200, 1_000).unwrap(), 1, "the batch");
    for missing in [
        store.batch("batch_old").map(drop),
        store.file("file-result").map(drop),
        store.read_results("batch_old", RecordKind::Output, 0, &mut buffer).map(drop),
    ] {
        assert!(matches!(missing, Err(StoreError::Missing(_))), "{missing:?}");
    }
    assert!(store.unfinished().unwrap().iter().all(|batch| batch.id != "batch_old"));
}
