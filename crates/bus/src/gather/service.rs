//! Services that answer requests.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use runtime::Runtime;

use super::message::{self, Message};
use super::{GatherAnswer, GatherRequest, processing, send_error};
use crate::context::Context;
use crate::processor::{Delivery, Handler, HandlerError, Processor, ProcessorOptions};
use crate::producer::{Producer, ProducerOptions};
use crate::topic::{Offset, Position, TopicName};
use crate::{Bus, BusError};

/// Largest number of answers to a request that the bus has not acknowledged.
const UNACKNOWLEDGED_MAX: usize = 100;
/// Size of the answers to a request that the bus has not acknowledged, in bytes, above which the service waits.
const UNACKNOWLEDGED_BYTES_MAX: usize = 1 << 20;

/// Options of a service.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GatherServiceOptions {
    /// Name of the service in [`GatherRequest::services`]. The service ignores requests without this name.
    pub name: String,
    /// Topic of the requests.
    pub requests: TopicName,
    /// Topic of the answers.
    pub answers: TopicName,
    /// Name of the group of the processes of this service. The default is the name of the service.
    pub group: String,
    /// Time without contact to the bus after which another process of this service continues. The default is 10 s.
    pub session_timeout: Duration,
    /// Largest number of requests that a process answers at the same time. Each of them may have 1 MiB of answers in memory
    /// that the bus has not acknowledged, and one answer more. The default is 100.
    pub concurrency: usize,
}

impl GatherServiceOptions {
    /// Returns options with defaults.
    #[must_use]
    pub fn new(name: &str, requests: TopicName, answers: TopicName) -> Self {
        let session_timeout = Duration::from_secs(10);
        let (name, group) = (name.to_owned(), name.to_owned());
        GatherServiceOptions { name, requests, answers, group, session_timeout, concurrency: 100 }
    }
}

/// Code of a service that answers requests.
pub trait Answerer: Send + Sync + 'static {
    /// Answers a request. After the method has succeeded, and the bus has acknowledged all answers, the service has ended
    /// for this request. The method may be called again for the same request. It must then send the same answers again, in
    /// the same order.
    ///
    /// # Errors
    /// After a retriable error, the call is repeated after a wait, until the deadline of the request. After another error,
    /// the service does not end for this request, and the outcome names it as missing.
    fn answer<'a>(
        &'a self,
        request: &'a GatherRequest,
        answers: &'a mut Answers,
    ) -> BoxFuture<'a, Result<(), HandlerError>>;
}

/// Sender of the answers of one service to one request.
pub struct Answers {
    producer: Arc<dyn Producer>,
    topic: TopicName,
    id: String,
    /// Offset of the request in the topic of the answers.
    request: Offset,
    service: String,
    context: Context,
    /// Number of the next answer.
    next: u64,
    /// Answers that the bus has not acknowledged: the size of each of them, and its outcome.
    unacknowledged: VecDeque<(usize, Sent)>,
    unacknowledged_bytes: usize,
    /// First error of an answer. The service must not end after it.
    error: Option<BusError>,
}

/// Outcome of sent records.
type Sent = BoxFuture<'static, Vec<Result<Position, BusError>>>;

impl Answers {
    /// Sends an answer. Waits while the bus has not acknowledged more than 100 answers, or answers of more than 1 MiB.
    ///
    /// # Errors
    /// Returns an error if the bus rejected this answer or an earlier one. The error is retriable if a later call of
    /// [`Answerer::answer`] may succeed.
    pub async fn send(&mut self, value: impl Into<Bytes>) -> Result<(), HandlerError> {
        let (id, service, value) = (self.id.clone(), self.service.clone(), value.into());
        let answer = GatherAnswer { id, service, number: self.next, value };
        let record = message::answer(&self.topic, self.request, answer).with_context(&self.context);
        let bytes = record.bytes();
        self.next += 1;
        self.unacknowledged_bytes += bytes;
        self.unacknowledged.push_back((bytes, self.producer.send(vec![record])));
        self.wait(UNACKNOWLEDGED_MAX, UNACKNOWLEDGED_BYTES_MAX).await
    }

    /// Waits until the bus has acknowledged all answers but the last ones, which are at most `count` and have at most `bytes`.
    async fn wait(&mut self, count: usize, bytes: usize) -> Result<(), HandlerError> {
        while (self.unacknowledged.len() > count || self.unacknowledged_bytes > bytes)
            && let Some((_, sent)) = self.unacknowledged.front_mut()
        {
            let outcomes = sent.await;
            let acknowledged = self.unacknowledged.pop_front().map_or(0, |(bytes, _)| bytes);
            self.unacknowledged_bytes -= acknowledged;
            self.error = self.error.take().or(outcomes.into_iter().find_map(Result::err));
        }
        self.error.as_ref().map_or(Ok(()), |error| Err(send_error(error)))
    }
}

impl fmt::Debug for Answers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Answers { id, service, next, .. } = self;
        f.debug_struct("Answers").field("id", id).field("service", service).field("next", next).finish_non_exhaustive()
    }
}

/// Running process of a service. A drop of this object stops it at once.
pub struct GatherService {
    processor: Processor,
    producer: Arc<dyn Producer>,
}

impl GatherService {
    /// Joins the group of the service.
    ///
    /// # Errors
    /// Returns [`BusError::UnknownTopic`] if one of the topics does not exist, and [`BusError::Invalid`] if the bus rejects
    /// the options.
    pub async fn start(
        runtime: &Runtime,
        bus: &dyn Bus,
        options: GatherServiceOptions,
        answerer: Arc<dyn Answerer>,
    ) -> Result<Self, BusError> {
        bus.describe_topic(&options.answers).await?;
        let producer = bus.producer(ProducerOptions::default()).await?;
        let processing = ProcessorOptions {
            concurrency: options.concurrency,
            ..processing(&options.group, &options.requests, options.session_timeout)
        };
        let (runtime, handling) = (runtime.clone(), producer.clone());
        let handler = Arc::new(Answering { runtime: runtime.clone(), options, answerer, producer: handling });
        let processor = Processor::start(&runtime, bus, processing, handler).await?;
        Ok(GatherService { processor, producer })
    }

    /// Leaves the group after the running calls.
    ///
    /// # Errors
    /// Returns the errors of [`Processor::stop`].
    pub async fn stop(self) -> Result<(), BusError> {
        let stopped = self.processor.stop().await;
        stopped.and(self.producer.close().await)
    }
}

impl fmt::Debug for GatherService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GatherService").finish_non_exhaustive()
    }
}

/// Handler of the requests.
struct Answering {
    runtime: Runtime,
    options: GatherServiceOptions,
    answerer: Arc<dyn Answerer>,
    producer: Arc<dyn Producer>,
}

impl Handler for Answering {
    fn handle(&self, delivery: Delivery) -> BoxFuture<'_, Result<(), HandlerError>> {
        Box::pin(async move {
            let (message, at) = (Message::parse(&delivery.record), message::request_of(&delivery.record));
            let (Some(Message::Request(request)), Some(at)) = (message, at) else {
                return Err(HandlerError::not_retriable("the key or the headers of a request are damaged"));
            };
            // After the deadline, the coordinator ignores all answers.
            let GatherServiceOptions { name, answers: topic, .. } = &self.options;
            if !request.services.contains(name) || self.runtime.now() >= request.deadline {
                return Ok(());
            }
            let (producer, id) = (self.producer.clone(), request.id.clone());
            let mut answers = Answers {
                producer,
                topic: topic.clone(),
                id,
                request: at,
                service: name.clone(),
                context: delivery.context(),
                next: 0,
                unacknowledged: VecDeque::new(),
                unacknowledged_bytes: 0,
                error: None,
            };
            self.answerer.answer(&request, &mut answers).await?;
            answers.wait(0, 0).await?;
            let end = message::end(topic, request.id, at, name.clone(), answers.next).with_context(&answers.context);
            let sent = self.producer.send(vec![end]).await;
            sent.into_iter().try_for_each(|one| one.map(drop)).map_err(|error| send_error(&error))
        })
    }
}
