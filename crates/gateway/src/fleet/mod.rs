//! The fleet: its pods, the models that they serve, their health, and the sources that add them.

pub mod alerts;
pub mod block_size;
pub mod checkpoint;
pub mod discovery;
pub mod lifecycle;
pub mod ownership;
pub mod probe;
pub mod registry;
pub mod reload;
pub mod scrape;
pub mod snapshot;
