//! How fast the pods are, compared with each other.

/// The speeds of a fleet: at least one pod, each of a speed above zero.
#[derive(Clone, PartialEq, Debug)]
pub struct Speeds(Vec<f64>);

/// Speeds that no fleet has.
#[derive(Clone, Copy, PartialEq, Debug, thiserror::Error)]
pub enum SpeedsError {
    /// Nobody to do the work.
    #[error("there are no pods; a plan needs at least one")]
    NoPods,
    /// Not a speed.
    #[error("the speed of pod {pod} is {speed}; it must be a number above zero, 1 for a usual pod")]
    NoSpeed {
        /// Counted from 0.
        pod: usize,
        /// As given.
        speed: f64,
    },
}

impl Speeds {
    /// Checks speeds.
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

    /// So many pods of speed one.
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

    /// How many pods there are.
    #[must_use]
    pub fn pods(&self) -> usize {
        self.0.len()
    }
}
