//! Simulated user of a cluster. It makes one request after another for its own schedules, sends each request to any
//! member, and records the responses.

use std::sync::Arc;
use std::time::Duration;

use domain::{Incarnation, Schedule, ScheduleId, Status};
use futures_util::future::join;
use scheduler::{CancelResponse, Create, CreateRejection, RedriveResponse};

use super::test_cluster::{TestCluster, tenant};
use super::{CLOCK_OFFSET_MAX, series_end};
use crate::user::{self, Incarnations, expected};

/// Longest time until an attempt in flight reaches its receiver, if the store is slow.
const IN_FLIGHT: Duration = Duration::from_secs(5);

pub(super) struct Client<'a> {
    cluster: &'a TestCluster,
    incarnations: &'a Incarnations,
    number: usize,
    created: u32,
    mine: Vec<(ScheduleId, Incarnation)>,
    /// Create requests with chosen ids that got no response. The client repeats each request until it gets a response.
    unanswered: Vec<Create>,
}

/// Result of a create request.
enum CreateResult {
    Created(Arc<Schedule>),
    Exists,
    Unknown,
}

impl<'a> Client<'a> {
    pub(super) fn new(cluster: &'a TestCluster, incarnations: &'a Incarnations, number: usize) -> Client<'a> {
        Client { cluster, incarnations, number, created: 0, mine: Vec::new(), unanswered: Vec::new() }
    }

    pub(super) async fn run(mut self, until: Duration) -> Self {
        while self.cluster.sim.elapsed() < until {
            let wait = Duration::from_millis(self.draw(400));
            self.cluster.sim.sleep(wait).await;
            match self.draw(22) {
                0..=5 => self.create_generated().await,
                6..=8 => self.create_chosen().await,
                9 => self.create_twice_at_once().await,
                10..=12 => self.put().await,
                13..=16 => self.cancel().await,
                17 => self.create_again().await,
                18 => self.get().await,
                19 => self.redrive().await,
                _ => self.retry_create().await,
            }
        }
        self
    }

    /// Repeats the create requests that got no response. The scenario calls this function after all faults have ended.
    pub(super) async fn finish(&mut self) {
        for _ in 0..100 {
            if self.unanswered.is_empty() {
                return;
            }
            self.retry_create().await;
        }
        let stuck = self.unanswered.iter().filter_map(|create| create.id.clone());
        panic!(
            "stuck: the client cannot create these schedules although all faults have ended: {:?}",
            stuck.collect::<Vec<_>>()
        );
    }

    fn draw(&self, below: u64) -> u64 {
        self.cluster.sim.draw(|random| random.below(below))
    }

    /// Returns a random member that is up.
    fn member(&self) -> Option<String> {
        let names = self.cluster.serving();
        (!names.is_empty()).then(|| names[self.cluster.sim.draw(|random| random.index(names.len()))].clone())
    }

    fn request(&self, id: Option<ScheduleId>) -> Create {
        let now = self.cluster.sim.outside().now();
        let spec = self.cluster.sim.draw(|random| user::spec(random, now));
        Create { tenant: Arc::new(tenant()), id, incarnation: None, spec, by: None }
    }

    fn new_id(&mut self) -> ScheduleId {
        self.created += 1;
        ScheduleId::new(&format!("c{}-{}", self.number, self.created))
            .expect("the letter c and two numbers form a valid schedule id")
    }

    async fn create_generated(&mut self) {
        match self.create(self.request(None)).await {
            CreateResult::Created(schedule) => self.record_created(&schedule),
            CreateResult::Exists => panic!("a member reported that a newly generated id already exists"),
            CreateResult::Unknown => self.cluster.history.create_without_response(),
        }
    }

    async fn create_chosen(&mut self) {
        let id = self.new_id();
        let request = self.request(Some(id));
        match self.create(request.clone()).await {
            CreateResult::Created(schedule) => self.record_created(&schedule),
            CreateResult::Exists => panic!("a member reported that an unused id already exists"),
            CreateResult::Unknown => self.unanswered.push(request),
        }
    }

    /// Sends two create requests with the same id at the same time, each to a random member.
    async fn create_twice_at_once(&mut self) {
        let id = self.new_id();
        let (one, other) = (self.request(Some(id.clone())), self.request(Some(id.clone())));
        match join(self.create(one.clone()), self.create(other)).await {
            (CreateResult::Created(one), CreateResult::Created(other)) => {
                panic!(
                    "two members created schedule {id}, as incarnations {:?} and {:?}",
                    one.incarnation, other.incarnation
                )
            }
            (CreateResult::Created(schedule), other) | (other, CreateResult::Created(schedule)) => {
                if matches!(other, CreateResult::Unknown) {
                    self.cluster.history.create_without_response();
                }
                self.record_created(&schedule)
            }
            (CreateResult::Exists, CreateResult::Exists) => {
                panic!("both members reported that an unused id already exists")
            }
            (CreateResult::Unknown, _) | (_, CreateResult::Unknown) => self.unanswered.push(one),
        }
    }

    /// Repeats a create request that got no response. Either the earlier request has created the schedule, or the
    /// repeated request creates it. In the second case, the earlier request may still create the schedule again, after the
    /// client has cancelled it.
    async fn retry_create(&mut self) {
        let Some(request) = self.unanswered.pop() else { return };
        match self.create(request.clone()).await {
            CreateResult::Created(schedule) => {
                self.cluster.history.create_without_response();
                self.record_created(&schedule)
            }
            CreateResult::Exists => {
                let id = request.id.clone().expect("the client retries only create requests that contain an id");
                match self.find(&id).await {
                    Some(found) => {
                        let found = found.unwrap_or_else(|| {
                            panic!("lost: a member reported that schedule {id} exists, but a read did not find it")
                        });
                        self.record_created(&found);
                    }
                    None => self.unanswered.push(request),
                }
            }
            CreateResult::Unknown => self.unanswered.push(request),
        }
    }

    async fn create(&self, request: Create) -> CreateResult {
        let Some(member) = self.member() else { return CreateResult::Unknown };
        let operation = |scheduler: scheduler::Scheduler| async move { scheduler.create(vec![request]).await };
        match self.cluster.call(&member, operation).await {
            Some(Ok(mut responses)) => match responses.pop().expect("a create returns one result per request") {
                Ok(schedule) => CreateResult::Created(schedule),
                Err(CreateRejection::Exists) => CreateResult::Exists,
                Err(CreateRejection::Unreachable) => CreateResult::Unknown,
                Err(CreateRejection::NeverFires) => panic!("a member rejected a schedule that has a next instant"),
            },
            Some(Err(_)) | None => CreateResult::Unknown,
        }
    }

    /// Reads the schedule. Returns `None` if the request got no response.
    async fn find(&self, id: &ScheduleId) -> Option<Option<Arc<Schedule>>> {
        let (tenant, id) = (tenant().id, id.clone());
        let member = self.member()?;
        self.cluster.call(&member, |scheduler| async move { scheduler.get(tenant, id).await }).await?.ok()
    }

    fn record_created(&mut self, schedule: &Schedule) {
        self.incarnations.add(schedule.incarnation);
        self.cluster.record.record_home(schedule.incarnation, schedule.poller.shard());
        self.cluster.history.created(schedule.incarnation, expected(schedule, series_end(&self.cluster.sim)));
        self.mine.push((schedule.id.clone(), schedule.incarnation));
    }

    /// Sends a create request with the id of an existing schedule. The member must reject the request, and the existing
    /// schedule must stay.
    async fn create_again(&mut self) {
        let Some((id, _)) = self.pick() else { return };
        if let CreateResult::Created(created) = self.create(self.request(Some(id.clone()))).await {
            panic!("a member lost the acknowledged schedule {id}, and created the schedule again as {created:?}");
        }
    }

    async fn get(&mut self) {
        let Some((id, incarnation)) = self.pick() else { return };
        let Some(found) = self.find(&id).await else { return };
        let is_there = |found: &Arc<Schedule>| found.incarnation == incarnation && found.status != Status::Cancelled;
        assert!(found.as_ref().is_some_and(is_there), "lost: {id} was created, but a read returned {found:?}");
    }

    async fn put(&mut self) {
        let (Some((id, incarnation)), Some(member)) = (self.pick(), self.member()) else { return };
        let request = self.request(Some(id.clone()));
        match self.cluster.call(&member, |scheduler| async move { scheduler.put(request).await }).await {
            Some(Ok(Ok(response))) => {
                assert!(!response.created, "a member lost the acknowledged schedule {id}: a put found no schedule");
                if response.too_late {
                    // The attempt in flight may reach its receiver after this response. The history rejects an attempt
                    // that starts after a reported change, so the client waits before it reports the change.
                    self.cluster.sim.sleep(IN_FLIGHT).await;
                }
                let Schedule { incarnation, revision, .. } = *response.schedule;
                self.cluster.history.revised(
                    incarnation,
                    revision,
                    expected(&response.schedule, series_end(&self.cluster.sim)),
                );
            }
            Some(Ok(Err(CreateRejection::Unreachable)) | Err(_)) | None => self.abandon_schedule(incarnation),
            Some(Ok(Err(rejection))) => panic!("a member rejected a schedule that has a next instant: {rejection:?}"),
        }
    }

    async fn cancel(&mut self) {
        let (Some((id, incarnation)), Some(member)) = (self.pick(), self.member()) else { return };
        let (tenant, name) = (tenant().id, id.clone());
        let (history, off_before) = (&self.cluster.history, self.off(&member));
        let operation = |scheduler: scheduler::Scheduler| async move { scheduler.cancel(tenant, name, None).await };
        match self.cluster.call(&member, operation).await {
            Some(Ok(CancelResponse::Cancelled)) => history.cancelled(incarnation),
            Some(Ok(CancelResponse::TooLate)) => {
                self.cluster.sim.sleep(IN_FLIGHT).await;
                history.cancelled_too_late(incarnation);
            }
            Some(Ok(CancelResponse::NotFound)) => {
                panic!("a member lost the acknowledged schedule {id}: a cancellation did not find the schedule")
            }
            Some(Ok(CancelResponse::Pending { decided_by })) => {
                // The instant `decided_by` refers to the clock of the member that handled the request.
                let off = CLOCK_OFFSET_MAX.max(off_before).max(self.off(&member));
                history.cancelled_by(incarnation, decided_by.since(self.cluster.sim.epoch()) + off);
            }
            Some(Err(_)) | None => return self.abandon_schedule(incarnation),
        }
        self.mine.retain(|(_, mine)| *mine != incarnation);
    }

    /// Returns the absolute difference between a member's clock and true time.
    fn off(&self, member: &str) -> Duration {
        let (clock, now) = (self.cluster.sim.clock(member), self.cluster.sim.outside().now());
        Duration::from_millis(clock.as_millis().abs_diff(now.as_millis()))
    }

    async fn redrive(&mut self) {
        let (Some(member), Some(other)) = (self.member(), self.member()) else { return };
        let tenant = tenant().id;
        let operation = |scheduler: scheduler::Scheduler| async move { scheduler.dead_letters(tenant, None, 10).await };
        let Some(Ok(letters)) = self.cluster.call(&member, operation).await else { return };
        let mine = |incarnation: Incarnation| self.mine.iter().any(|(_, mine)| *mine == incarnation);
        let Some(letter) = letters.into_iter().find(|letter| mine(letter.occurrence.incarnation)) else { return };
        let of = letter.occurrence;
        let operation = |scheduler: scheduler::Scheduler| async move { scheduler.redrive(tenant, of).await };
        match self.cluster.call(&other, operation).await {
            Some(Ok(RedriveResponse::Redriven(occurrence))) => self.cluster.history.redriven(occurrence),
            Some(Ok(RedriveResponse::NotDead)) => {}
            Some(Ok(RedriveResponse::NotFound)) => {
                panic!("lost: a member listed the dead letter {of:?}, but a redrive did not find it")
            }
            Some(Err(_)) | None => self.abandon_schedule(of.incarnation),
        }
    }

    /// Records that a change got no response, so the change may or may not take effect. The client stops using the
    /// schedule.
    fn abandon_schedule(&mut self, incarnation: Incarnation) {
        self.cluster.history.change_without_response(incarnation);
        self.mine.retain(|(_, mine)| *mine != incarnation);
    }

    fn pick(&self) -> Option<(ScheduleId, Incarnation)> {
        (!self.mine.is_empty())
            .then(|| self.mine[self.cluster.sim.draw(|random| random.index(self.mine.len()))].clone())
    }
}
