//! Tenants share an index but never a prefix: neither the result nor the duration of a lookup tells
//! one tenant what another has cached. `WORNPATH_QUERIES` sets the number of queries.
//!
//! A binary of its own, because tests in other threads would disturb the times.
#![allow(clippy::unwrap_used, reason = "a panic is how a test says no")]
#![allow(clippy::disallowed_methods, reason = "time is what is tested")]

use std::collections::HashSet;
use std::num::NonZeroUsize;
use std::time::Instant;
use wornpath_blocks::{BlockHash, BlockHasher, HashKey, Scope};
use wornpath_index::{
    CacheEvent, Content, Depths, EngineHash, Index, IndexLimits, IndexReader, IndexWriter, PodId,
    StoredBlocks, Tier,
};

const TENANTS: usize = 64;
const PODS: usize = 8;
const LONGEST: usize = 12;
const BLOCK: usize = 4;
/// So few contents that tenants send equal prompts all the time.
const CONTENTS: u64 = 3;

struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) % end
    }
}

/// Hashes prompts, which are given by the content of each block, for each tenant from a root of its
/// own.
struct Tenants {
    hasher: BlockHasher,
    roots: Vec<BlockHash>,
}

impl Tenants {
    fn new() -> Self {
        let key = HashKey::new([7; 32]);
        let root = |tenant: usize| {
            let salt = key.cache_salt(&format!("tenant {tenant}"));
            key.root(&Scope { model: "m", lora: None, salt: Some(&salt) })
        };
        let roots = (0..TENANTS).map(root).collect();
        Self { hasher: BlockHasher::new(&key, NonZeroUsize::new(BLOCK).unwrap()), roots }
    }

    fn chain(&self, tenant: usize, prompt: &[u64]) -> Vec<BlockHash> {
        let tokens: Vec<u32> = prompt.iter().flat_map(|content| [*content as u32; BLOCK]).collect();
        let mut chain = Vec::new();
        self.hasher.hash_tokens(&tokens, self.roots[tenant], &mut chain);
        chain
    }
}

fn prompt(random: &mut Random) -> Vec<u64> {
    (0..=random.below(LONGEST as u64 - 1)).map(|_| random.below(CONTENTS)).collect()
}

fn store(writer: &mut IndexWriter, pod: PodId, chain: &[BlockHash]) {
    let blocks: Vec<_> = chain.iter().map(|block| EngineHash(block.0)).collect();
    let content = Content::IndexHashes;
    let stored = StoredBlocks { tier: Tier::Gpu, blocks: &blocks, content, locations: &[] };
    writer.apply(pod, None, &[CacheEvent::Stored(stored)]).unwrap();
}

#[test]
fn no_tenant_is_ever_credited_with_what_another_has_cached() {
    let queries = std::env::var("WORNPATH_QUERIES").ok().and_then(|count| count.parse().ok());
    let queries = queries.unwrap_or(200_000_u64);
    let tenants = Tenants::new();
    let mut random = Random(1);
    let index = Index::new(IndexLimits::default(), 1);
    let pods: Vec<_> = (0..PODS).map(|_| index.add_pod().unwrap()).collect();
    let mut reader = index.reader();
    let mut writer = index.writer();
    let mut depths = Depths::default();
    // Tenant, pod and prefix, each prefix encoded as a number.
    let mut held: HashSet<(usize, usize, u64)> = HashSet::new();
    let prefixes = |prompt: &[u64]| {
        let next = |prefix: &mut u64, content: &u64| {
            *prefix = *prefix * (CONTENTS + 1) + content + 1;
            Some(*prefix)
        };
        prompt.iter().scan(0, next).collect::<Vec<_>>()
    };
    let mut own = 0_u64;
    let mut others = 0_u64;
    for query in 0..queries {
        let tenant = random.below(TENANTS as u64) as usize;
        let prompt = prompt(&mut random);
        if query < 4000 {
            // Half of the tenants have cached prompts; the others must find nothing.
            let tenant = tenant / 2;
            let pod = random.below(PODS as u64) as usize;
            store(&mut writer, pods[pod], &tenants.chain(tenant, &prompt));
            held.extend(prefixes(&prompt).into_iter().map(|prefix| (tenant, pod, prefix)));
            continue;
        }
        reader.lookup(&tenants.chain(tenant, &prompt), &mut depths);
        let prefixes = prefixes(&prompt);
        for (number, pod) in pods.iter().enumerate() {
            let is_held = |prefix: &&u64| held.contains(&(tenant, number, **prefix));
            let expected = prefixes.iter().take_while(is_held).count();
            assert_eq!(depths.depth(pod.slot()), expected, "query {query} of tenant {tenant}");
            own += u64::from(expected > 0);
            let another = (tenant + 1) % (TENANTS / 2);
            others += u64::from(expected == 0 && held.contains(&(another, number, prefixes[0])));
        }
    }
    assert!(
        own > 0 && others > 0,
        "tenants found none of their own prefixes, or others had cached none"
    );
}

/// How well durations distinguish two kinds of queries: 0.5 is not at all, 0 or 1 is always.
fn distinguishability(mut one: Vec<u128>, mut other: Vec<u128>) -> f64 {
    one.sort_unstable();
    other.sort_unstable();
    let mut below = 0_u64;
    let mut equal = 0_u64;
    for time in &one {
        let less = other.partition_point(|known| known < time);
        below += less as u64;
        equal += (other.partition_point(|known| known <= time) - less) as u64;
    }
    (below as f64 + equal as f64 / 2.0) / (one.len() as f64 * other.len() as f64)
}

/// The durations of two kinds of queries, measured alternately.
fn durations(reader: &mut IndexReader, chains: [&[Vec<BlockHash>]; 2]) -> [Vec<u128>; 2] {
    let mut depths = Depths::default();
    let mut durations = [Vec::new(), Vec::new()];
    for _ in 0..40 {
        for (at, pair) in chains[0].iter().zip(chains[1]).enumerate() {
            for kind in [at % 2, 1 - at % 2] {
                let chain = if kind == 0 { pair.0 } else { pair.1 };
                let started = Instant::now();
                reader.lookup(std::hint::black_box(chain), &mut depths);
                durations[kind].push(started.elapsed().as_nanos());
            }
        }
    }
    durations
}

#[test]
fn how_long_a_query_takes_does_not_tell_what_another_tenant_has_cached() {
    let tenants = Tenants::new();
    let index = Index::new(IndexLimits::default(), 1);
    let pod = index.add_pod().unwrap();
    let mut reader = index.reader();
    let mut writer = index.writer();
    let mut random = Random(2);
    let mut long = || (0..64).map(|_| random.below(1 << 30)).collect::<Vec<_>>();
    let cached: Vec<_> = (0..200).map(|_| long()).collect();
    let unknown: Vec<_> = (0..200).map(|_| long()).collect();
    let victim = 0;
    let attacker = 1;
    for prompt in &cached {
        store(&mut writer, pod, &tenants.chain(victim, prompt));
    }
    let of = |tenant: usize, prompts: &[Vec<u64>]| -> Vec<_> {
        prompts.iter().map(|prompt| tenants.chain(tenant, prompt)).collect()
    };
    let mut measure = |tenant| {
        let [hits, misses] = durations(&mut reader, [&of(tenant, &cached), &of(tenant, &unknown)]);
        distinguishability(hits, misses)
    };
    let own = measure(victim);
    assert!((own - 0.5).abs() > 0.1, "the test would not notice a difference: {own}");
    let probed = measure(attacker);
    assert!((probed - 0.5).abs() < 0.05, "{probed}");
}
