//! The fields that an expression can name: of the pod, the request and all candidates together.
//!
//! The `fields!` tables are the only list: the type of a field, suggestions for misspelt ones and
//! the check of the reference page read them.

use std::cell::{Cell, RefCell};

use crate::name::Name;
use crate::plugins::cel::{Type, Vocabulary};

/// A field of an expression.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Field {
    Pod(PodField),
    Request(RequestField),
    Fleet(FleetField),
    /// A label of the pod, by its position in [`FieldNames::labels`].
    Label(u16),
    /// An attribute of the request, by its position in [`FieldNames::attributes`].
    Attribute(u16),
}

macro_rules! fields {
    ($(#[$doc:meta])* $name:ident { $($variant:ident: $type:ident = $word:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub(super) enum $name { $($variant,)* }

        impl $name {
            const ALL: &[(&str, Self, Type)] = &[$(($word, Self::$variant, Type::$type),)*];
        }
    };
}

fields! {
    /// `pod.…`: one candidate.
    PodField {
        Requests: Int = "requests",
        Decoding: Int = "decoding",
        PrefillTokens: Int = "prefill_tokens",
        DecodeTokens: Int = "decode_tokens",
        UnansweredTokens: Int = "unanswered_tokens",
        InFlightTokens: Int = "in_flight_tokens",
        Waiting: Int = "waiting",
        KvUsage: Double = "kv_usage",
        KvTokens: Int = "kv_tokens",
        CachedBlocks: Int = "cached_blocks",
        CachedShare: Double = "cached_share",
        UncachedTokens: Int = "uncached_tokens",
        PlacedTokens: Int = "placed_tokens",
        Name: String = "name",
        Speed: String = "speed",
        Host: String = "host",
        Rack: String = "rack",
        Zone: String = "zone",
        Region: String = "region",
    }
}

fields! {
    /// `request.…`.
    RequestField {
        PromptTokens: Int = "prompt_tokens",
        BlockTokens: Int = "block_tokens",
        OutputTokens: Int = "output_tokens",
        Priority: Int = "priority",
        Model: String = "model",
        Lora: String = "lora",
        Tenant: String = "tenant",
    }
}

fields! {
    /// `fleet.…`: all candidates that the filters left.
    FleetField {
        Pods: Int = "pods",
        LeastRequests: Int = "least_requests",
        MostRequests: Int = "most_requests",
        LeastPrefillTokens: Int = "least_prefill_tokens",
        MostPrefillTokens: Int = "most_prefill_tokens",
        MostCachedShare: Double = "most_cached_share",
    }
}

/// The names that an expression uses, collected while it is compiled.
#[derive(Debug, Default)]
pub(super) struct FieldNames {
    pub(super) labels: RefCell<Vec<Name>>,
    pub(super) attributes: RefCell<Vec<Name>>,
    /// Whether it uses a field that needs the depths of the held prefix.
    pub(super) uses_held: Cell<bool>,
    /// Whether it uses `pod.placed_tokens`.
    pub(super) uses_placed: Cell<bool>,
}

/// The position of a name in the list, which gets it if it is new.
fn intern(names: &RefCell<Vec<Name>>, word: &str) -> Option<u16> {
    let mut names = names.borrow_mut();
    let known = names.iter().position(|name| name.as_str() == word);
    let at = known.unwrap_or_else(|| {
        names.push(word.into());
        names.len() - 1
    });
    u16::try_from(at).ok()
}

fn find<F: Copy>(all: &[(&str, F, Type)], word: &str) -> Option<(F, Type)> {
    all.iter().find(|(known, ..)| *known == word).map(|(_, field, kind)| (*field, *kind))
}

impl Vocabulary for FieldNames {
    type Field = Field;

    fn resolve(&self, path: &[&str]) -> Option<(Field, Type)> {
        match path {
            ["pod", "labels", label] => {
                Some((Field::Label(intern(&self.labels, label)?), Type::String))
            }
            ["request", "attributes", name] => {
                Some((Field::Attribute(intern(&self.attributes, name)?), Type::String))
            }
            ["tenant", "name"] => Some((Field::Request(RequestField::Tenant), Type::String)),
            ["pod", word] => {
                let (field, kind) = find(PodField::ALL, word)?;
                use PodField::{CachedBlocks, CachedShare, PlacedTokens, UncachedTokens};
                let held = matches!(field, CachedBlocks | CachedShare | UncachedTokens);
                self.uses_held.set(self.uses_held.get() || held);
                self.uses_placed.set(self.uses_placed.get() || field == PlacedTokens);
                Some((Field::Pod(field), kind))
            }
            ["request", word] => {
                let (field, kind) = find(RequestField::ALL, word)?;
                let held = field == RequestField::BlockTokens;
                self.uses_held.set(self.uses_held.get() || held);
                Some((Field::Request(field), kind))
            }
            ["fleet", word] => {
                let (field, kind) = find(FleetField::ALL, word)?;
                let held = field == FleetField::MostCachedShare;
                self.uses_held.set(self.uses_held.get() || held);
                Some((Field::Fleet(field), kind))
            }
            _ => None,
        }
    }

    fn renamed(&self, path: &[&str]) -> Option<&'static str> {
        (path == ["pod", "engine"]).then_some("pod.speed")
    }

    fn known(&self) -> Vec<String> {
        let pod = PodField::ALL.iter().map(|(word, ..)| format!("pod.{word}"));
        let request = RequestField::ALL.iter().map(|(word, ..)| format!("request.{word}"));
        let fleet = FleetField::ALL.iter().map(|(word, ..)| format!("fleet.{word}"));
        let open = ["tenant.name", "pod.labels.…", "request.attributes.…"].map(str::to_owned);
        pod.chain(request).chain(fleet).chain(open).collect()
    }
}
