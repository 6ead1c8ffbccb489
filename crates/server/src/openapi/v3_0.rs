//! Renders the document as OpenAPI 3.0.3, for generators that do not read version 3.1.

use serde_json::{Map, Value, json};

use super::simplify::{LISTS, visit};

/// Renders `document`, an OpenAPI 3.1 document, as OpenAPI 3.0.3.
pub(super) fn render(mut document: Value) -> Value {
    document["openapi"] = json!("3.0.3");
    // OpenAPI 3.0 does not define the fields `webhooks`, `info.summary` and `info.license.identifier`.
    let fields = document.as_object_mut().expect("an OpenAPI document is a JSON object");
    fields.remove("webhooks");
    if let Some(info) = fields.get_mut("info").and_then(Value::as_object_mut) {
        info.remove("summary");
        info.insert("license".to_owned(), json!({ "name": "Apache-2.0" }));
    }
    in_schemas(&mut document, &mut |schema| visit(schema, &mut rewrite));
    document
}

/// Calls `rewrite` for the schemas in `components` and for each value of a field `schema`.
fn in_schemas(value: &mut Value, rewrite: &mut impl FnMut(&mut Value)) {
    match value {
        Value::Object(fields) => {
            for (name, field) in fields {
                match (name.as_str(), &mut *field) {
                    ("schema", _) => rewrite(field),
                    ("schemas", Value::Object(schemas)) => schemas.values_mut().for_each(&mut *rewrite),
                    _ => in_schemas(field, rewrite),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| in_schemas(item, rewrite)),
        _ => {}
    }
}

fn rewrite(schema: &mut Map<String, Value>) {
    schema.remove("propertyNames");
    if let Some(Value::Array(examples)) = schema.remove("examples")
        && let Some(example) = examples.into_iter().next()
    {
        schema.insert("example".to_owned(), example);
    }
    let types = schema.get("type").and_then(Value::as_array).cloned();
    if let Some(types) = types {
        let (nulls, others): (Vec<_>, Vec<_>) = types.into_iter().partition(|name| name == "null");
        schema.insert("nullable".to_owned(), json!(!nulls.is_empty()));
        // In this service's schemas, a list of types contains `null` and at most one other type.
        schema.insert("type".to_owned(), others.into_iter().next().unwrap_or(json!("string")));
    }
    for keyword in LISTS {
        let Some(list) = schema.get_mut(keyword).and_then(Value::as_array_mut) else { continue };
        let count = list.len();
        list.retain(|alternative| alternative["type"] != "null");
        if list.len() < count {
            let others = std::mem::take(list);
            schema.remove(keyword);
            schema.insert("nullable".to_owned(), json!(true));
            let keyword = if others.len() == 1 { "allOf" } else { keyword };
            schema.insert(keyword.to_owned(), json!(others));
        }
    }
    // OpenAPI 3.0 ignores all fields beside `$ref`, so the function moves the reference into `allOf`.
    if schema.len() > 1
        && let Some(reference) = schema.remove("$ref")
    {
        schema.insert("allOf".to_owned(), json!([{ "$ref": reference }]));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rendered(mut schema: Value) -> Value {
        visit(&mut schema, &mut rewrite);
        schema
    }

    #[test]
    fn conversion_replaces_the_type_null_with_the_keyword_nullable() {
        let number = json!({ "type": ["integer", "null"], "minimum": 0 });
        assert_eq!(rendered(number), json!({ "type": "integer", "nullable": true, "minimum": 0 }));
        let either = json!({ "anyOf": [{ "$ref": "#/a" }, { "type": "null" }] });
        assert_eq!(rendered(either), json!({ "allOf": [{ "$ref": "#/a" }], "nullable": true }));
    }

    #[test]
    fn conversion_keeps_the_description_next_to_a_reference() {
        let schema = json!({ "$ref": "#/a", "description": "text", "examples": ["x"] });
        let expected = json!({ "allOf": [{ "$ref": "#/a" }], "description": "text", "example": "x" });
        assert_eq!(rendered(schema), expected);
        assert_eq!(rendered(json!({ "$ref": "#/a" })), json!({ "$ref": "#/a" }));
    }

    #[test]
    fn conversion_removes_parts_that_openapi_3_0_does_not_support() {
        let document = json!({
            "openapi": "3.1.0",
            "info": { "title": "T", "summary": "S", "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" } },
            "webhooks": {},
            "paths": { "/a": { "get": { "parameters": [{ "schema": { "type": ["string", "null"] } }] } } },
            "components": { "schemas": { "A": { "type": "object", "propertyNames": {} } } },
        });
        let expected = json!({
            "openapi": "3.0.3",
            "info": { "title": "T", "license": { "name": "Apache-2.0" } },
            "paths": { "/a": { "get": { "parameters": [{ "schema": { "type": "string", "nullable": true } }] } } },
            "components": { "schemas": { "A": { "type": "object" } } },
        });
        assert_eq!(render(document), expected);
    }
}
