//! What may go wrong with a fleet, the same for every policy.

use anyhow::bail;
use std::time::Duration;
use wornpath_sim::replay::Fleet;

/// Something that the router was not told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Disturbance {
    None,
    /// Cache events arrive a second late.
    LateEvents,
    /// A quarter of the pods are half as fast as they are said to be.
    SlowPods,
    /// All pods are half as fast as they are said to be.
    WrongProfile,
}

impl Disturbance {
    const NAMED: [(&'static str, Self); 4] = [
        ("none", Self::None),
        ("late-events", Self::LateEvents),
        ("slow-pods", Self::SlowPods),
        ("wrong-profile", Self::WrongProfile),
    ];

    pub(crate) fn parse(text: &str) -> anyhow::Result<Self> {
        match Self::NAMED.iter().find(|(name, _)| *name == text) {
            Some((_, disturbance)) => Ok(*disturbance),
            None => {
                let known: Vec<&str> = Self::NAMED.iter().map(|(name, _)| *name).collect();
                bail!("--disturb `{text}`: there are {}", known.join(", "))
            }
        }
    }

    /// The load at which the fleet is as busy as without the disturbance.
    pub(crate) fn speed_factor(self) -> f64 {
        match self {
            Self::None | Self::LateEvents => 1.0,
            Self::SlowPods => 0.875,
            Self::WrongProfile => 0.5,
        }
    }

    pub(crate) fn apply(self, fleet: &mut Fleet) {
        match self {
            Self::None => {}
            Self::LateEvents => fleet.events_delay = Duration::from_secs(1),
            Self::SlowPods => fleet.slow = (0..fleet.pods / 4).map(|pod| (pod, 2.0)).collect(),
            Self::WrongProfile => fleet.slow = (0..fleet.pods).map(|pod| (pod, 2.0)).collect(),
        }
    }
}
