//! Phase 2: entries go to all members in a pipeline, and are decided when a quorum has them durable.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

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
    first: Slot,
    peers: BTreeMap<NodeId, Peer>,
    /// When each slot was proposed that is not decided.
    proposed: VecDeque<(Slot, Instant)>,
    proposed_last: Instant,
    /// When a slot was decided last, or what is not decided was begun.
    advanced: Instant,
    /// The slot in which this node says that it is master, while that is not decided.
    pub(super) wish: Option<Slot>,
    /// With whom to tell what became of it.
    waiting: VecDeque<(Option<ProposalId>, Bytes)>,
    waiting_bytes: usize,
    waiting_since: Instant,
    undecided: VecDeque<(Slot, Vec<ProposalId>)>,
    admitting: Option<NodeId>,
    dismissing: Option<NodeId>,
}

/// A member, or who is to be one, and what it was sent.
#[derive(Debug)]
struct Peer {
    /// So far its log is this one, and durable.
    matched: Slot,
    /// As far as it said or is taken to have: where to begin again.
    start: Slot,
    next: Slot,
    /// Ends and sizes of what is on its way.
    flight: VecDeque<(Slot, usize)>,
    flight_bytes: usize,
    /// How many messages may be on their way: one after a gap and after a silence, as what overtakes another is lost;
    /// and twice as many each time that it has more.
    burst: usize,
    sent: Instant,
    /// Since when nothing came of what it was sent.
    since: Instant,
    /// When it had more of the log, or began with a snapshot, or had more of that.
    got_on: Instant,
    /// Of what is decided.
    told: Slot,
    /// How much of that it said that it knows; less, once it was started anew.
    knows: Slot,
    /// How often it was told again since it said so.
    tellings: u32,
    /// Nothing came of what it was sent: it is asked how far it is, and sent no more until it says so.
    is_asked: bool,
    /// The gap that was last heard of: each message behind it tells of one, and what is sent again closes it for all.
    gap: Option<Slot>,
    /// How much it has of a snapshot.
    offset: u64,
    /// How often what it lacks of that was sent again, since it had more of it.
    repeats: u32,
    #[cfg(feature = "mutants")]
    stale: Option<crate::entry::Position>,
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

impl Peer {
    fn new(start: Slot) -> Self {
        Peer {
            matched: Slot(0),
            start,
            next: start.next(),
            flight: VecDeque::new(),
            flight_bytes: 0,
            burst: usize::MAX,
            sent: Instant::default(),
            since: Instant::default(),
            got_on: Instant::default(),
            told: Slot(0),
            knows: Slot(0),
            tellings: 0,
            is_asked: false,
            gap: None,
            offset: 0,
            repeats: 0,
            #[cfg(feature = "mutants")]
            stale: None,
        }
    }

    fn begin_again(&mut self, after: Slot, now: Instant) {
        (self.start, self.next, self.since) = (after, after.next(), now);
        self.flight.clear();
        (self.flight_bytes, self.burst) = (0, 1);
    }

    /// After how long a silence what it was sent is taken for lost. A part of a snapshot is large: where it takes longer than
    /// that, parts sent again would be in the way of each other.
    fn patience(&self, base: Slot, options: &Options) -> Duration {
        let is_behind = self.next <= base;
        options.resend * if is_behind { 1 << self.repeats.min(2) } else { 1 }
    }

    /// Whether what was said of what is decided is to be said again, as it may be lost.
    fn is_unsure_from(&self, decided: Slot, options: &Options) -> Option<Instant> {
        let is_unsure = self.knows < decided && !options.deviation.is(Mutant::TellsOnce);
        is_unsure.then(|| self.sent + options.resend * (1 << self.tellings.min(5)))
    }

    fn has(&mut self, slot: Slot, now: Instant) {
        if slot > self.matched {
            (self.since, self.got_on) = (now, now);
            self.burst = self.burst.saturating_mul(2);
        }
        self.matched = self.matched.max(slot);
        self.start = self.start.max(slot);
        self.next = self.next.max(slot.next());
        while let Some((_, bytes)) = self.flight.pop_front_if(|(end, _)| *end <= slot) {
            self.flight_bytes -= bytes;
        }
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

    fn in_flight(&self) -> u64 {
        self.log.last().slot.0 - self.decided.0
    }

    /// Whether one more slot may be in flight.
    fn has_room(&self) -> bool {
        self.in_flight() < self.options.window_slots as u64
    }

    fn replicate(&mut self, now: Instant, effects: &mut Effects) {
        let last = self.log.last().slot;
        let Role::Leader(leading) = &mut self.role else { return };
        let joining = leading.admitting;
        // Who is dismissed hears of it, until that is decided.
        let hears =
            |node: NodeId| self.tip.has(node) || self.agreed.has(node) || self.learners.binary_search(&node).is_ok();
        let stays = |node: &NodeId| *node != self.me && (hears(*node) || joining == Some(*node));
        leading.peers.retain(|node, _| stays(node));
        for node in self.tip.members.iter().chain(&self.learners).copied().chain(joining).filter(&stays) {
            // What it has is not known; it says so if this goes too far.
            leading.peers.entry(node).or_insert_with(|| Peer::new(leading.first.before()));
        }
        for (node, peer) in leading.peers.iter_mut().filter(|(_, peer)| !peer.is_asked) {
            let has_room =
                |peer: &Peer| peer.flight_bytes < self.options.window_bytes && peer.flight.len() < peer.burst;
            while peer.next <= last && has_room(peer) && peer.next > self.log.base().slot {
                let entries = self.log.after(peer.next.before(), self.options.window_slots, self.options.chunk_bytes);
                let after = self.log.position(peer.next.before()).expect("it is not before the base");
                #[cfg(feature = "mutants")]
                let after =
                    peer.stale.filter(|_| self.options.deviation.is(Mutant::MergesIntoStaleAccept)).unwrap_or(after);
                let size = entries.iter().map(|entry| entry.value.size()).sum();
                let end = Slot(peer.next.0 - 1 + entries.len() as u64);
                #[cfg(feature = "mutants")]
                {
                    peer.stale = self.log.position(end);
                }
                if peer.flight.is_empty() {
                    peer.since = now;
                }
                (peer.next, peer.told, peer.sent) = (end.next(), self.decided, now);
                peer.flight.push_back((end, size));
                peer.flight_bytes += size;
                let message = Message::Accept { ballot: leading.ballot, after, entries, decided: self.decided };
                effects.sends.push((*node, self.id, message));
            }
        }
    }

    /// When [`Group::resend`] does something, or [`Group::fill_slots`] does without anything having returned.
    pub(super) fn resends_at(&self, leading: &Leading, now: Instant) -> Option<Instant> {
        let Options { resend, linger, .. } = *self.options;
        let (last, base) = (self.log.last().slot, self.log.base().slot);
        let serves = self.serves(now).is_some();
        let of_peers = leading.peers.values().flat_map(|peer| {
            let late = (peer.matched < last).then(|| peer.since + peer.patience(base, &self.options));
            let hears = peer.next > base;
            let untold = (hears && peer.told < self.decided).then(|| leading.advanced + linger);
            let unsure = peer.is_unsure_from(self.decided, &self.options).filter(|_| hears);
            let silent = (hears && !serves).then(|| peer.sent + resend);
            [late, untold, unsure, silent]
        });
        // Who serves by time alone does so until that is over.
        let gives_up = last > self.decided && (!serves || self.agreed.mastership.liveness > 0);
        let stuck = gives_up.then(|| self.is_stuck_from(leading));
        // It goes, or is refused.
        let waits = !leading.waiting.is_empty() && (!serves || self.has_room());
        let goes = waits.then(|| if serves { leading.waiting_since + linger } else { now });
        of_peers.chain([stuck, goes]).flatten().min()
    }

    /// When nothing will have been decided for so long that another should try. A member that gets on with the snapshot, or the
    /// log, may be who is missing.
    fn is_stuck_from(&self, leading: &Leading) -> Instant {
        let members = self.tip.members.iter().filter_map(|member| leading.peers.get(member));
        let got_on = members.map(|peer| peer.got_on).max();
        got_on.map_or(leading.advanced, |got_on| got_on.max(leading.advanced)) + 8 * self.options.resend
    }

    /// What was not answered, and what is decided to whom does not know it.
    pub(super) fn resend(&mut self, now: Instant, effects: &mut Effects) {
        let (last, base) = (self.log.last().slot, self.log.base().slot);
        let serves = self.serves(now).is_some();
        let Role::Leader(leading) = &self.role else { return };
        if last > self.decided && now >= self.is_stuck_from(leading) {
            // Those who hear it may not be heard by it, and would follow it for ever.
            if serves {
                self.give_up(now, effects);
            }
            if self.serves(now).is_none() {
                return self.step_down(now, effects);
            }
        }
        let Role::Leader(leading) = &mut self.role else { return };
        // The next entry takes it along if it comes soon.
        let has_lingered = now >= leading.advanced + self.options.linger;
        let mut behind = Vec::new();
        for (node, peer) in &mut leading.peers {
            let is_behind = peer.next <= base;
            let is_untold = peer.told < self.decided && has_lingered;
            let is_unsure = peer.is_unsure_from(self.decided, &self.options).is_some_and(|at| now >= at);
            let is_late = peer.matched < last && now.since(peer.since) >= peer.patience(base, &self.options);
            // Who does not serve says at least that it is there.
            let is_silent = !serves && now.since(peer.sent) >= self.options.resend;
            if !is_late && (is_behind || !is_untold && !is_unsure && !is_silent) {
                continue;
            }
            peer.sent = now;
            peer.tellings += u32::from(is_unsure);
            if is_late {
                (peer.gap, peer.is_asked) = (None, true);
                peer.begin_again(peer.start, now);
            }
            if peer.next <= base {
                peer.repeats += 1;
                behind.push((*node, peer.offset));
                continue;
            }
            peer.told = self.decided;
            let after = self.log.position(peer.next.before()).expect("it is not before the base");
            let message = Message::Accept { ballot: leading.ballot, after, entries: Vec::new(), decided: self.decided };
            effects.sends.push((*node, self.id, message));
        }
        let ballot = leading.ballot;
        for (node, offset) in behind {
            self.send_snapshot(node, ballot, offset, effects);
        }
    }

    pub(super) fn send_snapshot(&self, to: NodeId, ballot: Ballot, offset: u64, effects: &mut Effects) {
        let Some(snapshot) = &self.snapshot else { return };
        let from = usize::try_from(offset).unwrap_or(usize::MAX).min(snapshot.application.len());
        let until = (from + self.options.chunk_bytes).min(snapshot.application.len());
        let part = snapshot.application.slice(from..until);
        self.send(to, Message::Snapshot { ballot, head: snapshot.head(), offset: from as u64, part }, effects);
    }

    /// Whether somebody is behind the log, and gets on: the next snapshot would have it begin again, and again.
    pub(super) fn is_sending_snapshot(&self, now: Instant) -> bool {
        let Role::Leader(leading) = &self.role else { return false };
        let base = self.log.base().slot;
        leading.peers.values().any(|peer| peer.next <= base && now.since(peer.got_on) < 8 * self.options.resend)
    }

    pub(super) fn hear_received(
        &mut self,
        from: NodeId,
        ballot: Ballot,
        slot: Slot,
        offset: u64,
        now: Instant,
        effects: &mut Effects,
    ) {
        let Some(snapshot) = self.snapshot.as_ref().filter(|snapshot| snapshot.position.slot == slot) else { return };
        let is_whole = offset >= snapshot.application.len() as u64;
        let Some(peer) = self.peer(from, ballot).filter(|peer| peer.next <= slot) else { return };
        peer.is_asked = false;
        let has_more = is_whole || offset > peer.offset;
        peer.offset = if is_whole { 0 } else { offset };
        // What says so once more is not answered, or there would be two of all that follows. Who has less than it said, as it
        // was started anew, is sent that after a while.
        if !has_more {
            return;
        }
        (peer.since, peer.got_on, peer.repeats) = (now, now, 0);
        if is_whole {
            peer.begin_again(slot.max(peer.matched), now);
        } else {
            self.send_snapshot(from, ballot, offset, effects);
        }
    }

    fn peer(&mut self, node: NodeId, ballot: Ballot) -> Option<&mut Peer> {
        let Role::Leader(leading) = &mut self.role else { return None };
        if leading.ballot == ballot { leading.peers.get_mut(&node) } else { None }
    }

    pub(super) fn hear_accepted(&mut self, from: NodeId, ballot: Ballot, (slot, decided): (Slot, Slot), now: Instant) {
        let last = self.log.last().slot;
        let Role::Leader(leading) = &mut self.role else { return };
        let is_beyond = ballot > leading.ballot;
        if ballot < leading.ballot {
            return;
        }
        let Some(peer) = leading.peers.get_mut(&from) else { return };
        // Who has promised another, and lacks something, refuses what it is told: so this one leads anew, with its promise.
        (peer.knows, peer.tellings) = (if is_beyond { slot } else { decided }, 0);
        if !is_beyond && slot <= last {
            peer.is_asked = false;
            peer.has(slot, now);
        }
    }

    pub(super) fn hear_gap(&mut self, from: NodeId, ballot: Ballot, slot: Slot, now: Instant, effects: &mut Effects) {
        let base = self.log.base().slot;
        let Some(peer) = self.peer(from, ballot) else { return };
        peer.is_asked = false;
        if slot >= peer.matched && slot.next() < peer.next && peer.gap != Some(slot) {
            peer.gap = Some(slot);
            peer.begin_again(slot, now);
            if peer.next <= base {
                let offset = peer.offset;
                peer.got_on = now;
                self.send_snapshot(from, ballot, offset, effects);
            }
        }
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
