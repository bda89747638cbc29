//! `wornpath demo --recorded`: the recorded cache events of three real engines, and what they mean for a request.
//!
//! The recordings are from vLLM 0.32 with three settings that a router has to bring together: other
//! hash functions, hashes as integers and as bytes, one with a second tier in host memory. They go
//! through the same decoder, translator and index as a live stream would.

mod engine;
mod table;

use engine::{RecordedEngine, RecordedPrompt, Recording};
use std::io::Write;
use std::num::NonZeroUsize;
use table::Row;
use wornpath_blocks::HashKey;
use wornpath_index::{Index, IndexLimits};

/// What all three engines use. The index's unit need not be the engines', only a divisor of it.
const BLOCK_SIZE: NonZeroUsize = NonZeroUsize::new(32).expect("thirty-two is not zero");
const MODEL: &str = "tiny-llama";

const RECORDINGS: [Recording; 3] = [
    Recording {
        name: "engine-1",
        setting: "sha256_cbor, integer hashes; a small cache that evicts",
        bytes: include_bytes!("../../../events/tests/fixtures/vllm-0.32/serve_sha256_cbor.bin"),
    },
    Recording {
        name: "engine-2",
        setting: "sha256, integer hashes; keeps copies in host memory",
        bytes: include_bytes!("../../../events/tests/fixtures/vllm-0.32/offload_cpu_selfdesc0.bin"),
    },
    Recording {
        name: "engine-3",
        setting: "xxhash_cbor, hashes as bytes",
        bytes: include_bytes!(
            "../../../events/tests/fixtures/vllm-0.32/inproc_xxhash_cbor_seed42_bytes_bs32.bin"
        ),
    },
];

/// Plays the demo to `out`.
pub(super) fn run(out: &mut dyn Write) -> anyhow::Result<()> {
    let key = HashKey::DEFAULT;
    let index = Index::new(IndexLimits::default(), 1);
    let mut engines = Vec::new();
    for recording in &RECORDINGS {
        engines.push(RecordedEngine::start(recording, &index, &key)?);
    }
    let [one, two, three] = &mut engines[..] else { unreachable!("three recordings were started") };
    // A prompt is what had been cached when an engine sent its message of that number.
    let prompts = [
        RecordedPrompt::cached_at("a file of code", &RECORDINGS[0], 1)?,
        RecordedPrompt::cached_at("a long count", &RECORDINGS[1], 0)?,
        RecordedPrompt::cached_at("a count with a new ending", &RECORDINGS[2], 1)?,
        RecordedPrompt::cached_at("a count, other tenant", &RECORDINGS[2], 3)?,
    ];

    introduce(out)?;
    let show =
        |out: &mut dyn Write, engines: &[&RecordedEngine], title: &str| -> anyhow::Result<()> {
            let rows = Row::of_all(&prompts, engines, &index, &key)?;
            table::write(out, title, engines, &rows)
        };
    one.play_until(9)?;
    two.play_until(2)?;
    three.play_until(4)?;
    show(out, &[one, two, three], "1. After the first requests")?;
    note(
        out,
        "The count is on two engines that call its blocks by different names: the index names blocks by \
         their tokens.\nThe same count under a tenant's salt is another prompt: tenants share nothing.",
    )?;

    one.play_until(13)?;
    two.play_until(14)?;
    show(out, &[one, two, three], "2. More traffic: caches are full and evict")?;
    note(
        out,
        "engine-1 evicts tail first, so a prefix stays; engine-2 evicted its count from the GPU and still has \
         it in host memory.",
    )?;

    one.play_until(16)?;
    index.remove_pod(three.pod());
    show(out, &[one, two], "3. engine-1 resets its cache, engine-3 goes away")?;
    note(
        out,
        "A pod that goes is out of every answer at once; a reset leaves nothing behind but what came \
         after it.",
    )?;
    Ok(())
}

fn introduce(out: &mut dyn Write) -> anyhow::Result<()> {
    writeln!(out, "Three recorded vLLM 0.32 engines, replayed into one index:")?;
    for recording in &RECORDINGS {
        writeln!(out, "  {}  {}", recording.name, recording.setting)?;
    }
    writeln!(
        out,
        "Shown: how many leading tokens of each prompt an engine need not compute again."
    )?;
    Ok(())
}

fn note(out: &mut dyn Write, text: &str) -> anyhow::Result<()> {
    for line in text.lines() {
        writeln!(out, "   {line}")?;
    }
    Ok(())
}
