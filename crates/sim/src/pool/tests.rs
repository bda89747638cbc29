//! The pool against a naive model that keeps lists and searches them.

use super::*;
use proptest::prelude::*;

/// The free blocks in eviction order, and the blocks in use.
#[derive(Default)]
struct Naive {
    free: Vec<FreeBlock>,
    used: Vec<UsedBlock>,
}

struct FreeBlock {
    id: usize,
    hash: Option<u64>,
}

struct UsedBlock {
    id: usize,
    hash: Option<u64>,
    references: u32,
}

#[derive(Clone, Debug)]
enum Action {
    Allocate,
    Register(usize, u64),
    Release(usize),
    Acquire(u64),
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        3 => Just(Action::Allocate),
        3 => (0..8_usize, 0..6_u64).prop_map(|(which, hash)| Action::Register(which, hash)),
        3 => (0..8_usize).prop_map(Action::Release),
        2 => (0..6_u64).prop_map(Action::Acquire),
    ]
}

impl Naive {
    fn holds(&self, hash: u64) -> bool {
        let free = self.free.iter().map(|block| block.hash);
        free.chain(self.used.iter().map(|block| block.hash)).any(|found| found == Some(hash))
    }
}

proptest! {
    #[test]
    fn blocks_are_conserved_and_leave_in_the_order_of_a_naive_queue(
        actions in proptest::collection::vec(action(), 1..200)
    ) {
        const CAPACITY: usize = 5;
        let mut pool = BlockPool::new(CAPACITY);
        let mut naive = Naive::default();
        for action in actions {
            match action {
                Action::Allocate => {
                    let mut evicted = Vec::new();
                    let allocated = pool.allocate(&mut evicted);
                    let unhashed = naive.free.first().is_some_and(|block| block.hash.is_none());
                    let total = naive.free.len() + naive.used.len();
                    if !unhashed && total < CAPACITY {
                        prop_assert_eq!(allocated, Some(BlockId(total as u32)));
                        prop_assert!(evicted.is_empty());
                        naive.used.push(UsedBlock { id: total, hash: None, references: 1 });
                    } else if naive.free.is_empty() {
                        prop_assert_eq!(allocated, None);
                    } else {
                        let FreeBlock { id, hash } = naive.free.remove(0);
                        prop_assert_eq!(allocated, Some(BlockId(id as u32)));
                        prop_assert_eq!(evicted, hash.map(EngineHash).into_iter().collect::<Vec<_>>());
                        naive.used.push(UsedBlock { id, hash: None, references: 1 });
                    }
                }
                Action::Register(which, hash) => {
                    let mut unhashed = naive.used.iter_mut().filter(|used| used.hash.is_none());
                    if let Some(block) = unhashed.nth(which) {
                        block.hash = Some(hash);
                        pool.register(BlockId(block.id as u32), EngineHash(hash));
                    }
                }
                Action::Release(which) => {
                    if which < naive.used.len() {
                        let block = &mut naive.used[which];
                        pool.release(BlockId(block.id as u32));
                        block.references -= 1;
                        if block.references == 0 {
                            let UsedBlock { id, hash, .. } = naive.used.remove(which);
                            let position = if hash.is_some() { naive.free.len() } else { 0 };
                            naive.free.insert(position, FreeBlock { id, hash });
                        }
                    }
                }
                Action::Acquire(hash) => {
                    let found = pool.find(EngineHash(hash));
                    prop_assert_eq!(found.is_some(), naive.holds(hash));
                    if let Some(block) = found {
                        let id = block.0 as usize;
                        pool.acquire(block);
                        if let Some(position) = naive.free.iter().position(|free| free.id == id) {
                            let held = naive.free.remove(position).hash;
                            prop_assert_eq!(held, Some(hash));
                            naive.used.push(UsedBlock { id, hash: held, references: 1 });
                        } else {
                            let used = naive.used.iter_mut().find(|used| used.id == id).unwrap();
                            prop_assert_eq!(used.hash, Some(hash));
                            used.references += 1;
                        }
                    }
                }
            }
            prop_assert_eq!(pool.in_use(), naive.used.len());
            prop_assert_eq!(pool.available(), CAPACITY - naive.used.len());
        }
    }
}

#[test]
fn a_requests_tail_is_evicted_before_its_head_and_duplicates_one_by_one() {
    let mut pool = BlockPool::new(4);
    let mut evicted = Vec::new();
    for hash in [1, 2, 1, 2] {
        let block = pool.allocate(&mut evicted).unwrap();
        pool.register(block, EngineHash(hash));
    }
    for block in [1, 0, 3, 2] {
        pool.release(BlockId(block));
    }
    assert_eq!(pool.find(EngineHash(2)), Some(BlockId(1)));
    let order: Vec<_> = (0..4)
        .map(|_| {
            evicted.clear();
            pool.allocate(&mut evicted).unwrap();
            evicted[0].0
        })
        .collect();
    assert_eq!(order, [2, 1, 2, 1]);
    assert_eq!(pool.find(EngineHash(1)), None);
    assert_eq!(pool.allocate(&mut evicted), None);
}

#[test]
fn only_an_idle_pool_is_cleared() {
    let mut pool = BlockPool::new(2);
    let block = pool.allocate(&mut Vec::new()).unwrap();
    pool.register(block, EngineHash(7));
    assert_eq!(pool.clear(), Err(InUse(1)));
    pool.release(block);
    assert_eq!(pool.clear(), Ok(()));
    assert_eq!(pool.find(EngineHash(7)), None);
}
