//! Rows of the listings of schedules. One row, or a few rows, list all schedules of a tenant that were created within
//! the same 16 ms. If each schedule had a listing row of its own, these rows would cause half of the cost of all small
//! rows when callers create many schedules per second.

use std::collections::BTreeSet;

use domain::{Incarnation, TenantId};
use store::Order;
use stored::{Malformed, Put as _, Take};

pub(crate) const LISTED: u8 = b'l';
const VERSION: u8 = 1;

/// Number of bits of an incarnation below its bucket number: 80 random bits, and the lowest 4 bits of the time in
/// milliseconds.
const BUCKET_BITS: u32 = 84;
/// Number of bytes of an incarnation that a row stores. The bucket number supplies the other bytes.
const LOW_LEN: usize = 11;

/// Bucket of a listing: the schedules of a tenant whose incarnations have the same high bits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Bucket {
    pub tenant: TenantId,
    /// Creation time of the bucket's schedules, as the number of 16 ms steps since 1970.
    pub number: u64,
}

impl Bucket {
    pub(crate) fn of(tenant: TenantId, incarnation: Incarnation) -> Self {
        let number = u64::try_from(incarnation.0 >> BUCKET_BITS).expect("44 bits remain");
        Bucket { tenant, number }
    }

    /// Returns the first and the last bucket (both inclusive) that can contain schedules of the tenant after `after` in
    /// the order `order`.
    pub(crate) fn after(tenant: TenantId, order: Order, after: Option<Incarnation>) -> (Self, Self) {
        let bound = |number| after.map_or(Bucket { tenant, number }, |after| Bucket::of(tenant, after));
        match order {
            Order::Oldest => (bound(0), Bucket { tenant, number: u64::MAX }),
            Order::Newest => (Bucket { tenant, number: 0 }, bound(u64::MAX)),
        }
    }

    /// Returns the common prefix of the keys of the bucket's rows.
    fn start(self) -> [u8; 13] {
        let mut start = [LISTED; 13];
        start[1..5].copy_from_slice(&self.tenant.0.to_be_bytes());
        start[5..].copy_from_slice(&self.number.to_be_bytes());
        start
    }

    /// Returns the key of the bucket's row with the number `part`.
    pub(crate) fn key(self, part: u64) -> [u8; 21] {
        let mut key = [0; 21];
        key[..13].copy_from_slice(&self.start());
        key[13..].copy_from_slice(&part.to_be_bytes());
        key
    }

    /// Returns the bounds of the row keys from this bucket to the bucket `last`: an inclusive lower and an exclusive
    /// upper key.
    pub(crate) fn bounds(self, last: Bucket) -> (Vec<u8>, Vec<u8>) {
        (self.start().to_vec(), [&last.start()[..], &[0xff; 9]].concat())
    }

    pub(crate) fn parse(key: &[u8]) -> Result<Self, Malformed> {
        let mut take = Take::new("a list's key", key);
        take.version(LISTED)?;
        let tenant = TenantId(u32::from_be_bytes(take.array()?));
        let number = u64::from_be_bytes(take.array()?);
        let _part = take.bytes(8)?;
        take.end()?;
        Ok(Bucket { tenant, number })
    }

    pub(crate) fn encode(incarnations: &BTreeSet<Incarnation>) -> Vec<u8> {
        let mut value = Vec::with_capacity(5 + incarnations.len() * LOW_LEN);
        value.u8(VERSION);
        value.count(incarnations.len());
        incarnations.iter().for_each(|incarnation| value.bytes(&incarnation.0.to_be_bytes()[16 - LOW_LEN..]));
        value
    }

    pub(crate) fn decode(self, value: &[u8]) -> Result<BTreeSet<Incarnation>, Malformed> {
        let mut take = Take::new("a list", value);
        take.version(VERSION)?;
        let high = u128::from(self.number) << BUCKET_BITS >> (8 * LOW_LEN) << (8 * LOW_LEN);
        let mut incarnations = BTreeSet::new();
        for _ in 0..take.count(LOW_LEN)? {
            let mut bytes = [0; 16];
            bytes[16 - LOW_LEN..].copy_from_slice(take.bytes(LOW_LEN)?);
            let incarnation = Incarnation(high | u128::from_be_bytes(bytes));
            if Bucket::of(self.tenant, incarnation) != self {
                return Err(take.malformed());
            }
            incarnations.insert(incarnation);
        }
        take.end()?;
        Ok(incarnations)
    }
}
