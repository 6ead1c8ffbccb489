//! Seed 001: shards become 4, 8 and 2 while observations flow and processes come, go and are killed; and parameters reach who is subscribed.

use std::collections::BTreeMap;
use std::net::UdpSocket;
use std::sync::{Arc, Mutex};

use coordination::recipes::{Bag, OwnItem, RoleMatch};
use coordination::tree::{Acl, Zxid};

use super::*;

const SESSION: Duration = Duration::from_secs(2);
const MODELS: [&str; 2] = ["ability", "difficulty"];

fn streams(url: &str, rest: &[&str]) -> Vec<String> {
    let session = SESSION.as_millis().to_string();
    let all = [&[url, "--session-millis", &session], rest].concat();
    all.into_iter().map(str::to_owned).collect()
}

fn start(folder: &Path, url: &str, name: &str, rest: &[&str]) -> Process {
    let arguments = streams(url, rest);
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    Process::start(folder, name, "streams", &arguments)
}

fn shard(url: &str, count: usize) {
    let (arguments, count) = (streams(url, &["shard"]), count.to_string());
    // A database with much to do may not answer in time; then it is done again.
    until("the shards are so many", || {
        example("streams", &[]).args(&arguments).arg(&count).output().unwrap().status.success()
    });
}

/// Which shard has learnt an observation, in the engine's order.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Learnt {
    at: Zxid,
    key: String,
    /// In the inbox.
    number: usize,
    shards: usize,
    shard: usize,
    term: u64,
    by: String,
}

/// The test's own look at a model.
struct Look {
    name: &'static str,
    nodes: Nodes,
    path: NodePath,
}

impl Look {
    fn new(nodes: &Nodes, name: &'static str) -> Self {
        Look { name, nodes: nodes.clone(), path: NodePath::new("/streams").unwrap().join(name).unwrap() }
    }

    fn place(&self, name: &str) -> NodePath {
        self.path.join(name).unwrap()
    }

    /// The nodes there, with their text.
    async fn texts(&self, place: &str) -> Vec<(String, String, Zxid)> {
        let place = self.place(place);
        let mut nodes = Vec::new();
        for name in self.nodes.names(&place).await {
            let node = self.nodes.get(&place.join(&name).unwrap()).await.expect("nobody removes it");
            nodes.push((name, String::from_utf8(node.data.to_vec()).unwrap(), node.stat.created));
        }
        nodes
    }

    async fn learnt(&self) -> Vec<Learnt> {
        let learnt = |(name, text, at): (String, String, Zxid)| {
            let (key, number) = name.rsplit_once('.').unwrap();
            // SHARD of SHARDS TERM BY
            let words: Vec<&str> = text.split(' ').collect();
            Learnt {
                at,
                key: key.to_owned(),
                number: number.parse().unwrap(),
                shards: words[2].parse().unwrap(),
                shard: words[0].parse().unwrap(),
                term: words[3].parse().unwrap(),
                by: words[4].to_owned(),
            }
        };
        let mut all: Vec<Learnt> = self.texts("done").await.into_iter().map(learnt).collect();
        all.sort();
        all
    }

    /// How many observations each parameter has learnt.
    async fn counts(&self) -> BTreeMap<String, usize> {
        let count = |(key, text, _): (String, String, Zxid)| (key, text.split_once(' ').unwrap().1.parse().unwrap());
        self.texts("parameters").await.into_iter().map(count).collect()
    }

    /// The holders of its shards, with each shard.
    async fn holders(&self) -> Vec<String> {
        let shards = RoleMatch::new(&self.nodes.client, &self.place("shards"), Acl::Open).unwrap();
        let assignments = patiently(async || shards.assignments().await).await.unwrap_or_default();
        assignments.into_values().map(|held| String::from_utf8(held.holder.to_vec()).unwrap()).collect()
    }

    /// What must be so once the inbox is empty.
    async fn check(&self) -> Vec<Learnt> {
        let learnt = self.learnt().await;
        let mut numbers: Vec<usize> = learnt.iter().map(|learnt| learnt.number).collect();
        numbers.sort_unstable();
        assert!(numbers.iter().copied().eq(0..learnt.len()), "{}: each is learnt: {numbers:?}", self.name);
        assert_eq!(self.counts().await.values().sum::<usize>(), learnt.len(), "{}: and once", self.name);
        // Each count of shards ends before the next begins, and each holder of a shard before the next.
        let mut shards: Vec<usize> = learnt.iter().map(|learnt| learnt.shards).collect();
        shards.dedup();
        assert_eq!(shards, [4, 8, 2], "{}: {learnt:?}", self.name);
        let mut terms = BTreeMap::new();
        for learnt in &learnt {
            let before = terms.insert((learnt.shards, learnt.shard), learnt.term);
            assert!(before <= Some(learnt.term), "{}: {learnt:?} after {before:?}", self.name);
        }
        learnt
    }
}

/// A subscriber of the test's own, to both models, which knows the last count that it was told of each parameter: `MODEL KEY`.
struct Subscriber {
    address: String,
    told: Arc<Mutex<BTreeMap<String, usize>>>,
    _subscriptions: Vec<OwnItem>,
}

impl Subscriber {
    async fn new(looks: &[Look; 2]) -> Self {
        let (socket, told) = (UdpSocket::bind("127.0.0.1:0").unwrap(), Arc::<Mutex<BTreeMap<_, _>>>::default());
        let address = socket.local_addr().unwrap().to_string();
        let mut subscriptions = Vec::new();
        for look in looks {
            let bag = Bag::new(&look.nodes.client, &look.place("subscribers"), Acl::Open).unwrap();
            subscriptions.push(bag.add_own(address.clone().into()).await.unwrap());
        }
        let hearing = told.clone();
        std::thread::spawn(move || {
            let mut message = [0; 1_024];
            while let Ok(count) = socket.recv(&mut message) {
                // MODEL KEY VALUE COUNT
                let text = std::str::from_utf8(&message[..count]).unwrap();
                let (parameter, count) = text.rsplit_once(' ').unwrap();
                let (key, _) = parameter.rsplit_once(' ').unwrap();
                hearing.lock().unwrap().insert(key.to_owned(), count.parse().unwrap());
            }
        });
        Subscriber { address, told, _subscriptions: subscriptions }
    }
}

fn flows(url: &str) {
    on_real(async |runtime| {
        let folder = tempfile::tempdir().unwrap();
        let nodes = Nodes::open(&runtime, url).await;
        let worker = |name| start(folder.path(), url, name, &["work", "--name", name, "--hands", "3"]);
        let (ann, mut bob, cyd) = (worker("ann"), worker("bob"), worker("cyd"));
        shard(url, 4);
        let looks = MODELS.map(|model| Look::new(&nodes, model));
        let subscriber = Subscriber::new(&looks).await;
        for process in [&ann, &bob, &cyd] {
            let follows = |model| process.told().matches(&format!(" follows {model}\n")).count();
            until("all are known as subscribers", || MODELS.iter().all(|model| follows(model) >= 4));
            assert!(process.told().contains(&subscriber.address));
        }

        let feed = || start(folder.path(), url, "feed", &["feed", "--count", "1000000", "--per-second", "40"]);
        let mut feeding = feed();
        let mut learnt_by = async |shards| {
            let learn = async || {
                // One that was not answered ends.
                if feeding.child.try_wait().unwrap().is_some() {
                    feeding = feed();
                }
                looks[0].learnt().await.iter().any(|learnt| learnt.shards == shards)
            };
            until_async("the shards learn", learn).await;
        };
        learnt_by(4).await;
        shard(url, 8);
        learnt_by(8).await;

        // Killed: those whom it followed are told within its session's timeout, and others have its shards.
        bob.kill();
        let killed = Instant::now();
        for model in MODELS {
            let line = format!(" follows {model} no more\n");
            until("the dead subscriber is gone", || [&ann, &cyd].iter().all(|process| process.told().contains(&line)));
        }
        assert!(killed.elapsed() < SESSION + SLACK, "{:?}", killed.elapsed());
        let dan = worker("dan");
        for look in &looks {
            let has_all = |holders: &[String]| holders.len() == 8 && !holders.contains(&"bob".to_owned());
            until_async("each shard has another holder", async || has_all(&look.holders().await)).await;
        }

        // Asked to go, it gives back what it has.
        assert!(cyd.interrupt().success());
        shard(url, 2);
        learnt_by(2).await;
        feeding.kill();
        for look in &looks {
            until_async("the inbox is empty", async || look.nodes.names(&look.place("inbox")).await.is_empty()).await;
            let learnt = look.check().await;
            // The subscriber was told what was learnt last, but for what the killed one had no time to tell.
            for (key, count) in look.counts().await {
                let is_bobs = learnt.iter().rfind(|learnt| learnt.key == key).unwrap().by == "bob";
                let told = || subscriber.told.lock().unwrap().get(&format!("{} {key}", look.name)) == Some(&count);
                until("the subscriber is told", || told() || is_bobs);
            }
        }
        drop((ann, dan));
    });
}

#[test]
fn shards_become_more_and_fewer_under_load_zookeeper() {
    flows(&zookeeper());
}

#[test]
fn shards_become_more_and_fewer_under_load_postgres() {
    flows(&postgres());
}

#[test]
fn shards_without_a_holder_are_shown() {
    let url = zookeeper();
    said("streams", &[&url, "shard", "2"]);
    let told = said("streams", &[&url, "show"]);
    let lines: Vec<&str> = told.lines().collect();
    assert_eq!(lines[..2], ["ability: 0 wait in the inbox", "  0 of 2 is held by nobody"], "{told}");
    assert_eq!(lines.len(), 6, "{told}");
}
