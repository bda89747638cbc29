//! Batch jobs that survive crashes: the runner of planned queues, and results that are published
//! exactly once.
//!
//! [`Input`] reads an input of any size, the planner orders it, [`run`] sends it to
//! [`LineDispatch`] as the [`Scheduler`] decides, and [`Results`] publishes the responses: every
//! line of the input gets exactly one record, whichever process crashes in between. Published
//! records survive; other lines run again.
#![forbid(unsafe_code)]

mod answer_budget;
mod assemble;
mod batch;
mod byte_check;
mod committed_files;
mod dedup;
mod disk;
mod engines;
mod external_sort;
mod file_entry;
mod frame;
mod fs_store;
mod growing_crc;
mod identity;
mod input;
mod journal;
mod line;
mod pods;
#[cfg(feature = "postgres")]
mod postgres;
mod prompt_hash;
mod reader;
mod record;
mod reply;
mod result_log;
mod result_writer;
mod results;
mod run_work;
mod runner;
mod scheduler;
mod store;
mod store_error;

pub use answer_budget::{AnswerBudget, AnswerHold};
pub use assemble::{Assembler, StreamError, streaming, whole};
pub use batch::{Batch, BatchStatus, NewBatch, ShownProblem, UnixTime};
pub use byte_check::ByteCheck;
pub use dedup::DedupGroups;
pub use disk::{Disk, RealDisk, StoredFile};
pub use engines::{EngineHealth, LineDispatch, LineSource, Outgoing, Prefilled};
pub use external_sort::{ExternalSort, ExternalSortError, SortScratch};
pub use file_entry::FileEntry;
pub use frame::frame;
pub use fs_store::{FolderReport, FsStore, verify};
pub use identity::Identical;
pub use input::{DueTime, Input, InputError, InputRules, LineSpan};
pub use line::{BatchLine, Interface, LineForm, LineProblem, duration};
pub use pods::{BatchPods, InputFile, ReadLoad, read_whole};
#[cfg(feature = "postgres")]
pub use postgres::{Postgres, PostgresServer, PostgresSharing};
pub use prompt_hash::{BYTES_PER_TOKEN, Lengths, PromptHasher, rendered};
pub use record::{Counts, LineRecord, Publish, RecordKind, TokenUsage};
pub use reply::{LineReply, Owner, ReplyError, ReplyMeaning};
pub use result_log::{InputMark, ResultPaths, ResultPosition};
pub use results::{Results, places};
pub use run_work::{RunChannels, RunControl, RunProgress, RunWork};
pub use runner::{Finished, run};
pub use scheduler::{LineFate, RetryPolicy, Scheduler, SchedulerOrder};
pub use store::{BatchState, Lease, Leased, Store};
pub use store_error::StoreError;
