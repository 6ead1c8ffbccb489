//! Petting Zoo's distributed discovery. Processes find the instances of a service and the data that each instance
//! publishes.
//!
//! An instance is an ephemeral node `<root>/<class>/<name>/<key>` with a YAML map. A class may have several path parts.

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
use super::follow::{Scope, Subtree, follow};
use super::node::{child, join};
use super::presence::{Presence, PresenceState};
use super::yaml;
use crate::Followed;
use crate::followed::send_if_new;
use crate::ring::Ring;
use crate::tree::{Acl, CreateMode, Node, NodePath, TreeError, Zxid};

/// Longest time for which a new follower waits for its first read from the engine. The limit applies only if a file
/// contains the instances of the service.
const FIRST_READ_MAX: Duration = Duration::from_secs(2);
/// Largest size of a file of instances, in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Handle with which a process finds and publishes instances of all services.
#[derive(Clone)]
pub struct Discovery {
    client: Client,
    root: NodePath,
    acl: Acl,
    folders: Vec<PathBuf>,
}

/// Identity of a service.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Service {
    /// Kind of service, for example `kestrel` or `queues/kestrel`.
    pub class: String,
    /// Name of the service within its class, for example `platform`.
    pub name: String,
}

/// Instance of a service, with the data that it publishes.
#[derive(Clone, PartialEq, Debug)]
pub struct Instance {
    /// Service to which the instance belongs.
    pub service: Service,
    /// Key of the instance within the service, for example an address. The key of an instance from a file is its index
    /// in the file.
    pub key: String,
    /// Data that the instance publishes. Data from the engine contains a `header` whose `service_class` is the class of
    /// the service.
    pub payload: Values,
    /// Error if the node of the instance does not contain a YAML map. In that case, `payload` is the last valid data of
    /// the node, or empty if this process knows no valid data.
    pub problem: Option<String>,
}

impl Instance {
    /// Returns true if this process knows valid data of the instance.
    fn has_data(&self) -> bool {
        self.problem.is_none() || !self.payload.is_empty()
    }
}

/// All known instances.
#[derive(Clone, PartialEq, Debug)]
pub struct Instances {
    /// Instances sorted by service and key.
    pub all: Arc<[Instance]>,
    /// Source of the instances, which determines how recent they are.
    pub source: Source,
}

/// Source of the known instances.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    /// The instances are from the engine, which responded recently.
    Engine,
    /// The instances are from the last response of the engine. This process does not know later changes.
    Cache,
    /// The instances are from a file, because the engine knows no instance or this process cannot reach the engine.
    Files,
}

impl Discovery {
    /// Usual path of the root node, for [`Discovery::new`]. The path is absolute.
    pub const ROOT: &str = "/discovery";
    /// Time after which an instance counts as gone if its node is missing. A node may be missing for a moment, because
    /// Petting Zoo's writers delete a node and create it again when they update it.
    pub const MISSING_MAX: Duration = Duration::from_millis(200);

    /// Creates a handle. `acl` is the access list of the nodes that the handle creates, including missing parents. If
    /// Petting Zoo's processes share the tree, `acl` must be [`Acl::Open`].
    #[must_use]
    pub fn new(client: &Client, root: NodePath, acl: Acl) -> Self {
        Discovery { client: client.clone(), root, acl, folders: Vec::new() }
    }

    /// Sets the folders in which this process looks for instances while the engine knows no instance. The file
    /// `<folder>/<class>/<name>.yml` contains a YAML map. The list `server_list` in this map contains the instances of
    /// one service. This process uses the first folder with a valid file.
    #[must_use]
    pub fn with_files(self, folders: Vec<PathBuf>) -> Self {
        Discovery { folders, ..self }
    }

    /// Publishes an instance until this process ends or the caller drops the returned value. If the session is lost,
    /// this process publishes the instance again. The function writes the header of the payload.
    ///
    /// # Errors
    /// Returns [`TreeError::Invalid`] if `service` or `key` cannot be part of a path, or if the payload has a header
    /// that is not a map.
    pub fn register(&self, service: &Service, key: &str, payload: Values) -> Result<Registration, TreeError> {
        let path = child(&self.path(service)?, key)?;
        let (parents, acl, data) = (CreateMode::Persistent, self.acl.clone(), encode(service, key, payload)?);
        let presence = Presence::start(&self.client, path, parents, acl, data);
        Ok(Registration { service: service.clone(), key: key.to_owned(), presence })
    }

    /// Follows the instances of a service from now on. If this process cannot reach the engine, the follower contains
    /// the instances from the service's file ([`Discovery::with_files`]). The function reads this file once.
    ///
    /// # Errors
    /// Returns the same errors as a [`Tree`](crate::tree::Tree). If the service has a file, the function does not
    /// return [`TreeError::Disconnected`].
    pub async fn follow(&self, service: &Service) -> Result<Followed<Instances>, TreeError> {
        let path = self.path(service)?;
        self.follow_at(path, Some(service.clone())).await
    }

    /// Follows the instances of a class and of all classes below it from now on. The function does not read files,
    /// because a file belongs to one service.
    ///
    /// # Errors
    /// Returns the same errors as [`Discovery::follow`].
    pub async fn follow_class(&self, class: &str) -> Result<Followed<Instances>, TreeError> {
        self.follow_at(join(&self.root, class)?, None).await
    }

    /// Picks one random instance of the service and follows it. When the instance is gone, the follower picks another
    /// instance. When the service gets new instances, some followers pick one of them. All instances therefore keep
    /// about the same number of followers. The follower's value also changes when the instance publishes other data.
    /// The follower picks no instance without valid data.
    ///
    /// # Errors
    /// Returns the same errors as [`Discovery::follow`].
    pub async fn follow_one(&self, service: &Service) -> Result<Followed<Option<Instance>>, TreeError> {
        let random = self.client.runtime().random_u128().to_be_bytes();
        let instances = self.follow(service).await?;
        Ok(instances.map(self.client.runtime(), move |instances| {
            let valid = instances.all.iter().filter(|instance| instance.has_data());
            let ring = Ring::new(valid.map(|instance| instance.key.as_str()));
            let picked = ring.owner(&random)?;
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
        let mut view = View { root: self.root.clone(), service, in_files, read, missing };
        let first_read = follow(&self.client, Scope::Subtree(path.clone()));
        let outcome = match &view.in_files {
            Some(_) => runtime.timeout(FIRST_READ_MAX, first_read).await,
            None => Some(first_read.await),
        };
        let subtree = match outcome {
            Some(Ok(subtree)) => Some(subtree),
            Some(Err(TreeError::Disconnected(_) | TreeError::SessionLost)) if view.in_files.is_some() => None,
            Some(Err(error)) => return Err(error),
            None => None,
        };
        let now = subtree.as_ref().map(Followed::now);
        if let Some(now) = &now {
            view.update(now, runtime.monotonic());
        }
        let first = view.instances(now.map(|now| now.is_current));
        let client = self.client.clone();
        Ok(Followed::start(runtime, first, |sender| async move {
            let mut subtree = subtree;
            loop {
                if let Some(subtree) = subtree.take() {
                    return view.follow(&client, subtree, sender).await;
                }
                client.back_off().await;
                subtree = follow(&client, Scope::Subtree(path.clone())).await.ok();
            }
        }))
    }
}

/// Instance that this process publishes. A drop of this value removes the instance.
#[derive(Debug)]
#[must_use = "a drop of this value removes the instance"]
pub struct Registration {
    service: Service,
    key: String,
    presence: Presence,
}

impl Registration {
    /// Waits until other processes can find the instance.
    ///
    /// # Errors
    /// Returns the same errors as [`Presence::present`].
    pub async fn present(&self) -> Result<(), TreeError> {
        self.presence.present().await
    }

    /// Follows the state of the instance's node.
    pub fn follow(&self) -> Followed<PresenceState> {
        self.presence.follow()
    }

    /// Replaces the published data. Other processes see the new data shortly after the call.
    ///
    /// # Errors
    /// Returns [`TreeError::Invalid`] if the data is too large or has a header that is not a map.
    pub fn set(&self, payload: Values) -> Result<(), TreeError> {
        self.presence.set(encode(&self.service, &self.key, payload)?)
    }
}

/// Writes the service and the key into the header of the payload, and encodes the payload as YAML.
fn encode(service: &Service, key: &str, mut payload: Values) -> Result<Bytes, TreeError> {
    let not_a_map = || TreeError::Invalid("invalid payload: `header` and its `metadata` must be maps".to_owned());
    let header = map_in(&mut payload, "header").ok_or_else(not_a_map)?;
    header.insert("service_class".to_owned(), service.class.clone().into());
    let metadata = map_in(header, "metadata").ok_or_else(not_a_map)?;
    metadata.insert("service_name".to_owned(), service.name.clone().into());
    metadata.insert("key".to_owned(), key.into());
    yaml::encode(&payload)
}

/// Returns the map at `key`. Creates the map if it is missing.
fn map_in<'a>(map: &'a mut Values, key: &str) -> Option<&'a mut Values> {
    map.entry(key).or_insert_with(|| Value::Object(Map::new())).as_object_mut()
}

/// State of a follower of instances.
struct View {
    root: NodePath,
    /// Service of the instances, or `None` if the view contains the instances of a class and of all classes below it.
    service: Option<Service>,
    in_files: Option<Arc<[Instance]>>,
    /// Instance that each node contained when this process last read the node, or `None` if the node is not an
    /// instance.
    read: BTreeMap<NodePath, (Zxid, Option<Instance>)>,
    /// Instances that the view still contains although their nodes are missing. Each entry contains the time at which
    /// the instance counts as gone.
    missing: BTreeMap<NodePath, Monotonic>,
}

impl View {
    async fn follow(mut self, client: &Client, mut subtree: Followed<Subtree>, sender: watch::Sender<Instances>) {
        let runtime = client.runtime();
        let mut now = subtree.now();
        loop {
            let next_gone = self.update(&now, runtime.monotonic());
            let seen = self.instances(Some(now.is_current));
            send_if_new(&sender, seen);
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

    /// Updates the view from `subtree`. Returns the time at which the next missing instance counts as gone, or `None`
    /// if no instance is missing.
    fn update(&mut self, subtree: &Subtree, now: Monotonic) -> Option<Monotonic> {
        for (path, node) in subtree.nodes.iter() {
            self.missing.remove(path);
            if self.read.get(path).is_none_or(|(modified, _)| *modified != node.stat.modified) {
                let instance = self.instance(path, node);
                let instance = instance.map(|instance| self.with_last_payload(path, instance));
                self.read.insert(path.clone(), (node.stat.modified, instance));
            }
        }
        for path in self.read.keys().filter(|path| !subtree.nodes.contains_key(*path)) {
            self.missing.entry(path.clone()).or_insert(now + Discovery::MISSING_MAX);
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

    /// Returns the instances that the follower reports. `is_current` is true if the engine responded recently, and
    /// `None` if the engine has never responded.
    fn instances(&self, is_current: Option<bool>) -> Instances {
        let all: Arc<[Instance]> = self.read.values().filter_map(|(_, instance)| instance.clone()).collect();
        match (&self.in_files, is_current) {
            (Some(in_files), _) if !all.iter().any(Instance::has_data) => {
                Instances { all: in_files.clone(), source: Source::Files }
            }
            (_, Some(true)) => Instances { all, source: Source::Engine },
            (_, Some(false) | None) => Instances { all, source: Source::Cache },
        }
    }

    /// Adds the last valid data of the node to an instance that has a problem.
    fn with_last_payload(&self, path: &NodePath, mut instance: Instance) -> Instance {
        if instance.problem.is_some()
            && let Some((_, Some(last))) = self.read.get(path)
        {
            instance.payload.clone_from(&last.payload);
        }
        instance
    }

    /// Parses the instance in a node. Returns `None` if the node is not an instance or belongs to another service.
    fn instance(&self, path: &NodePath, node: &Node) -> Option<Instance> {
        let data = &node.data;
        if data.is_empty() {
            return None;
        }
        let (service, key) =
            path.as_str().strip_prefix(self.root.as_str())?.trim_start_matches('/').rsplit_once('/')?;
        let (class, name) = service.rsplit_once('/')?;
        let service = Service { class: class.to_owned(), name: name.to_owned() };
        if self.service.as_ref().is_some_and(|followed| *followed != service) {
            return None;
        }
        let payload = match yaml::decode(data) {
            Ok(payload) => payload,
            // A node with children is a class or a service, and may contain any data.
            Err(_) if node.stat.children > 0 => return None,
            Err(problem) => {
                let problem = Some(format!("invalid data at {path}: {problem}"));
                return Some(Instance { service, key: key.to_owned(), payload: Values::new(), problem });
            }
        };
        let declared = payload.get("header")?.get("service_class")?.as_str()?;
        if declared != class {
            tracing::debug!(%path, declared, "ignoring an instance whose payload declares another service class");
            return None;
        }
        Some(Instance { service, key: key.to_owned(), payload, problem: None })
    }
}

/// Reads the instances of a service from the first folder with a valid file. Returns `None` if no folder contains a
/// valid file.
async fn read_files(runtime: &Runtime, folders: &[PathBuf], service: &Service) -> Option<Arc<[Instance]>> {
    for folder in folders {
        let file = folder.join(&service.class).join(format!("{}.yml", service.name));
        let (disk, path) = (runtime.disk(), file.clone());
        let (result, finished) = tokio::sync::oneshot::channel();
        let tasks = TaskSet::new(runtime);
        tasks.spawn_thread("discovery file", async move {
            let reading = async {
                let file = disk.open(&path, OpenMode::Read).await?;
                let len = file.len().await?;
                if len > FILE_BYTES_MAX {
                    return Err(std::io::Error::other(format!(
                        "file too large: {len} bytes; at most {FILE_BYTES_MAX} are allowed"
                    )));
                }
                let mut data = vec![0; usize::try_from(len).unwrap_or(0)];
                file.read_at(0, &mut data).await?;
                Ok::<_, std::io::Error>(data)
            };
            drop(result.send(reading.await));
        });
        let data = match finished.await {
            Ok(Ok(data)) => data,
            Ok(Err(error)) if error.kind() == std::io::ErrorKind::NotFound => continue,
            Ok(Err(error)) => {
                tracing::warn!(file = %file.display(), %error, "cannot read an instance file");
                continue;
            }
            Err(_stopped) => return None,
        };
        match in_file(&data, service) {
            Ok(instances) => return Some(instances),
            Err(problem) => tracing::warn!(file = %file.display(), problem, "ignoring an invalid instance file"),
        }
    }
    None
}

fn in_file(data: &[u8], service: &Service) -> Result<Arc<[Instance]>, String> {
    let mut map = yaml::decode(data)?;
    let Some(Value::Array(list)) = map.remove("server_list") else {
        return Err("the file has no key `server_list`, or the value of `server_list` is not a list".to_owned());
    };
    let instances = list.into_iter().enumerate().map(|(at, payload)| match payload {
        Value::Object(payload) => {
            Ok(Instance { service: service.clone(), key: at.to_string(), payload, problem: None })
        }
        _ => Err(format!("entry {at} of `server_list` is not a map (the first entry is 0)")),
    });
    instances.collect()
}
