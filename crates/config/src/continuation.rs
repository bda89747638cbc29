//! The settings of continuations: whether and how far broken streams go on with other pods.

/// Whether streams are continued on other pods.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ContinuationMode {
    /// If everything about them is known to stay right.
    On,
    /// Never.
    Off,
}

/// Going on with broken streams on other pods.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ContinuationSettings {
    /// Whether it is done.
    pub mode: ContinuationMode,
    /// How often for one stream.
    pub most: usize,
    /// Bytes that one stream may keep.
    pub kept: usize,
    /// Bytes that all streams may keep.
    pub memory: usize,
}

impl Default for ContinuationSettings {
    fn default() -> Self {
        Self { mode: ContinuationMode::Off, most: 2, kept: 1 << 20, memory: 256 << 20 }
    }
}
