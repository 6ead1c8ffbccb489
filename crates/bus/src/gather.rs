//! Requests that several services answer, for example to collect or to delete all data about a person.
//!
//! A program sends a [`GatherRequest`] to the topic of the answers. A coordinator passes it to the services through the
//! topic of the requests. Each service is a group of its own ([`GatherService`]). It sends its answers to the topic of the
//! answers. After the bus has acknowledged them, it sends its end. The coordinators are one more group
//! ([`GatherCoordinator`]). They receive the answers, and decide when a request is over.
//!
//! - The id of a request is the key of all its records in the topic of the answers. So they are in one partition, and one
//!   coordinator receives them in their order: the request, the answers of each service, and the end of each service. The
//!   topic must not grow while requests are open.
//! - A request is complete when all expected services have ended. At its deadline it is over, and its outcome names the
//!   missing services.
//! - A coordinator that becomes the owner of a partition reads it again from the oldest open request on, and so knows the
//!   state of all open requests. The topic must keep its records for longer than the longest time until a deadline.
//!   The bus must not compact the topic.
//! - A service that fails begins again, and sends the same answers with the same numbers. The coordinator ignores answers
//!   that it has passed on, and all answers after the end of a request.
//!
//! docs/decisions/0237-build-the-state-of-gatherings-from-their-topic.md gives the reasons.

mod message;
mod service;
mod state;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::{BoxFuture, join_all};
use instants::Timestamp;
use runtime::{Runtime, TaskSet};

use self::message::Message;
pub use self::message::{DEADLINE_HEADER, KIND_HEADER, NUMBER_HEADER, REQUEST_HEADER, SERVICE_HEADER, SERVICES_HEADER};
pub use self::service::{Answerer, Answers, GatherService, GatherServiceOptions};
use self::state::{Requests, Step};
use crate::consumer::ConsumerOptions;
use crate::processor::{
    Delivery, Handler, HandlerError, MakeHandler, Processor, ProcessorOptions, Retry, StatefulHandler,
};
use crate::producer::{NewRecord, Producer, ProducerOptions};
use crate::topic::{Offset, Partition, Record, TopicName};
use crate::{Bus, BusError};

/// Time between two checks of the deadlines.
const DEADLINE_PERIOD: Duration = Duration::from_secs(1);
/// Largest number of requests of a partition that the coordinator ends in one batch of records.
const DEADLINES_MAX: usize = 1_000;
/// Wait of a record whose handler has failed, before the second call.
const FIRST_WAIT: Duration = Duration::from_millis(100);
/// Longest wait of a record whose handler has failed.
const WAIT_MAX: Duration = Duration::from_secs(10);

/// Request that several services answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GatherRequest {
    /// Id of the request. A request with the id of an open request replaces it: the services answer again.
    pub id: String,
    /// Names of the services that must answer: 1 to 1,000 names, which are not empty and have no comma.
    pub services: BTreeSet<String>,
    /// Time at which the request is over, even if services are missing.
    pub deadline: Timestamp,
    /// Content of the request for the services.
    pub value: Bytes,
}

impl GatherRequest {
    /// Returns the record that starts the request. A program sends it with any producer. `answers` is the topic of the
    /// answers.
    ///
    /// # Errors
    /// Returns [`BusError::Invalid`] if the id is empty, or if the names of the services are invalid.
    pub fn record(&self, answers: &TopicName) -> Result<NewRecord, BusError> {
        if self.id.is_empty() || !message::are_valid(&self.services) {
            let reason = "a request needs an id and 1 to 1,000 services, whose names are not empty and have no comma";
            return Err(BusError::Invalid(reason.to_owned()));
        }
        Ok(message::request(answers, self))
    }
}

/// Answer of a service.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GatherAnswer {
    /// Id of the request.
    pub id: String,
    /// Name of the service.
    pub service: String,
    /// Number of the answer among the answers of the service. The first answer has the number 0.
    pub number: u64,
    /// Content of the answer.
    pub value: Bytes,
}

/// Outcome of a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GatherOutcome {
    /// Id of the request.
    pub id: String,
    /// Names of the services that have not ended before the deadline. It is empty if the request is complete.
    pub missing: BTreeSet<String>,
}

/// Code of the coordinators that receives answers and outcomes. In one process, the calls for one request are one after the
/// other. The outcome follows all answers of the services that are not missing.
///
/// A method may be called again with the same answer or outcome, after an error or after another coordinator has become
/// the owner of the partition. Its effects must therefore be idempotent. A call of a coordinator that was paused may still
/// run when another coordinator makes the next call.
pub trait Gatherer: Send + Sync + 'static {
    /// Receives an answer.
    ///
    /// # Errors
    /// After a retriable error, the same call is repeated after a wait, and the later records of the request wait. After
    /// another error, the coordinator logs the error and continues with the next record of the request.
    fn answer(&self, answer: GatherAnswer) -> BoxFuture<'_, Result<(), HandlerError>>;

    /// Receives the outcome of a request.
    ///
    /// # Errors
    /// See [`Gatherer::answer`].
    fn outcome(&self, outcome: GatherOutcome) -> BoxFuture<'_, Result<(), HandlerError>>;
}

/// Options of a coordinator. All coordinators must use the same options.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GatherOptions {
    /// Topic from which the services receive the requests.
    pub requests: TopicName,
    /// Topic of the answers. Programs send new requests to this topic.
    pub answers: TopicName,
    /// Name of the group of coordinators.
    pub group: String,
    /// Time without contact to the bus after which another coordinator continues. The default is 10 s.
    pub session_timeout: Duration,
    /// Number of open requests of a partition at which the coordinator passes no further request to the services. The outcome
    /// of such a request names all services as missing. It follows within about a second, or at the deadline if the
    /// coordinator fails in this time. Requests that arrive at the same time may exceed the bound. The default is
    /// 1,000,000.
    pub open_max: usize,
}

impl GatherOptions {
    /// Returns options with defaults.
    #[must_use]
    pub fn new(requests: TopicName, answers: TopicName, group: &str) -> Self {
        let session_timeout = Duration::from_secs(10);
        GatherOptions { requests, answers, group: group.to_owned(), session_timeout, open_max: 1_000_000 }
    }
}

/// Request that is not over.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OpenRequest {
    /// Id of the request.
    pub id: String,
    /// Names of the services that have not ended.
    pub missing: BTreeSet<String>,
    /// Time at which the request is over, even if services are missing.
    pub deadline: Timestamp,
}

/// Running member of the group of coordinators. A drop of this object stops it at once.
pub struct GatherCoordinator {
    processor: Processor,
    shared: Arc<Shared>,
    _tasks: TaskSet,
}

impl GatherCoordinator {
    /// Joins the group of coordinators.
    ///
    /// # Errors
    /// Returns [`BusError::UnknownTopic`] if one of the topics does not exist, and [`BusError::Invalid`] if the bus rejects
    /// the options.
    pub async fn start(
        runtime: &Runtime,
        bus: &dyn Bus,
        options: GatherOptions,
        gatherer: Arc<dyn Gatherer>,
    ) -> Result<Self, BusError> {
        bus.describe_topic(&options.requests).await?;
        let producer = bus.producer(ProducerOptions::default()).await?;
        let processing = processing(&options.group, &options.answers, options.session_timeout);
        let runtime = runtime.clone();
        let shared =
            Arc::new(Shared { runtime: runtime.clone(), options, gatherer, producer, partitions: Mutex::default() });
        let making = shared.clone();
        let make: MakeHandler = Box::new(move |partition| making.assigned(partition) as Arc<dyn StatefulHandler>);
        let processor = Processor::start_stateful(&runtime, bus, processing, make).await?;
        let tasks = TaskSet::new(&runtime);
        let checking = shared.clone();
        tasks.spawn("gather deadlines", async move { checking.check_deadlines().await });
        Ok(GatherCoordinator { processor, shared, _tasks: tasks })
    }

    /// Returns the open requests of this member, at most `max`, those with the earliest deadline of each partition first.
    /// While the member reads a new partition again, some of its requests may already be over.
    #[must_use]
    pub fn open_requests(&self, max: usize) -> Vec<OpenRequest> {
        let mut found = Vec::new();
        for handler in self.shared.current() {
            if found.len() < max {
                found.extend(handler.requests().open(max - found.len()));
            }
        }
        found
    }

    /// Returns the number of open requests of this member.
    #[must_use]
    pub fn open_count(&self) -> usize {
        self.shared.current().iter().map(|handler| handler.requests().len()).sum()
    }

    /// Leaves the group after the running calls.
    ///
    /// # Errors
    /// Returns the errors of [`Processor::stop`].
    pub async fn stop(self) -> Result<(), BusError> {
        let GatherCoordinator { processor, shared, _tasks: tasks } = self;
        drop(tasks);
        let stopped = processor.stop().await;
        stopped.and(shared.producer.close().await)
    }
}

impl fmt::Debug for GatherCoordinator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GatherCoordinator").field("options", &self.shared.options).finish_non_exhaustive()
    }
}

/// Returns the options of a processor that calls its handler again until it succeeds.
fn processing(group: &str, topic: &TopicName, session_timeout: Duration) -> ProcessorOptions {
    let consumer = ConsumerOptions { session_timeout, ..ConsumerOptions::new(group, vec![topic.clone()]) };
    let retry = Retry::Blocking { first_wait: FIRST_WAIT, wait_max: WAIT_MAX, calls_max: None };
    ProcessorOptions { retry, ..ProcessorOptions::new(consumer) }
}

/// Returns the error of a handler whose record the bus has not stored.
fn send_error(error: &BusError) -> HandlerError {
    match error {
        BusError::RecordTooLarge { .. } | BusError::Invalid(_) => HandlerError::not_retriable(error),
        _ => HandlerError::retriable(error),
    }
}

struct Shared {
    runtime: Runtime,
    options: GatherOptions,
    gatherer: Arc<dyn Gatherer>,
    producer: Arc<dyn Producer>,
    /// Handlers of the last assignments.
    partitions: Mutex<BTreeMap<Partition, Weak<Coordinating>>>,
}

impl Shared {
    fn assigned(self: &Arc<Self>, partition: &Partition) -> Arc<Coordinating> {
        let requests = Mutex::default();
        let handler = Arc::new(Coordinating { shared: self.clone(), partition: partition.clone(), requests });
        self.partitions().insert(partition.clone(), Arc::downgrade(&handler));
        handler
    }

    fn partitions(&self) -> MutexGuard<'_, BTreeMap<Partition, Weak<Coordinating>>> {
        self.partitions.lock().expect("no code panics while it holds this mutex")
    }

    fn current(&self) -> Vec<Arc<Coordinating>> {
        self.partitions().values().filter_map(Weak::upgrade).collect()
    }

    /// Sends a record for each deadline that has passed. The record makes the decision a part of the topic, so that each
    /// later owner of the partition comes to the same state.
    async fn check_deadlines(&self) {
        loop {
            self.runtime.sleep(DEADLINE_PERIOD).await;
            join_all(self.current().iter().map(|handler| handler.end_overdue())).await;
        }
    }
}

/// Handler of one partition during one assignment.
struct Coordinating {
    shared: Arc<Shared>,
    partition: Partition,
    requests: Mutex<Requests>,
}

impl Coordinating {
    fn requests(&self) -> MutexGuard<'_, Requests> {
        self.requests.lock().expect("no code panics while it holds this mutex")
    }

    /// Sends a record for each request whose deadline has passed.
    async fn end_overdue(&self) {
        let Shared { runtime, options, producer, .. } = &*self.shared;
        let record = |(id, request): &(String, Offset)| NewRecord {
            partition: Some(self.partition.index),
            ..message::deadline(&options.answers, id.clone(), *request)
        };
        loop {
            let overdue = self.requests().take_overdue(runtime.now(), DEADLINES_MAX);
            if overdue.is_empty() {
                return;
            }
            let sent = producer.send(overdue.iter().map(record).collect()).await;
            for ((id, request), sent) in overdue.iter().zip(sent) {
                if let Err(error) = sent {
                    tracing::warn!(%error, id, "the end of an overdue request could not be recorded; it is repeated");
                    self.requests().set_alarm(id, *request, runtime.now() + DEADLINE_PERIOD);
                }
            }
        }
    }

    /// Does the work of a step, which must have its effect before the state changes.
    async fn perform(&self, step: Step, delivery: &Delivery, message: &Message) -> Result<(), HandlerError> {
        match (step, message) {
            (Step::Ask, Message::Request(request)) => {
                let topic = &self.shared.options.requests;
                let record =
                    message::question(topic, request, delivery.record.offset).with_context(&delivery.context());
                let sent = self.shared.producer.send(vec![record]).await;
                sent.into_iter().try_for_each(|one| one.map(drop)).map_err(|error| send_error(&error))
            }
            (Step::Pass, Message::Answer(_, answer)) => self.shared.gatherer.answer(answer.clone()).await,
            (Step::Finish(outcome), _) => self.shared.gatherer.outcome(outcome).await,
            _ => Ok(()),
        }
    }
}

impl Handler for Coordinating {
    fn handle(&self, delivery: Delivery) -> BoxFuture<'_, Result<(), HandlerError>> {
        Box::pin(async move {
            let damaged = || HandlerError::not_retriable("the key or the headers of a record are damaged");
            let message = Message::parse(&delivery.record).ok_or_else(damaged)?;
            let Shared { runtime, options, .. } = &*self.shared;
            // The state does not depend on the bound, so that each owner comes to the same state.
            if let Message::Request(request) = &message {
                let mut requests = self.requests();
                if requests.len() >= options.open_max && !requests.is_open(&request.id) {
                    tracing::warn!(id = request.id, "too many requests are open; the services do not receive this one");
                    requests.apply(delivery.record.offset, &message);
                    requests.set_alarm(&request.id, delivery.record.offset, runtime.now());
                    return Ok(());
                }
            }
            // The processor makes the calls for one request one after the other, so the step stays right.
            let step = self.requests().step(&message);
            if step == Step::Ignore {
                return Ok(());
            }
            let performed = self.perform(step, &delivery, &message).await;
            if performed.as_ref().is_err_and(|error| error.is_retriable) {
                return performed;
            }
            self.requests().apply(delivery.record.offset, &message);
            performed
        })
    }
}

impl fmt::Debug for Coordinating {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Coordinating").field("partition", &self.partition).finish_non_exhaustive()
    }
}

impl StatefulHandler for Coordinating {
    fn replay(&self, record: &Record) {
        if let Some(message) = Message::parse(record) {
            self.requests().apply(record.offset, &message);
        }
    }

    fn oldest(&self) -> Option<Offset> {
        self.requests().oldest()
    }
}
