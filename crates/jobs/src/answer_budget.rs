//! One budget of bytes for the answers that the batches of a process have in memory.
//!
//! An engine can send answers of any length, and many are read at once. So an answer takes bytes
//! from the budget as it grows, and keeps them until its record is written. Answers that all wait
//! for each other's bytes would wait forever. Therefore one half is a pool that all share, and the
//! other half belongs to one answer at a time: the one that has it needs no bytes of the pool and
//! always comes to its end, and then the next one has it.
//!
//! Limit: an answer has at most half of the budget; a longer one fails.

use std::sync::Arc;
use tokio::sync::{Mutex, OwnedMutexGuard, OwnedSemaphorePermit, Semaphore};

/// The unit in which bytes are taken: most answers need one or two.
const UNIT: usize = 4 << 10;

/// A budget of bytes.
#[derive(Clone, Debug)]
pub struct AnswerBudget {
    total: usize,
    /// Units of one half.
    pool: Arc<Semaphore>,
    /// The other half.
    reserve: Arc<Mutex<()>>,
}

/// An answer is longer than an answer may be.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "response is longer than {most} bytes, half of the {total} bytes for responses in memory; ask \
     for less, or raise `answers` of `batch`"
)]
pub(crate) struct AnswerTooLarge {
    most: usize,
    total: usize,
}

impl AnswerBudget {
    /// The budget without a configuration.
    pub const DEFAULT: usize = 256 << 20;

    /// A budget of so many bytes.
    #[must_use]
    pub fn new(total: usize) -> Self {
        let units = (total / 2 / UNIT).clamp(1, Semaphore::MAX_PERMITS);
        Self { total, pool: Arc::new(Semaphore::new(units)), reserve: Arc::default() }
    }

    /// Begins an answer, which has no bytes yet.
    pub(crate) fn begin(&self) -> AnswerBytes<'_> {
        AnswerBytes { budget: self, bytes: 0, held: HeldBytes { pooled: None, reserve: None } }
    }

    /// The most bytes of one answer.
    pub(crate) const fn most(&self) -> usize {
        self.total / 2
    }
}

impl Default for AnswerBudget {
    fn default() -> Self {
        Self::new(Self::DEFAULT)
    }
}

/// The bytes of an answer that is being read.
#[derive(Debug)]
pub(crate) struct AnswerBytes<'a> {
    budget: &'a AnswerBudget,
    bytes: usize,
    held: HeldBytes,
}

#[derive(Debug)]
struct HeldBytes {
    pooled: Option<OwnedSemaphorePermit>,
    reserve: Option<OwnedMutexGuard<()>>,
}

impl AnswerBytes<'_> {
    /// Takes more bytes; waits until there are some.
    ///
    /// # Errors
    /// If the answer is too long.
    pub(crate) async fn grow(&mut self, bytes: usize) -> Result<(), AnswerTooLarge> {
        let most = self.budget.most();
        self.bytes = self.bytes.saturating_add(bytes);
        if self.bytes > most {
            return Err(AnswerTooLarge { most, total: self.budget.total });
        }
        if self.held.reserve.is_some() {
            return Ok(());
        }
        let has = self.held.pooled.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        let units = self.bytes.div_ceil(UNIT).saturating_sub(has) as u32;
        if units == 0 {
            return Ok(());
        }
        let pool = Arc::clone(&self.budget.pool);
        let reserve = Arc::clone(&self.budget.reserve);
        tokio::select! {
            biased;
            Ok(more) = pool.acquire_many_owned(units) => match &mut self.held.pooled {
                Some(pooled) => pooled.merge(more),
                none => *none = Some(more),
            },
            whole = reserve.lock_owned() => self.held.reserve = Some(whole),
        }
        Ok(())
    }

    /// The answer is read, and has so many bytes in memory.
    pub(crate) fn finish(mut self, bytes: usize) -> AnswerHold {
        if let Some(pooled) = &mut self.held.pooled {
            let surplus = pooled.num_permits().saturating_sub(bytes.div_ceil(UNIT));
            drop(pooled.split(surplus));
        }
        AnswerHold::on(self.held)
    }
}

/// What is released when the last clone is dropped.
trait Held: Send + Sync + std::fmt::Debug {}
impl<T: Send + Sync + std::fmt::Debug> Held for T {}

/// The bytes of an answer in memory, until the last clone is dropped. All holds are equal: an
/// answer is the same wherever it is.
#[derive(Clone, Debug, Default)]
pub struct AnswerHold {
    _held: Option<Arc<dyn Held>>,
}

impl AnswerHold {
    /// A hold on something that its drop releases.
    pub(crate) fn on(held: impl Send + Sync + std::fmt::Debug + 'static) -> Self {
        Self { _held: Some(Arc::new(held)) }
    }
}

impl PartialEq for AnswerHold {
    fn eq(&self, _other: &Self) -> bool {
        true
    }
}

impl Eq for AnswerHold {}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
    use std::time::Duration;
    use tokio::time::{sleep, timeout};

    const MIB: usize = 1 << 20;

    async fn read(budget: &AnswerBudget, bytes: usize) -> Result<AnswerHold, AnswerTooLarge> {
        let mut answer = budget.begin();
        for _ in 0..bytes / UNIT {
            answer.grow(UNIT).await?;
        }
        Ok(answer.finish(bytes))
    }

    #[tokio::test]
    async fn an_answer_longer_than_half_of_the_budget_fails_and_gives_its_bytes_back() {
        let budget = AnswerBudget::new(2 * MIB);
        let error = read(&budget, MIB + UNIT).await.unwrap_err().to_string();
        assert!(error.starts_with("response is longer than 1048576 bytes, half of the"), "{error}");
        assert!(error.ends_with("raise `answers` of `batch`"), "{error}");
        let kept = read(&budget, MIB).await.unwrap();
        assert_eq!(budget.pool.available_permits(), 0);
        drop(kept);
        assert_eq!(budget.pool.available_permits(), MIB / UNIT);
    }

    #[tokio::test(start_paused = true)]
    async fn answers_that_grow_at_once_all_come_to_their_end_within_the_budget() {
        let budget = AnswerBudget::new(2 * MIB);
        let in_memory = Arc::<AtomicUsize>::default();
        let most = Arc::<AtomicUsize>::default();
        let mut all = tokio::task::JoinSet::new();
        for number in 0..40 {
            let budget = budget.clone();
            let in_memory = Arc::clone(&in_memory);
            let most = Arc::clone(&most);
            all.spawn(async move {
                let bytes = if number % 7 == 0 { MIB } else { number * 6 * UNIT };
                let mut answer = budget.begin();
                for _ in 0..bytes / UNIT {
                    answer.grow(UNIT).await.unwrap();
                    most.fetch_max(in_memory.fetch_add(UNIT, Relaxed) + UNIT, Relaxed);
                    sleep(Duration::from_millis(1)).await;
                }
                let hold = answer.finish(bytes);
                // Until it is written.
                sleep(Duration::from_millis(100)).await;
                in_memory.fetch_sub(bytes, Relaxed);
                drop(hold);
            });
        }
        let ended = timeout(Duration::from_secs(600), async {
            while let Some(ended) = all.join_next().await {
                ended.unwrap();
            }
        });
        ended.await.expect("no answer waits forever");
        let most = most.load(Relaxed);
        assert!((MIB..=2 * MIB).contains(&most), "{most}");
        assert_eq!(budget.pool.available_permits(), MIB / UNIT);
    }

    #[tokio::test]
    async fn an_answer_that_was_a_stream_keeps_only_what_is_left_of_it() {
        let budget = AnswerBudget::new(2 * MIB);
        let mut answer = budget.begin();
        answer.grow(MIB / 2).await.unwrap();
        let hold = answer.finish(UNIT + 1);
        assert_eq!(budget.pool.available_permits(), MIB / UNIT - 2);
        drop(hold);
        assert_eq!(budget.pool.available_permits(), MIB / UNIT);
    }
}
