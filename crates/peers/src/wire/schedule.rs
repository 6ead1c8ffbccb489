//! Schedules, occurrences and runs.

use bytes::Bytes;
use domain::recurrence::Cron;
use domain::retry::RetryPolicy;
use domain::{
    Attempt as DomainAttempt, AttemptResult, DueKey, HttpTarget, Incarnation, Occurrence, PollerId, Revision, RunState,
    ScheduleId, Secret, Status as DomainStatus, Target as DomainTarget, TargetKey, TenantId, When as DomainWhen,
};
use minicbor::{Decode, Encode};

use super::{Malformed, Span, timestamp};

pub(super) fn schedule_id(text: &str) -> Result<ScheduleId, Malformed> {
    ScheduleId::new(text).map_err(|_| Malformed::Value("an id that no schedule can have"))
}

/// 128 bits, as 16 bytes, the most significant first.
#[derive(Encode, Decode)]
#[cbor(transparent)]
pub(super) struct Id(#[cbor(n(0), with = "minicbor::bytes")] [u8; 16]);

impl Id {
    pub(super) fn of(number: u128) -> Self {
        Id(number.to_be_bytes())
    }

    pub(super) fn take(self) -> u128 {
        u128::from_be_bytes(self.0)
    }

    pub(super) fn incarnation(self) -> Incarnation {
        Incarnation(self.take())
    }
}

#[derive(Encode, Decode)]
pub(super) struct Poller {
    #[n(0)]
    tenant: u32,
    #[n(1)]
    generation: u16,
    #[n(2)]
    number: u16,
}

impl Poller {
    pub(super) fn of(poller: PollerId) -> Self {
        Poller { tenant: poller.tenant.0, generation: poller.generation, number: poller.number }
    }

    pub(super) fn take(self) -> PollerId {
        PollerId { tenant: TenantId(self.tenant), generation: self.generation, number: self.number }
    }
}

/// An occurrence.
#[derive(Encode, Decode)]
pub(super) struct Key {
    #[n(0)]
    incarnation: Id,
    #[n(1)]
    nominal: i64,
    #[n(2)]
    revision: u32,
    #[n(3)]
    replay: u16,
}

impl Key {
    pub(super) fn of(occurrence: &Occurrence) -> Self {
        Key {
            incarnation: Id::of(occurrence.incarnation.0),
            nominal: occurrence.nominal.as_millis(),
            revision: occurrence.revision.0,
            replay: occurrence.replay,
        }
    }

    pub(super) fn take(self) -> Result<Occurrence, Malformed> {
        Ok(Occurrence {
            incarnation: self.incarnation.incarnation(),
            nominal: timestamp(self.nominal)?,
            revision: Revision(self.revision),
            replay: self.replay,
        })
    }
}

#[derive(Encode, Decode)]
pub(super) struct Due {
    #[n(0)]
    position: i64,
    #[n(1)]
    occurrence: Key,
    #[n(2)]
    attempt: u16,
    #[n(3)]
    target: u32,
}

impl Due {
    pub(super) fn of(due: &DueKey) -> Self {
        Due {
            position: due.position.as_millis(),
            occurrence: Key::of(&due.occurrence),
            attempt: due.attempt,
            target: due.target.0,
        }
    }

    pub(super) fn take(self) -> Result<DueKey, Malformed> {
        Ok(DueKey {
            position: timestamp(self.position)?,
            occurrence: self.occurrence.take()?,
            attempt: self.attempt,
            target: TargetKey(self.target),
        })
    }
}

#[derive(Encode, Decode)]
pub(super) struct Schedule<'a> {
    #[n(0)]
    tenant: u32,
    #[b(1)]
    id: &'a str,
    #[n(2)]
    incarnation: Id,
    #[n(3)]
    poller: Poller,
    #[n(4)]
    revision: u32,
    #[n(5)]
    status: Status,
    #[n(6)]
    created_at: i64,
    #[n(7)]
    updated_at: i64,
    #[n(8)]
    next: Option<i64>,
    #[b(9)]
    spec: Spec<'a>,
}

impl<'a> Schedule<'a> {
    pub(super) fn of(schedule: &'a domain::Schedule) -> Self {
        Schedule {
            tenant: schedule.tenant.0,
            id: schedule.id.as_str(),
            incarnation: Id::of(schedule.incarnation.0),
            poller: Poller::of(schedule.poller),
            revision: schedule.revision.0,
            status: Status::of(schedule.status),
            created_at: schedule.created_at.as_millis(),
            updated_at: schedule.updated_at.as_millis(),
            next: schedule.next.map(domain::Timestamp::as_millis),
            spec: Spec::of(&schedule.spec),
        }
    }

    pub(super) fn take(self) -> Result<domain::Schedule, Malformed> {
        Ok(domain::Schedule {
            tenant: TenantId(self.tenant),
            id: schedule_id(self.id)?,
            incarnation: self.incarnation.incarnation(),
            poller: self.poller.take(),
            revision: Revision(self.revision),
            status: self.status.take(),
            created_at: timestamp(self.created_at)?,
            updated_at: timestamp(self.updated_at)?,
            next: self.next.map(timestamp).transpose()?,
            spec: self.spec.take()?,
        })
    }
}

#[derive(Encode, Decode)]
#[cbor(index_only)]
enum Status {
    #[n(0)]
    Active,
    #[n(1)]
    Ended,
    #[n(2)]
    Cancelled,
}

impl Status {
    fn of(status: DomainStatus) -> Self {
        match status {
            DomainStatus::Active => Status::Active,
            DomainStatus::Ended => Status::Ended,
            DomainStatus::Cancelled => Status::Cancelled,
        }
    }

    fn take(self) -> DomainStatus {
        match self {
            Status::Active => DomainStatus::Active,
            Status::Ended => DomainStatus::Ended,
            Status::Cancelled => DomainStatus::Cancelled,
        }
    }
}

#[derive(Encode, Decode)]
pub(super) struct Spec<'a> {
    #[b(0)]
    when: When<'a>,
    #[b(1)]
    target: Target<'a>,
    #[cbor(b(2), with = "minicbor::bytes")]
    payload: &'a [u8],
    #[b(3)]
    labels: Vec<(&'a str, &'a str)>,
    #[n(4)]
    retry: Retry,
}

impl<'a> Spec<'a> {
    pub(super) fn of(spec: &'a domain::Spec) -> Self {
        Spec {
            when: When::of(&spec.when),
            target: Target::of(&spec.target),
            payload: &spec.payload,
            labels: texts(&spec.labels),
            retry: Retry {
                attempts_max: spec.retry.attempts_max,
                backoff: Span::of(spec.retry.backoff),
                backoff_max: Span::of(spec.retry.backoff_max),
            },
        }
    }

    pub(super) fn take(self) -> Result<domain::Spec, Malformed> {
        Ok(domain::Spec {
            when: self.when.take()?,
            target: self.target.take()?,
            // Copied: a part of the body would keep all of it in memory for as long as the schedule is.
            payload: Bytes::copy_from_slice(self.payload),
            labels: owned(self.labels),
            retry: RetryPolicy {
                attempts_max: self.retry.attempts_max,
                backoff: self.retry.backoff.take()?,
                backoff_max: self.retry.backoff_max.take()?,
            },
        })
    }
}

fn texts<'a>(pairs: impl IntoIterator<Item = (&'a String, &'a String)>) -> Vec<(&'a str, &'a str)> {
    pairs.into_iter().map(|(name, value)| (name.as_str(), value.as_str())).collect()
}

fn owned<C: FromIterator<(String, String)>>(pairs: Vec<(&str, &str)>) -> C {
    pairs.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

#[derive(Encode, Decode)]
enum When<'a> {
    #[n(0)]
    At(#[n(0)] i64),
    #[n(1)]
    Cron {
        #[b(0)]
        expression: &'a str,
        #[b(1)]
        zone: &'a str,
    },
    #[n(2)]
    Every(#[n(0)] Span),
}

impl<'a> When<'a> {
    fn of(when: &'a DomainWhen) -> Self {
        match when {
            DomainWhen::At(at) => When::At(at.as_millis()),
            DomainWhen::Cron(cron) => When::Cron { expression: cron.expression(), zone: cron.zone() },
            DomainWhen::Every(interval) => When::Every(Span::of(*interval)),
        }
    }

    fn take(self) -> Result<DomainWhen, Malformed> {
        Ok(match self {
            When::At(at) => DomainWhen::At(timestamp(at)?),
            // The member that took the request has parsed it.
            When::Cron { expression, zone } => DomainWhen::Cron(Cron::from_stored(expression, zone)),
            When::Every(interval) => DomainWhen::Every(interval.take()?),
        })
    }
}

#[derive(Encode, Decode)]
enum Target<'a> {
    #[n(0)]
    Http {
        #[b(0)]
        url: &'a str,
        #[b(1)]
        method: &'a str,
        #[b(2)]
        headers: Vec<(&'a str, &'a str)>,
        #[n(3)]
        timeout: Span,
    },
    /// With a value that is sealed.
    #[n(1)]
    HttpSealed {
        #[b(0)]
        url: &'a str,
        #[b(1)]
        method: &'a str,
        #[b(2)]
        headers: Vec<(&'a str, Value<'a>)>,
        #[n(3)]
        timeout: Span,
    },
}

#[derive(Encode, Decode)]
enum Value<'a> {
    #[n(0)]
    Plain(#[cbor(b(0), with = "minicbor::bytes")] &'a [u8]),
    #[n(1)]
    Sealed(#[cbor(b(0), with = "minicbor::bytes")] &'a [u8]),
}

impl<'a> Value<'a> {
    fn of(secret: &'a Secret) -> Self {
        match secret {
            Secret::Plain(bytes) => Value::Plain(bytes),
            Secret::Sealed(bytes) => Value::Sealed(bytes),
        }
    }

    fn take(self) -> Secret {
        match self {
            Value::Plain(bytes) => Secret::Plain(Bytes::copy_from_slice(bytes)),
            Value::Sealed(bytes) => Secret::Sealed(Bytes::copy_from_slice(bytes)),
        }
    }
}

impl<'a> Target<'a> {
    fn of(target: &'a DomainTarget) -> Self {
        let DomainTarget::Http(HttpTarget { url, method, headers, timeout }) = target;
        let timeout = Span::of(*timeout);
        // What an older member understands, too, if it can be said so.
        let plain = |(name, value): &'a (String, Secret)| Some((name.as_str(), str::from_utf8(value.plain()?).ok()?));
        match headers.iter().map(plain).collect::<Option<Vec<_>>>() {
            Some(headers) => Target::Http { url, method, headers, timeout },
            None => {
                let headers = headers.iter().map(|(name, value)| (name.as_str(), Value::of(value))).collect();
                Target::HttpSealed { url, method, headers, timeout }
            }
        }
    }

    fn take(self) -> Result<DomainTarget, Malformed> {
        let (url, method, headers, timeout) = match self {
            Target::Http { url, method, headers, timeout } => {
                let headers = headers.into_iter().map(|(name, value)| (name.to_owned(), value.into())).collect();
                (url, method, headers, timeout)
            }
            Target::HttpSealed { url, method, headers, timeout } => {
                let headers = headers.into_iter().map(|(name, value)| (name.to_owned(), value.take())).collect();
                (url, method, headers, timeout)
            }
        };
        let (url, method, timeout) = (url.to_owned(), method.to_owned(), timeout.take()?);
        Ok(DomainTarget::Http(HttpTarget { url, method, headers, timeout }))
    }
}

#[derive(Encode, Decode)]
struct Retry {
    #[n(0)]
    attempts_max: u16,
    #[n(1)]
    backoff: Span,
    #[n(2)]
    backoff_max: Span,
}

#[derive(Encode, Decode)]
pub(super) struct Run<'a> {
    #[n(0)]
    tenant: u32,
    #[n(1)]
    occurrence: Key,
    #[n(2)]
    state: State,
    #[b(3)]
    attempts: Vec<Attempt<'a>>,
}

impl<'a> Run<'a> {
    pub(super) fn of(run: &'a domain::occurrence::Run) -> Self {
        Run {
            tenant: run.tenant.0,
            occurrence: Key::of(&run.occurrence),
            state: State::of(run.state),
            attempts: run.attempts.iter().map(Attempt::of).collect(),
        }
    }

    pub(super) fn take(self) -> Result<domain::occurrence::Run, Malformed> {
        Ok(domain::occurrence::Run {
            tenant: TenantId(self.tenant),
            occurrence: self.occurrence.take()?,
            state: self.state.take()?,
            attempts: self.attempts.into_iter().map(Attempt::take).collect::<Result<_, _>>()?,
        })
    }
}

#[derive(Encode, Decode)]
enum State {
    #[n(0)]
    Retrying,
    #[n(1)]
    Succeeded,
    #[n(2)]
    Failed,
    #[n(3)]
    Missed {
        #[n(0)]
        last: i64,
        #[n(1)]
        count: u64,
    },
    #[n(4)]
    Cancelled,
}

impl State {
    fn of(state: RunState) -> Self {
        match state {
            RunState::Retrying => State::Retrying,
            RunState::Succeeded => State::Succeeded,
            RunState::Failed => State::Failed,
            RunState::Missed { last, count } => State::Missed { last: last.as_millis(), count },
            RunState::Cancelled => State::Cancelled,
        }
    }

    fn take(self) -> Result<RunState, Malformed> {
        Ok(match self {
            State::Retrying => RunState::Retrying,
            State::Succeeded => RunState::Succeeded,
            State::Failed => RunState::Failed,
            State::Missed { last, count } => RunState::Missed { last: timestamp(last)?, count },
            State::Cancelled => RunState::Cancelled,
        })
    }
}

#[derive(Encode, Decode)]
struct Attempt<'a> {
    #[n(0)]
    number: u16,
    #[n(1)]
    started_at: i64,
    #[n(2)]
    duration: Span,
    #[b(3)]
    result: Ended<'a>,
}

impl<'a> Attempt<'a> {
    fn of(attempt: &'a DomainAttempt) -> Self {
        Attempt {
            number: attempt.number,
            started_at: attempt.started_at.as_millis(),
            duration: Span::of(attempt.duration),
            result: Ended::of(&attempt.result),
        }
    }

    fn take(self) -> Result<DomainAttempt, Malformed> {
        Ok(DomainAttempt {
            number: self.number,
            started_at: timestamp(self.started_at)?,
            duration: self.duration.take()?,
            result: self.result.take(),
        })
    }
}

#[derive(Encode, Decode)]
enum Ended<'a> {
    #[n(0)]
    Answered(#[n(0)] u16),
    #[n(1)]
    Unreachable(#[b(0)] &'a str),
    #[n(2)]
    TimedOut,
    #[n(3)]
    Panicked,
}

impl<'a> Ended<'a> {
    fn of(result: &'a AttemptResult) -> Self {
        match result {
            AttemptResult::Answered(status) => Ended::Answered(*status),
            AttemptResult::Unreachable(reason) => Ended::Unreachable(reason),
            AttemptResult::TimedOut => Ended::TimedOut,
            AttemptResult::Panicked => Ended::Panicked,
        }
    }

    fn take(self) -> AttemptResult {
        match self {
            Ended::Answered(status) => AttemptResult::Answered(status),
            Ended::Unreachable(reason) => AttemptResult::Unreachable(reason.to_owned()),
            Ended::TimedOut => AttemptResult::TimedOut,
            Ended::Panicked => AttemptResult::Panicked,
        }
    }
}
