//! Carries out plans: calls pods, streams their answers, and tries elsewhere when one fails.
//!
//! What decides is pure and takes time as an argument: the retry budget, the breaker of an endpoint, what
//! comes after a failure, what a transfer protocol says, and the splicing of bodies. Around it stands one
//! HTTP/1.1 client on hyper ([`exchange`]) whose connections are driven by the very task that answers the
//! client: no other task is woken for a chunk, and a client that leaves takes the upstream call with it.
#![forbid(unsafe_code)]

mod answer;
mod asking;
mod bell;
mod beside;
mod breaker;
mod budget;
mod connector;
mod course;
mod dispatch;
mod endpoint;
mod exchange;
mod execute;
mod failure;
mod kv_load;
mod line;
mod pulse;
mod reach;
mod splice;
mod timeouts;
mod turn;
mod waiting;
mod wire;

pub use answer::{Answer, AnswerBody};
pub use breaker::{Breaker, BreakerRules, Verdict};
pub use budget::{BudgetRules, RetryBudget};
pub use course::{Course, Next, Producer};
pub use dispatch::{Call, Called, Carried, Dispatch, Kit, Taken, Target};
pub use endpoint::{AddressError, Endpoint, WorkerNumber};
pub use exchange::call;
pub use execute::execute;
pub use failure::{CallError, Failure, tls_error};
pub use pulse::beat;
pub use reach::{AddressRange, Forbidden, PodTls, RangeError, Reach};
pub use splice::{Edit, NotAnObject, field, splice};
pub use timeouts::Timeouts;
pub use turn::take_turn;
