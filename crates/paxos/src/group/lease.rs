//! Who may serve, and until when; who may follow, and from when.
//!
//! A master serves until its lease is over by its own clock, counted from before it proposed what renewed it. Two lines of
//! defence keep others from being master until then, and each suffices alone:
//! *acceptors* promise nobody else while the lease of what they accepted may run, and *the log* compares what a candidate knew
//! when it had waited with what there is where its `BeMaster` lies. Both count from when they saw a slot, which is after it was
//! proposed, and for longer by what clocks may differ. A node that starts counts from there, as it may have seen one just before.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Group, Leading, Role};
use crate::agreed::Agreed;
use crate::effects::{Effects, Event, Refusal};
use crate::entry::{BeMaster, Claim, Entry, Shorten, Value};
use crate::ids::{Instant, NodeId, Slot, Tenure};
use crate::message::{Message, Over};
use crate::options::Options;
use crate::simulation::Mutant;

/// Before all that a clock says.
const AT_ONCE: Instant = Instant(0);

#[derive(Debug)]
pub(super) struct Lease {
    /// Every slot in the log that renewed the lease of the present mastership was proposed before this.
    pub(super) quiet_since: Instant,
    /// Likewise, the one that shortened it.
    shortened_since: Instant,
    /// This node's liveness epoch, and until when it counts.
    pub(super) of_node: (u64, Instant),
    /// Of other nodes: all up to this are over.
    expired: BTreeMap<NodeId, u64>,

    /// As master: by what was decided in this mastership.
    until: Option<(Tenure, Instant)>,
    /// By what this node wrote itself, decided or not.
    cap: Option<(Tenure, Instant)>,
    yielded: Option<Yielded>,
    /// What this node was master by, and left to whoever can.
    given_up: Option<GivenUp>,
    /// As who follows: the master of this left it to this node.
    consent: Option<Tenure>,
}

/// The master of this stopped for another.
#[derive(Clone, Copy, Debug)]
struct Yielded {
    tenure: Tenure,
    to: NodeId,
    /// When it did, or heard that one prepare or pull last.
    at: Instant,
    is_told: bool,
}

#[derive(Clone, Copy, Debug)]
struct GivenUp {
    tenure: Tenure,
    at: Instant,
    /// When the others were told last, and how often.
    told: Instant,
    times: u32,
}

impl Lease {
    pub(super) fn at_start(now: Instant, options: &Options) -> Lease {
        let forgets = options.deviation.is(Mutant::ForgetsWaitAtRestart);
        let since = if forgets { Instant::default() } else { now };
        Lease {
            quiet_since: since,
            shortened_since: since,
            of_node: (0, Instant::default()),
            expired: BTreeMap::new(),
            until: None,
            cap: None,
            yielded: None,
            given_up: None,
            consent: None,
        }
    }

    pub(super) fn note_expired(&mut self, node: NodeId, liveness: u64) {
        let known = self.expired.entry(node).or_default();
        *known = liveness.max(*known);
    }

    /// The log has one more slot that renews, proposed before `seen`.
    pub(super) fn renewed_in_log(&mut self, tip: &Agreed, seen: Instant) {
        self.quiet_since = self.quiet_since.max(seen);
        if tip.mastership.shortened.is_some() {
            self.shortened_since = self.shortened_since.max(seen);
        }
    }

    pub(super) fn idle(&self, now: Instant) -> Duration {
        now.since(self.quiet_since)
    }
}

/// As master.
impl Group {
    /// Until when this node serves, by its own clock; `None` if it is not master. It may be over.
    #[must_use]
    pub fn serves_until(&self) -> Option<Instant> {
        let Role::Leader(leading) = &self.role else { return None };
        let mastership = &self.agreed.mastership;
        if mastership.node != Some(self.me) || mastership.tenure.ballot != leading.ballot || self.has_yielded() {
            return None;
        }
        let by_decision = self.lease.until.filter(|(tenure, _)| *tenure == mastership.tenure).map(|(_, until)| until);
        let (liveness, until) = self.lease.of_node;
        // Who has that it is master anew, decided or not, judges by that; there is one such slot at a time, the tip's. (What shortens
        // its lease caps it.)
        let tip = &self.tip.mastership;
        let is_told = tip.tenure == mastership.tenure || tip.liveness == liveness;
        let by_node = (liveness > 0 && mastership.liveness == liveness && is_told).then_some(until);
        let until = by_decision.max(by_node)?;
        let cap = self.lease.cap.filter(|(tenure, _)| *tenure == mastership.tenure);
        Some(cap.map_or(until, |(_, cap)| cap.min(until)))
    }

    fn has_yielded(&self) -> bool {
        let tenure = self.agreed.mastership.tenure;
        self.has_given_up(tenure)
            || self.lease.yielded.is_some_and(|yielded| yielded.tenure == tenure)
                && !self.options.deviation.is(Mutant::ServesAfterConsent)
    }

    pub(super) fn has_given_up(&self, tenure: Tenure) -> bool {
        self.lease.given_up.is_some_and(|given_up| given_up.tenure == tenure)
    }

    /// A slot is decided; if it is the master's, its lease runs from before it was proposed.
    pub(super) fn lease_by_decision(
        &mut self,
        slot: Slot,
        entry: &Entry,
        renews: bool,
        now: Instant,
        effects: &mut Effects,
    ) {
        let Role::Leader(leading) = &mut self.role else { return };
        let proposed = leading.take_proposed(slot);
        let mastership = &self.agreed.mastership;
        let is_mine = mastership.node == Some(self.me) && mastership.tenure.ballot == leading.ballot;
        let Some(proposed) = proposed.filter(|_| renews && is_mine) else { return };
        let from = if self.options.deviation.is(Mutant::LeaseFromDecision) { now } else { proposed };
        self.lease.until = Some((mastership.tenure, from + self.options.lease));
        match entry.value {
            Value::BeMaster(_) => effects.events.push((self.id, Event::Serves { tenure: mastership.tenure })),
            Value::Shorten(shorten) if self.options.deviation.is(Mutant::ShortensFromDecision) => {
                self.lease.cap = Some((mastership.tenure, now + shorten.remaining));
            }
            _ => {}
        }
    }

    pub(super) fn take_over_or_renew(&mut self, now: Instant, effects: &mut Effects) {
        let Role::Leader(leading) = &self.role else { return };
        if leading.wish.is_some() {
            return;
        }
        let (liveness, until) = self.lease.of_node;
        let soon = now + self.options.lease / 3;
        let mastership = self.tip.mastership;
        if self.serves(now).is_none() {
            if let Some((claim, _)) = self.may_take(now) {
                self.wish(claim, now, effects);
            }
        } else if mastership.shortened.is_some() || self.is_capped() {
            // Its successor is named.
        } else if mastership.liveness != liveness && until > soon {
            self.wish(Claim::Own { tenure: mastership.tenure }, now, effects);
        } else if (mastership.liveness == 0 || until <= soon) && leading.proposed_last() + self.options.lease / 3 <= now
        {
            self.propose(Value::Noop, now, effects);
        }
    }

    /// When [`Group::take_over_or_renew`] does something, or the lease is over and what waits is to be refused.
    pub(super) fn renews_at(&self, leading: &Leading, now: Instant) -> Option<Instant> {
        let Some(served) = self.serves_until().filter(|until| now < *until) else {
            return self.may_take_from().filter(|_| leading.wish.is_none()).map(|(from, _)| from);
        };
        let mastership = self.tip.mastership;
        if leading.wish.is_some() || mastership.shortened.is_some() || self.is_capped() {
            return Some(served);
        }
        let (liveness, until) = self.lease.of_node;
        let third = self.options.lease / 3;
        let quiet = leading.proposed_last() + third;
        let renews = match mastership.liveness {
            renewed_by if renewed_by != liveness && until > now + third => now,
            0 => quiet,
            _ => quiet.max(until - third),
        };
        Some(renews.min(served))
    }

    /// Whom to ask instead of this node.
    pub(super) fn master_known(&self) -> Option<NodeId> {
        let mastership = &self.agreed.mastership;
        let yielded = self.lease.yielded.filter(|yielded| yielded.tenure == mastership.tenure);
        let named = yielded.map(|yielded| yielded.to).or(mastership.shortened.map(|shortened| shortened.to));
        named.or(mastership.node).filter(|node| *node != self.me)
    }

    fn is_capped(&self) -> bool {
        self.lease.cap.is_some_and(|(tenure, _)| tenure == self.agreed.mastership.tenure)
    }

    pub(super) fn wish(&mut self, claim: Claim, now: Instant, effects: &mut Effects) {
        let (liveness, until) = self.lease.of_node;
        let liveness = if until > now { liveness } else { 0 };
        let wish = BeMaster { node: self.me, liveness, claim, members: self.tip.members.clone() };
        let slot = self.propose(Value::BeMaster(wish), now, effects);
        if let Role::Leader(leading) = &mut self.role {
            leading.wish = Some(slot);
        }
    }

    pub(super) fn shorten(&mut self, to: NodeId, remaining: Duration, now: Instant, effects: &mut Effects) {
        let tenure = self.agreed.mastership.tenure;
        let is_settled = self.tip.mastership.tenure == tenure && self.tip.mastership.shortened.is_none();
        if self.serves(now).is_none() || !is_settled || to == self.me || !self.tip.has(to) {
            return;
        }
        let remaining = remaining.min(self.options.lease);
        // Before it is proposed: whoever sees it counts from later on.
        if !self.options.deviation.is(Mutant::ShortensFromDecision) {
            self.lease.cap = Some((tenure, now + remaining));
        }
        self.propose(Value::Shorten(Shorten { tenure, to, remaining }), now, effects);
    }

    pub(super) fn hear_ask(&mut self, from: NodeId, tenure: Tenure, now: Instant, effects: &mut Effects) {
        let is_its = self.agreed.mastership.tenure == tenure && self.tip.mastership.tenure == tenure;
        if let Some(yielded) = self.lease.yielded.as_mut().filter(|yielded| is_its && yielded.tenure == tenure) {
            if yielded.to == from {
                yielded.is_told = false;
                if !matches!(self.role, Role::Leader(_)) {
                    // It has stopped, and will have decided nothing more.
                    self.send(from, Message::Consent { tenure, taker: from }, effects);
                }
                return;
            }
        } else if is_its && self.tip.has(from) && self.serves(now).is_some() && !self.is_capped() {
            // Stop first, then say so.
            self.lease.yielded = Some(Yielded { tenure, to: from, at: now, is_told: false });
            if !self.options.deviation.is(Mutant::ServesAfterConsent) {
                self.refuse_waiting(Refusal::NotMaster(Some(from)), effects);
            }
            return;
        }
        self.send(from, Message::Decline { tenure }, effects);
    }

    /// It has the consent, and is about to take over.
    pub(super) fn note_taker(&mut self, from: NodeId, now: Instant) {
        if let Some(yielded) = self.lease.yielded.as_mut().filter(|yielded| yielded.to == from) {
            yielded.at = now;
        }
    }

    /// Once nothing of the old master's is left undecided.
    pub(super) fn consent(&mut self, effects: &mut Effects) {
        let is_drained = self.decided == self.log.last().slot;
        let tenure = self.agreed.mastership.tenure;
        if let Some(yielded) = &mut self.lease.yielded
            && yielded.tenure == tenure
            && is_drained
            && !yielded.is_told
        {
            yielded.is_told = true;
            let (to, taker) = (yielded.to, yielded.to);
            self.send(to, Message::Consent { tenure, taker }, effects);
        }
    }

    /// A master whose node is alive, but that gets nothing decided, or does not come to lead, would keep its paxos group from
    /// all others for ever: it stops, for whoever can do better. That more than one is told harms nobody: the first that
    /// follows voids it.
    pub(super) fn give_up(&mut self, now: Instant, effects: &mut Effects) {
        let (mastership, holds_others) = match &self.role {
            Role::Leader(_) => (&self.agreed.mastership, self.agreed.mastership.liveness > 0),
            // It does not serve by that: it does not lead. Others may know an earlier mastership of its alone, by its liveness.
            Role::Candidate(_) | Role::Follower(_) => {
                let by_liveness = [self.tip.mastership.liveness, self.agreed.mastership.liveness, self.lease.of_node.0];
                (&self.tip.mastership, by_liveness.into_iter().any(|liveness| liveness > 0))
            }
        };
        if mastership.node == Some(self.me) && holds_others {
            let tenure = mastership.tenure;
            let before = self.lease.given_up.filter(|given_up| given_up.tenure == tenure);
            let times = before.map_or(0, |given_up| given_up.times).saturating_add(1);
            self.lease.given_up = Some(GivenUp { tenure, at: now, told: now, times });
            self.tell_given_up(effects);
        }
    }

    pub(super) fn offer(&mut self, now: Instant, effects: &mut Effects) {
        if self.offers_at().is_none_or(|at| now < at) {
            return;
        }
        if let Some(given_up) = &mut self.lease.given_up {
            (given_up.told, given_up.times) = (now, given_up.times.saturating_add(1));
        }
        self.tell_given_up(effects);
    }

    /// When [`Group::offer`] does something.
    pub(super) fn offers_at(&self) -> Option<Instant> {
        let given_up = self.lease.given_up.filter(|given_up| given_up.tenure == self.tip.mastership.tenure)?;
        Some(given_up.told + self.options.resend * (1 << (given_up.times - 1).min(5)))
    }

    fn tell_given_up(&self, effects: &mut Effects) {
        let Some(GivenUp { tenure, .. }) = self.lease.given_up else { return };
        for taker in self.tip.members.iter().copied().filter(|member| *member != self.me) {
            self.send(taker, Message::Consent { tenure, taker }, effects);
        }
    }

    pub(super) fn lease_of_who_starts(&mut self, now: Instant) {
        if self.options.deviation.is(Mutant::RestartedServes) && self.agreed.mastership.node == Some(self.me) {
            let ballot = self.agreed.mastership.tenure.ballot;
            self.role = Role::Leader(Leading::new(ballot, self.log.last().slot.next(), now));
            self.lease.until = Some((self.agreed.mastership.tenure, now + self.options.lease));
        }
    }
}

/// As who may follow.
impl Group {
    /// What this node may claim, if anything, and what to tell acceptors.
    pub(super) fn may_take(&self, now: Instant) -> Option<(Claim, Over)> {
        self.may_take_from().filter(|(from, _)| now >= *from).map(|(_, taking)| taking)
    }

    /// From when on, if nothing more is heard.
    pub(super) fn may_take_from(&self) -> Option<(Instant, (Claim, Over))> {
        let tip = &self.tip.mastership;
        let (tenure, lease_slot) = (tip.tenure, tip.lease_slot);
        let claim = Claim::Waited { tenure, lease_slot };
        let Some(master) = tip.node else { return Some((AT_ONCE, (claim, Over::Waited { tenure }))) };
        if master == self.me {
            return Some((self.may_have_again_from(), (Claim::Own { tenure }, Over::Waited { tenure })));
        }
        if let Some(left) = self.left_to_me() {
            return Some((AT_ONCE, (Claim::Consent { tenure }, Over::Consent { tenure: left })));
        }
        let over = match self.lease.expired.get(&master).copied().unwrap_or_default() {
            _ if self.options.deviation.is(Mutant::TakesFromTheLiving) => Over::Waited { tenure },
            expired if expired < tip.liveness => return None,
            _ if tip.liveness == 0 => Over::Waited { tenure },
            liveness => Over::Expired { tenure, node: master, liveness },
        };
        let waited = if self.options.deviation.log_defends() { self.has_waited_from() } else { AT_ONCE };
        let named = self.is_named_from(self.me).unwrap_or(waited);
        Some((named.min(waited), (claim, over)))
    }

    /// The master of the present mastership itself may at any time, but not while another is to follow.
    fn may_have_again_from(&self) -> Instant {
        let yielded = self.lease.yielded.map(|yielded| (yielded.tenure, yielded.at));
        let given_up = self.lease.given_up.map(|given_up| (given_up.tenure, given_up.at));
        let left = [yielded, given_up, self.lease.cap].into_iter().flatten();
        let left = left.filter(|(tenure, _)| *tenure == self.tip.mastership.tenure);
        left.map(|(_, at)| at + self.options.consent).max().unwrap_or(AT_ONCE)
    }

    fn has_waited_from(&self) -> Instant {
        self.lease.quiet_since + self.options.stretched(self.options.lease)
    }

    /// The master named this node, and the time that it took for itself is over from then on.
    fn is_named_from(&self, node: NodeId) -> Option<Instant> {
        let shortened = self.tip.mastership.shortened.filter(|shortened| shortened.to == node)?;
        Some(self.lease.shortened_since + self.options.stretched(shortened.remaining))
    }

    /// The mastership whose master left it to this node: the last one of this log, or a later one. Of that this log lacks what a
    /// quorum may have; if so, it is pulled, and the claim is made anew.
    fn left_to_me(&self) -> Option<Tenure> {
        self.lease.consent.filter(|left| self.tip.mastership.tenure.is_over_with(*left))
    }

    /// From when on the master leaves it to this node, and to no other.
    pub(super) fn is_next_from(&self) -> Option<Instant> {
        let mastership = &self.tip.mastership;
        if mastership.node == Some(self.me) || self.ambition.attempts > 0 {
            return None;
        }
        if self.left_to_me().is_some() { Some(AT_ONCE) } else { self.is_named_from(self.me) }
    }

    /// The acceptors' line: whether no lease that this node had a part in may still run, or its master has let it go.
    pub(super) fn may_promise(&self, to: NodeId, over: Over, now: Instant) -> bool {
        self.may_promise_from(to, over).is_some_and(|from| now >= from)
    }

    /// From when on, if nothing more is heard.
    pub(super) fn may_promise_from(&self, to: NodeId, over: Over) -> Option<Instant> {
        let tip = &self.tip.mastership;
        let Some(master) = tip.node else { return Some(AT_ONCE) };
        if master == to || !self.options.deviation.acceptors_defend() {
            return Some(AT_ONCE);
        }
        let leads = matches!(&self.role, Role::Leader(leading) if leading.ballot == tip.tenure.ballot);
        if master == self.me && !leads {
            // That mastership is nobody's, and all before it were over when a quorum promised its ballot.
            return Some(AT_ONCE);
        }
        let told = match over {
            Over::Consent { tenure } if tip.tenure.is_over_with(tenure) => return Some(AT_ONCE),
            Over::Expired { node, liveness, .. } if node == master => liveness,
            Over::Waited { .. } | Over::Expired { .. } | Over::Consent { .. } => 0,
        };
        let known = self.lease.expired.get(&master).copied().unwrap_or_default();
        // Who has a later one lives by that, or won it when this one was over.
        let is_followed = tip.tenure.is_before(over.tenure());
        let is_over =
            is_followed || known.max(told) >= tip.liveness || self.options.deviation.is(Mutant::TakesFromTheLiving);
        let waited = is_over.then(|| self.has_waited_from());
        [self.is_named_from(to), waited].into_iter().flatten().min()
    }

    pub(super) fn ask(&mut self, now: Instant, effects: &mut Effects) {
        let Some(master) = self.tip.mastership.node.filter(|master| *master != self.me) else { return };
        if !self.tip.has(self.me) {
            return;
        }
        let tenure = self.tip.mastership.tenure;
        if self.options.deviation.is(Mutant::StealsWithoutConsent) {
            self.hear_consent(tenure, self.me, now, effects);
        } else {
            self.send(master, Message::Ask { tenure }, effects);
        }
    }

    pub(super) fn hear_consent(&mut self, tenure: Tenure, taker: NodeId, now: Instant, effects: &mut Effects) {
        let tip = &self.tip.mastership;
        let is_left = tip.tenure.is_over_with(tenure) && tip.node.is_some_and(|master| master != self.me);
        // Of two masters that stopped in turns, each word would be another.
        let is_news = self.lease.consent.is_none_or(|known| known.is_before(tenure));
        if taker != self.me || !is_left || !self.tip.has(self.me) || !is_news {
            return;
        }
        self.lease.consent = Some(tenure);
        if matches!(self.role, Role::Leader(_)) {
            return self.take_over_or_renew(now, effects);
        }
        // Nobody has to be asked on trial: the present master is gone already.
        self.campaign((Claim::Consent { tenure: tip.tenure }, Over::Consent { tenure }), false, now, effects);
    }
}
