//! Processes that the end-to-end tests share: simulated engines, a gateway, an engine that records
//! its requests, and a terminal.
#![allow(dead_code, reason = "no test binary uses all of it")]

pub(crate) mod engines;
pub(crate) mod gateway;
#[cfg(feature = "kubernetes")]
pub(crate) mod kube_api;
pub(crate) mod recorder;
pub(crate) mod terminal;
