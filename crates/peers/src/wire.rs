//! What asks and replies are between two members: CBOR, its fields and variants numbered (docs/decisions/0110).
//!
//! These types are the form and nothing else; those of the scheduler and the domain know nothing of it. A number is
//! never used for anything else again. A field that is added is an `Option`: an older member skips it, a newer one does
//! without. A variant that is added is refused by an older member, as any other bytes that it does not understand.
//!
//! Always true here: what was encoded comes back; anything else is an error, never a panic, and asks for no more memory
//! than a small multiple of its own length.

mod schedule;

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use domain::{Edition, Revision, Seen, ShardId, TenantId, Timestamp};
use membership::MemberId;
use minicbor::{Decode, Encode};
use scheduler::peers::{Named as SchedulerNamed, Outcome as SchedulerOutcome};
use scheduler::{Ask, CancelAnswer, CreateRefusal, PutAnswer, RedriveAnswer, Reply, Timing};
use store::StoreError;

use schedule::{Due, Id, Key, Poller, Run, Schedule, Spec};

/// Bytes that are no ask, or no reply, that this build understands.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Malformed {
    #[error("it is not of a form that this build understands: {0}")]
    Form(#[from] minicbor::decode::Error),
    #[error("{0} bytes follow its end")]
    Rest(usize),
    #[error("{0}")]
    Value(&'static str),
}

pub(crate) fn encode_ask(ask: &Ask) -> Vec<u8> {
    encode(AskForm::of(ask))
}

/// # Errors
/// If `bytes` are not an ask that this build understands.
pub(crate) fn decode_ask(bytes: &[u8]) -> Result<Ask, Malformed> {
    decode::<AskForm<'_>>(bytes)?.take()
}

pub(crate) fn encode_reply(reply: &Reply) -> Vec<u8> {
    encode(ReplyForm::of(reply))
}

/// # Errors
/// If `bytes` are not a reply that this build understands.
pub(crate) fn decode_reply(bytes: &[u8]) -> Result<Reply, Malformed> {
    decode::<ReplyForm<'_>>(bytes)?.take()
}

fn encode(form: impl Encode<()>) -> Vec<u8> {
    minicbor::to_vec(form).expect("memory takes every byte")
}

fn decode<'b, T: Decode<'b, ()>>(bytes: &'b [u8]) -> Result<T, Malformed> {
    let mut decoder = minicbor::Decoder::new(bytes);
    let form = decoder.decode()?;
    match bytes.len() - decoder.position() {
        0 => Ok(form),
        rest => Err(Malformed::Rest(rest)),
    }
}

fn timestamp(millis: i64) -> Result<Timestamp, Malformed> {
    if millis < 0 {
        return Err(Malformed::Value("an instant before 1970"));
    }
    Ok(Timestamp::from_millis(millis))
}

/// Seconds and nanoseconds.
#[derive(Encode, Decode)]
struct Span(#[n(0)] u64, #[n(1)] u32);

impl Span {
    fn of(duration: Duration) -> Self {
        Span(duration.as_secs(), duration.subsec_nanos())
    }

    fn take(self) -> Result<Duration, Malformed> {
        let Span(seconds, nanos) = self;
        if nanos >= 1_000_000_000 {
            return Err(Malformed::Value("a duration with more than a second of nanoseconds"));
        }
        Ok(Duration::new(seconds, nanos))
    }
}

#[derive(Encode, Decode)]
enum AskForm<'a> {
    #[n(0)]
    Create(#[b(0)] Vec<Named<'a>>),
    #[n(1)]
    Put(#[b(0)] Named<'a>),
    #[n(2)]
    Cancel {
        #[n(0)]
        poller: Poller,
        #[n(1)]
        incarnation: Id,
        #[n(2)]
        applied: bool,
    },
    #[n(3)]
    Redrive {
        #[n(0)]
        tenant: u32,
        #[n(1)]
        of: Key,
    },
    #[n(4)]
    LetGo {
        #[n(0)]
        member: Id,
        #[n(1)]
        shards: Vec<u16>,
    },
    #[n(5)]
    Outcome(#[b(0)] Outcome<'a>),
    #[n(6)]
    Nudge,
    #[n(7)]
    PutIf {
        #[b(0)]
        named: Named<'a>,
        #[n(1)]
        seen: Option<SeenForm>,
        #[n(2)]
        keeps_timing: bool,
    },
    #[n(8)]
    CancelIf {
        #[n(0)]
        poller: Poller,
        #[n(1)]
        edition: EditionForm,
    },
}

#[derive(Encode, Decode)]
struct EditionForm(#[n(0)] Id, #[n(1)] u32);

impl EditionForm {
    fn of(edition: Edition) -> Self {
        EditionForm(Id::of(edition.incarnation.0), edition.revision.0)
    }

    fn take(self) -> Edition {
        Edition { incarnation: self.0.incarnation(), revision: Revision(self.1) }
    }
}

#[derive(Encode, Decode)]
struct SeenForm {
    #[n(0)]
    edition: EditionForm,
    #[n(1)]
    next: Option<i64>,
}

impl SeenForm {
    fn of(seen: &Seen) -> Self {
        SeenForm { edition: EditionForm::of(seen.edition), next: seen.next.map(Timestamp::as_millis) }
    }

    fn take(self) -> Result<Seen, Malformed> {
        Ok(Seen { edition: self.edition.take(), next: self.next.map(timestamp).transpose()? })
    }
}

impl<'a> AskForm<'a> {
    fn of(ask: &'a Ask) -> Self {
        match ask {
            Ask::Create(all) => AskForm::Create(all.iter().map(Named::of).collect()),
            Ask::Put(named) => AskForm::Put(Named::of(named)),
            Ask::Cancel { poller, incarnation, applied } => {
                AskForm::Cancel { poller: Poller::of(*poller), incarnation: Id::of(incarnation.0), applied: *applied }
            }
            Ask::Redrive { tenant, of } => AskForm::Redrive { tenant: tenant.0, of: Key::of(of) },
            Ask::LetGo { member, shards } => {
                AskForm::LetGo { member: Id::of(member.0), shards: shards.iter().map(|shard| shard.0).collect() }
            }
            Ask::Outcome(outcome) => AskForm::Outcome(Outcome::of(outcome)),
            Ask::Nudge => AskForm::Nudge,
            Ask::PutIf { named, seen, timing } => AskForm::PutIf {
                named: Named::of(named),
                seen: seen.as_ref().map(SeenForm::of),
                keeps_timing: *timing == Timing::Kept,
            },
            Ask::CancelIf { poller, edition } => {
                AskForm::CancelIf { poller: Poller::of(*poller), edition: EditionForm::of(*edition) }
            }
        }
    }

    fn take(self) -> Result<Ask, Malformed> {
        Ok(match self {
            AskForm::Create(all) => Ask::Create(all.into_iter().map(Named::take).collect::<Result<_, _>>()?),
            AskForm::Put(named) => Ask::Put(named.take()?),
            AskForm::Cancel { poller, incarnation, applied } => {
                Ask::Cancel { poller: poller.take(), incarnation: incarnation.incarnation(), applied }
            }
            AskForm::Redrive { tenant, of } => Ask::Redrive { tenant: TenantId(tenant), of: of.take()? },
            AskForm::LetGo { member, shards } => {
                Ask::LetGo { member: MemberId(member.take()), shards: shards.into_iter().map(ShardId).collect() }
            }
            AskForm::Outcome(outcome) => Ask::Outcome(outcome.take()?),
            AskForm::Nudge => Ask::Nudge,
            AskForm::PutIf { named, seen, keeps_timing } => Ask::PutIf {
                named: named.take()?,
                seen: seen.map(SeenForm::take).transpose()?,
                timing: if keeps_timing { Timing::Kept } else { Timing::Anew },
            },
            AskForm::CancelIf { poller, edition } => Ask::CancelIf { poller: poller.take(), edition: edition.take() },
        })
    }
}

#[derive(Encode, Decode)]
struct Named<'a> {
    #[n(0)]
    tenant: u32,
    #[b(1)]
    id: &'a str,
    #[b(2)]
    spec: Spec<'a>,
    #[n(3)]
    incarnation: Option<Id>,
}

impl<'a> Named<'a> {
    fn of(named: &'a SchedulerNamed) -> Self {
        Named {
            tenant: named.tenant.0,
            id: named.id.as_str(),
            spec: Spec::of(&named.spec),
            incarnation: named.incarnation.map(|incarnation| Id::of(incarnation.0)),
        }
    }

    fn take(self) -> Result<SchedulerNamed, Malformed> {
        let id = schedule::schedule_id(self.id)?;
        let incarnation = self.incarnation.map(Id::incarnation);
        Ok(SchedulerNamed { tenant: TenantId(self.tenant), id, incarnation, spec: self.spec.take()? })
    }
}

#[derive(Encode, Decode)]
struct Outcome<'a> {
    #[n(0)]
    poller: Poller,
    #[b(1)]
    run: Run<'a>,
    #[n(2)]
    then: Option<Due>,
    #[n(3)]
    ends: bool,
}

impl<'a> Outcome<'a> {
    fn of(outcome: &'a SchedulerOutcome) -> Self {
        Outcome {
            poller: Poller::of(outcome.poller),
            run: Run::of(&outcome.run),
            then: outcome.then.as_ref().map(Due::of),
            ends: outcome.ends,
        }
    }

    fn take(self) -> Result<SchedulerOutcome, Malformed> {
        Ok(SchedulerOutcome {
            poller: self.poller.take(),
            run: self.run.take()?,
            then: self.then.map(Due::take).transpose()?,
            ends: self.ends,
        })
    }
}

#[derive(Encode, Decode)]
enum ReplyForm<'a> {
    #[n(0)]
    Created(#[b(0)] Vec<Created<'a>>),
    #[n(1)]
    Put(#[b(0)] PutForm<'a>),
    #[n(2)]
    Cancelled(#[n(0)] CancelForm),
    #[n(3)]
    Redriven(#[n(0)] RedriveForm),
    #[n(4)]
    LetGo(#[n(0)] Vec<u16>),
    #[n(5)]
    Heard,
    #[n(6)]
    NotOwned,
    #[n(7)]
    Failed(#[b(0)] Failure<'a>),
    #[n(8)]
    Changed,
}

impl<'a> ReplyForm<'a> {
    fn of(reply: &'a Reply) -> Self {
        match reply {
            Reply::Created(all) => ReplyForm::Created(all.iter().map(Created::of).collect()),
            Reply::Put(answer) => ReplyForm::Put(PutForm::of(answer)),
            Reply::Cancelled(answer) => ReplyForm::Cancelled(CancelForm::of(*answer)),
            Reply::Redriven(answer) => ReplyForm::Redriven(RedriveForm::of(*answer)),
            Reply::LetGo(shards) => ReplyForm::LetGo(shards.iter().map(|shard| shard.0).collect()),
            Reply::Heard => ReplyForm::Heard,
            Reply::NotOwned => ReplyForm::NotOwned,
            Reply::Failed(error) => ReplyForm::Failed(Failure::of(error)),
            Reply::Changed => ReplyForm::Changed,
        }
    }

    fn take(self) -> Result<Reply, Malformed> {
        Ok(match self {
            ReplyForm::Created(all) => Reply::Created(all.into_iter().map(Created::take).collect::<Result<_, _>>()?),
            ReplyForm::Put(answer) => Reply::Put(answer.take()?),
            ReplyForm::Cancelled(answer) => Reply::Cancelled(answer.take()?),
            ReplyForm::Redriven(answer) => Reply::Redriven(answer.take()?),
            ReplyForm::LetGo(shards) => Reply::LetGo(shards.into_iter().map(ShardId).collect()),
            ReplyForm::Heard => Reply::Heard,
            ReplyForm::NotOwned => Reply::NotOwned,
            ReplyForm::Failed(error) => Reply::Failed(error.take()),
            ReplyForm::Changed => Reply::Changed,
        })
    }
}

#[derive(Encode, Decode)]
enum Created<'a> {
    #[n(0)]
    Made(#[b(0)] Box<Schedule<'a>>),
    #[n(1)]
    Refused(#[n(0)] Refusal),
}

impl<'a> Created<'a> {
    fn of(created: &'a Result<Arc<domain::Schedule>, CreateRefusal>) -> Self {
        match created {
            Ok(schedule) => Created::Made(Box::new(Schedule::of(schedule))),
            Err(refusal) => Created::Refused(Refusal::of(*refusal)),
        }
    }

    fn take(self) -> Result<Result<Arc<domain::Schedule>, CreateRefusal>, Malformed> {
        Ok(match self {
            Created::Made(schedule) => Ok(Arc::new(schedule.take()?)),
            Created::Refused(refusal) => Err(refusal.take()),
        })
    }
}

#[derive(Encode, Decode)]
#[cbor(index_only)]
enum Refusal {
    #[n(0)]
    Exists,
    #[n(1)]
    Unreachable,
    #[n(2)]
    NeverFires,
}

impl Refusal {
    fn of(refusal: CreateRefusal) -> Self {
        match refusal {
            CreateRefusal::Exists => Refusal::Exists,
            CreateRefusal::Unreachable => Refusal::Unreachable,
            CreateRefusal::NeverFires => Refusal::NeverFires,
        }
    }

    fn take(self) -> CreateRefusal {
        match self {
            Refusal::Exists => CreateRefusal::Exists,
            Refusal::Unreachable => CreateRefusal::Unreachable,
            Refusal::NeverFires => CreateRefusal::NeverFires,
        }
    }
}

#[derive(Encode, Decode)]
enum PutForm<'a> {
    #[n(0)]
    Made {
        #[b(0)]
        schedule: Box<Schedule<'a>>,
        #[n(1)]
        created: bool,
        #[n(2)]
        too_late: bool,
    },
    #[n(1)]
    Refused(#[n(0)] Refusal),
}

impl<'a> PutForm<'a> {
    fn of(answer: &'a Result<PutAnswer, CreateRefusal>) -> Self {
        match answer {
            Ok(PutAnswer { schedule, created, too_late }) => {
                PutForm::Made { schedule: Box::new(Schedule::of(schedule)), created: *created, too_late: *too_late }
            }
            Err(refusal) => PutForm::Refused(Refusal::of(*refusal)),
        }
    }

    fn take(self) -> Result<Result<PutAnswer, CreateRefusal>, Malformed> {
        Ok(match self {
            PutForm::Made { schedule, created, too_late } => {
                Ok(PutAnswer { schedule: Arc::new(schedule.take()?), created, too_late })
            }
            PutForm::Refused(refusal) => Err(refusal.take()),
        })
    }
}

#[derive(Encode, Decode)]
enum CancelForm {
    #[n(0)]
    NotFound,
    #[n(1)]
    Cancelled,
    #[n(2)]
    TooLate,
    #[n(3)]
    Pending(#[n(0)] i64),
}

impl CancelForm {
    fn of(answer: CancelAnswer) -> Self {
        match answer {
            CancelAnswer::NotFound => CancelForm::NotFound,
            CancelAnswer::Cancelled => CancelForm::Cancelled,
            CancelAnswer::TooLate => CancelForm::TooLate,
            CancelAnswer::Pending { decided_by } => CancelForm::Pending(decided_by.as_millis()),
        }
    }

    fn take(self) -> Result<CancelAnswer, Malformed> {
        Ok(match self {
            CancelForm::NotFound => CancelAnswer::NotFound,
            CancelForm::Cancelled => CancelAnswer::Cancelled,
            CancelForm::TooLate => CancelAnswer::TooLate,
            CancelForm::Pending(decided_by) => CancelAnswer::Pending { decided_by: timestamp(decided_by)? },
        })
    }
}

#[derive(Encode, Decode)]
enum RedriveForm {
    #[n(0)]
    NotFound,
    #[n(1)]
    NotDead,
    #[n(2)]
    Redriven(#[n(0)] Key),
}

impl RedriveForm {
    fn of(answer: RedriveAnswer) -> Self {
        match answer {
            RedriveAnswer::NotFound => RedriveForm::NotFound,
            RedriveAnswer::NotDead => RedriveForm::NotDead,
            RedriveAnswer::Redriven(occurrence) => RedriveForm::Redriven(Key::of(&occurrence)),
        }
    }

    fn take(self) -> Result<RedriveAnswer, Malformed> {
        Ok(match self {
            RedriveForm::NotFound => RedriveAnswer::NotFound,
            RedriveForm::NotDead => RedriveAnswer::NotDead,
            RedriveForm::Redriven(occurrence) => RedriveAnswer::Redriven(occurrence.take()?),
        })
    }
}

#[derive(Encode, Decode)]
enum Failure<'a> {
    #[n(0)]
    Unavailable(#[b(0)] &'a str),
    #[n(1)]
    Full(#[b(0)] &'a str),
    #[n(2)]
    Damaged(#[b(0)] &'a str),
}

impl<'a> Failure<'a> {
    fn of(error: &'a StoreError) -> Self {
        match error {
            StoreError::Unavailable(text) => Failure::Unavailable(text),
            StoreError::Full(text) => Failure::Full(text),
            StoreError::Damaged(text) => Failure::Damaged(text),
        }
    }

    fn take(self) -> StoreError {
        match self {
            Failure::Unavailable(text) => StoreError::Unavailable(text.to_owned()),
            Failure::Full(text) => StoreError::Full(text.to_owned()),
            Failure::Damaged(text) => StoreError::Damaged(text.to_owned()),
        }
    }
}
