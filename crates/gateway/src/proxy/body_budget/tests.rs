//! Tests of the budget: the rule against a model, owners, threads, and bodies that wait.

use super::*;
use proptest::prelude::*;
use std::cell::Cell;
use std::net::IpAddr;
use std::rc::Rc;

const MIB: usize = 1 << 20;

fn owner(number: u8) -> Sender {
    Sender::Address(IpAddr::from([10, 0, 0, number]))
}

proptest! {
    #[test]
    fn owners_get_what_the_rule_gives_and_always_leave_room_for_one_more(
        limit in 1_usize..5_000,
        steps in proptest::collection::vec((0_u8..5, 0_usize..2_000, any::<bool>()), 0..200),
    ) {
        let mut ledger = Ledger::default();
        // Each reservation, as a naive model keeps it.
        let mut model: Vec<(u8, usize)> = Vec::new();
        for (number, bytes, is_release) in steps {
            if is_release {
                if let Some(at) = model.iter().position(|(own, _)| *own == number) {
                    let (_, bytes) = model.swap_remove(at);
                    ledger.release(&owner(number), bytes);
                }
            } else {
                let sum = |all: &mut dyn Iterator<Item = &(u8, usize)>| -> usize {
                    all.map(|(_, bytes)| bytes).sum()
                };
                let total = sum(&mut model.iter()) + bytes;
                let own = sum(&mut model.iter().filter(|(own, _)| *own == number)) + bytes;
                let expected = total <= limit && own <= limit - total;
                let taken = ledger.reserve(&owner(number), bytes, limit);
                prop_assert_eq!(taken.is_ok(), expected, "{:?}", taken);
                if expected {
                    model.push((number, bytes));
                }
            }
            let left = limit - ledger.total;
            prop_assert_eq!(ledger.total, model.iter().map(|(_, bytes)| bytes).sum::<usize>());
            // Each owner takes at most half of what the others left.
            let holders = ledger.owners.values().filter(|held| **held > 0).count();
            prop_assert!(left >= limit >> holders, "{left} of {limit} left by {holders}");
        }
        for (number, bytes) in model {
            ledger.release(&owner(number), bytes);
        }
        prop_assert_eq!(ledger.total, 0);
        prop_assert!(ledger.owners.values().all(|held| *held == 0));
    }
}

#[test]
fn one_owner_gets_half_and_another_one_half_of_the_rest() {
    let mut ledger = Ledger::default();
    assert_eq!(ledger.reserve(&owner(1), 500, 1000), Ok(()));
    let more = ledger.reserve(&owner(1), 1, 1000);
    assert_eq!(more, Err(Shortage::Share { held: 500, limit: 1000 }));
    assert_eq!(ledger.reserve(&owner(2), 250, 1000), Ok(()));
    assert!(ledger.reserve(&owner(2), 1, 1000).is_err());
    assert_eq!(ledger.reserve(&owner(3), 251, 1000), Err(Shortage::Budget { limit: 1000 }));
    assert_eq!(ledger.reserve(&owner(3), 100, 1000), Ok(()));
    // After a reload with a lower limit, what is held stays.
    assert_eq!(ledger.reserve(&owner(4), 1, 500), Err(Shortage::Budget { limit: 500 }));
    ledger.release(&owner(1), 500);
    assert_eq!(ledger.reserve(&owner(4), 50, 500), Ok(()));
}

#[test]
fn addresses_of_one_network_of_ipv6_are_one_owner_and_mapped_ones_are_ipv4() {
    let of = |text: &str| Sender::at(text.parse().unwrap());
    assert_eq!(of("2001:db8:1:2::1"), of("2001:db8:1:2:ffff::9"));
    assert_ne!(of("2001:db8:1:2::1"), of("2001:db8:1:3::1"));
    assert_eq!(of("::ffff:10.0.0.1"), of("10.0.0.1"));
    assert_ne!(of("10.0.0.1"), of("10.0.0.2"));
}

#[test]
fn threads_that_take_and_give_back_never_exceed_the_budget_and_leave_nothing() {
    const LIMIT: usize = 4 * MIB;
    let budget = Arc::<BodyBudget>::default();
    std::thread::scope(|scope| {
        for number in 0..8_u8 {
            let budget = &budget;
            scope.spawn(move || {
                let mut held = Vec::new();
                for round in 0..2_000_usize {
                    let mut reservation = BodyReservation::new(budget, owner(number % 3));
                    let length = 1 + (round * 7_919 + usize::from(number)) % (MIB / 2);
                    if reservation.try_grow(length, LIMIT).is_ok() {
                        reservation.shrink(length / 2);
                        held.push(reservation);
                    }
                    assert!(budget.held() <= LIMIT);
                    if round % 3 == 0 {
                        held.clear();
                    }
                }
            });
        }
    });
    assert_eq!(budget.held(), 0);
    assert!(budget.ledger().owners.is_empty(), "owners without bytes are forgotten");
}

#[tokio::test(start_paused = true)]
async fn a_body_waits_for_room_and_is_refused_after_two_seconds_at_most() {
    let budget = Arc::<BodyBudget>::default();
    let mut large = BodyReservation::new(&budget, owner(1));
    large.grow(4 * MIB, 4 * MIB, 8 * MIB).await.unwrap();
    let mut next = BodyReservation::new(&budget, owner(1));
    let started = Instant::now();
    let refused = next.grow(MIB, MIB, 8 * MIB).await;
    assert_eq!(refused, Err(Shortage::Share { held: 4 * MIB, limit: 8 * MIB }));
    assert!((SHORTEST_WAIT..=SHORTEST_WAIT * 2).contains(&started.elapsed()));
    assert_eq!(budget.refused(), RefusedBodies { budget: 0, share: 1, slow: 0 });
    let waits = next.grow(MIB, MIB, 8 * MIB);
    let frees = async {
        tokio::time::sleep(SHORTEST_WAIT / 2).await;
        drop(large);
    };
    let (waited, ()) = tokio::join!(waits, frees);
    assert_eq!((waited, next.bytes(), budget.held()), (Ok(()), MIB, MIB));
    assert_eq!(budget.refused().share, 1);
}

#[tokio::test(start_paused = true)]
async fn bodies_that_wait_for_each_other_do_not_all_give_up() {
    const BODIES: u8 = 64;
    const LIMIT: usize = 32 * MIB;
    let budget = Arc::<BodyBudget>::default();
    let complete = Rc::new(Cell::new(0));
    let started = Instant::now();
    let tasks = tokio::task::LocalSet::new();
    for _ in 0..BODIES {
        let budget = Arc::clone(&budget);
        let complete = Rc::clone(&complete);
        let _detached = tasks.spawn_local(async move {
            // All advance step by step, so that together they need four times what they may have.
            let mut body = BodyReservation::new(&budget, owner(1));
            for length in (1..=16).map(|step| step * UNCOUNTED) {
                tokio::task::yield_now().await;
                if length > body.bytes() && body.grow(length, MIB, LIMIT).await.is_err() {
                    return;
                }
            }
            complete.set(complete.get() + 1);
        });
    }
    tasks.await;
    assert!(complete.get() >= 16, "{} of {BODIES}", complete.get());
    assert!(complete.get() < BODIES, "they did not compete");
    assert!(started.elapsed() <= SHORTEST_WAIT * 4, "{:?}", started.elapsed());
    assert_eq!(budget.held(), 0);
}
