//! Phase 2: entries go to all members in a pipeline, and are decided when a quorum has them durable.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;

use super::replication::Peer;
use super::{Group, Role};
use crate::effects::{Effects, Event, ProposalId, Refusal};
use crate::entry::{Entry, Value};
use crate::ids::{Ballot, Instant, NodeId, Slot};
use crate::message::Message;
use crate::options::Options;
use crate::simulation::Mutant;

/// Each entry that waits counts for so many more, so that empty ones are bounded, too.
const HELD_BYTES: usize = size_of::<(Option<ProposalId>, Bytes)>();

#[derive(Debug)]
pub(super) struct Leading {
    pub(super) ballot: Ballot,
    /// The first slot of this ballot: once a quorum has it, it has all before it.
    pub(super) first: Slot,
    pub(super) peers: BTreeMap<NodeId, Peer>,
    /// When each slot was proposed that is not decided.
    proposed: VecDeque<(Slot, Instant)>,
    proposed_last: Instant,
    /// When a slot was decided last, or what is not decided was begun.
    pub(super) advanced: Instant,
    /// The slot in which this node says that it is master, while that is not decided.
    pub(super) wish: Option<Slot>,
    /// With whom to tell what became of it.
    waiting: VecDeque<(Option<ProposalId>, Bytes)>,
    waiting_bytes: usize,
    waiting_since: Instant,
    undecided: VecDeque<(Slot, Vec<ProposalId>)>,
    pub(super) admitting: Option<NodeId>,
    dismissing: Option<NodeId>,
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
            wish: None,
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            waiting_since: now,
            undecided: VecDeque::new(),
            admitting: None,
            dismissing: None,
        }
    }

    /// When this leader proposed the slot, which is decided now, and forgets it; `None` if another did.
    pub(super) fn take_proposed(&mut self, slot: Slot) -> Option<Instant> {
        self.wish = self.wish.filter(|wish| *wish > slot);
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
            effects.events.push((self.id, Event::Refused { id, why }));
        }
    }

    pub(super) fn forward(&mut self, entry: Bytes, now: Instant, effects: &mut Effects) {
        if let Err(Refusal::NotMaster(Some(master))) = self.enqueue(None, entry.clone(), now) {
            self.send(master, Message::Forward { entry }, effects);
        }
    }

    pub(super) fn enqueue(&mut self, id: Option<ProposalId>, entry: Bytes, now: Instant) -> Result<(), Refusal> {
        let serves = self.serves(now).is_some();
        let master = self.master_known();
        let Role::Leader(leading) = &mut self.role else { return Err(Refusal::NotMaster(master)) };
        if !serves {
            return Err(Refusal::NotMaster(master));
        }
        let held = leading.waiting_bytes + HELD_BYTES * leading.waiting.len();
        if leading.waiting.is_empty() {
            leading.waiting_since = now;
        } else if held + entry.len() > self.options.waiting_bytes {
            return Err(Refusal::Overloaded);
        }
        leading.waiting_bytes += entry.len();
        leading.waiting.push_back((id, entry));
        Ok(())
    }

    /// As who leads: the application's entries that are not decided.
    pub(crate) fn on_its_way(&self) -> impl Iterator<Item = &Bytes> {
        let leading = if let Role::Leader(leading) = &self.role { Some(leading) } else { None };
        let undecided = leading.into_iter().flat_map(|_| self.log.iter_after(self.decided));
        let written =
            undecided.filter_map(|entry| if let Value::Data(batch) = &entry.value { Some(batch) } else { None });
        let waiting = leading.into_iter().flat_map(|leading| leading.waiting.iter().map(|(_, entry)| entry));
        written.flat_map(|batch| batch.iter()).chain(waiting)
    }

    pub(super) fn refuse_waiting(&mut self, why: Refusal, effects: &mut Effects) {
        let Role::Leader(leading) = &mut self.role else { return };
        leading.waiting_bytes = 0;
        let ids = leading.waiting.drain(..).filter_map(|(id, _)| id);
        effects.events.extend(ids.map(|id| (self.id, Event::Refused { id, why })));
    }

    /// Of what was proposed and is not decided, nobody can say what becomes.
    pub(super) fn give_up_undecided(&mut self, effects: &mut Effects) {
        let Role::Leader(leading) = &mut self.role else { return };
        let ids = leading.undecided.drain(..).flat_map(|(_, ids)| ids);
        effects.events.extend(ids.map(|id| (self.id, Event::Unknown { id })));
    }

    /// After each step: decides, proposes and sends what there is.
    pub(super) fn lead_on(&mut self, now: Instant, effects: &mut Effects) {
        let Role::Leader(_) = &self.role else { return };
        let before = self.decided;
        self.decide_by_quorum(now, effects);
        if !self.agreed.has(self.me) && !self.tip.has(self.me) {
            // It was dismissed, and saw to it that this is decided.
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
            let others = self.tip.members.iter().filter_map(|member| leading.peers.get(member));
            let others = others.filter(|peer| peer.matched >= slot).count();
            others + usize::from(own >= slot && self.tip.has(self.me)) >= self.tip.quorum()
        };
        let ends = leading.peers.values().map(|peer| peer.matched).chain([own]);
        let is_present = |slot: &Slot| *slot >= leading.first || self.options.deviation.is(Mutant::CountsOldBallot);
        let upto = ends.filter(|slot| *slot > self.decided && is_present(slot) && has(*slot)).max();
        let Some(upto) = upto else { return };
        self.decide(upto, now, effects);
        let Role::Leader(leading) = &mut self.role else { return };
        leading.advanced = now;
        self.ambition.attempts = 0;
        let Role::Leader(leading) = &mut self.role else { return };
        while let Some((slot, ids)) = leading.undecided.pop_front_if(|(slot, _)| *slot <= upto) {
            effects.events.extend(ids.into_iter().map(|id| (self.id, Event::Acknowledged { id, slot })));
        }
    }

    /// A proposal goes at once if none is in flight, and else when one returns, or with enough company, or soon.
    fn fill_slots(&mut self, mut has_returned: bool, now: Instant, effects: &mut Effects) {
        let serves = self.serves(now).is_some();
        loop {
            let in_flight = self.in_flight();
            let Options { batch_entries, batch_bytes, linger, .. } = *self.options;
            let has_room = self.has_room();
            let Role::Leader(leading) = &mut self.role else { return };
            let is_enough = leading.waiting.len() >= batch_entries || leading.waiting_bytes >= batch_bytes;
            let goes = in_flight == 0 || has_returned || is_enough || now >= leading.waiting_since + linger;
            if leading.waiting.is_empty() || !goes || !has_room || !serves {
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
            self.refuse_waiting(Refusal::NotMaster(self.master_known()), effects);
        }
    }

    /// When [`Group::fill_slots`] does something without anything having returned: what waits goes, or is refused.
    pub(super) fn proposes_at(&self, leading: &Leading, now: Instant) -> Option<Instant> {
        let serves = self.serves(now).is_some();
        let is_due = !leading.waiting.is_empty() && (!serves || self.has_room());
        is_due.then(|| if serves { leading.waiting_since + self.options.linger } else { now })
    }

    fn in_flight(&self) -> u64 {
        self.log.last().slot.0 - self.decided.0
    }

    /// Whether one more slot may be in flight.
    fn has_room(&self) -> bool {
        self.in_flight() < self.options.window_slots as u64
    }

    pub(super) fn admit(&mut self, node: NodeId) {
        if let Role::Leader(leading) = &mut self.role
            && !self.tip.has(node)
        {
            leading.admitting = Some(node);
        }
    }

    pub(super) fn dismiss(&mut self, node: NodeId) {
        if let Role::Leader(leading) = &mut self.role
            && self.tip.has(node)
            && node != self.me
        {
            leading.dismissing = Some(node);
        }
    }

    /// One change at a time, and the first not before an entry of this ballot is decided: two quorums in a row always meet.
    fn change_members(&mut self, now: Instant, effects: &mut Effects) {
        // Not before it is master: who was it before is a member, or nobody could take over from it.
        let serves = self.serves(now).is_some();
        let Role::Leader(leading) = &mut self.role else { return };
        let hasty = self.options.deviation.is(Mutant::ChangesMembersTwice);
        if !serves || !hasty && (self.decided < leading.first || self.tip.members != self.agreed.members) {
            return;
        }
        let mut members = self.tip.members.to_vec();
        let has_caught_up = |node: &NodeId| leading.peers.get(node).is_some_and(|peer| peer.matched >= self.decided);
        if let Some(node) = leading.admitting.filter(|node| hasty || has_caught_up(node)) {
            leading.admitting = None;
            members.push(node);
            members.sort_unstable();
        } else if let Some(node) = leading.dismissing.take() {
            members.retain(|member| *member != node);
        } else {
            return;
        }
        self.propose(Value::Members(Arc::from(members)), now, effects);
    }

    /// Each member, as is decided, and how many slots it is behind; empty if this node does not lead.
    pub(crate) fn lags(&self) -> Vec<(NodeId, u64)> {
        let Role::Leader(leading) = &self.role else { return Vec::new() };
        let last = self.log.last().slot.0;
        let matched = |node: &NodeId| leading.peers.get(node).map_or(0, |peer| peer.matched.0);
        let lag = |node: &NodeId| if *node == self.me { 0 } else { last - matched(node) };
        self.agreed.members.iter().map(|node| (*node, lag(node))).collect()
    }
}
