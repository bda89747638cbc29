//! `hash_key`: the key that consistent hashing (`hash_ring`) uses.
//!
//! Exactly one source is allowed. A request without it has no key, and `hash_ring` uses its other
//! picker.

use wornpath_yaml::{Parameter, Takes};

use super::rendezvous::affinity;
use super::value_source::ValueSource;
use crate::name::Name;
use crate::plugin::{Assembly, AssemblyRefused, Make, Plugin};
use crate::slot::{Attributes, Reads, RingKey, SessionKey, Tokens, Writes};
use crate::stage::{Prepare, Preparing, Rejection};

pub(crate) const PLUGIN: Plugin = Plugin {
    name: "hash_key",
    summary: "Sets the key of `hash_ring` from one part of the request: requests with the same value go to the same pod.",
    parameters: &[
        Parameter::optional("header", Takes::Text, "Header to hash."),
        Parameter::optional("cookie", Takes::Text, "Cookie to hash."),
        Parameter::optional("field", Takes::Text, "Body field to hash, such as `user`."),
        Parameter::optional("attribute", Takes::Text, "Attribute to hash, set by `attributes`."),
        Parameter::optional(
            "session",
            Takes::Flag,
            "`true`: hash the session key, set by `session_key`.",
        ),
        Parameter::optional(
            "first_tokens",
            Takes::Whole(1, u64::MAX),
            "Number of leading prompt tokens to hash; all of a shorter prompt.",
        ),
    ],
    needs: &[],
    conflicts: &[],
    example: "hash_key: {field: user}",
    make: Make::Prepare(make),
};

struct DeriveHashKey {
    key: Writes<RingKey>,
    source: KeySource,
}

enum KeySource {
    Text(ValueSource),
    Attribute(Reads<Attributes>, Name),
    Session(Reads<SessionKey>),
    Tokens(Reads<Tokens>, usize),
}

fn make(assembly: &mut Assembly<'_>) -> Result<Box<dyn Prepare>, AssemblyRefused> {
    let mut sources = Vec::new();
    if let Some(name) = assembly.maybe::<String>("header") {
        sources.push(("header", KeySource::Text(ValueSource::header(&name))));
    }
    if let Some(name) = assembly.maybe::<String>("cookie") {
        sources.push(("cookie", KeySource::Text(ValueSource::cookie(&name))));
    }
    if let Some(path) = assembly.maybe::<String>("field") {
        sources.push(("field", KeySource::Text(ValueSource::field(&path))));
    }
    if let Some(name) = assembly.maybe::<String>("attribute") {
        sources.push(("attribute", KeySource::Attribute(assembly.reads(), name.into())));
    }
    if assembly.maybe("session") == Some(true) {
        sources.push(("session", KeySource::Session(assembly.reads())));
    }
    if let Some(tokens) = assembly.maybe("first_tokens") {
        sources.push(("first_tokens", KeySource::Tokens(assembly.reads(), tokens)));
    }
    match (sources.pop(), sources.is_empty()) {
        (Some((_, source)), true) => Ok(Box::new(DeriveHashKey { key: assembly.writes(), source })),
        (None, _) => {
            let cure = "set one of header, cookie, field, attribute, session, first_tokens";
            Err(assembly.refuse("header", "no source of the key is set", cure))
        }
        (Some((last, _)), false) => {
            let cure = "keep one of header, cookie, field, attribute, session, first_tokens";
            Err(assembly.refuse(last, "more than one source of the key is set", cure))
        }
    }
}

impl Prepare for DeriveHashKey {
    fn prepare(&self, preparing: &mut Preparing<'_>) -> Result<(), Rejection> {
        let request = preparing.request();
        let key = match &self.source {
            KeySource::Text(source) => source.with_text(request, |text| Name::from(text).key()),
            KeySource::Attribute(attributes, name) => preparing
                .read(attributes)
                .and_then(|attributes| attributes.get(name))
                .map(Name::key),
            KeySource::Session(session) => preparing.read(session).map(|session| session.0),
            KeySource::Tokens(tokens, most) => preparing.read(tokens).map(|Tokens(tokens)| {
                let leading = tokens.iter().take(*most);
                leading.fold(0, |hash, token| affinity(hash, u64::from(*token) + 1))
            }),
        };
        if let Some(key) = key {
            preparing.write(&self.key).0 = key;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugins::harness::Harness;
    use crate::stage::Stage;

    #[test]
    fn prompts_with_the_same_first_tokens_have_the_same_key() {
        let key = |tokens: &[u32]| {
            let harness = Harness::of(1).prompt(tokens);
            let yaml = ["tokenize", "hash_key: {first_tokens: 3}"];
            harness.prepared::<RingKey>(&yaml).unwrap().unwrap()
        };
        assert_eq!(key(&[1, 2, 3, 4]), key(&[1, 2, 3, 5]));
        assert_ne!(key(&[1, 2, 3]), key(&[1, 3, 2]));
        assert_ne!(key(&[0]), key(&[0, 0]));
    }

    #[test]
    fn fields_attributes_and_sessions_give_a_key_and_absent_ones_none() {
        let mut harness = Harness::of(1);
        harness.request.fields.insert("user".into(), "u".into());
        let field: Option<RingKey> = harness.prepared(&["hash_key: {field: user}"]).unwrap();
        let attribute: Option<RingKey> = harness
            .prepared(&["attributes: {fields: [account=user]}", "hash_key: {attribute: account}"])
            .unwrap();
        assert!(field.is_some());
        assert_eq!(field, attribute);
        let session: Option<RingKey> =
            harness.prepared(&["session_key: {field: user}", "hash_key: {session: true}"]).unwrap();
        assert!(session.is_some());
        let absent: Option<RingKey> = harness.prepared(&["hash_key: {header: x}"]).unwrap();
        assert_eq!(absent, None);
    }

    #[test]
    fn no_source_and_two_sources_are_refused() {
        let none = Harness::assembly_error(Stage::Prepare, "hash_key");
        assert_eq!(none, "`hash_key`: no source of the key is set");
        let two = Harness::assembly_error(Stage::Prepare, "hash_key: {header: a, field: b}");
        assert_eq!(two, "`field` of `hash_key`: more than one source of the key is set");
    }
}
