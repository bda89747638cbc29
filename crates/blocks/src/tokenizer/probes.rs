//! Probe texts: the two libraries must agree on them before the fast one is used for a tokenizer.

const PROBES: &[&str] = &[
    "",
    " ",
    "Hello, world! It's 12345.678 o'clock; I'LL we've THEY'RE don't.",
    "  two  spaces   three\ttab\n\n\nlines\r\n\r\n trailing   ",
    "def f(x):\n    return {'a': [1, 2], \"b\": x ** 2}  # done\n\n\nclass A:\n\tpass\n",
    "naïve café e\u{301}\u{327} Å \u{212b} ﬁ ǆ ſ'ſ K ½ Ⅷ ٣ x² 10⁵",
    "日本語のテキスト。中文文本，標點！한국어 텍스트 \u{1112}\u{1161}\u{11ab} か\u{3099}",
    "Привет, мир! שלום עולם العربية हिन्दी ไทย ქართული",
    "😀👩‍👩‍👧🇩🇪\u{fe0f} \u{200d} \u{feff}\u{a0}\u{3000}\u{85}\u{2028}",
    "\u{0}\u{7f}\u{fffd}\u{10ffff}\u{e000} ... !!! --- ___ === /// :// http://a.b/c?d=e&f#g",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "ABCDefgHIJklm camelCaseWord snake_case_word SCREAMING kebab-case 0x1F 1e-9",
];

/// Whether the fast library returns the ids of the released one on all probe texts.
pub(super) fn agree(fast: &fastokens::Tokenizer, released: &tokenizers::Tokenizer) -> bool {
    let added: Vec<_> =
        fast.added_token_configs().iter().map(|token| token.content.as_str()).collect();
    texts(&added).iter().all(|text| {
        let expected = released.encode_fast(text.as_str(), false);
        let whole = fast.encode(text);
        matches!((expected, whole), (Ok(expected), Ok(ids)) if expected.get_ids() == ids)
    })
}

/// The probes alone, and around each of the first added tokens.
fn texts(added: &[&str]) -> Vec<String> {
    let mut texts: Vec<String> = PROBES.iter().map(|&text| text.to_owned()).collect();
    texts.push(PROBES.concat());
    for (token, probe) in added.iter().take(64).zip(PROBES.iter().cycle()) {
        texts.push(format!("{probe}{token}{probe} {token} \n{token}{token}"));
    }
    texts
}
