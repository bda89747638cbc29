//! The speeds of the pods, relative to each other.

/// The speeds of a fleet: at least one pod, each of a speed above zero.
#[derive(Clone, PartialEq, Debug)]
pub struct Speeds(Vec<f64>);

/// Speeds that no fleet can have.
#[derive(Clone, Copy, PartialEq, Debug, thiserror::Error)]
pub enum SpeedsError {
    /// The fleet is empty.
    #[error("no pods; a plan needs at least one")]
    NoPods,
    /// A speed is zero, negative, infinite or not a number.
    #[error("speed of pod {pod} is {speed}; speeds must be above zero, 1 for a typical pod")]
    NoSpeed {
        /// The pod, counted from 0.
        pod: usize,
        /// The speed as given.
        speed: f64,
    },
}

impl Speeds {
    /// A fleet with these speeds.
    ///
    /// # Errors
    /// If there are none, or one is not above zero.
    pub fn new(speeds: Vec<f64>) -> Result<Self, SpeedsError> {
        if speeds.is_empty() {
            return Err(SpeedsError::NoPods);
        }
        match speeds.iter().position(|speed| !(speed.is_finite() && *speed > 0.0)) {
            Some(pod) => Err(SpeedsError::NoSpeed { pod, speed: speeds[pod] }),
            None => Ok(Self(speeds)),
        }
    }

    /// A fleet of `pods` pods of speed one.
    ///
    /// # Errors
    /// If there are none.
    pub fn equal(pods: usize) -> Result<Self, SpeedsError> {
        Self::new(vec![1.0; pods])
    }

    /// The speed of each pod.
    #[must_use]
    pub fn all(&self) -> &[f64] {
        &self.0
    }

    /// The number of pods.
    #[must_use]
    pub fn pods(&self) -> usize {
        self.0.len()
    }
}
