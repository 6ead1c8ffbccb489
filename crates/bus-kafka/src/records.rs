//! Records and offsets that librdkafka has fetched.

use std::ffi::CString;

use bus::{Header, Offset, Partition, Record};
use bytes::Bytes;
use instants::Timestamp;
use rdkafka::bindings::rd_kafka_get_watermark_offsets;
use rdkafka::consumer::{BaseConsumer, Consumer as _, ConsumerContext};
use rdkafka::message::{BorrowedMessage, Headers as _, Message as _};
use rdkafka::types::RDKafkaRespErr;

use crate::kafka_index;

/// Largest size of the records that librdkafka fetches in advance for one partition, in KiB.
pub(crate) const QUEUE_KIB: &str = "4096";
/// Time after which librdkafka checks again whether a full queue has space.
pub(crate) const QUEUE_BACKOFF_MILLIS: &str = "5";

pub(crate) fn record_of(message: &BorrowedMessage<'_>) -> Option<Record> {
    let bytes = |bytes: Option<&[u8]>| bytes.map(Bytes::copy_from_slice);
    let header = |header: rdkafka::message::Header<'_, &[u8]>| Header {
        name: header.key.to_owned(),
        value: bytes(header.value),
    };
    Some(Record {
        offset: Offset(u64::try_from(message.offset()).ok()?),
        timestamp: Timestamp::from_millis(message.timestamp().to_millis().unwrap_or_default()),
        key: bytes(message.key()),
        value: bytes(message.payload()),
        headers: message.headers().map(|headers| headers.iter().map(header).collect()).unwrap_or_default(),
    })
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
