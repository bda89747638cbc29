//! The fuzz targets: one plain function of bytes per target.
//!
//! libFuzzer drives them on nightly (`cargo +nightly fuzz run wire_batch`); on stable
//! `replay.rs` gives them the committed corpus and seeded mutations of it. A new target is a
//! function here, its line in [`TARGETS`], a file in `fuzz_targets/` and a corpus.
#![forbid(unsafe_code)]

mod chat;
mod checkpoint;
mod client;
mod config;
mod engine_output;
mod exchange;
mod full_cache;
mod index_ops;
mod isolation;
mod memory_disk;
mod offline;
#[cfg(test)]
mod replay;
mod simulation;
mod transports;
mod wire;

pub use chat::{chat_template, tokenizer_config};
pub use checkpoint::checkpoint;
pub use client::{client_body, form_data};
pub use config::{configuration, described_fleet, profile};
pub use engine_output::{answer_stream, continued_stream, engine_metrics};
pub use exchange::exchange_update;
pub use full_cache::full_cache;
pub use index_ops::index_ops;
pub use isolation::isolated_body;
pub use offline::{batch_lines, prompts, result_log, store_journal};
pub use simulation::{engine_profile, simulated_call, trace};
pub use transports::{event_sources, grpc_report, zmtp_stream};
pub use wire::{DIALECTS, envelope, push_request, wire_batch, wire_frames};

/// A name, which is also the folder of its corpus, and the function to fuzz.
pub type Target = (&'static str, fn(&[u8]));

/// All targets.
pub const TARGETS: &[Target] = &[
    ("answer_stream", answer_stream),
    ("batch_lines", batch_lines),
    ("chat_template", chat_template),
    ("checkpoint", checkpoint),
    ("client_body", client_body),
    ("configuration", configuration),
    ("continued_stream", continued_stream),
    ("described_fleet", described_fleet),
    ("engine_metrics", engine_metrics),
    ("engine_profile", engine_profile),
    ("envelope", envelope),
    ("event_sources", event_sources),
    ("form_data", form_data),
    ("exchange_update", exchange_update),
    ("full_cache", full_cache),
    ("grpc_report", grpc_report),
    ("index_ops", index_ops),
    ("isolated_body", isolated_body),
    ("profile", profile),
    ("prompts", prompts),
    ("push_request", push_request),
    ("result_log", result_log),
    ("simulated_call", simulated_call),
    ("store_journal", store_journal),
    ("tokenizer_config", tokenizer_config),
    ("trace", trace),
    ("wire_batch", wire_batch),
    ("wire_frames", wire_frames),
    ("zmtp_stream", zmtp_stream),
];
