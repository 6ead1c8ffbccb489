//! Mover, which moves masters to their ideal nodes, one at a time.
//!
//! Every node has a mover, but only the mover on the master of the system group acts. The system group decides
//! proposals of its own master sooner than other proposals, and has at most one master at a time. Moves would be safe
//! even if several movers acted, because the safety of moves depends only on the *token* in the log of the system
//! group. The token names one move, and has a lease and a fence. The system group decides each step of a move before
//! the step begins.
//!
//! At each call, the mover compares the present masters with the ideal masters. The network may have lost earlier
//! proposals of the mover, and another process may have taken over the token. The fields of the mover affect only the
//! timing of steps. A mover that has just started can therefore continue any move.
//!
//! Invariants:
//! - A process begins a step only while it is the holder of the token. By its own clock, it begins the step within
//!   [`Options::lease`] after its proposal of the token's last record. Another process takes the token over only after
//!   [`Options::wait`], counted from the instant at which it learned of the last record. By then the lease of the token
//!   is over, and all steps that began during the lease are also over. Therefore no two moves are in flight at the same
//!   time.
//! - Every step has a time limit, so that a failed move also ends. At the time limit of a step, each node returns to
//!   its earlier state without a further message, or is no longer master. The holder ends the token of a failed move
//!   only after all steps of the move are over.
//! - After a failed move, the mover begins no move to the same node for some time. Of several moves, the mover chooses
//!   the move to the node with the fewest failed moves. Of several moves to such nodes, it chooses the move of the
//!   paxos group with the fewest failed moves. A move that always fails therefore does not block other moves.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::balancer::{self, Distribution, Load, Member, Tolerance};
use crate::ids::{Epoch, GroupId, Instant, NodeId, Slot};
use crate::simulation::{Deviation, Mutant};
use crate::system::{Fence, Preparation, Record, Scheme, Step, System, Take, Token};

#[cfg(test)]
mod tests;

/// Options of moves. They must be equal on all nodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    pub tolerance: Tolerance,
    /// Scheme of hand-overs. If a hand-over does not succeed within `handover_within`, the mover continues with
    /// [`Scheme::Wait`].
    pub scheme: Scheme,
    /// Maximum number of slots that the next master may lack at the beginning of a move. The next master must receive
    /// these slots while no node serves.
    pub lag_most: u64,
    /// Time within which the holder of a token may begin a step, counted from its proposal of the token's last record.
    pub lease: Duration,
    /// Time after which another process may take over a token, counted from the instant at which it learned of the
    /// token's last record. The time must exceed [`Options::in_flight`] by at least the possible drift between two
    /// clocks.
    pub wait: Duration,
    /// Time after which the mover repeats an undecided proposal. It must be at most a third of `lease`.
    pub retry: Duration,
    /// Time limit of each preparation.
    pub prepare_within: Duration,
    /// Time limit of a hand-over by consent or by a shortened lease. It must exceed `remaining`.
    pub handover_within: Duration,
    /// Time limit of a hand-over in which the next master waits for the end of the lease. It must exceed the sum of a
    /// master's lease and the duration of an election.
    pub lease_within: Duration,
    /// Time for which a master serves after it shortened its lease. In this time, the next master receives the entry
    /// that shortens the lease, and prepares to take over.
    pub remaining: Duration,
    /// Interval between two moves, and between two searches for a move.
    pub interval: Duration,
    /// Delay of the next move to a node after a failed move to this node. The delay doubles with each failure, up to
    /// `backoff_most`.
    pub backoff: Duration,
    pub backoff_most: Duration,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            tolerance: Tolerance::default(),
            scheme: Scheme::Consent,
            lag_most: 1000,
            lease: Duration::from_secs(5),
            wait: Duration::from_secs(26),
            retry: Duration::from_secs(1),
            prepare_within: Duration::from_secs(5),
            handover_within: Duration::from_secs(2),
            lease_within: Duration::from_secs(20),
            remaining: Duration::from_millis(500),
            interval: Duration::from_secs(1),
            backoff: Duration::from_secs(30),
            backoff_most: Duration::from_secs(600),
        }
    }
}

impl Options {
    /// Returns the maximum time from the proposal of a token's record to the end of the last step that this record
    /// permits.
    #[must_use]
    pub fn in_flight(&self) -> Duration {
        self.lease + self.prepare_within.max(self.handover_within).max(self.lease_within)
    }
}

/// State of the paxos groups and nodes, as known to this node. Each part of it may be outdated.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    pub me: NodeId,
    /// Liveness epoch of this process.
    pub liveness: u64,
    /// True if this node serves as the master of the system group.
    pub masters_system: bool,
    /// State of the system group after its last decided slot.
    pub system: &'a System,
    pub groups: &'a BTreeMap<GroupId, Facts>,
    /// Nodes that respond to this node, including this node.
    pub reachable: &'a BTreeSet<NodeId>,
}

/// State of one paxos group, as known to this node.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Facts {
    /// Master of the paxos group, and the epoch of its mastership; `None` if this node knows no master.
    pub master: Option<(NodeId, Epoch)>,
    /// Number of slots that each replica lacks. The mover never moves a master to a replica for which this number is
    /// unknown.
    pub lag: BTreeMap<NodeId, u64>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Input {
    /// Reports that time has passed or the view has changed. The caller sends several ticks per second.
    Tick,
    /// Reports that the application has finished the preparation `what` of the move with the fence `fence`.
    Prepared { fence: Fence, what: Preparation },
    /// Reports that a node cannot do the step `step` of the move with the fence `fence`. The mover therefore need not
    /// wait for the time limit of the step.
    Rejected { fence: Fence, step: Step },
}

/// Action that the mover requests from its caller. The caller performs the actions in the order in which the mover
/// returns them. Moves are safe even if an action fails.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// Requests that the caller propose this record to the system group.
    Propose(Record),
    /// Requests that the caller order the nodes of the move `of` to do the step `step`, for at most `within` from now
    /// on. The caller reports the end of a preparation by [`Input::Prepared`], and the end of a hand-over by a [`View`]
    /// with the new master.
    Begin { step: Step, of: Move, within: Duration },
}

/// Move of a master. After a node has obeyed orders of a move, it obeys no orders with a lower fence.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Move {
    pub fence: Fence,
    pub group: GroupId,
    pub from: NodeId,
    pub to: NodeId,
    /// Epoch of the mastership that the move ends. If the paxos group has a later mastership, the move has no effect.
    pub epoch: Epoch,
}

#[derive(Debug)]
pub struct Mover {
    options: Options,
    deviation: Deviation,
    /// Last record of the token, and the instant at which this node first observed the record.
    observed: (Option<(Fence, Slot)>, Instant),
    /// Stage of the move whose token this process holds; `None` if the process holds no token, or has not yet continued
    /// the move.
    stage: Option<Stage>,
    /// Instant at which all steps that this process began with its token are over.
    busy_until: Instant,
    /// Last proposal of this mover, and the instant of this proposal. The proposal names a step of a move, or no step
    /// if the proposal ends the token.
    proposed: Option<((Fence, Option<Step>), Instant)>,
    rest_until: Instant,
    /// True if the purpose of the last chosen move is to balance the loads of nodes. The mover then continues to
    /// balance loads even if they differ from the nodes' shares by less than `start_percent`. It stops once all loads
    /// differ from the shares by at most `goal_percent`, or no further move is possible.
    balancing: bool,
    /// Number of failed moves of each paxos group since its last successful move.
    failures: BTreeMap<GroupId, u32>,
    /// Backoff of each node to which a move has failed since the last successful move to the same node.
    backoffs: BTreeMap<NodeId, Backoff>,
}

#[derive(Clone, Copy, Debug)]
struct Stage {
    /// Step that the nodes of the move must do; `None` once this process must end the token.
    want: Option<Step>,
    /// Instant at which the step began. If the step has not begun, the instant at which the mover chose the step.
    since: Instant,
    has_begun: bool,
}

#[derive(Clone, Copy, Debug)]
struct Backoff {
    failures: u32,
    until: Instant,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum MoveStatus {
    Open,
    Moved,
    /// The move can no longer succeed.
    Moot,
}

impl Mover {
    /// # Panics
    /// Panics if the options allow a process to take over a token while the holder still acts. Also panics if the lease
    /// of a token could end while its renewal is in flight.
    #[must_use]
    pub fn new(options: Options, deviation: Deviation) -> Mover {
        assert!(
            options.wait > options.in_flight(),
            "the wait for a token is longer than the time in which its holder may act"
        );
        assert!(options.retry <= options.lease / 3, "a holder renews its token before the token's lease ends");
        Mover {
            options,
            deviation,
            observed: (None, Instant::default()),
            stage: None,
            busy_until: Instant::default(),
            proposed: None,
            rest_until: Instant::default(),
            balancing: false,
            failures: BTreeMap::new(),
            backoffs: BTreeMap::new(),
        }
    }

    pub fn step(&mut self, now: Instant, view: &View<'_>, input: Input) -> Vec<Action> {
        let token = view.system.token();
        self.look(now, token);
        if !view.masters_system {
            return Vec::new();
        }
        match token {
            None => self.choose(now, view),
            Some(token) if (token.holder, token.liveness) == (view.me, view.liveness) => {
                let mut actions = self.continue_move(now, view, token, input);
                if self.deviation.is(Mutant::TwoMoveTokens) {
                    actions.extend(self.choose(now, view));
                }
                actions
            }
            Some(token) => self.take_over(now, view, token),
        }
    }

    /// Returns true if the mover has begun this step and has not ended it.
    pub(crate) fn is_at(&self, step: Step) -> bool {
        self.stage.is_some_and(|stage| stage.want == Some(step) && stage.has_begun)
    }

    fn look(&mut self, now: Instant, token: Option<&Token>) {
        let observed = token.map(|token| (token.fence, token.last));
        if observed == self.observed.0 {
            return;
        }
        if observed.map(|(fence, _)| fence) != self.observed.0.map(|(fence, _)| fence) {
            (self.stage, self.busy_until) = (None, Instant::default());
            self.rest_until = now + self.options.interval;
        }
        self.observed = (observed, now);
    }

    /// Proposes to take the token for the next move, if a move is necessary and possible.
    fn choose(&mut self, now: Instant, view: &View<'_>) -> Vec<Action> {
        if now < self.rest_until {
            return Vec::new();
        }
        let ideal = self.ideal(view);
        self.failures.retain(|group, _| view.master(*group).map(|(node, _)| node) != ideal.get(group).copied());
        let next = ideal
            .iter()
            .filter_map(|(group, to)| {
                let (from, epoch) = view.master(*group)?;
                (from != *to && self.can_move(now, view, *group, from, *to)).then_some((*group, from, *to, epoch))
            })
            .min_by_key(|(group, _, to, _)| {
                let failures = self.failures.get(group).copied().unwrap_or(0);
                (self.backoffs.get(to).map_or(0, |backoff| backoff.failures), failures, *group)
            });
        self.balancing = next.is_some_and(|(_, from, ..)| view.may_master(from));
        let Some((group, from, to, epoch)) = next else {
            self.rest_until = now + self.options.interval;
            return Vec::new();
        };
        let precondition = (view.system.fence(), Slot(0));
        let (holder, liveness) = (view.me, view.liveness);
        self.propose_take(now, Take { precondition, holder, liveness, group, from, to, epoch, stamp: now })
    }

    fn ideal(&self, view: &View<'_>) -> Distribution {
        let mut tolerance = self.options.tolerance;
        if self.balancing {
            tolerance.start_percent = tolerance.goal_percent;
        }
        let nodes = view.system.nodes().iter();
        let members: Vec<Member> = nodes
            .map(|(id, node)| Member { node: *id, capacity: node.capacity, may_master: view.may_master(*id) })
            .collect();
        let groups = view.system.groups().iter();
        let loads: Vec<Load> = groups
            .map(|(id, group)| Load { group: *id, weight: group.weight, replicas: group.replicas.clone() })
            .collect();
        let present = loads.iter().filter_map(|load| Some((load.group, view.master(load.group)?.0))).collect();
        balancer::ideal(&members, &loads, &present, tolerance)
    }

    /// Returns true if the move can begin now. It cannot begin if the present master is dead, because the paxos group
    /// then elects another master without a move. It cannot begin while one of the two nodes is unreachable, while `to`
    /// lacks too many slots, or during the backoff of `to`.
    fn can_move(&self, now: Instant, view: &View<'_>, group: GroupId, from: NodeId, to: NodeId) -> bool {
        let lag = view.groups.get(&group).and_then(|facts| facts.lag.get(&to));
        view.system.is_alive(from)
            && view.reachable.contains(&from)
            && view.reachable.contains(&to)
            && lag.is_some_and(|lag| *lag <= self.options.lag_most)
            && self.backoffs.get(&to).is_none_or(|backoff| backoff.until <= now)
    }

    /// Proposes to take over the token of another node or of an earlier process of this node, after a wait of
    /// [`Options::wait`]. If the token's move is over, proposes the end of the token without a wait. In this case, the
    /// wait is not necessary, because any step that the holder may still begin names a mastership that is over.
    fn take_over(&mut self, now: Instant, view: &View<'_>, token: &Token) -> Vec<Action> {
        if view.is_over(token) {
            return self.propose(now, (token.fence, None), Record::TokenEnd { fence: token.fence });
        }
        if now.since(self.observed.1) < self.options.wait && !self.deviation.is(Mutant::TakesTokenAtOnce) {
            return Vec::new();
        }
        let Token { fence, group, from, to, epoch, last, .. } = *token;
        let (holder, liveness, precondition) = (view.me, view.liveness, (fence, last));
        self.propose_take(now, Take { precondition, holder, liveness, group, from, to, epoch, stamp: now })
    }

    /// Continues the move whose token this process holds.
    fn continue_move(&mut self, now: Instant, view: &View<'_>, token: &Token, input: Input) -> Vec<Action> {
        let Token { fence, group, from, to, epoch, .. } = *token;
        let of = Move { fence, group, from, to, epoch };
        let mut stage = self.stage.unwrap_or(Stage { want: Some(token.step), since: now, has_begun: false });
        if let Some(step) = stage.want {
            let status = view.status(token);
            let want = match status {
                MoveStatus::Open => self.next(now, of, step, stage.since, input),
                MoveStatus::Moved | MoveStatus::Moot => None,
            };
            if status == MoveStatus::Moved {
                self.failures.remove(&group);
                self.backoffs.remove(&to);
            }
            if want != stage.want {
                stage = Stage { want, since: now, has_begun: false };
            }
        }
        let Some(step) = stage.want else {
            self.stage = Some(stage);
            if now < self.busy_until && !view.is_over(token) {
                return Vec::new();
            }
            return self.propose(now, (fence, None), Record::TokenEnd { fence });
        };
        let mut actions = Vec::new();
        let renewed = now.since(token.stamp);
        if step == token.step && !stage.has_begun && renewed < self.options.lease {
            let within = self.limit(step);
            (stage.has_begun, stage.since) = (true, now);
            self.busy_until = self.busy_until.max(now + within);
            actions.push(Action::Begin { step, of, within });
        }
        self.stage = Some(stage);
        if step != token.step || renewed >= self.options.lease / 3 {
            let record = Record::TokenStep { fence, step, stamp: now };
            actions.extend(self.propose(now, (fence, Some(step)), record));
        }
        actions
    }

    /// Returns the next step of the move, which may be the present step. Returns `None` once the move has failed.
    fn next(&mut self, now: Instant, of: Move, step: Step, since: Instant, input: Input) -> Option<Step> {
        match (step, input) {
            (Step::Prepare(what), Input::Prepared { fence, what: done }) if (fence, done) == (of.fence, what) => {
                Some(match what {
                    Preparation::SyncOffsets => Step::Prepare(Preparation::NotifyProducers),
                    Preparation::NotifyProducers => Step::Handover(self.options.scheme),
                })
            }
            (_, Input::Rejected { fence, step: rejected }) if (fence, rejected) == (of.fence, step) => {
                self.after_failure(now, of, step)
            }
            _ if now.since(since) >= self.limit(step) => self.after_failure(now, of, step),
            _ => Some(step),
        }
    }

    /// Returns the step that replaces a failed step, or `None` once the move has failed.
    fn after_failure(&mut self, now: Instant, of: Move, step: Step) -> Option<Step> {
        match step {
            Step::Handover(Scheme::Consent | Scheme::Shorten) => return Some(Step::Handover(Scheme::Wait)),
            Step::Handover(Scheme::Wait) | Step::Prepare(_) => {}
        }
        let failures = self.failures.entry(of.group).or_default();
        *failures = failures.saturating_add(1);
        let backoff = self.backoffs.entry(of.to).or_insert(Backoff { failures: 0, until: now });
        let wait = self.options.backoff.saturating_mul(1 << backoff.failures.min(16)).min(self.options.backoff_most);
        *backoff = Backoff { failures: backoff.failures.saturating_add(1), until: now + wait };
        None
    }

    fn limit(&self, step: Step) -> Duration {
        match step {
            Step::Prepare(_) => self.options.prepare_within,
            Step::Handover(Scheme::Consent | Scheme::Shorten) => self.options.handover_within,
            Step::Handover(Scheme::Wait) => self.options.lease_within,
        }
    }

    /// Proposes to take the token for a move. The first renewal of the token names the same fence and step, so
    /// [`Mover::propose`] treats it as a repetition of this proposal. This treatment delays the renewal by at most
    /// [`Options::retry`], so the renewal is still in time.
    fn propose_take(&mut self, now: Instant, take: Take) -> Vec<Action> {
        let what = (Fence(take.precondition.0.0 + 1), Some(Step::FIRST));
        self.propose(now, what, Record::TokenTake(take))
    }

    /// Proposes a record, unless the mover made the same proposal less than [`Options::retry`] ago.
    fn propose(&mut self, now: Instant, what: (Fence, Option<Step>), record: Record) -> Vec<Action> {
        if self.proposed.is_some_and(|(proposed, at)| proposed == what && now.since(at) < self.options.retry) {
            return Vec::new();
        }
        self.proposed = Some((what, now));
        vec![Action::Propose(record)]
    }
}

impl View<'_> {
    fn master(&self, group: GroupId) -> Option<(NodeId, Epoch)> {
        self.groups.get(&group)?.master
    }

    fn may_master(&self, node: NodeId) -> bool {
        self.system.node(node).is_some_and(|node| node.alive.is_some() && !node.draining && node.capacity > 0)
    }

    /// Returns true if the mastership that the token's move must end is over. No node then obeys orders of the move.
    fn is_over(&self, token: &Token) -> bool {
        self.master(token.group).is_some_and(|(_, epoch)| epoch > token.epoch)
    }

    fn status(&self, token: &Token) -> MoveStatus {
        let replicas = self.system.groups().get(&token.group).map(|group| &group.replicas);
        match self.master(token.group) {
            Some((node, epoch)) if epoch > token.epoch && node == token.to => MoveStatus::Moved,
            _ if self.is_over(token) => MoveStatus::Moot,
            _ if !self.may_master(token.to) || replicas.is_none_or(|nodes| !nodes.contains(&token.to)) => {
                MoveStatus::Moot
            }
            _ => MoveStatus::Open,
        }
    }
}
