//! Where requests wait that cannot be bound to a pod yet.
//!
//! Binding late wins: a request that is sent to a busy pod waits there, although another pod may be
//! free first or may hold more of its prefix by then. So it waits here, and is decided again whenever
//! a pod gets room. The queue decides nothing about pods; it only says who is asked next:
//!
//! 1. the highest priority first, where waiting raises a request one priority at a time;
//! 2. in a priority, the tenant that was served least, by the work of its requests ([`fairness`]);
//! 3. of a tenant, the request that is due first by the profile's [`QueueOrder`].
//!
//! Nobody starves: every request rises to the top priority, tenants there take turns, and in a
//! tenant a request is overtaken only by those that came before it was due. The number of waiting
//! requests is bounded; when it is reached, the longest queue of the lowest priority gives way.
//!
//! A state machine: time is an argument, [`HoldingQueue::next_wakeup`] says when to come back. A
//! [`HeldRequests`] is the queue together with the decisions that let its requests go.

mod fairness;
mod held_requests;
mod rules;
#[cfg(test)]
mod tests;
mod wait_queue;

pub use held_requests::{Dequeued, HeldRequest, HeldRequests, Redecision};
pub use rules::{Priority, QueueEntry, QueueOrder, QueueRules, QueueRulesError, Tenant};
pub use wait_queue::{Enqueued, QueueFull, Ticket, WaitQueue};
