//! Translation, event by event.

use super::*;
use crate::wire::{ExtraKeysBuffer, GroupAttention, WireExtraKey, WireRemoved};
use wornpath_index::{EngineHash, Location, Tier};

const MODEL: &str = "tiny";

fn translator(block_size: usize) -> Translator {
    Translator::new(&HashKey::DEFAULT, MODEL, NonZeroUsize::new(block_size).unwrap())
}

fn hashes(names: &[u64]) -> Vec<EngineHash> {
    names.iter().copied().map(EngineHash).collect()
}

/// A store of two blocks of four tokens at the start of a prompt; tests change what they are about.
fn stored<'a>(blocks: &'a [EngineHash], tokens: &'a [u32]) -> WireStored<'a> {
    WireStored { block_size: 4, ..WireStored::plain(blocks, None, tokens) }
}

fn batch_of(event: Wire<'_>) -> WireBatch {
    let mut batch = WireBatch::default();
    batch.push(event);
    batch
}

/// The chain that the only event of the batch makes, from its root.
fn chain_of(translator: &mut Translator, stored: WireStored<'_>) -> Vec<BlockHash> {
    let batch = batch_of(Wire::Stored(stored));
    let translated = translator.translate(&batch).unwrap();
    let [CacheEvent::Stored(StoredBlocks { content, .. })] = translated.events[..] else {
        panic!("not one store: {translated:?}")
    };
    let Content::Chained { parent: Parent::Root(root), contents } = content else {
        panic!("not from a root: {content:?}")
    };
    root.chain(contents).collect()
}

fn request_chain(scope: &Scope<'_>, block_size: usize, tokens: &[u32]) -> Vec<BlockHash> {
    let hasher = BlockHasher::new(&HashKey::DEFAULT, NonZeroUsize::new(block_size).unwrap());
    let mut chain = Vec::new();
    hasher.hash_tokens(tokens, HashKey::DEFAULT.root(scope), &mut chain);
    chain
}

#[test]
fn a_store_makes_the_chain_that_a_request_with_these_tokens_makes() {
    let names = hashes(&[1, 2]);
    let tokens = [5, 6, 7, 8, 9, 10, 11, 12];
    for index_block in [1, 2, 4] {
        let chain = chain_of(&mut translator(index_block), stored(&names, &tokens));
        assert_eq!(chain, request_chain(&Scope::model(MODEL), index_block, &tokens));
    }
}

#[test]
fn lora_and_salt_move_the_root_and_nothing_else() {
    let names = hashes(&[1, 2]);
    let tokens = [5, 6, 7, 8, 9, 10, 11, 12];
    let mut keys = ExtraKeysBuffer::default();
    keys.push(&[WireExtraKey::Text("sql"), WireExtraKey::Text("salt of a tenant")]);
    keys.push(&[WireExtraKey::Text("sql")]);
    let store =
        WireStored { lora_name: Some("sql"), extra_keys: keys.keys(), ..stored(&names, &tokens) };
    let scope = Scope { model: MODEL, lora: Some("sql"), salt: Some("salt of a tenant") };
    assert_eq!(chain_of(&mut translator(4), store), request_chain(&scope, 4, &tokens));
}

#[test]
fn an_image_changes_its_own_block_and_all_after_it() {
    let names = hashes(&[1, 2]);
    let tokens = [5, 6, 7, 8, 9, 10, 11, 12];
    let with_image = |image: &[u8]| {
        let mut keys = ExtraKeysBuffer::default();
        keys.push(&[]);
        keys.push(&[WireExtraKey::Bytes(image)]);
        let store = WireStored { extra_keys: keys.keys(), ..stored(&names, &tokens) };
        chain_of(&mut translator(4), store)
    };
    let text = request_chain(&Scope::model(MODEL), 4, &tokens);
    let cat = with_image(b"cat");
    let dog = with_image(b"dog");
    assert_eq!((cat[0], dog[0]), (text[0], text[0]));
    assert!(cat[1] != dog[1] && cat[1] != text[1] && dog[1] != text[1]);
}

#[test]
fn a_lora_known_by_number_only_shares_no_blocks_with_others() {
    let names = hashes(&[1]);
    let tokens = [5, 6, 7, 8];
    let chain = |lora_id| {
        let store = WireStored { lora_id, ..stored(&names, &tokens) };
        chain_of(&mut translator(4), store)
    };
    assert_eq!(chain(None), chain(Some(0)));
    assert!(chain(None) != chain(Some(1)) && chain(Some(1)) != chain(Some(2)));
}

#[test]
fn a_store_without_tokens_gives_names_only() {
    let names = hashes(&[1, 2]);
    let store = WireStored { tier: Tier::Host, block_size: 0, ..stored(&names, &[]) };
    let batch = batch_of(Wire::Stored(store));
    let mut translator = translator(16);
    let translated = translator.translate(&batch).unwrap();
    let named = StoredBlocks {
        tier: Tier::Host,
        blocks: &names,
        content: Content::KnownAliases,
        locations: &[],
    };
    assert_eq!(translated.events, [CacheEvent::Stored(named)]);
}

#[test]
fn a_window_group_is_ignored_with_its_removals_until_a_store_describes_it_as_full() {
    let names = hashes(&[1]);
    let tokens = [5, 6, 7, 8];
    let mut translator = translator(4);
    let mut events_of = |event| {
        let batch = batch_of(event);
        let translated = translator.translate(&batch).unwrap();
        (translated.events.len(), translated.ignored)
    };
    let store =
        |attention, group| Wire::Stored(WireStored { attention, group, ..stored(&names, &tokens) });
    let removal = |group| Wire::Removed(WireRemoved { blocks: &names, tier: Tier::Gpu, group });
    assert_eq!(events_of(removal(Some(1))), (1, 0));
    assert_eq!(events_of(store(GroupAttention::Partial, Some(1))), (0, 1));
    assert_eq!(events_of(removal(Some(1))), (0, 1));
    assert_eq!(events_of(store(GroupAttention::Unspecified, Some(1))), (0, 1));
    assert_eq!(events_of(store(GroupAttention::Full, Some(0))), (1, 0));
    assert_eq!(events_of(removal(Some(0))), (1, 0));
    assert_eq!(events_of(removal(None)), (1, 0));
    assert_eq!(events_of(store(GroupAttention::Full, Some(1))), (1, 0));
    assert_eq!(events_of(removal(Some(1))), (1, 0));
}

#[test]
fn contradictions_are_refused_with_the_cure() {
    let names = hashes(&[1, 2]);
    let tokens = [5, 6, 7, 8, 9, 10, 11, 12];
    let refusal = |index_block, store| {
        let batch = batch_of(Wire::Stored(store));
        translator(index_block).translate(&batch).unwrap_err().to_string()
    };
    assert_eq!(
        refusal(3, stored(&names, &tokens)),
        "block_size: found 4, expected a multiple of 3, the index's block size for this model; \
         set that to a common divisor of its engines' block sizes"
    );
    assert_eq!(
        refusal(4, stored(&names, &tokens[..7])),
        "token_ids: found 7, expected 2 blocks of 4"
    );
    let mut keys = ExtraKeysBuffer::default();
    keys.push(&[]);
    let store = WireStored { extra_keys: keys.keys(), ..stored(&names, &tokens) };
    assert_eq!(
        refusal(4, store),
        "extra_keys: found 1 lists, expected none or one for each of 2 blocks"
    );
    let zero = WireStored { block_size: 0, ..stored(&names, &tokens) };
    assert!(refusal(4, zero).starts_with("block_size: found 0"));
}

#[test]
fn the_number_of_partial_groups_is_bounded() {
    let names = hashes(&[1]);
    let tokens = [5, 6, 7, 8];
    let mut translator = translator(4);
    for group in 0..64 {
        let group = Some(group);
        let attention = GroupAttention::Partial;
        let store = WireStored { group, attention, ..stored(&names, &tokens) };
        translator.translate(&batch_of(Wire::Stored(store))).unwrap();
    }
    let group = Some(64);
    let attention = GroupAttention::Partial;
    let store = WireStored { group, attention, ..stored(&names, &tokens) };
    let batch = batch_of(Wire::Stored(store));
    let error = translator.translate(&batch).unwrap_err();
    assert_eq!(error, TranslateError::Groups { limit: 64 });
}

#[test]
fn of_several_clears_in_a_row_one_is_applied() {
    let names = hashes(&[1, 2]);
    let tokens = [5, 6, 7, 8, 9, 10, 11, 12];
    let mut batch = WireBatch::default();
    for _ in 0..1000 {
        batch.push(Wire::Cleared);
    }
    batch.push(Wire::Stored(stored(&names, &tokens)));
    batch.push(Wire::Cleared);
    batch.push(Wire::Cleared);
    let mut translator = translator(4);
    let events = translator.translate(&batch).unwrap().events;
    let is_clear = |event: &CacheEvent<'_>| *event == CacheEvent::Cleared;
    assert_eq!(events.iter().map(is_clear).collect::<Vec<_>>(), [true, false, true]);
}

#[test]
fn a_block_lies_where_the_source_says_and_a_missing_location_refuses_the_batch() {
    let names = hashes(&[1, 2]);
    let tokens = [5, 6, 7, 8, 9, 10, 11, 12];
    let places = [0, 1].map(|at| Location { offset: 4096 * at, length: 4096, device: 3 });
    let mut translator = translator(4);
    let store = WireStored { locations: &places, ..stored(&names, &tokens) };
    let batch = batch_of(Wire::Stored(store));
    let translated = translator.translate(&batch).unwrap();
    let [CacheEvent::Stored(StoredBlocks { locations, .. })] = translated.events[..] else {
        panic!("{translated:?}")
    };
    assert_eq!(locations, places);
    let batch = batch_of(Wire::Stored(WireStored { locations: &places[..1], ..store }));
    let error = translator.translate(&batch).unwrap_err();
    assert_eq!(error, TranslateError::Locations { blocks: 2, locations: 1 });
}
