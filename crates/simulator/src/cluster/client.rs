//! One user: does one thing after another to schedules of its own, each at any member, and writes down what it is told.

use std::sync::Arc;
use std::time::Duration;

use domain::{Incarnation, Schedule, ScheduleId, Status};
use futures_util::future::join;
use scheduler::{CancelAnswer, Create, CreateRefusal, RedriveAnswer};

use super::town::{Town, tenant};
use super::{CLOCK_OFFSET_MAX, beats_until};
use crate::EPOCH;
use crate::user::{self, Names, expected};

/// How long an attempt that is in flight may take to reach its receiver on a slow store.
const IN_FLIGHT: Duration = Duration::from_secs(5);

pub(super) struct Client<'a> {
    town: &'a Town,
    names: &'a Names,
    number: usize,
    created: u32,
    mine: Vec<(ScheduleId, Incarnation)>,
    /// Creates of chosen ids that were not answered: they are asked for again until they are.
    unanswered: Vec<Create>,
}

/// What came of a create under a chosen id.
enum Made {
    Created(Arc<Schedule>),
    Exists,
    Unknown,
}

impl<'a> Client<'a> {
    pub(super) fn new(town: &'a Town, names: &'a Names, number: usize) -> Client<'a> {
        Client { town, names, number, created: 0, mine: Vec::new(), unanswered: Vec::new() }
    }

    pub(super) async fn run(mut self, until: Duration) -> Self {
        while self.town.sim.elapsed() < until {
            let wait = Duration::from_millis(self.draw(400));
            self.town.sim.sleep(wait).await;
            match self.draw(22) {
                0..=5 => self.create_made().await,
                6..=8 => self.create_chosen().await,
                9 => self.create_twice_at_once().await,
                10..=12 => self.put().await,
                13..=16 => self.cancel().await,
                17 => self.create_again().await,
                18 => self.get().await,
                19 => self.redrive().await,
                _ => self.ask_again().await,
            }
        }
        self
    }

    /// Once all is well: nothing is left that was not answered.
    pub(super) async fn finish(&mut self) {
        for _ in 0..100 {
            if self.unanswered.is_empty() {
                return;
            }
            self.ask_again().await;
        }
        let stuck = self.unanswered.iter().filter_map(|create| create.id.clone());
        panic!("stuck: these are not made, and nothing is wrong: {:?}", stuck.collect::<Vec<_>>());
    }

    fn draw(&self, below: u64) -> u64 {
        self.town.sim.draw(|random| random.below(below))
    }

    /// Any member that is up.
    fn member(&self) -> Option<String> {
        let names = self.town.serving();
        (!names.is_empty()).then(|| names[self.town.sim.draw(|random| random.index(names.len()))].clone())
    }

    fn request(&self, id: Option<ScheduleId>) -> Create {
        let now = self.town.sim.outside().now();
        let spec = self.town.sim.draw(|random| user::spec(random, now));
        Create { tenant: Arc::new(tenant()), id, incarnation: None, spec }
    }

    fn new_id(&mut self) -> ScheduleId {
        self.created += 1;
        ScheduleId::new(&format!("c{}-{}", self.number, self.created)).expect("such an id is allowed")
    }

    async fn create_made(&mut self) {
        match self.create(self.request(None)).await {
            Made::Created(schedule) => self.is_created(&schedule),
            Made::Exists => panic!("a made id is refused"),
            Made::Unknown => self.town.ledger.create_unanswered(),
        }
    }

    async fn create_chosen(&mut self) {
        let id = self.new_id();
        let request = self.request(Some(id));
        match self.create(request.clone()).await {
            Made::Created(schedule) => self.is_created(&schedule),
            Made::Exists => panic!("a new id is refused"),
            Made::Unknown => self.unanswered.push(request),
        }
    }

    /// The same id through two members.
    async fn create_twice_at_once(&mut self) {
        let id = self.new_id();
        let (one, other) = (self.request(Some(id.clone())), self.request(Some(id.clone())));
        match join(self.create(one.clone()), self.create(other)).await {
            (Made::Created(one), Made::Created(other)) => {
                panic!("{id} was made twice: {:?} and {:?}", one.incarnation, other.incarnation)
            }
            (Made::Created(schedule), _) | (_, Made::Created(schedule)) => self.is_created(&schedule),
            (Made::Exists, Made::Exists) => panic!("a new id is refused"),
            (Made::Unknown, _) | (_, Made::Unknown) => self.unanswered.push(one),
        }
    }

    /// A create that was not answered is asked for again: it was made, or is made now.
    async fn ask_again(&mut self) {
        let Some(request) = self.unanswered.pop() else { return };
        match self.create(request.clone()).await {
            Made::Created(schedule) => self.is_created(&schedule),
            Made::Exists => {
                let id = request.id.clone().expect("only chosen ids are asked for again");
                match self.find(&id).await {
                    Some(found) => {
                        let found = found.unwrap_or_else(|| panic!("lost: {id} exists, and is not found"));
                        self.is_created(&found);
                    }
                    None => self.unanswered.push(request),
                }
            }
            Made::Unknown => self.unanswered.push(request),
        }
    }

    async fn create(&self, request: Create) -> Made {
        let Some(member) = self.member() else { return Made::Unknown };
        let asked = |scheduler: scheduler::Scheduler| async move { scheduler.create(vec![request]).await };
        match self.town.call(&member, asked).await {
            Some(Ok(mut answers)) => match answers.pop().expect("one answer for one request") {
                Ok(schedule) => Made::Created(schedule),
                Err(CreateRefusal::Exists) => Made::Exists,
                Err(CreateRefusal::Unreachable) => Made::Unknown,
                Err(CreateRefusal::NeverFires) => panic!("what has a next instant is refused"),
            },
            Some(Err(_)) | None => Made::Unknown,
        }
    }

    /// `None` if there was no answer.
    async fn find(&self, id: &ScheduleId) -> Option<Option<Arc<Schedule>>> {
        let (tenant, id) = (tenant().id, id.clone());
        let member = self.member()?;
        self.town.call(&member, |scheduler| async move { scheduler.get(tenant, id).await }).await?.ok()
    }

    fn is_created(&mut self, schedule: &Schedule) {
        self.names.add(schedule.incarnation);
        self.town.record.lives_at(schedule.incarnation, schedule.poller.shard());
        self.town.ledger.created(schedule.incarnation, expected(schedule, beats_until()));
        self.mine.push((schedule.id.clone(), schedule.incarnation));
    }

    /// An id that is there already is refused, and what it names goes on.
    async fn create_again(&mut self) {
        let Some((id, _)) = self.pick() else { return };
        if let Made::Created(anew) = self.create(self.request(Some(id.clone()))).await {
            panic!("lost: {id} was acknowledged and is made anew: {anew:?}");
        }
    }

    async fn get(&mut self) {
        let Some((id, incarnation)) = self.pick() else { return };
        let Some(found) = self.find(&id).await else { return };
        let is_there = |found: &Arc<Schedule>| found.incarnation == incarnation && found.status != Status::Cancelled;
        assert!(found.as_ref().is_some_and(is_there), "lost: {id} was acknowledged, and there is {found:?}");
    }

    async fn put(&mut self) {
        let (Some((id, incarnation)), Some(member)) = (self.pick(), self.member()) else { return };
        let request = self.request(Some(id.clone()));
        match self.town.call(&member, |scheduler| async move { scheduler.put(request).await }).await {
            Some(Ok(Ok(answer))) => {
                assert!(!answer.created, "lost: {id} was acknowledged, and a put finds nothing there");
                if answer.too_late {
                    // Of the attempt that is in flight, the ledger knows only that it begins.
                    self.town.sim.sleep(IN_FLIGHT).await;
                }
                let Schedule { incarnation, revision, .. } = *answer.schedule;
                self.town.ledger.revised(incarnation, revision, expected(&answer.schedule, beats_until()));
            }
            Some(Ok(Err(CreateRefusal::Unreachable) | Err(_))) => panic!("what has a next instant is refused"),
            Some(Err(_)) | None => self.is_doubtful(incarnation),
        }
    }

    async fn cancel(&mut self) {
        let (Some((id, incarnation)), Some(member)) = (self.pick(), self.member()) else { return };
        let (tenant, name) = (tenant().id, id.clone());
        let (ledger, off_before) = (&self.town.ledger, self.off(&member));
        let asked = |scheduler: scheduler::Scheduler| async move { scheduler.cancel(tenant, name).await };
        match self.town.call(&member, asked).await {
            Some(Ok(CancelAnswer::Cancelled)) => ledger.cancelled(incarnation),
            Some(Ok(CancelAnswer::TooLate)) => {
                self.town.sim.sleep(IN_FLIGHT).await;
                ledger.cancelled_too_late(incarnation);
            }
            Some(Ok(CancelAnswer::NotFound)) => panic!("lost: {id} was acknowledged and is not found"),
            Some(Ok(CancelAnswer::Pending { decided_by })) => {
                // The instant is one of the clock of the member that was asked.
                let off = CLOCK_OFFSET_MAX.max(off_before).max(self.off(&member));
                ledger.cancelled_by(incarnation, decided_by.since(EPOCH) + off);
            }
            Some(Err(_)) | None => return self.is_doubtful(incarnation),
        }
        self.mine.retain(|(_, mine)| *mine != incarnation);
    }

    /// How far a member's clock is off now.
    fn off(&self, member: &str) -> Duration {
        let (clock, now) = (self.town.sim.clock(member), self.town.sim.outside().now());
        Duration::from_millis(clock.as_millis().abs_diff(now.as_millis()))
    }

    async fn redrive(&mut self) {
        let (Some(member), Some(other)) = (self.member(), self.member()) else { return };
        let tenant = tenant().id;
        let asked = |scheduler: scheduler::Scheduler| async move { scheduler.dead_letters(tenant, None, 10).await };
        let Some(Ok(letters)) = self.town.call(&member, asked).await else { return };
        let mine = |incarnation: Incarnation| self.mine.iter().any(|(_, mine)| *mine == incarnation);
        let Some(letter) = letters.into_iter().find(|letter| mine(letter.occurrence.incarnation)) else { return };
        let of = letter.occurrence;
        let asked = |scheduler: scheduler::Scheduler| async move { scheduler.redrive(tenant, of).await };
        match self.town.call(&other, asked).await {
            Some(Ok(RedriveAnswer::Redriven(occurrence))) => self.town.ledger.redriven(occurrence),
            Some(Ok(RedriveAnswer::NotDead)) => {}
            Some(Ok(RedriveAnswer::NotFound)) => panic!("lost: the dead letter {of:?} was listed and is not found"),
            Some(Err(_)) | None => self.is_doubtful(of.incarnation),
        }
    }

    /// A change that was not answered may come about or not.
    fn is_doubtful(&mut self, incarnation: Incarnation) {
        self.town.ledger.change_unanswered(incarnation);
        self.mine.retain(|(_, mine)| *mine != incarnation);
    }

    fn pick(&self) -> Option<(ScheduleId, Incarnation)> {
        (!self.mine.is_empty()).then(|| self.mine[self.town.sim.draw(|random| random.index(self.mine.len()))].clone())
    }
}
