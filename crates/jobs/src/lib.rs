//! Offline work that survives: results that are published once, and the runner of planned queues.
//!
//! [`Intake`] reads an input of any size, the planner orders it, [`run`] sends it to [`Engines`] as the
//! [`Conductor`] decides, and [`Results`] publishes what comes back: every line of the input gets exactly
//! one record, whatever dies in between. What was published survives; what was not runs again.
#![forbid(unsafe_code)]

mod assemble;
mod batch;
mod conductor;
mod copies;
mod disk;
mod engines;
mod frame;
mod identity;
mod intake;
mod journal;
mod line;
mod pods;
#[cfg(feature = "postgres")]
mod postgres;
mod problem;
mod reader;
mod record;
mod reply;
mod results;
mod runner;
mod shelf;
mod sketch;
mod spill;
mod store;

pub use assemble::{Assembler, StreamError, streaming, whole};
pub use batch::{Batch, NewBatch, ShownProblem, Status, UnixTime};
pub use conductor::{Conductor, Fate, Order, Patience};
pub use copies::Copies;
pub use disk::{Disk, RealDisk, Stored};
pub use engines::{Engines, Health, Outgoing, Prefilled, Source};
pub use frame::frame;
pub use identity::Identical;
pub use intake::{Intake, IntakeError, IntakeRules, Span};
pub use line::{Form, Interface, Line, LineProblem};
pub use pods::{InputFile, Pods, ReadVitals, read_whole};
#[cfg(feature = "postgres")]
pub use postgres::{Postgres, Sharing};
pub use problem::StoreError;
pub use record::{Counts, Kind, Publish, Record, TokenUsage};
pub use reply::{Meaning, Owner, Reply, Trouble};
pub use results::{InputMark, Place, ResultPaths, Results, places};
pub use runner::{Finished, Progress, Wish, Work, run};
pub use shelf::Shelf;
pub use sketch::{BYTES_PER_TOKEN, Lengths, Sketcher, rendered};
pub use spill::{Scratch, Spill, SpillError};
pub use store::{FileEntry, Lease, Leased, Standing, Store};
