//! Elector on the only partition of a topic.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bus::leader::LeaderOptions;
use bus::{Admin, BusError, Partition, TopicName, TopicOptions};
use coordination::tree::NodePath;
use coordination::{
    Answer, Elector, ElectorError, Followed, Follower, KnownLeader, LEASE_MAX, Leader, Leadership, check_replica,
    poll_departures, poll_leader,
};
use runtime::Runtime;

use crate::candidacy::{Candidacy, Standing};

/// Least value of the longest lease. Kafka accepts no session timeout below 6 s by default, which is twice this lease.
pub const LEASE_SHORTEST: Duration = Duration::from_secs(3);
/// Largest value of the longest lease. Kafka accepts no session timeout above 30 minutes by default.
pub const LEASE_LONGEST: Duration = Duration::from_secs(15 * 60);

/// Prefix of the name of the topic, which is also the name of the group.
const PREFIX: &str = "reveille-elector.";
/// Longest time of a request for the members of the group. A follower of the leader notices after this time that the bus is
/// away.
const DESCRIBE_MAX: Duration = Duration::from_secs(5);
/// Time between two checks whether the group has selected a leader.
const POLL_PERIOD: Duration = Duration::from_millis(100);

/// Elector of one process for one replica group, on Kafka or another engine of the port `bus`.
///
/// A replica that calls [`Elector::is_leader`] becomes a member of a group of consumers. The owner of the only partition of
/// the topic leads. The name of the topic and of the group is `reveille-elector.` and the path of the replica group without
/// its first `/`, with `.` in place of each other `/`. No other program may use them.
///
/// - The session timeout of a member is twice the longest lease. If the process of a leader dies, another replica leads after
///   this time. A replica that does not call the elector within its lease leaves the group at once.
/// - A response `leads: true` promises the lease, also without contact to the bus. The promise requires that the clock of this
///   process and the clock of the bus differ in their rates by less than a tenth. If an operator deletes the topic or the
///   group, the lease ends early.
/// - A first call of [`Elector::is_leader`] waits until the group has selected a leader, which takes about a second on Kafka.
///   Every call ends within the longest lease. If its caller drops the future, the replica leaves the group after its lease.
/// - While a replica that died is still a member, and another replica joins or leaves, Kafka selects no leader and accepts no
///   commit until the session of the dead member ends. The leader may lose its leadership in this time.
/// - The term is the offset after a record of the topic. Terms rise as long as the topic exists. If an operator deletes the
///   topic, or the cluster loses acknowledged records, the terms start again from a smaller number.
///
/// With `assignor=range` in the URL of Kafka, each replica that joins or leaves can end the leadership after its lease.
///
/// A drop of the elector ends its candidacies without waiting for the bus.
pub struct TopicElector {
    runtime: Runtime,
    group: Group,
    /// Options of the candidates except their names.
    options: LeaderOptions,
    lease_max: Duration,
    candidacies: Mutex<BTreeMap<String, Arc<Candidacy>>>,
}

/// Group of the candidates.
#[derive(Clone)]
struct Group {
    runtime: Runtime,
    bus: Arc<dyn Admin>,
    name: String,
    partition: Partition,
}

/// Reason why a [`TopicElector`] cannot be opened.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TopicElectorError {
    /// The longest lease is not from [`LEASE_SHORTEST`] to [`LEASE_LONGEST`].
    #[error(
        "the lease {0:?} is not from 3 s to 15 minutes; Kafka accepts session timeouts from 6 s to 30 minutes, and the \
             session timeout is twice the lease"
    )]
    Lease(Duration),
    /// The path of the replica group cannot be the name of a topic.
    #[error("the replica group {0:?} cannot be the name of a topic; use at most {max} letters, digits, `_`, `-` and `/`",
            max = TopicName::LEN_MAX - PREFIX.len())]
    Group(String),
    /// The topic has several partitions.
    #[error("the topic {topic} has {partitions} partitions; an elector needs a topic with 1 partition")]
    Partitions {
        /// Topic of the replica group.
        topic: TopicName,
        /// Number of its partitions.
        partitions: usize,
    },
    /// The bus did not respond, or it rejects the topic.
    #[error("cannot use the topic of the replica group: {0}")]
    Bus(#[from] BusError),
}

impl TopicElectorError {
    /// Returns true if a later attempt may succeed without an operator's action.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            TopicElectorError::Bus(error) => error.is_retryable(),
            TopicElectorError::Lease(_) | TopicElectorError::Group(_) | TopicElectorError::Partitions { .. } => false,
        }
    }
}

/// Returns the topic of a replica group.
fn topic_of(group: &NodePath) -> Result<TopicName, TopicElectorError> {
    let error = || TopicElectorError::Group(group.as_str().to_owned());
    let path = group.as_str().trim_start_matches('/');
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_-/".contains(&byte);
    if path.is_empty() || !path.bytes().all(is_allowed) {
        return Err(error());
    }
    TopicName::new(&format!("{PREFIX}{}", path.replace('/', "."))).map_err(|_| error())
}

impl TopicElector {
    /// Opens an elector of the replica group `group` with leases of at most `lease_max`. All electors of a group must have
    /// the same longest lease. Creates the topic if it does not exist, with the replication factor that is the default of the
    /// bus. For a cluster, create the topic before, with 3 replicas and `min.insync.replicas=2`.
    ///
    /// # Errors
    /// Returns [`TopicElectorError::Lease`] if the longest lease is not from [`LEASE_SHORTEST`] to [`LEASE_LONGEST`],
    /// [`TopicElectorError::Group`] if the path has other characters than letters, digits, `_`, `-` and `/`, and
    /// [`TopicElectorError::Partitions`] or [`TopicElectorError::Bus`] if the topic cannot be used.
    pub async fn open(
        runtime: &Runtime,
        bus: Arc<dyn Admin>,
        group: &NodePath,
        lease_max: Duration,
    ) -> Result<Self, TopicElectorError> {
        if !(LEASE_SHORTEST..=LEASE_LONGEST).contains(&lease_max) {
            return Err(TopicElectorError::Lease(lease_max));
        }
        let topic = topic_of(group)?;
        let partitions = partitions(&*bus, &topic).await?;
        if partitions != 1 {
            return Err(TopicElectorError::Partitions { topic, partitions });
        }
        let session_timeout = lease_max * 2;
        let options = LeaderOptions {
            session_timeout,
            margin: session_timeout / 10,
            // A leader that the group replaces keeps the partition until the end of its lease.
            grace: lease_max,
            ..LeaderOptions::new(topic.clone(), topic.as_str(), "")
        };
        let group = Group {
            runtime: runtime.clone(),
            bus,
            name: options.group.clone(),
            partition: Partition { topic, index: 0 },
        };
        Ok(TopicElector { runtime: runtime.clone(), group, options, lease_max, candidacies: Mutex::default() })
    }
}

/// Returns the number of partitions of the topic. Creates the topic if it does not exist.
async fn partitions(bus: &dyn Admin, topic: &TopicName) -> Result<usize, BusError> {
    match bus.describe_topic(topic).await {
        Ok(description) => return Ok(description.offsets.len()),
        Err(BusError::UnknownTopic(_)) => {}
        Err(error) => return Err(error),
    }
    // Only the last record is needed.
    let options = TopicOptions { is_compacted: bus.capabilities().compacts_topics, ..TopicOptions::with_partitions(1) };
    match bus.create_topic(topic, options).await {
        // Another process has created the topic at the same time.
        Ok(()) | Err(BusError::TopicExists(_)) => Ok(bus.describe_topic(topic).await?.offsets.len()),
        Err(error) => Err(error),
    }
}

impl TopicElector {
    fn candidacies(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Candidacy>>> {
        self.candidacies.lock().expect("no code panics while it holds this mutex")
    }

    /// Returns the candidacy of the replica, which ends after `lease`. Begins one if the replica has none.
    ///
    /// # Errors
    /// Returns the error with which the bus rejected the candidacy. The next call begins another one.
    fn candidacy(&self, replica: &str, lease: Duration) -> Result<Arc<Candidacy>, BusError> {
        let ends = self.runtime.monotonic() + lease;
        let mut candidacies = self.candidacies();
        if let Some(candidacy) = candidacies.get(replica) {
            if candidacy.extend(ends) {
                return Ok(candidacy.clone());
            }
            if let Some(failure) = candidacy.failure() {
                candidacies.remove(replica);
                return Err(failure);
            }
        }
        let (bus, options) = (self.group.bus.clone(), self.options.clone());
        let candidacy = Arc::new(Candidacy::begin(&self.runtime, bus, options, replica, ends));
        if let Some(earlier) = candidacies.insert(replica.to_owned(), candidacy.clone()) {
            // The lease has ended, but the member may not have left the group yet.
            drop(self.runtime.spawn("leaving replica", async move { earlier.end().await }));
        }
        Ok(candidacy)
    }

    async fn decide(&self, replica: &str, lease: Duration) -> Result<Leadership, ElectorError> {
        let until = self.runtime.monotonic() + lease;
        let mut cause = "the group has not selected a leader".to_owned();
        let deciding = async {
            loop {
                // A lease does not end while its call waits.
                let candidacy = self.candidacy(replica, lease).map_err(elector_error)?;
                if let Some(term) = candidacy.grant(until) {
                    return Ok(Leadership { leads: true, term });
                }
                if !candidacy.leads() {
                    match self.group.standing().await {
                        Ok(standing) => {
                            if let Some(leadership) = candidacy.following(&standing) {
                                return Ok(leadership);
                            }
                        }
                        Err(error) if error.is_retryable() => cause = error.to_string(),
                        Err(error) => return Err(elector_error(error)),
                    }
                }
                self.runtime.timeout(POLL_PERIOD, candidacy.changed()).await;
            }
        };
        let decided = self.runtime.timeout(self.lease_max, deciding).await;
        decided.unwrap_or(Err(ElectorError::Unavailable(cause)))
    }

    async fn leave(&self, replica: &str) -> Result<(), ElectorError> {
        let candidacy = self.candidacies().remove(replica);
        let Some(candidacy) = candidacy else { return Ok(()) };
        let left = self.runtime.timeout(self.lease_max, candidacy.end()).await;
        left.ok_or_else(|| {
            ElectorError::Unavailable("the replica could not leave the group; its session ends by itself".to_owned())
        })
    }
}

impl Group {
    async fn standing(&self) -> Result<Standing, BusError> {
        let described = self.runtime.timeout(DESCRIBE_MAX, self.bus.describe_group(&self.name)).await;
        let late = || Err(BusError::Disconnected(format!("no description of the group within {DESCRIBE_MAX:?}")));
        let description = described.unwrap_or_else(late)?;
        Ok(Standing::of(&description, &self.partition))
    }
}

fn elector_error(error: BusError) -> ElectorError {
    if error.is_retryable() {
        return ElectorError::Unavailable(error.to_string());
    }
    ElectorError::Rejected(error.to_string())
}

impl Elector for TopicElector {
    fn is_leader(&self, replica: &str, lease: Duration) -> Answer<'_, Leadership> {
        assert!(
            !lease.is_zero() && lease <= LEASE_MAX,
            "invalid lease {lease:?}: it must be above zero and at most {LEASE_MAX:?}"
        );
        let replica = replica.to_owned();
        Box::pin(async move {
            check_replica(&replica)?;
            let most = self.lease_max;
            if lease > most {
                let text =
                    format!("lease {lease:?} is too long; use at most {most:?}, the longest lease of the elector");
                return Err(ElectorError::Rejected(text));
            }
            self.decide(&replica, lease).await
        })
    }

    fn resign(&self, replica: &str) -> Answer<'_, ()> {
        let replica = replica.to_owned();
        Box::pin(async move { self.leave(&replica).await })
    }

    fn followers(&self) -> Answer<'_, Vec<Follower>> {
        Box::pin(async move { Ok(self.group.standing().await.map_err(elector_error)?.followers()) })
    }

    fn departures(&self, replica: &str, known: Vec<Follower>) -> Answer<'_, Option<Vec<Follower>>> {
        let replica = replica.to_owned();
        Box::pin(async move { poll_departures(&self.runtime, self, &replica, &known).await })
    }

    fn follow_leader(&self) -> Answer<'_, Followed<KnownLeader>> {
        let group = self.group.clone();
        let read = move || -> Answer<'static, Option<Leader>> {
            let group = group.clone();
            Box::pin(async move { Ok(group.standing().await.map_err(elector_error)?.leader()) })
        };
        Box::pin(async move { poll_leader(&self.runtime, read).await })
    }
}

impl fmt::Debug for TopicElector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TopicElector").field("group", &self.group.name).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn topic(group: &str) -> Result<String, String> {
        let topic = topic_of(&NodePath::new(group).unwrap());
        topic.map(|topic| topic.as_str().to_owned()).map_err(|error| error.to_string())
    }

    #[test]
    fn path_of_a_group_names_its_topic() {
        assert_eq!(topic("/jobs"), Ok("reveille-elector.jobs".to_owned()));
        assert_eq!(topic("/a/b_c/d-1"), Ok("reveille-elector.a.b_c.d-1".to_owned()));
        assert!(topic(&format!("/{}", "a".repeat(232))).is_ok());
        for invalid in ["/", "/a.b", "/höst", "/a b", &format!("/{}", "a".repeat(233))] {
            let error = topic(invalid).unwrap_err();
            assert!(error.contains("at most 232 letters"), "{error}");
        }
    }
}
