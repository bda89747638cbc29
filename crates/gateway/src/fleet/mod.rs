//! The fleet: its pods, the models that they serve, their health, and the sources that add them.

pub mod alerts;
pub mod block_size;
pub mod checkpoint;
pub mod discovery;
pub(crate) mod engine_calls;
pub mod engine_facts;
mod index_memory;
pub mod learning;
pub(crate) mod leaving;
pub mod lifecycle;
pub mod ownership;
pub(crate) mod peer_routers;
pub mod probe;
mod reachability;
pub mod registry;
pub mod reload;
pub(crate) mod routing_history;
pub mod scrape;
pub mod snapshot;
pub mod tokenizer_check;
pub mod tokenizer_finder;
mod tokenizer_search;
