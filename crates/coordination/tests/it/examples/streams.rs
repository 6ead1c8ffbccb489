//! Tests of the example `streams`. The number of shards changes to 4, 8 and 2 while observations arrive and processes
//! join, leave and die. All subscribers receive the parameters.

use std::collections::BTreeMap;
use std::net::UdpSocket;
use std::sync::{Arc, Mutex};

use reveille_coordination::recipes::{Bag, OwnItem, RoleMatch};
use reveille_coordination::tree::{Acl, Zxid};

use super::*;

// If a process loses its session on a busy machine, subscribers may miss the last value that this process wrote, as if
// the test had killed the process.
const SESSION: Duration = Duration::from_secs(4);
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
    // A busy database may not respond in time. The test then repeats the command.
    until("the command has set the number of shards", || {
        example("streams", &[]).args(&arguments).arg(&count).output().unwrap().status.success()
    });
}

/// Observation that a shard has learnt. Values of this type sort in the order in which the engine created their nodes.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Learnt {
    at: Zxid,
    key: String,
    /// Number of the observation in the inbox.
    number: usize,
    shards: usize,
    shard: usize,
    term: u64,
    by: String,
}

/// View through which the test reads the nodes of one model.
struct ModelView {
    name: &'static str,
    nodes: Nodes,
    path: NodePath,
}

impl ModelView {
    fn new(nodes: &Nodes, name: &'static str) -> Self {
        ModelView { name, nodes: nodes.clone(), path: NodePath::new("/streams").unwrap().join(name).unwrap() }
    }

    fn place(&self, name: &str) -> NodePath {
        self.path.join(name).unwrap()
    }

    /// Returns the name, the text and the creation zxid of each node below `place`.
    async fn texts(&self, place: &str) -> Vec<(String, String, Zxid)> {
        let place = self.place(place);
        let mut nodes = Vec::new();
        for name in self.nodes.names(&place).await {
            let node = self.nodes.get(&place.join(&name).unwrap()).await.expect("no process removes the node");
            nodes.push((name, String::from_utf8(node.data.to_vec()).unwrap(), node.stat.created));
        }
        nodes
    }

    async fn learnt(&self) -> Vec<Learnt> {
        let learnt = |(name, text, at): (String, String, Zxid)| {
            let (key, number) = name.rsplit_once('.').unwrap();
            // The node's text is `SHARD of SHARDS TERM BY`. BY is the name of the process that learnt the observation.
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

    /// Returns the number of learnt observations of each parameter.
    async fn counts(&self) -> BTreeMap<String, usize> {
        let count = |(key, text, _): (String, String, Zxid)| (key, text.split_once(' ').unwrap().1.parse().unwrap());
        self.texts("parameters").await.into_iter().map(count).collect()
    }

    /// Returns the holder of each assigned shard.
    async fn holders(&self) -> Vec<String> {
        let shards = RoleMatch::new(&self.nodes.client, &self.place("shards"), Acl::Open).unwrap();
        let assignments = retry(async || shards.assignments().await).await.unwrap_or_default();
        assignments.into_values().map(|held| String::from_utf8(held.holder.to_vec()).unwrap()).collect()
    }

    /// Checks that the processes learnt every observation once and in the required order. The inbox must be empty.
    /// Returns the learnt observations.
    async fn check(&self) -> Vec<Learnt> {
        let learnt = self.learnt().await;
        let mut numbers: Vec<usize> = learnt.iter().map(|learnt| learnt.number).collect();
        numbers.sort_unstable();
        assert!(numbers.iter().copied().eq(0..learnt.len()), "{}: every observation is learnt: {numbers:?}", self.name);
        assert_eq!(
            self.counts().await.values().sum::<usize>(),
            learnt.len(),
            "{}: every observation is learnt once",
            self.name
        );
        // The processes learn all observations with one shard count before they learn an observation with the next
        // count. For each shard, a holder learns its last observation before the next holder learns its first
        // observation.
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

/// Subscriber that the test adds to both models. For each parameter `MODEL KEY`, it stores the last count that it
/// received.
struct Subscriber {
    address: String,
    received: Arc<Mutex<BTreeMap<String, usize>>>,
    _subscriptions: Vec<OwnItem>,
}

impl Subscriber {
    async fn new(views: &[ModelView; 2]) -> Self {
        let (socket, received) = (UdpSocket::bind("127.0.0.1:0").unwrap(), Arc::<Mutex<BTreeMap<_, _>>>::default());
        let address = socket.local_addr().unwrap().to_string();
        let mut subscriptions = Vec::new();
        for view in views {
            let bag = Bag::new(&view.nodes.client, &view.place("subscribers"), Acl::Open).unwrap();
            subscriptions.push(bag.add_own(address.clone().into()).await.unwrap());
        }
        let receiving = received.clone();
        std::thread::spawn(move || {
            let mut message = [0; 1_024];
            while let Ok(count) = socket.recv(&mut message) {
                // The message is `MODEL KEY VALUE COUNT`.
                let text = std::str::from_utf8(&message[..count]).unwrap();
                let (parameter, count) = text.rsplit_once(' ').unwrap();
                let (key, _) = parameter.rsplit_once(' ').unwrap();
                receiving.lock().unwrap().insert(key.to_owned(), count.parse().unwrap());
            }
        });
        Subscriber { address, received, _subscriptions: subscriptions }
    }
}

fn check_shards_under_load(url: &str) {
    with_real_runtime(async |runtime| {
        let folder = tempfile::tempdir().unwrap();
        let nodes = Nodes::open(&runtime, url).await;
        let worker = |name| start(folder.path(), url, name, &["work", "--name", name, "--hands", "3"]);
        let (ann, mut bob, cyd) = (worker("ann"), worker("bob"), worker("cyd"));
        shard(url, 4);
        let views = MODELS.map(|model| ModelView::new(&nodes, model));
        let subscriber = Subscriber::new(&views).await;
        for process in [&ann, &bob, &cyd] {
            let follows = |model| process.output().matches(&format!(" follows {model}\n")).count();
            until("all subscribers are known", || MODELS.iter().all(|model| follows(model) >= 4));
            assert!(process.output().contains(&subscriber.address));
        }

        let feed = || start(folder.path(), url, "feed", &["feed", "--count", "1000000", "--per-second", "40"]);
        let mut feeding = feed();
        let mut learnt_by = async |shards| {
            let learn = async || {
                // The process that feeds observations ends when a request gets no response, so the test starts another
                // such process.
                if feeding.child.try_wait().unwrap().is_some() {
                    feeding = feed();
                }
                views[0].learnt().await.iter().any(|learnt| learnt.shards == shards)
            };
            until_async("the shards learn an observation", learn).await;
        };
        learnt_by(4).await;
        shard(url, 8);
        learnt_by(8).await;

        // The test kills the process `bob`. The processes to which `bob` subscribed notice its end within the session's
        // timeout. Other processes take over the shards of `bob`.
        bob.kill();
        let killed = Instant::now();
        for model in MODELS {
            let line = format!(" no longer follows {model}\n");
            until("the killed subscriber is removed", || {
                [&ann, &cyd].iter().all(|process| process.output().contains(&line))
            });
        }
        assert!(killed.elapsed() < SESSION + SLACK, "{:?}", killed.elapsed());
        let dan = worker("dan");
        for view in &views {
            let has_all = |holders: &[String]| holders.len() == 8 && !holders.contains(&"bob".to_owned());
            until_async("every shard has a living holder", async || has_all(&view.holders().await)).await;
        }

        // An interrupted process releases its shards.
        assert!(cyd.interrupt().success());
        shard(url, 2);
        learnt_by(2).await;
        feeding.kill();
        for view in &views {
            until_async("the inbox is empty", async || view.nodes.names(&view.place("inbox")).await.is_empty()).await;
            let learnt = view.check().await;
            // The subscriber has received the last value of each parameter, unless the killed process wrote that last
            // value.
            for (key, count) in view.counts().await {
                let is_bobs = learnt.iter().rfind(|learnt| learnt.key == key).unwrap().by == "bob";
                let is_received =
                    || subscriber.received.lock().unwrap().get(&format!("{} {key}", view.name)) == Some(&count);
                until("the subscriber receives the last value", || is_received() || is_bobs);
            }
        }
        drop((ann, dan));
    });
}

#[test]
fn change_of_the_shard_count_on_zookeeper_loses_no_observation() {
    check_shards_under_load(&zookeeper());
}

#[test]
fn change_of_the_shard_count_on_postgres_loses_no_observation() {
    check_shards_under_load(&postgres());
}

#[test]
fn show_command_lists_unassigned_shards() {
    let url = zookeeper();
    stdout_of_success("streams", &[&url, "shard", "2"]);
    let output = stdout_of_success("streams", &[&url, "show"]);
    let lines: Vec<&str> = output.lines().collect();
    assert_eq!(lines[..2], ["ability: 0 observations in the inbox", "  0 of 2 is held by no process"], "{output}");
    assert_eq!(lines.len(), 6, "{output}");
}
