//! What who leads sends to each member, and sends again: the log, or a snapshot and then the log, and what is decided.

use std::collections::VecDeque;
use std::time::Duration;

use super::leader::Leading;
use super::{Group, Role};
use crate::effects::Effects;
use crate::ids::{Ballot, Instant, NodeId, Slot};
use crate::message::Message;
use crate::options::Options;
use crate::simulation::Mutant;

/// A member, or who is to be one, and what it was sent.
#[derive(Debug)]
pub(super) struct Peer {
    /// So far its log is this one, and durable.
    pub(super) matched: Slot,
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
    pub(super) got_on: Instant,
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
    pub(super) fn replicate(&mut self, now: Instant, effects: &mut Effects) {
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

    /// When [`Group::resend`] does something.
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
        of_peers.chain([stuck]).flatten().min()
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
}
