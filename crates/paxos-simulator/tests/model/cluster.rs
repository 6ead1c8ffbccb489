//! Steps that the model allows, and the properties that must hold in every state.

use stateright::{Model, Property};

use crate::log::{Ballot, Claim, Entry, Log, Mastership, Slot, Term, Value};
use crate::rules::{Bounds, ClaimBy, Consenter, LEASE, LeaseFrom, Rules};
use crate::state::{Consent, Leader, NODES, Node, Promise, Role, Sent, State, index, name};

pub(crate) const ONE_VALUE: &str = "one value per slot";
pub(crate) const ONE_MASTER: &str = "one master at a time";
pub(crate) const WAITED: &str = "a takeover by waiting";
pub(crate) const CONSENTED: &str = "a takeover by consent";
pub(crate) const VOID: &str = "a decided BeMaster that is void";

#[derive(Clone, Copy, Debug)]
pub(crate) struct Cluster {
    pub(crate) rules: Rules,
    pub(crate) bounds: Bounds,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Tick,
    /// Advances the clock of one node by a tick, ahead of the other clocks.
    Skew {
        node: usize,
    },
    Crash {
        node: usize,
    },
    Campaign {
        node: usize,
        ballot: Ballot,
        claim: Claim,
    },
    /// Delivers the prepare message of the candidate `to` to the node `node`. The node promises the candidate's ballot,
    /// and the candidate receives the promise at once.
    Promise {
        node: usize,
        to: usize,
    },
    /// Makes a candidate the leader, because the node `with` has promised the candidate's ballot. The leader adopts its
    /// own log or the log of `with`: the log whose last entry has the greater ballot and slot. It then proposes its
    /// `BeMaster` entry.
    Lead {
        node: usize,
        with: usize,
        claim: Claim,
    },
    BeMaster {
        node: usize,
        claim: Claim,
    },
    Data {
        node: usize,
    },
    /// Delivers an accept message to the node `node`. The entries up to the slot `upto` become durable on this node.
    Accept {
        node: usize,
        ballot: Ballot,
        upto: Slot,
    },
    /// Lets a leader learn that a quorum has accepted its log up to the slot `upto`.
    Decide {
        node: usize,
        upto: Slot,
    },
    Consent {
        node: usize,
        taker: usize,
    },
    /// Renews the liveness of node 0 in the system group. `Expire` ends this liveness.
    Renew,
    Expire,
    /// Lets node 0 learn the renewal of its liveness. `LearnOver` lets any node learn that this liveness has expired.
    LearnAlive,
    LearnOver {
        node: usize,
    },
}

impl Model for Cluster {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        vec![State::new(self.bounds.start, self.bounds.lives)]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        steps.push(Step::Tick);
        for node in 0..NODES {
            if state.skews < self.bounds.skews {
                steps.push(Step::Skew { node });
            }
            if state.crashes < self.bounds.crashes {
                steps.push(Step::Crash { node });
            }
            self.campaigns(state, node, steps);
            match &state.nodes[node].role {
                Role::Follower => {}
                Role::Candidate { claim, promises } => self.prepares(state, node, *claim, promises, steps),
                Role::Leader(leader) => self.leads(state, node, leader, steps),
            }
            self.accepts(state, node, steps);
        }
        if self.bounds.lives {
            self.lives(state, steps);
        }
    }

    fn next_state(&self, last: &State, step: Step) -> Option<State> {
        let mut state = *last;
        match step {
            Step::Tick => self.tick(&mut state),
            Step::Skew { node } => {
                state.skews += 1;
                state.nodes[node].idle = self.bounds.wait.min(state.nodes[node].idle + 1);
            }
            Step::Crash { node } => self.crash(&mut state, node),
            Step::Campaign { node, ballot, claim } => {
                state.sent[index(ballot)] = Some(Sent { owner: name(node), log: Log::default() });
                self.promise(&mut state.nodes[node], ballot);
                state.nodes[node].role = Role::Candidate { claim, promises: [None; NODES] };
            }
            Step::Promise { node, to } => {
                let ballot = state.nodes[to].promised;
                self.promise(&mut state.nodes[node], ballot);
                let promise = Promise { last: state.nodes[node].log.last(), idle: state.nodes[node].idle };
                if let Role::Candidate { promises, .. } = &mut state.nodes[to].role {
                    promises[node] = Some(promise);
                }
            }
            Step::Lead { node, with, claim } => self.lead(&mut state, node, with, claim),
            Step::BeMaster { node, claim } => self.be_master(&mut state, node, claim),
            Step::Data { node } => self.propose(&mut state, node, Value::Data),
            Step::Accept { node, ballot, upto } => self.accept(&mut state, node, ballot, upto),
            Step::Decide { node, upto } => self.decide(&mut state, node, upto),
            Step::Consent { node, taker } => {
                let term = self.consentable(&state, node)?;
                if let Role::Leader(leader) = &mut state.nodes[node].role {
                    leader.consented_term = term;
                }
                state.consent = Some(Consent { term, taker: name(taker) });
            }
            Step::Renew => state.liveness.renewed = LEASE,
            Step::Expire => state.liveness.is_over = true,
            Step::LearnAlive => state.liveness.known = state.liveness.renewed,
            Step::LearnOver { node } => state.liveness.knows_over[node] = true,
        }
        state.forget();
        Some(if self.bounds.symmetric { state.representative(self.bounds.start) } else { state })
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(ONE_VALUE, |_, state: &State| !state.split),
            Property::always(ONE_MASTER, |cluster: &Cluster, state| {
                (0..NODES).filter(|&node| cluster.serves(state, node)).count() <= 1
            }),
            Property::sometimes(WAITED, |cluster: &Cluster, state: &State| {
                let claim = state.decided.mastership(&cluster.rules).claim;
                matches!(claim, Some(Claim::Waited { term, .. }) if term.epoch > 0)
            }),
            Property::sometimes(CONSENTED, |cluster: &Cluster, state: &State| {
                matches!(state.decided.mastership(&cluster.rules).claim, Some(Claim::Consent(_)))
            }),
            Property::sometimes(VOID, |cluster: &Cluster, state: &State| {
                state.decided.mastership(&cluster.rules).void > 0
            }),
        ]
    }
}

impl Cluster {
    fn lives(&self, state: &State, steps: &mut Vec<Step>) {
        let liveness = &state.liveness;
        if !liveness.is_over && liveness.renewed < LEASE {
            steps.push(Step::Renew);
        }
        if !liveness.is_over && (liveness.renewed == 0 || !self.rules.expiry_waits) {
            steps.push(Step::Expire);
        }
        if liveness.known < liveness.renewed {
            steps.push(Step::LearnAlive);
        }
        let unaware = (0..NODES).filter(|&node| liveness.is_over && !liveness.knows_over[node]);
        steps.extend(unaware.map(|node| Step::LearnOver { node }));
    }

    /// Returns true if the mastership in `uncommitted` does not depend on a liveness epoch, or if one of `nodes` knows
    /// that this liveness epoch has expired.
    fn is_over(&self, state: &State, uncommitted: Mastership, nodes: &[usize]) -> bool {
        !uncommitted.lives || !self.rules.liveness_blocks || nodes.iter().any(|&node| state.liveness.knows_over[node])
    }

    fn campaigns(&self, state: &State, node: usize, steps: &mut Vec<Step>) {
        if self.serves(state, node) {
            return;
        }
        let me = &state.nodes[node];
        for ballot in me.promised + 1..=self.bounds.ballots {
            if state.sent[index(ballot)].is_none() {
                for claim in self.claims(state, node, &me.log, me.idle) {
                    if self.would_promise(state, node, node, claim) {
                        steps.push(Step::Campaign { node, ballot, claim });
                    }
                }
            }
        }
    }

    /// Returns the claims that the rules allow the node `node` to make if it has the log `log`. `idle` is the number of
    /// ticks since the last renewal of the lease in this log.
    fn claims(&self, state: &State, node: usize, log: &Log, idle: u8) -> Vec<Claim> {
        let uncommitted = log.mastership(&self.rules);
        let has_no_master = uncommitted.term.epoch == 0;
        let mut claims = Vec::new();
        if !has_no_master && uncommitted.node == name(node) {
            claims.push(Claim::Own(uncommitted.term));
        } else if has_no_master
            || !self.rules.candidates_wait
            || idle >= self.bounds.wait && self.is_over(state, uncommitted, &[node])
        {
            claims.push(waited(uncommitted));
        }
        if !has_no_master && self.left_to(state, node).is_some_and(|left| self.is_left(uncommitted.term, left)) {
            claims.push(Claim::Consent(uncommitted.term));
        }
        if !self.rules.takeover_needs_consent && !has_no_master {
            claims.push(Claim::Consent(uncommitted.term));
        }
        claims
    }

    fn is_left(&self, term: Term, left: Term) -> bool {
        is_over_with(term, left) || term.is(left, &self.rules)
    }

    fn left_to(&self, state: &State, node: usize) -> Option<Term> {
        state.consent.filter(|consent| consent.taker == name(node)).map(|consent| consent.term)
    }

    /// Returns true if the rule `Rules::acceptors_wait` allows a node to promise the candidate's ballot.
    fn would_promise(&self, state: &State, node: usize, candidate: usize, claim: Claim) -> bool {
        let acceptor = &state.nodes[node];
        let uncommitted = acceptor.log.mastership(&self.rules);
        let consented = match claim {
            Claim::Consent(term) => {
                let left = self.left_to(state, candidate).unwrap_or(term);
                self.is_left(uncommitted.term, left)
            }
            Claim::Waited { .. } | Claim::Own(_) => false,
        };
        let (Claim::Waited { term, .. } | Claim::Own(term) | Claim::Consent(term)) = claim;
        // If the logs of the node and the candidate differ, only the ballots show which mastership is later.
        let is_followed = uncommitted.term != term && is_over_with(uncommitted.term, term);
        let is_over = is_followed || self.is_over(state, uncommitted, &[node, candidate]);
        !self.rules.acceptors_wait
            || uncommitted.term.epoch == 0
            || uncommitted.node == name(candidate)
            || consented
            || acceptor.idle >= self.bounds.wait && is_over
    }

    fn prepares(
        &self,
        state: &State,
        node: usize,
        claim: Claim,
        promises: &[Option<Promise>; NODES],
        steps: &mut Vec<Step>,
    ) {
        let me = &state.nodes[node];
        for with in (0..NODES).filter(|&other| other != node) {
            let acceptor = &state.nodes[with];
            if acceptor.promised < me.promised && self.would_promise(state, with, node, claim) {
                steps.push(Step::Promise { node: with, to: node });
            }
            let Some(promise) = promises[with] else { continue };
            // A candidate pulls entries from a node only while the candidate's ballot is the last ballot that the node
            // promised.
            if promise.last > me.log.last() && acceptor.promised != me.promised {
                continue;
            }
            let (log, idle) = self.pulled(state, node, with, promise);
            if log.len() == self.bounds.slots {
                continue;
            }
            let uncommitted = log.mastership(&self.rules);
            let claims = match self.rules.claim_by {
                ClaimBy::Candidate => vec![claim],
                ClaimBy::CandidateAndLeader => {
                    let mut claims = self.claims(state, node, &log, idle);
                    claims.retain(|&other| other != claim);
                    claims.push(claim);
                    claims
                }
                ClaimBy::Unwaited => vec![waited(uncommitted)],
            };
            steps.extend(claims.into_iter().map(|claim| Step::Lead { node, with, claim }));
        }
    }

    fn leads(&self, state: &State, node: usize, leader: &Leader, steps: &mut Vec<Step>) {
        let me = &state.nodes[node];
        let log = state.sent_by(node);
        for upto in leader.decided + 1..=log.len() {
            let own = log.get(upto).is_some_and(|entry| entry.ballot == me.promised);
            let quorum = leader.accepted.iter().filter(|&&slot| slot >= upto).count() * 2 > NODES;
            if quorum && (own || !self.rules.own_ballot_decides) {
                steps.push(Step::Decide { node, upto });
            }
        }
        if state.consent.is_none() && self.bounds.consents > 0 && self.consentable(state, node).is_some() {
            steps.extend((0..NODES).filter(|&taker| taker != node).map(|taker| Step::Consent { node, taker }));
        }
        if log.len() == self.bounds.slots {
            return;
        }
        let data = log.entries().filter(|entry| entry.value == Value::Data).count();
        if data < self.bounds.data && self.serves(state, node) {
            steps.push(Step::Data { node });
        }
        let uncommitted = log.mastership(&self.rules);
        let is_mine = uncommitted.is_led_by(name(node), me.promised);
        if !is_mine || uncommitted.term == leader.consented_term || self.claims_again(state, node, leader, uncommitted)
        {
            let claims = self.claims(state, node, &log, me.idle);
            steps.extend(claims.into_iter().map(|claim| Step::BeMaster { node, claim }));
        }
    }

    /// Returns true if a master must claim its mastership again, because the master's lease is over, or because the
    /// mastership does not name the master's present liveness. Returns false while an earlier claim is undecided.
    fn claims_again(&self, state: &State, node: usize, leader: &Leader, uncommitted: Mastership) -> bool {
        let log = state.sent_by(node);
        let is_under_way = log.prefix(leader.decided).mastership(&self.rules).term != uncommitted.term;
        let lives = node == 0 && state.liveness.known > 0 && !uncommitted.lives;
        self.bounds.lives && !is_under_way && (lives || !self.serves(state, node))
    }

    /// Returns the term of the mastership that a leader may end by a consent; `None` if the leader must not consent.
    fn consentable(&self, state: &State, node: usize) -> Option<Term> {
        let leader = state.leader(node)?;
        let log = match self.rules.consenter {
            Consenter::Decided => state.sent_by(node).prefix(leader.decided),
            Consenter::Proposed => state.sent_by(node),
        };
        let mastership = log.mastership(&self.rules);
        mastership.is_led_by(name(node), state.nodes[node].promised).then_some(mastership.term)
    }

    fn accepts(&self, state: &State, node: usize, steps: &mut Vec<Step>) {
        let me = &state.nodes[node];
        for (sent, ballot) in state.sent.iter().zip(1..) {
            let Some(sent) = sent.filter(|_| ballot >= me.promised) else { continue };
            let owner = usize::from(sent.owner);
            let own = owner == node;
            let leader = state.leader(owner).filter(|_| state.nodes[owner].promised == ballot);
            if own && leader.is_none() {
                continue;
            }
            for upto in 1..=sent.log.len() {
                let is_new = ballot > me.promised || me.log.taken(&sent.log, upto) != me.log;
                if is_new || leader.is_some_and(|leader| leader.accepted[node] < upto) {
                    steps.push(Step::Accept { node, ballot, upto });
                }
            }
        }
    }

    /// Returns true if a node acts as master.
    pub(crate) fn serves(&self, state: &State, node: usize) -> bool {
        let me = &state.nodes[node];
        if me.stale_ticks > 0 {
            return true;
        }
        let Some(leader) = state.leader(node) else { return false };
        let decided = state.sent_by(node).prefix(leader.decided).mastership(&self.rules);
        let mine = decided.is_led_by(name(node), me.promised);
        let has_consented = self.rules.consent_binds && decided.term == leader.consented_term;
        let slots = usize::from(decided.since)..=leader.decided;
        let uncommitted = state.sent_by(node).mastership(&self.rules);
        let by_liveness =
            decided.lives && (uncommitted.lives || !self.rules.uncommitted_lives) && state.liveness.known > 0;
        mine && !has_consented && (by_liveness || slots.into_iter().any(|slot| leader.lease[slot - 1] > 0))
    }

    fn tick(&self, state: &mut State) {
        let liveness = &mut state.liveness;
        (liveness.renewed, liveness.known) = (liveness.renewed.saturating_sub(1), liveness.known.saturating_sub(1));
        for node in &mut state.nodes {
            node.idle = self.bounds.wait.min(node.idle + 1);
            node.stale_ticks = node.stale_ticks.saturating_sub(1);
            match &mut node.role {
                Role::Follower => {}
                Role::Candidate { promises, .. } => {
                    for promise in promises.iter_mut().flatten() {
                        promise.idle = self.bounds.wait.min(promise.idle + 1);
                    }
                }
                Role::Leader(leader) => {
                    for lease in &mut leader.lease {
                        *lease = lease.saturating_sub(1);
                    }
                }
            }
        }
    }

    fn crash(&self, state: &mut State, node: usize) {
        state.crashes += 1;
        let me = &mut state.nodes[node];
        me.role = Role::Follower;
        me.idle = if self.rules.restart_waits { 0 } else { self.bounds.wait };
        let uncommitted = me.log.mastership(&self.rules);
        if !self.rules.restart_ends_mastership && uncommitted.term.epoch > 0 && uncommitted.node == name(node) {
            me.stale_ticks = LEASE;
        }
    }

    /// Makes a node promise a ballot. If the ballot is greater than the last promise, the node becomes a follower.
    fn promise(&self, node: &mut Node, ballot: Ballot) {
        assert!(ballot >= node.promised, "promises never decrease");
        if ballot > node.promised {
            node.promised = ballot;
            node.role = Role::Follower;
        }
    }

    /// Compares the log of the candidate `node` with the log of the node `with`, which made the promise. Returns the
    /// log whose last entry has the greater ballot and slot, and the number of ticks since the last renewal of the
    /// lease in this log.
    fn pulled(&self, state: &State, node: usize, with: usize, promise: Promise) -> (Log, u8) {
        let me = &state.nodes[node];
        if promise.last <= me.log.last() {
            return (me.log, me.idle);
        }
        let log = state.nodes[with].log;
        let same = me.log.mastership(&self.rules) == log.mastership(&self.rules);
        let idle = if same || !self.rules.pulled_waits { me.idle.max(promise.idle) } else { promise.idle };
        (log, idle)
    }

    fn lead(&self, state: &mut State, node: usize, with: usize, claim: Claim) {
        let Role::Candidate { promises, .. } = &state.nodes[node].role else { return };
        let Some(promise) = promises[with] else { return };
        let (log, idle) = self.pulled(state, node, with, promise);
        let me = &mut state.nodes[node];
        (me.log, me.idle) = (log, idle);
        me.role = Role::Leader(Leader::default());
        state.sent[index(me.promised)] = Some(Sent { owner: name(node), log });
        self.be_master(state, node, claim);
    }

    fn be_master(&self, state: &mut State, node: usize, claim: Claim) {
        let lives = node == 0 && state.liveness.known > 0;
        self.propose(state, node, Value::BeMaster(claim, lives));
    }

    fn propose(&self, state: &mut State, node: usize, value: Value) {
        let ballot = state.nodes[node].promised;
        let Some(sent) = &mut state.sent[index(ballot)] else { return };
        sent.log.push(Entry { ballot, node: name(node), value });
        let len = sent.log.len();
        if let Role::Leader(leader) = &mut state.nodes[node].role {
            leader.lease[len - 1] = LEASE;
        }
        if !self.bounds.slow_disk {
            self.accept(state, node, ballot, len);
        }
    }

    fn accept(&self, state: &mut State, node: usize, ballot: Ballot, upto: Slot) {
        let Some(sent) = state.sent[index(ballot)] else { return };
        let me = &mut state.nodes[node];
        self.promise(me, ballot);
        let log = me.log.taken(&sent.log, upto);
        let renewed = usize::from(log.mastership(&self.rules).lease_slot);
        if log.get(renewed) != me.log.get(renewed) {
            me.idle = 0;
        }
        me.log = log;
        let owner = &mut state.nodes[usize::from(sent.owner)];
        if let Role::Leader(leader) = &mut owner.role
            && owner.promised == ballot
        {
            leader.accepted[node] = leader.accepted[node].max(upto);
        }
    }

    fn decide(&self, state: &mut State, node: usize, upto: Slot) {
        let log = state.sent_by(node);
        for slot in 1..=upto {
            match state.decided.get(slot) {
                None => state.decided.push(log.get(slot).expect("a leader decides only slots of its own log")),
                Some(entry) => state.split |= log.get(slot) != Some(entry),
            }
        }
        if let Role::Leader(leader) = &mut state.nodes[node].role {
            if self.rules.lease_from == LeaseFrom::Decided {
                leader.lease[leader.decided..upto].fill(LEASE);
            }
            leader.decided = upto;
        }
    }
}

fn waited(uncommitted: Mastership) -> Claim {
    Claim::Waited { term: uncommitted.term, lease_slot: uncommitted.lease_slot }
}

/// Returns true if the end of the mastership `other` implies the end of the mastership `term`. If the two masterships
/// are in different logs, only the ballots show which mastership is later.
fn is_over_with(term: Term, other: Term) -> bool {
    (term.ballot, term.epoch) <= (other.ballot, other.epoch)
}
