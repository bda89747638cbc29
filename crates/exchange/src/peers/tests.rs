//! Updates that are lost, doubled and shuffled.

use super::*;
use crate::outbox::Outbox;
use proptest::prelude::*;

const PODS: [&str; 3] = ["a", "b", "c"];

fn origin(router: u64, started: u64) -> Origin {
    Origin { router: RouterId(router), started }
}

fn load(requests: u32) -> RouterLoad {
    RouterLoad { requests, prefill_tokens: 100 * u64::from(requests), ..RouterLoad::default() }
}

/// What a router with so many requests on each pod says; no pod with none of them.
fn reports(requests: [Option<u32>; 3]) -> Vec<(&'static str, PodReport)> {
    let report = |requests| PodReport { load: load(requests), ..PodReport::default() };
    let all = PODS.into_iter().zip(requests);
    all.filter_map(|(pod, requests)| Some((pod, report(requests?)))).collect()
}

fn tenant(in_flight: u32, requests: u64) -> TenantReport {
    TenantReport {
        in_flight,
        requests,
        requests_left: Some(60 - requests as i64),
        ..TenantReport::default()
    }
}

/// All updates of a router whose load on its pods changes, and what it is at the end. After each
/// change there is also the whole state.
fn history(router: Origin, steps: &[[Option<u32>; 3]]) -> (Vec<Update>, Outbox) {
    let mut outbox = Outbox::new(router);
    let mut updates = Vec::new();
    for (requests, step) in (1..).zip(steps) {
        let tenants = [("t", tenant(step[0].unwrap_or(0), requests))];
        let changes = outbox.changes(reports(*step).into_iter(), tenants.into_iter(), Vec::new());
        updates.extend(changes);
        updates.push(outbox.full());
    }
    (updates, outbox)
}

fn steps() -> impl Strategy<Value = Vec<[Option<u32>; 3]>> {
    prop::collection::vec(prop::array::uniform3(prop::option::of(0..4_u32)), 1..12)
}

proptest! {
    /// The last updates may come first, and each may come twice. Of those that are lost, a full
    /// one makes up.
    #[test]
    fn updates_in_any_order_give_the_state_that_was_last_said(
        first in steps(),
        second in steps(),
        order in prop::collection::vec(any::<(prop::sample::Index, bool)>(), 0..60),
    ) {
        let now = Moment::from_secs(1);
        let (mut updates, one) = history(origin(1, 5), &first);
        let (others, other) = history(origin(2, 5), &second);
        updates.extend(others);
        let mut peers = Peers::new(RouterId(9));
        for (at, takes) in order {
            if updates.is_empty() {
                break;
            }
            let at = at.index(updates.len());
            let update = if takes { updates.swap_remove(at) } else { updates[at].clone() };
            peers.hear(update, now);
        }
        // The state at the end arrives at last, and what is late after it changes nothing.
        peers.hear(one.full(), now);
        peers.hear(other.full(), now);
        for update in updates {
            peers.hear(update, now);
        }
        let last = |steps: &[[Option<u32>; 3]], pod: usize| {
            steps.last().and_then(|step| step[pod]).unwrap_or(0)
        };
        for (at, pod) in PODS.into_iter().enumerate() {
            prop_assert_eq!(peers.load(pod), load(last(&first, at) + last(&second, at)), "{}", pod);
        }
        prop_assert_eq!(peers.in_flight("t"), last(&first, 0) + last(&second, 0));
    }

    /// Without any full update: each change is heard once, in any order.
    #[test]
    fn changes_alone_are_enough_in_any_order(
        steps in steps(),
        order in prop::collection::vec(any::<prop::sample::Index>(), 12),
    ) {
        let (mut updates, _) = history(origin(1, 5), &steps);
        updates.retain(|update| update.scope == Scope::Changes);
        let mut peers = Peers::new(RouterId(9));
        for at in order {
            if !updates.is_empty() {
                let update = updates.swap_remove(at.index(updates.len()));
                peers.hear(update, Moment::ZERO);
            }
        }
        prop_assert!(updates.is_empty());
        for (at, pod) in PODS.into_iter().enumerate() {
            let last = steps.last().and_then(|step| step[at]).unwrap_or(0);
            prop_assert_eq!(peers.load(pod), load(last), "{}", pod);
        }
    }

    /// What is taken as a change adds up to what the peers hold.
    #[test]
    fn the_changes_that_are_taken_are_the_state(
        steps in steps(),
        is_forgotten in any::<bool>(),
    ) {
        let mut applied = HashMap::new();
        let mut peers = Peers::new(RouterId(9));
        let mut apply = |peers: &mut Peers| {
            for change in peers.take_pods() {
                applied.insert(change.pod, change.load);
            }
            applied.clone()
        };
        for update in history(origin(1, 5), &steps).0 {
            peers.hear(update, Moment::ZERO);
            apply(&mut peers);
        }
        if is_forgotten {
            let left = peers.forget(Moment::ZERO + FORGOTTEN_AFTER);
            prop_assert_eq!(left, [(origin(1, 5), Left::Silent)]);
        }
        for (pod, load) in apply(&mut peers) {
            prop_assert_eq!(load, peers.load(&pod));
            prop_assert!(!is_forgotten || load == RouterLoad::default());
        }
    }
}

#[test]
fn a_silent_router_is_forgotten_after_two_seconds_and_a_lost_one_sooner() {
    let mut peers = Peers::new(RouterId(9));
    let second = Moment::from_secs(1);
    for router in [1, 2, 3] {
        let (updates, _) = history(origin(router, 5), &[[Some(1), None, None]]);
        for update in updates {
            peers.hear(update, second);
        }
    }
    assert_eq!((peers.load("a"), peers.routers().len()), (load(3), 3));
    peers.disconnected(RouterId(2), second);
    peers.disconnected(RouterId(3), second);
    let mut alive = Outbox::new(origin(3, 5));
    alive.sign_of_life();
    peers.hear(alive.sign_of_life(), second + Duration::from_millis(100));
    assert_eq!(peers.next_forgotten(), Some(second + LOST_AFTER));
    assert_eq!(peers.forget(second + Duration::from_millis(499)), []);
    let left = peers.forget(second + LOST_AFTER);
    assert_eq!(left, [(origin(2, 5), Left::Disconnected)], "3 has come back");
    assert_eq!(peers.forget(second + Duration::from_millis(1999)), []);
    assert_eq!(peers.forget(second + FORGOTTEN_AFTER), [(origin(1, 5), Left::Silent)]);
    assert_eq!(peers.load("a"), load(1));
}

#[test]
fn a_restarted_router_says_nothing_of_its_former_run() {
    let mut peers = Peers::new(RouterId(9));
    let (former, _) = history(origin(1, 5), &[[Some(3), Some(2), None]]);
    let (present, _) = history(origin(1, 6), &[[Some(1), None, None]]);
    for update in former.iter().chain(&present).chain(&former) {
        peers.hear(update.clone(), Moment::ZERO);
    }
    assert_eq!((peers.load("a"), peers.load("b")), (load(1), load(0)));
    assert_eq!(peers.hear(former[0].clone(), Moment::ZERO), Heard::Ignored);
}

#[test]
fn a_router_does_not_hear_itself() {
    let mut peers = Peers::new(RouterId(1));
    let (own, _) = history(origin(1, 5), &[[Some(3), None, None]]);
    assert_eq!(peers.hear(own[0].clone(), Moment::ZERO), Heard::Own);
    assert_eq!(peers.load("a"), load(0));
}

#[test]
fn what_a_tenant_takes_elsewhere_is_told_once_and_what_is_left_at_first() {
    let mut peers = Peers::new(RouterId(9));
    let mut outbox = Outbox::new(origin(1, 5));
    let mut say = |in_flight, requests| {
        let pods = std::iter::empty();
        let tenants = std::iter::once(("t", tenant(in_flight, requests)));
        peers.hear(outbox.changes(pods, tenants, Vec::new()).unwrap(), Moment::ZERO);
        peers.hear(outbox.full(), Moment::ZERO);
        peers.take_tenants().remove(0)
    };
    let first = say(2, 5);
    assert_eq!((first.in_flight, first.requests, first.requests_left), (2, 0, Some(55)));
    let next = say(1, 9);
    assert_eq!((next.in_flight, next.requests, next.requests_left), (1, 4, None));
}

#[test]
fn work_that_a_pod_has_computed_for_others_is_told_as_it_grows() {
    let mut peers = Peers::new(RouterId(9));
    let mut outbox = Outbox::new(origin(1, 5));
    let mut computed = |tokens| {
        let report = PodReport { computed_tokens: tokens, ..PodReport::default() };
        let pods = std::iter::once(("a", report));
        peers.hear(outbox.changes(pods, std::iter::empty(), Vec::new()).unwrap(), Moment::ZERO);
        peers.take_pods().remove(0).computed_tokens
    };
    assert_eq!([1000, 1500, 4000].map(&mut computed), [0, 500, 2500]);
    assert_eq!(computed(10), 0, "the pod was added again");
}
