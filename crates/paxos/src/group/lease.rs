//! Leases. They determine which node may serve, and until which instant. They also determine which node may be the next
//! master, and from which instant.
//!
//! A master serves until its lease is over by its own clock. The lease counts from the instant at which the master
//! proposed the slot that renewed the lease. Two safeguards prevent other nodes from becoming master before the lease
//! is over, and each safeguard is sufficient alone. *Acceptors*: a node that accepted an entry of a master promises no
//! ballot of another node until the lease is certainly over. *The log*: a candidate waits until the lease is over
//! according to its own log. Its `BeMaster` entry names the last slot that renewed this lease. The entry has no effect
//! if the log before the entry contains a later renewal. For both safeguards, a node counts the lease from the instant
//! at which it received the renewing slot, and adds the maximum clock drift. This instant is after the slot's proposal.
//! A restarted node counts the lease from its start, because it may have received a slot just before the restart.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Group, Leading, Role};
use crate::effects::{Effects, Event, Rejection};
use crate::entry::{BeMaster, Claim, Entry, Shorten, Value};
use crate::ids::{Instant, NodeId, Slot, Term};
use crate::message::{MastershipEnd, Message};
use crate::options::Options;
use crate::simulation::Mutant;
use crate::state::GroupState;

/// Earliest instant, which is always in the past.
const AT_ONCE: Instant = Instant(0);

#[derive(Debug)]
pub(super) struct Lease {
    /// Latest possible instant at which the master proposed a slot that renewed the lease of the present mastership.
    pub(super) last_renewal: Instant,
    /// Latest possible proposal time of the slot that shortened the lease.
    shortened_since: Instant,
    /// Liveness epoch of this node, and the end of the epoch's lease.
    pub(super) of_node: (u64, Instant),
    /// Last expired liveness epoch of each node. All earlier epochs are also over.
    expired: BTreeMap<NodeId, u64>,

    /// End of the lease according to the decided slots of this node's mastership.
    until: Option<(Term, Instant)>,
    /// End of the lease according to a `Shorten` entry that this node proposed as master. The entry may be undecided.
    cap: Option<(Term, Instant)>,
    handed_over: Option<HandedOver>,
    /// Mastership that this node abandoned. Any member may take over from it.
    abandoned: Option<Abandoned>,
    /// Last mastership that another node handed over to this node by a consent.
    consent: Option<Term>,
}

/// Mastership that this node handed over to another node by a consent.
#[derive(Clone, Copy, Debug)]
struct HandedOver {
    term: Term,
    to: NodeId,
    /// Instant when this node stopped serving, or when it later received the last prepare or pull message of its
    /// successor.
    at: Instant,
    is_sent: bool,
}

#[derive(Clone, Copy, Debug)]
struct Abandoned {
    term: Term,
    at: Instant,
    /// Instant at which this node last sent its consent to the other members. `times` is the number of times that it
    /// has sent the consent.
    sent: Instant,
    times: u32,
}

impl Lease {
    pub(super) fn at_start(now: Instant, options: &Options) -> Lease {
        let forgets = options.deviation.is(Mutant::ForgetsWaitAtRestart);
        let since = if forgets { Instant::default() } else { now };
        Lease {
            last_renewal: since,
            shortened_since: since,
            of_node: (0, Instant::default()),
            expired: BTreeMap::new(),
            until: None,
            cap: None,
            handed_over: None,
            abandoned: None,
            consent: None,
        }
    }

    pub(super) fn note_expired(&mut self, node: NodeId, liveness: u64) {
        let known = self.expired.entry(node).or_default();
        *known = liveness.max(*known);
    }

    /// Records that the log contains another slot that renews the lease. A leader proposed the slot before
    /// `proposed_before`.
    pub(super) fn renewed_in_log(&mut self, uncommitted: &GroupState, proposed_before: Instant) {
        self.last_renewal = self.last_renewal.max(proposed_before);
        if uncommitted.mastership.shortened.is_some() {
            self.shortened_since = self.shortened_since.max(proposed_before);
        }
    }

    pub(super) fn idle(&self, now: Instant) -> Duration {
        now.since(self.last_renewal)
    }
}

/// Rules by which a master serves, renews its lease, and hands over or abandons its mastership.
impl Group {
    /// Returns the instant until which this node serves, by its own clock. The instant may be in the past. Returns
    /// `None` if this node is not master.
    #[must_use]
    pub fn serves_until(&self) -> Option<Instant> {
        let Role::Leader(leading) = &self.role else { return None };
        let mastership = &self.committed.mastership;
        if mastership.node != Some(self.me) || mastership.term.ballot != leading.ballot || self.has_handed_over() {
            return None;
        }
        let by_decision = self.lease.until.filter(|(term, _)| *term == mastership.term).map(|(_, until)| until);
        let (liveness, until) = self.lease.of_node;
        // Other nodes wait only for the end of the liveness epoch that the last `BeMaster` entry in their logs names.
        // At most one `BeMaster` entry is undecided, and `uncommitted` includes this entry. If the undecided entry does
        // not name this node's liveness epoch, this epoch does not renew the lease. The field `cap` is the end of a
        // shortened lease.
        let uncommitted = &self.uncommitted.mastership;
        let is_named = uncommitted.term == mastership.term || uncommitted.liveness == liveness;
        let by_node = (liveness > 0 && mastership.liveness == liveness && is_named).then_some(until);
        let until = by_decision.max(by_node)?;
        let cap = self.lease.cap.filter(|(term, _)| *term == mastership.term);
        Some(cap.map_or(until, |(_, cap)| cap.min(until)))
    }

    fn has_handed_over(&self) -> bool {
        let term = self.committed.mastership.term;
        self.has_abandoned(term)
            || self.lease.handed_over.is_some_and(|handed_over| handed_over.term == term)
                && !self.options.deviation.is(Mutant::ServesAfterConsent)
    }

    pub(super) fn has_abandoned(&self, term: Term) -> bool {
        self.lease.abandoned.is_some_and(|abandoned| abandoned.term == term)
    }

    /// Extends the lease of this node after a decision of a slot that this node proposed as master. The lease counts
    /// from the instant of the proposal.
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
        let mastership = &self.committed.mastership;
        let is_mine = mastership.node == Some(self.me) && mastership.term.ballot == leading.ballot;
        let Some(proposed) = proposed.filter(|_| renews && is_mine) else { return };
        let from = if self.options.deviation.is(Mutant::LeaseFromDecision) { now } else { proposed };
        self.lease.until = Some((mastership.term, from + self.options.lease));
        match entry.value {
            Value::BeMaster(_) => effects.events.push((self.id, Event::Serves { term: mastership.term })),
            Value::Shorten(shorten) if self.options.deviation.is(Mutant::ShortensFromDecision) => {
                self.lease.cap = Some((mastership.term, now + shorten.remaining));
            }
            _ => {}
        }
    }

    pub(super) fn take_over_or_renew(&mut self, now: Instant, effects: &mut Effects) {
        let Role::Leader(leading) = &self.role else { return };
        if leading.pending_claim.is_some() {
            return;
        }
        let (liveness, until) = self.lease.of_node;
        let soon = now + self.options.lease / 3;
        let mastership = self.uncommitted.mastership;
        if self.serves(now).is_none() {
            if let Some((claim, _)) = self.may_take(now) {
                self.propose_claim(claim, now, effects);
            }
        } else if mastership.shortened.is_some() || self.is_capped() {
            // The master has named its successor, so it does not renew its lease.
        } else if mastership.liveness != liveness && until > soon {
            self.propose_claim(Claim::Own { term: mastership.term }, now, effects);
        } else if (mastership.liveness == 0 || until <= soon) && leading.proposed_last() + self.options.lease / 3 <= now
        {
            self.propose(Value::Noop, now, effects);
        }
    }

    /// Returns the instant at which [`Group::take_over_or_renew`] is due. While this node serves, this instant is at
    /// the latest the end of the lease, because the leader must then reject the waiting entries.
    pub(super) fn renews_at(&self, leading: &Leading, now: Instant) -> Option<Instant> {
        let Some(served) = self.serves_until().filter(|until| now < *until) else {
            return self.may_take_from().filter(|_| leading.pending_claim.is_none()).map(|(from, _)| from);
        };
        let mastership = self.uncommitted.mastership;
        if leading.pending_claim.is_some() || mastership.shortened.is_some() || self.is_capped() {
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

    /// Returns the successor that the last master has named, or the last master if it has named no successor. Returns
    /// `None` if this successor or master is this node, or if the paxos group has had no master.
    pub(super) fn master_known(&self) -> Option<NodeId> {
        let mastership = &self.committed.mastership;
        let handed_over = self.lease.handed_over.filter(|handed_over| handed_over.term == mastership.term);
        let named =
            handed_over.map(|handed_over| handed_over.to).or(mastership.shortened.map(|shortened| shortened.to));
        named.or(mastership.node).filter(|node| *node != self.me)
    }

    fn is_capped(&self) -> bool {
        self.lease.cap.is_some_and(|(term, _)| term == self.committed.mastership.term)
    }

    pub(super) fn propose_claim(&mut self, claim: Claim, now: Instant, effects: &mut Effects) {
        let (liveness, until) = self.lease.of_node;
        let liveness = if until > now { liveness } else { 0 };
        let be_master = BeMaster { node: self.me, liveness, claim, members: self.uncommitted.members.clone() };
        let slot = self.propose(Value::BeMaster(be_master), now, effects);
        if let Role::Leader(leading) = &mut self.role {
            leading.pending_claim = Some(slot);
        }
    }

    pub(super) fn shorten(&mut self, to: NodeId, remaining: Duration, now: Instant, effects: &mut Effects) {
        let term = self.committed.mastership.term;
        let is_settled = self.uncommitted.mastership.term == term && self.uncommitted.mastership.shortened.is_none();
        if self.serves(now).is_none() || !is_settled || to == self.me || !self.uncommitted.has(to) {
            return;
        }
        let remaining = remaining.min(self.options.lease);
        // The master sets `cap` before the proposal. All other nodes receive the entry later, and count the time from
        // the instant at which they receive it.
        if !self.options.deviation.is(Mutant::ShortensFromDecision) {
            self.lease.cap = Some((term, now + remaining));
        }
        self.propose(Value::Shorten(Shorten { term, to, remaining }), now, effects);
    }

    pub(super) fn handle_consent_request(&mut self, from: NodeId, term: Term, now: Instant, effects: &mut Effects) {
        let is_current = self.committed.mastership.term == term && self.uncommitted.mastership.term == term;
        if let Some(handed_over) =
            self.lease.handed_over.as_mut().filter(|handed_over| is_current && handed_over.term == term)
        {
            if handed_over.to == from {
                handed_over.is_sent = false;
                if !matches!(self.role, Role::Leader(_)) {
                    // This node no longer leads, so it decides no further slots, and can consent at once.
                    self.send(from, Message::Consent { term, taker: from }, effects);
                }
                return;
            }
        } else if is_current && self.uncommitted.has(from) && self.serves(now).is_some() && !self.is_capped() {
            // The master stops serving now. It sends the consent later, once all of its slots are decided.
            self.lease.handed_over = Some(HandedOver { term, to: from, at: now, is_sent: false });
            if !self.options.deviation.is(Mutant::ServesAfterConsent) {
                self.reject_waiting(Rejection::NotMaster(Some(from)), effects);
            }
            return;
        }
        self.send(from, Message::Decline { term }, effects);
    }

    /// Records the instant of a prepare or pull message if the sender is the node to which this node handed its
    /// mastership over.
    pub(super) fn note_taker(&mut self, from: NodeId, now: Instant) {
        if let Some(handed_over) = self.lease.handed_over.as_mut().filter(|handed_over| handed_over.to == from) {
            handed_over.at = now;
        }
    }

    /// Sends the consent once all slots of this master are decided.
    pub(super) fn consent(&mut self, effects: &mut Effects) {
        let is_drained = self.decided == self.log.last().slot;
        let term = self.committed.mastership.term;
        if let Some(handed_over) = &mut self.lease.handed_over
            && handed_over.term == term
            && is_drained
            && !handed_over.is_sent
        {
            handed_over.is_sent = true;
            let (to, taker) = (handed_over.to, handed_over.to);
            self.send(to, Message::Consent { term, taker }, effects);
        }
    }

    /// Abandons the mastership of this node, so that any other member can take over. A master may be unable to decide a
    /// slot, or may not lead, although its node is alive and its liveness epoch renews the lease. Without this
    /// function, such a master would block its paxos group forever. Several members may receive the consent to take
    /// over. The first `BeMaster` entry makes the claims of the other members void.
    pub(super) fn abandon(&mut self, now: Instant, effects: &mut Effects) {
        let (mastership, holds_others) = match &self.role {
            Role::Leader(_) => (&self.committed.mastership, self.committed.mastership.liveness > 0),
            // This node does not lead, so it does not serve. Other nodes may know only an earlier mastership of this
            // node. The liveness epoch of this node may renew the lease of that mastership.
            Role::Candidate(_) | Role::Follower(_) => {
                let by_liveness =
                    [self.uncommitted.mastership.liveness, self.committed.mastership.liveness, self.lease.of_node.0];
                (&self.uncommitted.mastership, by_liveness.into_iter().any(|liveness| liveness > 0))
            }
        };
        if mastership.node == Some(self.me) && holds_others {
            let term = mastership.term;
            let before = self.lease.abandoned.filter(|abandoned| abandoned.term == term);
            let times = before.map_or(0, |abandoned| abandoned.times).saturating_add(1);
            self.lease.abandoned = Some(Abandoned { term, at: now, sent: now, times });
            self.send_abandoned(effects);
        }
    }

    pub(super) fn offer(&mut self, now: Instant, effects: &mut Effects) {
        if self.offers_at().is_none_or(|at| now < at) {
            return;
        }
        if let Some(abandoned) = &mut self.lease.abandoned {
            (abandoned.sent, abandoned.times) = (now, abandoned.times.saturating_add(1));
        }
        self.send_abandoned(effects);
    }

    /// Returns the instant at which [`Group::offer`] is due; `None` if this node has not abandoned the present
    /// mastership.
    pub(super) fn offers_at(&self) -> Option<Instant> {
        let abandoned = self.lease.abandoned.filter(|abandoned| abandoned.term == self.uncommitted.mastership.term)?;
        Some(abandoned.sent + self.options.resend * (1 << (abandoned.times - 1).min(5)))
    }

    fn send_abandoned(&self, effects: &mut Effects) {
        let Some(Abandoned { term, .. }) = self.lease.abandoned else { return };
        for taker in self.uncommitted.members.iter().copied().filter(|member| *member != self.me) {
            self.send(taker, Message::Consent { term, taker }, effects);
        }
    }

    pub(super) fn lease_at_restart(&mut self, now: Instant) {
        if self.options.deviation.is(Mutant::RestartedServes) && self.committed.mastership.node == Some(self.me) {
            let ballot = self.committed.mastership.term.ballot;
            self.role = Role::Leader(Leading::new(ballot, self.log.last().slot.next(), now));
            self.lease.until = Some((self.committed.mastership.term, now + self.options.lease));
        }
    }
}

/// Rules by which a node becomes the next master, and by which an acceptor promises ballots.
impl Group {
    /// Returns the claim that this node may make now, and the evidence for the acceptors that the last mastership is
    /// over. Returns `None` if this node may make no claim.
    pub(super) fn may_take(&self, now: Instant) -> Option<(Claim, MastershipEnd)> {
        self.may_take_from().filter(|(from, _)| now >= *from).map(|(_, taking)| taking)
    }

    /// Returns the earliest instant at which this node may take over if no further message arrives, with its claim and
    /// the evidence for the acceptors. Returns `None` if this node must wait for a message.
    pub(super) fn may_take_from(&self) -> Option<(Instant, (Claim, MastershipEnd))> {
        let uncommitted = &self.uncommitted.mastership;
        let (term, lease_slot) = (uncommitted.term, uncommitted.lease_slot);
        let claim = Claim::Waited { term, lease_slot };
        let Some(master) = uncommitted.node else { return Some((AT_ONCE, (claim, MastershipEnd::Waited { term }))) };
        if master == self.me {
            return Some((self.may_have_again_from(), (Claim::Own { term }, MastershipEnd::Waited { term })));
        }
        if let Some(left) = self.left_to_me() {
            return Some((AT_ONCE, (Claim::Consent { term }, MastershipEnd::Consent { term: left })));
        }
        let over = match self.lease.expired.get(&master).copied().unwrap_or_default() {
            _ if self.options.deviation.is(Mutant::TakesFromTheLiving) => MastershipEnd::Waited { term },
            expired if expired < uncommitted.liveness => return None,
            _ if uncommitted.liveness == 0 => MastershipEnd::Waited { term },
            liveness => MastershipEnd::Expired { term, node: master, liveness },
        };
        let waited = if self.options.deviation.log_defends() { self.has_waited_from() } else { AT_ONCE };
        let named = self.is_named_from(self.me).unwrap_or(waited);
        Some((named.min(waited), (claim, over)))
    }

    /// Returns the instant from which the present master may claim its own mastership again. The master may do this at
    /// any time, except for a limited time after it has allowed another node to take over.
    fn may_have_again_from(&self) -> Instant {
        let handed_over = self.lease.handed_over.map(|handed_over| (handed_over.term, handed_over.at));
        let abandoned = self.lease.abandoned.map(|abandoned| (abandoned.term, abandoned.at));
        let left = [handed_over, abandoned, self.lease.cap].into_iter().flatten();
        let left = left.filter(|(term, _)| *term == self.uncommitted.mastership.term);
        left.map(|(_, at)| at + self.options.consent).max().unwrap_or(AT_ONCE)
    }

    fn has_waited_from(&self) -> Instant {
        self.lease.last_renewal + self.options.stretched(self.options.lease)
    }

    /// Returns the instant at which the shortened lease of the master is over. Returns `None` if the master has not
    /// named `node` as its successor.
    fn is_named_from(&self, node: NodeId) -> Option<Instant> {
        let shortened = self.uncommitted.mastership.shortened.filter(|shortened| shortened.to == node)?;
        Some(self.lease.shortened_since + self.options.stretched(shortened.remaining))
    }

    /// Returns the mastership that another node handed over to this node, if it is at least as late as the last
    /// mastership in this node's log. If it is later, this node's log lacks entries that a quorum may have. This node
    /// then pulls these entries and makes a new claim.
    fn left_to_me(&self) -> Option<Term> {
        self.lease.consent.filter(|left| self.uncommitted.mastership.term.is_over_with(*left))
    }

    /// Returns the instant from which only this node may take over from the master. Returns `None` if the master has
    /// not chosen this node as its successor, or if this node has campaigned since it last decided a slot.
    pub(super) fn is_next_from(&self) -> Option<Instant> {
        let mastership = &self.uncommitted.mastership;
        if mastership.node == Some(self.me) || self.conditions.attempts > 0 {
            return None;
        }
        if self.left_to_me().is_some() { Some(AT_ONCE) } else { self.is_named_from(self.me) }
    }

    /// Returns true if this node, as an acceptor, may promise a ballot of the node `to`. If a node other than `to` is
    /// master according to this node's log, the lease of this master must be over, or the master must have released the
    /// lease.
    pub(super) fn may_promise(&self, to: NodeId, over: MastershipEnd, now: Instant) -> bool {
        self.may_promise_from(to, over).is_some_and(|from| now >= from)
    }

    /// Returns the earliest instant at which this node may promise a ballot of the node `to` if no further message
    /// arrives. Returns `None` if this node must wait for a message.
    pub(super) fn may_promise_from(&self, to: NodeId, over: MastershipEnd) -> Option<Instant> {
        let uncommitted = &self.uncommitted.mastership;
        let Some(master) = uncommitted.node else { return Some(AT_ONCE) };
        if master == to || !self.options.deviation.acceptors_defend() {
            return Some(AT_ONCE);
        }
        let leads = matches!(&self.role, Role::Leader(leading) if leading.ballot == uncommitted.term.ballot);
        if master == self.me && !leads {
            // This node does not lead by the ballot of this mastership, so it does not serve. All earlier masterships
            // were over when a quorum promised this ballot.
            return Some(AT_ONCE);
        }
        let claimed = match over {
            MastershipEnd::Consent { term } if uncommitted.term.is_over_with(term) => return Some(AT_ONCE),
            MastershipEnd::Expired { node, liveness, .. } if node == master => liveness,
            MastershipEnd::Waited { .. } | MastershipEnd::Expired { .. } | MastershipEnd::Consent { .. } => 0,
        };
        let known = self.lease.expired.get(&master).copied().unwrap_or_default();
        // If the candidate knows a later mastership, the mastership in this node's log does not matter. Either the same
        // master now serves by the later mastership, or the earlier mastership was over when the later mastership
        // began.
        let is_followed = uncommitted.term.is_before(over.term());
        let is_over = is_followed
            || known.max(claimed) >= uncommitted.liveness
            || self.options.deviation.is(Mutant::TakesFromTheLiving);
        let waited = is_over.then(|| self.has_waited_from());
        [self.is_named_from(to), waited].into_iter().flatten().min()
    }

    pub(super) fn request_consent(&mut self, now: Instant, effects: &mut Effects) {
        let Some(master) = self.uncommitted.mastership.node.filter(|master| *master != self.me) else { return };
        if !self.uncommitted.has(self.me) {
            return;
        }
        let term = self.uncommitted.mastership.term;
        if self.options.deviation.is(Mutant::StealsWithoutConsent) {
            self.handle_consent(term, self.me, now, effects);
        } else {
            self.send(master, Message::RequestConsent { term }, effects);
        }
    }

    pub(super) fn handle_consent(&mut self, term: Term, taker: NodeId, now: Instant, effects: &mut Effects) {
        let uncommitted = &self.uncommitted.mastership;
        let is_left = uncommitted.term.is_over_with(term) && uncommitted.node.is_some_and(|master| master != self.me);
        // Two former masters may both repeat their consents. This node therefore accepts a consent only if it ends a
        // later mastership than the last consent that this node accepted.
        let is_later = self.lease.consent.is_none_or(|known| known.is_before(term));
        if taker != self.me || !is_left || !self.uncommitted.has(self.me) || !is_later {
            return;
        }
        self.lease.consent = Some(term);
        if matches!(self.role, Role::Leader(_)) {
            return self.take_over_or_renew(now, effects);
        }
        // A pre-vote is not necessary, because the present master has already stopped serving.
        self.campaign(
            (Claim::Consent { term: uncommitted.term }, MastershipEnd::Consent { term }),
            false,
            now,
            effects,
        );
    }
}
