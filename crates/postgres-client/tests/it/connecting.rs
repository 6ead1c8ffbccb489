use std::sync::OnceLock;
use std::time::Duration;

use reveille_postgres_client::{Failure, Options, Server};
use runtime::Runtime;
use test_servers::postgres::{Options as ServerOptions, Postgres, shared};

fn with_tls() -> &'static Postgres {
    static WITH_TLS: OnceLock<Postgres> = OnceLock::new();
    WITH_TLS.get_or_init(|| Postgres::start_with(ServerOptions { tls: true, ..ServerOptions::default() }).unwrap())
}

/// Connects to `url` and returns whether the connection is encrypted.
async fn connect(url: &str, options: Options) -> Result<bool, Failure> {
    let runtime = Runtime::real();
    let server = Server::new(url, options).unwrap();
    let (client, mut messages) = server.connect(&runtime).await?;
    let query = client.query_one("select ssl from pg_stat_ssl where pid = pg_backend_pid()", &[]);
    let driving = async { while futures_util::StreamExt::next(&mut messages).await.is_some() {} };
    let query = std::pin::pin!(query);
    let driving = std::pin::pin!(driving);
    match futures_util::future::select(query, driving).await {
        futures_util::future::Either::Left((row, _)) => Ok(row.unwrap().get(0)),
        futures_util::future::Either::Right(_) => panic!("the connection ended"),
    }
}

#[tokio::test]
async fn connection_uses_tls_as_the_url_parameters_require() {
    let server = with_tls();
    let other = Postgres::start_with(ServerOptions { tls: true, ..ServerOptions::default() }).unwrap();
    let other_root = other.root_certificate().display().to_string();
    let root = server.root_certificate().display().to_string();
    let at_ip = server.url("postgres");
    let at_name = at_ip.replace("127.0.0.1", "localhost");
    let connect_with = async |base: &str, query: &str| connect(&format!("{base}?{query}"), Options::default()).await;
    let is_tls = |result: &Result<bool, Failure>| matches!(result, Err(Failure::Tls { .. }));

    assert_eq!(connect_with(&at_ip, "sslmode=disable").await, Ok(false));
    assert_eq!(connect_with(&at_ip, "sslmode=prefer").await, Ok(true));
    assert_eq!(connect_with(&at_ip, "sslmode=require").await, Ok(true));
    let verify_ca = |root: &str| format!("sslmode=verify-ca&sslrootcert={root}");
    assert_eq!(connect_with(&at_ip, &verify_ca(&root)).await, Ok(true), "the name is not checked");
    let verify_full = |root: &str| format!("sslmode=verify-full&sslrootcert={root}");
    assert_eq!(connect_with(&at_name, &verify_full(&root)).await, Ok(true));
    for (base, query) in [
        (&at_ip, verify_full(&root)),
        (&at_name, verify_full(other_root.as_str())),
        (&at_name, verify_ca(other_root.as_str())),
        (&at_name, format!("sslmode=require&sslrootcert={other_root}")),
        (&at_name, "sslmode=verify-full".to_owned()),
        (&at_name, "sslmode=verify-ca&sslrootcert=system".to_owned()),
    ] {
        let result = connect_with(base, &query).await;
        assert!(is_tls(&result), "{query}: {result:?}");
    }

    let without = shared().url("postgres");
    assert_eq!(connect_with(&without, "sslmode=prefer").await, Ok(false));
    let result = connect_with(&without, "sslmode=require").await;
    assert!(is_tls(&result), "{result:?}");
}

#[tokio::test]
async fn error_of_a_rejected_connection_contains_no_password() {
    let url = shared().url("postgres");
    let wrong = url.replace("p%40ss", "no%40pe");
    let denied =
        [connect(&wrong, Options::default()).await, connect(&shared().url("nowhere"), Options::default()).await];
    for result in denied {
        let Err(failure @ Failure::Denied { .. }) = result else { panic!("{result:?}") };
        assert!(!failure.is_retryable());
        let text = format!("{failure} {failure:?}");
        assert!(text.contains("postgresql://postgres@127.0.0.1:") && !text.contains("pe:word"), "{text}");
    }
    let password = Some(test_servers::postgres::PASSWORD.to_owned());
    assert_eq!(connect(&wrong, Options { password, ..Options::default() }).await, Ok(false));
}

#[tokio::test]
async fn connection_to_an_unresponsive_server_fails_in_time() {
    let dead = connect("postgresql://user:secret@127.0.0.1:1/nothing", Options::default()).await;
    let Err(failure @ Failure::Unreachable { .. }) = dead else { panic!("{dead:?}") };
    assert!(failure.is_retryable() && !failure.to_string().contains("secret"), "{failure}");

    // The operating system accepts the connection for the listener, but no process ever responds.
    let silent = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let url = format!("postgresql://user:secret@{}/nothing", silent.local_addr().unwrap());
    let connect_timeout = Duration::from_millis(200);
    let result = connect(&url, Options { connect_timeout, ..Options::default() }).await;
    let Err(failure @ Failure::Silent { .. }) = result else { panic!("{result:?}") };
    assert!(failure.is_retryable() && !failure.to_string().contains("secret"), "{failure}");
}
