//! Where the instances of a service are, and what each says of itself: Petting Zoo's distributed discovery (seed 001).
//!
//! An instance is an ephemeral node `<root>/<class>/<name>/<key>` with a YAML map; a class may have several parts.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use runtime::{Monotonic, OpenMode, Runtime, TaskSet};
use serde_json::{Map, Value};
use tokio::sync::watch;

use super::client::Client;
use super::config::Values;
use super::follow::{Followed, Scope, Subtree, follow};
use super::node::{child, join};
use super::presence::{Presence, PresenceState};
use super::yaml;
use crate::ring::Ring;
use crate::tree::{Acl, CreateMode, NodePath, TreeError, Zxid};

/// Petting Zoo's writers take a node away and make it anew: one that goes is gone when it is not back after this.
const GAP: Duration = Duration::from_millis(200);
/// Who has files waits so long for the engine at first.
const FIRST_LOOK_MAX: Duration = Duration::from_secs(2);
/// Of a file of instances.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// A process's way to the instances of all services.
#[derive(Clone)]
pub struct Discovery {
    client: Client,
    root: NodePath,
    acl: Acl,
    folders: Vec<PathBuf>,
}

/// Which service.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Service {
    /// What it is: `kestrel`, or `queues/kestrel`.
    pub class: String,
    /// Which of them: `platform`.
    pub name: String,
}

#[derive(Clone, PartialEq, Debug)]
pub struct Instance {
    pub service: Service,
    /// Which of the service's: an address, say. Of one in a file, its place there.
    pub key: String,
    /// What it says of itself, with a `header` in which `service_class` is its class.
    pub payload: Values,
}

/// Those that are known.
#[derive(Clone, PartialEq, Debug)]
pub struct Instances {
    /// In the order of their services and keys.
    pub all: Arc<[Instance]>,
    pub source: Source,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    /// The engine, which was heard of lately.
    Engine,
    /// What the engine said last: who came or went since is not known.
    Cache,
    /// Files, as the engine knows none, or cannot be reached.
    Files,
}

impl Discovery {
    pub const ROOT: &str = "/discovery";

    /// `acl` is of the nodes that are made here, and of parents that are missing: [`Acl::Open`] in a group with Petting Zoo's processes.
    #[must_use]
    pub fn new(client: &Client, root: NodePath, acl: Acl) -> Self {
        Discovery { client: client.clone(), root, acl, folders: Vec::new() }
    }

    /// Where instances are looked for while the engine knows none: in `<folder>/<class>/<name>.yml`, a map with a `server_list`. The first folder
    /// that has the file counts.
    #[must_use]
    pub fn with_files(self, folders: Vec<PathBuf>) -> Self {
        Discovery { folders, ..self }
    }

    /// Is found for as long as this process lives and what is answered is kept, over the ends of sessions. The header is written here.
    ///
    /// # Errors
    /// [`TreeError::Invalid`] if `service` or `key` cannot be part of a path, or the payload has a header that is no map.
    pub fn register(&self, service: &Service, key: &str, payload: Values) -> Result<Registration, TreeError> {
        let path = child(&self.path(service)?, key)?;
        let (parents, acl, data) = (CreateMode::Persistent, self.acl.clone(), encode(service, key, payload)?);
        let presence = Presence::start(&self.client, path, parents, acl, data);
        Ok(Registration { service: service.clone(), key: key.to_owned(), presence })
    }

    /// The instances of a service, from now on. If the engine cannot be reached, those in its file, which is read once.
    ///
    /// # Errors
    /// As those of a [`Tree`](crate::tree::Tree), but for [`TreeError::Disconnected`] if there is a file.
    pub async fn follow(&self, service: &Service) -> Result<Followed<Instances>, TreeError> {
        let path = self.path(service)?;
        self.follow_at(path, Some(service.clone())).await
    }

    /// The instances of a class and of all classes below it, from now on. Files are of services, and not looked into.
    ///
    /// # Errors
    /// As [`Discovery::follow`].
    pub async fn follow_class(&self, class: &str) -> Result<Followed<Instances>, TreeError> {
        self.follow_at(join(&self.root, class)?, None).await
    }

    /// One instance, by chance: another when that goes, and some move as the service grows, so that all who pick spread evenly. Changed, too,
    /// when it says something else of itself.
    ///
    /// # Errors
    /// As [`Discovery::follow`].
    pub async fn pick(&self, service: &Service) -> Result<Followed<Option<Instance>>, TreeError> {
        let chance = self.client.runtime().random_u128().to_be_bytes();
        let instances = self.follow(service).await?;
        Ok(instances.map(&self.client, move |instances| {
            let ring = Ring::new(instances.all.iter().map(|instance| instance.key.as_str()));
            let picked = ring.owner(&chance)?;
            instances.all.iter().find(|instance| instance.key == picked).cloned()
        }))
    }

    fn path(&self, service: &Service) -> Result<NodePath, TreeError> {
        child(&join(&self.root, &service.class)?, &service.name)
    }

    async fn follow_at(&self, path: NodePath, service: Option<Service>) -> Result<Followed<Instances>, TreeError> {
        let runtime = self.client.runtime();
        let in_files = match &service {
            Some(service) if !self.folders.is_empty() => read_files(runtime, &self.folders, service).await,
            _ => None,
        };
        let (read, missing) = (BTreeMap::new(), BTreeMap::new());
        let mut seeing = Seeing { root: self.root.clone(), service, in_files, read, missing };
        let looking = follow(&self.client, Scope::Subtree(path.clone()));
        let looked = match &seeing.in_files {
            Some(_) => runtime.timeout(FIRST_LOOK_MAX, looking).await,
            None => Some(looking.await),
        };
        let subtree = match looked {
            Some(Ok(subtree)) => Some(subtree),
            Some(Err(TreeError::Disconnected(_) | TreeError::SessionLost)) if seeing.in_files.is_some() => None,
            Some(Err(error)) => return Err(error),
            None => None,
        };
        let now = subtree.as_ref().map(Followed::now);
        if let Some(now) = &now {
            seeing.take(now, runtime.monotonic());
        }
        let first = seeing.shown(now.map(|now| now.is_current));
        let client = self.client.clone();
        Ok(Followed::start(&self.client, first, |sender| async move {
            let mut subtree = subtree;
            loop {
                if let Some(subtree) = subtree.take() {
                    return seeing.follow(&client, subtree, sender).await;
                }
                client.pause().await;
                subtree = follow(&client, Scope::Subtree(path.clone())).await.ok();
            }
        }))
    }
}

/// An instance of this process's. Dropped, it is not found any more.
#[derive(Debug)]
#[must_use = "dropped, it is not found any more"]
pub struct Registration {
    service: Service,
    key: String,
    presence: Presence,
}

impl Registration {
    /// Waits until it can be found.
    ///
    /// # Errors
    /// As [`Presence::present`].
    pub async fn present(&self) -> Result<(), TreeError> {
        self.presence.present().await
    }

    /// Whether it can be found now, and every change.
    #[must_use]
    pub fn seen(&self) -> watch::Receiver<PresenceState> {
        self.presence.seen()
    }

    /// What it says of itself from soon on.
    ///
    /// # Errors
    /// [`TreeError::Invalid`] if it is too much, or has a header that is no map.
    pub fn set(&self, payload: Values) -> Result<(), TreeError> {
        self.presence.set(encode(&self.service, &self.key, payload)?)
    }
}

/// With the header.
fn encode(service: &Service, key: &str, mut payload: Values) -> Result<Bytes, TreeError> {
    let not_a_map = || TreeError::Invalid("a payload's `header`, and its `metadata`, are maps".to_owned());
    let header = map_in(&mut payload, "header").ok_or_else(not_a_map)?;
    header.insert("service_class".to_owned(), service.class.clone().into());
    let metadata = map_in(header, "metadata").ok_or_else(not_a_map)?;
    metadata.insert("service_name".to_owned(), service.name.clone().into());
    metadata.insert("key".to_owned(), key.into());
    yaml::encode(&payload)
}

/// The map at `key`, made if it is missing.
fn map_in<'a>(map: &'a mut Values, key: &str) -> Option<&'a mut Values> {
    map.entry(key).or_insert_with(|| Value::Object(Map::new())).as_object_mut()
}

/// What is known of the instances that are followed.
struct Seeing {
    root: NodePath,
    /// The one that was asked for; `None` for a class and all below it.
    service: Option<Service>,
    in_files: Option<Arc<[Instance]>>,
    /// Each node as it was read last; `None` if it is no instance.
    read: BTreeMap<NodePath, (Zxid, Option<Instance>)>,
    /// Those that are shown, and went: since when.
    missing: BTreeMap<NodePath, Monotonic>,
}

impl Seeing {
    async fn follow(mut self, client: &Client, mut subtree: Followed<Subtree>, sender: watch::Sender<Instances>) {
        let runtime = client.runtime();
        let mut now = subtree.now();
        loop {
            let next_gone = self.take(&now, runtime.monotonic());
            let seen = self.shown(Some(now.is_current));
            sender.send_if_modified(|known| {
                let is_new = *known != seen;
                *known = seen;
                is_new
            });
            let gone = async {
                match next_gone {
                    Some(at) => runtime.sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = sender.closed() => return,
                changed = subtree.changed() => now = changed,
                () = gone => {}
            }
        }
    }

    /// Takes in what has changed. When the next of those that went is gone, if it is not back by then.
    fn take(&mut self, subtree: &Subtree, now: Monotonic) -> Option<Monotonic> {
        for (path, node) in subtree.nodes.iter() {
            self.missing.remove(path);
            if self.read.get(path).is_none_or(|(modified, _)| *modified != node.stat.modified) {
                let instance = self.instance(path, &node.data);
                self.read.insert(path.clone(), (node.stat.modified, instance));
            }
        }
        for path in self.read.keys().filter(|path| !subtree.nodes.contains_key(*path)) {
            self.missing.entry(path.clone()).or_insert(now + GAP);
        }
        self.missing.retain(|path, gone| {
            let is_gone = *gone <= now;
            if is_gone {
                self.read.remove(path);
            }
            !is_gone
        });
        self.missing.values().min().copied()
    }

    /// `is_current` is that of the engine's view; `None` if there is none.
    fn shown(&self, is_current: Option<bool>) -> Instances {
        let all: Arc<[Instance]> = self.read.values().filter_map(|(_, instance)| instance.clone()).collect();
        match (&self.in_files, is_current) {
            (Some(in_files), _) if all.is_empty() => Instances { all: in_files.clone(), source: Source::Files },
            (_, Some(true)) => Instances { all, source: Source::Engine },
            (_, Some(false) | None) => Instances { all, source: Source::Cache },
        }
    }

    /// `None` if it is none, or of another service.
    fn instance(&self, path: &NodePath, data: &[u8]) -> Option<Instance> {
        if data.is_empty() {
            return None;
        }
        let (service, key) =
            path.as_str().strip_prefix(self.root.as_str())?.trim_start_matches('/').rsplit_once('/')?;
        let (class, name) = service.rsplit_once('/')?;
        let service = Service { class: class.to_owned(), name: name.to_owned() };
        if self.service.as_ref().is_some_and(|asked| *asked != service) {
            return None;
        }
        let payload = yaml::decode(data);
        let payload =
            payload.inspect_err(|problem| tracing::debug!(%path, problem, "an instance is not understood")).ok()?;
        let says = payload.get("header")?.get("service_class")?.as_str()?;
        if says != class {
            tracing::debug!(%path, says, "an instance says that it is of another class");
            return None;
        }
        Some(Instance { service, key: key.to_owned(), payload })
    }
}

/// `None` if there is no such file, or it is not understood.
async fn read_files(runtime: &Runtime, folders: &[PathBuf], service: &Service) -> Option<Arc<[Instance]>> {
    for folder in folders {
        let file = folder.join(&service.class).join(format!("{}.yml", service.name));
        let (disk, path) = (runtime.disk(), file.clone());
        let (answer, answered) = tokio::sync::oneshot::channel();
        let tasks = TaskSet::new(runtime);
        tasks.spawn_thread("discovery file", async move {
            let reading = async {
                let file = disk.open(&path, OpenMode::Read).await?;
                let len = file.len().await?;
                if len > FILE_BYTES_MAX {
                    return Err(std::io::Error::other(format!("it has {len} bytes, and more than {FILE_BYTES_MAX}")));
                }
                let mut data = vec![0; usize::try_from(len).unwrap_or(0)];
                file.read_at(0, &mut data).await?;
                Ok::<_, std::io::Error>(data)
            };
            drop(answer.send(reading.await));
        });
        let data = match answered.await {
            Ok(Ok(data)) => data,
            Ok(Err(error)) if error.kind() == std::io::ErrorKind::NotFound => continue,
            Ok(Err(error)) => {
                tracing::warn!(file = %file.display(), %error, "a file of instances cannot be read");
                continue;
            }
            Err(_stopped) => return None,
        };
        match in_file(&data, service) {
            Ok(instances) => return Some(instances),
            Err(problem) => tracing::warn!(file = %file.display(), problem, "a file of instances is not understood"),
        }
    }
    None
}

fn in_file(data: &[u8], service: &Service) -> Result<Arc<[Instance]>, String> {
    let mut map = yaml::decode(data)?;
    let Some(Value::Array(list)) = map.remove("server_list") else {
        return Err("it has no `server_list`".to_owned());
    };
    let instances = list.into_iter().enumerate().map(|(at, payload)| match payload {
        Value::Object(payload) => Ok(Instance { service: service.clone(), key: at.to_string(), payload }),
        _ => Err(format!("server {at} is no map")),
    });
    instances.collect()
}
