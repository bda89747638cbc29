//! JSON in templates: converts the request's values to template values, and implements `tojson`.

use minijinja::{
    Error, ErrorKind, Value,
    value::{Kwargs, ValueKind},
};
use serde_json::Value as Json;

use super::numbers;
use super::python::push_number;

/// Converts a request's value to a template value; objects keep their order.
pub(super) fn to_template(json: &Json) -> Value {
    match json {
        Json::Null => Value::from(()),
        Json::Bool(value) => Value::from(*value),
        Json::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(value), _) => Value::from(value),
            (None, Some(value)) => Value::from(value),
            (None, None) => Value::from(number.as_f64().unwrap_or(f64::NAN)),
        },
        Json::String(text) => Value::from(text.as_str()),
        Json::Array(items) => items_to_template(items),
        Json::Object(map) => numbers::to_template(map).unwrap_or_else(|| {
            Value::from_pairs(map.iter().map(|(key, value)| (key.as_str(), to_template(value))))
        }),
    }
}

/// Converts a list of the request to a template value.
pub(super) fn items_to_template(items: &[Json]) -> Value {
    Value::from(items.iter().map(to_template).collect::<Vec<_>>())
}

/// `tojson` as Hugging Face defines it: `json.dumps` without HTML escapes, keys in their order.
pub(super) fn tojson(value: &Value, kwargs: &Kwargs) -> Result<Value, Error> {
    let indent = match kwargs.get::<Option<Value>>("indent")? {
        Some(indent) if !indent.is_none() => Some(match indent.as_str() {
            Some(text) => text.to_owned(),
            None => " ".repeat(indent.as_usize().unwrap_or(0)),
        }),
        _ => None,
    };
    let mut writer = JsonWriter {
        out: String::new(),
        ensure_ascii: kwargs.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
        sort_keys: kwargs.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
        item_separator: if indent.is_some() { "," } else { ", " }.to_owned(),
        key_separator: ": ".to_owned(),
        indent,
    };
    if let Some(separators) = kwargs.get::<Option<Value>>("separators")?.filter(|v| !v.is_none()) {
        let mut parts = separators.try_iter()?;
        writer.item_separator = parts.next().unwrap_or_default().to_string();
        writer.key_separator = parts.next().unwrap_or_default().to_string();
    }
    kwargs.assert_all_used()?;
    writer.write(value, 0)?;
    Ok(Value::from(writer.out))
}

struct JsonWriter {
    out: String,
    ensure_ascii: bool,
    sort_keys: bool,
    indent: Option<String>,
    item_separator: String,
    key_separator: String,
}

impl JsonWriter {
    fn write(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        match value.kind() {
            ValueKind::None => self.out.push_str("null"),
            ValueKind::Bool => self.out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => number(value, &mut self.out),
            ValueKind::String => self.string(value.as_str().unwrap_or_default()),
            ValueKind::Map => self.map(value, depth)?,
            ValueKind::Seq | ValueKind::Iterable => {
                self.out.push('[');
                let mut count = 0;
                for item in value.try_iter()? {
                    self.next_item(count, depth + 1);
                    self.write(&item, depth + 1)?;
                    count += 1;
                }
                self.close(']', count, depth);
            }
            _ if numbers::is_integer(value) => self.out.push_str(&value.to_string()),
            _ => return Err(not_serializable(value)),
        }
        Ok(())
    }

    fn map(&mut self, map: &Value, depth: usize) -> Result<(), Error> {
        let mut entries = Vec::new();
        for key in map.try_iter()? {
            entries.push((json_key(&key)?, map.get_item(&key)?));
        }
        if self.sort_keys {
            entries.sort_by(|a, b| a.0.cmp(&b.0));
        }
        self.out.push('{');
        for (i, (key, item)) in entries.iter().enumerate() {
            self.next_item(i, depth + 1);
            self.string(key);
            self.out.push_str(&self.key_separator);
            self.write(item, depth + 1)?;
        }
        self.close('}', entries.len(), depth);
        Ok(())
    }

    fn next_item(&mut self, index: usize, depth: usize) {
        if index > 0 {
            self.out.push_str(&self.item_separator);
        }
        self.new_line(depth);
    }

    fn close(&mut self, bracket: char, items: usize, depth: usize) {
        if items > 0 {
            self.new_line(depth);
        }
        self.out.push(bracket);
    }

    fn new_line(&mut self, depth: usize) {
        if let Some(indent) = &self.indent {
            self.out.push('\n');
            for _ in 0..depth {
                self.out.push_str(indent);
            }
        }
    }

    fn string(&mut self, text: &str) {
        self.out.push('"');
        for c in text.chars() {
            match c {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{c}' => self.out.push_str("\\f"),
                c if c < ' ' || (self.ensure_ascii && c > '~') => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        self.out.push_str(&format!("\\u{unit:04x}"));
                    }
                }
                c => self.out.push(c),
            }
        }
        self.out.push('"');
    }
}

/// Writes a number like Python's `json`, which also writes `NaN` and infinities.
fn number(value: &Value, out: &mut String) {
    match f64::try_from(value.clone()) {
        Ok(float) if float.is_nan() => out.push_str("NaN"),
        Ok(f64::INFINITY) => out.push_str("Infinity"),
        Ok(f64::NEG_INFINITY) => out.push_str("-Infinity"),
        _ => push_number(value, out),
    }
}

fn json_key(key: &Value) -> Result<String, Error> {
    match key.kind() {
        ValueKind::String => Ok(key.to_string()),
        ValueKind::None => Ok("null".to_owned()),
        ValueKind::Bool => Ok(if key.is_true() { "true" } else { "false" }.to_owned()),
        ValueKind::Number => {
            let mut out = String::new();
            number(key, &mut out);
            Ok(out)
        }
        _ => Err(not_serializable(key)),
    }
}

fn not_serializable(value: &Value) -> Error {
    let text = format!("a value of type {} is not JSON serializable", value.kind());
    Error::new(ErrorKind::InvalidOperation, text)
}
