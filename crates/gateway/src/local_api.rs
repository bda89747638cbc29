//! Local APIs: endpoints of the client listener that this process serves itself, such as files and
//! batches.
//!
//! The gateway knows them only by this trait, so that the crate of batches can depend on the
//! gateway.

use crate::reply::ClientReply;
use hyper::body::Incoming;
use hyper::{Request, Response};
use serde_json::Value;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use wornpath_index::Moment;

/// A response that is being computed.
pub type LocalResponse = Pin<Box<dyn Future<Output = Response<ClientReply>> + Send>>;

/// An API that this process serves itself.
pub trait LocalApi: Send + Sync {
    /// Whether a path belongs to the API.
    fn serves(&self, path: &str) -> bool;

    /// Handles a request to one of its paths, of a client at `address`.
    fn respond(self: Arc<Self>, request: Request<Incoming>, address: IpAddr) -> LocalResponse;

    /// Its state as JSON, for the dashboard.
    fn overview(&self, now: Moment) -> Value;

    /// The prefix forest of a batch's plan as JSON; none if the batch is unknown.
    fn forest(&self, batch: &str) -> Option<Value>;
}
