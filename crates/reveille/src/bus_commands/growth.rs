//! Command `reveille bus topics grow`, which adds partitions to a topic.
//!
//! The number of partitions determines the partition of a key. After the growth, later records of a key may be in another
//! partition than its earlier records. Another member could handle a later record first. With `--drain`, the command
//! therefore waits until all records are handled and no further records arrive.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{bail, ensure};
use bus::{Admin, GroupDescription, Offset, Partition, TopicDescription, TopicName};
use clap::Args;
use domain::duration;
use runtime::{Monotonic, Runtime};

use super::groups::lag;
use super::{Common, explain, note};
use crate::progress::Progress;

/// Longest time between two checks.
const CHECK_PERIOD_MAX: Duration = Duration::from_secs(1);

#[derive(Args, Debug)]
pub(crate) struct Grow {
    /// Name of the topic
    pub(super) topic: TopicName,
    /// New number of partitions
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    partitions: u32,
    /// Wait until the producers have stopped and no group has a lag, then grow the topic; the command waits for all
    /// groups that use the topic, and also for the named groups
    #[arg(long, value_name = "GROUP", num_args = 0.., conflicts_with = "unkeyed")]
    drain: Option<Vec<String>>,
    /// Grow the topic immediately, because the order of its records does not matter or its records have no keys
    #[arg(long)]
    unkeyed: bool,
    /// Group for which the drain does not wait, because no process uses the group any more; repeat the option for further
    /// groups
    #[arg(long, value_name = "GROUP", requires = "drain")]
    ignore: Vec<String>,
    /// Time without a new record after which the producers count as stopped
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = duration::parse)]
    quiet: Duration,
    /// Longest time of the drain; after it, the command fails and the topic is unchanged
    #[arg(long, value_name = "DURATION", default_value = "10m", value_parser = duration::parse)]
    timeout: Duration,
    #[command(flatten)]
    pub(super) common: Common,
}

impl Grow {
    /// Checks the options.
    ///
    /// # Errors
    /// Returns an error if the user gives neither `--drain` nor `--unkeyed`, or if the drain could never succeed.
    pub(super) fn check(&self) -> anyhow::Result<()> {
        ensure!(
            self.drain.is_some() || self.unkeyed,
            "the growth of a topic changes the partition of its keys, so the records of a key keep their order only \
             within one number of partitions: stop the producers and use --drain to wait until all records are handled, \
             or use --unkeyed if the records have no keys"
        );
        ensure!(!self.quiet.is_zero(), "--quiet is 0s, so no check would notice a new record; name a longer time");
        ensure!(
            self.unkeyed || self.quiet < self.timeout,
            "--quiet {} is not shorter than --timeout {}; name a longer timeout",
            duration::format(self.quiet),
            duration::format(self.timeout)
        );
        Ok(())
    }
}

/// Grows a topic. Returns the description of the larger topic.
///
/// # Errors
/// Returns an error if the bus rejects the growth, or if the topic is not drained in time. The topic is then unchanged.
pub(super) async fn grow(runtime: &Runtime, bus: &dyn Admin, arguments: &Grow) -> anyhow::Result<TopicDescription> {
    let Grow { topic, partitions, .. } = arguments;
    let now = bus.describe_topic(topic).await.map_err(explain)?.offsets.len();
    ensure!(
        usize::try_from(*partitions).is_ok_and(|wanted| wanted > now),
        "the topic {topic} already has {now} partitions; name a larger number with --partitions"
    );
    let drained = match &arguments.drain {
        Some(named) => Drain { runtime, bus, arguments, named }.finish().await?,
        None => Vec::new(),
    };
    bus.grow_topic(topic, *partitions).await.map_err(explain)?;
    let grown = bus.describe_topic(topic).await.map_err(explain)?;
    let has_arrivals = drained.iter().zip(&grown.offsets).any(|(end, (_, now))| end != now);
    if has_arrivals {
        note(&format!(
            "records arrived in the topic {topic} while it grew: the records of their keys may be handled in another \
             order; stop the producers before the next growth"
        ));
    }
    Ok(grown)
}

/// Wait for the end of all work on a topic.
struct Drain<'a> {
    runtime: &'a Runtime,
    bus: &'a dyn Admin,
    arguments: &'a Grow,
    /// Groups that must have no lag even if they have never committed an offset.
    named: &'a [String],
}

/// Offsets of the topic, and the time since when its ends have not changed.
struct Observed {
    offsets: Vec<(Offset, Offset)>,
    since: Monotonic,
}

impl Drain<'_> {
    /// Waits until the topic is drained. Returns the end of each partition.
    ///
    /// A record that arrives after the requests for the committed offsets changes the end of its partition. So the last
    /// request before the growth reads the ends again.
    async fn finish(&self) -> anyhow::Result<Vec<Offset>> {
        let Grow { topic, quiet, timeout, .. } = self.arguments;
        let mut progress = Progress::new(self.runtime);
        let deadline = self.runtime.monotonic() + *timeout;
        let mut observed = Observed { offsets: Vec::new(), since: self.runtime.monotonic() };
        loop {
            let unchanged = self.observe(&mut observed).await?;
            let lags = self.lags(&observed.offsets).await?;
            if lags.is_empty() && unchanged >= *quiet && self.observe(&mut observed).await? >= *quiet {
                return Ok(ends(&observed.offsets));
            }
            if self.runtime.monotonic() >= deadline {
                bail!(
                    "the topic {topic} is unchanged, because it is not drained after {}: {}; stop the producers and let \
                     the groups finish, or exclude a group that no process uses any more with --ignore GROUP",
                    duration::format(*timeout),
                    state(&lags, unchanged)
                );
            }
            progress.update(|| format!("draining {topic}: {}", state(&lags, unchanged)));
            self.runtime.sleep(CHECK_PERIOD_MAX.min(*quiet)).await;
        }
    }

    /// Reads the offsets of the topic. Returns the time for which its ends have not changed.
    async fn observe(&self, observed: &mut Observed) -> anyhow::Result<Duration> {
        let asked = self.runtime.monotonic();
        let offsets = self.bus.describe_topic(&self.arguments.topic).await.map_err(explain)?.offsets;
        if ends(&offsets) != ends(&observed.offsets) {
            observed.since = self.runtime.monotonic();
        }
        observed.offsets = offsets;
        Ok(asked.since(observed.since))
    }

    /// Returns the groups that have a lag in the topic.
    async fn lags(&self, offsets: &[(Offset, Offset)]) -> anyhow::Result<BTreeMap<String, u64>> {
        let mut names: BTreeSet<String> = self.bus.groups().await.map_err(explain)?.into_iter().collect();
        names.extend(self.named.iter().cloned());
        let mut lags = BTreeMap::new();
        for name in names.into_iter().filter(|name| !self.arguments.ignore.contains(name)) {
            let group = self.bus.describe_group(&name).await.map_err(explain)?;
            if self.named.contains(&name) || uses(&group, &self.arguments.topic) {
                let lag = lag_in_topic(&group, &self.arguments.topic, offsets);
                if lag > 0 {
                    lags.insert(name, lag);
                }
            }
        }
        Ok(lags)
    }
}

fn ends(offsets: &[(Offset, Offset)]) -> Vec<Offset> {
    offsets.iter().map(|(_, end)| *end).collect()
}

/// Returns true if the group has committed offsets of the topic, or members that read it.
fn uses(group: &GroupDescription, topic: &TopicName) -> bool {
    let read = group.members.iter().flat_map(|member| &member.partitions);
    group.committed.keys().chain(read).any(|partition| partition.topic == *topic)
}

fn lag_in_topic(group: &GroupDescription, topic: &TopicName, offsets: &[(Offset, Offset)]) -> u64 {
    let committed = |index: u32| {
        let partition = Partition { topic: topic.clone(), index };
        group.committed.get(&partition).map(|committed| committed.offset)
    };
    (0..).zip(offsets).map(|(index, offsets)| lag(committed(index), *offsets)).sum()
}

/// Describes a drain that is not finished.
fn state(lags: &BTreeMap<String, u64>, unchanged: Duration) -> String {
    let lags: Vec<String> = lags.iter().map(|(group, lag)| format!("the group {group} has a lag of {lag}")).collect();
    let unchanged = format!("no new record for {} s", unchanged.as_secs());
    [lags, vec![unchanged]].concat().join(", ")
}

#[cfg(test)]
mod tests;
