//! One user: does one thing after another to schedules of its own, and writes down what it is told.

use std::sync::Arc;
use std::time::Duration;

use domain::{Incarnation, Schedule, ScheduleId};
use scheduler::{CancelAnswer, Create, CreateRefusal, RedriveAnswer};

use super::MEMBER;
use super::beats_until;
use super::engine::{Engine, tenant};
use crate::user::{self, Names, expected};
use crate::{Handle, Ledger};

/// How long an attempt that is in flight may take to reach its receiver on a slow store.
const IN_FLIGHT: Duration = Duration::from_secs(5);

pub(super) struct Client<'a> {
    sim: &'a Handle,
    engine: &'a Engine,
    ledger: &'a Ledger,
    names: &'a Names,
    number: usize,
    created: u32,
    mine: Vec<(ScheduleId, Incarnation)>,
}

impl<'a> Client<'a> {
    pub(super) fn new(
        sim: &'a Handle,
        engine: &'a Engine,
        ledger: &'a Ledger,
        names: &'a Names,
        number: usize,
    ) -> Client<'a> {
        Client { sim, engine, ledger, names, number, created: 0, mine: Vec::new() }
    }

    pub(super) async fn run(mut self, until: Duration) {
        while self.sim.elapsed() < until {
            let wait = Duration::from_millis(self.sim.draw(|random| random.below(400)));
            self.sim.outside().sleep(wait).await;
            match self.sim.draw(|random| random.below(20)) {
                0..=9 => self.create().await,
                10..=13 => self.put().await,
                14..=17 => self.cancel().await,
                18 => self.create_again().await,
                _ => self.redrive().await,
            }
        }
    }

    fn request(&self, id: Option<ScheduleId>) -> Create {
        let spec = self.sim.draw(|random| user::spec(random, self.sim.clock(MEMBER)));
        Create { tenant: Arc::new(tenant()), id, incarnation: None, spec }
    }

    async fn create(&mut self) {
        self.created += 1;
        let id = format!("c{}-{}", self.number, self.created);
        let chosen = self.sim.draw(|random| random.coin());
        let request = self.request(chosen.then(|| ScheduleId::new(&id).expect("such an id is allowed")));
        let answer = self.engine.call(|scheduler| async move { scheduler.create(vec![request]).await }).await;
        match answer {
            Some(Ok(mut answers)) => match answers.pop().expect("one answer for one request") {
                Ok(schedule) => self.created(&schedule),
                Err(refusal) => panic!("a new id is refused: {refusal}"),
            },
            Some(Err(_)) | None => self.ledger.create_unanswered(),
        }
    }

    fn created(&mut self, schedule: &Schedule) {
        self.names.add(schedule.incarnation);
        self.ledger.created(schedule.incarnation, expected(schedule, beats_until()));
        self.mine.push((schedule.id.clone(), schedule.incarnation));
    }

    /// An id that is there already is refused, and what it names goes on.
    async fn create_again(&mut self) {
        let Some((id, _)) = self.pick() else { return };
        let request = self.request(Some(id.clone()));
        let answer = self.engine.call(|scheduler| async move { scheduler.create(vec![request]).await }).await;
        if let Some(Ok(mut answers)) = answer {
            let answer = answers.pop().expect("one answer for one request");
            assert!(answer == Err(CreateRefusal::Exists), "lost: {id} was acknowledged and is made anew: {answer:?}");
        }
    }

    async fn put(&mut self) {
        let Some((id, incarnation)) = self.pick() else { return };
        let request = self.request(Some(id.clone()));
        let answer = self.engine.call(|scheduler| async move { scheduler.put(request).await }).await;
        match answer {
            Some(Ok(Ok(answer))) => {
                assert!(!answer.created, "lost: {id} was acknowledged, and a put finds nothing there");
                if answer.too_late {
                    // Of the attempt that is in flight, this ledger knows only that it begins.
                    self.sim.outside().sleep(IN_FLIGHT).await;
                }
                let Schedule { incarnation, revision, .. } = *answer.schedule;
                self.ledger.revised(incarnation, revision, expected(&answer.schedule, beats_until()));
            }
            Some(Ok(Err(refusal))) => panic!("what has a next instant is refused: {refusal}"),
            Some(Err(_)) | None => self.unanswered(incarnation),
        }
    }

    async fn cancel(&mut self) {
        let Some((id, incarnation)) = self.pick() else { return };
        let name = id.clone();
        let tenant = tenant().id;
        let answer = self.engine.call(|scheduler| async move { scheduler.cancel(tenant, name).await }).await;
        match answer {
            Some(Ok(CancelAnswer::Cancelled)) => self.ledger.cancelled(incarnation),
            Some(Ok(CancelAnswer::TooLate)) => {
                self.sim.outside().sleep(IN_FLIGHT).await;
                self.ledger.cancelled_too_late(incarnation);
            }
            Some(Ok(CancelAnswer::NotFound)) => panic!("lost: {id} was acknowledged and is not found"),
            Some(Ok(CancelAnswer::Pending { .. })) => panic!("one process alone never answers that"),
            Some(Err(_)) | None => return self.unanswered(incarnation),
        }
        self.mine.retain(|(_, mine)| *mine != incarnation);
    }

    async fn redrive(&mut self) {
        let tenant = tenant().id;
        let letters = self.engine.call(|scheduler| async move { scheduler.dead_letters(tenant, None, 10).await }).await;
        let Some(Ok(letters)) = letters else { return };
        let mine = |incarnation: Incarnation| self.mine.iter().any(|(_, mine)| *mine == incarnation);
        let Some(letter) = letters.into_iter().find(|letter| mine(letter.occurrence.incarnation)) else { return };
        let of = letter.occurrence;
        let answer = self.engine.call(|scheduler| async move { scheduler.redrive(tenant, of).await }).await;
        match answer {
            Some(Ok(RedriveAnswer::Redriven(occurrence))) => self.ledger.redriven(occurrence),
            Some(Ok(RedriveAnswer::NotDead)) => {}
            Some(Ok(RedriveAnswer::NotFound)) => panic!("lost: the dead letter {of:?} was listed and is not found"),
            Some(Err(_)) | None => self.unanswered(of.incarnation),
        }
    }

    fn unanswered(&mut self, incarnation: Incarnation) {
        self.ledger.change_unanswered(incarnation);
        self.mine.retain(|(_, mine)| *mine != incarnation);
    }

    fn pick(&self) -> Option<(ScheduleId, Incarnation)> {
        (!self.mine.is_empty()).then(|| self.mine[self.sim.draw(|random| random.index(self.mine.len()))].clone())
    }
}
