//! The configuration of a service. Each instance may override it, and all instances follow its changes.
//!
//! The service's values are a YAML map in a node. An instance's values are a YAML map in a child of that node. The
//! effective values of an instance are the service's values with the instance's keys in place of the same keys of the
//! service.

use bytes::Bytes;
use serde_json::{Map, Value};

use super::client::Client;
use super::follow::{Followed, Scope, Subtree, follow};
use super::node::{child, create_node};
use super::presence::Presence;
use super::yaml;
use crate::tree::{Acl, CreateMode, Expected, NodePath, TreeError, Zxid};

/// Configuration values by key.
pub type Values = Map<String, Value>;

/// Handle of a service's configuration in one process.
#[derive(Clone)]
pub struct Config {
    client: Client,
    path: NodePath,
    acl: Acl,
}

/// Effective configuration of an instance.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Effective {
    pub values: Values,
    /// Last change of the service's values, or `None` if there are none. Later reports never show an earlier change.
    pub service: Option<Zxid>,
    /// Last change of the instance's values, or `None` if there are none.
    pub instance: Option<Zxid>,
    /// True if the engine responded recently.
    pub is_current: bool,
    /// Reason why the last written text is not in effect: it is not a YAML map. The values before it stay in effect.
    pub problem: Option<String>,
}

impl Config {
    /// Creates the handle. `acl` is the access list of the nodes created here, including missing parents.
    #[must_use]
    pub fn new(client: &Client, path: NodePath, acl: Acl) -> Self {
        Config { client: client.clone(), path, acl }
    }

    /// Changes the service's values. If another process changes them at the same time, `change` is called again.
    ///
    /// # Errors
    /// The same as those of a [`Tree`](crate::tree::Tree). After [`TreeError::Disconnected`] or
    /// [`TreeError::SessionLost`] the values may or may not have been changed. [`TreeError::Invalid`] if the node does
    /// not hold a YAML map.
    pub async fn update(&self, change: impl FnMut(&mut Values)) -> Result<(), TreeError> {
        self.update_at(&self.path, change).await
    }

    /// Changes an instance's values like [`Config::update`]. The values stay when the process of the instance ends.
    ///
    /// # Errors
    /// The same as [`Config::update`].
    pub async fn update_instance(&self, instance: &str, change: impl FnMut(&mut Values)) -> Result<(), TreeError> {
        self.update_at(&child(&self.path, instance)?, change).await
    }

    /// Sets an instance's values for as long as this process lives.
    ///
    /// # Errors
    /// Returns [`TreeError::Invalid`] if `instance` is not a valid node name.
    pub fn override_while_alive(&self, instance: &str, values: &Values) -> Result<Overrides, TreeError> {
        let (path, data) = (child(&self.path, instance)?, yaml::encode(values)?);
        Ok(Overrides(Presence::start(&self.client, path, CreateMode::Persistent, self.acl.clone(), data)))
    }

    /// Follows the effective values of `instance` from now on. It needs two watches, however many instances there are.
    ///
    /// # Errors
    /// The same as those of a [`Tree`](crate::tree::Tree).
    pub async fn follow(&self, instance: &str) -> Result<Followed<Effective>, TreeError> {
        let (service, instance) = (self.path.clone(), child(&self.path, instance)?);
        let nodes = follow(&self.client, Scope::Nodes(vec![service.clone(), instance.clone()])).await?;
        let (mut services, mut instances) = (Part::default(), Part::default());
        Ok(nodes.map(&self.client, move |nodes| {
            services.update(nodes, &service);
            instances.update(nodes, &instance);
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
            let node = match self.client.retry(|| tree.get(path)).await {
                Err(TreeError::NoNode) => {
                    create_node(&self.client, &*tree, path, Bytes::new(), CreateMode::Container, &self.acl).await?;
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

/// Values of an instance for as long as its process lives. After a drop the service's values are in effect.
#[derive(Debug)]
#[must_use = "dropping it removes the instance's values"]
pub struct Overrides(Presence);

impl Overrides {
    /// Waits until other processes can see the values.
    ///
    /// # Errors
    /// The same as [`Presence::present`].
    pub async fn present(&self) -> Result<(), TreeError> {
        self.0.present().await
    }

    /// Replaces the values. The new values take effect shortly after the call.
    ///
    /// # Errors
    /// Returns [`TreeError::Invalid`] if the values are too large.
    pub fn set(&self, values: &Values) -> Result<(), TreeError> {
        self.0.set(yaml::encode(values)?)
    }
}

fn invalid(path: &NodePath, problem: &str) -> TreeError {
    TreeError::Invalid(format!("invalid configuration at {path}: {problem}"))
}

/// Values of the service or of one instance.
#[derive(Default)]
struct Part {
    values: Values,
    modified: Option<Zxid>,
    problem: Option<String>,
}

impl Part {
    fn update(&mut self, nodes: &Subtree, path: &NodePath) {
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
