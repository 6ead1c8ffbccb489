use http::uri::PathAndQuery;

use super::*;

/// Returns the URL to which the client connects, the `host` header, and the path with the query.
fn parts(url: &str) -> (String, String, String) {
    let (uri, connect_to, host) = parse_url(url).unwrap();
    let path = uri.path_and_query().map_or("", PathAndQuery::as_str);
    (connect_to.to_string(), host.to_str().unwrap().to_owned(), path.to_owned())
}

fn expect(url: &str, connect_to: &str, host: &str, path: &str) {
    assert_eq!(parts(url), (connect_to.to_owned(), host.to_owned(), path.to_owned()), "{url}");
}

#[test]
fn client_splits_url_into_address_host_header_and_path() {
    expect("https://hooks.example/a?b=c%20d", "https://hooks.example:443/", "hooks.example", "/a?b=c%20d");
    expect("http://Hooks.Example:80", "http://hooks.example:80/", "Hooks.Example:80", "/");
    expect("HTTP://hooks.example?x", "http://hooks.example:80/", "hooks.example", "/?x");
    expect("http://[::1]:9000/a", "http://[::1]:9000/", "[::1]:9000", "/a");
    expect("https://[2001:DB8::1]/", "https://[2001:db8::1]:443/", "[2001:DB8::1]", "/");
}

#[test]
fn request_omits_the_url_fragment() {
    expect("http://hooks.example/a#secret", "http://hooks.example:80/", "hooks.example", "/a");
}
