//! Phase 2 of Multi-Paxos: the leader sends entries to all members in a pipeline. An entry is decided once it is
//! durable on a quorum.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;

use super::replication::Peer;
use super::{Group, Role};
use crate::effects::{Effects, Event, ProposalId, Rejection};
use crate::entry::{Entry, Value};
use crate::ids::{Ballot, Instant, NodeId, Slot};
use crate::message::Message;
use crate::options::Options;
use crate::simulation::Mutant;

/// Number of bytes that the leader adds to the size of each waiting entry. The option `waiting_bytes` therefore also
/// limits the number of empty entries.
const WAITING_ENTRY_BYTES: usize = size_of::<(Option<ProposalId>, Bytes)>();

#[derive(Debug)]
pub(super) struct Leading {
    pub(super) ballot: Ballot,
    /// First slot that this leader proposed under its ballot. A member that has the entry of this slot also has the
    /// leader's entries of all earlier slots.
    pub(super) first: Slot,
    pub(super) peers: BTreeMap<NodeId, Peer>,
    /// Undecided slots that this leader proposed, with the instants of their proposals.
    proposed: VecDeque<(Slot, Instant)>,
    proposed_last: Instant,
    /// Instant of this leader's last progress: a decision, or a proposal when all earlier slots were decided.
    pub(super) advanced: Instant,
    /// Slot of the undecided `BeMaster` entry of this node; `None` if there is no such entry.
    pub(super) pending_claim: Option<Slot>,
    /// Entries that wait for a slot, with the ids of their proposals.
    waiting: VecDeque<(Option<ProposalId>, Bytes)>,
    waiting_bytes: usize,
    waiting_since: Instant,
    undecided: VecDeque<(Slot, Vec<ProposalId>)>,
    pub(super) adding: Option<NodeId>,
    removing: Option<NodeId>,
}

impl Leading {
    pub(super) fn new(ballot: Ballot, first: Slot, now: Instant) -> Self {
        Leading {
            ballot,
            first,
            peers: BTreeMap::new(),
            proposed: VecDeque::new(),
            proposed_last: now,
            advanced: now,
            pending_claim: None,
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            waiting_since: now,
            undecided: VecDeque::new(),
            adding: None,
            removing: None,
        }
    }

    /// Returns the instant at which this leader proposed the decided slot, and removes the slot from `proposed`.
    /// Returns `None` if another leader proposed the slot.
    pub(super) fn take_proposed(&mut self, slot: Slot) -> Option<Instant> {
        self.pending_claim = self.pending_claim.filter(|pending_claim| *pending_claim > slot);
        self.proposed.pop_front_if(|(at, _)| *at == slot).map(|(_, instant)| instant)
    }

    pub(super) fn proposed_last(&self) -> Instant {
        self.proposed_last
    }
}

impl Group {
    pub(super) fn propose(&mut self, value: Value, now: Instant, effects: &mut Effects) -> Slot {
        let last = self.log.last().slot;
        let slot = last.next();
        let Role::Leader(leading) = &mut self.role else { return last };
        if last == self.decided {
            leading.advanced = now;
        }
        leading.proposed.push_back((slot, now));
        leading.proposed_last = now;
        let entry = Entry { ballot: leading.ballot, value };
        self.append(last, vec![entry], now, effects);
        slot
    }

    pub(super) fn propose_data(&mut self, id: ProposalId, entry: Bytes, now: Instant, effects: &mut Effects) {
        if let Err(why) = self.enqueue(Some(id), entry, now) {
            effects.events.push((self.id, Event::Rejected { id, why }));
        }
    }

    pub(super) fn forward(&mut self, entry: Bytes, now: Instant, effects: &mut Effects) {
        if let Err(Rejection::NotMaster(Some(master))) = self.enqueue(None, entry.clone(), now) {
            self.send(master, Message::Forward { entry }, effects);
        }
    }

    pub(super) fn enqueue(&mut self, id: Option<ProposalId>, entry: Bytes, now: Instant) -> Result<(), Rejection> {
        let serves = self.serves(now).is_some();
        let master = self.master_known();
        let Role::Leader(leading) = &mut self.role else { return Err(Rejection::NotMaster(master)) };
        if !serves {
            return Err(Rejection::NotMaster(master));
        }
        let used = leading.waiting_bytes + WAITING_ENTRY_BYTES * leading.waiting.len();
        if leading.waiting.is_empty() {
            leading.waiting_since = now;
        } else if used + entry.len() > self.options.waiting_bytes {
            return Err(Rejection::Overloaded);
        }
        leading.waiting_bytes += entry.len();
        leading.waiting.push_back((id, entry));
        Ok(())
    }

    /// Returns the undecided entries of the application. The iterator is empty if this node does not lead.
    pub(crate) fn undecided_entries(&self) -> impl Iterator<Item = &Bytes> {
        let leading = if let Role::Leader(leading) = &self.role { Some(leading) } else { None };
        let undecided = leading.into_iter().flat_map(|_| self.log.iter_after(self.decided));
        let written =
            undecided.filter_map(|entry| if let Value::Data(batch) = &entry.value { Some(batch) } else { None });
        let waiting = leading.into_iter().flat_map(|leading| leading.waiting.iter().map(|(_, entry)| entry));
        written.flat_map(|batch| batch.iter()).chain(waiting)
    }

    pub(super) fn reject_waiting(&mut self, why: Rejection, effects: &mut Effects) {
        let Role::Leader(leading) = &mut self.role else { return };
        leading.waiting_bytes = 0;
        let ids = leading.waiting.drain(..).filter_map(|(id, _)| id);
        effects.events.extend(ids.map(|id| (self.id, Event::Rejected { id, why })));
    }

    /// Reports to the driver that the outcome of each undecided proposal of this leader is unknown.
    pub(super) fn abandon_undecided(&mut self, effects: &mut Effects) {
        let Role::Leader(leading) = &mut self.role else { return };
        let ids = leading.undecided.drain(..).flat_map(|(_, ids)| ids);
        effects.events.extend(ids.map(|id| (self.id, Event::Unknown { id })));
    }

    /// Decides slots, proposes entries and sends messages as far as possible. The paxos group calls this function at
    /// the end of each step.
    pub(super) fn advance(&mut self, now: Instant, effects: &mut Effects) {
        let Role::Leader(_) = &self.role else { return };
        let before = self.decided;
        self.decide_by_quorum(now, effects);
        if !self.committed.has(self.me) && !self.uncommitted.has(self.me) {
            // The members have removed this node, and this removal is decided.
            return self.step_down(now, effects);
        }
        self.fill_slots(self.decided > before, now, effects);
        self.change_members(now, effects);
        self.replicate(now, effects);
        self.consent(effects);
    }

    fn decide_by_quorum(&mut self, now: Instant, effects: &mut Effects) {
        let own = if self.options.deviation.is(Mutant::VotesBeforeSync) { self.log.last().slot } else { self.synced };
        let Role::Leader(leading) = &self.role else { return };
        let has = |slot: Slot| {
            let others = self.uncommitted.members.iter().filter_map(|member| leading.peers.get(member));
            let others = others.filter(|peer| peer.matched >= slot).count();
            others + usize::from(own >= slot && self.uncommitted.has(self.me)) >= self.uncommitted.quorum()
        };
        let ends = leading.peers.values().map(|peer| peer.matched).chain([own]);
        let is_present = |slot: &Slot| *slot >= leading.first || self.options.deviation.is(Mutant::CountsOldBallot);
        let upto = ends.filter(|slot| *slot > self.decided && is_present(slot) && has(*slot)).max();
        let Some(upto) = upto else { return };
        self.decide(upto, now, effects);
        let Role::Leader(leading) = &mut self.role else { return };
        leading.advanced = now;
        self.conditions.attempts = 0;
        let Role::Leader(leading) = &mut self.role else { return };
        while let Some((slot, ids)) = leading.undecided.pop_front_if(|(slot, _)| *slot <= upto) {
            effects.events.extend(ids.into_iter().map(|id| (self.id, Event::Acknowledged { id, slot })));
        }
    }

    /// Proposes waiting entries. If no slot is in flight, proposes them at once. Otherwise, proposes them after a
    /// decision, once they fill a batch, or after the time `linger`.
    fn fill_slots(&mut self, mut has_returned: bool, now: Instant, effects: &mut Effects) {
        let serves = self.serves(now).is_some();
        loop {
            let in_flight = self.in_flight();
            let Options { batch_entries, batch_bytes, linger, .. } = *self.options;
            let has_capacity = self.has_capacity();
            let Role::Leader(leading) = &mut self.role else { return };
            let is_enough = leading.waiting.len() >= batch_entries || leading.waiting_bytes >= batch_bytes;
            let goes = in_flight == 0 || has_returned || is_enough || now >= leading.waiting_since + linger;
            if leading.waiting.is_empty() || !goes || !has_capacity || !serves {
                break;
            }
            has_returned = false;
            let mut bytes = 0;
            let fits = |(_, entry): &&(Option<ProposalId>, Bytes)| {
                let is_first = bytes == 0;
                bytes += entry.len();
                is_first || bytes <= batch_bytes
            };
            let count = leading.waiting.iter().take(batch_entries).take_while(fits).count();
            let (ids, batch): (Vec<_>, Vec<_>) = leading.waiting.drain(..count).unzip();
            let ids = ids.into_iter().flatten().collect();
            leading.waiting_bytes -= batch.iter().map(Bytes::len).sum::<usize>();
            leading.undecided.push_back((self.log.last().slot.next(), ids));
            self.propose(Value::Data(batch.into()), now, effects);
        }
        if !serves {
            self.reject_waiting(Rejection::NotMaster(self.master_known()), effects);
        }
    }

    /// Returns the instant at which [`Group::fill_slots`] must propose or reject waiting entries, if the members decide
    /// no slot before that instant.
    pub(super) fn proposes_at(&self, leading: &Leading, now: Instant) -> Option<Instant> {
        let serves = self.serves(now).is_some();
        let is_due = !leading.waiting.is_empty() && (!serves || self.has_capacity());
        is_due.then(|| if serves { leading.waiting_since + self.options.linger } else { now })
    }

    fn in_flight(&self) -> u64 {
        self.log.last().slot.0 - self.decided.0
    }

    /// Returns true if one more slot may be in flight.
    fn has_capacity(&self) -> bool {
        self.in_flight() < self.options.window_slots as u64
    }

    pub(super) fn add_member(&mut self, node: NodeId) {
        if let Role::Leader(leading) = &mut self.role
            && !self.uncommitted.has(node)
        {
            leading.adding = Some(node);
        }
    }

    pub(super) fn remove_member(&mut self, node: NodeId) {
        if let Role::Leader(leading) = &mut self.role
            && self.uncommitted.has(node)
            && node != self.me
        {
            leading.removing = Some(node);
        }
    }

    /// Proposes requested changes of members, one at a time. Proposes the first change only after an entry of this
    /// leader's ballot is decided. These two rules ensure that each quorum before a change has a member in common with
    /// each quorum after the change.
    fn change_members(&mut self, now: Instant, effects: &mut Effects) {
        // The leader proposes no change of members before it is master. The earlier master must remain a member until
        // then, because otherwise no node could take over from it.
        let serves = self.serves(now).is_some();
        let Role::Leader(leading) = &mut self.role else { return };
        let hasty = self.options.deviation.is(Mutant::ChangesMembersTwice);
        if !serves || !hasty && (self.decided < leading.first || self.uncommitted.members != self.committed.members) {
            return;
        }
        let mut members = self.uncommitted.members.to_vec();
        let has_caught_up = |node: &NodeId| leading.peers.get(node).is_some_and(|peer| peer.matched >= self.decided);
        if let Some(node) = leading.adding.filter(|node| hasty || has_caught_up(node)) {
            leading.adding = None;
            members.push(node);
            members.sort_unstable();
        } else if let Some(node) = leading.removing.take() {
            members.retain(|member| *member != node);
        } else {
            return;
        }
        self.propose(Value::Members(Arc::from(members)), now, effects);
    }

    /// Returns each member of the committed state with the number of slots that the member lacks. The list is empty if
    /// this node does not lead.
    pub(crate) fn lags(&self) -> Vec<(NodeId, u64)> {
        let Role::Leader(leading) = &self.role else { return Vec::new() };
        let last = self.log.last().slot.0;
        let matched = |node: &NodeId| leading.peers.get(node).map_or(0, |peer| peer.matched.0);
        let lag = |node: &NodeId| if *node == self.me { 0 } else { last - matched(node) };
        self.committed.members.iter().map(|node| (*node, lag(node))).collect()
    }
}
