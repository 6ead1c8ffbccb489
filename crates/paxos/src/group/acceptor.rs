//! Promises and votes of a member, and the messages that report the promises and votes once they are durable.

use super::{Following, Group, Incoming, Role, Unsynced};
use crate::effects::{Effects, Event, Record};
use crate::entry::{Entry, Position};
use crate::ids::{Ballot, Instant, NodeId, Slot};
use crate::message::{MastershipEnd, Message, Snapshot, SnapshotHead};
use crate::simulation::Mutant;

impl Group {
    pub(super) fn handle_prepare(
        &mut self,
        from: NodeId,
        (ballot, pre_vote, over): (Ballot, bool, MastershipEnd),
        now: Instant,
        effects: &mut Effects,
    ) {
        if ballot.node != from {
            return;
        }
        if !pre_vote && ballot >= self.promised {
            self.note_taker(from, now);
        }
        if ballot == self.promised && !pre_vote {
            // The candidate has repeated its prepare message. If this node's promise is not durable yet, this node
            // sends the promise once it is durable.
            if self.promise_synced {
                self.send_promise(from, now, effects);
            }
        } else if ballot <= self.promised
            || !self.may_promise(from, over, now)
            || pre_vote && self.is_with_another(from, now)
        {
            self.send(from, Message::Reject { ballot, promised: self.promised }, effects);
        } else if pre_vote {
            let (last, idle) = (self.log.last(), self.lease.idle(now));
            self.send(from, Message::Promise { ballot, pre_vote, last, idle }, effects);
        } else {
            self.step_down(now, effects);
            self.promise(ballot, Some(from), effects);
        }
    }

    /// Returns true if this node must reject the pre-vote of `candidate` because of another node. The other node may
    /// soon lead with this node's promise, or it leads and still sends entries that this node lacks. If candidates
    /// interrupted each other, no candidate would ever lead.
    fn is_with_another(&self, candidate: NodeId, now: Instant) -> bool {
        if self.promised.node == candidate {
            return false;
        }
        match &self.role {
            _ if !self.promise_synced => true,
            Role::Follower(following) => {
                let is_led = self.is_led_until(following).is_some_and(|until| now < until);
                let is_behind = self.log.last().ballot < self.promised;
                following.leader == Some(self.promised) && is_led && is_behind
            }
            Role::Candidate(candidacy) => candidacy.is_active(now, &self.options),
            Role::Leader(_) => false,
        }
    }

    pub(super) fn send_promise(&self, to: NodeId, now: Instant, effects: &mut Effects) {
        let (ballot, last, idle) = (self.promised, self.log.last(), self.lease.idle(now));
        self.send(to, Message::Promise { ballot, pre_vote: false, last, idle }, effects);
    }

    /// Makes this node a follower of the sender if the sender leads with the greatest ballot that this node knows.
    /// Returns true if this node then follows the sender.
    fn follows(&mut self, from: NodeId, ballot: Ballot, now: Instant, effects: &mut Effects) -> bool {
        if ballot < self.promised || ballot.node != from {
            self.send(from, Message::Reject { ballot, promised: self.promised }, effects);
            return false;
        }
        if ballot > self.promised {
            self.step_down(now, effects);
            self.promise(ballot, None, effects);
        }
        if !matches!(&self.role, Role::Follower(following) if following.leader == Some(ballot)) {
            self.follow(Some(ballot), now);
        }
        if let Role::Follower(following) = &mut self.role {
            following.last_contact = now;
        }
        if matches!(&self.role, Role::Follower(following) if self.is_master_by_log(following)) {
            self.conditions.blocked_since.get_or_insert(now);
        } else {
            // A leader is active and may become master, so this node does not plan a candidacy.
            (self.conditions.since, self.conditions.blocked_since) = (None, None);
        }
        true
    }

    pub(super) fn handle_accept(
        &mut self,
        from: NodeId,
        (ballot, after, entries): (Ballot, Position, Vec<Entry>),
        decided: Slot,
        now: Instant,
        effects: &mut Effects,
    ) {
        if !self.follows(from, ballot, now, effects) {
            return;
        }
        let end = Slot(after.slot.0 + entries.len() as u64);
        // Entries in a snapshot are decided, so they equal the entries of the leader.
        let is_linked = after.slot < self.log.base().slot || self.log.position(after.slot) == Some(after);
        if !is_linked {
            if self.options.deviation.is(Mutant::VotesWithGap) && after.slot > self.log.last().slot {
                return self.send(from, Message::Accepted { ballot, slot: end, decided: self.decided }, effects);
            }
            assert!(after.slot > self.decided, "decided slots contain the same entries in every log");
            let Role::Follower(following) = &self.role else { return };
            let known = following.matched.max(self.decided);
            let slot = if after.slot > self.log.last().slot { self.log.last().slot } else { known };
            return self.send(from, Message::Gap { ballot, slot }, effects);
        }
        let is_fresh = self.append(after.slot, entries, now, effects);
        let last = self.log.last().slot;
        let Role::Follower(following) = &mut self.role else { return };
        following.matched = following.matched.max(end);
        let known = if self.options.deviation.is(Mutant::DecidesUnmatched) { last } else { following.matched };
        if self.decided < decided.min(known) {
            self.conditions.attempts = 0;
        }
        self.decide(decided.min(known), now, effects);
        self.send_accepted(!is_fresh, effects);
    }

    /// Reports to the leader the last slot up to which this node's log is durable and equal to the leader's log. If
    /// `again` is true, the node may repeat an earlier report.
    pub(super) fn send_accepted(&mut self, again: bool, effects: &mut Effects) {
        let Role::Follower(Following { leader: Some(ballot), matched, reported, .. }) = &mut self.role else { return };
        let early = self.options.deviation.is(Mutant::VotesBeforeSync);
        if !self.promise_synced && !early {
            return;
        }
        let slot = if early { *matched } else { self.synced.min(*matched) };
        // If some entries are not durable yet, the member sends the report once they are durable. It repeats a report
        // because the network may have lost the earlier report.
        if slot > *reported || again && slot == *matched {
            *reported = slot.max(*reported);
            let (to, ballot) = (ballot.node, *ballot);
            self.send(to, Message::Accepted { ballot, slot, decided: self.decided }, effects);
        }
    }

    /// Queries other members for the last decided slot. A node may lack decided slots after a start, or after a promise
    /// to a candidate that does not lead. The query is necessary because a leader without new entries sends nothing to
    /// a member that has once confirmed all decided slots.
    pub(super) fn query_decided(&mut self, now: Instant, effects: &mut Effects) {
        let Role::Follower(following) = &self.role else { return };
        if self.queries_at(following).is_none_or(|at| now < at) {
            return;
        }
        let is_led = following.leader.is_some();
        let Role::Follower(following) = &mut self.role else { return };
        (following.queried, following.queries) = (now, following.queries.saturating_add(1));
        // The query states that this node knows no decided slot. The leader then sends the last decided slot, and this
        // node learns which leader to follow.
        let (ballot, slot, decided) = (self.promised, self.synced.min(self.decided), Slot(0));
        let others = self.uncommitted.members.iter().copied().filter(|node| !is_led && *node != ballot.node);
        for node in others.chain([ballot.node]).filter(|node| *node != self.me) {
            self.send(node, Message::Accepted { ballot, slot, decided }, effects);
        }
    }

    /// Returns the instant at which [`Group::query_decided`] is due; `None` if this node must not query.
    pub(super) fn queries_at(&self, following: &Following) -> Option<Instant> {
        // The first messages after a restart may be messages to the earlier process of this node.
        let is_led =
            following.leader.is_some() && self.echoes_until.is_none_or(|until| following.last_contact >= until);
        // A node without a promise has never received an entry, so it does not query.
        let may_query = !is_led && self.promised > Ballot::NONE && self.promise_synced;
        // A node that is not a member queries less often. The members may have removed it, and do not respond to a
        // removed node.
        let most = if self.uncommitted.has(self.me) { 5 } else { 10 };
        may_query.then(|| {
            following.last_contact.max(following.queried) + self.options.resend * (1 << following.queries.min(most))
        })
    }

    pub(super) fn handle_snapshot(
        &mut self,
        from: NodeId,
        (ballot, head): (Ballot, SnapshotHead),
        (offset, part): (u64, &[u8]),
        now: Instant,
        effects: &mut Effects,
    ) {
        let is_pulled = self.pulls_from(from, ballot);
        if !is_pulled && !self.follows(from, ballot, now, effects) {
            return;
        }
        let (slot, len) = (head.position.slot, head.len);
        let got = if slot <= self.decided { len } else { self.gather((from, ballot), &head, offset, part) };
        if slot > self.decided && got == len {
            let Some(Incoming { head, bytes, .. }) = self.incoming.take() else { return };
            let snapshot = Snapshot { position: head.position, state: head.state, application: bytes.into() };
            let proposed_before = self.pulled_before(from).unwrap_or(now);
            self.install(snapshot, proposed_before, effects);
        }
        if is_pulled {
            let through = (got == len).then_some(head.position);
            self.pull_on(through, got, now, effects);
        } else {
            if let Role::Follower(following) = &mut self.role
                && got == len
            {
                following.matched = following.matched.max(slot);
            }
            self.send(from, Message::Received { ballot, slot, offset: got }, effects);
            self.send_accepted(false, effects);
        }
    }

    /// Adds a part to the incoming snapshot. Returns the number of bytes of the snapshot that have arrived.
    fn gather(&mut self, (from, ballot): (NodeId, Ballot), head: &SnapshotHead, offset: u64, part: &[u8]) -> u64 {
        let is_same = |known: &Incoming| (known.from, known.ballot) == (from, ballot) && known.head == *head;
        if !self.incoming.as_ref().is_some_and(is_same) {
            self.incoming = Some(Incoming { from, ballot, head: head.clone(), bytes: Vec::new() });
        }
        let Some(incoming) = &mut self.incoming else { return 0 };
        if incoming.bytes.len() as u64 == offset {
            incoming.bytes.extend_from_slice(part);
        }
        incoming.bytes.len() as u64
    }

    fn install(&mut self, snapshot: Snapshot, proposed_before: Instant, effects: &mut Effects) {
        let position = snapshot.position;
        if self.log.position(position.slot) != Some(position) {
            self.unsync_after(self.decided);
        }
        effects.records.push((self.id, Record::Snapshot(snapshot.clone())));
        effects.events.push((self.id, Event::Installed(snapshot.clone())));
        self.rebase(snapshot);
        self.unsynced.push_back((effects.token, Unsynced::UpTo(position.slot)));
        (self.decided, self.committed) = (position.slot, self.base.clone());
        self.rebuild_uncommitted();
        self.lease.renewed_in_log(&self.uncommitted, proposed_before);
    }
}
