//! Role of a node in moves of masters.
//!
//! Each node reports its masterships to the master of the system group. While a move concerns the node, the response to
//! a report contains orders. The time limit of orders counts from the instant of the report, by the clock of the
//! process that sent the report. A node can therefore recognise late orders, and all orders of one move are over before
//! the next move begins.
//!
//! The master of the system group receives the reports and runs a [`Mover`]. The mover bases its decisions on the
//! reports.
//!
//! docs/decisions/0155-send-orders-as-responses-to-reports.md gives the reasons for the design.

use std::collections::{BTreeMap, BTreeSet};

use super::Node;
use crate::effects::{Effects, Event, Input};
use crate::ids::{GroupId, Instant, NodeId, Term};
use crate::message::{Message, Orders, Report, Serving};
use crate::mover::{self, Action, Facts, Move, Mover, View};
use crate::options::Options;
use crate::simulation::Mutant;
use crate::system::{Fence, Preparation, Record, Scheme, Step};

#[derive(Debug)]
pub(super) struct Moves {
    mover: Mover,
    /// Instant of the last periodic step of the mover.
    stepped_at: Instant,
    /// Last report of each node, including this node, and the instant at which the report arrived.
    reports: BTreeMap<NodeId, (Report, Instant)>,
    /// Step that the mover began last, with the move of the step and the end of the step's time limit.
    begun: Option<(Move, Step, Instant)>,
    /// Instant of this node's last report.
    reported: Instant,
    obeyed: Option<ActiveOrders>,
    prepared: Option<(Fence, Preparation)>,
    rejected: Option<(Fence, Step)>,
    /// Request for consent that arrived before this node received orders to consent.
    pending_request: Option<(NodeId, GroupId, Term)>,
}

/// Last orders that this node accepted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ActiveOrders {
    pub of: Move,
    pub step: Step,
    /// End of the orders, by this node's clock.
    pub until: Instant,
}

impl Moves {
    /// # Panics
    /// Panics if the options allow a process to take over a token while orders of its holder may be in effect. Also
    /// panics if the options give a master too little time to hand its mastership over before its orders expire.
    pub(super) fn new(options: &Options) -> Self {
        let in_flight = options.stretched(options.mover.in_flight());
        assert!(
            options.mover.wait >= in_flight,
            "the wait for a token is at least the time in which its holder may act, plus the clock drift"
        );
        let mover::Options { remaining, handover_within, lease_within, .. } = options.mover;
        let has_time = remaining < handover_within && options.lease < lease_within;
        assert!(has_time, "the options leave a master enough time to hand over before its orders expire");
        Moves {
            mover: Mover::new(options.mover, options.deviation),
            stepped_at: Instant::default(),
            reports: BTreeMap::new(),
            begun: None,
            reported: Instant::default(),
            obeyed: None,
            prepared: None,
            rejected: None,
            pending_request: None,
        }
    }

    /// Returns the nodes that reported recently, and the state of the paxos groups according to these reports.
    fn facts(&mut self, now: Instant, options: &Options) -> (BTreeSet<NodeId>, BTreeMap<GroupId, Facts>) {
        self.reports.retain(|_, (_, at)| now.since(*at) < 3 * options.report);
        let mut groups: BTreeMap<GroupId, Facts> = BTreeMap::new();
        for (node, (report, _)) in &self.reports {
            for serving in &report.serves {
                let facts = groups.entry(serving.group).or_default();
                if facts.master.is_none_or(|(_, epoch)| epoch < serving.epoch) {
                    facts.master = Some((*node, serving.epoch));
                    facts.lag = serving.members.iter().copied().collect();
                }
            }
        }
        (self.reports.keys().copied().collect(), groups)
    }
}

impl Node {
    /// Returns the orders that are in effect on this node at the instant `now`.
    #[must_use]
    pub fn orders(&self, now: Instant) -> Option<ActiveOrders> {
        self.moves.obeyed.filter(|obeyed| now < obeyed.until)
    }

    /// Sends a report if it is due, and runs the mover if its periodic step is due.
    pub(super) fn tend_moves(&mut self, now: Instant, effects: &mut Effects) {
        if let Some((master, at)) = self.reports_at()
            && now >= at
        {
            self.moves.reported = now;
            let report = self.report(now);
            if master == self.process.node {
                self.note_report(master, report, now, effects);
            } else {
                effects.sends.push((master, GroupId::SYSTEM, Message::Report(report)));
            }
        }
        if self.mover_due_at(now).is_some_and(|at| now >= at) {
            self.step_mover(mover::Input::Tick, now, effects);
        }
    }

    /// Returns the instant at which [`Node::tend_moves`] is due.
    pub(super) fn moves_tick(&self, now: Instant) -> Option<Instant> {
        let reports = self.reports_at().map(|(_, at)| at);
        [reports, self.mover_due_at(now)].into_iter().flatten().min()
    }

    /// Returns the receiver and the instant of the next report; `None` if this node knows no master of the system
    /// group.
    fn reports_at(&self) -> Option<(NodeId, Instant)> {
        let master = self.groups.get(&GroupId::SYSTEM)?.committed().mastership.node?;
        let me = self.process.node;
        let is_concerned = self.system().token().is_some_and(|token| token.from == me || token.to == me);
        let pause = if is_concerned { self.options.resend } else { self.options.report };
        Some((master, self.moves.reported + pause))
    }

    /// Returns the instant at which the periodic step of the mover is due. Only the master of the system group has
    /// periodic steps. Other nodes run the mover when the system group decides a slot.
    fn mover_due_at(&self, now: Instant) -> Option<Instant> {
        let acts = self.published.is_some() && self.masters_system(now);
        acts.then(|| self.moves.stepped_at + self.options.resend / 2)
    }

    /// Makes this node's next report due at the next tick.
    pub(super) fn report_soon(&mut self) {
        self.moves.reported = Instant::default();
    }

    fn report(&self, now: Instant) -> Report {
        let serves = self.groups.iter().filter(|(id, _)| **id != GroupId::SYSTEM).filter_map(|(id, group)| {
            Some(Serving { group: *id, epoch: group.serves(now)?.epoch, members: group.lags() })
        });
        let is_present = |fence: Fence| self.system().token().is_some_and(|token| token.fence == fence);
        let prepared = self.moves.prepared.filter(|(fence, _)| is_present(*fence));
        let rejected = self.moves.rejected.filter(|(fence, _)| is_present(*fence));
        Report { process: self.process.incarnation, stamp: now, serves: serves.collect(), prepared, rejected }
    }

    pub(super) fn handle_report(&mut self, from: NodeId, report: Report, now: Instant, effects: &mut Effects) {
        let (process, stamp) = (report.process, report.stamp);
        let is_overtaken = |(known, _): &(Report, Instant)| known.process == process && known.stamp > stamp;
        if self.moves.reports.get(&from).is_some_and(is_overtaken) {
            return;
        }
        self.note_report(from, report, now, effects);
        if let Some((of, step, until)) = self.begun_for(from, now) {
            let orders = Orders { process, stamp, of, step, within: until.since(now) };
            effects.sends.push((from, GroupId::SYSTEM, Message::Orders(orders)));
        }
    }

    fn note_report(&mut self, from: NodeId, report: Report, now: Instant, effects: &mut Effects) {
        let Report { prepared, rejected, .. } = report;
        self.moves.reports.insert(from, (report, now));
        if let Some((fence, what)) = prepared {
            self.step_mover(mover::Input::Prepared { fence, what }, now, effects);
        }
        if let Some((fence, step)) = rejected {
            self.step_mover(mover::Input::Rejected { fence, step }, now, effects);
        }
    }

    pub(super) fn step_mover(&mut self, input: mover::Input, now: Instant, effects: &mut Effects) {
        let masters_system = self.masters_system(now);
        let Some((liveness, _)) = self.published.as_ref().map(|published| published.lease) else { return };
        let is_due = self.mover_due_at(now).is_some_and(|at| now >= at);
        let (reachable, groups) =
            if masters_system { self.moves.facts(now, &self.options) } else { Default::default() };
        let view = View {
            me: self.process.node,
            liveness,
            masters_system,
            system: self.liveness.system(),
            groups: &groups,
            reachable: &reachable,
        };
        let actions = self.moves.mover.step(now, &view, input);
        for action in actions {
            match action {
                Action::Propose(record) => self.propose(&record, now, effects),
                Action::Begin { step, of, within } => self.moves.begun = Some((of, step, now + within)),
            }
        }
        if let Some((of, step, until)) = self.begun_for(self.process.node, now) {
            self.obey(ActiveOrders { of, step, until }, now, effects);
        }
        if is_due {
            self.moves.stepped_at = now;
            for record in self.unrecorded_members(groups) {
                self.propose(&record, now, effects);
            }
        }
    }

    /// Returns the step that the mover has begun and not ended, with the move of the step and the end of the step's
    /// time limit. Returns `None` if no step is in progress, or if `node` does not take part in the step.
    fn begun_for(&self, node: NodeId, now: Instant) -> Option<(Move, Step, Instant)> {
        let is_present = |of: Move| self.system().token().is_some_and(|token| token.fence == of.fence);
        let begun = self.moves.begun.filter(|(of, _, until)| now < *until && is_present(*of));
        let begun = begun.filter(|(_, step, _)| self.moves.mover.is_at(*step));
        begun.filter(|(of, step, _)| match step {
            Step::Prepare(_) => node == of.from,
            Step::Handover(_) => node == of.from || node == of.to,
        })
    }

    /// Returns the records that this node must propose because the system group does not know the present members of
    /// some paxos groups.
    fn unrecorded_members(&self, groups: BTreeMap<GroupId, Facts>) -> Vec<Record> {
        let system = self.liveness.system();
        let placed = groups.into_iter().map(|(group, facts)| (group, facts.lag.into_keys().collect::<Vec<_>>()));
        let is_unknown = |(group, replicas): &(GroupId, Vec<NodeId>)| {
            let is_known = replicas.iter().all(|node| system.node(*node).is_some());
            is_known && system.groups().get(group).is_none_or(|group| group.replicas != *replicas)
        };
        placed.filter(is_unknown).map(|(group, replicas)| Record::Group { group, replicas }).collect()
    }

    pub(super) fn handle_orders(&mut self, orders: &Orders, now: Instant, effects: &mut Effects) {
        let Orders { process, stamp, of, step, within } = *orders;
        if process != self.process.incarnation {
            return;
        }
        let from = if self.options.deviation.is(Mutant::OrdersFromArrival) { now } else { stamp };
        self.obey(ActiveOrders { of, step, until: from + self.options.shrunk(within) }, now, effects);
    }

    fn obey(&mut self, orders: ActiveOrders, now: Instant, effects: &mut Effects) {
        let ActiveOrders { of, step, until } = orders;
        let before = self.moves.obeyed;
        let is_late = now >= until || before.is_some_and(|before| (before.of.fence, before.step) > (of.fence, step));
        let group = self.groups.get(&of.group);
        let is_moot = group.is_none_or(|group| group.committed().mastership.term.epoch != of.epoch);
        if is_late || is_moot {
            return;
        }
        self.moves.obeyed = Some(orders);
        let is_first = before.is_none_or(|before| (before.of.fence, before.step) != (of.fence, step));
        let is_from = of.from == self.process.node;
        // The move is over when the master's orders expire. The master therefore shortens its lease only if the shortened
        // lease ends before that instant.
        let has_no_end = self.options.deviation.is(Mutant::LeavesAfterOrders);
        let shorten =
            |remaining| (has_no_end || now + remaining <= until).then_some(Input::Shorten { to: of.to, remaining });
        let input = match step {
            Step::Prepare(what) => {
                if is_first {
                    effects.events.push((of.group, Event::Prepare { of, what }));
                }
                return;
            }
            Step::Handover(Scheme::Consent) if is_from => match self.moves.pending_request.take() {
                Some((from, group, term)) if self.may_hand_over(from, group, term, now) => {
                    Some(Input::Message { from, message: Message::RequestConsent { term } })
                }
                Some(_) | None => None,
            },
            Step::Handover(Scheme::Consent) => Some(Input::Take),
            Step::Handover(Scheme::Shorten) if is_from => shorten(self.options.mover.remaining),
            Step::Handover(Scheme::Wait) if is_from => shorten(self.options.lease),
            Step::Handover(Scheme::Shorten | Scheme::Wait) => None,
        };
        if let Some(input) = input {
            self.step_group(of.group, now, input, effects);
        }
    }

    /// Returns true if this node has orders to hand this mastership over to `to`.
    fn may_hand_over(&self, to: NodeId, group: GroupId, term: Term, now: Instant) -> bool {
        self.orders(now).is_some_and(|ActiveOrders { of, step, .. }| {
            step == Step::Handover(Scheme::Consent)
                && (of.from, of.to, of.group, of.epoch) == (self.process.node, to, group, term.epoch)
        })
    }

    /// Handles a request for consent. On nodes with a system group, a master consents only if it has orders to consent.
    /// If the request arrives before the orders, the node stores the request until the orders arrive.
    pub(super) fn handle_consent_request(
        &mut self,
        from: NodeId,
        group: GroupId,
        term: Term,
        now: Instant,
        effects: &mut Effects,
    ) {
        let is_free = group == GroupId::SYSTEM || !self.groups.contains_key(&GroupId::SYSTEM);
        if is_free || self.may_hand_over(from, group, term, now) {
            self.step_group(group, now, Input::Message { from, message: Message::RequestConsent { term } }, effects);
        } else {
            self.moves.pending_request = Some((from, group, term));
        }
    }

    pub(super) fn prepared(&mut self, fence: Fence, what: Preparation) {
        self.moves.prepared = Some((fence, what));
        self.report_soon();
    }

    /// Records that this node cannot do the step of its orders, because the master in this term has declined to
    /// consent.
    pub(super) fn declined(&mut self, group: GroupId, term: Term, now: Instant) {
        if let Some(ActiveOrders { of, step, .. }) = self.orders(now)
            && (of.group, of.epoch) == (group, term.epoch)
        {
            self.moves.rejected = Some((of.fence, step));
            self.report_soon();
        }
    }
}
