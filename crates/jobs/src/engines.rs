//! Whom a runner sends requests to: the seam between its decisions and the network.

use crate::line::Interface;
use crate::problem::StoreError;
use crate::reply::{LineReply, ReplyError};
use bytes::Bytes;
use std::future::Future;
use std::path::Path;
use wornpath_planner::PodLoad;

/// A request on its way.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Outgoing {
    /// What it is for.
    pub interface: Interface,
    /// Its body, as its owner wrote it.
    pub body: Bytes,
    /// Whether somebody waits to be told when its prompt has been computed.
    pub is_awaited: bool,
}

/// Called once the prompt has been computed; dropped otherwise.
pub type Prefilled = Box<dyn FnOnce() + Send>;

/// How one pod is.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct EngineHealth {
    /// What its engine says, if it says anything.
    pub vitals: Option<PodLoad>,
    /// How many offline requests it may have at most.
    pub ceiling: usize,
}

/// Pods, by number.
pub trait LineDispatch: Send + Sync + 'static {
    /// Sends a request to a pod and waits for the end of its answer.
    fn send(
        &self,
        pod: usize,
        request: Outgoing,
        prefilled: Prefilled,
    ) -> impl Future<Output = Result<LineReply, ReplyError>> + Send;

    /// How a pod is; none if it is not there.
    fn health(&self, pod: usize) -> impl Future<Output = Option<EngineHealth>> + Send;
}

/// Where the lines of an input come from.
pub trait CapacitySource: Send + Sync + 'static {
    /// The bytes of a line.
    ///
    /// # Errors
    /// If they cannot be read: for now, which is waited for, or ever, and then the line fails.
    fn line(&self, line: u32) -> Result<Bytes, StoreError>;

    /// The file that they are in, if it is its owner's: a run whose lines cannot be read any more ends then, so that they
    /// can be run when it is there again.
    fn file(&self) -> Option<&Path> {
        None
    }
}
