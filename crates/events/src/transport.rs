//! The interface of event transports.

use crate::message::{Capabilities, SourceMessage, SourceQuery};
use std::sync::Arc;

/// The name of a pod, as the fleet's configuration or discovery gives it.
pub type PodName = Arc<str>;

/// What a transport delivers.
#[derive(Clone, Debug)]
pub enum SourceSignal {
    /// A message about one pod.
    Pod(PodName, SourceMessage),
    /// The same message about every pod that this transport has delivered messages of: a broker
    /// connects or disconnects.
    AllPods(SourceMessage),
}

/// Delivers engines' messages, and carries queries back to them.
///
/// A transport reconnects by itself, with backoff and jitter. It decodes, because each transport
/// has its own framing, and leaves all decisions about consistency to the pod's
/// [`Feed`](crate::Feed).
pub trait Transport: Send {
    /// Where the events come from, as the status shows it.
    fn name(&self) -> &str;

    /// Which queries it can carry.
    fn capabilities(&self) -> Capabilities;

    /// Waits for the next signal. Cancel-safe: dropping the future loses nothing.
    fn next(&mut self) -> impl Future<Output = SourceSignal> + Send;

    /// Accepts a query about a pod. It is sent, and the reply delivered, by [`Transport::next`].
    fn query(&mut self, pod: &PodName, query: SourceQuery);
}
