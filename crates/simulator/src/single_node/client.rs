//! Simulated user of a single node. It makes one request after another for its own schedules, and records the
//! responses.

use std::sync::Arc;
use std::time::Duration;

use domain::{Incarnation, Schedule, ScheduleId};
use scheduler::{CancelResponse, Create, CreateRejection, RedriveResponse};

use super::engine::{Engine, tenant};
use super::series_end;
use super::{JUMP_MAX, MEMBER};
use crate::user::{self, Incarnations, expected};
use crate::{Handle, History};

/// Longest time until an attempt in flight reaches its receiver, if the store is slow.
const IN_FLIGHT: Duration = Duration::from_secs(5);

pub(super) struct Client<'a> {
    sim: &'a Handle,
    engine: &'a Engine,
    history: &'a History,
    incarnations: &'a Incarnations,
    number: usize,
    created: u32,
    mine: Vec<(ScheduleId, Incarnation)>,
}

impl<'a> Client<'a> {
    pub(super) fn new(
        sim: &'a Handle,
        engine: &'a Engine,
        history: &'a History,
        incarnations: &'a Incarnations,
        number: usize,
    ) -> Client<'a> {
        Client { sim, engine, history, incarnations, number, created: 0, mine: Vec::new() }
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
        // A client knows the true time. If the member's clock is only a little off, the client uses the member's time.
        let true_time = self.sim.outside().now();
        let now = self.sim.clock(MEMBER).min(true_time + JUMP_MAX);
        let spec = self.sim.draw(|random| user::spec(random, now));
        Create { tenant: Arc::new(tenant()), id, incarnation: None, spec, by: None }
    }

    async fn create(&mut self) {
        self.created += 1;
        let id = format!("c{}-{}", self.number, self.created);
        let chosen = self.sim.draw(|random| random.coin());
        let valid = |id: &str| ScheduleId::new(id).expect("a schedule id may contain letters, digits and `-`");
        let request = self.request(chosen.then(|| valid(&id)));
        let response = self.engine.call(|scheduler| async move { scheduler.create(vec![request]).await }).await;
        match response {
            Some(Ok(mut responses)) => match responses.pop().expect("a create returns one result per request") {
                Ok(schedule) => self.record_created(&schedule),
                Err(refusal) => panic!("the member rejected the create of a new schedule: {refusal}"),
            },
            Some(Err(_)) | None => self.history.create_without_response(),
        }
    }

    fn record_created(&mut self, schedule: &Schedule) {
        self.incarnations.add(schedule.incarnation);
        self.history.created(schedule.incarnation, expected(schedule, series_end(self.sim)));
        self.mine.push((schedule.id.clone(), schedule.incarnation));
    }

    /// Sends a create request with the id of an existing schedule. The member must reject the request, and the existing
    /// schedule must stay.
    async fn create_again(&mut self) {
        let Some((id, _)) = self.pick() else { return };
        let request = self.request(Some(id.clone()));
        let response = self.engine.call(|scheduler| async move { scheduler.create(vec![request]).await }).await;
        if let Some(Ok(mut responses)) = response {
            let response = responses.pop().expect("a create returns one result per request");
            assert!(
                response == Err(CreateRejection::Exists),
                "lost: the schedule {id} was acknowledged, but another create of the id was not rejected: {response:?}"
            );
        }
    }

    async fn put(&mut self) {
        let Some((id, incarnation)) = self.pick() else { return };
        let request = self.request(Some(id.clone()));
        let response = self.engine.call(|scheduler| async move { scheduler.put(request).await }).await;
        match response {
            Some(Ok(Ok(response))) => {
                assert!(!response.created, "lost: the schedule {id} was acknowledged, but a put did not find it");
                if response.too_late {
                    // The attempt in flight may reach its receiver after this response. The history rejects an attempt
                    // that starts after a reported change, so the client waits before it reports the change.
                    self.sim.outside().sleep(IN_FLIGHT).await;
                }
                let Schedule { incarnation, revision, .. } = *response.schedule;
                self.history.revised(incarnation, revision, expected(&response.schedule, series_end(self.sim)));
            }
            Some(Ok(Err(refusal))) => panic!("the member rejected a put of a schedule with a next instant: {refusal}"),
            Some(Err(_)) | None => self.abandon_schedule(incarnation),
        }
    }

    async fn cancel(&mut self) {
        let Some((id, incarnation)) = self.pick() else { return };
        let name = id.clone();
        let tenant = tenant().id;
        let response = self.engine.call(|scheduler| async move { scheduler.cancel(tenant, name, None).await }).await;
        match response {
            Some(Ok(CancelResponse::Cancelled)) => self.history.cancelled(incarnation),
            Some(Ok(CancelResponse::TooLate)) => {
                self.sim.outside().sleep(IN_FLIGHT).await;
                self.history.cancelled_too_late(incarnation);
            }
            Some(Ok(CancelResponse::NotFound)) => {
                panic!("lost: the schedule {id} was acknowledged, but a cancellation did not find it")
            }
            Some(Ok(CancelResponse::Pending { .. })) => panic!("a single node never returns a pending cancellation"),
            Some(Err(_)) | None => return self.abandon_schedule(incarnation),
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
        let response = self.engine.call(|scheduler| async move { scheduler.redrive(tenant, of).await }).await;
        match response {
            Some(Ok(RedriveResponse::Redriven(occurrence))) => self.history.redriven(occurrence),
            Some(Ok(RedriveResponse::NotDead)) => {}
            Some(Ok(RedriveResponse::NotFound)) => {
                panic!("lost: the member listed the dead letter {of:?}, but a redrive did not find it")
            }
            Some(Err(_)) | None => self.abandon_schedule(of.incarnation),
        }
    }

    /// Records that a change got no response, so the change may or may not take effect. The client stops using the
    /// schedule.
    fn abandon_schedule(&mut self, incarnation: Incarnation) {
        self.history.change_without_response(incarnation);
        self.mine.retain(|(_, mine)| *mine != incarnation);
    }

    fn pick(&self) -> Option<(ScheduleId, Incarnation)> {
        (!self.mine.is_empty()).then(|| self.mine[self.sim.draw(|random| random.index(self.mine.len()))].clone())
    }
}
