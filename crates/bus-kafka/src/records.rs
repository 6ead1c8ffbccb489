//! Records and offsets that librdkafka has fetched.

use std::ffi::CString;

use bus::{Header, Offset, Partition, Record};
use bytes::{Bytes, BytesMut};
use instants::Timestamp;
use rdkafka::bindings::rd_kafka_get_watermark_offsets;
use rdkafka::consumer::{BaseConsumer, Consumer as _, ConsumerContext};
use rdkafka::types::RDKafkaRespErr;

use crate::kafka_index;

/// Largest size of the records that librdkafka fetches in advance for one partition, in KiB.
pub(crate) const QUEUE_KIB: &str = "4096";
/// Time after which librdkafka checks again whether a full queue has space.
pub(crate) const QUEUE_BACKOFF_MILLIS: &str = "5";

/// Size of the memory blocks into which [`Copier`] copies bytes.
const BLOCK_BYTES: usize = 16 << 10;

/// Copies records from the memory of librdkafka. Small keys and values share blocks of memory, so that most records need no
/// allocation. A block lives as long as one of its records.
#[derive(Debug, Default)]
pub(crate) struct Copier {
    /// Rest of the current block.
    block: BytesMut,
}

/// Content of a message of librdkafka without its headers.
pub(crate) struct Content<'a> {
    pub(crate) offset: i64,
    /// Milliseconds since 1970-01-01 00:00 UTC.
    pub(crate) millis: i64,
    pub(crate) key: Option<&'a [u8]>,
    pub(crate) value: Option<&'a [u8]>,
}

impl Copier {
    /// Copies a record without its headers. Returns `None` if the offset is not a number of a record.
    pub(crate) fn record(&mut self, content: Content<'_>) -> Option<Record> {
        Some(Record {
            offset: Offset(u64::try_from(content.offset).ok()?),
            // librdkafka returns -1 if a message has no time.
            timestamp: Timestamp::from_millis(if content.millis == -1 { 0 } else { content.millis }),
            key: self.bytes(content.key),
            value: self.bytes(content.value),
            headers: Vec::new(),
        })
    }

    pub(crate) fn header(&mut self, name: &str, value: Option<&[u8]>) -> Header {
        Header { name: name.to_owned(), value: self.bytes(value) }
    }

    fn bytes(&mut self, bytes: Option<&[u8]>) -> Option<Bytes> {
        let bytes = bytes?;
        if bytes.len() > BLOCK_BYTES / 4 {
            return Some(Bytes::copy_from_slice(bytes));
        }
        if self.block.capacity() < bytes.len() {
            self.block = BytesMut::with_capacity(BLOCK_BYTES);
        }
        self.block.extend_from_slice(bytes);
        Some(self.block.split().freeze())
    }
}

/// Returns the offset after the last record of a partition, as far as librdkafka knows.
pub(crate) fn end<C: ConsumerContext>(client: &BaseConsumer<C>, partition: &Partition) -> Option<Offset> {
    let topic = CString::new(partition.topic.as_str()).ok()?;
    let (mut first, mut end) = (-1, -1);
    #[expect(unsafe_code, reason = "the crate rdkafka has no function for the offsets that librdkafka knows")]
    // SAFETY: `client` is alive during the call. The name and both numbers outlive the call.
    let found = unsafe {
        let index = kafka_index(partition.index);
        rd_kafka_get_watermark_offsets(
            client.client().native_ptr(),
            topic.as_ptr(),
            index,
            &raw mut first,
            &raw mut end,
        )
    };
    (found == RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR).then(|| u64::try_from(end).ok().map(Offset))?
}
