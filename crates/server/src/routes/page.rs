//! OpenAPI document, and the page that shows it. Both are the same for all callers and need no key.

use axum::body::Body;
use axum::extract::Path;
use axum::extract::rejection::PathRejection;
use axum::http::header::{
    CACHE_CONTROL, CONTENT_ENCODING, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderValue, Response};
use bytes::Bytes;

use crate::rejection::{Code, HandlerResult, reject};

/// Content security policy. The page loads no resources from other hosts and sends no data to them, and no other page
/// can frame it.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; \
    base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Page at `/docs`. Its links are relative, so that the page works behind a proxy that adds a prefix to every path.
const INDEX: &str = r#"<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Reveille: HTTP API</title>
<link rel="icon" type="image/png" href="docs/favicon-32x32.png">
<link rel="stylesheet" href="docs/swagger-ui.css">
<link rel="stylesheet" href="docs/index.css">
</head>
<body>
<div id="swagger-ui"><noscript>This page needs JavaScript; <a href="openapi.json">/openapi.json</a> does not.</noscript></div>
<script src="docs/swagger-ui-bundle.js"></script>
<script src="docs/start.js"></script>
</body>
</html>
"#;

/// Script that starts Swagger UI without its validator, which would send requests to another host.
const START: &str = r##"SwaggerUIBundle({
  url: "openapi.json",
  dom_id: "#swagger-ui",
  deepLinking: true,
  validatorUrl: null,
  presets: [SwaggerUIBundle.presets.apis],
});
"##;

macro_rules! packed {
    ($name:literal) => {
        include_bytes!(concat!(env!("OUT_DIR"), "/", $name, ".gz"))
    };
}

pub(super) fn document(document: Bytes) -> Response<Body> {
    file("application/json", document)
}

pub(super) async fn page() -> Response<Body> {
    file("text/html; charset=utf-8", Bytes::from_static(INDEX.as_bytes()))
}

pub(super) async fn asset(part: Result<Path<String>, PathRejection>) -> HandlerResult {
    let name = part.map_or(String::new(), |Path(name)| name);
    let (media, bytes): (_, &'static [u8]) = match name.as_str() {
        "start.js" => return Ok(file("text/javascript; charset=utf-8", Bytes::from_static(START.as_bytes()))),
        "swagger-ui-bundle.js" => ("text/javascript; charset=utf-8", packed!("swagger-ui-bundle.js")),
        "swagger-ui.css" => ("text/css; charset=utf-8", packed!("swagger-ui.css")),
        "index.css" => ("text/css; charset=utf-8", packed!("index.css")),
        "favicon-32x32.png" => ("image/png", packed!("favicon-32x32.png")),
        _ => {
            return Err(reject(Code::RouteNotFound, "the API page has no file with this name; open the page at /docs"));
        }
    };
    let mut response = file(media, Bytes::from_static(bytes));
    // The handler always sends gzip-compressed files, because every browser supports gzip and only browsers need them.
    response.headers_mut().insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    Ok(response)
}

fn file(media: &'static str, bytes: Bytes) -> Response<Body> {
    let mut response = Response::new(Body::from(bytes));
    for (name, value) in [
        (CONTENT_TYPE, media),
        (CONTENT_SECURITY_POLICY, POLICY),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (REFERRER_POLICY, "no-referrer"),
        // Browsers must revalidate cached files, because another build of the server may contain other versions.
        (CACHE_CONTROL, "no-cache"),
    ] {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}
