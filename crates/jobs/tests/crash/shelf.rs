//! The whole store on a disk that dies: what was accepted is there, and of two runners one writes.

use crate::disk::{Cut, Death, Dice, FaultyDisk};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use wornpath_jobs::{
    Batch, FileEntry, InputMark, Interface, Kind, NewBatch, Record, Shelf, Status, Store,
    StoreError, TokenUsage,
};

const LINES: u32 = 6;
const INPUT: InputMark = InputMark { bytes: 50, hash: 3, lines: LINES };

fn open(disk: &FaultyDisk) -> Result<Shelf, StoreError> {
    Shelf::open(Arc::new(disk.clone()), Path::new("shelf"))
}

fn entry(id: &str) -> FileEntry {
    FileEntry {
        id: id.into(),
        owner: String::new(),
        filename: "in.jsonl".into(),
        purpose: "batch".into(),
        bytes: 0,
        created_at: 1,
        expires_at: None,
        of: None,
    }
}

fn batch(id: &str) -> Batch {
    let new = NewBatch {
        id: id.into(),
        owner: String::new(),
        interface: Interface::Chat,
        input_file_id: "file-a".into(),
        window: ("24h".into(), 86_400),
        metadata: None,
    };
    Batch::new(new, 1)
}

fn record(line: u32, runner: &str) -> Record {
    let bytes = format!("{{\"line\":{line},\"runner\":\"{runner}\"}}").into_bytes();
    Record { line, kind: Kind::Output, bytes, usage: TokenUsage::default() }
}

fn output(shelf: &Shelf) -> String {
    let mut buffer = vec![0; 4_096];
    let read = shelf.read_results("batch-a", Kind::Output, 0, &mut buffer).unwrap();
    String::from_utf8(buffer[..read].to_vec()).unwrap()
}

/// What clients were told.
#[derive(Default)]
struct Told {
    file: bool,
    batch: bool,
    completed: bool,
    lines: BTreeMap<u32, String>,
}

/// Uploads, creates, runs and completes, as far as it is not done; dies somewhere.
fn work(disk: &FaultyDisk, told: &mut Told, life: usize) -> Result<(), StoreError> {
    let shelf = open(disk)?;
    if shelf.file("file-a").is_err() {
        assert!(!told.file, "an accepted file is lost");
        shelf.add_file(entry("file-a"), &mut &b"content of the file"[..])?;
    }
    told.file = true;
    let mut buffer = [0; 64];
    assert_eq!(shelf.read_file("file-a", 0, &mut buffer)?, 19, "all of it or nothing");
    match shelf.batch("batch-a") {
        Err(StoreError::Missing(_)) => {
            assert!(!told.batch, "an accepted batch is lost");
            shelf.add_batch(batch("batch-a"))?;
        }
        found => drop(found?),
    }
    told.batch = true;
    let status = shelf.batch("batch-a")?.status();
    assert!(!told.completed || status == Status::Completed, "what has ended stays so");
    if status == Status::Completed {
        return Ok(());
    }
    // The runner of an earlier life thinks it still has it.
    let old = shelf.lease("batch-a")?;
    let lease = shelf.lease("batch-a")?;
    assert!(lease.epoch > old.epoch);
    let standing = shelf.standing(&lease, INPUT)?;
    for line in told.lines.keys() {
        assert!(!standing.missing.contains(line), "line {line} was acknowledged and is lost");
    }
    if status == Status::Validating {
        shelf.change_leased(&lease, &mut |batch| batch.reach(Status::InProgress, 2))?;
    }
    let runner = format!("runner-{life}");
    for group in standing.missing.chunks(2) {
        let late = shelf.publish(&old, &[record(group[0], "late")]);
        assert!(matches!(late, Err(StoreError::Fenced(_))), "{late:?}");
        let records: Vec<_> = group.iter().map(|line| record(*line, &runner)).collect();
        shelf.publish(&lease, &records)?;
        for line in group {
            told.lines.insert(*line, runner.clone());
        }
    }
    if shelf.batch("batch-a")?.status() == Status::InProgress {
        shelf.change_leased(&lease, &mut |batch| batch.reach(Status::Finalizing, 3))?;
    }
    shelf.change_leased(&lease, &mut |batch| batch.reach(Status::Completed, 4))?;
    told.completed = true;
    Ok(())
}

fn live(deaths: &[(usize, Cut)], death: Death, dice: &mut Dice) -> usize {
    let (disk, mut told) = (FaultyDisk::default(), Told::default());
    for life in 0.. {
        if let Some((operation, cut)) = deaths.get(life) {
            disk.die_at(*operation, *cut);
        }
        match work(&disk, &mut told, life) {
            Ok(()) if !disk.is_dead() => break,
            Ok(()) | Err(StoreError::Io { .. }) => assert!(disk.is_dead()),
            Err(error) => panic!("life {life}: {error}"),
        }
        disk.reboot(death, dice);
    }
    disk.live_on();
    let operations = disk.operations();
    let shelf = open(&disk).unwrap();
    let text = output(&shelf);
    let lines: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let numbers: BTreeSet<_> = lines.iter().map(|line| line["line"].as_u64().unwrap()).collect();
    assert_eq!((lines.len(), numbers.len()), (LINES as usize, LINES as usize), "{text}");
    for line in &lines {
        let number = line["line"].as_u64().unwrap() as u32;
        if let Some(runner) = told.lines.get(&number) {
            assert_eq!(line["runner"], runner.as_str());
        }
    }
    let batch = shelf.batch("batch-a").unwrap();
    assert_eq!((batch.counts.completed, batch.counts.pending()), (LINES, 0));
    operations
}

#[test]
fn a_store_that_dies_at_any_operation_keeps_what_it_accepted() {
    let (all, mut runs) = (live(&[], Death::Process, &mut Dice(0)), 0);
    for operation in 1..=all {
        for cut in [Cut::Before, Cut::Torn, Cut::After] {
            for death in [Death::Process, Death::Machine] {
                live(&[(operation, cut)], death, &mut Dice((operation * 10 + cut as usize) as u64));
                runs += 1;
            }
        }
    }
    assert!(runs >= 150, "only {runs} runs");
    for seed in 0..150 {
        let mut dice = Dice(seed);
        let death = |dice: &mut Dice| {
            (1 + dice.below(all), [Cut::Before, Cut::Torn, Cut::After][dice.below(3)])
        };
        let deaths: Vec<_> = (0..1 + dice.below(5)).map(|_| death(&mut dice)).collect();
        live(&deaths, [Death::Process, Death::Machine][dice.below(2)], &mut dice);
    }
}

#[test]
fn of_two_runners_that_race_only_the_later_is_published() {
    let disk = FaultyDisk::default();
    let shelf = open(&disk).unwrap();
    shelf.add_file(entry("file-a"), &mut &b"x"[..]).unwrap();
    shelf.add_batch(batch("batch-a")).unwrap();
    let first = shelf.lease("batch-a").unwrap();
    shelf.standing(&first, INPUT).unwrap();
    shelf.publish(&first, &[record(0, "first"), record(1, "first")]).unwrap();
    let second = shelf.lease("batch-a").unwrap();
    let missing = shelf.standing(&second, INPUT).unwrap().missing;
    assert_eq!(missing, [2, 3, 4, 5], "only the rest");
    assert!(matches!(shelf.publish(&first, &[record(2, "first")]), Err(StoreError::Fenced(_))));
    let ended = shelf.change_leased(&first, &mut |batch| batch.reach(Status::InProgress, 2));
    assert!(matches!(ended, Err(StoreError::Fenced(_))));
    assert_eq!(shelf.publish(&second, &[record(1, "second"), record(2, "second")]).unwrap(), 1);
    let text = output(&shelf);
    let runners: Vec<_> = text.lines().map(|line| line.contains("\"first\"")).collect();
    assert_eq!(runners, [true, true, false]);
    assert!(matches!(open(&disk), Err(StoreError::Busy { .. })), "one process has it");
}

#[test]
fn a_full_disk_refuses_a_file_and_leaves_nothing_of_it() {
    let disk = FaultyDisk::default();
    let shelf = open(&disk).unwrap();
    disk.set_room(Some(disk.used() + 10));
    let refused = shelf.add_file(entry("file-a"), &mut &[b'x'; 100][..]);
    assert!(matches!(refused, Err(StoreError::Full { .. })), "{refused:?}");
    assert!(shelf.file("file-a").is_err());
    assert_eq!(disk.content(Path::new("shelf/files/file-a")), None);
    disk.set_room(None);
    assert_eq!(shelf.add_file(entry("file-a"), &mut &[b'x'; 100][..]).unwrap().bytes, 100);
    shelf.add_batch(batch("batch-a")).unwrap();
    let error = shelf.remove_file("file-a").unwrap_err().to_string();
    assert!(error.contains("is the input of batch `batch-a`, which is validating"), "{error}");
    let mut orphan = batch("batch-b");
    orphan.input_file_id = "file-b".into();
    assert!(matches!(shelf.add_batch(orphan), Err(StoreError::Missing(_))));
}
