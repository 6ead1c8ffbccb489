use super::*;

#[test]
fn zookeeper_url_parser_returns_the_servers_and_the_root_path() {
    for (text, servers, root) in [
        ("zookeeper://a", &[("a", 2181)][..], None),
        ("zookeeper://a:2183/", &[("a", 2183)], None),
        ("zookeeper://a:2181,b:2182/x/y", &[("a", 2181), ("b", 2182)], Some("/x/y")),
        ("zookeeper://127.0.0.1:1/x/", &[("127.0.0.1", 1)], Some("/x")),
        ("zookeeper://[::1]:7,[::2]/x", &[("::1", 7), ("::2", 2181)], Some("/x")),
        ("zookeeper+tls://[::1]:7,a.b:8/x", &[("::1", 7), ("a.b", 8)], Some("/x")),
    ] {
        let url = ZookeeperUrl::parse(text).unwrap();
        let found: Vec<(&str, u16)> = url.servers().iter().map(|server| (server.host.as_str(), server.port)).collect();
        assert_eq!((&found[..], url.root().map(NodePath::as_str)), (servers, root), "{text}");
        assert_eq!(url.tls().is_some(), text.contains("tls"), "{text}");
    }
    assert_eq!(ZookeeperUrl::parse("zookeeper://[::1]:7,b/x").unwrap().to_string(), "[::1]:7,b:2181");
}

#[test]
fn zookeeper_url_parser_returns_the_user_and_hides_the_password() {
    let user = |text: &str, password: Option<&str>| {
        let url = ZookeeperUrl::parse(text).unwrap().with_password(password.map(str::to_owned));
        let shown = format!("{url:?}");
        assert!(!shown.contains("hunter") && !shown.contains("secret"), "{shown}");
        url.user().map(|user| user.map(|user| (user.name, user.password)))
    };
    let ann = |password: &str| Ok(Some(("ann".to_owned(), password.to_owned())));
    assert_eq!(user("zookeeper://a", None), Ok(None));
    assert_eq!(user("zookeeper://a", Some("hunter2")), Ok(None), "the password is for another engine");
    assert_eq!(user("zookeeper://ann:hunter2@a:1,b:2/x", None), ann("hunter2"));
    assert_eq!(user("zookeeper+tls://ann:hunter%40%2f%3f:@a/x@y", None), ann("hunter@/?:"));
    assert_eq!(user("zookeeper://ann@a", Some("hunter2")), ann("hunter2"));
    assert_eq!(user("zookeeper://ann:secret@a", Some("hunter2")), ann("hunter2"));
    assert_eq!(user("zookeeper://%61nn:@a", None), ann(""));
    let error = user("zookeeper://ann@a", None).unwrap_err().to_string();
    assert!(error.contains("user ann") && error.contains("--password-file"), "{error}");
}

#[test]
fn error_for_an_invalid_url_shows_the_expected_form_and_hides_the_password() {
    for text in [
        "a:2181",
        "http://a",
        "zookeeper://",
        "zookeeper:///x",
        "zookeeper://a,/x",
        "zookeeper://:secret@a",
        "zookeeper://u:secret@",
        "zookeeper://u:secret%ff@a",
        "zookeeper://u:sec/secret@a",
        "zookeeper://u:12345/secret@a",
        "zookeeper://u:sec?secret@a",
        "zookeeper://u:sec#secret@a",
        "zookeeper://a:99999",
        "zookeeper://a:port/x",
        "zookeeper://::1/x",
        "zookeeper://[::1/x",
        "zookeeper://[::1]7/x",
        "zookeeper://a:2181/x?y=secret",
        "zookeeper://a:2181/x#y",
        "zookeeper://a//x",
    ] {
        let error = ZookeeperUrl::parse(text).expect_err(text);
        let shown = format!("{error} {error:?}");
        assert!(shown.contains("zookeeper://HOST:PORT") && !shown.contains("secret"), "{shown}");
    }
}

#[test]
fn parameters_for_tls_require_the_scheme_for_tls() {
    for (text, cause) in [
        ("zookeeper://a/x?sslrootcert=/root.crt", "must start with zookeeper+tls://"),
        ("zookeeper://a/x?sslrootcert=system", "must start with zookeeper+tls://"),
        ("zookeeper://a?sslcert=/a&sslkey=/b", "must start with zookeeper+tls://"),
        ("zookeeper+tls://a?sslcert=/a", "requires sslkey"),
        ("zookeeper+tls://a?sslkey=/a", "requires sslcert"),
        ("zookeeper+tls://a?sslrootcert=", "no value"),
        ("zookeeper+tls://a?sslmode=require", "the parameters of the URL are sslrootcert, sslcert and sslkey"),
        ("zookeeper+tls://a?", "the parameters of the URL are"),
        ("zookeeper+tls://a b", "HOST:PORT"),
        ("zookeeper+tls://a..b", "DNS names or IP addresses"),
        ("zookeeper+tls://a?sslrootcert=/no/root.crt", "sslrootcert of the ZooKeeper URL names: No such file"),
        ("zookeeper+tls://a?sslcert=%2Fno%2Fa.crt&sslkey=/no/a.key", "cannot use /no/a.crt"),
    ] {
        let error = ZookeeperUrl::parse(text).expect_err(text).to_string();
        assert!(error.contains(cause), "{text}: {error}");
    }
    let url = ZookeeperUrl::parse("zookeeper+tls://a?sslrootcert=system").unwrap();
    assert_eq!(url.tls(), Some(&Tls::default()));
}
