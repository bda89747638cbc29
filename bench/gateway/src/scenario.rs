//! The situations that everybody is measured in.

use std::time::Duration;

use crate::contestant::Kind;
use crate::engine::Pace;
use crate::load::Window;
use crate::prompts::Delivery;

/// One situation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Cell {
    pub(crate) bytes: usize,
    pub(crate) delivery: Delivery,
    pub(crate) connections: usize,
    pub(crate) pace: Pace,
}

impl Cell {
    /// All of them.
    pub(crate) fn all() -> Vec<Self> {
        let mut cells = Vec::new();
        for bytes in [1024, 32_768] {
            for delivery in [Delivery::Whole, Delivery::Stream] {
                for connections in [1, 32] {
                    cells.push(Self { bytes, delivery, connections, pace: Pace::NONE });
                }
            }
        }
        let delivery = Delivery::Stream;
        cells.push(Self { bytes: 1024, delivery, connections: 64, pace: Pace::ENGINE });
        cells
    }

    pub(crate) const fn is_paced(&self) -> bool {
        !self.pace.first.is_zero()
    }

    /// Whether answers come in one piece.
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

    /// Whether it says anything about this contestant that another cell does not.
    pub(crate) const fn is_for(&self, kind: Kind) -> bool {
        match kind {
            Kind::ManyPods => self.bytes == 1024 && self.is_whole(),
            _ => true,
        }
    }

    /// A paced stream takes 175 ms, so it needs longer.
    pub(crate) fn window(&self, measured: Duration) -> Window {
        if self.is_paced() {
            return Window { warm: Duration::from_millis(400), measured: measured * 3 };
        }
        Window { warm: Duration::from_millis(150), measured }
    }
}
