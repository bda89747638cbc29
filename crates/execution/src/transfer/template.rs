//! Fills in templates of body fields.

use super::{BroughtPart, Rendezvous};
use crate::splice::{Edit, splice};
use bytes::Bytes;
use serde_json::Value;
use std::borrow::Cow;
use wornpath_routing::template::{MERGE, TemplatePart, template_parts};

/// What the names in a template stand for.
#[derive(Clone, Copy)]
pub(super) struct TemplateValues<'a> {
    pub(super) rendezvous: Option<&'a Rendezvous>,
    pub(super) parts: &'a [BroughtPart],
}

impl<'a> TemplateValues<'a> {
    /// A value as JSON.
    fn find(&self, name: &str) -> Option<Cow<'a, str>> {
        if let Some(part) = self.parts.iter().find(|part| part.name == name) {
            return Some(Cow::Borrowed(&part.json));
        }
        let rendezvous = self.rendezvous?;
        let text = |text: &str| Value::from(text).to_string();
        Some(Cow::Owned(match name {
            "host" => text(&rendezvous.host),
            "url_host" => text(&url_host(&rendezvous.host)),
            "engine" => text(&rendezvous.engine),
            "port" => rendezvous.port.to_string(),
            "room" => rendezvous.room.to_string(),
            _ => return None,
        }))
    }
}

/// A template as JSON, with the values in it; none if one of them is missing.
pub(super) fn fill(template: &Value, values: TemplateValues<'_>) -> Option<String> {
    Some(match template {
        Value::String(text) => fill_text(text, values)?,
        Value::Array(items) => {
            let items: Option<Vec<_>> = items.iter().map(|item| fill(item, values)).collect();
            format!("[{}]", items?.join(","))
        }
        Value::Object(fields) => {
            let mut edits = Vec::with_capacity(fields.len());
            for (field, value) in fields.iter().filter(|(field, _)| *field != MERGE) {
                edits.push(Edit { field: field.clone(), value: Some(fill(value, values)?) });
            }
            let base = match fields.get(MERGE) {
                Some(base) => fill(base, values)?,
                None => "{}".to_owned(),
            };
            let merged = splice(&Bytes::from(base), &edits).ok()?;
            String::from_utf8(merged.to_vec()).ok()?
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => template.to_string(),
    })
}

fn fill_text(text: &str, values: TemplateValues<'_>) -> Option<String> {
    let mut parts = template_parts(text);
    if let (Some(TemplatePart::Name(name)), None) = (parts.next(), parts.next()) {
        return values.find(name).map(Cow::into_owned);
    }
    let mut filled = String::new();
    for part in template_parts(text) {
        match part {
            TemplatePart::Text(text) => filled.push_str(text),
            TemplatePart::Name(name) => {
                let json = values.find(name)?;
                // The text of a text, and any other value as it is written.
                match serde_json::from_str(&json) {
                    Ok(Value::String(text)) => filled.push_str(&text),
                    _ => filled.push_str(&json),
                }
            }
        }
    }
    Some(Value::from(filled).to_string())
}

/// IPv6 addresses stand in brackets before a port.
fn url_host(host: &str) -> String {
    if host.contains(':') { format!("[{host}]") } else { host.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn names_stand_for_values_and_in_longer_texts_for_their_text() {
        let part = |name: &str, json: &str| BroughtPart { name: name.into(), json: json.into() };
        let parts =
            [part("n", "1e400"), part("t", r#""a\n\"b""#), part("o", r#"{"x":1, "y":[2]}"#)];
        let values = TemplateValues { rendezvous: None, parts: &parts };
        let filled = |template: Value| fill(&template, values);
        assert_eq!(filled(json!("<n>")).unwrap(), "1e400", "verbatim");
        assert_eq!(filled(json!("<o>")).unwrap(), r#"{"x":1, "y":[2]}"#);
        assert_eq!(
            filled(json!("see <t> and <o>!")).unwrap(),
            r#""see a\n\"b and {\"x\":1, \"y\":[2]}!""#
        );
        assert_eq!(filled(json!(["<t>", "<|end|>", 1])).unwrap(), r#"["a\n\"b","<|end|>",1]"#);
        assert_eq!(filled(json!({"<<": "<o>", "x": "<n>"})).unwrap(), r#"{"y":[2],"x":1e400}"#);
        assert_eq!(filled(json!({"a": {"b": "<missing>"}})), None);
        assert_eq!(filled(json!({"<<": "<n>", "x": 1})), None, "no object to change");
    }
}
