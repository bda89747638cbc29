//! The one interface of everything that carries events.

use crate::message::{Capabilities, SourceMessage, SourceQuery};
use std::sync::Arc;

/// The name of a pod, as the fleet's configuration or discovery gave it.
pub type PodName = Arc<str>;

/// What a transport hears.
#[derive(Clone, Debug)]
pub enum SourceSignal {
    /// Something about one pod.
    Of(PodName, SourceMessage),
    /// The same about every pod that this transport has spoken of: a broker that comes or goes.
    OfAll(SourceMessage),
}

/// Carries what engines say, and questions back to them.
///
/// A transport connects by itself, again and again, with a pause that grows and is not the same for all.
/// It decodes, since what it carries has its own form; it decides nothing about consistency.
pub trait Transport: Send {
    /// Where it gets its events, for people who read the status.
    fn name(&self) -> &str;

    /// What can be asked over it.
    fn abilities(&self) -> Capabilities;

    /// Waits for the next thing said. Dropping the future before its end loses nothing.
    fn next(&mut self) -> impl Future<Output = SourceSignal> + Send;

    /// Takes a question about a pod. It is sent, and answered, as [`Transport::next`] is called.
    fn ask(&mut self, pod: &PodName, ask: SourceQuery);
}
