use std::collections::BTreeSet;

use serde_json::Value;
use test_servers::http;

use crate::support::{Response, World};

/// Sends a GET request without a key.
async fn get(world: &World, path: &str) -> Response {
    world.connect().await.request("GET", path, "", b"").await
}

/// Sends a GET request, and returns the head and the body length of the binary response.
async fn get_bytes(world: &World, path: &str) -> (String, usize) {
    let mut connection = world.connect().await;
    connection.write(&http::request("GET", path, "", b"")).await;
    let response = connection.http.read().await.unwrap();
    let headers: Vec<String> = response.headers.iter().map(|(name, value)| format!("{name}: {value}")).collect();
    (format!("{}\r\n{}", response.first_line, headers.join("\r\n")), response.body.len())
}

async fn document(world: &World) -> Value {
    let response = get(world, "/openapi.json").await;
    assert_eq!((response.status, response.header("content-type")), (200, Some("application/json")));
    response.json()
}

fn methods(path: &Value) -> BTreeSet<String> {
    path.as_object().unwrap().keys().map(|method| method.to_ascii_uppercase()).collect()
}

#[tokio::test]
async fn openapi_document_lists_the_methods_that_the_server_supports() {
    let world = World::start().await;
    let document = document(&world).await;
    let paths = document["paths"].as_object().unwrap();

    let mut count = 0;
    for (path, operations) in paths {
        let mut expected = methods(operations);
        if path == "/v1/schedules/preview" {
            // The path of a preview is also the path of a schedule with this id.
            expected.extend(methods(&paths["/v1/schedules/{id}"]));
        }
        let concrete_path = path.replace("{tenant}", "missing").replace("{id}", "nothing");
        let rejected = world.send("BREW", &concrete_path, "").await;
        assert_eq!(rejected.status, 405, "{path}");
        let allowed = rejected.header("allow").unwrap().split(',').map(|method| method.trim().to_owned());
        let allowed: BTreeSet<String> = allowed.filter(|method| method != "HEAD").collect();
        assert_eq!(allowed, expected, "{path}");
        count += allowed.len();
    }
    assert!(count > 20, "{count} operations");
    world.stop().await;
}

/// Collects every `$ref` in `value`.
fn references<'a>(value: &'a Value, found: &mut BTreeSet<&'a str>) {
    match value {
        Value::Object(fields) => {
            found.extend(fields.get("$ref").and_then(Value::as_str));
            fields.values().for_each(|field| references(field, found));
        }
        Value::Array(items) => items.iter().for_each(|item| references(item, found)),
        _ => {}
    }
}

#[tokio::test]
async fn openapi_document_contains_schemas_limits_and_problem_codes() {
    let world = World::start().await;
    let document = document(&world).await;
    let mut found = BTreeSet::new();
    references(&document, &mut found);
    for reference in &found {
        let pointer = reference.strip_prefix('#').unwrap();
        assert!(document.pointer(pointer).is_some_and(|schema| *schema != Value::Bool(true)), "{reference}");
    }
    let schemas = document["components"]["schemas"].as_object().unwrap();
    let used: BTreeSet<&str> = found.iter().map(|reference| reference.rsplit('/').next().unwrap()).collect();
    let unused: Vec<_> = schemas.keys().filter(|name| !used.contains(name.as_str())).collect();
    assert_eq!(
        unused,
        ["BatchLine", "ScheduleRequest"].iter().filter(|name| !used.contains(**name)).collect::<Vec<_>>()
    );

    let limits = domain::limits::Limits::default();
    let field = |pointer: &str| document.pointer(&format!("/components/schemas/{pointer}")).unwrap_or(&Value::Null);
    assert_eq!(*field("ScheduleRequest/properties/labels/maxProperties"), limits.labels_max);
    assert_eq!(*field("TargetRequestHttp/properties/url/maxLength"), limits.url_bytes_max);
    assert_eq!(*field("RetryRequest/properties/attempts_max/maximum"), limits.attempts_max);
    assert_eq!(*field("ScheduleRequest/additionalProperties"), false);
    assert_eq!(*field("Schedule/additionalProperties"), Value::Null, "responses may get more fields");
    for kind in ["ClockChangeKind", "CauseKind"] {
        let schema = field(kind).to_string();
        assert!(schema.len() > 10 && !schema.contains("\"other\""), "the server sends no such kind: {schema}");
    }

    let table = include_str!("../../../../docs/http-api.md").split("\n## Errors").nth(1).unwrap();
    let table = table.split("\nEach entry of `errors`").next().unwrap();
    let rows = table.lines().filter_map(|line| line.strip_prefix("| `")?.split_once('`'));
    let documented: BTreeSet<&str> = rows.map(|(code, _)| code).collect();
    let codes = field("Problem/properties/code/enum").as_array().unwrap();
    let in_document: BTreeSet<&str> = codes.iter().map(|code| code.as_str().unwrap()).collect();
    let without_route = BTreeSet::from(["method_not_allowed", "route_not_found"]);
    assert_eq!(&in_document | &without_route, documented);
    assert!(document.pointer("/webhooks/callback/post").is_some());
    world.stop().await;
}

#[tokio::test]
async fn api_page_loads_no_file_from_other_hosts() {
    let world = World::start().await;
    let page = get(&world, "/docs").await;
    assert_eq!((page.status, page.header("content-type")), (200, Some("text/html; charset=utf-8")));
    let policy = page.header("content-security-policy").unwrap();
    assert!(
        policy.starts_with("default-src 'none';") && !policy.contains("unsafe") && !policy.contains("//"),
        "{policy}"
    );
    let parts: Vec<&str> = page.body.split(['"']).filter(|part| part.starts_with("docs/")).collect();
    assert_eq!(parts.len(), 5, "{parts:?}");
    for part in parts {
        let (head, length) = get_bytes(&world, &format!("/{part}")).await;
        assert!(head.starts_with("HTTP/1.1 200 ") && length > 100, "{part}: {head}");
        assert_eq!(head.contains("content-encoding: gzip"), part != "docs/start.js", "{part}: {head}");
    }
    let start = get(&world, "/docs/start.js").await;
    for text in [&page.body, &start.body] {
        assert!(!text.contains("http:") && !text.contains("https:") && !text.contains("//"), "{text}");
    }
    assert!(start.body.contains("\"openapi.json\""));
    assert_eq!(get(&world, "/docs/..%2f..%2fetc%2fpasswd").await.status, 404);
    world.stop().await;
}

#[tokio::test]
async fn http_api_document_names_every_header_of_a_callback() {
    let world = World::start().await;
    let parameters = document(&world).await["webhooks"]["callback"]["post"]["parameters"].clone();
    let described = include_str!("../../../../docs/http-api.md").split("## The callback").nth(1).unwrap();
    let section = described.split("\n## ").next().unwrap();
    let names: Vec<&str> = parameters.as_array().unwrap().iter().map(|it| it["name"].as_str().unwrap()).collect();
    assert!(names.len() >= 10, "{names:?}");
    for name in names {
        assert!(section.contains(&format!("`{name}`")), "docs/http-api.md, \"The callback\", does not name {name}");
    }
    world.stop().await;
}
