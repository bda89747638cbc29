//! Results on a disk that crashes at every one of its operations.

use crate::disk::{Crash, Cut, Dice, FaultyDisk};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use wornpath_jobs::{
    Disk, InputMark, LineRecord, Publish, RecordKind, ResultPaths, Results, StoreError, TokenUsage,
    places,
};

const LINES: u32 = 13;
pub(crate) const INPUT: InputMark = InputMark { bytes: 999, hash: 7, lines: LINES };

pub(crate) fn paths() -> ResultPaths {
    let path = |name: &str| PathBuf::from("job").join(name);
    ResultPaths { output: path("out"), errors: path("errors"), log: path("log") }
}

/// Every fifth line fails; the response differs between attempts, as engines' responses do.
fn record(line: u32, attempt: usize) -> LineRecord {
    let kind = if line % 5 == 4 { RecordKind::Error } else { RecordKind::Output };
    let bytes =
        format!("{{\"line\":{line},\"attempt\":{attempt},\"text\":\"{}\"}}", "x".repeat(40));
    let usage = TokenUsage { input: 10, cached: 4, output: 1 };
    LineRecord { line, kind, bytes: bytes.into_bytes(), usage }
}

/// The records whose publication was acknowledged.
type Acknowledged = BTreeMap<u32, Vec<u8>>;

/// Publishes all missing records, until it is done or crashes.
fn work(
    disk: &FaultyDisk,
    acknowledged: &mut Acknowledged,
    attempt: usize,
) -> Result<(), StoreError> {
    let mut results = Results::open(disk, &paths(), INPUT)?;
    for line in acknowledged.keys() {
        assert!(results.is_done(*line), "line {line} was acknowledged and is lost");
    }
    let missing: Vec<_> = (0..LINES).filter(|line| !results.is_done(*line)).collect();
    for group in missing.chunks(3) {
        let mut records: Vec<_> = group.iter().map(|line| record(*line, attempt)).collect();
        // A duplicate response, within the group and after it.
        records.push(record(group[0], attempt + 1000));
        results.publish(&records)?;
        for line in group {
            acknowledged.insert(*line, record(*line, attempt).bytes);
        }
        assert_eq!(results.publish(&[record(group[0], attempt + 2000)])?, 0);
        let counts = results.counts();
        assert_eq!(counts.completed + counts.failed + counts.pending(), LINES);
    }
    Ok(())
}

/// Works until it is done; the nth process has the nth crash.
fn run_until_done(disk: &FaultyDisk, crashes: &[(usize, Cut)], crash: Crash, dice: &mut Dice) {
    let mut acknowledged = Acknowledged::new();
    for attempt in 0.. {
        if let Some((operation, cut)) = crashes.get(attempt) {
            disk.crash_at(*operation, *cut);
        }
        match work(disk, &mut acknowledged, attempt) {
            Ok(()) if !disk.is_dead() => break,
            Ok(()) | Err(StoreError::Io { .. }) => assert!(disk.is_dead()),
            Err(error) => panic!("process {attempt}: {error}"),
        }
        disk.reboot(crash, dice);
    }
    disk.live_on();
    check(disk, &acknowledged);
}

/// Every line has one record, and the acknowledged ones are unchanged.
fn check(disk: &FaultyDisk, acknowledged: &Acknowledged) {
    let paths = paths();
    let mut found: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
    for (path, is_error) in [(&paths.output, false), (&paths.errors, true)] {
        let content = disk.content(path).unwrap();
        for line in content.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            let value: serde_json::Value = serde_json::from_slice(line).unwrap();
            let number = value["line"].as_u64().unwrap();
            assert_eq!(number % 5 == 4, is_error);
            assert!(found.insert(number, line.to_vec()).is_none(), "line {number} is there twice");
        }
    }
    assert_eq!(found.len(), LINES as usize, "every line has a record");
    for (line, bytes) in acknowledged {
        assert_eq!(found[&u64::from(*line)], *bytes, "line {line} is not what was acknowledged");
    }
    assert_eq!(places(disk, &paths, INPUT).unwrap().len(), LINES as usize);
}

fn operations_without_a_crash() -> usize {
    let disk = FaultyDisk::default();
    run_until_done(&disk, &[], Crash::Process, &mut Dice(0));
    disk.operations()
}

#[test]
fn a_crash_at_any_operation_loses_and_duplicates_nothing() {
    let all = operations_without_a_crash();
    let mut runs = 0;
    for operation in 1..=all {
        for cut in [Cut::Before, Cut::Torn, Cut::After] {
            for crash in [Crash::Process, Crash::Machine] {
                let seed = (operation * 10 + cut as usize) as u64;
                run_until_done(&FaultyDisk::default(), &[(operation, cut)], crash, &mut Dice(seed));
                runs += 1;
            }
        }
    }
    println!("crash: {runs} results, killed before, in and after each of {all} operations");
    assert!(runs >= 200, "only {runs} runs");
}

#[test]
fn many_crashes_in_a_row_lose_and_duplicate_nothing() {
    let all = operations_without_a_crash();
    let mut runs = 0;
    for seed in 0..300 {
        runs += 1;
        let mut dice = Dice(seed);
        let crashes: Vec<_> = (0..1 + dice.below(6))
            .map(|_| {
                let cut = [Cut::Before, Cut::Torn, Cut::After][dice.below(3)];
                (1 + dice.below(all), cut)
            })
            .collect();
        let crash = [Crash::Process, Crash::Machine][dice.below(2)];
        run_until_done(&FaultyDisk::default(), &crashes, crash, &mut dice);
    }
    println!("crash: {runs} results, killed several times");
    assert!(runs >= 200, "only {runs} runs");
}

#[test]
fn a_full_disk_and_failed_syncs_only_delay() {
    for room in (0..1_600).step_by(23) {
        let disk = FaultyDisk::default();
        let mut acknowledged = Acknowledged::new();
        disk.set_room(Some(room));
        let mut tries = 0;
        while let Err(error) = work(&disk, &mut acknowledged, tries) {
            assert!(matches!(error, StoreError::Full { .. }), "{error}");
            disk.set_room(Some(disk.used() + 90 * tries));
            tries += 1;
        }
        check(&disk, &acknowledged);
    }
    for failures in 1..12 {
        let disk = FaultyDisk::default();
        let mut acknowledged = Acknowledged::new();
        disk.fail_syncs(failures);
        let mut tries = 0;
        while work(&disk, &mut acknowledged, tries).is_err() {
            tries += 1;
        }
        assert!(tries > 0);
        check(&disk, &acknowledged);
    }
}

#[test]
fn after_a_failed_write_the_same_results_continue() {
    let disk = FaultyDisk::default();
    let mut results = Results::open(&disk, &paths(), INPUT).unwrap();
    let group: Vec<_> = (0..LINES).map(|line| record(line, 1)).collect();
    results.publish(&group[..2]).unwrap();
    for room in 1..400 {
        disk.set_room(Some(disk.used() + room));
        if results.publish(&group).is_ok() {
            break;
        }
        disk.fail_syncs(usize::from(room % 3 == 0));
    }
    disk.set_room(None);
    disk.fail_syncs(0);
    results.publish(&group).unwrap();
    drop(results);
    check(&disk, &group.iter().map(|record| (record.line, record.bytes.clone())).collect());
}

#[test]
fn of_two_processes_only_one_opens_the_results() {
    let disk = FaultyDisk::default();
    let first = Results::open(&disk, &paths(), INPUT).unwrap();
    let second = Results::open(&disk, &paths(), INPUT).unwrap_err();
    assert!(matches!(second, StoreError::Busy { .. }), "{second}");
    drop(first);
    Results::open(&disk, &paths(), INPUT).unwrap();
}

#[test]
fn damage_is_refused_and_never_mistaken_for_a_crash() {
    let disk = FaultyDisk::default();
    run_until_done(&disk, &[], Crash::Process, &mut Dice(0));
    let log = disk.content(Path::new("job/log")).unwrap();
    // Anywhere except in the last frame, which a crash could have torn.
    let last = log.windows(4).rposition(|window| window == b"wpf1").unwrap();
    for bit in (0..last * 8).step_by(41) {
        disk.flip(Path::new("job/log"), bit);
        let error = Results::open(&disk, &paths(), INPUT).unwrap_err();
        assert!(matches!(error, StoreError::Damaged { .. }), "bit {bit}: {error}");
        disk.flip(Path::new("job/log"), bit);
    }
    let other = InputMark { hash: 8, ..INPUT };
    let error = Results::open(&disk, &paths(), other).unwrap_err();
    assert!(error.to_string().contains("another input of as many lines"), "{error}");
    let other = InputMark { lines: 5, ..INPUT };
    let error = Results::open(&disk, &paths(), other).unwrap_err().to_string();
    assert!(error.contains("an input of 13 lines, and this one has 5"), "{error}");
}

#[test]
fn a_log_without_an_input_mark_is_refused_if_there_are_results() {
    for foreign in [&b""[..], b"another program wrote this"] {
        let disk = FaultyDisk::default();
        let paths = paths();
        work(&disk, &mut Acknowledged::new(), 0).unwrap();
        let [output, errors] = [&paths.output, &paths.errors].map(|path| disk.content(path));
        disk.remove(&paths.log).unwrap();
        disk.open(&paths.log).unwrap().append(foreign).unwrap();
        let refused = Results::open(&disk, &paths, INPUT).unwrap_err();
        assert!(
            matches!(&refused, StoreError::Damaged { path, offset: 0, .. } if *path == paths.log),
            "{refused}"
        );
        assert_eq!([disk.content(&paths.output), disk.content(&paths.errors)], [output, errors]);
        assert_eq!(disk.content(&paths.log).unwrap(), foreign);
        for path in [&paths.output, &paths.errors] {
            disk.remove(path).unwrap();
        }
        work(&disk, &mut Acknowledged::new(), 1).unwrap();
    }
}
