//! Tenants behind a data plane: their keys and quotas, and the keys of pods.

use super::*;
use hyper::header::HeaderValue as Header;

/// The digest of the key `a`.
const GOLD: &str = "tenants: [{name: gold, quota: 1, key_digest: \"sha256:ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb\"}]\n";

#[tokio::test]
async fn a_request_needs_a_known_key_and_room_in_its_quota_which_it_gives_back() {
    let bench = Bench::with(GOLD);
    for headers in [&[][..], &[("authorization", "Bearer b")]] {
        let refused = bench.ask(headers, &prompt("x")).await.refused();
        assert_eq!((code(&refused), dropped(&refused)), (401, None), "{headers:?}");
    }
    let key = [("authorization", "Bearer a")];
    for _ in 0..2 {
        let first = bench.ask(&key, &prompt("x")).await;
        let changes = first.picked().answer.header_mutation.unwrap();
        assert_eq!(changes.remove_headers, ["authorization"], "pods do not see it");
        let second = bench.ask(&key, &prompt("x")).await.refused();
        let expected = (429, Some("rejected-saturated".to_owned()));
        assert_eq!((code(&second), dropped(&second)), expected);
        drop(first);
    }
    let tenants = bench.ended().into_iter().map(|summary| summary.tenant);
    let tenants: Vec<_> = tenants.map(|it| it.map(|it| it.as_str().to_owned())).collect();
    let gold = || Some("gold".to_owned());
    assert_eq!(tenants, [None, None, gold(), gold(), gold(), gold()]);
    assert_eq!(bench.load(), 0);
}

#[tokio::test]
async fn a_request_carries_the_key_of_its_pod_and_pods_with_another_key_are_no_fallbacks() {
    let bench = Bench::new();
    let keys = ["Bearer one", "Bearer one", "Bearer other"];
    for (entry, key) in bench.gateway.snapshot().entries().iter().zip(keys) {
        entry.endpoint.set_key(Some(Header::from_static(key)));
    }
    let mut first_pods = Vec::new();
    let mut in_flight = Vec::new();
    for number in 0..3 {
        let headers = [("authorization", "Bearer of the client")];
        let asked = bench.ask(&headers, &prompt(&number.to_string())).await;
        let picked = asked.picked();
        let destinations = picked.destinations();
        let key = |pod: &String| keys[PODS.iter().position(|known| known == pod).unwrap()];
        let sent = picked.header("authorization").unwrap();
        assert!(destinations.iter().all(|pod| key(pod) == sent), "{destinations:?} get {sent}");
        assert_eq!(destinations.len(), if sent == keys[0] { 2 } else { 1 });
        first_pods.push(destinations[0].clone());
        in_flight.push(asked);
    }
    first_pods.sort();
    assert_eq!(first_pods, PODS, "each pod had its turn");
}
