//! Disturbances of a fleet, the same for every policy.

use anyhow::bail;
use std::time::Duration;
use wornpath_sim::replay::{ReplayFleet, Trace, TraceStart};

/// A disturbance of a fleet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Disturbance {
    None,
    /// Cache events arrive a second late.
    LateEvents,
    /// A quarter of the pods are half as fast as the others, unknown to the routers.
    SlowPods,
    /// The same, known to the routers.
    KnownSlowPods,
    /// A pod is drained in the middle of the trace.
    PodLeaves,
    /// All pods are half as fast as their profile.
    WrongProfile,
    /// Two routers share the requests and see only what they sent themselves.
    TwoRouters,
    /// A quarter of the KV cache, with host memory for as much again and a disk for four times as
    /// much, so that most of what is cached must be loaded.
    Tiers,
}

impl Disturbance {
    pub(crate) const NAMED: [(&'static str, Self); 8] = [
        ("none", Self::None),
        ("late-events", Self::LateEvents),
        ("slow-pods", Self::SlowPods),
        ("known-slow-pods", Self::KnownSlowPods),
        ("pod-leaves", Self::PodLeaves),
        ("wrong-profile", Self::WrongProfile),
        ("two-routers", Self::TwoRouters),
        ("tiers", Self::Tiers),
    ];

    pub(crate) fn parse(text: &str) -> anyhow::Result<Self> {
        match Self::NAMED.iter().find(|(name, _)| *name == text) {
            Some((_, disturbance)) => Ok(*disturbance),
            None => {
                let known: Vec<&str> = Self::NAMED.iter().map(|(name, _)| *name).collect();
                bail!(
                    "--part `{text}`: unknown; available: {}, queue, random, routers",
                    known.join(", ")
                )
            }
        }
    }

    pub(crate) fn name(self) -> &'static str {
        Self::NAMED.iter().find(|(_, known)| *known == self).map_or("", |(name, _)| name)
    }

    /// The load at which the fleet is about as busy as without the disturbance.
    pub(crate) fn speed_factor(self) -> f64 {
        match self {
            Self::None | Self::LateEvents | Self::TwoRouters => 1.0,
            Self::SlowPods | Self::KnownSlowPods | Self::PodLeaves => 0.875,
            Self::WrongProfile | Self::Tiers => 0.5,
        }
    }

    pub(crate) fn apply(self, fleet: &mut ReplayFleet, traffic: &Trace) {
        let slow = |pods: usize| (0..pods).map(|pod| (pod, 2.0)).collect::<Vec<_>>();
        match self {
            Self::None => {}
            Self::LateEvents => fleet.events_delay = Duration::from_secs(1),
            Self::SlowPods => fleet.slow = slow(fleet.pods / 4),
            Self::KnownSlowPods => {
                fleet.slow = slow(fleet.pods / 4);
                fleet.known_slow.clone_from(&fleet.slow);
            }
            Self::PodLeaves => fleet.drained = Some((0, last_arrival(traffic) / 2)),
            Self::WrongProfile => fleet.slow = slow(fleet.pods),
            Self::TwoRouters => fleet.routers = 2,
            Self::Tiers => {
                let kv_tokens = fleet.engine.kv_tokens() / 4;
                fleet.kv_tokens = Some(kv_tokens);
                fleet.host_tokens = kv_tokens;
                fleet.disk_tokens = 4 * kv_tokens;
            }
        }
    }
}

/// When the last request, or the last session, begins.
fn last_arrival(traffic: &Trace) -> Duration {
    let start = |start: &TraceStart| match start {
        TraceStart::At(time) => *time,
        TraceStart::After { .. } => Duration::ZERO,
    };
    traffic.turns.iter().map(|turn| start(&turn.start)).max().unwrap_or_default()
}
