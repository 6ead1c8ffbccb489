//! Candidacy of one replica: a member of the group, from a call of the elector until the lease ends, the replica resigns, or
//! the bus rejects the member.

use std::sync::Arc;
use std::time::Duration;

use bus::leader::{LeaderCandidate, LeaderOptions, Leading};
use bus::{Bus, BusError, GroupDescription, GroupMember, Partition};
use coordination::{Follower, Leader, Leadership, Term};
use instants::Monotonic;
use runtime::{Runtime, TaskSet};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Wait before the repetition of a request that failed.
const RETRY_WAIT: Duration = Duration::from_millis(100);
/// Number of digits of the number in the name of a member.
const LIFE_DIGITS: usize = 16;

/// Takes part in the election until the candidacy ends. A drop ends the candidacy without waiting for the bus.
pub(crate) struct Candidacy {
    member: String,
    progress: Arc<watch::Sender<Progress>>,
    stop: CancellationToken,
    _tasks: TaskSet,
}

struct Progress {
    /// End of the lease of the last call, counted from its last step.
    ends: Monotonic,
    /// End of the last lease that the elector granted, counted from the start of its call.
    granted: Monotonic,
    /// Leadership of the member, if it leads.
    leading: Option<Leading>,
    outcome: Option<Result<(), BusError>>,
}

impl Progress {
    /// Returns the time at which the candidacy ends unless the replica calls the elector again.
    fn ends(&self) -> Monotonic {
        self.ends.max(self.granted)
    }
}

impl Candidacy {
    /// Begins a candidacy of `replica` that ends at `ends`. `options` are the options of the candidate except its name.
    ///
    /// The name of each candidacy is different, so that a new one is not mistaken for the leader of an earlier one.
    pub(crate) fn begin(
        runtime: &Runtime,
        bus: Arc<dyn Bus>,
        options: LeaderOptions,
        replica: &str,
        ends: Monotonic,
    ) -> Self {
        let member = member_of(replica, runtime.random());
        let options = LeaderOptions { name: member.clone(), ..options };
        let progress = Progress { ends, granted: runtime.monotonic(), leading: None, outcome: None };
        let (progress, stop) = (Arc::new(watch::Sender::new(progress)), CancellationToken::new());
        let task = Task { runtime: runtime.clone(), progress: progress.clone(), stop: stop.clone() };
        let lapsing = Task { runtime: runtime.clone(), progress: progress.clone(), stop: stop.clone() };
        let tasks = TaskSet::new(runtime);
        tasks.spawn("lease of a replica", async move { lapsing.lapse().await });
        tasks.spawn("replica", async move {
            let outcome = task.take_part(bus, options).await;
            task.progress.send_modify(|progress| {
                progress.leading = None;
                progress.outcome = Some(outcome);
            });
        });
        Candidacy { member, progress, stop, _tasks: tasks }
    }

    /// Moves the end of the candidacy, but not before the end of a granted lease. Returns false if the candidacy has ended.
    pub(crate) fn extend(&self, ends: Monotonic) -> bool {
        let mut is_alive = false;
        self.progress.send_modify(|progress| {
            is_alive = !self.stop.is_cancelled() && progress.outcome.is_none();
            if is_alive {
                progress.ends = ends;
            }
        });
        is_alive
    }

    /// Returns the error with which the bus rejected the member.
    pub(crate) fn failure(&self) -> Option<BusError> {
        self.progress.borrow().outcome.clone().and_then(Result::err)
    }

    /// Grants a lease until `until` if the member leads at least until then. Returns the term.
    pub(crate) fn grant(&self, until: Monotonic) -> Option<Term> {
        let mut term = None;
        self.progress.send_modify(|progress| {
            let is_granted = |leading: &&Leading| {
                leading.is_valid() && !leading.closing.is_cancelled() && leading.deadline() >= until
            };
            if let Some(leading) = progress.leading.as_ref().filter(is_granted)
                && !self.stop.is_cancelled()
            {
                term = Some(Term(leading.term.next().0));
                progress.granted = until;
            }
        });
        term
    }

    /// Returns true if the member leads.
    pub(crate) fn leads(&self) -> bool {
        self.progress.borrow().leading.as_ref().is_some_and(Leading::is_valid)
    }

    /// Returns the response to a replica that does not lead. Returns `None` while the group does not know this member, or
    /// has not selected another leader.
    pub(crate) fn following(&self, standing: &Standing) -> Option<Leadership> {
        let is_known = standing.members.iter().any(|member| member.name == self.member);
        let other_leads = standing.members.iter().any(|member| member.leads && member.name != self.member);
        (is_known && other_leads).then_some(Leadership { leads: false, term: standing.term })
    }

    /// Waits until the leadership of the member begins or ends, or the candidacy ends.
    pub(crate) async fn changed(&self) {
        let mut progress = self.progress.subscribe();
        let state = |progress: &Progress| (progress.leading.is_some(), progress.outcome.is_some());
        let before = state(&progress.borrow_and_update());
        // The sender lives as long as this object.
        drop(progress.wait_for(|now| state(now) != before).await);
    }

    /// Ends the candidacy, and waits until the member has left the group.
    pub(crate) async fn end(&self) {
        self.stop.cancel();
        // The sender lives as long as this object.
        drop(self.progress.subscribe().wait_for(|progress| progress.outcome.is_some()).await);
    }
}

struct Task {
    runtime: Runtime,
    progress: Arc<watch::Sender<Progress>>,
    stop: CancellationToken,
}

impl Task {
    async fn take_part(&self, bus: Arc<dyn Bus>, options: LeaderOptions) -> Result<(), BusError> {
        let candidate = loop {
            let opened = tokio::select! {
                biased;
                () = self.stop.cancelled() => return Ok(()),
                opened = LeaderCandidate::open(&self.runtime, bus.clone(), options.clone()) => opened,
            };
            match opened {
                Ok(candidate) => break candidate,
                Err(error) if error.is_retryable() => self.runtime.sleep(RETRY_WAIT).await,
                Err(error) => return Err(error),
            }
        };
        candidate.run(&self.stop, |leading| self.lead(leading)).await
    }

    /// Keeps a leadership until the candidacy ends. If the group selects another member, keeps it until the end of the last
    /// granted lease.
    async fn lead(&self, leading: Leading) {
        self.progress.send_modify(|progress| progress.leading = Some(leading.clone()));
        let closing = async {
            leading.closing.cancelled().await;
            // No lease is granted from now on.
            let granted = self.progress.borrow().granted;
            self.runtime.sleep_until(granted).await;
        };
        tokio::select! {
            biased;
            () = self.stop.cancelled() => {}
            () = closing => {}
        }
        self.progress.send_modify(|progress| progress.leading = None);
    }

    /// Waits until the replica has not called the elector within its lease, and ends the candidacy.
    async fn lapse(&self) {
        let mut changes = self.progress.subscribe();
        loop {
            let ends = changes.borrow_and_update().ends();
            tokio::select! {
                biased;
                // The sender lives as long as this task.
                _ = changes.changed() => {}
                () = self.runtime.sleep_until(ends) => {}
            }
            // A call that extends the candidacy takes effect either before this step or not at all.
            self.progress.send_if_modified(|progress| {
                if self.runtime.monotonic() >= progress.ends() {
                    self.stop.cancel();
                }
                false
            });
            if self.stop.is_cancelled() {
                return;
            }
        }
    }
}

/// Replicas of a group at one moment.
pub(crate) struct Standing {
    members: Vec<Member>,
    /// Term of the last known leader.
    term: Term,
}

struct Member {
    name: String,
    replica: String,
    leads: bool,
}

impl Standing {
    /// Reads the description of a group. The last accepted commit names the leader, as long as this member exists.
    pub(crate) fn of(description: &GroupDescription, partition: &Partition) -> Self {
        let committed = description.committed.get(partition);
        let leader = committed.map(|committed| committed.metadata.as_str());
        let member = |member: &GroupMember| {
            let (name, replica) = (member.name.clone(), replica_of(&member.name)?.to_owned());
            Some(Member { leads: Some(name.as_str()) == leader, name, replica })
        };
        let members = description.members.iter().filter_map(member).collect();
        Standing { members, term: Term(committed.map_or(0, |committed| committed.offset.0)) }
    }

    pub(crate) fn leader(&self) -> Option<Leader> {
        let leader = self.members.iter().find(|member| member.leads)?;
        Some(Leader { id: leader.replica.clone(), term: self.term })
    }

    /// Returns the replicas, sorted by name.
    pub(crate) fn followers(&self) -> Vec<Follower> {
        let follower = |member: &Member| Follower { replica: member.replica.clone(), leads: member.leads };
        let mut followers: Vec<Follower> = self.members.iter().map(follower).collect();
        followers.sort();
        followers
    }
}

/// Returns the name of the member for a candidacy of `replica`.
fn member_of(replica: &str, life: u64) -> String {
    format!("{replica}#{life:0LIFE_DIGITS$x}")
}

/// Returns the replica to which a member belongs; `None` if the member is not a candidacy.
fn replica_of(member: &str) -> Option<&str> {
    let (replica, life) = member.rsplit_once('#')?;
    let is_life = life.len() == LIFE_DIGITS && life.bytes().all(|byte| byte.is_ascii_hexdigit());
    (is_life && !replica.is_empty()).then_some(replica)
}

#[cfg(test)]
mod tests {
    use bus::{Committed, Offset, TopicName};

    use super::*;

    #[test]
    fn name_of_a_member_names_its_replica() {
        for replica in ["a", "a#b", "höst 1", "#"] {
            assert_eq!(replica_of(&member_of(replica, 7)), Some(replica));
        }
        for foreign in ["", "reveille", "a#", "a#0", "#0000000000000007", "a#000000000000000g"] {
            assert_eq!(replica_of(foreign), None, "{foreign:?}");
        }
    }

    #[test]
    fn leader_is_the_member_of_the_last_commit_as_long_as_it_exists() {
        let partition = Partition { topic: TopicName::new("leaders").unwrap(), index: 0 };
        let member = |name: String| GroupMember { id: name.clone(), name, host: String::new(), partitions: Vec::new() };
        let (first, second) = (member_of("b", 1), member_of("a", 2));
        let metadata = first.clone();
        let committed = [(partition.clone(), Committed { offset: Offset(5), metadata })].into();
        let members = vec![member(first), member(second.clone()), member("reveille".to_owned())];
        let mut description = GroupDescription { members, committed, is_rebalancing: false };
        let standing = Standing::of(&description, &partition);
        assert_eq!(standing.leader(), Some(Leader { id: "b".to_owned(), term: Term(5) }));
        let follower = |replica: &str, leads| Follower { replica: replica.to_owned(), leads };
        assert_eq!(standing.followers(), [follower("a", false), follower("b", true)]);
        description.members.remove(0);
        let standing = Standing::of(&description, &partition);
        assert_eq!((standing.leader(), standing.followers()), (None, vec![follower("a", false)]));
    }
}
