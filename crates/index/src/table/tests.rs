//! How evenly hashes are spread over the shards, whose locks writers share.

use super::{SHARDS, TableKey};
use wornpath_blocks::{BlockHash, ContentHash};

/// The least and the most hashes of a shard, divided by the mean.
fn spread(hashes: impl Iterator<Item = BlockHash>) -> [f64; 2] {
    let mut counts = vec![0_u32; SHARDS];
    for hash in hashes {
        counts[TableKey::of(hash).shard] += 1;
    }
    let mean = f64::from(counts.iter().sum::<u32>()) / SHARDS as f64;
    let least = counts.iter().min().copied().unwrap_or_default();
    let most = counts.iter().max().copied().unwrap_or_default();
    [least, most].map(|count| f64::from(count) / mean)
}

#[test]
fn blocks_of_prompts_are_spread_evenly_over_the_shards() {
    let contents = |prompt: u64| (0..256).map(move |block| ContentHash(prompt << 32 | block));
    let chains = (0..4_096_u64).flat_map(|prompt| {
        let contents: Vec<_> = contents(prompt).collect();
        BlockHash(7).chain(&contents).collect::<Vec<_>>()
    });
    let [least, most] = spread(chains);
    // 4,096 a shard: five standard deviations of random numbers are 0.08.
    assert!(least > 0.92 && most < 1.08, "{least} to {most} of the mean");
}

#[test]
fn regular_hashes_are_spread_over_the_shards_too() {
    for stride in [0, 1, 4, 8, 12, 16, 20, 24, 32, 40, 48] {
        let [least, most] = spread((0..1 << 16).map(|number: u64| BlockHash(number << stride)));
        assert!(least > 0.95 && most < 1.05, "stride 2^{stride}: {least} to {most} of the mean");
    }
}
