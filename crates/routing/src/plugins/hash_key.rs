//! `hash_key`: what consistent hashing hashes.

use wornpath_yaml::{Parameter, Takes};

use super::rendezvous::affinity;
use super::source::DepthSource;
use crate::name::Name;
use crate::plugin::{Assembly, AssemblyRefused, Make, Plugin};
use crate::slot::{Reads, Writes};
use crate::stage::{Prepare, Preparing, Rejection};
use crate::values::{Attributes, RingKey, SessionKey, Tokens};

pub(crate) const PLUGIN: Plugin = Plugin {
    name: "hash_key",
    summary: "Hashes one thing about the request, so that requests alike in it go to the same pod.",
    parameters: &[
        Parameter::optional("header", Takes::Text, "Hash this header."),
        Parameter::optional("cookie", Takes::Text, "Hash this cookie."),
        Parameter::optional("field", Takes::Text, "Hash this field of the body, such as `user`."),
        Parameter::optional(
            "attribute",
            Takes::Text,
            "Hash this attribute, which `attributes` names.",
        ),
        Parameter::optional(
            "session",
            Takes::Flag,
            "`true`: hash the session that `session_key` names.",
        ),
        Parameter::optional(
            "first_tokens",
            Takes::Whole(1, u64::MAX),
            "Hash this many leading tokens of the prompt, or all if it has fewer.",
        ),
    ],
    needs: &[],
    conflicts: &[],
    example: "hash_key: {field: user}",
    make: Make::Prepare(make),
};

struct HashKeyFrom {
    key: Writes<RingKey>,
    hashed: Hashed,
}

enum Hashed {
    Text(DepthSource),
    Attribute(Reads<Attributes>, Name),
    Session(Reads<SessionKey>),
    Tokens(Reads<Tokens>, usize),
}

fn make(assembly: &mut Assembly<'_>) -> Result<Box<dyn Prepare>, AssemblyRefused> {
    let mut hashed = Vec::new();
    if let Some(name) = assembly.maybe::<String>("header") {
        hashed.push(("header", Hashed::Text(DepthSource::header(&name))));
    }
    if let Some(name) = assembly.maybe::<String>("cookie") {
        hashed.push(("cookie", Hashed::Text(DepthSource::cookie(&name))));
    }
    if let Some(path) = assembly.maybe::<String>("field") {
        hashed.push(("field", Hashed::Text(DepthSource::field(&path))));
    }
    if let Some(name) = assembly.maybe::<String>("attribute") {
        hashed.push(("attribute", Hashed::Attribute(assembly.reads(), name.into())));
    }
    if assembly.maybe("session") == Some(true) {
        hashed.push(("session", Hashed::Session(assembly.reads())));
    }
    if let Some(tokens) = assembly.maybe("first_tokens") {
        hashed.push(("first_tokens", Hashed::Tokens(assembly.reads(), tokens)));
    }
    match (hashed.pop(), hashed.is_empty()) {
        (Some((_, hashed)), true) => Ok(Box::new(HashKeyFrom { key: assembly.writes(), hashed })),
        (None, _) => {
            let cure = "give one of header, cookie, field, attribute, session, first_tokens";
            Err(assembly.refuse("header", "nothing says what to hash", cure))
        }
        (Some((last, _)), false) => {
            let cure = "keep one of header, cookie, field, attribute, session, first_tokens";
            Err(assembly.refuse(last, "something else is given to hash as well", cure))
        }
    }
}

impl Prepare for HashKeyFrom {
    fn prepare(&self, scene: &mut Preparing<'_>) -> Result<(), Rejection> {
        let request = scene.request();
        let key = match &self.hashed {
            Hashed::Text(source) => source.with_text(request, |text| Name::from(text).key()),
            Hashed::Attribute(attributes, name) => {
                scene.read(attributes).and_then(|attributes| attributes.get(name)).map(Name::key)
            }
            Hashed::Session(session) => scene.read(session).map(|session| session.0),
            Hashed::Tokens(tokens, most) => scene.read(tokens).map(|Tokens(tokens)| {
                let hashed = tokens.iter().take(*most);
                hashed.fold(0, |hash, token| affinity(hash, u64::from(*token) + 1))
            }),
        };
        if let Some(key) = key {
            scene.write(&self.key).0 = key;
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
    fn prompts_alike_in_their_first_tokens_have_one_key() {
        let key = |tokens: &[u32]| {
            let rehearsal = Harness::of(1).prompt(tokens);
            let yaml = ["tokenize", "hash_key: {first_tokens: 3}"];
            rehearsal.prepared::<RingKey>(&yaml).unwrap().unwrap()
        };
        assert_eq!(key(&[1, 2, 3, 4]), key(&[1, 2, 3, 5]));
        assert_ne!(key(&[1, 2, 3]), key(&[1, 3, 2]));
        assert_ne!(key(&[0]), key(&[0, 0]));
    }

    #[test]
    fn fields_attributes_and_sessions_are_hashed_and_absent_ones_are_not() {
        let mut rehearsal = Harness::of(1);
        rehearsal.request.fields.insert("user".into(), "u".into());
        let field: Option<RingKey> = rehearsal.prepared(&["hash_key: {field: user}"]).unwrap();
        let attribute: Option<RingKey> = rehearsal
            .prepared(&["attributes: {fields: [who=user]}", "hash_key: {attribute: who}"])
            .unwrap();
        assert!(field.is_some());
        assert_eq!(field, attribute);
        let session: Option<RingKey> = rehearsal
            .prepared(&["session_key: {field: user}", "hash_key: {session: true}"])
            .unwrap();
        assert!(session.is_some());
        let absent: Option<RingKey> = rehearsal.prepared(&["hash_key: {header: x}"]).unwrap();
        assert_eq!(absent, None);
    }

    #[test]
    fn nothing_and_two_things_are_refused() {
        let nothing = Harness::complaint(Stage::Prepare, "hash_key");
        assert_eq!(nothing, "`hash_key`: nothing says what to hash");
        let two = Harness::complaint(Stage::Prepare, "hash_key: {header: a, field: b}");
        assert_eq!(two, "`field` of `hash_key`: something else is given to hash as well");
    }
}
