//! The sections of the file, one module each: its parameters as a table, and how they are read.

pub(crate) mod access_log;
pub(crate) mod batch;
pub(crate) mod checkpoint;
pub(crate) mod continuation;
pub(crate) mod discovery;
pub(crate) mod epp;
pub(crate) mod exchange;
pub(crate) mod kubernetes;
pub(crate) mod limits;
pub(crate) mod listen;
pub(crate) mod metrics;
pub(crate) mod models;
pub(crate) mod password;
pub(crate) mod pods;
pub(crate) mod profiles;
pub(crate) mod routes;
pub(crate) mod shadow;
pub(crate) mod sources;
pub(crate) mod telemetry;
pub(crate) mod tenants;
pub(crate) mod tls;
