//! One YAML document as JSON, for manifests.

use saphyr_parser::{Event, Parser, ScalarStyle};
use serde_json::{Map, Value};

/// The document in `text`.
pub(crate) fn parse(text: &str) -> Value {
    let mut events = Parser::new_from_str(text).map(|event| event.unwrap().0);
    loop {
        match events.next().expect("a document") {
            Event::StreamStart | Event::DocumentStart(_) => {}
            event => return value(event, &mut events),
        }
    }
}

fn value<'a>(event: Event<'a>, events: &mut impl Iterator<Item = Event<'a>>) -> Value {
    match event {
        Event::Scalar(text, ScalarStyle::Plain, ..) => plain(&text),
        Event::Scalar(text, ..) => Value::String(text.into_owned()),
        Event::SequenceStart(..) => {
            let mut list = Vec::new();
            loop {
                match events.next().expect("the end of a list") {
                    Event::SequenceEnd => return Value::Array(list),
                    event => list.push(value(event, events)),
                }
            }
        }
        Event::MappingStart(..) => {
            let mut map = Map::new();
            loop {
                let key = match events.next().expect("the end of a map") {
                    Event::MappingEnd => return Value::Object(map),
                    Event::Scalar(text, ..) => text.into_owned(),
                    event => panic!("{event:?} is no key"),
                };
                let event = events.next().expect("a value");
                let known = map.insert(key.clone(), value(event, events));
                assert!(known.is_none(), "`{key}` stands twice");
            }
        }
        event => panic!("{event:?} is not for manifests"),
    }
}

fn plain(text: &str) -> Value {
    match text {
        "" | "~" | "null" => Value::Null,
        "true" => Value::Bool(true),
        "false" => Value::Bool(false),
        text => text.parse::<i64>().map_or_else(|_| Value::from(text), Value::from),
    }
}
