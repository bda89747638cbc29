//! A clock that is far from the times in the store: expired batches are kept for a day.

use super::folder;
use crate::support::engines::Engines;
use crate::support::gateway::{Gateway, eventually};
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;
use wornpath_jobs::{
    Batch, BatchStatus, FileEntry, FsStore, Interface, NewBatch, RealDisk, Store, UnixTime,
};

const DAY: u64 = 86_400;

fn file(id: &str, created_at: UnixTime) -> FileEntry {
    FileEntry {
        id: id.into(),
        owner: String::new(),
        filename: "in.jsonl".into(),
        purpose: "batch".into(),
        bytes: 0,
        created_at,
        expires_at: None,
        crc: None,
        of: None,
    }
}

/// A store whose batch ended 40 days ago, and in which a file was uploaded at `newest`.
fn store(kept: &Path, now: UnixTime, newest: UnixTime) {
    let store = FsStore::open(Arc::new(RealDisk), kept).unwrap();
    let old = now - 40 * DAY;
    store.add_file(file("file-a", old), &mut &b"x"[..]).unwrap();
    store.add_file(file("file-b", newest), &mut &b"x"[..]).unwrap();
    let new = NewBatch {
        id: "batch_a".into(),
        owner: String::new(),
        interface: Interface::Chat,
        input_file_id: "file-a".into(),
        window: ("24h".into(), DAY),
        metadata: None,
    };
    store.add_batch(Batch::new(new, old)).unwrap();
    for status in [BatchStatus::Cancelling, BatchStatus::Cancelled] {
        store.change("batch_a", &mut |batch| batch.reach(status, old)).unwrap();
    }
}

#[test]
fn after_a_jump_of_the_clock_no_result_is_deleted_and_the_log_says_why() {
    let engines = Engines::start(&[]);
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
    let status = |gateway: &Gateway| gateway.get("/v1/batches/batch_a").status;
    for (name, newest) in [("clock-ahead", now - 40 * DAY), ("clock-behind", now + 40 * DAY)] {
        let kept = folder(name);
        store(&kept, now, newest);
        let gateway = Gateway::in_front_of(&engines, &["--batches", kept.to_str().unwrap()]);
        eventually("it is logged", || {
            gateway.log().contains("expired files and batches are kept for a day")
        });
        assert_eq!(status(&gateway), 200, "{}", gateway.log());
    }
    let kept = folder("clock-right");
    store(&kept, now, now - 60);
    let gateway = Gateway::in_front_of(&engines, &["--batches", kept.to_str().unwrap()]);
    eventually("the retention time is over", || status(&gateway) == 404);
}
