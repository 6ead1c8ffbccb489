//! A service's configuration, which each of its instances may override, and all follow (seed 001).
//!
//! The service's values are a YAML map in a node, an instance's in a child of it. What is in force for an instance is the service's, with each
//! key that the instance has in place of the service's.

use bytes::Bytes;
use serde_json::{Map, Value};

use super::client::Client;
use super::follow::{Followed, Scope, Subtree, follow};
use super::node::{child, make};
use super::presence::Presence;
use super::yaml;
use crate::tree::{Acl, CreateMode, Expected, NodePath, TreeError, Zxid};

/// By key.
pub type Values = Map<String, Value>;

/// A process's way to a service's configuration.
#[derive(Clone)]
pub struct Config {
    client: Client,
    path: NodePath,
    acl: Acl,
}

/// What is in force for an instance.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Effective {
    pub values: Values,
    /// The last changes of the service's and of the instance's values; `None` where there are none. Of what is told later neither is older.
    pub service: Option<Zxid>,
    pub instance: Option<Zxid>,
    /// Whether the engine was heard of lately.
    pub is_current: bool,
    /// Why the last that was written is not in force: it is no YAML map. The values are those before.
    pub problem: Option<String>,
}

impl Config {
    /// `acl` is of the nodes that are made here, and of parents that are missing.
    #[must_use]
    pub fn new(client: &Client, path: NodePath, acl: Acl) -> Self {
        Config { client: client.clone(), path, acl }
    }

    /// Changes the service's values, whoever else changes them at the same time: `change` may be called again.
    ///
    /// # Errors
    /// As those of a [`Tree`](crate::tree::Tree); with [`TreeError::Disconnected`] and [`TreeError::SessionLost`] it is not known whether they were
    /// changed. [`TreeError::Invalid`] if the node holds no YAML map.
    pub async fn update(&self, change: impl FnMut(&mut Values)) -> Result<(), TreeError> {
        self.update_at(&self.path, change).await
    }

    /// As [`Config::update`], an instance's, which stay when its process ends.
    ///
    /// # Errors
    /// As [`Config::update`].
    pub async fn update_instance(&self, instance: &str, change: impl FnMut(&mut Values)) -> Result<(), TreeError> {
        self.update_at(&child(&self.path, instance)?, change).await
    }

    /// An instance's values, which go with this process.
    ///
    /// # Errors
    /// [`TreeError::Invalid`] if `instance` cannot be a node's name.
    pub fn override_while_alive(&self, instance: &str, values: &Values) -> Result<Overrides, TreeError> {
        let (path, data) = (child(&self.path, instance)?, yaml::encode(values)?);
        Ok(Overrides(Presence::start(&self.client, path, CreateMode::Persistent, self.acl.clone(), data)))
    }

    /// What is in force for `instance`, from now on. Two watches, however many instances there are.
    ///
    /// # Errors
    /// As those of a [`Tree`](crate::tree::Tree).
    pub async fn follow(&self, instance: &str) -> Result<Followed<Effective>, TreeError> {
        let (service, instance) = (self.path.clone(), child(&self.path, instance)?);
        let nodes = follow(&self.client, Scope::Nodes(vec![service.clone(), instance.clone()])).await?;
        let (mut services, mut instances) = (Part::default(), Part::default());
        Ok(nodes.map(&self.client, move |nodes| {
            services.see(nodes, &service);
            instances.see(nodes, &instance);
            let mut values = services.values.clone();
            values.extend(instances.values.clone());
            Effective {
                values,
                service: services.modified,
                instance: instances.modified,
                is_current: nodes.is_current,
                problem: services.problem.clone().or_else(|| instances.problem.clone()),
            }
        }))
    }

    async fn update_at(&self, path: &NodePath, mut change: impl FnMut(&mut Values)) -> Result<(), TreeError> {
        let tree = self.client.session().await?;
        loop {
            let node = match self.client.patiently(|| tree.get(path)).await {
                Err(TreeError::NoNode) => {
                    make(&self.client, &*tree, path, Bytes::new(), CreateMode::Container, &self.acl).await?;
                    continue;
                }
                node => node?,
            };
            let mut values = yaml::decode(&node.data).map_err(|problem| invalid(path, &problem))?;
            change(&mut values);
            match tree.set(path, yaml::encode(&values)?, Expected::Version(node.stat.version)).await {
                Err(TreeError::BadVersion | TreeError::NoNode) => {}
                done => return done.map(drop),
            }
        }
    }
}

/// An instance's values, for as long as its process lives. Dropped, the service's are in force.
#[derive(Debug)]
#[must_use = "dropped, the service's values are in force"]
pub struct Overrides(Presence);

impl Overrides {
    /// Waits until they can be seen.
    ///
    /// # Errors
    /// As [`Presence::present`].
    pub async fn present(&self) -> Result<(), TreeError> {
        self.0.present().await
    }

    /// Other values, in force from soon on.
    ///
    /// # Errors
    /// [`TreeError::Invalid`] if they are too much.
    pub fn set(&self, values: &Values) -> Result<(), TreeError> {
        self.0.set(yaml::encode(values)?)
    }
}

fn invalid(path: &NodePath, problem: &str) -> TreeError {
    TreeError::Invalid(format!("{path} holds no configuration: {problem}"))
}

/// The service's, or the instance's.
#[derive(Default)]
struct Part {
    values: Values,
    modified: Option<Zxid>,
    problem: Option<String>,
}

impl Part {
    fn see(&mut self, nodes: &Subtree, path: &NodePath) {
        let Some(node) = nodes.nodes.get(path) else {
            *self = Part::default();
            return;
        };
        if self.modified == Some(node.stat.modified) {
            return;
        }
        self.modified = Some(node.stat.modified);
        match yaml::decode(&node.data) {
            Ok(values) => (self.values, self.problem) = (values, None),
            Err(problem) => self.problem = Some(invalid(path, &problem).to_string()),
        }
    }
}
