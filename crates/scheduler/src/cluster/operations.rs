//! Operations that members request from each other, with the encodings of their requests and responses.
//!
//! Each request and response begins with the version of this format. Members with different versions reject each
//! other's requests. Invariants: an encoded value decodes to an equal value. For all other bytes, the decoder returns
//! an error. It never panics, and it uses memory in proportion to the length of the bytes.
//!
//! docs/decisions/0160-exchange-named-operations.md gives the reasons for the design.

#[cfg(test)]
mod tests;

use std::sync::Arc;

use bytes::Bytes;
use domain::occurrence::Run;
use domain::{
    Delay, Difference, DifferenceKind, DueKey, Incarnation, Occurrence, PollerId, Precondition, Quota, Revision,
    Schedule, ScheduleId, ScheduleVersion, ShardId, Spec, TargetKey, TenantId, Timestamp,
};
use membership::MemberId;
use store::StoreError;
use stored::{Malformed, Put as _, Take};

use crate::requests::{
    AttemptOutcome, AuditFinding, AuditReport, AuditRequest, CancelResponse, Create, CreateRejection, OwnerError,
    Progress, PutResponse, RedriveResponse, Timing, Waiting,
};

const VERSION: u8 = 1;

/// Operation that one member requests from another member.
pub trait Operation: Wire {
    /// Name of the operation on the wire and in metrics.
    const NAME: &'static str;
    type Answer: Wire;
}

/// Creates schedules with chosen ids. All ids have the same home shard.
#[derive(Clone, PartialEq, Debug)]
pub struct CreateNamed(pub Vec<Named>);

/// Puts a schedule, as [`crate::Scheduler::put`] does.
#[derive(Clone, PartialEq, Debug)]
pub struct Put(pub Named);

/// Puts a schedule under a precondition, as [`crate::Scheduler::put_if`] does.
#[derive(Clone, PartialEq, Debug)]
pub struct PutIf {
    pub named: Named,
    pub seen: Option<Precondition>,
    pub timing: Timing,
}

/// Cancels a schedule whose cancellation record is durable. `applied` is true if the store has already cancelled the
/// schedule.
#[derive(Clone, PartialEq, Debug)]
pub struct Cancel {
    pub poller: PollerId,
    pub incarnation: Incarnation,
    pub applied: bool,
}

/// Cancels a schedule under a precondition, as [`crate::Scheduler::cancel_if`] does.
#[derive(Clone, PartialEq, Debug)]
pub struct CancelIf {
    pub poller: PollerId,
    pub edition: ScheduleVersion,
}

/// Puts a schedule, as [`Put`] does, on behalf of the API key `by`. Earlier builds know only [`Put`].
#[derive(Clone, PartialEq, Debug)]
pub struct PutBy {
    pub put: Put,
    pub by: String,
}

/// Puts a schedule under a precondition, as [`PutIf`] does, on behalf of the API key `by`.
#[derive(Clone, PartialEq, Debug)]
pub struct PutIfBy {
    pub put: PutIf,
    pub by: String,
}

/// Cancels a schedule under a precondition, as [`CancelIf`] does, on behalf of the API key `by`.
#[derive(Clone, PartialEq, Debug)]
pub struct CancelIfBy {
    pub cancel: CancelIf,
    pub by: String,
}

/// Redrives a dead letter, as [`crate::Scheduler::redrive`] does.
#[derive(Clone, PartialEq, Debug)]
pub struct Redrive {
    pub tenant: TenantId,
    pub of: Occurrence,
}

/// Requests the release of shards that the plan assigns to `member`. The response lists the shards that are free now.
#[derive(Clone, PartialEq, Debug)]
pub struct Release {
    pub member: MemberId,
    pub shards: Vec<ShardId>,
}

/// Notifies an owner that its shards have new rows that are due soon.
#[derive(Clone, PartialEq, Debug)]
pub struct Nudge;

/// Wire format of a [`Create`] with a chosen id. The sender has already validated the spec.
#[derive(Clone, PartialEq, Debug)]
pub struct Named {
    pub tenant: TenantId,
    pub id: ScheduleId,
    pub incarnation: Option<Incarnation>,
    pub spec: Spec,
}

impl Named {
    /// # Panics
    /// Panics if the request contains no id.
    pub(crate) fn of(request: &Create) -> Self {
        let Create { tenant, id, incarnation, spec, by: _ } = request;
        let id = id.clone().expect("a forwarded create names an id");
        Named { tenant: tenant.id, id, incarnation: *incarnation, spec: spec.clone() }
    }
}

macro_rules! operations {
    ($($operation:ident $name:literal -> $response:ty;)*) => {$(
        impl Operation for $operation {
            const NAME: &'static str = $name;
            type Answer = $response;
        }
    )*};
}

operations! {
    CreateNamed "create" -> Vec<Result<Arc<Schedule>, CreateRejection>>;
    Put "put" -> Result<PutResponse, CreateRejection>;
    PutIf "put_if" -> Option<Result<PutResponse, CreateRejection>>;
    Cancel "cancel" -> CancelResponse;
    CancelIf "cancel_if" -> Option<CancelResponse>;
    Redrive "redrive" -> RedriveResponse;
    Release "let_go" -> Vec<ShardId>;
    AttemptOutcome "outcome" -> ();
    Nudge "nudge" -> ();
    Waiting "waiting" -> Progress;
    AuditRequest "audit" -> AuditReport;
    PutBy "put_by" -> Result<PutResponse, CreateRejection>;
    PutIfBy "put_if_by" -> Option<Result<PutResponse, CreateRejection>>;
    CancelIfBy "cancel_if_by" -> Option<CancelResponse>;
}

pub(crate) fn encode_request<O: Operation>(operation: &O) -> Bytes {
    encode(operation)
}

/// # Errors
/// Returns an error if `bytes` do not encode a request for this operation.
pub(crate) fn decode_request<O: Operation>(bytes: &[u8]) -> Result<O, Malformed> {
    decode(O::NAME, bytes)
}

pub fn encode_response<O: Operation>(response: &Result<O::Answer, OwnerError>) -> Bytes {
    encode(response)
}

/// # Errors
/// Returns an error if `bytes` do not encode a response of this operation.
pub(crate) fn decode_response<O: Operation>(bytes: &[u8]) -> Result<Result<O::Answer, OwnerError>, Malformed> {
    decode(O::NAME, bytes)
}

fn encode(value: &impl Wire) -> Bytes {
    let mut out = vec![VERSION];
    value.put(&mut out);
    out.into()
}

fn decode<T: Wire>(operation: &'static str, bytes: &[u8]) -> Result<T, Malformed> {
    let mut take = Take::new(operation, bytes);
    take.version(VERSION)?;
    let value = T::take(&mut take)?;
    take.end()?;
    Ok(value)
}

/// Value that a request or a response can contain, with its encoding.
pub trait Wire: Sized {
    fn put(&self, out: &mut Vec<u8>);

    /// # Errors
    /// Returns an error if the next bytes do not encode a value of this type.
    fn take(take: &mut Take<'_>) -> Result<Self, Malformed>;
}

/// Encodes a struct as its fields, in order.
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
    PutBy { put, by }
    PutIfBy { put, by }
    CancelIfBy { cancel, by }
    Waiting { poller, incarnation, nominal, target, due }
    Progress { is_in_flight, delay }
    AuditRequest { tenant }
    AuditReport { from, completed_at, unaccounted, is_truncated, is_incomplete, findings }
    AuditFinding { tenant, schedule, difference, found_at }
    Difference { occurrence, kind }
    Named { tenant, id, incarnation, spec }
    PutResponse { schedule, created, too_late }
    ScheduleVersion { incarnation, revision }
    Precondition { edition, next }
}

/// Encodes an enum as the number of the variant, followed by the fields of the variant.
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
    Timing { 0 => Restarted, 1 => Kept }
    CreateRejection { 0 => Exists, 1 => Unreachable, 2 => NeverFires }
    CancelResponse { 0 => NotFound, 1 => Cancelled, 2 => TooLate, 3 => Pending { decided_by } }
    RedriveResponse { 0 => NotFound, 1 => NotDead, 2 => Redriven(occurrence) }
    Delay { 0 => Quota { quota, since }, 1 => Slot, 2 => Circuit { until }, 3 => MemberDown { until } }
    DifferenceKind {
        0 => MissingOutcome,
        1 => MissingDueRow,
        2 => MissingRetry,
        3 => NoSuchOccurrence,
        4 => NoSuchRevision,
        5 => NotStarted,
        6 => NotRedriven,
        7 => Duplicate,
        8 => WrongCount,
    }
    OwnerError { 0 => NotOwned, 1 => Failed(error) }
    StoreError { 0 => Unavailable(text), 1 => Full(text), 2 => Damaged(text), 3 => Unindexed(text) }
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
        // The declared count may exceed the number of items that follow. The decoder therefore collects the items into
        // a `Result`: the iterator then reserves no memory for the declared count.
        (0..take.count(1)?).map(|_| T::take(take)).collect()
    }
}

/// Encodes and decodes a value with the methods `$name` of [`stored::Put`] and [`Take`].
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
    TargetKey: u32(key => key.0), TargetKey;
    Revision: u32(revision => revision.0), Revision;
    ShardId: u16(shard => shard.0), ShardId;
    Incarnation: u128(incarnation => incarnation.0), Incarnation;
    MemberId: u128(id => id.0), MemberId;
    Timestamp: timestamp(at => *at), |at| at;
    PollerId: poller(poller => *poller), |poller| poller;
    Occurrence: occurrence(occurrence => occurrence), |occurrence| occurrence;
    DueKey: due(due => due), |due| due;
    String: text(text => text), str::to_owned;
    u32: u32(number => *number), |number| number;
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

impl Wire for Quota {
    fn put(&self, out: &mut Vec<u8>) {
        out.text(self.name());
    }

    fn take(take: &mut Take<'_>) -> Result<Self, Malformed> {
        let name = take.text()?;
        Quota::ALL.into_iter().find(|quota| quota.name() == name).ok_or_else(|| take.malformed())
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
        // The decoder copies the bytes. Otherwise, the whole request would stay in memory until the schedule is
        // dropped.
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
