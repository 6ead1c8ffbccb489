//! Entries of the journal.
//!
//! An entry starts with one byte for its kind, and eight bytes for the number of a record. Integers are little-endian. The
//! entry of a record continues with the record: its topic, partition, time, key, value and headers. A text or a byte string
//! is its length in four bytes, and then its bytes. A field that may be missing starts with one byte: 0 if it is missing,
//! and 1 otherwise.

use bus::{Header, NewRecord, TopicName};
use bytes::{BufMut as _, Bytes, BytesMut};
use instants::Timestamp;

const RECORD: u8 = 1;
const FINISHED: u8 = 2;

/// Entry of the journal.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Entry {
    /// Record with its number.
    Record(u64, NewRecord),
    /// All records with smaller numbers are finished.
    Finished(u64),
}

/// The bytes are not an entry of this version of the program.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("an entry of the buffer is invalid; a later version of this program may have written it")]
pub struct EntryError;

pub(crate) fn encode_finished(below: u64) -> Bytes {
    let mut entry = BytesMut::with_capacity(9);
    entry.put_u8(FINISHED);
    entry.put_u64_le(below);
    entry.freeze()
}

pub(crate) fn encode_record(number: u64, record: &NewRecord) -> Bytes {
    let mut entry = BytesMut::with_capacity(record.bytes() + record.topic.as_str().len() + 64);
    entry.put_u8(RECORD);
    entry.put_u64_le(number);
    put(&mut entry, record.topic.as_str().as_bytes());
    put_optional(&mut entry, record.partition, |entry, partition| entry.put_u32_le(partition));
    put_optional(&mut entry, record.timestamp, |entry, time| entry.put_i64_le(time.as_millis()));
    put_optional(&mut entry, record.key.as_ref(), |entry, key| put(entry, key));
    put_optional(&mut entry, record.value.as_ref(), |entry, value| put(entry, value));
    entry.put_u32_le(len(record.headers.len()));
    for header in &record.headers {
        put(&mut entry, header.name.as_bytes());
        put_optional(&mut entry, header.value.as_ref(), |entry, value| put(entry, value));
    }
    entry.freeze()
}

fn len(len: usize) -> u32 {
    u32::try_from(len).expect("a record that the bus accepts is smaller than 4 GiB")
}

fn put(entry: &mut BytesMut, bytes: &[u8]) {
    entry.put_u32_le(len(bytes.len()));
    entry.put_slice(bytes);
}

fn put_optional<T>(entry: &mut BytesMut, field: Option<T>, put: impl FnOnce(&mut BytesMut, T)) {
    entry.put_u8(u8::from(field.is_some()));
    if let Some(field) = field {
        put(entry, field);
    }
}

pub(crate) fn decode(entry: Bytes) -> Result<Entry, EntryError> {
    let mut fields = Fields(entry);
    let (kind, number) = (fields.array::<1>()?, u64::from_le_bytes(fields.array()?));
    let decoded = match kind {
        [FINISHED] => Entry::Finished(number),
        [RECORD] => Entry::Record(number, fields.record()?),
        _ => return Err(EntryError),
    };
    if fields.0.is_empty() { Ok(decoded) } else { Err(EntryError) }
}

/// Rest of an entry.
struct Fields(Bytes);

impl Fields {
    fn record(&mut self) -> Result<NewRecord, EntryError> {
        let topic = TopicName::new(&self.text()?).map_err(|_| EntryError)?;
        let partition = self.optional(|fields| fields.array().map(u32::from_le_bytes))?;
        let timestamp = self.optional(|fields| fields.array().map(i64::from_le_bytes).map(Timestamp::from_millis))?;
        let (key, value) = (self.optional(Fields::bytes)?, self.optional(Fields::bytes)?);
        let count = u32::from_le_bytes(self.array()?);
        // The fields of a header need more than one byte, so a damaged number cannot allocate much memory.
        let mut headers = Vec::with_capacity(self.0.len().min(count as usize));
        for _ in 0..count {
            headers.push(Header { name: self.text()?, value: self.optional(Fields::bytes)? });
        }
        Ok(NewRecord { topic, partition, timestamp, key, value, headers })
    }

    fn take(&mut self, count: usize) -> Result<Bytes, EntryError> {
        if count > self.0.len() { Err(EntryError) } else { Ok(self.0.split_to(count)) }
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], EntryError> {
        self.take(N)?.as_ref().try_into().map_err(|_| EntryError)
    }

    fn bytes(&mut self) -> Result<Bytes, EntryError> {
        let count = u32::from_le_bytes(self.array()?);
        self.take(count as usize)
    }

    fn text(&mut self) -> Result<String, EntryError> {
        String::from_utf8(self.bytes()?.to_vec()).map_err(|_| EntryError)
    }

    fn optional<T>(&mut self, field: impl FnOnce(&mut Self) -> Result<T, EntryError>) -> Result<Option<T>, EntryError> {
        match self.array::<1>()? {
            [0] => Ok(None),
            [1] => field(self).map(Some),
            _ => Err(EntryError),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn bytes() -> impl Strategy<Value = Option<Bytes>> {
        prop::option::of(prop::collection::vec(any::<u8>(), 0..20).prop_map(Bytes::from))
    }

    fn header() -> impl Strategy<Value = Header> {
        ("\\PC{0,8}", bytes()).prop_map(|(name, value)| Header { name, value })
    }

    prop_compose! {
        fn record()(
            topic in "[a-z][a-z0-9._-]{0,20}",
            partition in any::<Option<u32>>(),
            time in any::<Option<i64>>(),
            (key, value) in (bytes(), bytes()),
            headers in prop::collection::vec(header(), 0..4),
        ) -> NewRecord {
            let topic = TopicName::new(&topic).unwrap();
            NewRecord { topic, partition, timestamp: time.map(Timestamp::from_millis), key, value, headers }
        }
    }

    proptest! {
        #[test]
        fn decoded_record_equals_the_encoded_one(number in any::<u64>(), record in record(), cut in any::<prop::sample::Index>()) {
            let entry = encode_record(number, &record);
            let part = entry.slice(..cut.index(entry.len()));
            prop_assert_eq!(decode(entry), Ok(Entry::Record(number, record)));
            prop_assert_eq!(decode(part), Err(EntryError));
        }

        #[test]
        fn arbitrary_bytes_are_decoded_or_rejected(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            if let Ok(Entry::Record(number, record)) = decode(Bytes::from(bytes.clone())) {
                prop_assert_eq!(encode_record(number, &record), bytes);
            }
        }
    }

    #[test]
    fn decoded_number_of_finished_records_equals_the_encoded_one() {
        assert_eq!(decode(encode_finished(17)), Ok(Entry::Finished(17)));
    }
}
