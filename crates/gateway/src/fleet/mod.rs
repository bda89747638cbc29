//! The pods: which there are, what they serve, whether they are up, and where they come from.

pub mod block_size;
pub mod breakers;
pub mod checkpoint;
pub mod discovery;
pub mod event_alerts;
pub mod event_source_probe;
pub mod lifecycle;
pub mod ownership;
pub mod pod_model;
pub mod probe;
pub mod registry;
pub mod reload;
pub mod scrape;
pub mod silent_pods;
pub mod snapshot;
