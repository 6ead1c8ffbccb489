//! Who moves masters to where they should be, one at a time, and how.
//!
//! Every node has a mover, and only that of the system group's master acts: what it proposes is decided soonest there, and
//! there is at most one such node. That there is one is not what makes moves safe, though. The *token* in the system
//! group's log is: it names one move, has a lease and a fence, and each step of a move is decided before it is begun.
//!
//! It compares what is with what it wants, at each call anew: what it proposed may have been lost, and a token that it
//! finds may be another's. What it remembers by itself only says when; a mover that starts with nothing goes on as well.
//!
//! What always holds:
//! - a step is begun only while the token is this process's, by its own clock less than [`Options::lease`] after it
//!   proposed the record that says so; and another takes the token over only [`Options::wait`] after it learned the last
//!   record, when that lease is over and so is what was begun under it. So no two moves are in flight;
//! - every step has a limit: the end of the last one is the end of the move, well or not. At the end of the limit that it was
//!   told, whoever was told of a step returns to where it was, without being told so, or has ceased to be master; and before
//!   all that was told is over, the token of a move that failed is not given back;
//! - to a node where a move failed none goes for a while, and of two moves the one to the node, then that of the paxos
//!   group, which failed less often comes first. So what always fails keeps nothing else from moving.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::balancer::{self, Distribution, Load, Member, Tolerance};
use crate::ids::{Epoch, GroupId, Instant, NodeId, Slot};
use crate::simulation::{Deviation, Mutant};
use crate::system::{Fence, Preparation, Record, Scheme, Step, System, Take, Token};

#[cfg(test)]
mod tests;

/// What can be set of moves, the same at all nodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    pub tolerance: Tolerance,
    /// How masterships pass on. If that does not come about within `handover_within`, they do by [`Scheme::Wait`].
    pub scheme: Scheme,
    /// How many slots behind a node may be that becomes a master: it has to catch up while nobody serves.
    pub lag_most: u64,
    /// How long after a record of the token was proposed its holder may begin a step.
    pub lease: Duration,
    /// How long after a token's last record was learned another may take it over. More than [`Options::in_flight`], by what
    /// two clocks may differ.
    pub wait: Duration,
    /// What was proposed and is not decided is proposed again after this. At most a third of `lease`.
    pub retry: Duration,
    /// The limit of each preparation.
    pub prepare_within: Duration,
    /// The limit of a hand-over by consent, or by a lease cut short. More than `remaining`.
    pub handover_within: Duration,
    /// The limit of a hand-over by waiting: more than a master's lease and an election.
    pub lease_within: Duration,
    /// How long a master that cuts its lease short serves on: time for the next one to see that, and to be ready.
    pub remaining: Duration,
    /// Between two moves, and between two looks whether there is one to make.
    pub pause: Duration,
    /// To a node where a move failed, the next goes after this, then after twice as long and so on, up to `backoff_most`.
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
            pause: Duration::from_secs(1),
            backoff: Duration::from_secs(30),
            backoff_most: Duration::from_secs(600),
        }
    }
}

impl Options {
    /// How long after a record of the token was proposed all is over that its holder began by it.
    #[must_use]
    pub fn in_flight(&self) -> Duration {
        self.lease + self.prepare_within.max(self.handover_within).max(self.lease_within)
    }
}

/// What this node knows. Any of it may be old.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    pub me: NodeId,
    /// The liveness epoch that this process took up.
    pub liveness: u64,
    /// Whether this node serves as the system group's master.
    pub masters_system: bool,
    /// As of what is decided.
    pub system: &'a System,
    pub groups: &'a BTreeMap<GroupId, Facts>,
    /// The nodes that answer this one, itself among them.
    pub reachable: &'a BTreeSet<NodeId>,
}

/// What is known of one paxos group.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Facts {
    /// Who serves, if somebody does.
    pub master: Option<(NodeId, Epoch)>,
    /// How many slots a replica is behind. One that is not named counts as too far.
    pub lag: BTreeMap<NodeId, u64>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Input {
    /// Time passed, or the view changed: several times a second.
    Tick,
    /// The preparation of the move under this fence is done.
    Prepared { fence: Fence, what: Preparation },
    /// This step of the move under this fence cannot be done: no need to wait for its limit.
    Refused { fence: Fence, step: Step },
}

/// To be done, in this order; each may be lost.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// To the system group, as data.
    Propose(Record),
    /// From now on, and for so long at most, the nodes of the move do this. A preparation is answered by
    /// [`Input::Prepared`]; the end of a hand-over is seen in the view.
    Begin { step: Step, of: Move, within: Duration },
}

/// Who obeys it obeys none of a lower fence after it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Move {
    pub fence: Fence,
    pub group: GroupId,
    pub from: NodeId,
    pub to: NodeId,
    /// The mastership that is to end. If the paxos group has another by now, nothing is to be done.
    pub epoch: Epoch,
}

#[derive(Debug)]
pub struct Mover {
    options: Options,
    deviation: Deviation,
    /// The token's last record, and when it was first seen.
    seen: (Option<(Fence, Slot)>, Instant),
    /// Where the move of this process's token is.
    stage: Option<Stage>,
    /// When all that was begun under that is over.
    busy_until: Instant,
    /// What was proposed last, and when: with a step, or the token's end.
    asked: Option<((Fence, Option<Step>), Instant)>,
    rest_until: Instant,
    /// The move that was chosen last was to balance the masters: until they are within the goal, or none can be moved, it does
    /// not end by their being within the start.
    balancing: bool,
    /// How often the moves of a paxos group failed since one succeeded.
    failures: BTreeMap<GroupId, u32>,
    /// Nodes to which moves failed since one succeeded.
    backoffs: BTreeMap<NodeId, Backoff>,
}

#[derive(Clone, Copy, Debug)]
struct Stage {
    /// The step to be at; none once the token is to be ended.
    want: Option<Step>,
    /// When it was begun, and else since when it is wanted.
    since: Instant,
    has_begun: bool,
}

#[derive(Clone, Copy, Debug)]
struct Backoff {
    failures: u32,
    until: Instant,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fate {
    Open,
    Moved,
    /// It cannot come about any more.
    Moot,
}

impl Mover {
    /// # Panics
    /// A token could be taken over while its holder still acts, or would end while a proposal is on its way.
    #[must_use]
    pub fn new(options: Options, deviation: Deviation) -> Mover {
        assert!(options.wait > options.in_flight(), "a token is waited for as long as its holder may act");
        assert!(options.retry <= options.lease / 3, "a token is renewed in time");
        Mover {
            options,
            deviation,
            seen: (None, Instant::default()),
            stage: None,
            busy_until: Instant::default(),
            asked: None,
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
                let mut actions = self.go_on(now, view, token, input);
                if self.deviation.is(Mutant::TwoMoveTokens) {
                    actions.extend(self.choose(now, view));
                }
                actions
            }
            Some(token) => self.take_over(now, view, token),
        }
    }

    /// Whether it has begun this step, and wants that it comes about.
    pub(crate) fn is_at(&self, step: Step) -> bool {
        self.stage.is_some_and(|stage| stage.want == Some(step) && stage.has_begun)
    }

    fn look(&mut self, now: Instant, token: Option<&Token>) {
        let seen = token.map(|token| (token.fence, token.last));
        if seen == self.seen.0 {
            return;
        }
        if seen.map(|(fence, _)| fence) != self.seen.0.map(|(fence, _)| fence) {
            (self.stage, self.busy_until) = (None, Instant::default());
            self.rest_until = now + self.options.pause;
        }
        self.seen = (seen, now);
    }

    /// Takes the token for the move to be made next, if there is one.
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
            self.rest_until = now + self.options.pause;
            return Vec::new();
        };
        let seen = (view.system.fence(), Slot(0));
        let (holder, liveness) = (view.me, view.liveness);
        self.propose_take(now, Take { seen, holder, liveness, group, from, to, epoch, stamp: now })
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

    /// A master that is not alive is not moved: its paxos group elects another by itself. A target that is not reached,
    /// or is behind, is passed over until it is not.
    fn can_move(&self, now: Instant, view: &View<'_>, group: GroupId, from: NodeId, to: NodeId) -> bool {
        let lag = view.groups.get(&group).and_then(|facts| facts.lag.get(&to));
        view.system.is_alive(from)
            && view.reachable.contains(&from)
            && view.reachable.contains(&to)
            && lag.is_some_and(|lag| *lag <= self.options.lag_most)
            && self.backoffs.get(&to).is_none_or(|backoff| backoff.until <= now)
    }

    /// Another's token, or an earlier process's. When its move is done, there is nothing to wait for: what the holder may
    /// yet begin names a mastership that is over.
    fn take_over(&mut self, now: Instant, view: &View<'_>, token: &Token) -> Vec<Action> {
        if view.is_over(token) {
            return self.propose(now, (token.fence, None), Record::TokenEnd { fence: token.fence });
        }
        if now.since(self.seen.1) < self.options.wait && !self.deviation.is(Mutant::TakesTokenAtOnce) {
            return Vec::new();
        }
        let Token { fence, group, from, to, epoch, last, .. } = *token;
        let (holder, liveness, seen) = (view.me, view.liveness, (fence, last));
        self.propose_take(now, Take { seen, holder, liveness, group, from, to, epoch, stamp: now })
    }

    /// This process's token: to the end of its move.
    fn go_on(&mut self, now: Instant, view: &View<'_>, token: &Token, input: Input) -> Vec<Action> {
        let Token { fence, group, from, to, epoch, .. } = *token;
        let of = Move { fence, group, from, to, epoch };
        let mut stage = self.stage.unwrap_or(Stage { want: Some(token.step), since: now, has_begun: false });
        if let Some(step) = stage.want {
            let fate = view.fate(token);
            let want = match fate {
                Fate::Open => self.next(now, of, step, stage.since, input),
                Fate::Moved | Fate::Moot => None,
            };
            if fate == Fate::Moved {
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

    /// The step to be at; none once the move has failed.
    fn next(&mut self, now: Instant, of: Move, step: Step, since: Instant, input: Input) -> Option<Step> {
        match (step, input) {
            (Step::Prepare(what), Input::Prepared { fence, what: done }) if (fence, done) == (of.fence, what) => {
                Some(match what {
                    Preparation::SyncOffsets => Step::Prepare(Preparation::TellProducers),
                    Preparation::TellProducers => Step::Handover(self.options.scheme),
                })
            }
            (_, Input::Refused { fence, step: refused }) if (fence, refused) == (of.fence, step) => {
                self.otherwise(now, of, step)
            }
            _ if now.since(since) >= self.limit(step) => self.otherwise(now, of, step),
            _ => Some(step),
        }
    }

    /// What to do when a step did not come about.
    fn otherwise(&mut self, now: Instant, of: Move, step: Step) -> Option<Step> {
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

    /// Proposes a take of the token for this move. (It and a renewal of its first step are on their way as the same thing;
    /// the latter is due long after the former.)
    fn propose_take(&mut self, now: Instant, take: Take) -> Vec<Action> {
        let what = (Fence(take.seen.0.0 + 1), Some(Step::FIRST));
        self.propose(now, what, Record::TokenTake(take))
    }

    /// Not again what is on its way.
    fn propose(&mut self, now: Instant, what: (Fence, Option<Step>), record: Record) -> Vec<Action> {
        if self.asked.is_some_and(|(asked, at)| asked == what && now.since(at) < self.options.retry) {
            return Vec::new();
        }
        self.asked = Some((what, now));
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

    /// The mastership that the token's move is to end has ended: nobody does anything more for that move.
    fn is_over(&self, token: &Token) -> bool {
        self.master(token.group).is_some_and(|(_, epoch)| epoch > token.epoch)
    }

    fn fate(&self, token: &Token) -> Fate {
        let replicas = self.system.groups().get(&token.group).map(|group| &group.replicas);
        match self.master(token.group) {
            Some((node, epoch)) if epoch > token.epoch && node == token.to => Fate::Moved,
            _ if self.is_over(token) => Fate::Moot,
            _ if !self.may_master(token.to) || replicas.is_none_or(|nodes| !nodes.contains(&token.to)) => Fate::Moot,
            _ => Fate::Open,
        }
    }
}
