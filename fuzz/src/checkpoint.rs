//! A router's checkpoint on disk: a whole file, or the body of one frame.

use wornpath_events::checkpoint::{PodCheckpoint, decode, encode};
use wornpath_index::{Index, IndexLimits};

/// The first byte chooses between a file and the body of a frame, which has no checksum here. A
/// record that decodes is equal after encoding it again, and is restored into an index whole or not
/// at all.
pub fn checkpoint(bytes: &[u8]) {
    let Some((kind, bytes)) = bytes.split_first() else { return };
    let records = match kind % 2 {
        0 => decode(bytes).unwrap_or_default(),
        _ => PodCheckpoint::parse(bytes).into_iter().collect(),
    };
    assert_eq!(decode(&encode(&records)).as_ref(), Ok(&records));
    let index = Index::new(IndexLimits { blocks_per_pod: 64, ..IndexLimits::default() }, 1);
    let pod = index.add_pod().expect("there are slots");
    for record in records {
        if index.writer().restore(pod, &record.blocks).is_err() {
            assert_eq!(index.stats().entries, 0);
            continue;
        }
        let again = index.export(pod).expect("it is there").expect("nothing waits");
        assert_eq!(again.len(), record.blocks.len());
        let digest = index.digest(pod).expect("it is there");
        index.writer().restore(pod, &again).expect("what the index wrote, it reads");
        assert_eq!(index.digest(pod), Ok(digest));
    }
}
