//! Member of one paxos group.
//!
//! Multi-Paxos replicates the log. Phase 1 runs once per ballot, for all slots ([`candidate`]). Phase 2 is a pipeline
//! ([`leader`], [`replication`]). Members vote for entries once the entries are durable ([`acceptor`]). A message with
//! entries names the position before its first entry, so a vote for an entry is also a vote for all earlier entries.
//! The first entry of a ballot is always the [`BeMaster`](crate::entry::BeMaster) entry of its leader. A vote for this
//! entry is also a vote for the undecided entries that the leader found.
//!
//! A leader is not necessarily the master. The log defines the master and the end of its lease ([`lease`]).

mod acceptor;
mod candidate;
mod leader;
mod lease;
mod replication;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;

use self::candidate::{Candidacy, CandidacyConditions};
use self::leader::Leading;
use self::lease::Lease;
use crate::effects::{Effects, Event, Input, Record, Rejection, Token};
use crate::entry::{Entry, Position};
use crate::ids::{Ballot, GroupId, Instant, NodeId, Slot, Term};
use crate::log::Log;
use crate::message::{Message, Snapshot, SnapshotHead};
use crate::options::Options;
use crate::simulation::Mutant;
use crate::state::GroupState;

/// Member of one paxos group. `step(now, input, effects)` processes an input and appends the effects to an [`Effects`].
#[derive(Debug)]
pub struct Group {
    me: NodeId,
    id: GroupId,
    options: Arc<Options>,
    /// End of the time in which messages to an earlier process of this node may arrive; `None` if this is the first
    /// process of the node.
    echoes_until: Option<Instant>,
    /// True once storage has failed. Records might then not be durable.
    has_stopped: bool,

    // State of the acceptor. It survives restarts.
    promised: Ballot,
    log: Log,
    snapshot: Option<Snapshot>,
    /// State of the paxos group after the last slot of the snapshot. `committed` is the state after the last decided
    /// slot, and `uncommitted` is the state at the end of the log.
    base: GroupState,
    committed: GroupState,
    uncommitted: GroupState,
    decided: Slot,
    /// Last slot that the journal records as decided.
    recorded: Slot,

    // Fields that state whether the promise and the log are durable.
    promise_synced: bool,
    synced: Slot,
    unsynced: VecDeque<(Token, Unsynced)>,

    role: Role,
    lease: Lease,
    conditions: CandidacyConditions,
    incoming: Option<Incoming>,
    learners: Vec<NodeId>,
}

#[derive(Debug)]
enum Unsynced {
    /// Promise, and the candidate to which this node sends the promise once it is durable.
    Promise(Ballot, Option<NodeId>),
    UpTo(Slot),
}

#[derive(Debug)]
enum Role {
    Follower(Following),
    Candidate(Candidacy),
    Leader(Leading),
}

#[derive(Debug, Default)]
struct Following {
    /// Ballot of the leader that this node follows; `None` if this node knows no leader with the ballot of its promise.
    leader: Option<Ballot>,
    /// Last slot up to which this node's log equals the leader's log.
    matched: Slot,
    /// Last slot that this node has reported to the leader as durable.
    reported: Slot,
    /// Instant of the last message from the leader, or of the start of the follower role.
    last_contact: Instant,
    /// Instant of the last query for decided slots. `queries` is the number of queries.
    queried: Instant,
    queries: u32,
}

/// Snapshot that arrives in parts. All parts come from one node, because another node may encode the same state
/// differently.
#[derive(Debug)]
struct Incoming {
    from: NodeId,
    ballot: Ballot,
    head: SnapshotHead,
    bytes: Vec<u8>,
}

impl Group {
    /// Starts a member from its records. A new member has no records. `founders` are the first members of the paxos
    /// group, before the log changes the members. The effects again report all slots that are decided according to the
    /// records.
    ///
    /// # Panics
    /// Panics if the records have a gap, or if the options do not allow any decision or make leases unsafe.
    pub fn start(
        (me, id): (NodeId, GroupId),
        options: Arc<Options>,
        founders: &[NodeId],
        records: impl IntoIterator<Item = Record>,
        now: Instant,
        effects: &mut Effects,
    ) -> Group {
        options.check();
        let founded = GroupState::new(founders);
        let mut group = Group {
            me,
            id,
            echoes_until: None,
            has_stopped: false,
            promised: Ballot::NONE,
            log: Log::new(Position::START),
            snapshot: None,
            base: founded.clone(),
            committed: founded.clone(),
            uncommitted: founded,
            decided: Slot(0),
            recorded: Slot(0),
            promise_synced: true,
            synced: Slot(0),
            unsynced: VecDeque::new(),
            role: Role::Follower(Following::default()),
            lease: Lease::at_start(now, &options),
            conditions: CandidacyConditions::default(),
            incoming: None,
            learners: Vec::new(),
            options,
        };
        for record in records {
            group.replay(record);
        }
        group.synced = group.log.last().slot;
        group.promised = group.promised.max(group.log.last().ballot);
        group.echoes_until = (group.promised > Ballot::NONE).then(|| now + 16 * group.options.resend);
        group.restore_decided(now, effects);
        group.follow(None, now);
        group.lease_at_restart(now);
        group
    }

    fn replay(&mut self, record: Record) {
        match record {
            Record::Promise(ballot) => self.promised = self.promised.max(ballot),
            Record::Entries { after, entries } => {
                let last = self.log.last().slot;
                assert!(after <= last, "{} {}: the journal lacks slots {last} to {after}", self.me, self.id);
                self.log.truncate_after(after);
                for entry in entries {
                    self.log.push(entry);
                }
            }
            Record::Decided(slot) => self.recorded = self.recorded.max(slot),
            Record::Snapshot(snapshot) => self.rebase(snapshot),
        }
    }

    /// Decides the slots that the journal records as decided, as far as the log contains these slots.
    fn restore_decided(&mut self, now: Instant, effects: &mut Effects) {
        (self.decided, self.committed) = (self.log.base().slot, self.base.clone());
        self.rebuild_uncommitted();
        if let Some(snapshot) = &self.snapshot {
            effects.events.push((self.id, Event::Installed(snapshot.clone())));
        }
        let upto = self.recorded.min(self.log.last().slot);
        self.decide(upto, now, effects);
    }

    /// Processes an input. `now` must never decrease from one call to the next. The member drops messages that no
    /// member would send, and messages that name this member itself as the sender.
    ///
    /// # Panics
    /// Panics if this member or an input violates a rule on which agreement depends, because otherwise the member could
    /// break its promises. A message of another node violates such a rule only if it contradicts a decided slot. An
    /// example is a message of a leader whose log differs at this slot.
    pub fn step(&mut self, now: Instant, input: Input, effects: &mut Effects) {
        if self.has_stopped {
            if let Input::Propose { id, .. } = input {
                effects.events.push((self.id, Event::Rejected { id, why: Rejection::NotMaster(None) }));
            }
            return;
        }
        match input {
            Input::Message { from, message } => self.handle_message(from, message, now, effects),
            Input::Persisted(token) => self.persisted(token, now, effects),
            Input::StorageFailed => {
                self.has_stopped = true;
                return self.step_down(now, effects);
            }
            Input::Tick => self.tick(now, effects),
            Input::Propose { id, entry } => self.propose_data(id, entry, now, effects),
            Input::Forward { entry } => self.forward(entry, now, effects),
            Input::Snapshot { slot, application } => self.take_snapshot(slot, application, now, effects),
            Input::Liveness { liveness, until } => self.lease.of_node = (liveness, until),
            Input::Learners(mut nodes) => {
                nodes.sort_unstable();
                self.learners = nodes;
            }
            Input::Expired { node, liveness } => self.lease.note_expired(node, liveness),
            Input::AddMember { node } => self.add_member(node),
            Input::RemoveMember { node } => self.remove_member(node),
            Input::Shorten { to, remaining } => self.shorten(to, remaining, now, effects),
            Input::Take => self.request_consent(now, effects),
        }
        self.advance(now, effects);
        self.record_decided(effects);
    }

    fn handle_message(&mut self, from: NodeId, message: Message, now: Instant, effects: &mut Effects) {
        if from == self.me || !message.is_sound() {
            return;
        }
        match message {
            Message::Prepare { ballot, pre_vote, over } => {
                self.handle_prepare(from, (ballot, pre_vote, over), now, effects)
            }
            Message::Promise { ballot, pre_vote, last, idle } => {
                self.handle_promise(from, (ballot, pre_vote), (last, idle), now, effects);
            }
            Message::Reject { ballot, promised } => self.handle_reject(ballot, promised, now, effects),
            Message::Pull { ballot, after, offset } => self.handle_pull(from, (ballot, after, offset), now, effects),
            Message::Pulled { ballot, after, entries } => {
                self.handle_pulled(from, ballot, after, entries, now, effects)
            }
            Message::Accept { ballot, after, entries, decided } => {
                self.handle_accept(from, (ballot, after, entries), decided, now, effects);
            }
            Message::Accepted { ballot, slot, decided } => self.handle_accepted(from, ballot, (slot, decided), now),
            Message::Gap { ballot, slot } => self.handle_gap(from, ballot, slot, now, effects),
            Message::Snapshot { ballot, head, offset, part } => {
                self.handle_snapshot(from, (ballot, head), (offset, &part), now, effects);
            }
            Message::Received { ballot, slot, offset } => {
                self.handle_received(from, ballot, slot, offset, now, effects)
            }
            Message::Forward { entry } => drop(self.enqueue(None, entry, now)),
            Message::RequestConsent { term } => self.handle_consent_request(from, term, now, effects),
            Message::Consent { term, taker } => self.handle_consent(term, taker, now, effects),
            Message::Decline { term } => effects.events.push((self.id, Event::Declined { term })),
            // [`crate::Node`] handles these messages.
            Message::Report(_) | Message::Orders(_) => {}
        }
    }

    fn tick(&mut self, now: Instant, effects: &mut Effects) {
        self.offer(now, effects);
        match &self.role {
            Role::Follower(_) => {
                self.query_decided(now, effects);
                self.consider(now, effects);
            }
            Role::Candidate(_) => self.retry_candidacy(now, effects),
            Role::Leader(_) => {
                self.resend(now, effects);
                self.take_over_or_renew(now, effects);
            }
        }
    }

    /// # Panics
    /// Panics if the log ends before `upto`.
    fn decide(&mut self, upto: Slot, now: Instant, effects: &mut Effects) {
        while self.decided < upto {
            let slot = self.decided.next();
            let entry = self.log.get(slot).expect("decided slots are in the log").clone();
            let before = self.committed.mastership.term;
            let renews = self.committed.apply(slot, &entry, self.options.deviation);
            self.decided = slot;
            self.incoming.take_if(|incoming| incoming.head.position.slot <= slot);
            effects.events.push((self.id, Event::Decided { slot, entry: entry.clone() }));
            if self.committed.mastership.term != before {
                effects.events.push((self.id, Event::MasterChanged(self.committed.mastership)));
            }
            self.lease_by_decision(slot, &entry, renews, now, effects);
        }
    }

    /// Appends a record of the last decided slot, but only if the step appends other records.
    fn record_decided(&mut self, effects: &mut Effects) {
        let writes = effects.records.last().is_some_and(|(group, _)| *group == self.id);
        if writes && self.recorded < self.decided {
            self.recorded = self.decided;
            effects.records.push((self.id, Record::Decided(self.decided)));
        }
    }

    /// Appends entries to the log after the slot `after`, which the log contains. Skips entries that the log already
    /// contains. Cuts the log before the first new entry. Leaders proposed all these entries before `proposed_before`.
    /// Returns true if the log did not contain all entries.
    fn append(&mut self, after: Slot, entries: Vec<Entry>, proposed_before: Instant, effects: &mut Effects) -> bool {
        let mut slot = after;
        if self.options.deviation.is(Mutant::TruncatesBelowDecided) && slot >= self.log.base().slot {
            self.cut_after(slot);
        }
        let is_here =
            |slot: Slot, entry: &Entry| slot < self.log.base().slot || self.log.ballot_at(slot) == Some(entry.ballot);
        let fresh: Vec<Entry> = entries
            .into_iter()
            .skip_while(|entry| {
                let next = slot.next();
                let is_here = is_here(next, entry);
                slot = if is_here { next } else { slot };
                is_here
            })
            .collect();
        if fresh.is_empty() {
            return false;
        }
        self.cut_after(slot);
        for entry in &fresh {
            let slot = self.log.push(entry.clone());
            if self.uncommitted.apply(slot, entry, self.options.deviation) {
                self.lease.renewed_in_log(&self.uncommitted, proposed_before);
            }
        }
        effects.records.push((self.id, Record::Entries { after: slot, entries: fresh }));
        self.unsynced.push_back((effects.token, Unsynced::UpTo(self.log.last().slot)));
        true
    }

    /// # Panics
    /// Panics if the log contains a decided slot after `slot`.
    fn cut_after(&mut self, slot: Slot) {
        if slot >= self.log.last().slot {
            return;
        }
        assert!(
            slot >= self.decided,
            "{} {}: decided slots, the last of which is {}, are never cut after {slot}",
            self.me,
            self.id,
            self.decided
        );
        self.log.truncate_after(slot);
        self.unsync_after(slot);
        self.rebuild_uncommitted();
    }

    /// Marks the entries after `slot` as not durable. Pending writes of these entries belong to a part of the log that
    /// the member has cut.
    fn unsync_after(&mut self, slot: Slot) {
        self.synced = self.synced.min(slot);
        for (_, unsynced) in &mut self.unsynced {
            if let Unsynced::UpTo(upto) = unsynced {
                *upto = (*upto).min(slot);
            }
        }
    }

    fn rebuild_uncommitted(&mut self) {
        self.uncommitted = self.committed.clone();
        let mut slot = self.decided;
        while let Some(entry) = self.log.get(slot.next()) {
            slot = slot.next();
            self.uncommitted.apply(slot, entry, self.options.deviation);
        }
    }

    fn persisted(&mut self, token: Token, now: Instant, effects: &mut Effects) {
        while let Some((_, unsynced)) = self.unsynced.pop_front_if(|(until, _)| *until <= token) {
            match unsynced {
                Unsynced::UpTo(slot) => self.synced = self.synced.max(slot),
                Unsynced::Promise(ballot, to) if ballot == self.promised => {
                    self.promise_synced = true;
                    if let Some(to) = to {
                        self.send_promise(to, now, effects);
                        self.defer_candidacy(now);
                    }
                }
                Unsynced::Promise(..) => {}
            }
        }
        match &self.role {
            Role::Follower(_) => self.send_accepted(false, effects),
            Role::Candidate(_) => self.count_promises(now, effects),
            Role::Leader(_) => {}
        }
    }

    fn send(&self, to: NodeId, message: Message, effects: &mut Effects) {
        effects.sends.push((to, self.id, message));
    }

    /// # Panics
    /// Panics if the ballot is below the present promise.
    fn promise(&mut self, ballot: Ballot, to: Option<NodeId>, effects: &mut Effects) {
        assert!(ballot >= self.promised, "promises never decrease");
        self.promised = ballot;
        if self.options.deviation.is(Mutant::ForgetsPromise) {
            self.promise_synced = true;
        } else {
            self.promise_synced = false;
            effects.records.push((self.id, Record::Promise(ballot)));
        }
        self.unsynced.push_back((effects.token, Unsynced::Promise(ballot, to)));
    }

    /// Ends the role of this member as leader or candidate.
    fn step_down(&mut self, now: Instant, effects: &mut Effects) {
        self.reject_waiting(Rejection::NotMaster(None), effects);
        self.abandon_undecided(effects);
        self.follow(None, now);
    }

    fn follow(&mut self, leader: Option<Ballot>, now: Instant) {
        let (matched, last_contact) = (self.decided, now);
        self.role = Role::Follower(Following { leader, matched, last_contact, ..Following::default() });
    }

    fn take_snapshot(&mut self, slot: Slot, application: Bytes, now: Instant, effects: &mut Effects) {
        let is_fresh = slot > self.log.base().slot && slot <= self.decided && !self.is_sending_snapshot(now);
        let slot = if self.options.deviation.is(Mutant::TrimsPastDeadMember) { self.decided } else { slot };
        let Some(position) = self.log.position(slot).filter(|_| is_fresh) else { return };
        let mut state = self.base.clone();
        let mut at = self.log.base().slot;
        while at < slot {
            at = at.next();
            let entry = self.log.get(at).expect("the slot is between the base and the last decided slot");
            state.apply(at, entry, self.options.deviation);
        }
        let snapshot = Snapshot { position, state, application };
        effects.records.push((self.id, Record::Snapshot(snapshot.clone())));
        self.rebase(snapshot);
    }

    /// Makes the log start after the snapshot. If the log contains the position of the snapshot, it retains the entries
    /// after this position. Otherwise the log becomes empty.
    fn rebase(&mut self, snapshot: Snapshot) {
        let position = snapshot.position;
        if self.log.position(position.slot) == Some(position) {
            self.log.trim(position.slot);
        } else {
            self.log = Log::new(position);
        }
        self.base = snapshot.state.clone();
        self.snapshot = Some(snapshot);
    }
}

/// Functions by which the driver reads the state of this member.
impl Group {
    /// Returns the greatest ballot that this member has promised. The promise might not be durable yet.
    #[must_use]
    pub fn promised(&self) -> Ballot {
        self.promised
    }

    /// Returns the last slot that this member knows to be decided. All earlier slots are also decided.
    #[must_use]
    pub fn decided(&self) -> Slot {
        self.decided
    }

    /// Returns the position of the last entry of the log. The entry may be undecided.
    #[must_use]
    pub fn last(&self) -> Position {
        self.log.last()
    }

    /// Returns the instant at which the next [`Input::Tick`] is due. Returns `now` if the tick is overdue, and `None`
    /// if only other inputs cause a change. An earlier tick has no effect. The caller must call this function again
    /// after each step, because a step may change the result.
    #[must_use]
    pub fn next_tick(&self, now: Instant) -> Option<Instant> {
        if self.has_stopped {
            return None;
        }
        let of_role = match &self.role {
            Role::Follower(following) => {
                [self.considers_at(following), self.queries_at(following)].into_iter().flatten().min()
            }
            Role::Candidate(candidacy) => Some(self.retries_at(candidacy)),
            Role::Leader(leading) => {
                let due = [self.proposes_at(leading, now), self.resends_at(leading, now), self.renews_at(leading, now)];
                due.into_iter().flatten().min()
            }
        };
        [of_role, self.offers_at()].into_iter().flatten().min().map(|due| due.max(now))
    }

    /// Returns the state of the paxos group after the last decided slot.
    #[must_use]
    pub fn committed(&self) -> &GroupState {
        &self.committed
    }

    /// Returns the state of the paxos group at the end of the log. It may include undecided entries.
    #[must_use]
    pub fn uncommitted(&self) -> &GroupState {
        &self.uncommitted
    }

    /// Returns true if this member leads and may propose entries. A leader does not necessarily serve: see
    /// [`Group::serves`].
    #[must_use]
    pub fn is_leader(&self) -> bool {
        matches!(self.role, Role::Leader(_))
    }

    /// Returns the term of the mastership by which this node serves; `None` if it does not serve. The epoch of the term
    /// is the fencing number.
    #[must_use]
    pub fn serves(&self, now: Instant) -> Option<Term> {
        self.serves_until().filter(|until| now < *until).map(|_| self.committed.mastership.term)
    }
}
