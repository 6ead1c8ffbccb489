//! Messages that librdkafka hands over many at a time. The crate rdkafka takes each message with a call of its own, which
//! costs more processor time. docs/decisions/0235-take-kafka-messages-in-batches.md has the figures.

#![expect(unsafe_code, reason = "the crate rdkafka has no function that takes many messages at once")]

use std::ffi::{CStr, CString, c_void};
use std::ptr::{self, NonNull};

use bus::{Partition, Record};
use rdkafka::bindings::{
    rd_kafka_consume_batch_queue, rd_kafka_header_get_all, rd_kafka_headers_t, rd_kafka_message_destroy,
    rd_kafka_message_headers, rd_kafka_message_t, rd_kafka_message_timestamp, rd_kafka_queue_destroy,
    rd_kafka_queue_get_partition, rd_kafka_queue_t,
};
use rdkafka::consumer::{BaseConsumer, Consumer as _, ConsumerContext};
use rdkafka::error::RDKafkaErrorCode;
use rdkafka::types::RDKafkaRespErr;

use crate::kafka_index;
use crate::records::{Content, Copier};

/// Queue of a partition. The caller must drop it before the client.
pub(crate) struct MessageQueue(NonNull<rd_kafka_queue_t>);

// SAFETY: every function of librdkafka that takes a queue locks it.
unsafe impl Send for MessageQueue {}
// SAFETY: see above.
unsafe impl Sync for MessageQueue {}

impl MessageQueue {
    /// Returns `None` if the client does not know the partition.
    pub(crate) fn of<C: ConsumerContext>(client: &BaseConsumer<C>, partition: &Partition) -> Option<Self> {
        let topic = CString::new(partition.topic.as_str()).ok()?;
        let (client, index) = (client.client().native_ptr(), kafka_index(partition.index));
        // SAFETY: the client is alive, and the name outlives the call.
        NonNull::new(unsafe { rd_kafka_queue_get_partition(client, topic.as_ptr(), index) }).map(MessageQueue)
    }

    /// Removes at most `messages_max` messages from the queue, without a wait.
    pub(crate) fn take(&self, messages_max: usize) -> Messages {
        let mut messages = Vec::with_capacity(messages_max);
        // SAFETY: the queue is alive. librdkafka writes at most `messages_max` pointers, and returns their number, or -1.
        unsafe {
            let count = rd_kafka_consume_batch_queue(self.0.as_ptr(), 0, messages.as_mut_ptr(), messages_max);
            messages.set_len(usize::try_from(count).unwrap_or(0));
        }
        Messages(messages)
    }
}

impl Drop for MessageQueue {
    fn drop(&mut self) {
        // SAFETY: no code uses the queue after its drop.
        unsafe { rd_kafka_queue_destroy(self.0.as_ptr()) }
    }
}

/// Messages that the caller owns.
pub(crate) struct Messages(Vec<*mut rd_kafka_message_t>);

impl Messages {
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Copies each message. The result is an error if librdkafka reports one in place of a message.
    pub(crate) fn records(&self, copier: &mut Copier) -> impl Iterator<Item = Result<Record, RDKafkaErrorCode>> {
        // SAFETY: the messages are alive, and no other code uses them.
        self.0.iter().filter_map(|message| unsafe { record(*message, copier) })
    }
}

/// Copies a message. Returns an error if librdkafka reports one in place of a message, and `None` if the message has no
/// offset.
///
/// # Safety
/// The message must be alive, and no other code may use it during the call.
pub(crate) unsafe fn record(
    message: *mut rd_kafka_message_t,
    copier: &mut Copier,
) -> Option<Result<Record, RDKafkaErrorCode>> {
    // SAFETY: the caller guarantees that the message is alive. The pointers and the lengths describe its memory.
    let (error, offset, key, value) = unsafe {
        let rd_kafka_message_t { err, offset, key, key_len, payload, len, .. } = *message;
        (err, offset, bytes(key, key_len), bytes(payload, len))
    };
    if error != RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR {
        return Some(Err(error.into()));
    }
    // SAFETY: the message is alive, and librdkafka accepts a null pointer for the type of the time.
    let millis = unsafe { rd_kafka_message_timestamp(message, ptr::null_mut()) };
    let mut record = copier.record(Content { offset, millis, key, value })?;
    let mut headers: *mut rd_kafka_headers_t = ptr::null_mut();
    // SAFETY: the message is alive. It owns the headers.
    let found = unsafe { rd_kafka_message_headers(message, &raw mut headers) };
    if found == RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR {
        for index in 0.. {
            let (mut name, mut value, mut len) = (ptr::null(), ptr::null(), 0);
            // SAFETY: the headers are alive. Without an error, the name is a text that ends with a zero, and the value is
            // null or has `len` bytes.
            unsafe {
                let found = rd_kafka_header_get_all(headers, index, &raw mut name, &raw mut value, &raw mut len);
                if found != RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR {
                    break;
                }
                let name = CStr::from_ptr(name).to_string_lossy();
                record.headers.push(copier.header(&name, bytes(value, len)));
            }
        }
    }
    Some(Ok(record))
}

impl Drop for Messages {
    fn drop(&mut self) {
        for message in &self.0 {
            // SAFETY: no code uses the message after this call.
            unsafe { rd_kafka_message_destroy(*message) }
        }
    }
}

/// # Safety
/// `start` must be null or the start of `len` bytes that live as long as the result.
unsafe fn bytes<'a>(start: *const c_void, len: usize) -> Option<&'a [u8]> {
    // SAFETY: the caller guarantees it.
    (!start.is_null()).then(|| unsafe { std::slice::from_raw_parts(start.cast(), len) })
}
