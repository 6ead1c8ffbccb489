//! Nodes of a model, and the code that learns its parameters.

use std::fmt;

use anyhow::Context as _;
use bytes::Bytes;
use reveille_coordination::recipes::{Bag, Client, Job, RoleMatch};
use reveille_coordination::tree::{CreateMode, Expected, NodePath, Op, TreeError};

/// Learning rate: the factor by which the model multiplies the error of a prediction to change a parameter.
const STEP: f64 = 0.1;

pub(crate) struct Model {
    pub(crate) name: &'static str,
    pub(crate) path: NodePath,
    /// Parent node of the waiting observations. The node of an observation has the name KEY.NUMBER, where KEY is a
    /// student or an item, depending on the model.
    pub(crate) inbox: NodePath,
    /// Parent node of the learnt observations. The node of an observation shows a user which shard learnt the
    /// observation.
    done: NodePath,
    /// Parameters by key.
    parameters: NodePath,
    pub(crate) shards: RoleMatch,
    /// Bag with the addresses of the processes that follow the parameters.
    pub(crate) subscribers: Bag,
    client: Client,
}

/// Shard of the keys whose hash, divided by `count`, has the remainder `number`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Shard {
    pub(crate) number: u64,
    pub(crate) count: u64,
}

/// Parameter of a student or an item.
#[derive(Clone, Copy, Default)]
pub(crate) struct Parameter {
    pub(crate) value: f64,
    /// Number of observations that changed this parameter.
    pub(crate) count: u64,
}

impl Model {
    pub(crate) async fn open(client: &Client, name: &'static str) -> anyhow::Result<Self> {
        let path = NodePath::new("/streams")?.join(name)?;
        let model = Model {
            name,
            inbox: path.join("inbox")?,
            done: path.join("done")?,
            parameters: path.join("parameters")?,
            shards: RoleMatch::new(client, &path.join("shards")?, client.default_acl())?,
            subscribers: Bag::new(client, &path.join("subscribers")?, client.default_acl())?,
            path,
            client: client.clone(),
        };
        for node in [&model.inbox, &model.done, &model.parameters] {
            client.ensure(node, &client.default_acl()).await?;
        }
        Ok(model)
    }

    /// Returns the names of the waiting observations whose keys belong to the shard.
    pub(crate) async fn waiting(&self, shard: Shard) -> anyhow::Result<Vec<String>> {
        let mut names = self.client.session().await?.children(&self.inbox).await?.names;
        names.retain(|name| key(name).is_some_and(|key| shard.has(key)));
        Ok(names)
    }

    /// Returns all keys with their parameters.
    pub(crate) async fn parameters(&self) -> anyhow::Result<Vec<(String, Parameter)>> {
        let tree = self.client.session().await?;
        let mut all = Vec::new();
        for key in tree.children(&self.parameters).await?.names {
            let node = tree.get(&self.parameters.join(&key)?).await?;
            all.push((key, Parameter::parse(&node.data)?));
        }
        Ok(all)
    }

    /// Removes one observation from the inbox and learns it, in one change. The change fails if another process now
    /// holds the shard. `other` returns a parameter of the other model. The result is the key of the observation and
    /// the new parameter of this key.
    pub(crate) async fn learn(
        &self,
        job: &Job,
        by: &str,
        name: &str,
        other: impl Fn(&str) -> Parameter,
    ) -> anyhow::Result<(String, Parameter)> {
        let tree = self.client.session().await?;
        let key = key(name).with_context(|| format!("the name {name} of an observation contains no key"))?;
        let (waiting, parameter) = (self.inbox.join(name)?, self.parameters.join(key)?);
        let observation = tree.get(&waiting).await?.data;
        let before = match tree.get(&parameter).await {
            Err(TreeError::NoNode) => None,
            node => Some(node?),
        };
        let known = before.as_ref().map_or(Ok(Parameter::default()), |node| Parameter::parse(&node.data))?;
        let learnt = self.after(known, std::str::from_utf8(&observation)?, other).context("invalid observation")?;

        let acl = self.client.default_acl();
        let create = |path, data| Op::Create { path, data, mode: CreateMode::Persistent, acl: acl.clone() };
        let record = format!("{} {} {by}", String::from_utf8_lossy(&job.description), job.leading.term.0);
        let mut steps = job.leading.fence.clone();
        steps.push(Op::Delete { path: waiting, expected: Expected::Any });
        steps.push(create(self.done.join(name)?, record.into()));
        steps.push(match before {
            Some(node) => {
                let expected = Expected::Version(node.stat.version);
                Op::Set { path: parameter, data: learnt.to_string().into(), expected }
            }
            None => create(parameter, learnt.to_string().into()),
        });
        tree.multi(steps).await?;
        Ok((key.to_owned(), learnt))
    }

    /// Computes the new parameter. The text of an observation is `STUDENT ITEM 1` for a correct answer, and `STUDENT
    /// ITEM 0` for a wrong answer.
    fn after(&self, known: Parameter, observation: &str, other: impl Fn(&str) -> Parameter) -> Option<Parameter> {
        let (keys, answer) = observation.rsplit_once(' ')?;
        let (student, item) = keys.split_once(' ')?;
        let answer: f64 = answer.parse().ok()?;
        let is_ability = self.name == "ability";
        let (ability, difficulty) =
            if is_ability { (known.value, other(item).value) } else { (other(student).value, known.value) };
        let error = answer - 1.0 / (1.0 + (difficulty - ability).exp());
        let step = if is_ability { STEP } else { -STEP };
        Some(Parameter { value: known.value + step * error, count: known.count + 1 })
    }
}

fn key(name: &str) -> Option<&str> {
    name.rsplit_once('.').map(|(key, _)| key)
}

impl Shard {
    /// Parses the text of a shard, such as `3 of 8`. Shard numbers start at 0.
    pub(crate) fn parse(text: &Bytes) -> Option<Self> {
        let (number, count) = std::str::from_utf8(text).ok()?.split_once(" of ")?;
        Some(Shard { number: number.parse().ok()?, count: count.parse().ok()? }).filter(|shard| shard.count > 0)
    }

    /// Returns true if the key belongs to the shard. The function uses the FNV hash, which is the same in all
    /// processes.
    fn has(self, key: &str) -> bool {
        let mix = |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        key.bytes().fold(0xcbf2_9ce4_8422_2325, mix) % self.count == self.number
    }
}

impl fmt::Display for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", self.number, self.count)
    }
}

impl Parameter {
    pub(crate) fn parse(text: &[u8]) -> anyhow::Result<Self> {
        let parts = std::str::from_utf8(text)?.split_once(' ');
        let (value, count) = parts.context("invalid parameter: it must have the form VALUE COUNT")?;
        Ok(Parameter { value: value.parse()?, count: count.parse()? })
    }
}

impl fmt::Display for Parameter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.value, self.count)
    }
}
