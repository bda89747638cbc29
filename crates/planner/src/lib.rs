//! Plans a whole queue of requests, so that every shared prefix is computed about once.
//!
//! A planner that sees all requests can send each one where and when its prefix is cached. The
//! [`Forest`] sorts them into depth-first order; a [`Plan`] cuts that order into one contiguous
//! piece per pod, by speed; a [`PlanRun`] runs it request by request and handles what no plan
//! foresees: slow pods, lost pods, failed requests, answers of any length.
//!
//! ```
//! use std::num::NonZeroUsize;
//! use wornpath_blocks::BlockHash;
//! use wornpath_planner::{Job, Plan, PlannerRates, Queue, Speeds};
//!
//! let mut queue = Queue::new(NonZeroUsize::new(16).ok_or("not zero")?);
//! for chain in [[1, 2], [7, 8], [1, 3], [7, 9]] {
//!     let chain = chain.map(BlockHash);
//!     queue.push(&Job { chain: &chain, prompt_tokens: 40, output_tokens: 10, identity: None })?;
//! }
//! let plan = Plan::new(&queue, &Speeds::equal(2)?, &PlannerRates::flat(0.016, 0.06));
//! let first: Vec<_> = plan.jobs_of(0).map(|job| job.0).collect();
//! assert_eq!(first, [0, 2], "requests with the same prefix are on the same pod");
//! assert_eq!(plan.planned_tokens(), plan.least_tokens());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Beside the plan: [`PromptGroups`] (which requests share which prefix), [`Cohorts`] (what
//! decoding together could share), [`match_pods`] (what pods already hold), and [`lint`] (why
//! prompts share so little).
//!
//! No I/O, no clock, no threads; the same requests give the same plan, in any input order.
#![forbid(unsafe_code)]

mod cohorts;
mod composition;
mod decode;
mod forest;
mod groups;
pub mod lint;
mod matching;
mod merging;
mod online_priority;
mod ordering;
mod plan;
mod queue;
mod rates;
mod route;
mod run;
mod sorting;
mod urgency;
mod window;

pub use cohorts::Cohorts;
pub use decode::{CascadeRates, ContextRead, DecodeBatch, DecodeGroup, DecodeRates};
pub use forest::Forest;
pub use groups::{GroupId, PromptGroup, PromptGroups};
pub use matching::match_pods;
pub use merging::SortedPart;
pub use online_priority::OnlinePriority;
pub use plan::{Plan, PlanClass, Segment};
pub use queue::{DedupKey, Job, JobId, Queue, QueueError};
pub use rates::PlannerRates;
pub use rates::{Speeds, SpeedsError};
pub use route::{Route, RouteStop};
pub use run::{JobOutcome, PlanRun, RunCapacity};
pub use window::{PodLoad, Window};
