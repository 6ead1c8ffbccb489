//! Values put one after the other, and taken off again.

use std::time::Duration;

use domain::Timestamp;

/// Stored bytes do not have the form they should.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{what} cannot be read at byte {at}")]
pub(crate) struct Malformed {
    what: &'static str,
    at: usize,
}

pub(super) trait Put {
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

    fn u128(&mut self, value: u128) {
        self.bytes(&value.to_le_bytes());
    }

    fn count(&mut self, count: usize) {
        self.u32(u32::try_from(count).expect("a request's size limit keeps counts below 2^32"));
    }

    fn blob(&mut self, bytes: &[u8]) {
        self.count(bytes.len());
        self.bytes(bytes);
    }

    fn text(&mut self, text: &str) {
        self.blob(text.as_bytes());
    }

    fn timestamp(&mut self, at: Timestamp) {
        self.bytes(&at.as_millis().to_le_bytes());
    }

    fn duration(&mut self, duration: Duration) {
        self.u64(duration.as_secs());
        self.u32(duration.subsec_nanos());
    }
}

impl Put for Vec<u8> {
    fn bytes(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

pub(super) struct Take<'a> {
    what: &'static str,
    all: usize,
    rest: &'a [u8],
}

impl<'a> Take<'a> {
    /// `what` names the bytes in an error.
    pub(super) fn new(what: &'static str, bytes: &'a [u8]) -> Self {
        Take { what, all: bytes.len(), rest: bytes }
    }

    pub(super) fn malformed(&self) -> Malformed {
        Malformed { what: self.what, at: self.all - self.rest.len() }
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (taken, rest) = self.rest.split_first_chunk::<N>().ok_or_else(|| self.malformed())?;
        self.rest = rest;
        Ok(*taken)
    }

    pub(super) fn u8(&mut self) -> Result<u8, Malformed> {
        self.array::<1>().map(|[byte]| byte)
    }

    pub(super) fn version(&mut self, known: u8) -> Result<(), Malformed> {
        if self.rest.first() == Some(&known) { self.u8().map(drop) } else { Err(self.malformed()) }
    }

    pub(super) fn u16(&mut self) -> Result<u16, Malformed> {
        self.array().map(u16::from_le_bytes)
    }

    pub(super) fn u32(&mut self) -> Result<u32, Malformed> {
        self.array().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64, Malformed> {
        self.array().map(u64::from_le_bytes)
    }

    pub(super) fn u128(&mut self) -> Result<u128, Malformed> {
        self.array().map(u128::from_le_bytes)
    }

    /// How many items follow, each of at least `item_len_min` bytes: so a wrong count cannot ask for memory.
    pub(super) fn count(&mut self, item_len_min: usize) -> Result<usize, Malformed> {
        let count = usize::try_from(self.u32()?).map_err(|_| self.malformed())?;
        match count.checked_mul(item_len_min) {
            Some(len) if len <= self.rest.len() => Ok(count),
            _ => Err(self.malformed()),
        }
    }

    pub(super) fn blob(&mut self) -> Result<&'a [u8], Malformed> {
        let len = self.count(1)?;
        let (taken, rest) = self.rest.split_at(len);
        self.rest = rest;
        Ok(taken)
    }

    pub(super) fn text(&mut self) -> Result<&'a str, Malformed> {
        let blob = self.blob()?;
        std::str::from_utf8(blob).map_err(|_| self.malformed())
    }

    pub(super) fn timestamp(&mut self) -> Result<Timestamp, Malformed> {
        self.array().map(i64::from_le_bytes).map(Timestamp::from_millis)
    }

    pub(super) fn duration(&mut self) -> Result<Duration, Malformed> {
        let seconds = self.u64()?;
        let nanos = self.u32()?;
        if nanos >= 1_000_000_000 {
            return Err(self.malformed());
        }
        Ok(Duration::new(seconds, nanos))
    }

    pub(super) fn end(self) -> Result<(), Malformed> {
        if self.rest.is_empty() { Ok(()) } else { Err(self.malformed()) }
    }
}
