//! One member of a paxos group.
//!
//! A log is replicated by Multi-Paxos: phase 1 once per ballot for all slots ([`candidate`]), phase 2 in a pipeline
//! ([`leader`], [`replication`]), votes when they are durable ([`acceptor`]). An entry's link to the position before it makes its
//! vote one for all before it, so the first entry of a ballot, always the [`BeMaster`](crate::entry::BeMaster) of who leads it,
//! re-stamps the tail that it found.
//!
//! Who leads is not yet master: that is what the log says, and until when ([`lease`]).

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

use self::candidate::{Ambition, Candidacy};
use self::leader::Leading;
use self::lease::Lease;
use crate::agreed::Agreed;
use crate::effects::{Effects, Event, Input, Record, Refusal, Token};
use crate::entry::{Entry, Position};
use crate::ids::{Ballot, GroupId, Instant, NodeId, Slot, Tenure};
use crate::log::Log;
use crate::message::{Message, Snapshot, SnapshotHead};
use crate::options::Options;
use crate::simulation::Mutant;

/// A member of one paxos group: `step(now, input)`, and the effects of it.
#[derive(Debug)]
pub struct Group {
    me: NodeId,
    id: GroupId,
    options: Arc<Options>,
    /// There was a process of this node before, and what it was sent may arrive until then.
    echoes_until: Option<Instant>,
    /// Storage failed: nothing that it says can be relied on.
    has_stopped: bool,

    // The acceptor: what it may not forget.
    promised: Ballot,
    log: Log,
    snapshot: Option<Snapshot>,
    /// As of the snapshot, of what is decided, and of the log's end.
    base: Agreed,
    agreed: Agreed,
    tip: Agreed,
    decided: Slot,
    /// What of [`Group::decided`] was recorded.
    recorded: Slot,

    // Until when it is durable.
    promise_synced: bool,
    synced: Slot,
    unsynced: VecDeque<(Token, Unsynced)>,

    role: Role,
    lease: Lease,
    ambition: Ambition,
    incoming: Option<Incoming>,
    learners: Vec<NodeId>,
}

#[derive(Debug)]
enum Unsynced {
    /// And the candidate to tell.
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
    /// Of what ballot; none was heard of under the present promise.
    leader: Option<Ballot>,
    /// Up to here the log is the leader's.
    matched: Slot,
    /// Said last.
    told: Slot,
    /// The leader, or when this began.
    heard: Instant,
    /// When others were asked how far they are, and how often.
    asked: Instant,
    asks: u32,
}

/// A snapshot that comes in parts, all from one node: what another has may be put down otherwise.
#[derive(Debug)]
struct Incoming {
    from: NodeId,
    ballot: Ballot,
    head: SnapshotHead,
    bytes: Vec<u8>,
}

impl Group {
    /// A member that has these records, none if it never was one. `founders` are the members of a log that begins.
    /// What is known to be decided is told anew, by effects.
    ///
    /// # Panics
    /// If records are missing before one that is there, or if nothing could be decided with these options.
    pub fn start(
        (me, id): (NodeId, GroupId),
        options: Arc<Options>,
        founders: &[NodeId],
        records: impl IntoIterator<Item = Record>,
        now: Instant,
        effects: &mut Effects,
    ) -> Group {
        options.check();
        let founded = Agreed::new(founders);
        let mut group = Group {
            me,
            id,
            echoes_until: None,
            has_stopped: false,
            promised: Ballot::NONE,
            log: Log::new(Position::START),
            snapshot: None,
            base: founded.clone(),
            agreed: founded.clone(),
            tip: founded,
            decided: Slot(0),
            recorded: Slot(0),
            promise_synced: true,
            synced: Slot(0),
            unsynced: VecDeque::new(),
            role: Role::Follower(Following::default()),
            lease: Lease::at_start(now, &options),
            ambition: Ambition::default(),
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
        group.tell_decided(now, effects);
        group.follow(None, now);
        group.lease_of_who_starts(now);
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

    /// What was recorded as decided is so, if it is here.
    fn tell_decided(&mut self, now: Instant, effects: &mut Effects) {
        (self.decided, self.agreed) = (self.log.base().slot, self.base.clone());
        self.read_tip();
        if let Some(snapshot) = &self.snapshot {
            effects.events.push((self.id, Event::Installed(snapshot.clone())));
        }
        let upto = self.recorded.min(self.log.last().slot);
        self.decide(upto, now, effects);
    }

    /// `now` never goes back. A message that no member sends, or that seems to come from this one, is dropped.
    ///
    /// # Panics
    /// If a rule is broken that all agreement rests on; to go on would be to lose what was promised. Of what others send, only
    /// what contradicts the decided does so: a leader that has another log up to there.
    pub fn step(&mut self, now: Instant, input: Input, effects: &mut Effects) {
        if self.has_stopped {
            if let Input::Propose { id, .. } = input {
                effects.events.push((self.id, Event::Refused { id, why: Refusal::NotMaster(None) }));
            }
            return;
        }
        match input {
            Input::Message { from, message } => self.hear(from, message, now, effects),
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
            Input::Admit { node } => self.admit(node),
            Input::Dismiss { node } => self.dismiss(node),
            Input::Shorten { to, remaining } => self.shorten(to, remaining, now, effects),
            Input::Take => self.ask(now, effects),
        }
        self.lead_on(now, effects);
        self.record_decided(effects);
    }

    fn hear(&mut self, from: NodeId, message: Message, now: Instant, effects: &mut Effects) {
        if from == self.me || !message.is_sound() {
            return;
        }
        match message {
            Message::Prepare { ballot, trial, over } => self.hear_prepare(from, (ballot, trial, over), now, effects),
            Message::Promise { ballot, trial, last, idle } => {
                self.hear_promise(from, (ballot, trial), (last, idle), now, effects);
            }
            Message::Refuse { ballot, promised } => self.hear_refuse(ballot, promised, now, effects),
            Message::Pull { ballot, after, offset } => self.hear_pull(from, (ballot, after, offset), now, effects),
            Message::Pulled { ballot, after, entries } => self.hear_pulled(from, ballot, after, entries, now, effects),
            Message::Accept { ballot, after, entries, decided } => {
                self.hear_accept(from, (ballot, after, entries), decided, now, effects);
            }
            Message::Accepted { ballot, slot, decided } => self.hear_accepted(from, ballot, (slot, decided), now),
            Message::Gap { ballot, slot } => self.hear_gap(from, ballot, slot, now, effects),
            Message::Snapshot { ballot, head, offset, part } => {
                self.hear_snapshot(from, (ballot, head), (offset, &part), now, effects);
            }
            Message::Received { ballot, slot, offset } => self.hear_received(from, ballot, slot, offset, now, effects),
            Message::Forward { entry } => drop(self.enqueue(None, entry, now)),
            Message::Ask { tenure } => self.hear_ask(from, tenure, now, effects),
            Message::Consent { tenure, taker } => self.hear_consent(tenure, taker, now, effects),
            Message::Decline { tenure } => effects.events.push((self.id, Event::Declined { tenure })),
            // For the node.
            Message::Report(_) | Message::Orders(_) => {}
        }
    }

    fn tick(&mut self, now: Instant, effects: &mut Effects) {
        self.offer(now, effects);
        match &self.role {
            Role::Follower(_) => {
                self.ask_around(now, effects);
                self.consider(now, effects);
            }
            Role::Candidate(_) => self.ask_again(now, effects),
            Role::Leader(_) => {
                self.resend(now, effects);
                self.take_over_or_renew(now, effects);
            }
        }
    }

    /// # Panics
    /// If more is decided than there is, or less than before.
    fn decide(&mut self, upto: Slot, now: Instant, effects: &mut Effects) {
        while self.decided < upto {
            let slot = self.decided.next();
            let entry = self.log.get(slot).expect("what is decided is in the log").clone();
            let before = self.agreed.mastership.tenure;
            let renews = self.agreed.apply(slot, &entry, self.options.deviation);
            self.decided = slot;
            self.incoming.take_if(|incoming| incoming.head.position.slot <= slot);
            effects.events.push((self.id, Event::Decided { slot, entry: entry.clone() }));
            if self.agreed.mastership.tenure != before {
                effects.events.push((self.id, Event::MasterChanged(self.agreed.mastership)));
            }
            self.lease_by_decision(slot, &entry, renews, now, effects);
        }
    }

    /// Never for its own sake: a record that is written anyway takes it along.
    fn record_decided(&mut self, effects: &mut Effects) {
        let writes = effects.records.last().is_some_and(|(group, _)| *group == self.id);
        if writes && self.recorded < self.decided {
            self.recorded = self.decided;
            effects.records.push((self.id, Record::Decided(self.decided)));
        }
    }

    /// Puts entries behind `after`, which is here: those that are here already are passed over, and what contradicts the
    /// first new one goes. All were proposed before `seen`. Whether any is new.
    fn append(&mut self, after: Slot, entries: Vec<Entry>, seen: Instant, effects: &mut Effects) -> bool {
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
            if self.tip.apply(slot, entry, self.options.deviation) {
                self.lease.renewed_in_log(&self.tip, seen);
            }
        }
        effects.records.push((self.id, Record::Entries { after: slot, entries: fresh }));
        self.unsynced.push_back((effects.token, Unsynced::UpTo(self.log.last().slot)));
        true
    }

    /// # Panics
    /// If what is decided would go.
    fn cut_after(&mut self, slot: Slot) {
        if slot >= self.log.last().slot {
            return;
        }
        assert!(
            slot >= self.decided,
            "{} {}: what is decided up to {} is never cut after {slot}",
            self.me,
            self.id,
            self.decided
        );
        self.log.truncate_after(slot);
        self.unsync_after(slot);
        self.read_tip();
    }

    /// What is on its way to the disk there is of a log that is no more.
    fn unsync_after(&mut self, slot: Slot) {
        self.synced = self.synced.min(slot);
        for (_, unsynced) in &mut self.unsynced {
            if let Unsynced::UpTo(upto) = unsynced {
                *upto = (*upto).min(slot);
            }
        }
    }

    fn read_tip(&mut self) {
        self.tip = self.agreed.clone();
        let mut slot = self.decided;
        while let Some(entry) = self.log.get(slot.next()) {
            slot = slot.next();
            self.tip.apply(slot, entry, self.options.deviation);
        }
    }

    fn persisted(&mut self, token: Token, now: Instant, effects: &mut Effects) {
        while let Some((_, unsynced)) = self.unsynced.pop_front_if(|(until, _)| *until <= token) {
            match unsynced {
                Unsynced::UpTo(slot) => self.synced = self.synced.max(slot),
                Unsynced::Promise(ballot, to) if ballot == self.promised => {
                    self.promise_synced = true;
                    if let Some(to) = to {
                        self.tell_promise(to, now, effects);
                        self.give_way(now);
                    }
                }
                Unsynced::Promise(..) => {}
            }
        }
        match &self.role {
            Role::Follower(_) => self.tell_accepted(false, effects),
            Role::Candidate(_) => self.count_promises(now, effects),
            Role::Leader(_) => {}
        }
    }

    fn send(&self, to: NodeId, message: Message, effects: &mut Effects) {
        effects.sends.push((to, self.id, message));
    }

    /// # Panics
    /// If it would go down.
    fn promise(&mut self, ballot: Ballot, to: Option<NodeId>, effects: &mut Effects) {
        assert!(ballot >= self.promised, "promises never go down");
        self.promised = ballot;
        if self.options.deviation.is(Mutant::ForgetsPromise) {
            self.promise_synced = true;
        } else {
            self.promise_synced = false;
            effects.records.push((self.id, Record::Promise(ballot)));
        }
        self.unsynced.push_back((effects.token, Unsynced::Promise(ballot, to)));
    }

    /// No leader and no candidate any more.
    fn step_down(&mut self, now: Instant, effects: &mut Effects) {
        self.refuse_waiting(Refusal::NotMaster(None), effects);
        self.give_up_undecided(effects);
        self.follow(None, now);
    }

    fn follow(&mut self, leader: Option<Ballot>, now: Instant) {
        let (matched, heard) = (self.decided, now);
        self.role = Role::Follower(Following { leader, matched, heard, ..Following::default() });
    }

    fn take_snapshot(&mut self, slot: Slot, application: Bytes, now: Instant, effects: &mut Effects) {
        let is_fresh = slot > self.log.base().slot && slot <= self.decided && !self.is_sending_snapshot(now);
        let slot = if self.options.deviation.is(Mutant::TrimsPastDeadMember) { self.decided } else { slot };
        let Some(position) = self.log.position(slot).filter(|_| is_fresh) else { return };
        let mut agreed = self.base.clone();
        let mut at = self.log.base().slot;
        while at < slot {
            at = at.next();
            let entry = self.log.get(at).expect("it is between the base and what is decided");
            agreed.apply(at, entry, self.options.deviation);
        }
        let snapshot = Snapshot { position, agreed, application };
        effects.records.push((self.id, Record::Snapshot(snapshot.clone())));
        self.rebase(snapshot);
    }

    /// The log begins behind the snapshot: with what follows it here, or empty.
    fn rebase(&mut self, snapshot: Snapshot) {
        let position = snapshot.position;
        if self.log.position(position.slot) == Some(position) {
            self.log.trim(position.slot);
        } else {
            self.log = Log::new(position);
        }
        self.base = snapshot.agreed.clone();
        self.snapshot = Some(snapshot);
    }
}

/// What others may look at.
impl Group {
    /// The greatest ballot that this member obeys; perhaps not durable yet.
    #[must_use]
    pub fn promised(&self) -> Ballot {
        self.promised
    }

    /// All up to here is known to be decided.
    #[must_use]
    pub fn decided(&self) -> Slot {
        self.decided
    }

    /// The end of the log, decided or not.
    #[must_use]
    pub fn last(&self) -> Position {
        self.log.last()
    }

    /// When the next [`Input::Tick`] is due, which is `now` if it is already; `None` if only other inputs make a difference.
    /// One before does nothing. To be asked after each step, as that may change it.
    #[must_use]
    pub fn next_tick(&self, now: Instant) -> Option<Instant> {
        if self.has_stopped {
            return None;
        }
        let of_role = match &self.role {
            Role::Follower(following) => {
                [self.considers_at(following), self.asks_around_at(following)].into_iter().flatten().min()
            }
            Role::Candidate(candidacy) => Some(self.asks_again_at(candidacy)),
            Role::Leader(leading) => {
                let due = [self.proposes_at(leading, now), self.resends_at(leading, now), self.renews_at(leading, now)];
                due.into_iter().flatten().min()
            }
        };
        [of_role, self.offers_at()].into_iter().flatten().min().map(|due| due.max(now))
    }

    /// As of what is decided.
    #[must_use]
    pub fn agreed(&self) -> &Agreed {
        &self.agreed
    }

    /// As of the log's end, decided or not.
    #[must_use]
    pub fn tip(&self) -> &Agreed {
        &self.tip
    }

    /// Whether it may propose, which is less than to serve: see [`Group::serves`].
    #[must_use]
    pub fn is_leader(&self) -> bool {
        matches!(self.role, Role::Leader(_))
    }

    /// The mastership by which this node serves, if it does; its epoch fences.
    #[must_use]
    pub fn serves(&self, now: Instant) -> Option<Tenure> {
        self.serves_until().filter(|until| now < *until).map(|_| self.agreed.mastership.tenure)
    }
}
