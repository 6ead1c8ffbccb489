use super::*;

fn server(url: &str) -> Result<Server, UrlError> {
    Server::new(url, Options::default())
}

#[test]
fn display_and_debug_texts_of_server_contain_no_password() {
    let urls = [
        ("postgresql://ann:sec%40ret@db:5433/jobs?sslmode=require", "postgresql://ann@db:5433/jobs"),
        ("postgres://ann:sec?ret@db/jobs", "postgresql://ann@db:5432/jobs"),
        ("postgresql://ann:secret@one:1,two:2/jobs?application_name=x", "postgresql://ann@one:1,two:2/jobs"),
        ("postgresql://ann:secret@[::1]/jobs", "postgresql://ann@[::1]:5432/jobs"),
        ("postgresql://ann:secret@%2Frun%2Fpostgresql/jobs", "postgresql://ann@/run/postgresql:5432/jobs"),
    ];
    for (url, shown) in urls {
        let server = server(url).unwrap();
        assert_eq!(server.to_string(), shown);
        assert_eq!(format!("{server:?}"), format!("Server({shown})"));
    }
}

#[test]
fn error_of_invalid_url_contains_no_password() {
    let urls = [
        "mysql://ann:secret@db/jobs",
        "postgresql://",
        "postgresql://ann:secret@/jobs",
        "postgresql://ann:secret@db/jobs?sslmode=allow",
        "postgresql://ann:secret@db/jobs?sslmode=verify-ca&sslrootcert=/nowhere.pem",
        "postgresql://ann:secret@db/jobs?sslrootcert=%ff",
        "postgresql://ann:secret@db/jobs?color=blue",
        "postgresql://ann:secret/word@db:notaport/jobs",
        "postgresql://secret:se/cret@db/jobs?port=x",
    ];
    for url in urls {
        let error = server(url).unwrap_err();
        let text = format!("{error} {error:?}");
        assert!(!text.contains("secret"), "{text}");
    }
}

#[test]
fn url_parser_separates_tls_parameters_from_other_parameters() {
    let (rest, ssl) = take_ssl("postgresql://db/jobs?a=1&sslmode=verify-full&sslrootcert=%2Fa%20b&b=2").unwrap();
    assert_eq!(
        (rest.as_str(), ssl.mode, ssl.roots.as_deref()),
        ("postgresql://db/jobs?a=1&b=2", Mode::VerifyFull, Some("/a b"))
    );
    let (rest, ssl) = take_ssl("postgresql://db/jobs?sslmode=disable").unwrap();
    assert_eq!((rest.as_str(), ssl.mode, ssl.roots), ("postgresql://db/jobs", Mode::Disable, None));
    assert_eq!(take_ssl("postgresql://db/jobs").unwrap().1.mode, Mode::Prefer);
}
