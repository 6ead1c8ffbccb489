//! Tests of requests that several services answer, in simulations with kills, pauses and cut connections.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bus::gather::{
    Answerer, Answers, GatherAnswer, GatherCoordinator, GatherOptions, GatherOutcome, GatherRequest, GatherService,
    GatherServiceOptions, Gatherer, KIND_HEADER, NUMBER_HEADER, OpenRequest, REQUEST_HEADER, SERVICE_HEADER,
};
use bus::memory::{MemoryBus, MemoryOptions};
use bus::processor::HandlerError;
use bus::{
    Bus as _, BusError, Header, NewRecord, Position, Producer, ProducerOptions, TopicName, TopicOptions, partition_of,
};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use instants::Timestamp;
use runtime::Runtime;
use simulator::Simulation;

use crate::processor::simulate;

const SESSION: Duration = Duration::from_secs(2);
/// Longest time that a test waits for all outcomes.
const LIMIT: Duration = Duration::from_secs(300);
/// Number of partitions of each topic.
const PARTITIONS: u32 = 3;
const SERVICES: [&str; 3] = ["mail", "shop", "pets"];

fn requests() -> TopicName {
    TopicName::new("requests").unwrap()
}

fn answers() -> TopicName {
    TopicName::new("answers").unwrap()
}

/// Event that a coordinator has received for a request.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Event {
    Answer(String, u64),
    Outcome(BTreeSet<String>, Timestamp),
}

/// Events of each request, in their order.
type Log = Arc<Mutex<BTreeMap<String, Vec<Event>>>>;

/// Gatherer that logs its calls. If `fails`, one of ten calls fails after its effect.
struct Logging {
    runtime: Runtime,
    log: Log,
    fails: bool,
}

impl Logging {
    fn add(&self, id: String, event: Event) -> BoxFuture<'_, Result<(), HandlerError>> {
        Box::pin(async move {
            self.runtime.sleep(Duration::from_millis(self.runtime.random() % 10)).await;
            self.log.lock().unwrap().entry(id).or_default().push(event);
            match self.runtime.random() % 10 {
                0 if self.fails => Err(HandlerError::retriable("the database is away")),
                _ => Ok(()),
            }
        })
    }
}

impl Gatherer for Logging {
    fn answer(&self, answer: GatherAnswer) -> BoxFuture<'_, Result<(), HandlerError>> {
        assert_eq!(answer.value, format!("{} of {}", answer.number, answer.service));
        self.add(answer.id, Event::Answer(answer.service, answer.number))
    }

    fn outcome(&self, outcome: GatherOutcome) -> BoxFuture<'_, Result<(), HandlerError>> {
        let event = Event::Outcome(outcome.missing, self.runtime.now());
        self.add(outcome.id, event)
    }
}

/// Returns the number of answers of a service. The value of a request is a number.
fn answer_count(service: &str, value: &[u8]) -> u64 {
    let number: u64 = std::str::from_utf8(value).unwrap().parse().unwrap();
    (number + service.len() as u64) % 4
}

/// Service that sends its answers, and fails now and then. The service `pets` never answers requests whose number is a
/// multiple of 5.
struct Data {
    runtime: Runtime,
    name: &'static str,
}

impl Answerer for Data {
    fn answer<'a>(
        &'a self,
        request: &'a GatherRequest,
        answers: &'a mut Answers,
    ) -> BoxFuture<'a, Result<(), HandlerError>> {
        Box::pin(async move {
            let number: u64 = std::str::from_utf8(&request.value).unwrap().parse().unwrap();
            if self.name == "pets" && number.is_multiple_of(5) {
                return Err(HandlerError::not_retriable("the service has no access"));
            }
            for number in 0..answer_count(self.name, &request.value) {
                self.runtime.sleep(Duration::from_millis(self.runtime.random() % 20)).await;
                answers.send(format!("{number} of {}", self.name)).await?;
                if self.runtime.random().is_multiple_of(10) {
                    return Err(HandlerError::retriable("the database is away"));
                }
            }
            Ok(())
        })
    }
}

struct Scene {
    runtime: Runtime,
    bus: MemoryBus,
    producer: Arc<dyn Producer>,
    log: Log,
    fails: bool,
}

impl Scene {
    /// Creates the topics. If `fails`, calls of the coordinators fail now and then.
    async fn new(sim: &Simulation, fails: bool) -> Self {
        let options = MemoryOptions {
            latency: Some(Duration::ZERO..=Duration::from_millis(10)),
            fail_one_in: Some(200),
            ..MemoryOptions::default()
        };
        let runtime = sim.outside();
        let bus = MemoryBus::new(runtime.clone(), options);
        for topic in [requests(), answers()] {
            let create = || bus.create_topic(&topic, TopicOptions::with_partitions(PARTITIONS));
            while create().await.is_err_and(|error| error.is_retryable()) {}
        }
        let producer = loop {
            match bus.producer(ProducerOptions::default()).await {
                Ok(producer) => break producer,
                Err(error) => assert!(error.is_retryable(), "{error}"),
            }
        };
        Scene { runtime, bus, producer, log: Log::default(), fails }
    }

    /// Starts a member: a coordinator, or a process of a service.
    fn start(&self, runtime: Runtime, name: &'static str) -> Arc<MemoryBus> {
        let (bus, log, fails) = (Arc::new(self.bus.reopen(runtime.clone())), self.log.clone(), self.fails);
        let opened = bus.clone();
        let service = SERVICES.into_iter().find(|service| name.starts_with(service));
        drop(runtime.clone().spawn("member", async move {
            loop {
                let started = match service {
                    Some(name) => {
                        let answerer = Arc::new(Data { runtime: runtime.clone(), name });
                        let options = GatherServiceOptions {
                            session_timeout: SESSION,
                            ..GatherServiceOptions::new(name, requests(), answers())
                        };
                        let service = GatherService::start(&runtime, &*bus, options, answerer).await;
                        service.map(std::mem::forget)
                    }
                    None => {
                        let gatherer = Arc::new(Logging { runtime: runtime.clone(), log: log.clone(), fails });
                        let options = GatherOptions {
                            session_timeout: SESSION,
                            ..GatherOptions::new(requests(), answers(), "coordinators")
                        };
                        let coordinator = GatherCoordinator::start(&runtime, &*bus, options, gatherer).await;
                        coordinator.map(std::mem::forget)
                    }
                };
                match started {
                    Ok(()) => return std::future::pending().await,
                    Err(error) => assert!(error.is_retryable(), "{error}"),
                }
                runtime.sleep(Duration::from_millis(100)).await;
            }
        }));
        opened
    }

    async fn send(&self, record: NewRecord) -> Position {
        loop {
            match self.producer.send(vec![record.clone()]).await.remove(0) {
                Ok(position) => return position,
                Err(error) => assert!(error.is_retryable(), "{error}"),
            }
        }
    }

    /// Returns a request for all services. The time until its deadline is in seconds.
    fn request(&self, number: u64, seconds: u64) -> GatherRequest {
        GatherRequest {
            id: format!("request-{number}"),
            services: SERVICES.map(str::to_owned).into(),
            deadline: self.runtime.now() + Duration::from_secs(seconds),
            value: Bytes::from(number.to_string()),
        }
    }

    async fn ask(&self, number: u64, seconds: u64) -> GatherRequest {
        let request = self.request(number, seconds);
        self.send(request.record(&answers()).unwrap()).await;
        request
    }

    async fn until_over(&self, requests: &[GatherRequest]) {
        let is_over = |log: &BTreeMap<String, Vec<Event>>, request: &GatherRequest| {
            log.get(&request.id).is_some_and(|events| events.iter().any(|one| matches!(one, Event::Outcome(..))))
        };
        let waiting = async {
            while !requests.iter().all(|request| is_over(&self.log.lock().unwrap(), request)) {
                self.runtime.sleep(Duration::from_millis(100)).await;
            }
        };
        let done = self.runtime.timeout(LIMIT, waiting).await;
        assert!(done.is_some(), "requests are stuck: {:?}", self.log.lock().unwrap());
    }

    /// Asserts that the outcome of each request is right, and that all answers of the services that are not missing came
    /// before it. Returns the number of complete requests.
    fn check(&self, requests: &[GatherRequest]) -> usize {
        let log = self.log.lock().unwrap();
        let mut complete = 0;
        for request in requests {
            let events = &log[&request.id];
            let outcomes = events.iter().enumerate().filter_map(|(at, event)| match event {
                Event::Outcome(missing, time) => Some((at, missing, *time)),
                Event::Answer(..) => None,
            });
            let outcomes: Vec<(usize, &BTreeSet<String>, Timestamp)> = outcomes.collect();
            let (first, missing, time) = outcomes[0];
            assert!(outcomes.iter().all(|(_, other, _)| *other == missing), "the outcomes differ: {events:?}");
            assert!(missing.is_empty() || time >= request.deadline, "early: {events:?}");
            let number: u64 = std::str::from_utf8(&request.value).unwrap().parse().unwrap();
            assert!(!number.is_multiple_of(5) || missing.contains("pets"), "{number} is complete: {events:?}");
            complete += usize::from(missing.is_empty());
            for service in SERVICES {
                let mut next = 0;
                for event in &events[..first] {
                    match event {
                        Event::Answer(name, number) if name == service => {
                            assert!(*number <= next, "a gap: {events:?}");
                            next = next.max(number + 1);
                        }
                        _ => {}
                    }
                }
                let count = answer_count(service, &request.value);
                assert!(missing.contains(service) || next == count, "answers of {service} are missing: {events:?}");
            }
        }
        complete
    }
}

#[test]
fn requests_are_complete_or_name_the_missing_services() {
    simulate(async |sim| {
        let scene = Scene::new(sim, true).await;
        let members = ["coordinator", "mail", "shop", "pets"].map(|name| scene.start(sim.member(name), name));
        let mut asked = Vec::new();
        for number in 1..=20 {
            asked.push(scene.ask(number, 60).await);
        }
        scene.until_over(&asked).await;
        assert_eq!(scene.check(&asked), 16);
        drop(members);
    });
}

#[test]
fn no_request_is_stuck_or_complete_early_while_members_fail() {
    simulate(async |sim| {
        let scene = Scene::new(sim, true).await;
        let names = ["coordinator-1", "coordinator-2", "mail-1", "mail-2", "shop-1", "pets-1", "pets-2"];
        let mut buses: BTreeMap<&str, Arc<MemoryBus>> =
            names.into_iter().map(|name| (name, scene.start(sim.member(name), name))).collect();
        let mut asked = Vec::new();
        for number in 1..=60 {
            // Some deadlines pass at about the time of the last end.
            let seconds = if number % 6 == 1 { 1 + number / 12 } else { 60 };
            asked.push(scene.ask(number, seconds).await);
            if number % 4 == 0 {
                // The sender repeats its request.
                *asked.last_mut().unwrap() = scene.ask(number, 60).await;
            }
            if number % 7 != 0 {
                continue;
            }
            let random = |below: u64| scene.runtime.random() % below;
            let name = names[usize::try_from(random(7)).unwrap()];
            let time = Duration::from_millis(random(4_000));
            match random(4) {
                0 => sim.pause(name, time),
                1 => {
                    buses[name].cut(true);
                    scene.runtime.sleep(time).await;
                    buses[name].cut(false);
                }
                _ => {
                    sim.kill(name);
                    scene.runtime.sleep(time).await;
                    buses.insert(name, scene.start(sim.restart(name), name));
                }
            }
        }
        scene.until_over(&asked).await;
        assert!(scene.check(&asked) >= 40, "only requests with a short deadline may be incomplete");
    });
}

#[test]
fn late_records_and_damaged_records_have_no_effect() {
    simulate(async |sim| {
        let scene = Scene::new(sim, false).await;
        let members = ["coordinator", "mail", "shop", "pets"].map(|name| scene.start(sim.member(name), name));
        let first = scene.request(1, 60);
        let at = scene.send(first.record(&answers()).unwrap()).await.offset.to_string();
        scene.until_over(std::slice::from_ref(&first)).await;
        let events = || scene.log.lock().unwrap()[&first.id].clone();
        let before = events();
        let header = |name: &str, value: &str| Header {
            name: name.to_owned(),
            value: Some(Bytes::copy_from_slice(value.as_bytes())),
        };
        let (request, mail) = (header(REQUEST_HEADER, &at), header(SERVICE_HEADER, "mail"));
        let number = |number| header(NUMBER_HEADER, number);
        for headers in [
            vec![header(KIND_HEADER, "end"), request.clone(), mail.clone(), number("0")],
            vec![header(KIND_HEADER, "answer"), request.clone(), mail.clone(), number("0")],
            vec![header(KIND_HEADER, "deadline"), request.clone()],
            vec![header(KIND_HEADER, "end"), request, mail.clone()],
            vec![header(KIND_HEADER, "end"), mail, number("0")],
            vec![header(KIND_HEADER, "unknown")],
            Vec::new(),
        ] {
            scene.send(NewRecord { headers, ..NewRecord::new(&answers(), first.id.clone(), "late") }).await;
        }
        let without_key =
            NewRecord { key: None, partition: Some(partition(&first.id)), ..NewRecord::new(&answers(), "", "") };
        scene.send(without_key).await;
        // The coordinator has read the late records when it ends a later request of the same partition.
        let next = (2..).find(|number| partition(&format!("request-{number}")) == partition(&first.id)).unwrap();
        let second = scene.ask(next, 60).await;
        scene.until_over(std::slice::from_ref(&second)).await;
        assert_eq!(events(), before);
        scene.check(&[first, second]);
        drop(members);
    });
}

#[test]
fn request_above_the_limit_is_over_at_once() {
    simulate(async |sim| {
        let scene = Scene::new(sim, false).await;
        let gatherer = Arc::new(Logging { runtime: scene.runtime.clone(), log: scene.log.clone(), fails: false });
        let options = GatherOptions {
            session_timeout: SESSION,
            open_max: 1,
            ..GatherOptions::new(requests(), answers(), "coordinators")
        };
        let coordinator = loop {
            let (options, gatherer) = (options.clone(), gatherer.clone());
            match GatherCoordinator::start(&scene.runtime, &scene.bus, options, gatherer).await {
                Ok(coordinator) => break coordinator,
                Err(error) => assert!(error.is_retryable(), "{error}"),
            }
        };
        let first = scene.ask(1, 3_600).await;
        let opening = async {
            while coordinator.open_count() == 0 {
                scene.runtime.sleep(Duration::from_millis(10)).await;
            }
        };
        assert!(scene.runtime.timeout(LIMIT, opening).await.is_some(), "the first request is not open");
        let next = (2..).find(|number| partition(&format!("request-{number}")) == partition(&first.id)).unwrap();
        let second = scene.ask(next, 3_600).await;
        scene.until_over(std::slice::from_ref(&second)).await;
        let events = scene.log.lock().unwrap()[&second.id].clone();
        let Event::Outcome(missing, time) = &events[0] else { panic!("no service has answered: {events:?}") };
        assert!(*missing == second.services && *time < second.deadline, "{events:?}");
        // The sender repeats its request. It is open, so the bound does not apply to it.
        let GatherRequest { id, services: missing, deadline, .. } = scene.ask(1, 1_800).await;
        scene.runtime.sleep(SESSION * 2).await;
        assert!(!scene.log.lock().unwrap().contains_key(&id), "the repeated request is over");
        assert_eq!(coordinator.open_requests(9), [OpenRequest { id, missing, deadline }]);
        assert_eq!(coordinator.open_count(), 1);
    });
}

fn partition(id: &str) -> u32 {
    partition_of(id.as_bytes(), PARTITIONS.try_into().unwrap())
}

#[test]
fn invalid_requests_are_rejected() {
    let request = |id: &str, services: &[&str]| GatherRequest {
        id: id.to_owned(),
        services: services.iter().map(|name| (*name).to_owned()).collect(),
        deadline: Timestamp::from_millis(5),
        value: Bytes::new(),
    };
    assert!(request("a", &["mail"]).record(&answers()).is_ok());
    for invalid in [request("", &["mail"]), request("a", &[]), request("a", &["mail", ""]), request("a", &["a,b"])] {
        assert!(matches!(invalid.record(&answers()), Err(BusError::Invalid(_))), "{invalid:?}");
    }
}
