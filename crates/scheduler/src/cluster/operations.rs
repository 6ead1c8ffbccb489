//! Operations that members request of each other, and the bytes of their requests and answers.
//!
//! A request and a response begin with the version of this form. Members of builds with different versions reject each
//! other's requests. Invariants: an encoded value decodes to itself; other bytes are an error, never a panic, and cost
//! memory in proportion to their own length.

#[cfg(test)]
mod tests;

use std::sync::Arc;

use bytes::Bytes;
use domain::occurrence::Run;
use domain::{
    DueKey, Edition, Incarnation, Occurrence, PollerId, Revision, Schedule, ScheduleId, Seen, ShardId, Spec, TenantId,
    Timestamp,
};
use membership::MemberId;
use store::StoreError;
use stored::{Malformed, Put as _, Take};

use crate::requests::{AttemptOutcome, CancelAnswer, Create, CreateRefusal, PutAnswer, RedriveAnswer, Timing, Undone};

const VERSION: u8 = 1;

/// An operation that one member requests of another.
pub trait Operation: Wire {
    /// The name on the wire and in metrics.
    const NAME: &'static str;
    type Answer: Wire;
}

/// Creates schedules with chosen ids, all of one home shard.
#[derive(Clone, PartialEq, Debug)]
pub struct CreateNamed(pub Vec<Named>);

/// As [`crate::Scheduler::put`].
#[derive(Clone, PartialEq, Debug)]
pub struct Put(pub Named);

/// As [`crate::Scheduler::put_if`].
#[derive(Clone, PartialEq, Debug)]
pub struct PutIf {
    pub named: Named,
    pub seen: Option<Seen>,
    pub timing: Timing,
}

/// Cancels a schedule whose cancellation record is durable; `applied` as the store said.
#[derive(Clone, PartialEq, Debug)]
pub struct Cancel {
    pub poller: PollerId,
    pub incarnation: Incarnation,
    pub applied: bool,
}

/// As [`crate::Scheduler::cancel_if`].
#[derive(Clone, PartialEq, Debug)]
pub struct CancelIf {
    pub poller: PollerId,
    pub edition: Edition,
}

#[derive(Clone, PartialEq, Debug)]
pub struct Redrive {
    pub tenant: TenantId,
    pub of: Occurrence,
}

/// `member` should own these shards, and waits until the present owner has released them. The answer lists the shards
/// that are free now.
#[derive(Clone, PartialEq, Debug)]
pub struct Release {
    pub member: MemberId,
    pub shards: Vec<ShardId>,
}

/// Due rows that are due soon have arrived.
#[derive(Clone, PartialEq, Debug)]
pub struct Nudge;

/// A request for a schedule with a chosen id, as [`Create`]; its spec has been checked.
#[derive(Clone, PartialEq, Debug)]
pub struct Named {
    pub tenant: TenantId,
    pub id: ScheduleId,
    pub incarnation: Option<Incarnation>,
    pub spec: Spec,
}

impl Named {
    /// # Panics
    /// If the request names no id.
    pub(crate) fn of(request: &Create) -> Self {
        let Create { tenant, id, incarnation, spec } = request;
        let id = id.clone().expect("an owner creates schedules with chosen ids only");
        Named { tenant: tenant.id, id, incarnation: *incarnation, spec: spec.clone() }
    }
}

macro_rules! operations {
    ($($operation:ident $name:literal -> $answer:ty;)*) => {$(
        impl Operation for $operation {
            const NAME: &'static str = $name;
            type Answer = $answer;
        }
    )*};
}

operations! {
    CreateNamed "create" -> Vec<Result<Arc<Schedule>, CreateRefusal>>;
    Put "put" -> Result<PutAnswer, CreateRefusal>;
    PutIf "put_if" -> Option<Result<PutAnswer, CreateRefusal>>;
    Cancel "cancel" -> CancelAnswer;
    CancelIf "cancel_if" -> Option<CancelAnswer>;
    Redrive "redrive" -> RedriveAnswer;
    Release "let_go" -> Vec<ShardId>;
    AttemptOutcome "outcome" -> ();
    Nudge "nudge" -> ();
}

pub(crate) fn encode_request<O: Operation>(operation: &O) -> Bytes {
    encode(operation)
}

/// # Errors
/// If `bytes` are no request for this operation.
pub(crate) fn decode_request<O: Operation>(bytes: &[u8]) -> Result<O, Malformed> {
    decode(O::NAME, bytes)
}

pub fn encode_response<O: Operation>(response: &Result<O::Answer, Undone>) -> Bytes {
    encode(response)
}

/// # Errors
/// If `bytes` are no response of this operation.
pub(crate) fn decode_response<O: Operation>(bytes: &[u8]) -> Result<Result<O::Answer, Undone>, Malformed> {
    decode(O::NAME, bytes)
}

fn encode(value: &impl Wire) -> Bytes {
    let mut out = vec![VERSION];
    value.put(&mut out);
    out.into()
}

fn decode<T: Wire>(what: &'static str, bytes: &[u8]) -> Result<T, Malformed> {
    let mut take = Take::new(what, bytes);
    take.version(VERSION)?;
    let value = T::take(&mut take)?;
    take.end()?;
    Ok(value)
}

/// A value in a request or a response.
pub trait Wire: Sized {
    fn put(&self, out: &mut Vec<u8>);

    /// # Errors
    /// If the next bytes are no such value.
    fn take(take: &mut Take<'_>) -> Result<Self, Malformed>;
}

/// The fields of a struct, one after the other.
macro_rules! fields {
    ($($type:ident { $($field:tt),* })*) => {$(
        impl Wire for $type {
            fn put(&self, _out: &mut Vec<u8>) {
                $(self.$field.put(_out);)*
            }

            fn take(_take: &mut Take<'_>) -> Result<Self, Malformed> {
                Ok($type { $($field: Wire::take(_take)?),* })
            }
        }
    )*};
}

fields! {
    CreateNamed { 0 }
    Put { 0 }
    PutIf { named, seen, timing }
    Cancel { poller, incarnation, applied }
    CancelIf { poller, edition }
    Redrive { tenant, of }
    Release { member, shards }
    AttemptOutcome { poller, run, then, ends }
    Nudge {}
    Named { tenant, id, incarnation, spec }
    PutAnswer { schedule, created, too_late }
    Edition { incarnation, revision }
    Seen { edition, next }
}

/// The variants of an enum, each by its number.
macro_rules! variants {
    ($($type:ident { $($number:literal => $variant:ident $(($($field:ident),*))? $({ $($named:ident),* })?),* $(,)? })*) => {$(
        impl Wire for $type {
            fn put(&self, out: &mut Vec<u8>) {
                match self {
                    $($type::$variant $(($($field),*))? $({ $($named),* })? => {
                        out.u8($number);
                        $($($field.put(out);)*)?
                        $($($named.put(out);)*)?
                    })*
                }
            }

            fn take(take: &mut Take<'_>) -> Result<Self, Malformed> {
                Ok(match take.u8()? {
                    $($number => {
                        $($(let $field = Wire::take(take)?;)*)?
                        $($(let $named = Wire::take(take)?;)*)?
                        $type::$variant $(($($field),*))? $({ $($named),* })?
                    })*
                    _ => return Err(take.malformed()),
                })
            }
        }
    )*};
}

variants! {
    Timing { 0 => Anew, 1 => Kept }
    CreateRefusal { 0 => Exists, 1 => Unreachable, 2 => NeverFires }
    CancelAnswer { 0 => NotFound, 1 => Cancelled, 2 => TooLate, 3 => Pending { decided_by } }
    RedriveAnswer { 0 => NotFound, 1 => NotDead, 2 => Redriven(occurrence) }
    Undone { 0 => NotOwned, 1 => Failed(error) }
    StoreError { 0 => Unavailable(text), 1 => Full(text), 2 => Damaged(text) }
}

impl<T: Wire> Wire for Option<T> {
    fn put(&self, out: &mut Vec<u8>) {
        self.is_some().put(out);
        if let Some(value) = self {
            value.put(out);
        }
    }

    fn take(take: &mut Take<'_>) -> Result<Self, Malformed> {
        bool::take(take)?.then(|| T::take(take)).transpose()
    }
}

impl<T: Wire, E: Wire> Wire for Result<T, E> {
    fn put(&self, out: &mut Vec<u8>) {
        self.is_ok().put(out);
        match self {
            Ok(value) => value.put(out),
            Err(error) => error.put(out),
        }
    }

    fn take(take: &mut Take<'_>) -> Result<Self, Malformed> {
        Ok(match bool::take(take)? {
            true => Ok(T::take(take)?),
            false => Err(E::take(take)?),
        })
    }
}

impl<T: Wire> Wire for Vec<T> {
    fn put(&self, out: &mut Vec<u8>) {
        out.count(self.len());
        self.iter().for_each(|value| value.put(out));
    }

    fn take(take: &mut Take<'_>) -> Result<Self, Malformed> {
        // A `Result` is collected without a reservation for the count, which is not to be believed yet.
        (0..take.count(1)?).map(|_| T::take(take)).collect()
    }
}

/// Values with a method of the same name in [`stored::Put`] and [`Take`].
macro_rules! values {
    ($($type:ty: $name:ident ($self:ident => $value:expr), $read:expr;)*) => {$(
        impl Wire for $type {
            fn put(&self, out: &mut Vec<u8>) {
                let $self = self;
                out.$name($value);
            }

            fn take(take: &mut Take<'_>) -> Result<Self, Malformed> {
                take.$name().map($read)
            }
        }
    )*};
}

values! {
    TenantId: u32(id => id.0), TenantId;
    Revision: u32(revision => revision.0), Revision;
    ShardId: u16(shard => shard.0), ShardId;
    Incarnation: u128(incarnation => incarnation.0), Incarnation;
    MemberId: u128(id => id.0), MemberId;
    Timestamp: timestamp(at => *at), |at| at;
    PollerId: poller(poller => *poller), |poller| poller;
    Occurrence: occurrence(occurrence => occurrence), |occurrence| occurrence;
    DueKey: due(due => due), |due| due;
    String: text(text => text), str::to_owned;
}

impl Wire for () {
    fn put(&self, _out: &mut Vec<u8>) {}

    fn take(_take: &mut Take<'_>) -> Result<Self, Malformed> {
        Ok(())
    }
}

impl Wire for bool {
    fn put(&self, out: &mut Vec<u8>) {
        out.u8(u8::from(*self));
    }

    fn take(take: &mut Take<'_>) -> Result<Self, Malformed> {
        match take.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(take.malformed()),
        }
    }
}

impl Wire for ScheduleId {
    fn put(&self, out: &mut Vec<u8>) {
        out.text(self.as_str());
    }

    fn take(take: &mut Take<'_>) -> Result<Self, Malformed> {
        ScheduleId::new(take.text()?).map_err(|_| take.malformed())
    }
}

impl Wire for Spec {
    fn put(&self, out: &mut Vec<u8>) {
        out.blob(&stored::schedule::encode_spec(self));
    }

    fn take(take: &mut Take<'_>) -> Result<Self, Malformed> {
        // Copied: a slice of the request would keep all of the request in memory for as long as the schedule is.
        stored::schedule::decode_spec(&Bytes::copy_from_slice(take.blob()?))
    }
}

impl Wire for Arc<Schedule> {
    fn put(&self, out: &mut Vec<u8>) {
        let mut bytes = Vec::new();
        stored::schedule::put(&mut bytes, self);
        out.blob(&bytes);
    }

    fn take(take: &mut Take<'_>) -> Result<Self, Malformed> {
        stored::schedule::decode(&Bytes::copy_from_slice(take.blob()?)).map(Arc::new)
    }
}

impl Wire for Run {
    fn put(&self, out: &mut Vec<u8>) {
        let mut bytes = Vec::new();
        stored::run::put(&mut bytes, self);
        out.blob(&bytes);
    }

    fn take(take: &mut Take<'_>) -> Result<Self, Malformed> {
        stored::run::decode(take.blob()?)
    }
}
