//! The pool against a naive one that keeps lists and searches them.

use super::*;
use proptest::prelude::*;

/// Blocks as a list in the order in which they go; what is in use stands beside it.
#[derive(Default)]
struct Naive {
    free: Vec<(usize, Option<u64>)>,
    used: Vec<(usize, Option<u64>, u32)>,
}

#[derive(Clone, Debug)]
enum Action {
    Allocate,
    Name(usize, u64),
    Release(usize),
    Take(u64),
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        3 => Just(Action::Allocate),
        3 => (0..8_usize, 0..6_u64).prop_map(|(which, name)| Action::Name(which, name)),
        3 => (0..8_usize).prop_map(Action::Release),
        2 => (0..6_u64).prop_map(Action::Take),
    ]
}

impl Naive {
    fn holds(&self, name: u64) -> usize {
        let names = self.free.iter().map(|(_, name)| *name);
        names.chain(self.used.iter().map(|(_, name, _)| *name)).filter(|n| *n == Some(name)).count()
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
        let mut handles: Vec<BlockId> = Vec::new();
        for action in actions {
            match action {
                Action::Allocate => {
                    let mut evicted = Vec::new();
                    let got = pool.allocate(&mut evicted);
                    let nameless = naive.free.first().is_some_and(|(_, name)| name.is_none());
                    let total = naive.free.len() + naive.used.len();
                    if !nameless && total < CAPACITY {
                        prop_assert_eq!(got, Some(BlockId(total as u32)));
                        prop_assert!(evicted.is_empty());
                        naive.used.push((total, None, 1));
                    } else if naive.free.is_empty() {
                        prop_assert_eq!(got, None);
                    } else {
                        let (id, name) = naive.free.remove(0);
                        prop_assert_eq!(got, Some(BlockId(id as u32)));
                        prop_assert_eq!(evicted, name.map(EngineHash).into_iter().collect::<Vec<_>>());
                        naive.used.push((id, None, 1));
                    }
                    handles.extend(got);
                }
                Action::Name(which, name) => {
                    let unnamed = naive.used.iter_mut().filter(|used| used.1.is_none()).nth(which);
                    if let Some(block) = unnamed {
                        block.1 = Some(name);
                        pool.name(BlockId(block.0 as u32), EngineHash(name));
                    }
                }
                Action::Release(which) => {
                    if which < naive.used.len() {
                        let block = &mut naive.used[which];
                        pool.release(BlockId(block.0 as u32));
                        block.2 -= 1;
                        if block.2 == 0 {
                            let (id, name, _) = naive.used.remove(which);
                            let place = if name.is_some() { naive.free.len() } else { 0 };
                            naive.free.insert(place, (id, name));
                        }
                    }
                }
                Action::Take(name) => {
                    let found = pool.find(EngineHash(name));
                    prop_assert_eq!(found.is_some(), naive.holds(name) > 0);
                    if let Some(block) = found {
                        let id = block.0 as usize;
                        pool.take(block);
                        if let Some(place) = naive.free.iter().position(|free| free.0 == id) {
                            let (_, held) = naive.free.remove(place);
                            prop_assert_eq!(held, Some(name));
                            naive.used.push((id, held, 1));
                        } else {
                            let used = naive.used.iter_mut().find(|used| used.0 == id).unwrap();
                            prop_assert_eq!(used.1, Some(name));
                            used.2 += 1;
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
fn a_requests_tail_goes_before_its_head_and_twins_go_one_by_one() {
    let mut pool = BlockPool::new(4);
    let mut evicted = Vec::new();
    for name in [1, 2, 1, 2] {
        let block = pool.allocate(&mut evicted).unwrap();
        pool.name(block, EngineHash(name));
    }
    for block in [1, 0, 3, 2] {
        pool.release(BlockId(block));
    }
    assert_eq!(pool.find(EngineHash(2)), Some(BlockId(1)));
    let going: Vec<_> = (0..4)
        .map(|_| {
            evicted.clear();
            pool.allocate(&mut evicted).unwrap();
            evicted[0].0
        })
        .collect();
    assert_eq!(going, [2, 1, 2, 1]);
    assert_eq!(pool.find(EngineHash(1)), None);
    assert_eq!(pool.allocate(&mut evicted), None);
}

#[test]
fn only_an_idle_pool_is_cleared() {
    let mut pool = BlockPool::new(2);
    let block = pool.allocate(&mut Vec::new()).unwrap();
    pool.name(block, EngineHash(7));
    assert_eq!(pool.clear(), Err(InUse(1)));
    pool.release(block);
    assert_eq!(pool.clear(), Ok(()));
    assert_eq!(pool.find(EngineHash(7)), None);
}
