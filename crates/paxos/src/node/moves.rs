//! A node's part in moving masters.
//!
//! Each node tells the system group's master what it serves, and is answered with orders while a move concerns it. They
//! count from when the report was made, by the clock of the process that made it. So orders that were long on their way are
//! known to be late, and all that was ordered under one token is over before there is another.
//!
//! The system group's master hears the reports, and has a [`Mover`] that decides by them.

use std::collections::{BTreeMap, BTreeSet};

use super::Node;
use crate::effects::{Effects, Event, Input};
use crate::ids::{GroupId, Instant, NodeId, Tenure};
use crate::message::{Message, Orders, Report, Serving};
use crate::mover::{self, Action, Facts, Move, Mover, View};
use crate::options::Options;
use crate::simulation::Mutant;
use crate::system::{Fence, Preparation, Record, Scheme, Step};

#[derive(Debug)]
pub(super) struct Moves {
    mover: Mover,
    /// When that was asked last because it was time to.
    asked_at: Instant,
    /// What nodes told last, this one among them, and when that came.
    reports: BTreeMap<NodeId, (Report, Instant)>,
    /// What the mover began last, and until when.
    begun: Option<(Move, Step, Instant)>,
    /// When this node made its last report.
    reported: Instant,
    obeyed: Option<Obeyed>,
    prepared: Option<(Fence, Preparation)>,
    refused: Option<(Fence, Step)>,
    /// Who asked to take over, before this node was ordered to let it.
    asking: Option<(NodeId, GroupId, Tenure)>,
}

/// What this node was ordered last.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Obeyed {
    pub of: Move,
    pub step: Step,
    /// By this node's clock.
    pub until: Instant,
}

impl Moves {
    /// # Panics
    /// A token could be taken over while what its holder ordered may be under way, or no master could ever leave within its orders.
    pub(super) fn new(options: &Options) -> Self {
        let in_flight = options.stretched(options.mover.in_flight());
        assert!(options.mover.wait >= in_flight, "a token is waited for as long as its holder may act");
        let mover::Options { remaining, handover_within, lease_within, .. } = options.mover;
        let has_time = remaining < handover_within && options.lease < lease_within;
        assert!(has_time, "a master that is told to leave can do so within the time that it has for it");
        Moves {
            mover: Mover::new(options.mover, options.deviation),
            asked_at: Instant::default(),
            reports: BTreeMap::new(),
            begun: None,
            reported: Instant::default(),
            obeyed: None,
            prepared: None,
            refused: None,
            asking: None,
        }
    }

    /// The nodes that were heard of lately, and what is known of the paxos groups by them.
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
    /// The orders that this node obeys at this instant.
    #[must_use]
    pub fn orders(&self, now: Instant) -> Option<Obeyed> {
        self.moves.obeyed.filter(|obeyed| now < obeyed.until)
    }

    /// Reports, and moves masters, as far as that is this node's to do.
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
        if self.asks_mover_at(now).is_some_and(|at| now >= at) {
            self.ask_mover(mover::Input::Tick, now, effects);
        }
    }

    /// When [`Node::tend_moves`] does something.
    pub(super) fn moves_tick(&self, now: Instant) -> Option<Instant> {
        let reports = self.reports_at().map(|(_, at)| at);
        [reports, self.asks_mover_at(now)].into_iter().flatten().min()
    }

    /// To whom, and when.
    fn reports_at(&self) -> Option<(NodeId, Instant)> {
        let master = self.groups.get(&GroupId::SYSTEM)?.agreed().mastership.node?;
        let me = self.process.node;
        let is_concerned = self.system().token().is_some_and(|token| token.from == me || token.to == me);
        let pause = if is_concerned { self.options.resend } else { self.options.report };
        Some((master, self.moves.reported + pause))
    }

    /// On the system group's master alone: all others ask when there is news.
    fn asks_mover_at(&self, now: Instant) -> Option<Instant> {
        let asks = self.told.is_some() && self.masters_system(now);
        asks.then(|| self.moves.asked_at + self.options.resend / 2)
    }

    /// What has to be said is said with the next tick.
    pub(super) fn report_soon(&mut self) {
        self.moves.reported = Instant::default();
    }

    fn report(&self, now: Instant) -> Report {
        let serves = self.groups.iter().filter(|(id, _)| **id != GroupId::SYSTEM).filter_map(|(id, group)| {
            Some(Serving { group: *id, epoch: group.serves(now)?.epoch, members: group.lags() })
        });
        let is_present = |fence: Fence| self.system().token().is_some_and(|token| token.fence == fence);
        let prepared = self.moves.prepared.filter(|(fence, _)| is_present(*fence));
        let refused = self.moves.refused.filter(|(fence, _)| is_present(*fence));
        Report { process: self.process.incarnation, stamp: now, serves: serves.collect(), prepared, refused }
    }

    pub(super) fn hear_report(&mut self, from: NodeId, report: Report, now: Instant, effects: &mut Effects) {
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
        let Report { prepared, refused, .. } = report;
        self.moves.reports.insert(from, (report, now));
        if let Some((fence, what)) = prepared {
            self.ask_mover(mover::Input::Prepared { fence, what }, now, effects);
        }
        if let Some((fence, step)) = refused {
            self.ask_mover(mover::Input::Refused { fence, step }, now, effects);
        }
    }

    pub(super) fn ask_mover(&mut self, input: mover::Input, now: Instant, effects: &mut Effects) {
        let masters_system = self.masters_system(now);
        let Some((liveness, _)) = self.told.as_ref().map(|told| told.lease) else { return };
        let is_due = self.asks_mover_at(now).is_some_and(|at| now >= at);
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
            self.obey(Obeyed { of, step, until }, now, effects);
        }
        if is_due {
            self.moves.asked_at = now;
            for record in self.misplaced(groups) {
                self.propose(&record, now, effects);
            }
        }
    }

    /// What the mover has begun, and not given up, that this node has a part in, and until when.
    fn begun_for(&self, node: NodeId, now: Instant) -> Option<(Move, Step, Instant)> {
        let is_present = |of: Move| self.system().token().is_some_and(|token| token.fence == of.fence);
        let begun = self.moves.begun.filter(|(of, _, until)| now < *until && is_present(*of));
        let begun = begun.filter(|(_, step, _)| self.moves.mover.is_at(*step));
        begun.filter(|(of, step, _)| match step {
            Step::Prepare(_) => node == of.from,
            Step::Handover(_) => node == of.from || node == of.to,
        })
    }

    /// What the system group does not know yet of who is a member of which paxos group.
    fn misplaced(&self, groups: BTreeMap<GroupId, Facts>) -> Vec<Record> {
        let system = self.liveness.system();
        let placed = groups.into_iter().map(|(group, facts)| (group, facts.lag.into_keys().collect::<Vec<_>>()));
        let is_news = |(group, replicas): &(GroupId, Vec<NodeId>)| {
            let is_known = replicas.iter().all(|node| system.node(*node).is_some());
            is_known && system.groups().get(group).is_none_or(|group| group.replicas != *replicas)
        };
        placed.filter(is_news).map(|(group, replicas)| Record::Group { group, replicas }).collect()
    }

    pub(super) fn hear_orders(&mut self, orders: &Orders, now: Instant, effects: &mut Effects) {
        let Orders { process, stamp, of, step, within } = *orders;
        if process != self.process.incarnation {
            return;
        }
        let from = if self.options.deviation.is(Mutant::OrdersFromArrival) { now } else { stamp };
        self.obey(Obeyed { of, step, until: from + self.options.shrunk(within) }, now, effects);
    }

    fn obey(&mut self, orders: Obeyed, now: Instant, effects: &mut Effects) {
        let Obeyed { of, step, until } = orders;
        let before = self.moves.obeyed;
        let is_late = now >= until || before.is_some_and(|before| (before.of.fence, before.step) > (of.fence, step));
        let group = self.groups.get(&of.group);
        let is_moot = group.is_none_or(|group| group.agreed().mastership.tenure.epoch != of.epoch);
        if is_late || is_moot {
            return;
        }
        self.moves.obeyed = Some(orders);
        let is_first = before.is_none_or(|before| (before.of.fence, before.step) != (of.fence, step));
        let is_from = of.from == self.process.node;
        // What is not over when its orders are would outlive the move.
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
            Step::Handover(Scheme::Consent) if is_from => match self.moves.asking.take() {
                Some((from, group, tenure)) if self.lets(from, group, tenure, now) => {
                    Some(Input::Message { from, message: Message::Ask { tenure } })
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

    /// Whether this node was ordered to leave its mastership to that one.
    fn lets(&self, to: NodeId, group: GroupId, tenure: Tenure, now: Instant) -> bool {
        self.orders(now).is_some_and(|Obeyed { of, step, .. }| {
            step == Step::Handover(Scheme::Consent)
                && (of.from, of.to, of.group, of.epoch) == (self.process.node, to, group, tenure.epoch)
        })
    }

    /// Where there is a system group, masters leave by its orders alone. Who asks earlier is heard when they come.
    pub(super) fn hear_ask(
        &mut self,
        from: NodeId,
        group: GroupId,
        tenure: Tenure,
        now: Instant,
        effects: &mut Effects,
    ) {
        let is_free = group == GroupId::SYSTEM || !self.groups.contains_key(&GroupId::SYSTEM);
        if is_free || self.lets(from, group, tenure, now) {
            self.step_group(group, now, Input::Message { from, message: Message::Ask { tenure } }, effects);
        } else {
            self.moves.asking = Some((from, group, tenure));
        }
    }

    pub(super) fn prepared(&mut self, fence: Fence, what: Preparation) {
        self.moves.prepared = Some((fence, what));
        self.report_soon();
    }

    /// The master of this did not let it go: what this node was ordered cannot be done.
    pub(super) fn declined(&mut self, group: GroupId, tenure: Tenure, now: Instant) {
        if let Some(Obeyed { of, step, .. }) = self.orders(now)
            && (of.group, of.epoch) == (group, tenure.epoch)
        {
            self.moves.refused = Some((of.fence, step));
            self.report_soon();
        }
    }
}
