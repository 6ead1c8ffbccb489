//! What a member promises and votes, and what it says of it once it is durable.

use super::{Following, Group, Incoming, Role, Unsynced};
use crate::effects::{Effects, Event, Record};
use crate::entry::{Entry, Position};
use crate::ids::{Ballot, Instant, NodeId, Slot};
use crate::message::{Message, Over, Snapshot, SnapshotHead};
use crate::simulation::Mutant;

impl Group {
    pub(super) fn hear_prepare(
        &mut self,
        from: NodeId,
        (ballot, trial, over): (Ballot, bool, Over),
        now: Instant,
        effects: &mut Effects,
    ) {
        if ballot.node != from {
            return;
        }
        if !trial && ballot >= self.promised {
            self.note_taker(from, now);
        }
        if ballot == self.promised && !trial {
            // Again; or the answer is on its way, once it is durable.
            if self.promise_synced {
                self.tell_promise(from, now, effects);
            }
        } else if ballot <= self.promised
            || !self.may_promise(from, over, now)
            || trial && self.is_with_another(from, now)
        {
            self.send(from, Message::Refuse { ballot, promised: self.promised }, effects);
        } else if trial {
            let (last, idle) = (self.log.last(), self.lease.idle(now));
            self.send(from, Message::Promise { ballot, trial, last, idle }, effects);
        } else {
            self.step_down(now, effects);
            self.promise(ballot, Some(from), effects);
        }
    }

    /// Whether another is about to lead by this node's promise, or leads and is about to bring this node's log up to its own: with
    /// one who undoes that before it is done, and another who undoes his, nobody would ever have.
    fn is_with_another(&self, candidate: NodeId, now: Instant) -> bool {
        if self.promised.node == candidate {
            return false;
        }
        match &self.role {
            _ if !self.promise_synced => true,
            Role::Follower(following) => {
                let is_heard = self.is_led_until(following).is_some_and(|until| now < until);
                let is_behind = self.log.last().ballot < self.promised;
                following.leader == Some(self.promised) && is_heard && is_behind
            }
            Role::Candidate(candidacy) => candidacy.is_in_earnest(now, &self.options),
            Role::Leader(_) => false,
        }
    }

    pub(super) fn tell_promise(&self, to: NodeId, now: Instant, effects: &mut Effects) {
        let (ballot, last, idle) = (self.promised, self.log.last(), self.lease.idle(now));
        self.send(to, Message::Promise { ballot, trial: false, last, idle }, effects);
    }

    /// Whether the sender leads by the greatest ballot that this node knows; if so, it is followed.
    fn follows(&mut self, from: NodeId, ballot: Ballot, now: Instant, effects: &mut Effects) -> bool {
        if ballot < self.promised || ballot.node != from {
            self.send(from, Message::Refuse { ballot, promised: self.promised }, effects);
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
            following.heard = now;
        }
        if matches!(&self.role, Role::Follower(following) if self.is_rightful(following)) {
            self.ambition.kept_off.get_or_insert(now);
        } else {
            // Who is heard of is in nobody's way.
            (self.ambition.since, self.ambition.kept_off) = (None, None);
        }
        true
    }

    pub(super) fn hear_accept(
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
        // What a snapshot has is decided, and so the leader's.
        let is_linked = after.slot < self.log.base().slot || self.log.position(after.slot) == Some(after);
        if !is_linked {
            if self.options.deviation.is(Mutant::VotesWithGap) && after.slot > self.log.last().slot {
                return self.send(from, Message::Accepted { ballot, slot: end, decided: self.decided }, effects);
            }
            assert!(after.slot > self.decided, "what is decided is the same in every log");
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
            self.ambition.attempts = 0;
        }
        self.decide(decided.min(known), now, effects);
        self.tell_accepted(!is_fresh, effects);
    }

    /// What is durable here and the leader's; `again` even if it was said before.
    pub(super) fn tell_accepted(&mut self, again: bool, effects: &mut Effects) {
        let Role::Follower(Following { leader: Some(ballot), matched, told, .. }) = &mut self.role else { return };
        let early = self.options.deviation.is(Mutant::VotesBeforeSync);
        if !self.promise_synced && !early {
            return;
        }
        let slot = if early { *matched } else { self.synced.min(*matched) };
        // Who has more than is synced says so once it is synced; who lost a message has not.
        if slot > *told || again && slot == *matched {
            *told = slot.max(*told);
            let (to, ballot) = (ballot.node, *ballot);
            self.send(to, Message::Accepted { ballot, slot, decided: self.decided }, effects);
        }
    }

    /// Who starts, or has promised somebody who does not lead, may not know all that is decided; and a leader that has nothing to
    /// write says nothing to who knew it once.
    pub(super) fn ask_around(&mut self, now: Instant, effects: &mut Effects) {
        let Role::Follower(following) = &self.role else { return };
        if self.asks_around_at(following).is_none_or(|at| now < at) {
            return;
        }
        let is_led = following.leader.is_some();
        let Role::Follower(following) = &mut self.role else { return };
        (following.asked, following.asks) = (now, following.asks.saturating_add(1));
        // As if it knew of nothing that is decided: so it is told, and knows whom to follow.
        let (ballot, slot, decided) = (self.promised, self.synced.min(self.decided), Slot(0));
        let others = self.tip.members.iter().copied().filter(|node| !is_led && *node != ballot.node);
        for node in others.chain([ballot.node]).filter(|node| *node != self.me) {
            self.send(node, Message::Accepted { ballot, slot, decided }, effects);
        }
    }

    /// When [`Group::ask_around`] does something.
    pub(super) fn asks_around_at(&self, following: &Following) -> Option<Instant> {
        // What it hears at first may have been sent to the process before it.
        let is_led = following.leader.is_some() && self.echoes_until.is_none_or(|until| following.heard >= until);
        // Who has promised nobody was never told anything.
        let may_ask = !is_led && self.promised > Ballot::NONE && self.promise_synced;
        // Who is no member may have been dismissed, and nobody answers.
        let most = if self.tip.has(self.me) { 5 } else { 10 };
        may_ask.then(|| following.heard.max(following.asked) + self.options.resend * (1 << following.asks.min(most)))
    }

    pub(super) fn hear_snapshot(
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
            let snapshot = Snapshot { position: head.position, agreed: head.agreed, application: bytes.into() };
            let seen = self.pulled_since(from).unwrap_or(now);
            self.install(snapshot, seen, effects);
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
            self.tell_accepted(false, effects);
        }
    }

    /// How much of it is here.
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

    fn install(&mut self, snapshot: Snapshot, seen: Instant, effects: &mut Effects) {
        let position = snapshot.position;
        if self.log.position(position.slot) != Some(position) {
            self.unsync_after(self.decided);
        }
        effects.records.push((self.id, Record::Snapshot(snapshot.clone())));
        effects.events.push((self.id, Event::Installed(snapshot.clone())));
        self.rebase(snapshot);
        self.unsynced.push_back((effects.token, Unsynced::UpTo(position.slot)));
        (self.decided, self.agreed) = (position.slot, self.base.clone());
        self.read_tip();
        self.lease.renewed_in_log(&self.tip, seen);
    }
}
