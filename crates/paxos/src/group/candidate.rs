//! Phase 1: once per ballot, for all slots.
//!
//! A candidate asks on trial first, so that nobody's promise rises for a ballot that does not come to lead. Of a quorum's logs it
//! takes the one that is ahead: it has all that may be decided. It pulls what it lacks of that one in parts, and leads, once its
//! own promise is durable.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Following, Group, Role};
use crate::effects::{Effects, Event};
use crate::entry::{Claim, Entry, Position};
use crate::ids::{Ballot, Instant, NodeId};
use crate::message::{Message, Over};
use crate::options::Options;
use crate::simulation::Mutant;

#[derive(Debug)]
pub(super) struct Candidacy {
    ballot: Ballot,
    is_trial: bool,
    /// As of before phase 1: what the log compares.
    claim: Claim,
    over: Over,
    since: Instant,
    asked: Instant,
    /// How often somebody refused though it has promised nothing greater.
    refusals: u32,
    promises: BTreeMap<NodeId, Promise>,
    pulling: Option<Pulling>,
}

#[derive(Clone, Copy, Debug)]
struct Promise {
    last: Position,
    /// Every slot of that log that renewed a lease was proposed before this.
    quiet_since: Instant,
}

#[derive(Clone, Copy, Debug)]
struct Pulling {
    from: NodeId,
    /// So far this log is that one.
    through: Position,
    /// Of a snapshot that comes first.
    offset: u64,
}

impl Candidacy {
    /// Whether it is no trial, and got on a short while ago.
    pub(super) fn is_in_earnest(&self, now: Instant, options: &Options) -> bool {
        !self.is_trial && now.since(self.since) < 4 * options.resend
    }
}

/// When to be a candidate.
#[derive(Debug, Default)]
pub(super) struct Ambition {
    /// Since when nothing spoke against it.
    pub(super) since: Option<Instant>,
    /// How often it came to nothing, since something was decided last.
    pub(super) attempts: u32,
    /// The greatest round that it heard of.
    round: u64,
    /// Since when this node is the only one who may be master, and hears another lead.
    pub(super) kept_off: Option<Instant>,
}

impl Group {
    /// Whether to be a candidate, now that nobody leads as far as this node knows.
    pub(super) fn consider(&mut self, now: Instant, effects: &mut Effects) {
        let Role::Follower(following) = &self.role else { return };
        let is_led = self.is_led_until(following).is_some_and(|until| now < until);
        let is_rightful = self.is_rightful(following);
        // It is an acceptor, too, and who has its promise, which is not durable yet, may lead by it.
        if !self.promise_synced {
            return;
        }
        self.leave(now, effects);
        let is_allowed = |over: Over| self.tip.has(self.me) && self.may_promise(self.me, over, now);
        let taking = self.may_take(now).filter(|(_, over)| is_allowed(*over));
        if let Some(taking) = taking.filter(|_| self.is_next_from().is_some_and(|from| now >= from)) {
            // Nobody else may, and who leads waits for it.
            return self.campaign(taking, false, now, effects);
        }
        let taking = taking.filter(|_| !is_led || is_rightful);
        let Some(taking) = taking else {
            self.ambition.since = None;
            return;
        };
        let since = *self.ambition.since.get_or_insert(now);
        if now >= since + self.stagger() {
            self.campaign(taking, true, now, effects);
        }
    }

    /// Who leads may not be master before this one has left, which a quorum may not hear.
    fn leave(&mut self, now: Instant, effects: &mut Effects) {
        let Role::Follower(following) = &self.role else { return };
        if self.leaves_at(following).is_some_and(|at| now >= at) {
            self.give_up(now, effects);
            self.ambition.kept_off = None;
        }
    }

    /// When [`Group::leave`] does something.
    fn leaves_at(&self, following: &Following) -> Option<Instant> {
        let is_left = self.has_given_up(self.tip.mastership.tenure);
        let at = self.ambition.kept_off.filter(|_| !is_left)? + 16 * self.options.resend;
        self.is_led_until(following).filter(|until| at < *until).map(|_| at)
    }

    /// Another has this node's promise, and is to lead: a ballot beyond it would only depose it. Not for ever: it may be gone.
    pub(super) fn give_way(&mut self, now: Instant) {
        self.ambition.since = Some(now + self.options.stagger);
    }

    /// Whose log says that it is master is the only one who may be, whoever leads. But a log that does not have yet what who leads
    /// wrote first may be another.
    pub(super) fn is_rightful(&self, following: &Following) -> bool {
        let has_its_first = following.leader.is_none_or(|ballot| self.log.last().ballot >= ballot);
        self.tip.mastership.node == Some(self.me) && has_its_first
    }

    /// Who leads was heard of a short while ago.
    pub(super) fn is_led_until(&self, following: &Following) -> Option<Instant> {
        following.leader.map(|_| following.heard + 3 * self.options.resend)
    }

    /// When [`Group::consider`] does something.
    pub(super) fn considers_at(&self, following: &Following) -> Option<Instant> {
        if !self.tip.has(self.me) || !self.promise_synced {
            return None;
        }
        let (taken, (_, over)) = self.may_take_from()?;
        let from = taken.max(self.may_promise_from(self.me, over)?);
        let next = self.is_next_from().map(|next| next.max(from));
        let is_rightful = self.is_rightful(following);
        let free = self.is_led_until(following).filter(|_| !is_rightful).map_or(from, |until| until.max(from));
        // The first tick from then on notes it.
        let free = self.ambition.since.map_or(free, |since| free.max(since + self.stagger()));
        [next, self.leaves_at(following), Some(free)].into_iter().flatten().min()
    }

    /// Different for each node and attempt, and longer with each attempt.
    fn stagger(&self) -> Duration {
        let attempts = self.ambition.attempts;
        if attempts == 0 && self.agreed.mastership.node == Some(self.me) {
            return Duration::ZERO;
        }
        let mixed = scatter(u64::from(self.me.0) << 40 ^ u64::from(self.id.0) << 16 ^ u64::from(attempts));
        let most = self.options.stagger * (1 << attempts.min(5));
        most * u32::try_from(mixed % 1_000).expect("it is below 1,000") / 1_000
    }

    pub(super) fn campaign(
        &mut self,
        (claim, over): (Claim, Over),
        is_trial: bool,
        now: Instant,
        effects: &mut Effects,
    ) {
        let round = self.promised.round.max(self.ambition.round) + 1;
        let ballot = Ballot { round, node: self.me };
        self.ambition.since = None;
        self.ambition.attempts = self.ambition.attempts.saturating_add(1);
        let (promises, pulling) = (BTreeMap::new(), None);
        let (since, asked, refusals) = (now, now, 0);
        let candidacy = Candidacy { ballot, is_trial, claim, over, since, asked, refusals, promises, pulling };
        self.role = Role::Candidate(candidacy);
        if !is_trial {
            self.ambition.kept_off = None;
            self.promise(ballot, None, effects);
        }
        self.prepare(effects);
        self.count_promises(now, effects);
    }

    /// Asks those who have not answered.
    fn prepare(&self, effects: &mut Effects) {
        let Role::Candidate(candidacy) = &self.role else { return };
        let message = Message::Prepare { ballot: candidacy.ballot, trial: candidacy.is_trial, over: candidacy.over };
        for member in self.tip.members.iter().filter(|member| **member != self.me) {
            if !candidacy.promises.contains_key(member) {
                self.send(*member, message.clone(), effects);
            }
        }
    }

    /// What did not suffice is given longer the next time.
    fn patience(&self) -> Duration {
        4 * self.options.resend * (1 << self.ambition.attempts.min(6))
    }

    /// When [`Group::ask_again`] does something.
    pub(super) fn asks_again_at(&self, candidacy: &Candidacy) -> Instant {
        (candidacy.asked + self.options.resend).min(candidacy.since + self.patience())
    }

    pub(super) fn ask_again(&mut self, now: Instant, effects: &mut Effects) {
        let patience = self.patience();
        let Role::Candidate(candidacy) = &mut self.role else { return };
        if now >= candidacy.since + patience {
            self.give_up(now, effects);
            return self.follow(None, now);
        }
        if now.since(candidacy.asked) < self.options.resend {
            return;
        }
        candidacy.asked = now;
        match candidacy.pulling {
            Some(_) => self.pull(effects),
            None => self.prepare(effects),
        }
    }

    pub(super) fn hear_refuse(&mut self, ballot: Ballot, promised: Ballot, now: Instant, effects: &mut Effects) {
        if ballot.node == self.me {
            self.ambition.round = self.ambition.round.max(promised.round);
        }
        if let Role::Candidate(candidacy) = &mut self.role
            && candidacy.ballot == ballot
            && promised < ballot
        {
            // It saw the lease a little later, and is asked again a little later; if it knows one that is not over, not so soon again.
            let pause = (self.options.stagger / 2 * (1 << candidacy.refusals.min(10))).min(self.options.resend);
            candidacy.refusals += 1;
            candidacy.asked = candidacy.asked.min(now + pause - self.options.resend);
            return;
        }
        if matches!(&self.role, Role::Candidate(candidacy) if candidacy.ballot == ballot && candidacy.is_trial && promised >= ballot)
        {
            // Again, with a greater one.
            return self.follow(None, now);
        }
        let is_mine = match &self.role {
            Role::Candidate(candidacy) => candidacy.ballot == ballot && !candidacy.is_trial,
            Role::Leader(leading) => leading.ballot == ballot,
            Role::Follower(_) => false,
        };
        if is_mine && promised > ballot {
            self.step_down(now, effects);
        }
    }

    pub(super) fn hear_promise(
        &mut self,
        from: NodeId,
        (ballot, trial): (Ballot, bool),
        (last, idle): (Position, Duration),
        now: Instant,
        effects: &mut Effects,
    ) {
        let Role::Candidate(candidacy) = &mut self.role else { return };
        if (candidacy.ballot, candidacy.is_trial) != (ballot, trial) {
            return;
        }
        let quiet_since = now - self.options.shrunk(idle);
        candidacy.promises.entry(from).or_insert(Promise { last, quiet_since });
        candidacy.since = now;
        self.count_promises(now, effects);
    }

    pub(super) fn count_promises(&mut self, now: Instant, effects: &mut Effects) {
        let own = Promise { last: self.log.last(), quiet_since: self.lease.quiet_since };
        let Role::Candidate(candidacy) = &mut self.role else { return };
        if candidacy.pulling.is_some() {
            return;
        }
        if candidacy.is_trial || self.promise_synced {
            candidacy.promises.insert(self.me, own);
        } else if !self.options.deviation.is(Mutant::LeadsBeforeSync) {
            // Started anew without it, this node would lead by the same ballot again, and propose something else.
            return;
        }
        let promises = candidacy.promises.iter().filter(|(node, _)| self.tip.has(**node));
        if promises.clone().count() < self.tip.quorum() {
            return;
        }
        if candidacy.is_trial {
            return self.prepare_in_earnest(now, effects);
        }
        let ahead = promises.max_by_key(|(node, promise)| (promise.last, **node == self.me));
        let (&from, ahead) = ahead.expect("a quorum is at least one");
        if ahead.last <= own.last || self.options.deviation.is(Mutant::IgnoresLogAhead) {
            return self.lead(now, effects);
        }
        // With the same last ballot, the one that is ahead has all of this one.
        let is_same = ahead.last.ballot == own.last.ballot;
        let decided = self.log.position(self.decided).expect("what is decided is here");
        let through = if is_same { own.last } else { decided };
        candidacy.pulling = Some(Pulling { from, through, offset: 0 });
        self.pull(effects);
    }

    fn prepare_in_earnest(&mut self, now: Instant, effects: &mut Effects) {
        let Role::Candidate(candidacy) = &mut self.role else { return };
        candidacy.is_trial = false;
        self.ambition.kept_off = None;
        candidacy.promises.clear();
        (candidacy.since, candidacy.asked) = (now, now);
        let ballot = candidacy.ballot;
        self.promise(ballot, None, effects);
        self.prepare(effects);
    }

    fn pull(&self, effects: &mut Effects) {
        let Role::Candidate(Candidacy { ballot, pulling: Some(pulling), .. }) = &self.role else { return };
        let Pulling { from, through: after, offset } = *pulling;
        self.send(from, Message::Pull { ballot: *ballot, after, offset }, effects);
    }

    /// For a candidate that this node has promised, and so its log is as it was said to be.
    pub(super) fn hear_pull(
        &mut self,
        from: NodeId,
        (ballot, after, offset): (Ballot, Position, u64),
        now: Instant,
        effects: &mut Effects,
    ) {
        if ballot != self.promised || ballot.node != from {
            return self.send(from, Message::Refuse { ballot, promised: self.promised }, effects);
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

    /// Before when all was proposed that comes from there.
    pub(super) fn pulled_since(&self, from: NodeId) -> Option<Instant> {
        let Role::Candidate(candidacy) = &self.role else { return None };
        candidacy.promises.get(&from).map(|promise| promise.quiet_since)
    }

    pub(super) fn hear_pulled(
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
        let seen = self.pulled_since(from).unwrap_or(now);
        self.append(after.slot, entries, seen, effects);
        self.pull_on(Some(through), 0, now, effects);
        self.count_promises(now, effects);
    }

    /// The log is the other's up to `through`, or so many bytes of a snapshot are here.
    pub(super) fn pull_on(&mut self, through: Option<Position>, offset: u64, now: Instant, effects: &mut Effects) {
        let Role::Candidate(candidacy) = &mut self.role else { return };
        let Some(pulling) = &mut candidacy.pulling else { return };
        let has_more = through.map_or(offset > pulling.offset, |through| through.slot > pulling.through.slot);
        match through {
            Some(through) if has_more => (pulling.through, pulling.offset) = (through, 0),
            Some(_) => {}
            None => pulling.offset = offset,
        }
        // It came twice; or the other has another snapshot by now, and is asked for that after a while.
        if !has_more {
            return;
        }
        (candidacy.since, candidacy.asked) = (now, now);
        let promise = candidacy.promises.get(&pulling.from);
        if promise.is_some_and(|promise| pulling.through >= promise.last) {
            candidacy.pulling = None;
        } else {
            self.pull(effects);
        }
    }

    fn lead(&mut self, now: Instant, effects: &mut Effects) {
        let Role::Candidate(candidacy) = &self.role else { return };
        // Of a log that grew since, the claim from before is void. By what came with it, it may be known to be over, too.
        let claim = self.may_take(now).map_or(candidacy.claim, |(claim, _)| claim);
        let ballot = candidacy.ballot;
        if !self.tip.has(self.me) {
            return self.follow(None, now);
        }
        effects.events.push((self.id, Event::Leads { ballot, after: self.log.last() }));
        self.role = Role::Leader(super::Leading::new(ballot, self.log.last().slot.next(), now));
        self.wish(claim, now, effects);
    }
}

/// SplitMix64's last step: close numbers become far ones.
fn scatter(number: u64) -> u64 {
    let mixed = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}
