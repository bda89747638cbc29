//! How many requests offline work may have on a pod beside clients' own.
//!
//! Every request that decodes slows a client's, and every prompt that is computed makes one wait for a step's end. So
//! offline work leaves as soon as a client comes, and comes back only after a while without any: clients' requests come
//! in bursts, and a pod that has none at the moment will soon have the next. One request stays, so that nothing
//! stands still for ever; its prompt is computed during a small part of its time.
//!
//! The limit of this: a client who comes after a long silence finds a full pod.

/// Offline requests beside a client's.
const FEW: usize = 4;
/// Looks without a client before there are more.
const QUIET: usize = 40;
/// How many of those the first look counts for: work that begins on idle pods need not wait for long.
const HEAD_START: usize = QUIET - 2;

/// How many offline requests one pod may have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Courtesy {
    most: usize,
    ceiling: usize,
    /// Looks without a client.
    quiet: usize,
}

impl Courtesy {
    /// For a pod that may have `most` when no client wants it.
    #[must_use]
    pub fn new(most: usize) -> Self {
        Self { most, ceiling: most.min(FEW), quiet: HEAD_START }
    }

    /// Takes in how many requests of clients the pod has; to be called about twice a second.
    pub fn observe(&mut self, online: usize) {
        if let Some(few) = FEW.checked_div(online) {
            (self.ceiling, self.quiet) = (few.clamp(1, self.most), 0);
            return;
        }
        self.quiet += 1;
        if self.quiet > QUIET {
            self.ceiling = (2 * self.ceiling).min(self.most);
        }
    }

    /// The most offline requests at once.
    #[must_use]
    pub const fn ceiling(&self) -> usize {
        self.ceiling
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_leaves_at_once_and_comes_back_after_a_while() {
        let mut courtesy = Courtesy::new(100);
        let mut seen = |online| {
            courtesy.observe(online);
            courtesy.ceiling()
        };
        assert_eq!([0; 8].map(&mut seen), [4, 4, 8, 16, 32, 64, 100, 100], "nobody is there");
        assert_eq!([1, 2, 3, 20].map(&mut seen), [4, 2, 1, 1]);
        assert_eq!([0; QUIET].map(&mut seen), [1; QUIET], "somebody may come");
        assert_eq!([0, 0, 0, 1].map(&mut seen), [2, 4, 8, 4]);
    }
}
