//! The interface between a run and the outside: the pods that compute its lines, and the source of
//! the lines.

use crate::line::Interface;
use crate::reply::{LineReply, ReplyError};
use crate::store_error::StoreError;
use bytes::Bytes;
use std::future::Future;
use std::path::Path;
use wornpath_planner::PodLoad;

/// A request to a pod.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Outgoing {
    /// The API of the request.
    pub interface: Interface,
    /// The body, byte for byte as in the input.
    pub body: Bytes,
    /// Whether other requests wait until its prompt is computed.
    pub is_awaited: bool,
}

/// Called once the prompt has been computed; dropped otherwise.
pub type Prefilled = Box<dyn FnOnce() + Send>;

/// The health of one pod.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct EngineHealth {
    /// The load that its engine reports, if any.
    pub pod_state: Option<PodLoad>,
    /// The most offline requests that it may have in flight.
    pub ceiling: usize,
}

/// The pods of a run, by number.
pub trait LineDispatch: Send + Sync + 'static {
    /// The number of pods by now, if pods can join the run.
    fn pods(&self) -> Option<usize> {
        None
    }

    /// Sends a request to a pod and waits for the end of its response.
    fn send(
        &self,
        pod: usize,
        request: Outgoing,
        prefilled: Prefilled,
    ) -> impl Future<Output = Result<LineReply, ReplyError>> + Send;

    /// The health of a pod; none if it is unreachable.
    fn health(&self, pod: usize) -> impl Future<Output = Option<EngineHealth>> + Send;
}

/// The lines of an input.
pub trait LineSource: Send + Sync + 'static {
    /// The bytes of a line.
    ///
    /// # Errors
    /// If they cannot be read. A passing error is retried; otherwise the line fails.
    fn line(&self, line: u32) -> Result<Bytes, StoreError>;

    /// The file of the lines, if it belongs to the user: a run whose lines can no longer be read
    /// then ends, so that it can be resumed when the file is back.
    fn file(&self) -> Option<&Path> {
        None
    }
}
