//! Replication from the leader to each member. The leader sends the log and the last decided slot. If a member lacks
//! entries before the start of the leader's log, the leader first sends a snapshot to this member. The leader repeats
//! messages that the network may have lost.

use std::collections::VecDeque;
use std::time::Duration;

use super::leader::Leading;
use super::{Group, Role};
use crate::effects::Effects;
use crate::ids::{Ballot, Instant, NodeId, Slot};
use crate::message::Message;
use crate::options::Options;
use crate::simulation::Mutant;

/// State of the replication to a peer. A peer is a member, a node that the master will add as a member, or a learner.
#[derive(Debug)]
pub(super) struct Peer {
    /// Last slot up to which the durable log of the peer equals the leader's log.
    pub(super) matched: Slot,
    /// Last slot that the peer reported to be in its log, or that the leader assumes to be in this log. If the leader
    /// repeats entries, it starts after this slot.
    start: Slot,
    next: Slot,
    /// Last slot of each message in flight to the peer, and the approximate size of the message in bytes.
    flight: VecDeque<(Slot, usize)>,
    flight_bytes: usize,
    /// Maximum number of messages in flight to the peer. After a timeout, or after the peer reported missing entries,
    /// the maximum is one, because the peer drops a message that overtakes an earlier message. The maximum doubles each
    /// time that the peer makes progress.
    burst: usize,
    sent: Instant,
    /// Instant since which the peer has reported no progress in response to the messages in flight.
    since: Instant,
    /// Instant of the peer's last progress. The peer makes progress when it receives further entries, when the leader
    /// begins to send it a snapshot, and when it receives a further part of the snapshot.
    pub(super) progressed: Instant,
    /// Last decided slot that the leader has sent to the peer.
    decided_sent: Slot,
    /// Last slot that the peer reported as decided. After a restart, the peer may report an earlier slot.
    decided_known: Slot,
    /// Number of times that the leader has sent its last decided slot again since the peer's last `Accepted` message.
    decided_resends: u32,
    /// True after a timeout. The leader then queries the progress of the peer, and sends no entries until the peer
    /// responds.
    is_probed: bool,
    /// Slot after which the peer last reported missing entries. The peer reports them again for each later message, but
    /// the leader repeats the missing entries only once.
    gap: Option<Slot>,
    /// Number of snapshot bytes that the peer has reported as received.
    offset: u64,
    /// Number of times that the leader has repeated the next part of the snapshot since the peer's last progress.
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
            progressed: Instant::default(),
            decided_sent: Slot(0),
            decided_known: Slot(0),
            decided_resends: 0,
            is_probed: false,
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

    /// Returns the time without a response after which the leader treats messages as lost. A part of a snapshot is
    /// large, and may take longer than `resend` to arrive. If the leader repeated the part too early, the copies would
    /// delay each other. The returned time therefore grows with each repetition, up to four times `resend`.
    fn resend_timeout(&self, base: Slot, options: &Options) -> Duration {
        let is_behind = self.next <= base;
        options.resend * if is_behind { 1 << self.repeats.min(2) } else { 1 }
    }

    /// Returns the instant at which the leader sends the last decided slot again, because the earlier message may be
    /// lost. Returns `None` if the peer has confirmed the slot.
    fn resends_decided_at(&self, decided: Slot, options: &Options) -> Option<Instant> {
        let is_unconfirmed = self.decided_known < decided && !options.deviation.is(Mutant::TellsOnce);
        is_unconfirmed.then(|| self.sent + options.resend * (1 << self.decided_resends.min(5)))
    }

    fn has(&mut self, slot: Slot, now: Instant) {
        if slot > self.matched {
            (self.since, self.progressed) = (now, now);
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
        let joining = leading.adding;
        // A removed member receives the log until its removal is decided.
        let receives = |node: NodeId| {
            self.uncommitted.has(node) || self.committed.has(node) || self.learners.binary_search(&node).is_ok()
        };
        let stays = |node: &NodeId| *node != self.me && (receives(*node) || joining == Some(*node));
        leading.peers.retain(|node, _| stays(node));
        for node in self.uncommitted.members.iter().chain(&self.learners).copied().chain(joining).filter(&stays) {
            // The leader does not know the last slot of the peer's log, so it assumes the slot before the first slot of
            // its own ballot. If the peer's log ends before the assumed slot, the peer reports a gap.
            leading.peers.entry(node).or_insert_with(|| Peer::new(leading.first.before()));
        }
        for (node, peer) in leading.peers.iter_mut().filter(|(_, peer)| !peer.is_probed) {
            let has_capacity =
                |peer: &Peer| peer.flight_bytes < self.options.window_bytes && peer.flight.len() < peer.burst;
            while peer.next <= last && has_capacity(peer) && peer.next > self.log.base().slot {
                let entries = self.log.after(peer.next.before(), self.options.window_slots, self.options.chunk_bytes);
                let after = self.log.position(peer.next.before()).expect("the slot is not before the base of the log");
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
                (peer.next, peer.decided_sent, peer.sent) = (end.next(), self.decided, now);
                peer.flight.push_back((end, size));
                peer.flight_bytes += size;
                let message = Message::Accept { ballot: leading.ballot, after, entries, decided: self.decided };
                effects.sends.push((*node, self.id, message));
            }
        }
    }

    /// Returns the instant at which [`Group::resend`] is due.
    pub(super) fn resends_at(&self, leading: &Leading, now: Instant) -> Option<Instant> {
        let Options { resend, linger, .. } = *self.options;
        let (last, base) = (self.log.last().slot, self.log.base().slot);
        let serves = self.serves(now).is_some();
        let of_peers = leading.peers.values().flat_map(|peer| {
            let late = (peer.matched < last).then(|| peer.since + peer.resend_timeout(base, &self.options));
            let receives = peer.next > base;
            let unsent = (receives && peer.decided_sent < self.decided).then(|| leading.advanced + linger);
            let unconfirmed = peer.resends_decided_at(self.decided, &self.options).filter(|_| receives);
            let silent = (receives && !serves).then(|| peer.sent + resend);
            [late, unsent, unconfirmed, silent]
        });
        // A master without a liveness epoch does not abandon its mastership: it serves until its lease ends.
        let abandons = last > self.decided && (!serves || self.committed.mastership.liveness > 0);
        let stuck = abandons.then(|| self.is_stuck_from(leading));
        of_peers.chain([stuck]).flatten().min()
    }

    /// Returns the instant from which the leader has decided no slot for too long, so that another node should try to
    /// lead. The instant is later if a member still receives parts of the snapshot or of the log, because this member
    /// may complete the quorum.
    fn is_stuck_from(&self, leading: &Leading) -> Instant {
        let members = self.uncommitted.members.iter().filter_map(|member| leading.peers.get(member));
        let progressed = members.map(|peer| peer.progressed).max();
        progressed.map_or(leading.advanced, |progressed| progressed.max(leading.advanced)) + 8 * self.options.resend
    }

    /// Sends a query or the next part of the snapshot to each peer that has not responded in time. Also sends the last
    /// decided slot to each peer that has not confirmed this slot.
    pub(super) fn resend(&mut self, now: Instant, effects: &mut Effects) {
        let (last, base) = (self.log.last().slot, self.log.base().slot);
        let serves = self.serves(now).is_some();
        let Role::Leader(leading) = &self.role else { return };
        if last > self.decided && now >= self.is_stuck_from(leading) {
            // The leader has decided no slot for too long, so it stops leading. Otherwise, members that receive its
            // messages but cannot send it messages would follow it forever.
            if serves {
                self.abandon(now, effects);
            }
            if self.serves(now).is_none() {
                return self.step_down(now, effects);
            }
        }
        let Role::Leader(leading) = &mut self.role else { return };
        // The leader waits for the time `linger` before it sends the last decided slot without entries, because a
        // message with the next entry also contains this slot.
        let has_lingered = now >= leading.advanced + self.options.linger;
        let mut behind = Vec::new();
        for (node, peer) in &mut leading.peers {
            let is_behind = peer.next <= base;
            let is_unsent = peer.decided_sent < self.decided && has_lingered;
            let is_unconfirmed = peer.resends_decided_at(self.decided, &self.options).is_some_and(|at| now >= at);
            let is_late = peer.matched < last && now.since(peer.since) >= peer.resend_timeout(base, &self.options);
            // A leader that does not serve sends heartbeats.
            let is_silent = !serves && now.since(peer.sent) >= self.options.resend;
            if !is_late && (is_behind || !is_unsent && !is_unconfirmed && !is_silent) {
                continue;
            }
            peer.sent = now;
            peer.decided_resends += u32::from(is_unconfirmed);
            if is_late {
                (peer.gap, peer.is_probed) = (None, true);
                peer.begin_again(peer.start, now);
            }
            if peer.next <= base {
                peer.repeats += 1;
                behind.push((*node, peer.offset));
                continue;
            }
            peer.decided_sent = self.decided;
            let after = self.log.position(peer.next.before()).expect("the slot is not before the base of the log");
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

    /// Returns true if the leader is sending the snapshot to a peer that makes progress. If the leader replaced the
    /// snapshot, the peer would have to receive the new snapshot from its first byte.
    pub(super) fn is_sending_snapshot(&self, now: Instant) -> bool {
        let Role::Leader(leading) = &self.role else { return false };
        let base = self.log.base().slot;
        leading.peers.values().any(|peer| peer.next <= base && now.since(peer.progressed) < 8 * self.options.resend)
    }

    pub(super) fn handle_received(
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
        peer.is_probed = false;
        let has_more = is_whole || offset > peer.offset;
        peer.offset = if is_whole { 0 } else { offset };
        // The leader does not respond to a duplicate report of received bytes. Otherwise, it would send each later part
        // of the snapshot twice. A restarted peer may report fewer bytes than before. In this case, the leader sends
        // the missing part again after a timeout.
        if !has_more {
            return;
        }
        (peer.since, peer.progressed, peer.repeats) = (now, now, 0);
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

    pub(super) fn handle_accepted(
        &mut self,
        from: NodeId,
        ballot: Ballot,
        (slot, decided): (Slot, Slot),
        now: Instant,
    ) {
        let last = self.log.last().slot;
        let Role::Leader(leading) = &mut self.role else { return };
        let is_beyond = ballot > leading.ballot;
        if ballot < leading.ballot {
            return;
        }
        let Some(peer) = leading.peers.get_mut(&from) else { return };
        // If the peer lacks decided slots, the leader soon sends it a message. If the peer has promised a greater
        // ballot, the peer rejects this message. The leader then starts another candidacy with a still greater ballot,
        // and receives the peer's promise.
        (peer.decided_known, peer.decided_resends) = (if is_beyond { slot } else { decided }, 0);
        if !is_beyond && slot <= last {
            peer.is_probed = false;
            peer.has(slot, now);
        }
    }

    pub(super) fn handle_gap(&mut self, from: NodeId, ballot: Ballot, slot: Slot, now: Instant, effects: &mut Effects) {
        let base = self.log.base().slot;
        let Some(peer) = self.peer(from, ballot) else { return };
        peer.is_probed = false;
        if slot >= peer.matched && slot.next() < peer.next && peer.gap != Some(slot) {
            peer.gap = Some(slot);
            peer.begin_again(slot, now);
            if peer.next <= base {
                let offset = peer.offset;
                peer.progressed = now;
                self.send_snapshot(from, ballot, offset, effects);
            }
        }
    }
}
