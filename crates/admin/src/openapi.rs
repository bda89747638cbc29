//! The OpenAPI description of the admin plane, generated from the routes.
//!
//! The schemas of responses are in `schemas.json`, in a short form: `"string"` is a type, `"Pod"`
//! another entry, `"up|down"` an enum, `["string"]` a list, `{"*": "string"}` a map. A type that
//! ends with `?` may be null, and a field whose name ends with `?` may be absent.

use serde_json::{Map, Value, json};

use crate::call::{AdminBody, AdminRoute};

/// OpenAPI 3.1 of these endpoints, as JSON.
pub(crate) fn describe(routes: &[AdminRoute]) -> Value {
    let mut paths = Map::new();
    for route in routes {
        let path = paths.entry(route.path.0).or_insert_with(|| json!({}));
        path[route.method.word()] = operation(route);
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "wornpath admin plane",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Pods, load, routing decisions and configuration of one router.",
        },
        "security": [{}, {"token": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": schemas(),
        },
    })
}

/// The schemas of responses, by name.
fn schemas() -> Value {
    let short: Map<String, Value> = serde_json::from_str(include_str!("schemas.json"))
        .expect("the file is compiled in, and a test parses it");
    short.iter().map(|(name, short)| (name.clone(), schema(short))).collect::<Map<_, _>>().into()
}

/// JSON Schema from the short form.
fn schema(short: &Value) -> Value {
    match short {
        Value::String(word) => named(word),
        Value::Array(items) => json!({"type": "array", "items": items.first().map(schema)}),
        Value::Object(fields) => match fields.get("*") {
            Some(values) => json!({"type": "object", "additionalProperties": schema(values)}),
            None => object(fields),
        },
        other => other.clone(),
    }
}

fn object(fields: &Map<String, Value>) -> Value {
    let name = |name: &str| name.trim_end_matches('?').to_owned();
    let required: Vec<_> = fields.keys().filter(|key| !key.ends_with('?')).collect();
    let properties: Map<_, _> = fields.iter().map(|(key, it)| (name(key), schema(it))).collect();
    json!({"type": "object", "required": required, "properties": properties})
}

/// A type, an enum, or a reference to another schema.
fn named(word: &str) -> Value {
    let (kind, may_be_null) = word.strip_suffix('?').map_or((word, false), |kind| (kind, true));
    if kind == "any" {
        return json!({});
    }
    if kind.contains('|') {
        return json!({"type": "string", "enum": kind.split('|').collect::<Vec<_>>()});
    }
    let is_entry = kind.starts_with(|first: char| first.is_ascii_uppercase());
    let entry = json!({"$ref": format!("#/components/schemas/{kind}")});
    match (is_entry, may_be_null) {
        (true, false) => entry,
        (true, true) => json!({"anyOf": [entry, {"type": "null"}]}),
        (false, false) => json!({"type": kind}),
        (false, true) => json!({"type": [kind, "null"]}),
    }
}

fn operation(route: &AdminRoute) -> Value {
    let kind = match route.answers {
        AdminBody::Json => "application/json",
        AdminBody::Text => "text/plain",
        AdminBody::Stream => "text/event-stream",
        AdminBody::Asset => "*/*",
    };
    let content = |kind: &str, it: &str| json!({kind: {"schema": named(it)}});
    let answer =
        if route.schema.is_empty() { json!({kind: {}}) } else { content(kind, route.schema) };
    let error =
        json!({"description": "The error.", "content": content("application/json", "Error")});
    let mut operation = json!({
        "operationId": route.id,
        "summary": route.summary,
        "responses": {
            "200": {"description": "Success.", "content": answer},
            "default": error,
        },
    });
    if route.is_public() {
        operation["security"] = json!([]);
    }
    if route.path.has_name() {
        operation["parameters"] = json!([{
            "name": "name", "in": "path", "required": true, "schema": {"type": "string"},
            "description": route.named,
        }]);
    }
    if !route.query.is_empty() {
        let parameters = route.query.iter().map(|(name, kind, what)| {
            json!({"name": name, "in": "query", "schema": {"type": kind}, "description": what})
        });
        operation["parameters"] = parameters.collect();
    }
    if let Some((kind, what)) = route.takes {
        let kind = match kind {
            AdminBody::Json => "application/json",
            AdminBody::Text | AdminBody::Stream | AdminBody::Asset => "application/yaml",
        };
        operation["requestBody"] =
            json!({"required": true, "description": what, "content": {kind: {}}});
    }
    operation
}
