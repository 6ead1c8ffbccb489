//! Phase 1 of Multi-Paxos. It runs once per ballot, for all slots.
//!
//! A candidate starts with a pre-vote, so that no member promises the ballot of a candidate that cannot lead. Once its
//! own promise is durable, the candidate compares the logs of a quorum. The log with the greatest last position
//! contains all slots that may be decided. The candidate pulls the entries that it lacks from this log, in parts. It
//! leads once it has these entries.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Following, Group, Role};
use crate::effects::{Effects, Event};
use crate::entry::{Claim, Entry, Position};
use crate::ids::{Ballot, Instant, NodeId};
use crate::message::{MastershipEnd, Message};
use crate::options::Options;
use crate::simulation::Mutant;

#[derive(Debug)]
pub(super) struct Candidacy {
    ballot: Ballot,
    is_pre_vote: bool,
    /// Claim of this node, determined before phase 1. Each node that applies the claim compares it with the mastership.
    claim: Claim,
    over: MastershipEnd,
    since: Instant,
    sent: Instant,
    /// Number of rejections by members whose last promised ballot is lower than the ballot of this candidacy.
    rejections: u32,
    promises: BTreeMap<NodeId, Promise>,
    pulling: Option<Pulling>,
}

#[derive(Clone, Copy, Debug)]
struct Promise {
    last: Position,
    /// Latest possible instant at which a leader proposed the last lease renewal in the log of the node that made this
    /// promise.
    last_renewal: Instant,
}

#[derive(Clone, Copy, Debug)]
struct Pulling {
    from: NodeId,
    /// Position up to which this node's log equals the log of `from`.
    through: Position,
    /// Number of received bytes of the snapshot that precedes the entries.
    offset: u64,
}

impl Candidacy {
    /// Returns true if this candidacy is in phase 1, not in the pre-vote, and has made progress recently.
    pub(super) fn is_active(&self, now: Instant, options: &Options) -> bool {
        !self.is_pre_vote && now.since(self.since) < 4 * options.resend
    }
}

/// Conditions of the next candidacy.
#[derive(Debug, Default)]
pub(super) struct CandidacyConditions {
    /// Instant since which all conditions of a candidacy hold; `None` if a condition does not hold.
    pub(super) since: Option<Instant>,
    /// Number of candidacies since this node last decided a slot.
    pub(super) attempts: u32,
    /// Greatest round of a ballot in the rejections that this node has received.
    round: u64,
    /// Instant since which another node leads, although only this node may be master.
    pub(super) blocked_since: Option<Instant>,
}

impl Group {
    /// Starts a candidacy if this node knows no active leader and may be the next master.
    pub(super) fn consider(&mut self, now: Instant, effects: &mut Effects) {
        let Role::Follower(following) = &self.role else { return };
        let is_led = self.is_led_until(following).is_some_and(|until| now < until);
        let is_master_by_log = self.is_master_by_log(following);
        // As an acceptor, this node has a promise that is not durable yet. Another candidate may soon lead with this
        // promise, so this node starts no candidacy.
        if !self.promise_synced {
            return;
        }
        self.leave(now, effects);
        let is_allowed = |over: MastershipEnd| self.uncommitted.has(self.me) && self.may_promise(self.me, over, now);
        let taking = self.may_take(now).filter(|(_, over)| is_allowed(*over));
        if let Some(taking) = taking.filter(|_| self.is_next_from().is_some_and(|from| now >= from)) {
            // Only this node may be the next master, and the present leader waits for the takeover. A pre-vote is
            // therefore not necessary.
            return self.campaign(taking, false, now, effects);
        }
        let taking = taking.filter(|_| !is_led || is_master_by_log);
        let Some(taking) = taking else {
            self.conditions.since = None;
            return;
        };
        let since = *self.conditions.since.get_or_insert(now);
        if now >= since + self.stagger() {
            self.campaign(taking, true, now, effects);
        }
    }

    /// Abandons the mastership of this node if another node has led for too long. The leader cannot become master
    /// before this node abandons the mastership, and this node may be unable to reach a quorum.
    fn leave(&mut self, now: Instant, effects: &mut Effects) {
        let Role::Follower(following) = &self.role else { return };
        if self.leaves_at(following).is_some_and(|at| now >= at) {
            self.abandon(now, effects);
            self.conditions.blocked_since = None;
        }
    }

    /// Returns the instant at which [`Group::leave`] is due; `None` if only a further message can make it due.
    fn leaves_at(&self, following: &Following) -> Option<Instant> {
        let is_left = self.has_abandoned(self.uncommitted.mastership.term);
        let at = self.conditions.blocked_since.filter(|_| !is_left)? + 16 * self.options.resend;
        self.is_led_until(following).filter(|until| at < *until).map(|_| at)
    }

    /// Delays the next candidacy, because another node has this node's promise and will probably lead soon. A candidacy
    /// with a greater ballot would only depose the other node. The delay is short, because the other node may be dead.
    pub(super) fn defer_candidacy(&mut self, now: Instant) {
        self.conditions.since = Some(now + self.options.stagger);
    }

    /// Returns true if this node is master according to its log. Returns false if the log lacks the first entry of the
    /// present leader, because the log may then be outdated. If the function returns true, no other node may be master,
    /// even if another node leads.
    pub(super) fn is_master_by_log(&self, following: &Following) -> bool {
        let has_its_first = following.leader.is_none_or(|ballot| self.log.last().ballot >= ballot);
        self.uncommitted.mastership.node == Some(self.me) && has_its_first
    }

    /// Returns the instant until which this node treats the leader as active after the leader's last message.
    pub(super) fn is_led_until(&self, following: &Following) -> Option<Instant> {
        following.leader.map(|_| following.last_contact + 3 * self.options.resend)
    }

    /// Returns the instant at which [`Group::consider`] is due.
    pub(super) fn considers_at(&self, following: &Following) -> Option<Instant> {
        if !self.uncommitted.has(self.me) || !self.promise_synced {
            return None;
        }
        let (taken, (_, over)) = self.may_take_from()?;
        let from = taken.max(self.may_promise_from(self.me, over)?);
        let next = self.is_next_from().map(|next| next.max(from));
        let is_master_by_log = self.is_master_by_log(following);
        let free = self.is_led_until(following).filter(|_| !is_master_by_log).map_or(from, |until| until.max(from));
        // The first tick at or after the instant `free` sets `conditions.since`.
        let free = self.conditions.since.map_or(free, |since| free.max(since + self.stagger()));
        [next, self.leaves_at(following), Some(free)].into_iter().flatten().min()
    }

    /// Returns the delay of the next candidacy. The delay differs between nodes and attempts, and the maximum delay
    /// grows with each attempt.
    fn stagger(&self) -> Duration {
        let attempts = self.conditions.attempts;
        if attempts == 0 && self.committed.mastership.node == Some(self.me) {
            return Duration::ZERO;
        }
        let mixed = scatter(u64::from(self.me.0) << 40 ^ u64::from(self.id.0) << 16 ^ u64::from(attempts));
        let most = self.options.stagger * (1 << attempts.min(5));
        most * u32::try_from(mixed % 1_000).expect("a number below 1,000 fits into 32 bits") / 1_000
    }

    pub(super) fn campaign(
        &mut self,
        (claim, over): (Claim, MastershipEnd),
        is_pre_vote: bool,
        now: Instant,
        effects: &mut Effects,
    ) {
        let round = self.promised.round.max(self.conditions.round) + 1;
        let ballot = Ballot { round, node: self.me };
        self.conditions.since = None;
        self.conditions.attempts = self.conditions.attempts.saturating_add(1);
        let (promises, pulling) = (BTreeMap::new(), None);
        let (since, sent, rejections) = (now, now, 0);
        let candidacy = Candidacy { ballot, is_pre_vote, claim, over, since, sent, rejections, promises, pulling };
        self.role = Role::Candidate(candidacy);
        if !is_pre_vote {
            self.conditions.blocked_since = None;
            self.promise(ballot, None, effects);
        }
        self.prepare(effects);
        self.count_promises(now, effects);
    }

    /// Sends a prepare message to each member that has not promised the candidate's ballot.
    fn prepare(&self, effects: &mut Effects) {
        let Role::Candidate(candidacy) = &self.role else { return };
        let message =
            Message::Prepare { ballot: candidacy.ballot, pre_vote: candidacy.is_pre_vote, over: candidacy.over };
        for member in self.uncommitted.members.iter().filter(|member| **member != self.me) {
            if !candidacy.promises.contains_key(member) {
                self.send(*member, message.clone(), effects);
            }
        }
    }

    /// Returns the time limit of a candidacy without progress. The limit doubles with each attempt.
    fn candidacy_timeout(&self) -> Duration {
        4 * self.options.resend * (1 << self.conditions.attempts.min(6))
    }

    /// Returns the instant at which [`Group::retry_candidacy`] is due.
    pub(super) fn retries_at(&self, candidacy: &Candidacy) -> Instant {
        (candidacy.sent + self.options.resend).min(candidacy.since + self.candidacy_timeout())
    }

    pub(super) fn retry_candidacy(&mut self, now: Instant, effects: &mut Effects) {
        let candidacy_timeout = self.candidacy_timeout();
        let Role::Candidate(candidacy) = &mut self.role else { return };
        if now >= candidacy.since + candidacy_timeout {
            self.abandon(now, effects);
            return self.follow(None, now);
        }
        if now.since(candidacy.sent) < self.options.resend {
            return;
        }
        candidacy.sent = now;
        match candidacy.pulling {
            Some(_) => self.pull(effects),
            None => self.prepare(effects),
        }
    }

    pub(super) fn handle_reject(&mut self, ballot: Ballot, promised: Ballot, now: Instant, effects: &mut Effects) {
        if ballot.node == self.me {
            self.conditions.round = self.conditions.round.max(promised.round);
        }
        if let Role::Candidate(candidacy) = &mut self.role
            && candidacy.ballot == ballot
            && promised < ballot
        {
            // The candidate repeats its prepare message soon, because the acceptor may have received the last renewal
            // of the lease slightly later than the candidate. The delay grows with each rejection, because the acceptor
            // may also know a lease that is not over.
            let pause = (self.options.stagger / 2 * (1 << candidacy.rejections.min(10))).min(self.options.resend);
            candidacy.rejections += 1;
            candidacy.sent = candidacy.sent.min(now + pause - self.options.resend);
            return;
        }
        if matches!(&self.role, Role::Candidate(candidacy) if candidacy.ballot == ballot && candidacy.is_pre_vote && promised >= ballot)
        {
            // The next candidacy uses a greater ballot.
            return self.follow(None, now);
        }
        let is_mine = match &self.role {
            Role::Candidate(candidacy) => candidacy.ballot == ballot && !candidacy.is_pre_vote,
            Role::Leader(leading) => leading.ballot == ballot,
            Role::Follower(_) => false,
        };
        if is_mine && promised > ballot {
            self.step_down(now, effects);
        }
    }

    pub(super) fn handle_promise(
        &mut self,
        from: NodeId,
        (ballot, pre_vote): (Ballot, bool),
        (last, idle): (Position, Duration),
        now: Instant,
        effects: &mut Effects,
    ) {
        let Role::Candidate(candidacy) = &mut self.role else { return };
        if (candidacy.ballot, candidacy.is_pre_vote) != (ballot, pre_vote) {
            return;
        }
        let last_renewal = now - self.options.shrunk(idle);
        candidacy.promises.entry(from).or_insert(Promise { last, last_renewal });
        candidacy.since = now;
        self.count_promises(now, effects);
    }

    pub(super) fn count_promises(&mut self, now: Instant, effects: &mut Effects) {
        let own = Promise { last: self.log.last(), last_renewal: self.lease.last_renewal };
        let Role::Candidate(candidacy) = &mut self.role else { return };
        if candidacy.pulling.is_some() {
            return;
        }
        if candidacy.is_pre_vote || self.promise_synced {
            candidacy.promises.insert(self.me, own);
        } else if !self.options.deviation.is(Mutant::LeadsBeforeSync) {
            // The candidate waits until its own promise is durable. After a restart without this promise, this node
            // could lead by the same ballot again and propose different entries.
            return;
        }
        let promises = candidacy.promises.iter().filter(|(node, _)| self.uncommitted.has(**node));
        if promises.clone().count() < self.uncommitted.quorum() {
            return;
        }
        if candidacy.is_pre_vote {
            return self.start_phase_one(now, effects);
        }
        let ahead = promises.max_by_key(|(node, promise)| (promise.last, **node == self.me));
        let (&from, ahead) = ahead.expect("a quorum has at least one member");
        if ahead.last <= own.last || self.options.deviation.is(Mutant::IgnoresLogAhead) {
            return self.lead(now, effects);
        }
        // If this node's log and the log that is ahead end with the same ballot, the log that is ahead contains this
        // node's log.
        let is_same = ahead.last.ballot == own.last.ballot;
        let decided =
            self.log.position(self.decided).expect("the last decided slot is in the log or is the base of the log");
        let through = if is_same { own.last } else { decided };
        candidacy.pulling = Some(Pulling { from, through, offset: 0 });
        self.pull(effects);
    }

    fn start_phase_one(&mut self, now: Instant, effects: &mut Effects) {
        let Role::Candidate(candidacy) = &mut self.role else { return };
        candidacy.is_pre_vote = false;
        self.conditions.blocked_since = None;
        candidacy.promises.clear();
        (candidacy.since, candidacy.sent) = (now, now);
        let ballot = candidacy.ballot;
        self.promise(ballot, None, effects);
        self.prepare(effects);
    }

    fn pull(&self, effects: &mut Effects) {
        let Role::Candidate(Candidacy { ballot, pulling: Some(pulling), .. }) = &self.role else { return };
        let Pulling { from, through: after, offset } = *pulling;
        self.send(from, Message::Pull { ballot: *ballot, after, offset }, effects);
    }

    /// Sends entries or a part of the snapshot to a candidate. The candidate has this node's promise, so this node has
    /// not changed its log since it sent the promise.
    pub(super) fn handle_pull(
        &mut self,
        from: NodeId,
        (ballot, after, offset): (Ballot, Position, u64),
        now: Instant,
        effects: &mut Effects,
    ) {
        if ballot != self.promised || ballot.node != from {
            return self.send(from, Message::Reject { ballot, promised: self.promised }, effects);
        }
        self.note_taker(from, now);
        if after.slot < self.log.base().slot {
            return self.send_snapshot(from, ballot, offset, effects);
        }
        if self.log.position(after.slot) == Some(after) {
            let entries = self.log.after(after.slot, self.options.window_slots, self.options.chunk_bytes);
            self.send(from, Message::Pulled { ballot, after, entries }, effects);
        }
    }

    pub(super) fn pulls_from(&self, from: NodeId, ballot: Ballot) -> bool {
        matches!(&self.role, Role::Candidate(candidacy) if candidacy.ballot == ballot
            && candidacy.pulling.is_some_and(|pulling| pulling.from == from))
    }

    /// Returns the latest instant at which a leader may have proposed a lease renewal that the log of the node `from`
    /// contains. Returns `None` if this node is not a candidate with a promise of `from`.
    pub(super) fn pulled_before(&self, from: NodeId) -> Option<Instant> {
        let Role::Candidate(candidacy) = &self.role else { return None };
        candidacy.promises.get(&from).map(|promise| promise.last_renewal)
    }

    pub(super) fn handle_pulled(
        &mut self,
        from: NodeId,
        ballot: Ballot,
        after: Position,
        entries: Vec<Entry>,
        now: Instant,
        effects: &mut Effects,
    ) {
        let Role::Candidate(Candidacy { pulling: Some(pulling), .. }) = &self.role else { return };
        if pulling.through != after || !self.pulls_from(from, ballot) {
            return;
        }
        let Some(last) = entries.last() else { return };
        let through = Position { ballot: last.ballot, slot: crate::ids::Slot(after.slot.0 + entries.len() as u64) };
        let proposed_before = self.pulled_before(from).unwrap_or(now);
        self.append(after.slot, entries, proposed_before, effects);
        self.pull_on(Some(through), 0, now, effects);
        self.count_promises(now, effects);
    }

    /// Continues to pull entries. If `through` is `Some`, this node's log equals the log of the other node up to the
    /// position `through`. Otherwise, `offset` bytes of the snapshot have arrived.
    pub(super) fn pull_on(&mut self, through: Option<Position>, offset: u64, now: Instant, effects: &mut Effects) {
        let Role::Candidate(candidacy) = &mut self.role else { return };
        let Some(pulling) = &mut candidacy.pulling else { return };
        let has_more = through.map_or(offset > pulling.offset, |through| through.slot > pulling.through.slot);
        match through {
            Some(through) if has_more => (pulling.through, pulling.offset) = (through, 0),
            Some(_) => {}
            None => pulling.offset = offset,
        }
        // If the message contains no further entries or bytes, it is a duplicate, or the other node has a newer
        // snapshot. In the second case, this node requests the newer snapshot with its next pull message.
        if !has_more {
            return;
        }
        (candidacy.since, candidacy.sent) = (now, now);
        let promise = candidacy.promises.get(&pulling.from);
        if promise.is_some_and(|promise| pulling.through >= promise.last) {
            candidacy.pulling = None;
        } else {
            self.pull(effects);
        }
    }

    fn lead(&mut self, now: Instant, effects: &mut Effects) {
        let Role::Candidate(candidacy) = &self.role else { return };
        // If this node has appended entries since the candidacy began, its earlier claim may be void. The pulled
        // entries may allow a new claim.
        let claim = self.may_take(now).map_or(candidacy.claim, |(claim, _)| claim);
        let ballot = candidacy.ballot;
        if !self.uncommitted.has(self.me) {
            return self.follow(None, now);
        }
        effects.events.push((self.id, Event::Leads { ballot, after: self.log.last() }));
        self.role = Role::Leader(super::Leading::new(ballot, self.log.last().slot.next(), now));
        self.propose_claim(claim, now, effects);
    }
}

/// Maps similar numbers to very different numbers. The function is one step of the generator SplitMix64 with `number`
/// as its state.
fn scatter(number: u64) -> u64 {
    let mixed = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}
