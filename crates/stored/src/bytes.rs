//! Encoding of primitive values. `Put` appends a value to a buffer, and `Take` removes a value from the front of a
//! buffer.

use std::time::Duration;

use domain::{DueKey, Incarnation, Occurrence, PollerId, Revision, TargetKey, TenantId, Timestamp};
use store::StoreError;

/// Error that reports bytes in an unexpected form.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{what} is malformed at byte {at}")]
pub struct Malformed {
    pub what: &'static str,
    pub at: usize,
}

impl From<Malformed> for StoreError {
    fn from(malformed: Malformed) -> Self {
        StoreError::Damaged(malformed.to_string())
    }
}

/// Appends values to a buffer. Numbers are little-endian. A 32-bit length precedes a text or blob.
pub trait Put {
    fn bytes(&mut self, bytes: &[u8]);

    fn u8(&mut self, value: u8) {
        self.bytes(&[value]);
    }

    fn u16(&mut self, value: u16) {
        self.bytes(&value.to_le_bytes());
    }

    fn u32(&mut self, value: u32) {
        self.bytes(&value.to_le_bytes());
    }

    fn u64(&mut self, value: u64) {
        self.bytes(&value.to_le_bytes());
    }

    fn i64(&mut self, value: i64) {
        self.bytes(&value.to_le_bytes());
    }

    fn u128(&mut self, value: u128) {
        self.bytes(&value.to_le_bytes());
    }

    /// Appends the number of items of a collection. The number fits into 32 bits, because the limits of the API keep
    /// every collection far below 2^32 items.
    fn count(&mut self, count: usize) {
        self.u32(u32::try_from(count).expect("the size limit of requests keeps every count below 2^32"));
    }

    fn blob(&mut self, bytes: &[u8]) {
        self.count(bytes.len());
        self.bytes(bytes);
    }

    fn text(&mut self, text: &str) {
        self.blob(text.as_bytes());
    }

    fn timestamp(&mut self, at: Timestamp) {
        self.i64(at.as_millis());
    }

    fn duration(&mut self, duration: Duration) {
        self.u64(duration.as_secs());
        self.u32(duration.subsec_nanos());
    }

    fn poller(&mut self, poller: PollerId) {
        self.u32(poller.tenant.0);
        self.u16(poller.generation);
        self.u16(poller.number);
    }

    fn occurrence(&mut self, occurrence: &Occurrence) {
        self.u128(occurrence.incarnation.0);
        self.timestamp(occurrence.nominal);
        self.u32(occurrence.revision.0);
        self.u16(occurrence.replay);
    }

    fn due(&mut self, due: &DueKey) {
        self.timestamp(due.position);
        self.occurrence(&due.occurrence);
        self.u16(due.attempt);
        self.u32(due.target.0);
    }
}

impl Put for Vec<u8> {
    fn bytes(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

/// Takes values off the front of a buffer. [`Put`] has appended these values.
///
/// # Errors
/// Each method returns [`Malformed`] if the remaining bytes do not start with a value of the method's type.
pub struct Take<'a> {
    what: &'static str,
    all: usize,
    rest: &'a [u8],
}

#[expect(clippy::missing_errors_doc, reason = "the documentation of the type states the error that all methods return")]
impl<'a> Take<'a> {
    /// Creates a reader of `bytes`. In the text of an error, `what` names the bytes, for example "a run".
    pub fn new(what: &'static str, bytes: &'a [u8]) -> Self {
        Take { what, all: bytes.len(), rest: bytes }
    }

    pub fn malformed(&self) -> Malformed {
        Malformed { what: self.what, at: self.all - self.rest.len() }
    }

    pub fn bytes(&mut self, len: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.rest.split_at_checked(len).ok_or_else(|| self.malformed())?;
        self.rest = rest;
        Ok(taken)
    }

    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (taken, rest) = self.rest.split_first_chunk::<N>().ok_or_else(|| self.malformed())?;
        self.rest = rest;
        Ok(*taken)
    }

    pub fn u8(&mut self) -> Result<u8, Malformed> {
        self.array::<1>().map(|[byte]| byte)
    }

    pub fn u16(&mut self) -> Result<u16, Malformed> {
        self.array().map(u16::from_le_bytes)
    }

    pub fn u32(&mut self) -> Result<u32, Malformed> {
        self.array().map(u32::from_le_bytes)
    }

    pub fn u64(&mut self) -> Result<u64, Malformed> {
        self.array().map(u64::from_le_bytes)
    }

    pub fn i64(&mut self) -> Result<i64, Malformed> {
        self.array().map(i64::from_le_bytes)
    }

    pub fn u128(&mut self) -> Result<u128, Malformed> {
        self.array().map(u128::from_le_bytes)
    }

    /// Takes the number of items that follow in the buffer. Each item has at least `item_len_min` bytes. Returns an
    /// error if the remaining bytes are too few for this number of items. A wrong number therefore never makes the
    /// caller allocate too much memory.
    pub fn count(&mut self, item_len_min: usize) -> Result<usize, Malformed> {
        let count = usize::try_from(self.u32()?).map_err(|_| self.malformed())?;
        match count.checked_mul(item_len_min) {
            Some(len) if len <= self.rest.len() => Ok(count),
            _ => Err(self.malformed()),
        }
    }

    pub fn blob(&mut self) -> Result<&'a [u8], Malformed> {
        let len = self.count(1)?;
        self.bytes(len)
    }

    pub fn text(&mut self) -> Result<&'a str, Malformed> {
        let blob = self.blob()?;
        std::str::from_utf8(blob).map_err(|_| self.malformed())
    }

    pub fn timestamp(&mut self) -> Result<Timestamp, Malformed> {
        self.i64().map(Timestamp::from_millis)
    }

    pub fn duration(&mut self) -> Result<Duration, Malformed> {
        let seconds = self.u64()?;
        let nanos = self.u32()?;
        if nanos >= 1_000_000_000 {
            return Err(self.malformed());
        }
        Ok(Duration::new(seconds, nanos))
    }

    pub(crate) fn skip_blobs(&mut self, count: usize) -> Result<(), Malformed> {
        (0..count).try_for_each(|_| self.blob().map(|_| ()))
    }

    pub(crate) fn skip_timestamp(&mut self) -> Result<(), Malformed> {
        self.timestamp().map(|_| ())
    }

    pub(crate) fn skip_duration(&mut self) -> Result<(), Malformed> {
        self.duration().map(|_| ())
    }

    pub fn poller(&mut self) -> Result<PollerId, Malformed> {
        Ok(PollerId { tenant: TenantId(self.u32()?), generation: self.u16()?, number: self.u16()? })
    }

    pub fn occurrence(&mut self) -> Result<Occurrence, Malformed> {
        Ok(Occurrence {
            incarnation: Incarnation(self.u128()?),
            nominal: self.timestamp()?,
            revision: Revision(self.u32()?),
            replay: self.u16()?,
        })
    }

    pub fn due(&mut self) -> Result<DueKey, Malformed> {
        Ok(DueKey {
            position: self.timestamp()?,
            occurrence: self.occurrence()?,
            attempt: self.u16()?,
            target: TargetKey(self.u32()?),
        })
    }

    /// Takes a version number and checks that it equals `expected`.
    pub fn version(&mut self, expected: u8) -> Result<(), Malformed> {
        if self.u8()? == expected { Ok(()) } else { Err(self.malformed()) }
    }

    /// Checks that no bytes remain.
    pub fn end(self) -> Result<(), Malformed> {
        if self.rest.is_empty() { Ok(()) } else { Err(self.malformed()) }
    }
}
