//! Rewrites JSON Schemas so that client generators can read them.
//!
//! The schemas of schemars are correct, but openapi-python-client, oapi-codegen and openapi-generator reject or misread
//! boolean schemas, `const`, and enums that are written as a list of alternatives. Each rewrite keeps the meaning.

use serde_json::{Map, Value, json};

/// Keywords of JSON Schema whose value is an object that contains a schema for each name.
const BY_NAME: [&str; 3] = ["properties", "$defs", "patternProperties"];
/// Keywords of JSON Schema whose value is a schema.
const ONE: [&str; 3] = ["items", "additionalProperties", "not"];
/// Keywords of JSON Schema whose value is a list of schemas.
pub(super) const LISTS: [&str; 3] = ["oneOf", "anyOf", "allOf"];

/// Rewrites a schema and all schemas within it.
pub(super) fn simplify(schema: &mut Value) {
    visit(schema, &mut |schema| {
        merge_enum(schema);
        if let Some(value) = schema.remove("const") {
            schema.insert("enum".to_owned(), json!([value]));
        }
        if let Some(text) = schema.get("description").and_then(Value::as_str) {
            let text = without_links(text);
            schema.insert("description".to_owned(), json!(text));
        }
    });
}

/// Calls `rewrite` for every schema within `schema`, then for `schema`. Before these calls, it replaces the schema
/// `true`, which accepts any value, with the equivalent schema `{}`.
pub(super) fn visit(schema: &mut Value, rewrite: &mut impl FnMut(&mut Map<String, Value>)) {
    if *schema == Value::Bool(true) {
        *schema = json!({});
    }
    let Some(fields) = schema.as_object_mut() else { return };
    for keyword in BY_NAME {
        if let Some(named) = fields.get_mut(keyword).and_then(Value::as_object_mut) {
            named.values_mut().for_each(|schema| visit(schema, rewrite));
        }
    }
    for keyword in ONE {
        // The function keeps `additionalProperties: true`, because this keyword is valid in every version of OpenAPI
        // and generators understand it.
        if let Some(schema) = fields.get_mut(keyword).filter(|schema| schema.is_object()) {
            visit(schema, rewrite);
        }
    }
    for keyword in LISTS {
        if let Some(list) = fields.get_mut(keyword).and_then(Value::as_array_mut) {
            list.iter_mut().for_each(|schema| visit(schema, rewrite));
        }
    }
    rewrite(fields);
}

/// Replaces a `oneOf` with one `enum` if each alternative is an `enum` of strings. The description of the new schema
/// lists the meaning of each value.
fn merge_enum(schema: &mut Map<String, Value>) {
    let Some(alternatives) = schema.get("oneOf").and_then(Value::as_array) else { return };
    let mut values = Vec::new();
    let mut meanings = Vec::new();
    for alternative in alternatives {
        let Some(texts) = alternative.get("enum").and_then(Value::as_array) else { return };
        if alternative["type"] != "string" {
            return;
        }
        for text in texts {
            if let (Some(text), Some(meaning)) = (text.as_str(), alternative["description"].as_str()) {
                meanings.push(format!("`{text}`: {meaning}"));
            }
            values.push(text.clone());
        }
    }
    let own = schema.get("description").and_then(Value::as_str).map(str::to_owned);
    let description = own.into_iter().chain(meanings).collect::<Vec<_>>().join(" ");
    schema.remove("oneOf");
    schema.insert("type".to_owned(), json!("string"));
    schema.insert("enum".to_owned(), json!(values));
    if !description.is_empty() {
        schema.insert("description".to_owned(), json!(description));
    }
}

/// Returns the first paragraph of a Rust doc comment without Rust's links. Later paragraphs are for users of the Rust
/// types.
fn without_links(text: &str) -> String {
    let paragraph = text.split("\n\n").next().unwrap_or_default().replace('\n', " ");
    let mut plain = String::new();
    let mut rest = paragraph.as_str();
    while let Some((before, after)) = rest.split_once("[`") {
        let Some((name, after)) = after.split_once("`]") else { break };
        plain.push_str(before);
        plain.push_str(&format!("`{name}`"));
        let target = after.strip_prefix('(').and_then(|after| after.split_once(')'));
        rest = target.map_or(after, |(_, after)| after);
    }
    plain + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn simplified(mut schema: Value) -> Value {
        simplify(&mut schema);
        schema
    }

    #[test]
    fn simplification_merges_string_constants_into_one_enum() {
        let schema = json!({ "description": "State.", "oneOf": [
            { "type": "string", "enum": ["active"] },
            { "type": "string", "const": "ended", "description": "It is over." },
        ]});
        let expected =
            json!({ "description": "State. `ended`: It is over.", "type": "string", "enum": ["active", "ended"] });
        assert_eq!(simplified(schema), expected);
        let other = json!({ "oneOf": [{ "type": "string", "enum": ["a"] }, { "type": "null" }] });
        assert_eq!(simplified(other.clone()), other);
    }

    #[test]
    fn simplification_replaces_true_and_const_with_equivalent_schemas() {
        let schema =
            json!({ "properties": { "payload": true, "dead": { "const": "true" } }, "additionalProperties": false });
        let expected =
            json!({ "properties": { "payload": {}, "dead": { "enum": ["true"] } }, "additionalProperties": false });
        assert_eq!(simplified(schema), expected);
    }

    #[test]
    fn simplification_shortens_a_description_to_its_first_paragraph() {
        let schema =
            json!({ "description": "A patch of a [`Request`](crate::Request) with\n[`Time`].\n\nIts `Debug` form." });
        assert_eq!(simplified(schema), json!({ "description": "A patch of a `Request` with `Time`." }));
    }
}
