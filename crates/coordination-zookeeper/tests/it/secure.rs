//! Tests of TLS and of the authentication of users and clients.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use coordination::tree::Trees as _;
use coordination::tree::{Acl, CreateMode, Credentials, Grant, NodePath, Permissions, SessionOptions, Tree, TreeError};
use reveille_coordination_zookeeper::{ZookeeperTrees, ZookeeperUrl};
use runtime::Runtime;
use test_servers::certificate::Authority;
use test_servers::zookeeper::{Security, USERS, Zookeeper, shared, shared_secure};

use crate::support::{secure_parameters, secure_scheme, with_real_runtime};

/// Longest time until the error of a session that cannot open.
const LIMIT: Duration = Duration::from_secs(5);

async fn open_with(runtime: &Runtime, url: &str, options: SessionOptions) -> Result<Arc<dyn Tree>, TreeError> {
    let trees = ZookeeperTrees::new(runtime.clone(), ZookeeperUrl::parse(url).unwrap());
    let opened = runtime.timeout(LIMIT, trees.open(options)).await;
    opened.unwrap_or_else(|| panic!("{url}: no session and no error within {LIMIT:?}"))
}

async fn open(runtime: &Runtime, url: &str) -> Result<Arc<dyn Tree>, TreeError> {
    open_with(runtime, url, SessionOptions::default()).await
}

/// Checks that no session opens at `url`, and that the error contains `causes`.
async fn check_error(runtime: &Runtime, url: &str, causes: &[&str]) -> TreeError {
    let error = open(runtime, url).await.err().unwrap_or_else(|| panic!("{url}: a session was opened"));
    let text = error.to_string();
    assert!(causes.iter().all(|cause| text.contains(cause)), "{url}: {text}");
    assert!(USERS.iter().all(|(_, password)| !text.contains(password)), "{text}");
    error
}

fn with_roots(folder: &Path) -> String {
    format!("?sslrootcert={}", folder.join("root.crt").display())
}

#[test]
fn error_of_a_failed_handshake_names_the_cause_and_the_next_step() {
    with_real_runtime(async |runtime| {
        let (server, user) = (shared_secure(), secure_scheme());
        let (port, parameters) = (server.secure_port(), secure_parameters(server));
        let other = tempfile::tempdir().unwrap();
        Authority::create(other.path()).unwrap().issue(other.path(), "client").unwrap();
        let (other_roots, other) = (with_roots(other.path()), other.path().display());
        let other_client = format!("&sslcert={other}/client.crt&sslkey={other}/client.key");
        let roots = format!("?sslrootcert={}", server.certificate("root.crt").display());
        for (url, causes) in [
            (format!("{user}127.0.0.1:{port}/{parameters}"), &["host name 127.0.0.1", "contains localhost;"][..]),
            (format!("{user}localhost:{port}"), &["no trusted authority", "sslrootcert=FILE"]),
            (format!("{user}localhost:{port}/{other_roots}"), &["no trusted authority", "sslrootcert=FILE"]),
            (
                format!("{user}localhost:{port}/{roots}{other_client}"),
                &["rejected the client's certificate", "client.crt", "ssl.trustStore"],
            ),
        ] {
            let error = check_error(&runtime, &url, causes).await;
            assert!(!error.is_retryable(), "{url}: {error:?}");
        }
        for plain in [server.port(0), shared().port(0)] {
            let url = format!("{user}localhost:{plain}/{parameters}");
            check_error(&runtime, &url, &["during the TLS handshake", "secureClientPort", "zookeeper://"]).await;
        }
        check_error(&runtime, &format!("zookeeper://localhost:{port}"), &["zookeeper+tls://"]).await;
    });
}

#[test]
fn error_of_a_rejected_user_arrives_at_once() {
    with_real_runtime(async |runtime| {
        let server = shared_secure();
        let (port, parameters) = (server.secure_port(), secure_parameters(server));
        let plain = format!("127.0.0.1:{}", server.port(0));
        for (url, cause) in [
            (format!("zookeeper+tls://ann:wrong@localhost:{port}/{parameters}"), "rejected the user"),
            (format!("zookeeper+tls://dan:wrong@localhost:{port}/{parameters}"), "rejected the user"),
            (format!("zookeeper+tls://localhost:{port}/{parameters}"), "requires authentication; add a user"),
            (format!("zookeeper://ann:wrong@{plain}"), "rejected the user"),
            (format!("zookeeper://{plain}"), "requires authentication; add a user"),
            (format!("zookeeper://ann@{plain}"), "has no password"),
            (format!("zookeeper://ann:wrong@{}", shared().addresses()), "remove the user from the URL"),
        ] {
            let began = runtime.monotonic();
            let error = check_error(&runtime, &url, &[cause]).await;
            assert!(!error.is_retryable(), "{url}: {error:?}");
            let took = runtime.monotonic().since(began);
            assert!(took < Duration::from_secs(2), "{url}: the error arrived after {took:?}");
        }
    });
}

#[test]
fn session_opens_on_a_server_that_accepts_the_user() {
    with_real_runtime(async |runtime| {
        let (user, password) = USERS[0];
        let (without_users, with_users) = (shared().addresses(), shared_secure().addresses());
        for servers in [format!("{without_users},{with_users}"), format!("{with_users},{without_users}")] {
            let url = ZookeeperUrl::parse(&format!("zookeeper://{user}@{servers}")).unwrap();
            let trees = ZookeeperTrees::new(runtime.clone(), url.with_password(Some(password.to_owned())));
            // Each session begins with a random server.
            for _ in 0..8 {
                trees.open(SessionOptions::default()).await.unwrap().close().await.unwrap();
            }
        }
    });
}

#[test]
fn file_that_is_missing_for_a_moment_is_a_retryable_error() {
    with_real_runtime(async |runtime| {
        let (server, folder) = (shared_secure(), tempfile::tempdir().unwrap());
        let roots = folder.path().join("root.crt");
        std::fs::copy(server.certificate("root.crt"), &roots).unwrap();
        let url = format!("zookeeper+tls://localhost:{}?sslrootcert={}", server.secure_port(), roots.display());
        let trees = ZookeeperTrees::new(runtime.clone(), ZookeeperUrl::parse(&url).unwrap());
        std::fs::remove_file(&roots).unwrap();
        let error = trees.open(SessionOptions::default()).await.err().unwrap();
        assert!(error.is_retryable() && error.to_string().contains("sslrootcert"), "{error}");
    });
}

/// RFC 2831 encodes a password in ISO 8859-1 or in UTF-8, and ZooKeeper's server must encode it in the same way.
#[test]
fn users_authenticate_with_passwords_of_all_encodings() {
    with_real_runtime(async |runtime| {
        for (user, password) in USERS {
            let url = ZookeeperUrl::parse(&format!("zookeeper://{user}@{}", shared_secure().addresses())).unwrap();
            let trees = ZookeeperTrees::new(runtime.clone(), url.with_password(Some(password.to_owned())));
            let tree = trees.open(SessionOptions::default()).await.unwrap();
            tree.exists(&NodePath::root()).await.unwrap();
            tree.close().await.unwrap();
        }
    });
}

/// Several groups may use one user of ZooKeeper. Their nodes belong to their credentials and not to the user.
#[test]
fn nodes_belong_to_credentials_and_not_to_the_user() {
    with_real_runtime(async |runtime| {
        let server = shared_secure();
        let root = format!("test-{:032x}", runtime.random_u128());
        let url = format!("{}localhost:{}/{root}{}", secure_scheme(), server.secure_port(), secure_parameters(server));
        let owner = Credentials { name: "owner".to_owned(), password: "secret".to_owned() };
        let as_owner = || SessionOptions { credentials: vec![owner.clone()], ..SessionOptions::default() };
        let tree = open_with(&runtime, &url, as_owner()).await.unwrap();
        let path = NodePath::new("/a").unwrap();
        tree.create(&path, Bytes::new(), CreateMode::Persistent, Acl::Creator).await.unwrap();
        let grant = Grant { to: owner.identity(), permissions: Permissions::ALL };
        assert_eq!(tree.acl(&path).await, Ok(vec![grant]));
        let other = open(&runtime, &url).await.unwrap();
        assert_eq!(other.get(&path).await.err(), Some(TreeError::Forbidden));
        let top = NodePath::new("/").unwrap();
        assert_eq!(other.children(&top).await.err(), Some(TreeError::Forbidden));
        let again = open_with(&runtime, &url, as_owner()).await.unwrap();
        assert!(again.get(&path).await.is_ok());
    });
}

#[test]
fn client_certificate_is_read_again_for_each_connection() {
    let server = Zookeeper::start_secure(Security { requires_certificate: true, ..Security::default() }).unwrap();
    with_real_runtime(async |runtime| {
        let roots = format!("?sslrootcert={}", server.certificate("root.crt").display());
        let address = format!("zookeeper+tls://localhost:{}/{roots}", server.secure_port());
        let causes = ["requires a certificate of the client", "sslcert=FILE"];
        assert!(!check_error(&runtime, &address, &causes).await.is_retryable());

        let folder = tempfile::tempdir().unwrap();
        Authority::create(folder.path()).unwrap().issue(folder.path(), "client").unwrap();
        let (certificate, key) = (folder.path().join("client.crt"), folder.path().join("client.key"));
        let url = format!("{address}&sslcert={}&sslkey={}", certificate.display(), key.display());
        let trees = ZookeeperTrees::new(runtime.clone(), ZookeeperUrl::parse(&url).unwrap());
        let error = trees.open(SessionOptions::default()).await.err().unwrap().to_string();
        assert!(error.contains("rejected the client's certificate"), "{error}");
        std::fs::copy(server.certificate("client.crt"), certificate).unwrap();
        let error = trees.open(SessionOptions::default()).await.err().unwrap().to_string();
        assert!(error.contains("sslkey") && error.contains("does not belong to the certificate"), "{error}");
        std::fs::copy(server.certificate("client.key"), key).unwrap();
        let tree = trees.open(SessionOptions::default()).await.unwrap();
        tree.close().await.unwrap();
    });
}

#[test]
fn expired_certificate_of_a_server_is_named_in_the_error() {
    let server = Zookeeper::start_secure(Security { has_expired: true, ..Security::default() }).unwrap();
    with_real_runtime(async |runtime| {
        let url = format!("zookeeper+tls://localhost:{}/{}", server.secure_port(), secure_parameters(&server));
        let error = check_error(&runtime, &url, &["has expired", "renew it"]).await;
        assert!(!error.is_retryable(), "{error:?}");
    });
}
