//! Offline work: batch input files, the prompt linter, and the logs of results and stores.

use crate::memory_disk::MemoryDisk;
use std::io::BufReader;
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;
use wornpath_blocks::HashKey;
use wornpath_jobs::{
    BatchLine, DueTime, FsStore, Identical, Input, InputError, InputMark, InputRules, Interface,
    LineForm, LineRecord, PromptHasher, Publish, RecordKind, ResultPaths, Results, Store,
    TokenUsage, frame, places,
};
use wornpath_planner::{Plan, PlannerRates, Speeds, lint};

/// The first byte chooses the form of the lines and the size of reads. Reading in pieces gives the
/// same input; every span is a line; and a plan has every request once.
pub fn batch_lines(bytes: &[u8]) {
    let Some((choice, input)) = bytes.split_first() else { return };
    let form = match choice % 5 {
        0 => LineForm::Free,
        other => LineForm::Batch(Interface::ALL[usize::from(other) - 1]),
    };
    let identical = if input.len() % 2 == 0 { Identical::Each } else { Identical::Once };
    let due = DueTime::OPEN;
    let rules =
        InputRules { form, most_lines: 16, output_tokens: 8, most_problems: 4, identical, due };
    let size = NonZeroUsize::new(4).expect("four is not zero");
    let sketcher = PromptHasher::new(&HashKey::DEFAULT, size, None);
    let in_pieces = BufReader::with_capacity(1 + usize::from(choice / 5), input);
    let again = Input::read(in_pieces, &rules, &sketcher);
    match (Input::read(input, &rules, &sketcher), again) {
        (Ok(parsed), Ok(again)) => {
            assert_eq!((&parsed.spans, parsed.mark), (&again.spans, again.mark));
            check_input(&parsed, input, form);
        }
        (
            Err(InputError::Lines { count, first }),
            Err(InputError::Lines { count: other_count, first: other_first }),
        ) => {
            assert_eq!((count, first.len()), (other_count, count.min(rules.most_problems)));
            assert_eq!(first, other_first);
        }
        (one, other) => panic!("in one piece {one:?}, in pieces {other:?}"),
    }
}

fn check_input(parsed: &Input, input: &[u8], form: LineForm) {
    assert_eq!(parsed.mark.bytes, input.len() as u64);
    assert_eq!(parsed.mark.lines as usize, parsed.spans.len());
    // A byte order mark is not part of the first line.
    let marked = input.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(input);
    let lines: Vec<_> = marked.split(|byte| *byte == b'\n').collect();
    for span in &parsed.spans {
        let text = &input[span.offset as usize..][..span.bytes as usize];
        assert_eq!(text, lines[span.number as usize - 1]);
        BatchLine::parse(text, form).expect("it was parsed once");
    }
    let speeds = Speeds::equal(2).expect("two pods");
    let plan = Plan::new(&parsed.queue, &speeds, &PlannerRates::flat(0.016, 0.06));
    let mut planned: Vec<_> = (0..2).flat_map(|pod| plan.jobs_of(pod)).collect();
    planned.sort_unstable_by_key(|job| job.0);
    assert!(planned.into_iter().eq(parsed.queue.jobs()), "each once");
    assert!(plan.planned_tokens() >= plan.least_tokens());
}

/// Each line is a prompt: the linter's findings refer to prompts and bytes that exist.
pub fn prompts(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let prompts: Vec<_> = text.split('\n').collect();
    for found in lint::lint(&prompts, 4) {
        let (one, other) = found.example;
        assert!(one < other && other < prompts.len(), "{found:?}");
        assert!(found.byte <= prompts[one].len().min(prompts[other].len()), "{found:?}");
        assert!(found.shared_then > found.shared_now, "{found:?}");
    }
}

/// The log of a result whose files consist of `{}`. The first byte chooses the number of input
/// lines, and whether raw frames follow, or one payload per line. A log that opens can be appended
/// to and opened again.
pub fn result_log(bytes: &[u8]) {
    let Some((choice, log)) = bytes.split_first() else { return };
    let input = InputMark { bytes: 7, hash: 7, lines: u32::from(choice / 2) };
    let paths = ResultPaths { output: "o".into(), errors: "e".into(), log: "l".into() };
    let lines = b"{}\n".repeat(64);
    let disk = MemoryDisk::default()
        .with("o", lines.clone())
        .with("e", lines)
        .with("l", framed(log, *choice));
    let Ok(mut results) = Results::open(&disk, &paths, input) else { return };
    let counts = results.counts();
    let done = (0..input.lines).filter(|line| results.is_done(*line)).count();
    assert_eq!(done, (counts.completed + counts.failed) as usize);
    let standing = places(&disk, &paths, input).expect("it was opened");
    assert_eq!(standing.len(), done);
    let ends: u64 = standing.iter().map(|place| u64::from(place.bytes)).sum();
    assert_eq!(ends, results.ends().iter().sum::<u64>());
    let pending = (0..input.lines).find(|line| !results.is_done(*line));
    if let Some(line) = pending {
        let usage = TokenUsage { input: 1, ..TokenUsage::default() };
        let bytes = b"{}".to_vec();
        let record = LineRecord { line, kind: RecordKind::Error, bytes, usage };
        assert_eq!(results.publish(&[record.clone(), record]).ok(), Some(1));
    }
    let counts = results.counts();
    let usage = results.usage();
    let ends = results.ends();
    let again = Results::open(&disk, &paths, input).expect("what was written can be read");
    assert_eq!((again.counts(), again.usage(), again.ends()), (counts, usage, ends));
}

/// The journal of a store in a folder, encoded as for [`result_log`]. A journal that opens has the
/// same content when it is opened again.
pub fn store_journal(bytes: &[u8]) {
    let Some((choice, journal)) = bytes.split_first() else { return };
    let disk: Arc<MemoryDisk> =
        Arc::new(MemoryDisk::default().with("s/journal", framed(journal, *choice)));
    let known = |store: &FsStore| {
        let batches = ["", "alice"].map(|owner| store.batches(owner).ok());
        let files = ["", "alice"].map(|owner| store.files(owner).ok());
        let shown = batches.iter().flatten().flatten().map(|batch| batch.to_json().to_string());
        (shown.collect::<Vec<_>>(), files, store.unfinished().ok())
    };
    let Ok(store) = FsStore::open(disk.clone(), Path::new("s")) else { return };
    let before = known(&store);
    let again = FsStore::open(disk, Path::new("s")).expect("what was opened can be opened");
    assert_eq!(known(&again), before);
    let _ = again.sweep(1_000_000, 1_000);
}

/// Odd choices put each line into a frame: a valid checksum lets the payload reach the parser.
fn framed(bytes: &[u8], choice: u8) -> Vec<u8> {
    match choice % 2 {
        0 => bytes.to_vec(),
        _ => bytes.split(|byte| *byte == b'\n').flat_map(frame).collect(),
    }
}
