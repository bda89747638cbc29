//! What the fuzzer does with its bytes: one plain function per target.
//!
//! libFuzzer drives them on nightly (`cargo +nightly fuzz run wire_batch`); on stable
//! `tests/replay.rs` gives them the committed corpus and seeded mutations of it. A new target is a
//! function here, its line in [`TARGETS`], a file in `fuzz_targets/` and a corpus.
#![forbid(unsafe_code)]

mod carried;
mod chat;
mod checkpoint;
mod index_ops;
mod wire;

pub use carried::{event_sources, grpc_report, zmtp_stream};
pub use chat::{chat_template, tokenizer_config};
pub use checkpoint::checkpoint;
pub use index_ops::index_ops;
pub use wire::{DIALECTS, envelope, push_request, wire_batch, wire_frames};

/// A name, which is also the corpus's folder, and what to do with the bytes.
pub type Target = (&'static str, fn(&[u8]));

/// Every target.
pub const TARGETS: &[Target] = &[
    ("chat_template", chat_template),
    ("checkpoint", checkpoint),
    ("envelope", envelope),
    ("event_sources", event_sources),
    ("grpc_report", grpc_report),
    ("index_ops", index_ops),
    ("push_request", push_request),
    ("tokenizer_config", tokenizer_config),
    ("wire_batch", wire_batch),
    ("wire_frames", wire_frames),
    ("zmtp_stream", zmtp_stream),
];
