//! The scenarios in which every contestant is measured.

use std::time::Duration;

use crate::contestant::Kind;
use crate::engine::Pace;
use crate::load::Window;
use crate::prompts::Delivery;

/// Size of the prompt, kind of answer, number of connections and pace of the engines.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Scenario {
    pub(crate) bytes: usize,
    pub(crate) delivery: Delivery,
    pub(crate) connections: usize,
    pub(crate) pace: Pace,
}

impl Scenario {
    /// All scenarios.
    pub(crate) fn all() -> Vec<Self> {
        let mut scenarios = Vec::new();
        for bytes in [1024, 32_768] {
            for delivery in [Delivery::Whole, Delivery::Stream] {
                for connections in [1, 32] {
                    scenarios.push(Self { bytes, delivery, connections, pace: Pace::NONE });
                }
            }
        }
        let delivery = Delivery::Stream;
        scenarios.push(Self { bytes: 1024, delivery, connections: 64, pace: Pace::ENGINE });
        scenarios
    }

    pub(crate) const fn is_paced(&self) -> bool {
        !self.pace.first.is_zero()
    }

    /// Whether answers are not streamed.
    pub(crate) const fn is_whole(&self) -> bool {
        matches!(self.delivery, Delivery::Whole)
    }

    pub(crate) fn name(&self) -> String {
        let kilobytes = self.bytes / 1024;
        let delivery = match (self.is_paced(), self.delivery) {
            (true, _) => "paced stream",
            (false, Delivery::Stream) => "stream",
            (false, Delivery::Whole) => "whole",
        };
        let connections = self.connections;
        let plural = if connections == 1 { "" } else { "s" };
        format!("{kilobytes} KB, {delivery}, {connections} connection{plural}")
    }

    /// Whether this contestant is measured in it: with 256 pods only one of the scenarios is.
    pub(crate) const fn is_for(&self, kind: Kind) -> bool {
        match kind {
            Kind::ManyPods => self.bytes == 1024 && self.is_whole(),
            _ => true,
        }
    }

    /// The times of a measurement. A paced stream takes 175 ms, so it needs longer.
    pub(crate) fn window(&self, measured: Duration) -> Window {
        if self.is_paced() {
            return Window { warm: Duration::from_millis(400), measured: measured * 3 };
        }
        Window { warm: Duration::from_millis(150), measured }
    }
}
