//! Tests in which this crate, Curator in Java and kazoo in Python use the same recipes on one server.

use std::collections::BTreeSet;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD as BASE64;
use bytes::Bytes;
use coordination::recipes::{
    Bag, BagChange, Barrier, Candidate, Client, Counter, Discovery, DoubleBarrier, Group, Layout, LeaderQueue,
    LeaderSelector, Lock, Position, RwLock, Semaphore, Service, Values,
};
use coordination::tree::{Acl, Credentials, NodePath, Sequence, SessionOptions};
use futures_util::FutureExt as _;
use reveille_coordination_zookeeper::{ZookeeperTrees, ZookeeperUrl};
use runtime::Runtime;
use serde_json::json;
use std::sync::Arc;
use test_servers::mixed::{self, Mixed};
use test_servers::zookeeper::{self, Zookeeper};

use crate::support::{connections, number, with_real_runtime};

const TIMEOUT: Duration = Duration::from_secs(4);
const LIMIT: Duration = Duration::from_secs(30);

struct Scene {
    runtime: Runtime,
    client: Client,
    path: NodePath,
}

impl Scene {
    fn new(runtime: &Runtime, credentials: Vec<Credentials>) -> Self {
        let url = format!("zookeeper://{}", zookeeper::shared().addresses());
        let trees = ZookeeperTrees::new(runtime.clone(), ZookeeperUrl::parse(&url).unwrap());
        let options = SessionOptions { timeout: TIMEOUT, credentials };
        let client = Client::new(runtime, Arc::new(trees), options);
        let path = NodePath::new(&format!("/mixed-{:032x}", runtime.random_u128())).unwrap();
        Scene { runtime: runtime.clone(), client, path }
    }

    async fn within<T>(&self, event: &str, future: impl Future<Output = T>) -> T {
        self.runtime.timeout(LIMIT, future).await.unwrap_or_else(|| panic!("timed out waiting until {event}"))
    }

    async fn until(&self, event: &str, mut condition: impl AsyncFnMut() -> bool) {
        let looking = async {
            while !condition().await {
                self.runtime.sleep(Duration::from_millis(10)).await;
            }
        };
        self.within(event, looking).await;
    }

    /// Waits until every request in progress has probably taken effect.
    async fn wait_a_while(&self) {
        self.runtime.sleep(Duration::from_millis(300)).await;
    }

    async fn node_count(&self, at: &NodePath) -> usize {
        let tree = self.client.session().await.unwrap();
        tree.sync().await.unwrap();
        tree.children(at).await.map_or(0, |children| children.names.len())
    }
}

fn curator() -> Mixed {
    mixed::curator(&zookeeper::shared().addresses(), TIMEOUT, None).unwrap()
}

fn kazoo() -> Mixed {
    mixed::kazoo(&zookeeper::shared().addresses(), TIMEOUT).unwrap()
}

#[test]
fn curator_and_this_crate_elect_one_common_leader() {
    with_real_runtime(async |runtime| {
        let (java, dying) = (curator(), curator());
        for (layout, kind) in [(Layout::Selector, "selector"), (Layout::Latch, "latch")] {
            let scene = Scene::new(&runtime, Vec::new());
            let group = &scene.path;
            let candidate = Candidate { layout, ..Candidate::new("rust") };
            let selector = LeaderSelector::new(&scene.client, group.clone(), candidate);
            let held = scene.within("this process leads", selector.lead()).await.unwrap();
            java.ask(&format!("lead {group} java {kind}")).unwrap();
            scene.until("both are in the line", async || selector.participants().await.unwrap().len() == 2).await;
            scene.wait_a_while().await;
            assert_eq!(java.events(), [""; 0], "there must be one leader");
            let ids: Vec<String> = selector.participants().await.unwrap().into_iter().map(|one| one.id).collect();
            let theirs = java.ask(&format!("participants {group} {kind}")).unwrap();
            let theirs: Vec<String> =
                theirs.split(' ').map(|id| String::from_utf8(BASE64.decode(id).unwrap()).unwrap()).collect();
            assert_eq!((ids, theirs), (vec!["rust".into(), "java".into()], vec!["rust".into(), "java".into()]));

            // The leadership moves to the Java process and back.
            let first = held.term();
            held.release().await;
            java.event(&format!("leads {group} java")).unwrap();
            let mut leading = selector.lead().boxed();
            scene.wait_a_while().await;
            assert!((&mut leading).now_or_never().is_none(), "there must be one leader");
            java.ask(&format!("resign {group} java")).unwrap();
            java.event(&format!("lost {group} java")).unwrap();
            let held = scene.within("this process leads", leading).await.unwrap();
            assert!(held.term() > first);
            held.release().await;
        }
        // The test kills the Java process while it leads.
        let scene = Scene::new(&runtime, Vec::new());
        let group = scene.path.clone();
        dying.ask(&format!("lead {group} java selector")).unwrap();
        dying.event(&format!("leads {group} java")).unwrap();
        let candidate = Candidate::new("rust");
        let selector = LeaderSelector::new(&scene.client, group, candidate);
        let mut leading = selector.lead().boxed();
        scene.wait_a_while().await;
        assert!((&mut leading).now_or_never().is_none(), "there must be one leader");
        drop(dying);
        scene.within("this process leads", leading).await.unwrap().release().await;
    });
}

/// Each process has a node in the same leader queue. At rest, both send only pings.
#[test]
fn session_at_rest_sends_at_most_twice_as_many_requests_as_kazoo() {
    with_real_runtime(async |runtime| {
        let ensemble = Zookeeper::start(1).unwrap();
        let url = ZookeeperUrl::parse(&format!("zookeeper://{}", ensemble.addresses())).unwrap();
        let options = SessionOptions { timeout: TIMEOUT, ..SessionOptions::default() };
        let client = Client::new(&runtime, Arc::new(ZookeeperTrees::new(runtime.clone(), url)), options);
        let queue = LeaderQueue::new(&client, &NodePath::new("/queue").unwrap(), Acl::Open).unwrap();
        let held = queue.join(Bytes::new()).await.unwrap().lead().await.unwrap();
        let python = mixed::kazoo(&ensemble.addresses(), TIMEOUT).unwrap();
        assert_eq!(python.ask("queue-join /queue eA==").unwrap(), "1");

        let own = format!("sid={},", client.session().await.unwrap().session().id());
        let received = || {
            let connections = connections(&ensemble);
            let (ours, kazoo): (Vec<&String>, Vec<&String>) = connections.iter().partition(|line| line.contains(&own));
            assert_eq!((ours.len(), kazoo.len()), (1, 1), "{connections:?}");
            [ours[0], kazoo[0]].map(|line| number(line, "recved="))
        };
        runtime.sleep(TIMEOUT / 2).await;
        let before = received();
        runtime.sleep(TIMEOUT * 3).await;
        let after = received();
        let [ours, kazoo] = [0, 1].map(|at| after[at] - before[at]);
        assert!(ours > 0 && ours <= 2 * kazoo, "{ours} requests of ours, {kazoo} of kazoo in 3 timeouts");
        held.release().await;
    });
}

/// Only sessions with the password may use the nodes of the lock.
#[test]
fn curator_with_the_password_acquires_a_password_protected_lock() {
    with_real_runtime(async |runtime| {
        let java = mixed::curator(&zookeeper::shared().addresses(), TIMEOUT, Some("mail:of the postman")).unwrap();
        let credentials = Credentials { name: "mail".to_owned(), password: "of the postman".to_owned() };
        let scene = Scene::new(&runtime, vec![credentials]);
        let stranger = Scene::new(&runtime, Vec::new());
        let lock = Lock::new(&scene.client, scene.path.clone(), Acl::Creator);
        let held = scene.within("the lock is acquired", lock.acquire()).await.unwrap();
        let theirs = java.begin(&format!("lock {}", scene.path)).unwrap();
        scene.until("both are in the line", async || scene.node_count(&scene.path).await == 2).await;
        let others = Lock::new(&stranger.client, scene.path.clone(), Acl::Open);
        assert!(scene.within("the acquisition is rejected", others.acquire()).await.is_err());
        assert!(!theirs.is_answered());
        held.release().await;
        theirs.answer().unwrap();
        java.ask(&format!("unlock {}", scene.path)).unwrap();
        scene.within("the lock is acquired", lock.acquire()).await.unwrap().release().await;
    });
}

#[test]
#[expect(clippy::disallowed_methods, reason = "a thread of a test's own sleeps")]
fn lock_is_exclusive_among_curator_kazoo_and_this_crate() {
    with_real_runtime(async |runtime| {
        let (java, python) = (curator(), kazoo());
        let scene = Scene::new(&runtime, Vec::new());
        let at = scene.path.join("lock").unwrap();
        let lock = Lock::new(&scene.client, at.clone(), Acl::Open);
        for other in [&java, &python] {
            let held = scene.within("the lock is acquired", lock.acquire()).await.unwrap();
            let theirs = other.begin(&format!("lock {at}")).unwrap();
            scene.until("both are in the line", async || scene.node_count(&at).await == 2).await;
            scene.wait_a_while().await;
            assert!(!theirs.is_answered() && held.is_valid());
            held.release().await;
            theirs.answer().unwrap();
            let mut ours = lock.acquire().boxed();
            scene.wait_a_while().await;
            assert!((&mut ours).now_or_never().is_none(), "the other process holds the lock");
            other.ask(&format!("unlock {at}")).unwrap();
            scene.within("the lock is acquired", ours).await.unwrap().release().await;
        }
        // This process, the Java process and the Python process compete for the lock, which protects two numbers.
        let shared = std::sync::Mutex::new((0, 0));
        let each = |other: &Mixed| {
            for _ in 0..10 {
                other.ask(&format!("lock {at}")).unwrap();
                let mut inside = shared.lock().unwrap();
                inside.0 += 1;
                assert_eq!(inside.0, 1, "two processes hold the lock");
                drop(inside);
                std::thread::sleep(Duration::from_millis(2));
                let mut inside = shared.lock().unwrap();
                *inside = (inside.0 - 1, inside.1 + 1);
                drop(inside);
                other.ask(&format!("unlock {at}")).unwrap();
            }
        };
        std::thread::scope(|threads| {
            let (with_java, with_python) = (threads.spawn(|| each(&java)), threads.spawn(|| each(&python)));
            let ours = async {
                for _ in 0..10 {
                    let held = scene.within("the lock is acquired", lock.acquire()).await.unwrap();
                    {
                        let mut inside = shared.lock().unwrap();
                        inside.0 += 1;
                        assert_eq!(inside.0, 1, "two processes hold the lock");
                    }
                    runtime.sleep(Duration::from_millis(2)).await;
                    {
                        let mut inside = shared.lock().unwrap();
                        *inside = (inside.0 - 1, inside.1 + 1);
                    }
                    held.release().await;
                }
            };
            tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(ours));
            with_java.join().unwrap();
            with_python.join().unwrap();
        });
        assert_eq!(shared.into_inner().unwrap(), (0, 30));
    });
}

#[test]
fn curator_and_this_crate_share_read_write_locks_and_semaphores() {
    with_real_runtime(async |runtime| {
        let java = curator();
        let scene = Scene::new(&runtime, Vec::new());
        let at = scene.path.join("rw").unwrap();
        let lock = RwLock::new(&scene.client, at.clone(), Acl::Open);
        java.ask(&format!("read {at}")).unwrap();
        let reading = scene.within("a second reader is admitted", lock.read()).await.unwrap();
        let theirs = java.begin(&format!("write {at}")).unwrap();
        scene.until("the writer is in the line", async || scene.node_count(&at).await == 3).await;
        let mut ours = lock.read().boxed();
        scene.wait_a_while().await;
        assert!(
            (&mut ours).now_or_never().is_none() && !theirs.is_answered(),
            "the writer waits, and so does the reader behind it"
        );
        java.ask(&format!("unread {at}")).unwrap();
        scene.wait_a_while().await;
        assert!(!theirs.is_answered(), "a reader still holds the lock");
        reading.release().await;
        theirs.answer().unwrap();
        assert!((&mut ours).now_or_never().is_none(), "a writer holds the lock");
        java.ask(&format!("unwrite {at}")).unwrap();
        let reading = scene.within("the reader is admitted", ours).await.unwrap();
        let mut writing = lock.write().boxed();
        scene.wait_a_while().await;
        assert!((&mut writing).now_or_never().is_none(), "a reader still holds the lock");
        reading.release().await;
        let writing = scene.within("the writer is admitted", writing).await.unwrap();
        let theirs = java.begin(&format!("read {at}")).unwrap();
        scene.wait_a_while().await;
        assert!(!theirs.is_answered(), "a writer holds the lock");
        writing.release().await;
        theirs.answer().unwrap();

        let at = scene.path.join("pool").unwrap();
        let semaphore = Semaphore::new(&scene.client, &at, 2, Acl::Open).unwrap();
        let first = scene.within("a lease is acquired", semaphore.acquire()).await.unwrap();
        java.ask(&format!("lease {at} 2")).unwrap();
        let theirs = java.begin(&format!("lease {at} 2")).unwrap();
        scene.wait_a_while().await;
        let mut ours = semaphore.acquire().boxed();
        scene.wait_a_while().await;
        assert!(!theirs.is_answered() && (&mut ours).now_or_never().is_none(), "both leases are taken");
        first.release().await;
        theirs.answer().unwrap();
        scene.wait_a_while().await;
        assert!((&mut ours).now_or_never().is_none(), "both leases are taken");
        java.ask(&format!("unlease {at}")).unwrap();
        scene.within("a lease is acquired", ours).await.unwrap().release().await;
    });
}

#[test]
fn curator_and_this_crate_share_counters_barriers_and_groups() {
    with_real_runtime(async |runtime| {
        let java = curator();
        let scene = Scene::new(&runtime, Vec::new());
        let at = |name: &str| scene.path.join(name).unwrap();
        let counter = Counter::new(&scene.client, at("count"), Acl::Open);
        assert_eq!(java.ask(&format!("add {} 40", at("count"))).unwrap(), "40");
        assert_eq!(scene.within("the sum is returned", counter.add(-42)).await, Ok(-2));
        assert_eq!(java.ask(&format!("get {}", at("count"))).unwrap(), "-2");

        let barrier = Barrier::new(&scene.client, at("gate"), Acl::Open);
        java.ask(&format!("barrier-close {}", at("gate"))).unwrap();
        let mut passing = barrier.passed().boxed();
        scene.wait_a_while().await;
        assert!((&mut passing).now_or_never().is_none(), "the barrier is closed");
        java.ask(&format!("barrier-open {}", at("gate"))).unwrap();
        assert_eq!(scene.within("the barrier lets this process pass", passing).await, Ok(()));
        barrier.close().await.unwrap();
        let theirs = java.begin(&format!("barrier-wait {}", at("gate"))).unwrap();
        scene.wait_a_while().await;
        assert!(!theirs.is_answered());
        barrier.open().await.unwrap();
        theirs.answer().unwrap();

        let double = DoubleBarrier::new(&scene.client, at("double"), 2, Acl::Open).unwrap();
        let theirs = java.begin(&format!("enter {} 2", at("double"))).unwrap();
        let entered = scene.within("both enter", double.enter()).await.unwrap();
        theirs.answer().unwrap();
        let theirs = java.begin(&format!("leave {} 2", at("double"))).unwrap();
        scene.within("both leave", entered.leave()).await.unwrap();
        theirs.answer().unwrap();

        let group = Group::new(&scene.client, at("group"), Acl::Open);
        let ours = group.join("rust", Bytes::from_static(b"ours")).unwrap();
        java.ask(&format!("member {} java {}", at("group"), BASE64.encode("theirs"))).unwrap();
        let mut members = group.follow().await.unwrap();
        let both = members.until(|now| now.members.keys().eq(["java", "rust"]));
        assert_eq!(scene.within("both members are visible", both).await.members["java"], "theirs");
        let seen = async || java.ask(&format!("members {}", at("group"))).unwrap() == "java rust";
        scene.until("both members are visible to Curator", seen).await;
        drop(ours);
        let seen = async || java.ask(&format!("members {}", at("group"))).unwrap() == "java";
        scene.until("the departed member disappears for Curator", seen).await;
        drop(java);
        scene.within("the killed member disappears", members.until(|now| now.members.is_empty())).await;
    });
}

#[test]
fn kazoo_and_this_crate_share_bags() {
    with_real_runtime(async |runtime| {
        let (python, dying) = (kazoo(), kazoo());
        let scene = Scene::new(&runtime, Vec::new());
        let at = &scene.path;
        let bag = Bag::new(&scene.client, at, Acl::Open).unwrap();
        let first = bag.add(Bytes::from_static(b"ours")).await.unwrap();
        assert_eq!(python.ask(&format!("bag-listen {at}")).unwrap(), "0");
        assert_eq!(python.ask(&format!("bag-get {at} 0")).unwrap(), BASE64.encode("ours"));
        let mut listener = bag.listen().await.unwrap();
        assert_eq!(*listener.present(), BTreeSet::from([first]));

        let own = bag.add_own(Bytes::new()).await.unwrap();
        python.event(&format!("added {at} 1")).unwrap();
        assert_eq!(scene.within("a change is reported", listener.next()).await, BagChange::Added(own.id()));
        assert_eq!(dying.ask(&format!("bag-add {at} {} ephemeral", BASE64.encode("theirs"))).unwrap(), "2");
        python.event(&format!("added {at} 2")).unwrap();
        assert_eq!(scene.within("a change is reported", listener.next()).await, BagChange::Added(Sequence(2)));
        assert_eq!(bag.get(Sequence(2)).await, Ok(Some(Bytes::from_static(b"theirs"))));

        assert_eq!(python.ask(&format!("bag-remove {at} 0")).unwrap(), "true");
        assert_eq!(scene.within("a change is reported", listener.next()).await, BagChange::Removed(first));
        own.remove().await;
        python.event(&format!("removed {at} 1")).unwrap();
        assert_eq!(scene.within("a change is reported", listener.next()).await, BagChange::Removed(Sequence(1)));
        // When a process dies, all listeners of the bag receive the removal of its ephemeral item.
        drop(dying);
        assert_eq!(scene.within("a change is reported", listener.next()).await, BagChange::Removed(Sequence(2)));
        python.event(&format!("removed {at} 2")).unwrap();
        assert_eq!(python.ask(&format!("bag-add {at} {} persistent", BASE64.encode("last"))).unwrap(), "3");
        assert_eq!(scene.within("a change is reported", listener.next()).await, BagChange::Added(Sequence(3)));
        assert_eq!(bag.remove(Sequence(3)).await, Ok(true));
    });
}

#[test]
fn kazoo_and_this_crate_share_leader_queues() {
    with_real_runtime(async |runtime| {
        let (python, dying) = (kazoo(), kazoo());
        let scene = Scene::new(&runtime, Vec::new());
        let at = &scene.path;
        let queue = LeaderQueue::new(&scene.client, at, Acl::Open).unwrap();
        assert_eq!(dying.ask(&format!("queue-join {at} {}", BASE64.encode("first"))).unwrap(), "0");
        dying.event(&format!("elected {at} 0")).unwrap();
        let ours = queue.join(Bytes::from_static(b"second")).await.unwrap();
        assert_eq!(python.ask(&format!("queue-join {at} {}", BASE64.encode("third"))).unwrap(), "2");
        let mut position = ours.follow().await;
        scene.within("this process is second", position.until(|at| *at == Position::Queued(1))).await;
        let seen = queue.candidates().await.unwrap();
        assert!(seen.iter().map(|node| &node.data[..]).eq([&b"first"[..], b"second", b"third"]), "{seen:?}");
        drop(dying);
        let held = scene.within("this process leads", ours.lead()).await.unwrap();
        scene.wait_a_while().await;
        assert_eq!(python.events(), [""; 0], "there must be one leader");
        held.release().await;
        python.event(&format!("elected {at} 2")).unwrap();
        let next = queue.join(Bytes::new()).await.unwrap();
        assert_eq!(python.ask(&format!("queue-leave {at} 2")).unwrap(), "true");
        scene.within("this process leads", next.lead()).await.unwrap().release().await;
    });
}

#[test]
fn kazoo_and_this_crate_discover_registered_services() {
    with_real_runtime(async |runtime| {
        let (python, dying) = (kazoo(), kazoo());
        let scene = Scene::new(&runtime, Vec::new());
        // All discovery tests use the same root node, because the library Petting Zoo fixes its path.
        let class = format!("kestrel/{}", scene.path.name());
        let service = Service { class: class.clone(), name: "platform".to_owned() };
        let discovery = Discovery::new(&scene.client, NodePath::new(Discovery::ROOT).unwrap(), Acl::Open);
        let mut found = discovery.follow(&service).await.unwrap();
        assert_eq!(python.ask(&format!("discover-watch {class} platform")).unwrap(), "0");
        let payload: Values = json!({"host": "localhost", "port": 22133}).as_object().unwrap().clone();
        let ours = discovery.register(&service, "10.0.0.1", payload).unwrap();
        python.event(&format!("discovered {class} platform 1")).unwrap();
        let read = python.ask(&format!("discover-read {class} platform")).unwrap();
        let (key, yaml) = read.split_once('=').unwrap();
        let yaml = String::from_utf8(BASE64.decode(yaml).unwrap()).unwrap();
        assert!(key == "10.0.0.1" && yaml.contains("22133") && yaml.contains("service_class"), "{yaml}");

        let text = format!("header: {{service_class: {class}, metadata: {{protocol: memcached}}}}\nport: 7\n");
        let write = format!("discover-write {class} platform 10.0.0.2 {}", BASE64.encode(&text));
        dying.ask(&write).unwrap();
        let both = found.until(|now| now.all.len() == 2);
        assert_eq!(scene.within("both instances are found", both).await.all[1].payload["port"], json!(7));
        // The Python process deletes the instance's node and creates it again. This process must never report that the
        // instance is gone.
        let text = text.replace("port: 7", "port: 8");
        dying.ask(&format!("discover-write {class} platform 10.0.0.2 {}", BASE64.encode(text))).unwrap();
        let mut seen = Vec::new();
        let changed = async {
            while found.now().all.get(1).map(|one| one.payload["port"].clone()) != Some(json!(8)) {
                seen.push(found.changed().await.all.len());
            }
        };
        scene.within("the change is visible", changed).await;
        assert!(seen.iter().all(|count| *count == 2), "{seen:?}");
        drop(dying);
        scene.within("the killed instance disappears", found.until(|now| now.all.len() == 1)).await;
        drop(ours);
        scene.within("the removed instance disappears", found.until(|now| now.all.is_empty())).await;
        python.event(&format!("discovered {class} platform 0")).unwrap();
    });
}
