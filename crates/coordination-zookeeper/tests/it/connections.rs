//! Tests of watches and events when a client loses its connection and connects again.

use std::time::Duration;

use bytes::Bytes;
use coordination::tree::{
    Acl, CreateMode, Credentials, Event, Expected, NodePath, Op, SessionOptions, SessionState, TreeError, Trees as _,
};
use futures_util::StreamExt as _;
use reveille_coordination_zookeeper::{ZookeeperTrees, ZookeeperUrl};
use test_servers::{Proxy, zookeeper};

use crate::support::{secure_parameters, secure_scheme, with_real_runtime};

const LIMIT: Duration = Duration::from_secs(30);

#[test]
fn watches_and_event_streams_survive_a_lost_connection() {
    let port = zookeeper::shared().port(0);
    lose_connection(port, Duration::from_secs(15), |address, root| format!("zookeeper://{address}/{root}"));
}

#[test]
fn watches_and_event_streams_survive_a_lost_connection_with_tls_and_a_user() {
    let server = zookeeper::shared_secure();
    lose_connection(server.secure_port(), Duration::from_secs(5), |address, root| {
        format!("{}localhost:{}/{root}{}", secure_scheme(), address.port(), secure_parameters(server))
    });
}

fn lose_connection(port: u16, timeout: Duration, url: impl Fn(std::net::SocketAddr, &str) -> String) {
    with_real_runtime(async |runtime| {
        let server = ([127, 0, 0, 1], port).into();
        let proxy = Proxy::start(server).unwrap();
        let root = format!("test-{:032x}", runtime.random_u128());
        let open = async |address: std::net::SocketAddr| {
            let url = ZookeeperUrl::parse(&url(address, &root)).unwrap();
            let options = SessionOptions { timeout, ..SessionOptions::default() };
            ZookeeperTrees::new(runtime.clone(), url).open(options).await.unwrap()
        };
        let (tree, other) = (open(proxy.address()).await, open(server).await);
        let path = NodePath::new("/a").unwrap();
        let (_, watch) = tree.exists_and_watch(&path).await.unwrap();
        let mut events = tree.watch_all(&NodePath::root()).await.unwrap();
        let (mut state, id) = (tree.session().state(), tree.session().id());

        proxy.cut(true);
        other.create(&path, Bytes::new(), CreateMode::Persistent, Acl::Open).await.unwrap();
        let suspended = state.wait_for(|state| *state == SessionState::Suspended);
        runtime.timeout(LIMIT, suspended).await.unwrap().unwrap();
        proxy.cut(false);

        assert_eq!(runtime.timeout(LIMIT, watch).await, Some(Ok(Event::Created(path.clone()))));
        assert_eq!(runtime.timeout(LIMIT, events.next()).await, Some(Some(Event::Gap)));
        let connected = state.wait_for(|state| *state == SessionState::Connected);
        runtime.timeout(LIMIT, connected).await.unwrap().unwrap();
        assert_eq!(tree.session().id(), id);
        // After the reconnect, the stream reports new events.
        other.delete(&path, Expected::Any).await.unwrap();
        let mut earlier = events.take_while(|event| std::future::ready(*event != Event::Deleted(path.clone())));
        runtime.timeout(LIMIT, async { while earlier.next().await.is_some() {} }).await.unwrap();
    });
}

/// The server must free the memory of a dropped watch before the session ends.
#[test]
fn server_removes_watches_that_the_client_drops() {
    with_real_runtime(async |runtime| {
        let server = zookeeper::shared();
        let root = format!("test-{:032x}", runtime.random_u128());
        let url = ZookeeperUrl::parse(&format!("zookeeper://127.0.0.1:{}/{root}", server.port(0))).unwrap();
        let tree = ZookeeperTrees::new(runtime.clone(), url).open(SessionOptions::default()).await.unwrap();
        let path = NodePath::new("/a").unwrap();
        tree.create(&path, Bytes::new(), CreateMode::Persistent, Acl::Open).await.unwrap();
        let watched = || server.ask(0, "wchp").unwrap().lines().filter(|line| line.contains(&root)).count();
        let missing = NodePath::new("/b").unwrap();
        let (_, data) = tree.get_and_watch(&path).await.unwrap();
        let (_, coming) = tree.exists_and_watch(&missing).await.unwrap();
        let events = tree.watch_all(&path).await.unwrap();
        assert_eq!(watched(), 2, "two nodes are watched: {}", server.ask(0, "wchp").unwrap());
        drop(data);
        drop((coming, events));
        let gone = async {
            while watched() > 0 {
                runtime.sleep(Duration::from_millis(10)).await;
            }
        };
        runtime.timeout(LIMIT, gone).await.unwrap();
    });
}

/// The client tries to connect at least once per second, so it continues the session right after the server's return.
#[test]
fn session_survives_a_server_that_is_away_for_most_of_its_timeout() {
    with_real_runtime(async |runtime| {
        let server = ([127, 0, 0, 1], zookeeper::shared().port(0)).into();
        let proxy = Proxy::start(server).unwrap();
        let url = ZookeeperUrl::parse(&format!("zookeeper://{}", proxy.address())).unwrap();
        let timeout = Duration::from_secs(10);
        let options = SessionOptions { timeout, ..SessionOptions::default() };
        let tree = ZookeeperTrees::new(runtime.clone(), url).open(options).await.unwrap();
        assert_eq!(tree.session().timeout(), timeout);
        let mut state = tree.session().state();
        proxy.cut(true);
        let cut_at = runtime.monotonic();
        let suspended = state.wait_for(|state| *state == SessionState::Suspended);
        runtime.timeout(LIMIT, suspended).await.unwrap().unwrap();
        let noticed_after = runtime.monotonic().since(cut_at);
        assert!(noticed_after <= timeout / 3, "the client noticed the cut after {noticed_after:?}");
        runtime.sleep_until(cut_at + timeout * 6 / 10).await;
        proxy.cut(false);
        let connected = state.wait_for(|state| *state != SessionState::Suspended);
        assert_eq!(*runtime.timeout(LIMIT, connected).await.unwrap().unwrap(), SessionState::Connected);
        tree.sync().await.unwrap();
    });
}

#[test]
fn error_of_a_session_that_cannot_open_names_the_cause_for_each_server() {
    with_real_runtime(async |runtime| {
        let web = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = web.local_addr().unwrap();
        let unused = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
        let responds = async {
            loop {
                let (mut client, _) = web.accept().await.unwrap();
                let _client_is_gone =
                    tokio::io::AsyncWriteExt::write_all(&mut client, b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
            }
        };
        let url = ZookeeperUrl::parse(&format!("zookeeper://{unused},no-such-host.invalid:2181,{address}/x")).unwrap();
        let trees = ZookeeperTrees::new(runtime.clone(), url);
        let began = runtime.monotonic();
        let error = tokio::select! {
            () = responds => unreachable!("the web server never stops"),
            opened = trees.open(SessionOptions::default()) => opened.err().unwrap().to_string(),
        };
        for cause in [
            &format!("{unused}: Connection refused"),
            "no-such-host.invalid:2181: the host name does not resolve",
            &format!("{address}: the server sent a message of 1213486160 bytes; is this address a ZooKeeper server?"),
            "check the URL",
        ] {
            assert!(error.contains(cause), "{error} contains {cause}");
        }
        assert!(runtime.monotonic().since(began) < Duration::from_secs(10), "the error arrives in time");
    });
}

#[test]
fn error_of_a_server_before_version_3_6_names_the_version() {
    let server = zookeeper::Zookeeper::start_outdated().unwrap();
    with_real_runtime(async |runtime| {
        let url = ZookeeperUrl::parse(&format!("zookeeper://{}", server.addresses())).unwrap();
        let trees = ZookeeperTrees::new(runtime.clone(), url);
        let opened = runtime.timeout(Duration::from_secs(2), trees.open(SessionOptions::default())).await;
        let error = opened.expect("the error arrives in time").err().expect("the server is too old");
        assert!(!error.is_retryable() && error.to_string().contains("older than version 3.6"), "{error}");
    });
}

/// A mistyped root stays missing until a session creates a node below it.
#[test]
fn session_creates_its_root_with_its_first_node_only() {
    with_real_runtime(async |runtime| {
        let address = format!("127.0.0.1:{}", zookeeper::shared().port(0));
        let parent = format!("test-{:032x}", runtime.random_u128());
        let open = async |root: &str, options| {
            let url = ZookeeperUrl::parse(&format!("zookeeper://{address}/{root}")).unwrap();
            ZookeeperTrees::new(runtime.clone(), url).open(options).await.unwrap()
        };
        let as_owner = || {
            let credentials = Credentials { name: "owner".to_owned(), password: "secret".to_owned() };
            SessionOptions { credentials: vec![credentials], ..SessionOptions::default() }
        };
        let (all, root, node) =
            (open("", SessionOptions::default()).await, NodePath::root(), NodePath::new("/a").unwrap());
        let top = NodePath::new(&format!("/{parent}")).unwrap();

        let tree = open(&format!("{parent}/owned"), as_owner()).await;
        assert_eq!(tree.exists(&node).await, Ok(None));
        assert_eq!(tree.children(&root).await, Err(TreeError::NoNode));
        assert_eq!(tree.delete(&node, Expected::Any).await, Err(TreeError::NoNode));
        assert_eq!(all.exists(&top).await, Ok(None), "reads created the root");
        let below = NodePath::new("/a/b").unwrap();
        let create = |path: &NodePath| Op::Create {
            path: path.clone(),
            data: Bytes::new(),
            mode: CreateMode::Persistent,
            acl: Acl::Creator,
        };
        let check = Op::Check { path: node.clone(), expected: Expected::Any };
        assert!(matches!(tree.multi(vec![check]).await, Err(TreeError::Multi { at: 0, .. })));
        assert_eq!(all.exists(&top).await, Ok(None), "a multi that creates nothing created the root");
        tree.multi(vec![create(&node), create(&below)]).await.unwrap();
        assert_eq!(tree.children(&root).await.unwrap().names, ["a"]);
        let missing = NodePath::new("/missing/b").unwrap();
        let created = tree.create(&missing, Bytes::new(), CreateMode::Persistent, Acl::Creator).await;
        assert_eq!(created.err(), Some(TreeError::NoNode), "the root exists, but not the parent");

        // The root belongs to the credentials of the session that created it, but not the node above it.
        let other = open(&format!("{parent}/owned"), SessionOptions::default()).await;
        assert_eq!(other.children(&root).await, Err(TreeError::Forbidden));
        // Sessions that create the first node at the same time all succeed.
        let names = ["/a", "/b", "/c", "/d"].map(|name| NodePath::new(name).unwrap());
        let firsts = names.iter().map(async |name| {
            let other = open(&format!("{parent}/other"), SessionOptions::default()).await;
            other.create(name, Bytes::new(), CreateMode::Persistent, Acl::Open).await
        });
        for created in futures_util::future::join_all(firsts).await {
            created.unwrap();
        }
        let again = open(&format!("{parent}/owned"), as_owner()).await;
        assert_eq!(again.children(&root).await.unwrap().names, ["a",]);
        assert_eq!(
            again.create(&root, Bytes::new(), CreateMode::Persistent, Acl::Open).await.err(),
            Some(TreeError::NodeExists)
        );
    });
}
