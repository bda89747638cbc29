//! The store in a folder, on a disk that dies.

use crate::disk::{Cut, Death, Dice, FaultyDisk};
use crate::suite::{Ground, batch, die_often, entry, grow_old, live, race, record};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use wornpath_jobs::{BatchStatus, Disk, FsStore, Lease, RecordKind, Store, StoreError, StoredFile};

fn open(disk: &FaultyDisk) -> Result<FsStore, StoreError> {
    FsStore::open(Arc::new(disk.clone()), Path::new("shelf"))
}

/// A shelf with a batch whose results have begun.
fn with_a_batch(disk: &FaultyDisk) -> (FsStore, Lease) {
    let shelf = open(disk).unwrap();
    shelf.add_file(entry("file-a"), &mut &b"x"[..]).unwrap();
    shelf.add_batch(batch("batch_a", "file-a")).unwrap();
    let lease = shelf.lease("batch_a").unwrap().unwrap();
    shelf.standing(&lease, crate::suite::INPUT).unwrap();
    (shelf, lease)
}

impl Ground for FaultyDisk {
    fn open(&self) -> Result<Box<dyn Store>, StoreError> {
        Ok(Box::new(open(self)?))
    }

    fn die_at(&self, operation: usize, cut: Cut) {
        Self::die_at(self, operation, cut);
    }

    fn is_dead(&self) -> bool {
        Self::is_dead(self)
    }

    fn reboot(&self, death: Death, dice: &mut Dice) {
        Self::reboot(self, death, dice);
    }

    fn live_on(&self) {
        Self::live_on(self);
    }

    fn operations(&self) -> usize {
        Self::operations(self)
    }
}

#[test]
fn a_store_that_dies_at_any_operation_keeps_what_it_accepted() {
    let all = live(&FaultyDisk::default(), 0, &[], (Death::Process, &mut Dice(0)));
    let mut runs = 0;
    for operation in 1..=all {
        for cut in [Cut::Before, Cut::Torn, Cut::After] {
            for death in [Death::Process, Death::Machine] {
                let mut dice = Dice((operation * 10 + cut as usize) as u64);
                live(&FaultyDisk::default(), runs, &[(operation, cut)], (death, &mut dice));
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
    let shelf = open(&disk).unwrap();
    race(&shelf);
    assert!(matches!(open(&disk), Err(StoreError::Busy { .. })), "one process has it");
}

#[test]
fn what_is_past_its_time_leaves_nothing_behind() {
    let disk = FaultyDisk::default();
    grow_old(&open(&disk).unwrap());
    assert_eq!(disk.content(Path::new("shelf/files/file-old")), None);
    for name in ["batch_old.output.jsonl", "batch_old.errors.jsonl", "batch_old.log"] {
        assert_eq!(disk.content(&Path::new("shelf/results").join(name)), None, "{name}");
    }
}

/// Puts bytes in a file, in place of what it has.
fn put(disk: &FaultyDisk, path: &Path, bytes: &[u8]) {
    let mut file = Disk::open(disk, path).unwrap();
    file.truncate(0).unwrap();
    file.append(bytes).unwrap();
}

#[test]
fn a_journal_that_is_lost_or_all_zeros_is_refused_and_takes_nothing_with_it() {
    let disk = FaultyDisk::default();
    let (shelf, _lease) = with_a_batch(&disk);
    drop(shelf);
    let (journal, file) = (Path::new("shelf/journal"), Path::new("shelf/files/file-a"));
    let kept = disk.content(journal).unwrap();
    for zeros in [0, 500] {
        put(&disk, journal, &vec![0; zeros]);
        for _ in 0..2 {
            let refused = open(&disk).unwrap_err();
            let is_named = matches!(&refused, StoreError::Damaged { path, .. } if path == journal);
            assert!(is_named, "{zeros} zeros: {refused}");
        }
        assert!(disk.content(file).is_some());
        assert!(disk.content(Path::new("shelf/results/batch_a.log")).is_some());
    }
    put(&disk, journal, &kept);
    assert_eq!(open(&disk).unwrap().file("file-a").unwrap().bytes, 1, "with a copy it goes on");
}

#[test]
fn what_others_keep_in_the_folders_of_a_store_stays() {
    let disk = FaultyDisk::default();
    let theirs = ["shelf/files/photo.png", "shelf/results/table.csv"].map(Path::new);
    theirs.iter().for_each(|path| put(&disk, path, b"theirs"));
    drop(open(&disk).unwrap());
    let ours = Path::new("shelf/files/file-that-a-crash-left");
    put(&disk, ours, b"ours");
    open(&disk).unwrap();
    assert_eq!(disk.content(ours), None);
    for path in theirs {
        assert_eq!(disk.content(path).unwrap(), b"theirs", "{}", path.display());
    }
}

/// Leases a batch again and again, until the journal is mostly history.
fn fill_the_journal(disk: &FaultyDisk) -> Result<(), StoreError> {
    let shelf = open(disk)?;
    if shelf.file("file-a").is_err() {
        shelf.add_file(entry("file-a"), &mut &b"x"[..])?;
    }
    if shelf.batch("batch_a").is_err() {
        shelf.add_batch(batch("batch_a", "file-a"))?;
    }
    while shelf.batch("batch_a")?.epoch < 1_500 {
        shelf.lease("batch_a")?;
    }
    Ok(())
}

#[test]
fn a_journal_that_is_mostly_history_is_written_anew_whatever_dies_meanwhile() {
    let disk = FaultyDisk::default();
    fill_the_journal(&disk).unwrap();
    let before = disk.operations();
    drop(open(&disk).unwrap());
    let all = disk.operations();
    assert!(all > before + 5, "it is written anew when it is opened");
    let length = |disk: &FaultyDisk| disk.content(Path::new("shelf/journal")).unwrap().len();
    assert!(length(&disk) < 10_000, "{} bytes", length(&disk));
    for operation in before + 1..=all {
        for cut in [Cut::Before, Cut::Torn, Cut::After] {
            for death in [Death::Process, Death::Machine] {
                let (disk, mut dice) = (FaultyDisk::default(), Dice(operation as u64));
                fill_the_journal(&disk).unwrap();
                disk.die_at(operation, cut);
                drop(open(&disk));
                assert!(disk.is_dead(), "operation {operation} {cut:?}");
                disk.reboot(death, &mut dice);
                disk.live_on();
                let shelf = open(&disk).unwrap();
                assert_eq!(shelf.batch("batch_a").unwrap().epoch, 1_500);
                assert_eq!(shelf.file("file-a").unwrap().bytes, 1);
                assert!(length(&disk) < 10_000, "{} bytes", length(&disk));
                // It goes on as a journal.
                shelf.lease("batch_a").unwrap();
                drop(shelf);
                assert_eq!(open(&disk).unwrap().batch("batch_a").unwrap().epoch, 1_501);
            }
        }
    }
}

#[test]
fn with_the_last_file_of_its_results_their_bytes_go_and_the_batch_stays() {
    let disk = FaultyDisk::default();
    let (shelf, lease) = with_a_batch(&disk);
    shelf.publish(&lease, &[record(0, "one")]).unwrap();
    let mut result = entry("file-result");
    result.of = Some(("batch_a".into(), RecordKind::Output));
    shelf.add_file(result, &mut std::io::empty()).unwrap();
    for status in [BatchStatus::Cancelling, BatchStatus::Cancelled] {
        shelf.change_leased(&lease, &mut |batch| batch.reach(status, 5)).unwrap();
    }
    let path = Path::new("shelf/results/batch_a.output.jsonl");
    assert!(disk.content(path).is_some());
    shelf.remove_file("file-result").unwrap();
    assert_eq!(disk.content(path), None);
    assert_eq!(shelf.batch("batch_a").unwrap().counts.completed, 1);
    drop(shelf);
    assert_eq!(open(&disk).unwrap().batch("batch_a").unwrap().counts.completed, 1);
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
}

/// Counts what is opened.
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
    let shelf = FsStore::open(disk.clone(), Path::new("shelf")).unwrap();
    let opened = |count: usize, read: &dyn Fn()| {
        let before = disk.1.load(Relaxed);
        read();
        assert_eq!(disk.1.load(Relaxed) - before, count);
    };
    let read = |name: &str| {
        let mut buffer = [0; 8];
        assert_eq!(shelf.read_file(name, 1, &mut buffer).unwrap(), 2);
        assert_eq!(buffer[..2], *b"bc");
    };
    let names: Vec<_> = (0..20).map(|number| format!("file-{number}")).collect();
    for name in &names {
        shelf.add_file(entry(name), &mut &b"abc"[..]).unwrap();
    }
    opened(1, &|| (0..100).for_each(|_| read("file-0")));
    opened(19, &|| names[1..].iter().for_each(|name| read(name)));
    opened(1, &|| read("file-0"));
    shelf.remove_file("file-0").unwrap();
    assert!(shelf.read_file("file-0", 0, &mut [0; 8]).is_err());
    assert_eq!(disk.0.content(Path::new("shelf/files/file-0")), None);
}

#[test]
fn results_of_ended_batches_are_closed_and_few_that_are_read_stay_open() {
    let disk = Arc::new(Counting(FaultyDisk::default(), AtomicUsize::new(0)));
    let shelf = FsStore::open(disk.clone(), Path::new("shelf")).unwrap();
    shelf.add_file(entry("file-a"), &mut &b"x"[..]).unwrap();
    let names: Vec<_> = (0..20).map(|number| format!("batch_{number}")).collect();
    for name in &names {
        shelf.add_batch(batch(name, "file-a")).unwrap();
        let lease = shelf.lease(name).unwrap().unwrap();
        shelf.standing(&lease, crate::suite::INPUT).unwrap();
        shelf.publish(&lease, &[record(0, "one")]).unwrap();
        for status in [BatchStatus::Cancelling, BatchStatus::Cancelled] {
            shelf.change_leased(&lease, &mut |batch| batch.reach(status, 5)).unwrap();
        }
    }
    let opened = |read: &[String]| {
        let before = disk.1.load(Relaxed);
        for name in read {
            let bytes = shelf.result_bytes(name, RecordKind::Output).unwrap() as usize;
            let mut buffer = vec![0; bytes + 1];
            assert_eq!(
                shelf.read_results(name, RecordKind::Output, 0, &mut buffer).unwrap(),
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
