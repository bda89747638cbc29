//! The description of the admin plane, written from the routes that are served.

use serde_json::{Map, Value, json};

use super::routes::{Body, ROUTES, Route};

/// OpenAPI 3.1, as JSON.
#[must_use]
pub fn description() -> Value {
    let mut paths = Map::new();
    for route in ROUTES {
        let path = paths.entry(route.path.0).or_insert_with(|| json!({}));
        path[route.method.word()] = operation(route);
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "wornpath admin plane",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Pods, loads, decisions and configuration of one router.",
        },
        "security": [{}, {"token": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": {"Error": {
                "type": "object",
                "required": ["error"],
                "properties": {"error": {
                    "type": "object",
                    "required": ["message"],
                    "properties": {
                        "message": {"type": "string"},
                        "problems": {"type": "array", "items": {"type": "object"}},
                    },
                }},
            }},
        },
    })
}

fn operation(route: &Route) -> Value {
    let kind = match route.answers {
        Body::Json => "application/json",
        Body::Text => "text/plain",
        Body::Stream => "text/event-stream",
        Body::Asset => "*/*",
    };
    let error = json!({"description": "Why not.", "content": {"application/json": {
        "schema": {"$ref": "#/components/schemas/Error"},
    }}});
    let mut operation = json!({
        "operationId": route.id,
        "summary": route.summary,
        "responses": {
            "200": {"description": "As asked.", "content": {kind: {}}},
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
    if let Some((name, what)) = route.query {
        operation["parameters"] = json!([{
            "name": name, "in": "query", "schema": {"type": "integer", "minimum": 0}, "description": what,
        }]);
    }
    if let Some((kind, what)) = route.takes {
        let kind = match kind {
            Body::Json => "application/json",
            Body::Text | Body::Stream | Body::Asset => "application/yaml",
        };
        operation["requestBody"] =
            json!({"required": true, "description": what, "content": {kind: {}}});
    }
    operation
}
