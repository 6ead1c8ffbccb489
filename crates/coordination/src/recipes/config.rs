//! Configuration of a service. Each instance of the service may override values of the configuration. All instances
//! receive the changes of the configuration.
//!
//! The service's values are a YAML map in a node. An instance's values are a YAML map in a child of that node. The
//! effective values of an instance are the service's values and the instance's values together. If both maps contain
//! the same key, the instance's value is effective.

use bytes::Bytes;
use serde_json::{Map, Value};

use super::client::Client;
use super::follow::{Scope, Subtree, follow};
use super::node::{child, create_node};
use super::presence::Presence;
use super::yaml;
use crate::Followed;
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
    /// Service's values and instance's values together. If both contain the same key, this map contains the instance's
    /// value.
    pub values: Values,
    /// Zxid of the last change of the service's values, or `None` if the service has no values. The zxid never
    /// decreases.
    pub service: Option<Zxid>,
    /// Zxid of the last change of the instance's values, or `None` if the instance has no values.
    pub instance: Option<Zxid>,
    /// True if the engine responded recently, so that `values` is up to date.
    pub is_current: bool,
    /// Error if the service's node or the instance's node does not contain a YAML map, or if a process has emptied a
    /// node that had values. In that case, the previous values from this node remain effective. A follower that starts
    /// after a process has emptied the node knows no previous values, and reports no error.
    pub problem: Option<String>,
}

impl Config {
    /// Creates a handle. `acl` is the access list of the nodes that the handle creates, including missing parents.
    #[must_use]
    pub fn new(client: &Client, path: NodePath, acl: Acl) -> Self {
        Config { client: client.clone(), path, acl }
    }

    /// Changes the service's values. If another process changes the values at the same time, the function calls
    /// `change` again.
    ///
    /// # Errors
    /// Returns the same errors as a [`Tree`](crate::tree::Tree). After [`TreeError::Disconnected`] or
    /// [`TreeError::SessionLost`] the change may or may not have happened. Returns [`TreeError::Invalid`] if the node
    /// does not contain a YAML map.
    pub async fn update(&self, change: impl FnMut(&mut Values)) -> Result<(), TreeError> {
        self.update_at(&self.path, change).await
    }

    /// Changes an instance's values in the way in which [`Config::update`] changes the service's values. The values
    /// remain when the process of the instance ends.
    ///
    /// # Errors
    /// Returns the same errors as [`Config::update`].
    pub async fn update_instance(&self, instance: &str, change: impl FnMut(&mut Values)) -> Result<(), TreeError> {
        self.update_at(&child(&self.path, instance)?, change).await
    }

    /// Sets an instance's values until this process ends or the caller drops the returned value.
    ///
    /// # Errors
    /// Returns [`TreeError::Invalid`] if `instance` is not a valid node name.
    pub fn override_while_alive(&self, instance: &str, values: &Values) -> Result<Overrides, TreeError> {
        let (path, data) = (child(&self.path, instance)?, yaml::encode(values)?);
        Ok(Overrides(Presence::start(&self.client, path, CreateMode::Persistent, self.acl.clone(), data)))
    }

    /// Follows the effective values of `instance` from now on. The follower uses only two watches, however many
    /// instances the service has.
    ///
    /// # Errors
    /// Returns the same errors as a [`Tree`](crate::tree::Tree).
    pub async fn follow(&self, instance: &str) -> Result<Followed<Effective>, TreeError> {
        let (service, instance) = (self.path.clone(), child(&self.path, instance)?);
        let nodes = follow(&self.client, Scope::Nodes(vec![service.clone(), instance.clone()])).await?;
        let (mut services, mut instances) = (Part::default(), Part::default());
        Ok(nodes.map(self.client.runtime(), move |nodes| {
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

/// Values of one instance. They exist until its process ends or drops this object. After that, only the service's
/// values are effective.
#[derive(Debug)]
#[must_use = "a drop of this value removes the instance's values"]
pub struct Overrides(Presence);

impl Overrides {
    /// Waits until other processes can see the values.
    ///
    /// # Errors
    /// Returns the same errors as [`Presence::present`].
    pub async fn present(&self) -> Result<(), TreeError> {
        self.0.present().await
    }

    /// Replaces the values. The new values become effective shortly after the call.
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
    /// Change that created the node.
    created: Option<Zxid>,
    modified: Option<Zxid>,
    problem: Option<String>,
}

impl Part {
    fn update(&mut self, nodes: &Subtree, path: &NodePath) {
        let Some(node) = nodes.nodes.get(path) else {
            *self = Part::default();
            return;
        };
        if self.created != Some(node.stat.created) {
            // The values of an earlier node at this path are gone.
            *self = Part { created: Some(node.stat.created), ..Part::default() };
        }
        if self.modified == Some(node.stat.modified) {
            return;
        }
        self.modified = Some(node.stat.modified);
        // A process that removes all values writes `{}`, so an empty node is probably a mistake.
        let decoded = if node.data.trim_ascii().is_empty() && !self.values.is_empty() {
            Err("the node is empty; write `{}` to remove all values".to_owned())
        } else {
            yaml::decode(&node.data)
        };
        match decoded {
            Ok(values) => (self.values, self.problem) = (values, None),
            Err(problem) => self.problem = Some(invalid(path, &problem).to_string()),
        }
    }
}
