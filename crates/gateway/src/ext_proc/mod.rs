//! The endpoint picker: Envoy asks for the pods of a request, over its external processing protocol.
//!
//! A front like the HTTP server: the same stages up to the decision, the same index, wait queue,
//! tenants, profiles and account. Only the call to the pod is the data plane's. One gRPC stream is
//! one HTTP request:
//!
//! | phase | file | what it does |
//! |---|---|---|
//! | head | `head`, `hints`, `bare` | the request's head; what the data plane says about the request, and what it leaves out |
//! | body | `request_body` | its chunks, as a body like any other |
//! | pick | `pick`, `destination` | the stages, then the addresses of the plan |
//! | answer | `messages` | the addresses and the body, or an error |
//! | response | `response` | counts the bytes that pass, and which pod served them |
//!
//! A failure of the picker itself ends the stream with a gRPC status, never with an HTTP error: so
//! the data plane's failure mode decides what becomes of the request. Limits: what one engine hands
//! over to another is up to the sidecars of the pods, and timeouts and retries are up to the data
//! plane.

mod answers;
mod bare;
mod destination;
mod head;
mod header_changes;
mod health;
#[allow(clippy::all, clippy::pedantic, missing_docs, unreachable_pub, reason = "generated")]
#[rustfmt::skip]
mod health_proto;
mod hints;
mod messages;
mod pick;
#[allow(clippy::all, clippy::pedantic, missing_docs, unreachable_pub, reason = "generated")]
#[rustfmt::skip]
mod proto;
mod request_body;
mod response;
pub(crate) mod service;
mod session;
#[cfg(test)]
mod tests;
