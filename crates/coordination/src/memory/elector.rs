//! Elector that keeps its replica group in memory.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use instants::Monotonic;
use runtime::{MemoryLink, Runtime};

use super::{MemoryOptions, link};
use crate::elector::check_replica;
use crate::{
    Answer, Elector, ElectorError, Followed, Follower, KnownLeader, LEASE_MAX, Leader, Leadership, Term,
    poll_departures, poll_leader,
};

/// Elector of one process for a replica group in memory. [`MemoryElector::reopen`] creates the elector of another
/// process for the same replica group.
pub struct MemoryElector {
    link: Arc<MemoryLink>,
    /// Random id that distinguishes the replicas of this object from those of other objects.
    life: u128,
    group: Arc<Group>,
}

struct Group {
    clock: Runtime,
    options: MemoryOptions,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    term: u64,
    /// Leader, and the first instant after the end of its lease.
    lease: Option<(Replica, Monotonic)>,
    /// First instant at which each replica no longer counts as a follower.
    followers: BTreeMap<Replica, Monotonic>,
}

type Replica = (String, u128);

impl MemoryElector {
    /// Creates a replica group without replicas. The clock of `runtime` determines when a lease ends.
    #[must_use]
    pub fn new(runtime: Runtime, options: MemoryOptions) -> Self {
        let group = Group { clock: runtime.clone(), options, state: Mutex::new(State::default()) };
        MemoryElector::of(Arc::new(group), runtime)
    }

    /// Opens the same replica group for another process.
    #[must_use]
    pub fn reopen(&self, runtime: Runtime) -> Self {
        MemoryElector::of(self.group.clone(), runtime)
    }

    fn of(group: Arc<Group>, runtime: Runtime) -> Self {
        MemoryElector { life: runtime.random_u128(), link: Arc::new(link(runtime, &group.options)), group }
    }

    async fn call<T>(&self, effect: impl FnOnce(&mut State, Monotonic) -> T) -> Result<T, ElectorError> {
        let effect = || {
            let now = self.group.clock.monotonic();
            let mut state = self.group.state.lock().expect("no code panics while it holds this mutex");
            state.remove_expired(now);
            effect(&mut state, now)
        };
        self.link.call(effect).await.map_err(ElectorError::Unavailable)
    }
}

impl State {
    fn remove_expired(&mut self, now: Monotonic) {
        self.lease.take_if(|(_, end)| *end <= now);
        self.followers.retain(|_, end| now < *end);
    }

    fn leader(&self) -> Option<Leader> {
        let ((replica, _), _) = self.lease.as_ref()?;
        Some(Leader { id: replica.clone(), term: Term(self.term) })
    }

    fn is_leader(&mut self, replica: Replica, end: Monotonic) -> Leadership {
        self.followers.insert(replica.clone(), end);
        match &mut self.lease {
            Some((leader, _)) if *leader != replica => return Leadership { leads: false, term: Term(self.term) },
            Some((_, until)) => *until = end,
            None => {
                self.term += 1;
                self.lease = Some((replica, end));
            }
        }
        Leadership { leads: true, term: Term(self.term) }
    }
}

impl Elector for MemoryElector {
    fn is_leader(&self, replica: &str, lease: Duration) -> Answer<'_, Leadership> {
        assert!(
            !lease.is_zero() && lease <= LEASE_MAX,
            "invalid lease {lease:?}: it must be above zero and at most {LEASE_MAX:?}"
        );
        let replica = (replica.to_owned(), self.life);
        Box::pin(async move {
            check_replica(&replica.0)?;
            self.call(|state, now| state.is_leader(replica, now + lease)).await
        })
    }

    fn resign(&self, replica: &str) -> Answer<'_, ()> {
        let replica = (replica.to_owned(), self.life);
        Box::pin(self.call(move |state, _| {
            state.lease.take_if(|(leader, _)| *leader == replica);
            state.followers.remove(&replica);
        }))
    }

    fn followers(&self) -> Answer<'_, Vec<Follower>> {
        Box::pin(self.call(|state, _| {
            let leader = state.lease.as_ref().map(|(leader, _)| leader);
            let follower = |replica: &Replica| Follower { replica: replica.0.clone(), leads: Some(replica) == leader };
            state.followers.keys().map(follower).collect()
        }))
    }

    fn departures(&self, replica: &str, known: Vec<Follower>) -> Answer<'_, Option<Vec<Follower>>> {
        let replica = replica.to_owned();
        Box::pin(async move { poll_departures(self.link.runtime(), self, &replica, &known).await })
    }

    fn follow_leader(&self) -> Answer<'_, Followed<KnownLeader>> {
        let this = MemoryElector { link: self.link.clone(), life: self.life, group: self.group.clone() };
        let this = Arc::new(this);
        let read = move || -> Answer<'static, Option<Leader>> {
            let this = this.clone();
            Box::pin(async move { this.call(|state, _| state.leader()).await })
        };
        Box::pin(poll_leader(self.link.runtime(), read))
    }
}
