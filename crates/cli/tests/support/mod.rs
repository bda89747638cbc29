//! Processes that the end-to-end tests share: simulated engines, a gateway, and an engine that
//! records its requests.
#![allow(dead_code, reason = "no test binary uses all of it")]

pub(crate) mod engines;
pub(crate) mod gateway;
pub(crate) mod recorder;
