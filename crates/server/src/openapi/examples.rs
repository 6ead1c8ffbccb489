//! Examples in the OpenAPI document. If a client sends the example of a request unchanged, the request succeeds.

use serde_json::{Value, json};

use crate::rejection::{Code, reject};

/// Returns an example of the request body of `operation`.
pub(super) fn request(operation: &str) -> Option<Value> {
    let schedule = || {
        json!({
            "every": "1h",
            "target": { "http": { "url": "https://example.com/hook" } },
            "payload": { "invoice": 4711 },
            "labels": { "team": "billing" },
        })
    };
    Some(match operation {
        "createSchedule" | "putSchedule" => schedule(),
        "createScheduleBatch" => json!(format!("{}\n", schedule())),
        "patchSchedule" => json!({ "every": "2h", "labels": { "team": null } }),
        "patchQuotas" => json!({ "pending_max": 1_000 }),
        "createTenant" => json!({ "name": "billing" }),
        "patchTenant" => json!({ "quotas": { "pending_max": 1_000 } }),
        "createKey" => json!({ "role": "writer", "name": "invoicing" }),
        _ => return None,
    })
}

/// Returns the text of a problem code, and an example of its problem document.
pub(super) fn problem(code: Code) -> (String, Value) {
    let problem = reject(code, code.title()).into_problem(Some("5c3a1e7f-12".to_owned()));
    (code.code().to_owned(), json!({ "summary": code.title(), "value": problem }))
}
