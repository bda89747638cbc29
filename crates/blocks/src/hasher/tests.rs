//! Properties of chains, checked on random tokens against a naive implementation of the definition.

use proptest::{collection::vec, prelude::*};

use super::*;

fn hasher(block_size: usize) -> BlockHasher {
    BlockHasher::new(&HashKey::DEFAULT, NonZeroUsize::new(block_size).unwrap())
}

fn root() -> BlockHash {
    HashKey::DEFAULT.root(&Scope::model("m"))
}

fn chain(block_size: usize, tokens: &[u32]) -> Vec<BlockHash> {
    let mut out = Vec::new();
    hasher(block_size).hash_tokens(tokens, root(), &mut out);
    out
}

/// The definition without shared code but the two primitives: bytes by hand, prefix by prefix.
fn naive(block_size: usize, tokens: &[u32]) -> Vec<BlockHash> {
    let secret = HashKey::DEFAULT.hashing_secret(b"tokens");
    let mut out = Vec::new();
    for end in 1..=tokens.len() / block_size {
        let mut prefix = root();
        for block in 0..end {
            let mut bytes = Vec::new();
            for token in &tokens[block * block_size..(block + 1) * block_size] {
                bytes.extend(token.to_le_bytes());
            }
            prefix = prefix.then(ContentHash(xxh3_64_with_secret(&bytes, &secret)));
        }
        out.push(prefix);
    }
    out
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn equals_the_naive_definition(tokens in vec(any::<u32>(), 0..200), block_size in 1_usize..40) {
        prop_assert_eq!(chain(block_size, &tokens), naive(block_size, &tokens));
    }

    #[test]
    fn hashes_are_equal_exactly_as_far_as_the_blocks_are(
        tokens in vec(0_u32..8, 1..120), other in vec(0_u32..8, 1..120),
        shared in 0_usize..120, block_size in 1_usize..20,
    ) {
        let shared = shared.min(tokens.len());
        let other = [&tokens[..shared], &other[..]].concat();
        let same_tokens = tokens.iter().zip(&other).take_while(|(a, b)| a == b).count();
        let left = chain(block_size, &tokens);
        let right = chain(block_size, &other);
        for (i, (a, b)) in left.iter().zip(&right).enumerate() {
            prop_assert_eq!(a == b, (i + 1) * block_size <= same_tokens, "block {}", i);
        }
    }

    #[test]
    fn only_full_blocks_count_and_a_longer_prompt_extends_the_chain(
        tokens in vec(any::<u32>(), 0..120), cut in 0_usize..120, block_size in 1_usize..20,
    ) {
        let cut = cut.min(tokens.len());
        let whole = chain(block_size, &tokens);
        prop_assert_eq!(whole.len(), tokens.len() / block_size);
        let mut grown = chain(block_size, &tokens[..cut]);
        prop_assert_eq!(&whole[..grown.len()], &grown[..]);
        let last = grown.last().copied().unwrap_or_else(root);
        let rest = &tokens[grown.len() * block_size..];
        hasher(block_size).hash_tokens(rest, last, &mut grown);
        prop_assert_eq!(whole, grown);
    }

    #[test]
    fn contents_chained_by_hand_give_the_same_hashes(tokens in vec(any::<u32>(), 0..120)) {
        let mut contents = Vec::new();
        hasher(16).contents(&tokens, &mut contents);
        prop_assert_eq!(root().chain(&contents).collect::<Vec<_>>(), chain(16, &tokens));
    }

    #[test]
    fn other_scopes_share_no_hash(tokens in vec(0_u32..4, 4..80), salt in "[a-c]{0,2}", lora in "[a-c]{0,2}") {
        let plain = chain(4, &tokens);
        for scope in [
            Scope { model: "m", lora: Some(&lora), salt: None },
            Scope { model: "m", lora: None, salt: Some(&salt) },
            Scope { model: "m", lora: Some(&lora), salt: Some(&salt) },
        ] {
            let mut out = Vec::new();
            hasher(4).hash_tokens(&tokens, HashKey::DEFAULT.root(&scope), &mut out);
            prop_assert!(out.iter().all(|hash| !plain.contains(hash)));
        }
    }

    #[test]
    fn a_text_in_pieces_has_the_chain_of_the_whole(text in vec(0_u8..3, 0..200), cuts in vec(0_usize..200, 0..6), chunk in 1_usize..40) {
        let hasher = TextHasher::new(&HashKey::DEFAULT, NonZeroUsize::new(chunk).unwrap());
        let mut cuts: Vec<_> = cuts.into_iter().map(|cut| cut.min(text.len())).collect();
        cuts.extend([0, text.len()]);
        cuts.sort_unstable();
        let mut whole = Vec::new();
        let mut pieces = Vec::new();
        let mut chain = hasher.begin(root());
        hasher.hash_text(&text, root(), &mut whole);
        cuts.windows(2).for_each(|cut| chain.push(&text[cut[0]..cut[1]], &mut pieces));
        prop_assert_eq!((pieces, chain.bytes()), (whole, text.len()));
    }

    #[test]
    fn text_chunks_have_the_prefix_property(text in vec(0_u8..3, 1..200), shared in 0_usize..200, chunk in 1_usize..40) {
        let hasher = TextHasher::new(&HashKey::DEFAULT, NonZeroUsize::new(chunk).unwrap());
        let shared = shared.min(text.len());
        let mut other = text[..shared].to_vec();
        other.extend(text[shared..].iter().map(|byte| byte ^ 4));
        let mut left = Vec::new();
        let mut right = Vec::new();
        hasher.hash_text(&text, root(), &mut left);
        hasher.hash_text(&other, root(), &mut right);
        prop_assert_eq!(left.len(), text.len() / chunk);
        for (i, (a, b)) in left.iter().zip(&right).enumerate() {
            prop_assert_eq!(a == b, (i + 1) * chunk <= shared);
        }
    }
}

#[test]
fn extra_keys_separate_blocks_of_equal_tokens() {
    let hasher = hasher(4);
    let tokens = [151_655; 4];
    let plain = hasher.content(&tokens);
    let cat = hasher.content_with_extra(&tokens, b"cat");
    assert_ne!(plain, cat);
    assert_ne!(plain, hasher.content_with_extra(&tokens, b""));
    assert_ne!(cat, hasher.content_with_extra(&tokens, b"dog"));
    assert_eq!(cat, hasher.content_with_extra(&tokens, b"cat"));
}

#[test]
fn a_text_and_the_tokens_with_the_same_bytes_differ() {
    let tokens = [1_u32, 2, 3, 4];
    let mut text = Vec::new();
    TextHasher::new(&HashKey::DEFAULT, NonZeroUsize::new(16).unwrap()).hash_text(
        bytemuck::cast_slice(&tokens),
        root(),
        &mut text,
    );
    assert_ne!(text, chain(4, &tokens));
}

#[test]
fn hashing_into_a_large_enough_buffer_does_not_allocate() {
    let tokens: Vec<u32> = (0..512).collect();
    let mut out = Vec::with_capacity(32);
    let before = out.as_ptr();
    hasher(16).hash_tokens(&tokens, root(), &mut out);
    assert_eq!(out.len(), 32);
    assert_eq!(out.as_ptr(), before);
}

/// Replicas of different versions share an index: these values must never change.
#[test]
fn chains_are_stable_across_releases() {
    let tokens: Vec<u32> = (0..48).collect();
    let expected =
        [2_467_100_021_534_822_678, 11_442_290_665_802_563_844, 2_497_665_296_290_155_776];
    assert_eq!(chain(16, &tokens), expected.map(BlockHash));
}

#[test]
fn order_matters() {
    let a = ContentHash(1);
    let b = ContentHash(2);
    let root = BlockHash(7);
    assert_ne!(root.then(a).then(b), root.then(b).then(a));
}

#[test]
fn one_flipped_bit_anywhere_changes_every_later_hash_and_about_half_its_bits() {
    let contents: Vec<_> =
        (0..8).map(|i| ContentHash(0x9E37_79B9_7F4A_7C15_u64.wrapping_mul(i))).collect();
    let whole: Vec<_> = BlockHash(3).chain(&contents).collect();
    let mut flipped_bits = 0;
    for bit in 0..64 {
        let mut other = contents.clone();
        other[2].0 ^= 1 << bit;
        let changed: Vec<_> = BlockHash(3).chain(&other).collect();
        assert_eq!(whole[..2], changed[..2]);
        for i in 2..8 {
            assert_ne!(whole[i], changed[i], "bit {bit}, block {i}");
        }
        flipped_bits += (whole[7].0 ^ changed[7].0).count_ones();
    }
    let mean = f64::from(flipped_bits) / 64.0;
    assert!((28.0..36.0).contains(&mean), "mean {mean} of 64 bits");
}

#[test]
fn every_part_of_the_scope_and_the_key_changes_the_root() {
    let key = HashKey::DEFAULT;
    let scopes = [
        Scope::model("m"),
        Scope::model("ml"),
        Scope { model: "m", lora: Some("l"), salt: None },
        Scope { model: "m", lora: None, salt: Some("l") },
        Scope { model: "m", lora: Some(""), salt: None },
        Scope { model: "m", lora: None, salt: Some("") },
        Scope { model: "m", lora: Some("l"), salt: Some("l") },
        Scope { model: "", lora: Some("m"), salt: None },
    ];
    let other = HashKey::new([7; 32]);
    let mut roots: Vec<_> = scopes.iter().map(|scope| key.root(scope)).collect();
    roots.extend(scopes.iter().map(|scope| other.root(scope)));
    let all = roots.len();
    roots.sort_unstable();
    roots.dedup();
    assert_eq!(roots.len(), all);
}

/// Replicas of different versions share an index: these values must never change.
#[test]
fn roots_are_stable_across_releases() {
    let scope = Scope { model: "qwen3", lora: Some("sql"), salt: Some("s") };
    assert_eq!(HashKey::DEFAULT.root(&scope), BlockHash(10_173_933_956_040_274_840));
}
