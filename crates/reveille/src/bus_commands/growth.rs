//! Command `reveille bus topics grow`, which adds partitions to a topic.
//!
//! The number of partitions determines the partition of a key. After the growth, later records of a key may be in another
//! partition than its earlier records. Another member could handle a later record first. With `--drain`, the command
//! therefore waits until all records are handled and no further records arrive.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use bus::{Admin, GroupDescription, Offset, Partition, TopicDescription, TopicName};
use clap::Args;
use domain::duration;
use runtime::{Monotonic, Runtime};

use super::{Common, explain, note};
use crate::cli::show::escaped;
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
    /// groups that use the topic and that the user may describe, and also for the named groups
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

/// Topic after its growth.
#[derive(Debug)]
pub(super) struct Grown {
    pub(super) description: TopicDescription,
    /// Number of offsets that the bus gave to records while the topic grew; `None` without a drain.
    pub(super) arrivals: Option<u64>,
}

/// Grows a topic.
///
/// # Errors
/// Returns an error if the bus rejects the growth, or if the topic is not drained in time. The topic is then unchanged. If
/// the bus did not respond, the error states the number of partitions that the topic has after it.
pub(super) async fn grow(runtime: &Runtime, bus: &dyn Admin, arguments: &Grow) -> anyhow::Result<Grown> {
    let Grow { topic, partitions, .. } = arguments;
    let now = bus.describe_topic(topic).await.map_err(explain)?.offsets.len();
    ensure!(
        usize::try_from(*partitions).is_ok_and(|wanted| wanted > now),
        "the topic {topic} already has {now} partitions; name a larger number with --partitions"
    );
    let drained = match &arguments.drain {
        Some(named) => Some(Drain { runtime, bus, arguments, named }.finish().await?),
        None => None,
    };
    add_partitions(bus, topic, *partitions).await?;
    let context = || {
        format!(
            "the topic {topic} has {partitions} partitions now, but the command cannot check whether records arrived while \
             it grew"
        )
    };
    let description = bus.describe_topic(topic).await.map_err(explain).with_context(context)?;
    let Some(Drained { ends, readers }) = drained else { return Ok(Grown { description, arrivals: None }) };
    let stored = bus.stored_ends(topic).await.map_err(explain).with_context(context)?;
    let arrivals: u64 = ends.iter().zip(&stored).map(|(before, after)| after.0.saturating_sub(before.0)).sum();
    if arrivals > 0 {
        note(&format!(
            "records arrived in the topic {topic} while it grew: the records of their keys may be handled in another \
             order; stop the producers before the next growth"
        ));
    }
    for group in readers {
        note(&format!(
            "the members of the group {group} notice the new partitions later: start the producers after `reveille bus \
             groups show` lists the partitions of the group, because a group that starts at the end of a partition loses \
             its earlier records"
        ));
    }
    Ok(Grown { description, arrivals: Some(arrivals) })
}

/// Adds partitions. After an error, the bus may have added them, so the function reads their number again.
async fn add_partitions(bus: &dyn Admin, topic: &TopicName, partitions: u32) -> anyhow::Result<()> {
    let Err(error) = bus.grow_topic(topic, partitions).await else { return Ok(()) };
    let state = match bus.describe_topic(topic).await.map(|description| description.offsets.len()) {
        Ok(now) if error.is_retryable() && usize::try_from(partitions) == Ok(now) => return Ok(()),
        Ok(now) => format!("the topic {topic} has {now} partitions now"),
        Err(_) => format!(
            "the bus may have grown the topic {topic}; `reveille bus topics show` shows its partitions when the bus \
             responds again"
        ),
    };
    Err(explain(error).context(state))
}

/// Wait for the end of all work on a topic.
struct Drain<'a> {
    runtime: &'a Runtime,
    bus: &'a dyn Admin,
    arguments: &'a Grow,
    /// Groups that must have no lag even if they have never committed an offset.
    named: &'a [String],
}

/// Topic without unfinished records.
struct Drained {
    /// End of each partition.
    ends: Vec<Offset>,
    /// Groups whose members read the topic.
    readers: Vec<String>,
}

/// Offsets of the topic, and the time since when its ends have not changed.
struct Observed {
    /// First offset and readable end of each partition.
    offsets: Vec<(Offset, Offset)>,
    /// Stored end of each partition.
    stored: Vec<Offset>,
    since: Monotonic,
}

/// Groups that use the topic.
#[derive(Default)]
struct Groups {
    /// Groups that have not finished all records, and their lag.
    lags: BTreeMap<String, u64>,
    /// Groups that are assigning partitions, so the command does not know whether they use the topic.
    rebalancing: Vec<String>,
    /// Groups whose members read the topic.
    readers: Vec<String>,
}

impl Drain<'_> {
    /// Waits until the topic is drained.
    ///
    /// A record that arrives after the requests for the committed offsets changes the stored end of its partition. So the
    /// last request before the growth reads the ends again.
    async fn finish(&self) -> anyhow::Result<Drained> {
        let Grow { topic, quiet, timeout, .. } = self.arguments;
        let mut progress = Progress::new(self.runtime);
        let start = self.runtime.monotonic();
        let mut observed = Observed { offsets: Vec::new(), stored: Vec::new(), since: start };
        loop {
            let unchanged = self.observe(&mut observed).await?;
            let groups = self.groups(&observed.offsets, unchanged >= *quiet).await?;
            let is_finished = groups.lags.is_empty() && groups.rebalancing.is_empty();
            if is_finished && unchanged >= *quiet && self.observe(&mut observed).await? >= *quiet {
                return Ok(Drained { ends: observed.stored, readers: groups.readers });
            }
            if self.runtime.monotonic() >= start + *timeout {
                bail!(
                    "the topic {topic} is unchanged, because it is not drained after {}: {}; stop the producers and let \
                     the groups finish, or exclude a group that no process uses any more with --ignore GROUP",
                    duration::format(*timeout),
                    state(&groups, &observed, unchanged)
                );
            }
            progress.update(|| format!("draining {topic}: {}", state(&groups, &observed, unchanged)));
            self.runtime.sleep(CHECK_PERIOD_MAX.min(*quiet)).await;
        }
    }

    /// Reads the offsets of the topic. Returns the time for which its ends have not changed. The time is zero while a
    /// transaction is open, because its records arrive in the groups only at its end.
    async fn observe(&self, observed: &mut Observed) -> anyhow::Result<Duration> {
        let topic = &self.arguments.topic;
        let asked = self.runtime.monotonic();
        // If the readable ends are equal to the stored ends of the later request, the stored ends did not change between
        // the requests.
        let offsets = self.bus.describe_topic(topic).await.map_err(explain)?.offsets;
        let stored = self.bus.stored_ends(topic).await.map_err(explain)?;
        let has_changed = stored != observed.stored;
        (observed.offsets, observed.stored) = (offsets, stored);
        if has_changed || observed.unreadable() > 0 {
            observed.since = self.runtime.monotonic();
        }
        Ok(asked.since(observed.since))
    }

    /// Describes the groups that use the topic. If `is_quiet` is true, offsets without records are no lag.
    async fn groups(&self, offsets: &[(Offset, Offset)], is_quiet: bool) -> anyhow::Result<Groups> {
        let Grow { topic, ignore, .. } = self.arguments;
        let mut names: BTreeSet<String> = self.bus.groups().await.map_err(explain)?.into_iter().collect();
        names.extend(self.named.iter().cloned());
        let mut groups = Groups::default();
        for name in names.into_iter().filter(|name| !ignore.contains(name)) {
            let group = self.bus.describe_group(&name).await.map_err(explain)?;
            let uses = uses(&group, topic);
            if uses || self.named.contains(&name) {
                let positions = positions(&group, topic, offsets);
                let lag: u64 = positions.iter().zip(offsets).map(|(from, (_, end))| end.0.saturating_sub(from.0)).sum();
                if lag > 0 && (!is_quiet || self.bus.has_records(topic, &positions).await.map_err(explain)?) {
                    groups.lags.insert(name.clone(), lag);
                }
            }
            if group.is_rebalancing && !uses {
                groups.rebalancing.push(name);
            } else if uses && !group.members.is_empty() {
                groups.readers.push(name);
            }
        }
        Ok(groups)
    }
}

impl Observed {
    /// Returns the number of stored offsets that consumers do not receive yet.
    fn unreadable(&self) -> u64 {
        let readable = self.offsets.iter().map(|(_, end)| end.0).sum();
        self.stored.iter().map(|end| end.0).sum::<u64>().saturating_sub(readable)
    }
}

/// Returns true if the group has committed offsets of the topic, or members that read it.
fn uses(group: &GroupDescription, topic: &TopicName) -> bool {
    let read = group.members.iter().flat_map(|member| &member.partitions);
    group.committed.keys().chain(read).any(|partition| partition.topic == *topic)
}

/// Returns the offset of the first record of each partition that the group may not have finished.
fn positions(group: &GroupDescription, topic: &TopicName, offsets: &[(Offset, Offset)]) -> Vec<Offset> {
    let committed = |index: u32| {
        let partition = Partition { topic: topic.clone(), index };
        group.committed.get(&partition).map(|committed| committed.offset)
    };
    (0..).zip(offsets).map(|(index, (first, _))| committed(index).unwrap_or(*first).max(*first)).collect()
}

/// Describes a drain that is not finished. Other users have chosen the names of the groups.
fn state(groups: &Groups, observed: &Observed, unchanged: Duration) -> String {
    let lag = |(group, lag): (&String, &u64)| format!("the group {} has a lag of {lag}", escaped(group));
    let rebalancing = |group: &String| format!("the group {} is assigning partitions", escaped(group));
    let mut parts: Vec<String> = groups.lags.iter().map(lag).collect();
    parts.extend(groups.rebalancing.iter().map(rebalancing));
    match observed.unreadable() {
        0 => parts.push(format!("no new record for {} s", unchanged.as_secs())),
        count => parts.push(format!("{count} records of an open transaction")),
    }
    parts.join(", ")
}

#[cfg(test)]
mod tests;
