//! The store in a folder, on a disk that crashes.

use crate::disk::{Crash, Cut, Dice, FaultyDisk};
use crate::suite::{TestedStore, batch, die_often, entry, grow_old, race, record, run_until_done};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use wornpath_jobs::{
    BatchStatus, Disk, FileEntry, FsStore, Lease, RecordKind, Store, StoreError, StoredFile, frame,
    verify,
};

fn open(disk: &FaultyDisk) -> Result<FsStore, StoreError> {
    FsStore::open(Arc::new(disk.clone()), Path::new("store"))
}

/// A store with a batch that has results.
fn with_a_batch(disk: &FaultyDisk) -> (FsStore, Lease) {
    let store = open(disk).unwrap();
    store.add_file(entry("file-a"), &mut &b"x"[..]).unwrap();
    store.add_batch(batch("batch_a", "file-a")).unwrap();
    let lease = store.lease("batch_a").unwrap().unwrap();
    store.standing(&lease, crate::suite::INPUT).unwrap();
    (store, lease)
}

impl TestedStore for FaultyDisk {
    fn open(&self) -> Result<Box<dyn Store>, StoreError> {
        Ok(Box::new(open(self)?))
    }

    fn crash_at(&self, operation: usize, cut: Cut) {
        Self::crash_at(self, operation, cut);
    }

    fn is_dead(&self) -> bool {
        Self::is_dead(self)
    }

    fn reboot(&self, crash: Crash, dice: &mut Dice) {
        Self::reboot(self, crash, dice);
    }

    fn live_on(&self) {
        Self::live_on(self);
    }

    fn operations(&self) -> usize {
        Self::operations(self)
    }
}

#[test]
fn a_store_that_crashes_at_any_operation_keeps_what_it_accepted() {
    let all = run_until_done(&FaultyDisk::default(), 0, &[], Crash::Process, &mut Dice(0));
    let mut runs = 0;
    for operation in 1..=all {
        for cut in [Cut::Before, Cut::Torn, Cut::After] {
            for crash in [Crash::Process, Crash::Machine] {
                let mut dice = Dice((operation * 10 + cut as usize) as u64);
                run_until_done(&FaultyDisk::default(), runs, &[(operation, cut)], crash, &mut dice);
                runs += 1;
            }
        }
    }
    for seed in 0..150 {
        die_often(&FaultyDisk::default(), seed, all);
        runs += 1;
    }
    println!("crash: {runs} stores in a folder over {all} operations");
    assert!(runs >= 200, "only {runs} runs");
}

#[test]
fn of_two_runners_that_race_only_the_later_is_published() {
    let disk = FaultyDisk::default();
    let store = open(&disk).unwrap();
    race(&store);
    assert!(matches!(open(&disk), Err(StoreError::Busy { .. })), "one process has it");
}

#[test]
fn expired_files_and_batches_leave_nothing_behind() {
    let disk = FaultyDisk::default();
    grow_old(&open(&disk).unwrap());
    assert_eq!(disk.content(Path::new("store/files/file-old")), None);
    for name in ["batch_old.output.jsonl", "batch_old.errors.jsonl", "batch_old.log"] {
        assert_eq!(disk.content(&Path::new("store/results").join(name)), None, "{name}");
    }
}

/// Replaces the content of a file.
fn put(disk: &FaultyDisk, path: &Path, bytes: &[u8]) {
    let mut file = Disk::open(disk, path).unwrap();
    file.truncate(0).unwrap();
    file.append(bytes).unwrap();
}

#[test]
fn a_lost_or_zeroed_journal_is_refused_and_no_file_is_removed() {
    let disk = FaultyDisk::default();
    let (store, _lease) = with_a_batch(&disk);
    drop(store);
    let journal = Path::new("store/journal");
    let file = Path::new("store/files/file-a");
    let kept = disk.content(journal).unwrap();
    for zeros in [0, 500] {
        put(&disk, journal, &vec![0; zeros]);
        for _ in 0..2 {
            let refused = open(&disk).unwrap_err();
            let is_named = matches!(&refused, StoreError::Damaged { path, .. } if path == journal);
            assert!(is_named, "{zeros} zeros: {refused}");
        }
        assert!(disk.content(file).is_some());
        assert!(disk.content(Path::new("store/results/batch_a.log")).is_some());
    }
    put(&disk, journal, &kept);
    assert_eq!(open(&disk).unwrap().file("file-a").unwrap().bytes, 1, "with a copy it goes on");
}

#[test]
fn files_that_do_not_belong_to_the_store_stay() {
    let disk = FaultyDisk::default();
    let theirs = ["store/files/photo.png", "store/results/table.csv"].map(Path::new);
    theirs.iter().for_each(|path| put(&disk, path, b"theirs"));
    drop(open(&disk).unwrap());
    let ours = Path::new("store/files/file-that-a-crash-left");
    put(&disk, ours, b"ours");
    open(&disk).unwrap();
    assert_eq!(disk.content(ours), None);
    for path in theirs {
        assert_eq!(disk.content(path).unwrap(), b"theirs", "{}", path.display());
    }
}

/// Leases a batch again and again, until most journal entries are outdated.
fn fill_the_journal(disk: &FaultyDisk) -> Result<(), StoreError> {
    let store = open(disk)?;
    if store.file("file-a").is_err() {
        store.add_file(entry("file-a"), &mut &b"x"[..])?;
    }
    if store.batch("batch_a").is_err() {
        store.add_batch(batch("batch_a", "file-a"))?;
    }
    while store.batch("batch_a")?.epoch < 1_500 {
        store.lease("batch_a")?;
    }
    Ok(())
}

#[test]
fn a_journal_of_outdated_entries_is_compacted_even_if_that_is_interrupted() {
    let disk = FaultyDisk::default();
    fill_the_journal(&disk).unwrap();
    let before = disk.operations();
    drop(open(&disk).unwrap());
    let all = disk.operations();
    assert!(all > before + 5, "it is written anew when it is opened");
    let length = |disk: &FaultyDisk| disk.content(Path::new("store/journal")).unwrap().len();
    assert!(length(&disk) < 10_000, "{} bytes", length(&disk));
    for operation in before + 1..=all {
        for cut in [Cut::Before, Cut::Torn, Cut::After] {
            for crash in [Crash::Process, Crash::Machine] {
                let disk = FaultyDisk::default();
                let mut dice = Dice(operation as u64);
                fill_the_journal(&disk).unwrap();
                disk.crash_at(operation, cut);
                drop(open(&disk));
                assert!(disk.is_dead(), "operation {operation} {cut:?}");
                disk.reboot(crash, &mut dice);
                disk.live_on();
                let store = open(&disk).unwrap();
                assert_eq!(store.batch("batch_a").unwrap().epoch, 1_500);
                assert_eq!(store.file("file-a").unwrap().bytes, 1);
                assert!(length(&disk) < 10_000, "{} bytes", length(&disk));
                // It still works as a journal.
                store.lease("batch_a").unwrap();
                drop(store);
                assert_eq!(open(&disk).unwrap().batch("batch_a").unwrap().epoch, 1_501);
            }
        }
    }
}

/// Changes a batch with long metadata until the journal has several times its bytes.
fn outgrow_the_journal(disk: &FaultyDisk) -> Result<(), StoreError> {
    let store = open(disk)?;
    if store.file("file-a").is_err() {
        store.add_file(entry("file-a"), &mut &b"x"[..])?;
    }
    if store.batch("batch_a").is_err() {
        let mut long = batch("batch_a", "file-a");
        let value = "x".repeat(100_000);
        long.metadata = Some([("key".to_owned(), value.into())].into_iter().collect());
        store.add_batch(long)?;
    }
    while store.batch("batch_a")?.epoch < 20 {
        store.lease("batch_a")?;
    }
    Ok(())
}

#[test]
fn a_journal_that_outgrows_its_entries_is_compacted_at_once_even_if_that_is_interrupted() {
    let length = |disk: &FaultyDisk| disk.content(Path::new("store/journal")).unwrap().len();
    let disk = FaultyDisk::default();
    outgrow_the_journal(&disk).unwrap();
    assert!(length(&disk) < 1_700_000, "{} bytes", length(&disk));
    let all = disk.operations();
    // One of them at each third operation; all at each in the long run.
    let is_thorough = std::env::var_os("WORNPATH_THOROUGH").is_some();
    let cuts = [Cut::Before, Cut::Torn, Cut::After];
    for operation in (1..=all).step_by(if is_thorough { 1 } else { 3 }) {
        let one = &cuts[operation / 3 % 3..][..1];
        for &cut in if is_thorough { &cuts[..] } else { one } {
            let disk = FaultyDisk::default();
            disk.crash_at(operation, cut);
            let mut epoch = 0;
            if outgrow_the_journal(&disk).is_err() {
                disk.reboot(Crash::Machine, &mut Dice(operation as u64));
                disk.live_on();
                let store = open(&disk).unwrap();
                epoch = store.batch("batch_a").map_or(0, |batch| batch.epoch);
                drop(store);
                outgrow_the_journal(&disk).unwrap();
            }
            let store = open(&disk).unwrap();
            assert!(store.batch("batch_a").unwrap().epoch >= epoch.max(20), "{operation} {cut:?}");
            assert!(length(&disk) < 1_700_000, "{} bytes", length(&disk));
        }
    }
}

#[test]
fn entries_count_per_owner_until_they_are_removed() {
    let disk = FaultyDisk::default();
    let store = open(&disk).unwrap();
    let of = |owner: &str| store.entry_bytes(owner).unwrap();
    let add = |file: &str, owner: &str| {
        let entry = FileEntry { owner: owner.into(), ..entry(file) };
        store.add_file(entry, &mut &b"x"[..]).unwrap();
    };
    add("file-a", "a");
    let one = of("a");
    assert!(one > 100 && of("b") == 0, "{one}");
    add("file-b", "b");
    let mut long = batch("batch_b", "file-b");
    long.owner = "b".into();
    long.metadata = Some([("key".to_owned(), "x".repeat(5_000).into())].into_iter().collect());
    store.add_batch(long).unwrap();
    assert!(of("b") > 5_000 + one, "{}", of("b"));
    let before = of("b");
    let lease = store.lease("batch_b").unwrap().unwrap();
    for status in [BatchStatus::Cancelling, BatchStatus::Cancelled] {
        store.change_leased(&lease, &mut |batch| batch.reach(status, 5)).unwrap();
    }
    let ended = of("b");
    assert!(ended > before && ended < before + 1_000, "an entry that changes counts once");
    store.remove_file("file-b").unwrap();
    assert!(of("b") > 5_000 && of("b") < ended);
    store.sweep(1_000, 10).unwrap();
    assert_eq!((of("a"), of("b")), (one, 0));
    drop(store);
    assert_eq!(open(&disk).unwrap().entry_bytes("a").unwrap(), one, "the same after a restart");
}

#[test]
fn a_folder_of_a_version_without_checksums_opens_and_is_verified_by_length() {
    let disk = FaultyDisk::default();
    let file = Path::new("store/files/file-a");
    let journal = Path::new("store/journal");
    put(&disk, file, b"content");
    let old = r#"{"file":{"id":"file-a","owner":"","filename":"f","purpose":"batch","bytes":7,
        "created_at":1,"expires_at":null,"of":null}}"#;
    put(&disk, journal, &[frame(b"\"founded\""), frame(old.as_bytes())].concat());
    let store = open(&disk).unwrap();
    let mut buffer = [0; 8];
    assert_eq!(store.read_file("file-a", 0, &mut buffer).unwrap(), 7);
    drop(store);
    let report = verify(&disk, Path::new("store")).unwrap();
    assert_eq!((report.files, &report.damaged[..]), (1, &[][..]));
    assert_eq!(report.without_checksum, ["file `file-a`"]);
    put(&disk, file, b"conten");
    let report = verify(&disk, Path::new("store")).unwrap();
    assert!(report.damaged[0].contains("6 bytes are there, and 7 were stored"), "{report:?}");
}

#[test]
fn with_the_last_result_file_the_results_are_removed_and_the_batch_stays() {
    let disk = FaultyDisk::default();
    let (store, lease) = with_a_batch(&disk);
    store.publish(&lease, &[record(0, "one")]).unwrap();
    let mut result = entry("file-result");
    result.of = Some(("batch_a".into(), RecordKind::Output));
    store.add_file(result, &mut std::io::empty()).unwrap();
    for status in [BatchStatus::Cancelling, BatchStatus::Cancelled] {
        store.change_leased(&lease, &mut |batch| batch.reach(status, 5)).unwrap();
    }
    let path = Path::new("store/results/batch_a.output.jsonl");
    assert!(disk.content(path).is_some());
    store.remove_file("file-result").unwrap();
    assert_eq!(disk.content(path), None);
    assert_eq!(store.batch("batch_a").unwrap().counts.completed, 1);
    drop(store);
    assert_eq!(open(&disk).unwrap().batch("batch_a").unwrap().counts.completed, 1);
}

#[test]
fn a_full_disk_refuses_a_file_and_leaves_no_part_of_it() {
    let disk = FaultyDisk::default();
    let store = open(&disk).unwrap();
    disk.set_room(Some(disk.used() + 10));
    let refused = store.add_file(entry("file-a"), &mut &[b'x'; 100][..]);
    assert!(matches!(refused, Err(StoreError::Full { .. })), "{refused:?}");
    assert!(store.file("file-a").is_err());
    assert_eq!(disk.content(Path::new("store/files/file-a")), None);
    disk.set_room(None);
    assert_eq!(store.add_file(entry("file-a"), &mut &[b'x'; 100][..]).unwrap().bytes, 100);
}

/// Counts the opened files.
struct Counting(FaultyDisk, AtomicUsize);

impl Disk for Counting {
    fn open(&self, path: &Path) -> io::Result<Box<dyn StoredFile>> {
        self.1.fetch_add(1, Relaxed);
        Disk::open(&self.0, path)
    }

    fn exists(&self, path: &Path) -> bool {
        self.0.exists(path)
    }

    fn list(&self, folder: &Path) -> io::Result<Vec<PathBuf>> {
        self.0.list(folder)
    }

    fn make_folder(&self, path: &Path) -> io::Result<()> {
        self.0.make_folder(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.0.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.0.remove(path)
    }

    fn sync_folder(&self, path: &Path) -> io::Result<()> {
        self.0.sync_folder(path)
    }
}

#[test]
fn a_file_that_is_read_line_by_line_is_opened_once_and_few_stay_open() {
    let disk = Arc::new(Counting(FaultyDisk::default(), AtomicUsize::new(0)));
    let store = FsStore::open(disk.clone(), Path::new("store")).unwrap();
    let opened = |count: usize, read: &dyn Fn()| {
        let before = disk.1.load(Relaxed);
        read();
        assert_eq!(disk.1.load(Relaxed) - before, count);
    };
    let read = |name: &str| {
        let mut buffer = [0; 8];
        assert_eq!(store.read_file(name, 1, &mut buffer).unwrap(), 2);
        assert_eq!(buffer[..2], *b"bc");
    };
    let names: Vec<_> = (0..20).map(|number| format!("file-{number}")).collect();
    for name in &names {
        store.add_file(entry(name), &mut &b"abc"[..]).unwrap();
    }
    opened(1, &|| (0..100).for_each(|_| read("file-0")));
    opened(19, &|| names[1..].iter().for_each(|name| read(name)));
    opened(1, &|| read("file-0"));
    store.remove_file("file-0").unwrap();
    assert!(store.read_file("file-0", 0, &mut [0; 8]).is_err());
    assert_eq!(disk.0.content(Path::new("store/files/file-0")), None);
}

#[test]
fn results_of_ended_batches_are_closed_and_few_stay_open_for_readers() {
    let disk = Arc::new(Counting(FaultyDisk::default(), AtomicUsize::new(0)));
    let store = FsStore::open(disk.clone(), Path::new("store")).unwrap();
    store.add_file(entry("file-a"), &mut &b"x"[..]).unwrap();
    let names: Vec<_> = (0..20).map(|number| format!("batch_{number}")).collect();
    for name in &names {
        store.add_batch(batch(name, "file-a")).unwrap();
        let lease = store.lease(name).unwrap().unwrap();
        store.standing(&lease, crate::suite::INPUT).unwrap();
        store.publish(&lease, &[record(0, "one")]).unwrap();
        for status in [BatchStatus::Cancelling, BatchStatus::Cancelled] {
            store.change_leased(&lease, &mut |batch| batch.reach(status, 5)).unwrap();
        }
    }
    let opened = |read: &[String]| {
        let before = disk.1.load(Relaxed);
        for name in read {
            let bytes = store.result_bytes(name, RecordKind::Output).unwrap() as usize;
            let mut buffer = vec![0; bytes + 1];
            assert_eq!(
                store.read_results(name, RecordKind::Output, 0, &mut buffer).unwrap(),
                bytes
            );
            assert!(buffer.starts_with(b"{\"line\":0"), "{buffer:?}");
        }
        disk.1.load(Relaxed) - before
    };
    assert_eq!(opened(&names[..1]), 3, "the output, the errors and what counts of them");
    assert_eq!(opened(&names[..1]), 0);
    assert_eq!(opened(&names[1..]), 19 * 3);
    assert_eq!(opened(&names[..1]), 3);
}
