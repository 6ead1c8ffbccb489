//! Functions of the Kafka engine for operators.
//!
//! The crate rdkafka describes a group only by requests to every broker, so one broker that is away would delay each
//! description. This module sends librdkafka's requests to the coordinator of the group.

#![expect(unsafe_code, reason = "the crate rdkafka has no function that asks only the coordinator of a group")]

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char};
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::{Arc, Mutex, MutexGuard};

use bus::{Admin, Answer, Bus as _, BusError, Committed, GroupDescription, GroupMember, Offset, Partition, TopicName};
use rdkafka::bindings::{
    rd_kafka_AdminOptions_destroy, rd_kafka_AdminOptions_new, rd_kafka_AdminOptions_set_request_timeout,
    rd_kafka_AdminOptions_t, rd_kafka_ConsumerGroupDescription_error, rd_kafka_ConsumerGroupDescription_member,
    rd_kafka_ConsumerGroupDescription_member_count, rd_kafka_ConsumerGroupDescription_state,
    rd_kafka_ConsumerGroupListing_group_id, rd_kafka_DescribeConsumerGroups,
    rd_kafka_DescribeConsumerGroups_result_groups, rd_kafka_ListConsumerGroupOffsets,
    rd_kafka_ListConsumerGroupOffsets_destroy, rd_kafka_ListConsumerGroupOffsets_new,
    rd_kafka_ListConsumerGroupOffsets_result_groups, rd_kafka_ListConsumerGroups,
    rd_kafka_ListConsumerGroups_result_errors, rd_kafka_ListConsumerGroups_result_valid, rd_kafka_ListOffsets,
    rd_kafka_ListOffsets_result_infos, rd_kafka_ListOffsetsResultInfo_topic_partition,
    rd_kafka_MemberAssignment_partitions, rd_kafka_MemberDescription_assignment, rd_kafka_MemberDescription_client_id,
    rd_kafka_MemberDescription_consumer_id, rd_kafka_MemberDescription_host, rd_kafka_MemberDescription_t,
    rd_kafka_admin_op_t, rd_kafka_consumer_group_state_t, rd_kafka_error_t,
    rd_kafka_event_DescribeConsumerGroups_result, rd_kafka_event_ListConsumerGroupOffsets_result,
    rd_kafka_event_ListConsumerGroups_result, rd_kafka_event_ListOffsets_result, rd_kafka_event_destroy,
    rd_kafka_event_t, rd_kafka_group_result_error, rd_kafka_group_result_partitions, rd_kafka_queue_destroy,
    rd_kafka_queue_new, rd_kafka_queue_poll, rd_kafka_queue_t, rd_kafka_t, rd_kafka_topic_partition_list_t,
    rd_kafka_topic_partition_t,
};
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::RDKafkaErrorCode as Code;
use rdkafka::topic_partition_list::Offset as RdOffset;
use rdkafka::types::RDKafkaRespErr;

use crate::blocking::{blocking, drop_elsewhere};
use crate::context::Context;
use crate::error::bus_error_of_code;
use crate::options::KafkaUrl;
use crate::{KafkaBus, REQUEST_MAX, RETRY_WAIT, create, explained, is_transition, partitions_of, poll, reader};

/// Prefix of the names of Kafka's internal topics.
const INTERNAL: &str = "__";
/// Time of one attempt in milliseconds, after which librdkafka reports an error by itself.
const ATTEMPT_MILLIS: i32 = 3_000;

type Client = BaseConsumer<Context>;

/// Client for requests about groups, which is opened by the first request.
///
/// librdkafka 2.12 remembers the coordinator of a group in such a client, and asks it again even when the coordinator is away
/// or has moved. A client is therefore replaced after a failed request.
#[derive(Default)]
pub(crate) struct GroupClient(Mutex<Option<Arc<Client>>>);

impl GroupClient {
    fn lock(&self) -> MutexGuard<'_, Option<Arc<Client>>> {
        self.0.lock().expect("no code panics while it holds this mutex")
    }

    fn get(&self, url: &KafkaUrl) -> Result<Arc<Client>, BusError> {
        let mut client = self.lock();
        if let Some(client) = &*client {
            return Ok(client.clone());
        }
        let opened: Arc<Client> = Arc::new(create(&url.config()?)?);
        *client = Some(opened.clone());
        Ok(opened)
    }

    /// Lets the next request open another client, unless this has already happened.
    fn forget(&self, failed: &Arc<Client>) {
        let forgotten = self.lock().take_if(|client| Arc::ptr_eq(client, failed));
        drop_elsewhere(forgotten);
    }
}

impl Admin for KafkaBus {
    fn topics(&self) -> Answer<'_, Vec<TopicName>> {
        let client = self.client.clone();
        Box::pin(blocking(move || {
            let metadata = client.fetch_metadata(None, REQUEST_MAX).map_err(|error| explained(&client, &error))?;
            let names = metadata.topics().iter().map(|topic| topic.name());
            let names = names.filter(|name| !name.starts_with(INTERNAL));
            let mut topics: Vec<TopicName> = names.filter_map(|name| TopicName::new(name).ok()).collect();
            topics.sort_unstable();
            Ok(topics)
        }))
    }

    fn stored_ends(&self, topic: &TopicName) -> Answer<'_, Vec<Offset>> {
        let topic = topic.clone();
        Box::pin(async move {
            let partitions = self.shape(&topic).await?.partitions;
            self.ask(move |client| stored_ends(client, &topic, partitions)).await
        })
    }

    fn has_records(&self, topic: &TopicName, from: &[Offset]) -> Answer<'_, bool> {
        let (topic, from) = (topic.clone(), from.to_vec());
        Box::pin(async move {
            let offsets = self.describe_topic(&topic).await?.offsets;
            let searched = (0..).zip(from.into_iter().zip(offsets));
            let searched = searched.filter(|(_, (from, (_, end)))| from < end).map(|(index, (from, _))| (index, from));
            reader::has_records(&self.runtime, &self.url, &topic, searched.collect()).await
        })
    }

    fn groups(&self) -> Answer<'_, Vec<String>> {
        Box::pin(self.ask(groups))
    }

    fn describe_group(&self, group: &str) -> Answer<'_, GroupDescription> {
        let group = CString::new(group);
        Box::pin(async move {
            // librdkafka cannot describe a group with a NUL in its name, because a C text ends at a NUL.
            let Ok(group) = group else { return Ok(GroupDescription::default()) };
            self.ask(move |client| {
                let (members, is_rebalancing) = members(client, &group)?;
                Ok(GroupDescription { members, committed: committed(client, &group)?, is_rebalancing })
            })
            .await
        })
    }
}

impl KafkaBus {
    /// Makes a call, and repeats it while a broker is away, or the coordinator of a group or the leader of a partition moves
    /// to another broker.
    async fn ask<T: Send + 'static>(
        &self,
        call: impl Fn(&Client) -> Result<T, Code> + Clone + Send + 'static,
    ) -> Result<T, BusError> {
        let deadline = self.runtime.monotonic() + REQUEST_MAX;
        loop {
            let client = self.group_client.get(&self.url)?;
            let (asked, call) = (client.clone(), call.clone());
            let outcome = blocking(move || call(&asked)).await;
            poll(&client);
            let code = match outcome {
                Ok(found) => return Ok(found),
                Err(code) => code,
            };
            let (error, is_moving) = (client.context().explain(bus_error_of_code(code, None)), is_transition(code));
            if !error.is_retryable() && !is_moving {
                return Err(error);
            }
            self.group_client.forget(&client);
            drop_elsewhere(client);
            if self.runtime.monotonic() >= deadline {
                return Err(error);
            }
            self.runtime.sleep(RETRY_WAIT).await;
        }
    }
}

/// Returns the offset after the last stored record of each partition.
fn stored_ends(client: &Client, topic: &TopicName, partitions: u32) -> Result<Vec<Offset>, Code> {
    let operation = rd_kafka_admin_op_t::RD_KAFKA_ADMIN_OP_LISTOFFSETS;
    let mut wanted = partitions_of(topic, partitions);
    wanted.set_all_offsets(RdOffset::End).map_err(|_| Code::InvalidArgument)?;
    // SAFETY: all arguments are alive, and librdkafka copies the list.
    let send = |client, options, queue| unsafe { rd_kafka_ListOffsets(client, wanted.ptr(), options, queue) };
    // Without another option, the isolation level of this request is `read_uncommitted`.
    let response = request(client, operation, send)?;
    let mut ends = vec![Offset::default(); partitions as usize];
    // SAFETY: the response is alive, and it owns the lists and their elements.
    unsafe {
        let result = rd_kafka_event_ListOffsets_result(response.pointer());
        if result.is_null() {
            return Err(Code::BadMessage);
        }
        let mut count = 0;
        let infos = rd_kafka_ListOffsets_result_infos(result, &raw mut count);
        let mut found = 0;
        for info in list(infos, count) {
            let element = rd_kafka_ListOffsetsResultInfo_topic_partition(*info);
            code(error_of(element))?;
            let index = usize::try_from((*element).partition).ok();
            let end = index.and_then(|index| ends.get_mut(index)).ok_or(Code::BadMessage)?;
            *end = u64::try_from((*element).offset).map(Offset).map_err(|_| Code::BadMessage)?;
            found += 1;
        }
        if found < ends.len() { Err(Code::BadMessage) } else { Ok(ends) }
    }
}

/// Returns the names of all groups in ascending order. librdkafka cuts a name with a NUL before the NUL.
fn groups(client: &Client) -> Result<Vec<String>, Code> {
    let operation = rd_kafka_admin_op_t::RD_KAFKA_ADMIN_OP_LISTCONSUMERGROUPS;
    // SAFETY: all arguments are alive.
    let send = |client, options, queue| unsafe { rd_kafka_ListConsumerGroups(client, options, queue) };
    let response = request(client, operation, send)?;
    // SAFETY: the response is alive, and it owns the lists and the texts.
    unsafe {
        let result = rd_kafka_event_ListConsumerGroups_result(response.pointer());
        if result.is_null() {
            return Err(Code::BadMessage);
        }
        let mut count = 0;
        let errors = rd_kafka_ListConsumerGroups_result_errors(result, &raw mut count);
        // One error for each broker that did not respond.
        for error in list(errors, count) {
            check(*error)?;
        }
        let valid = rd_kafka_ListConsumerGroups_result_valid(result, &raw mut count);
        let mut names: Vec<String> =
            list(valid, count).iter().map(|group| text(rd_kafka_ConsumerGroupListing_group_id(*group))).collect();
        names.sort_unstable();
        names.dedup();
        Ok(names)
    }
}

/// Returns the members of a group, and true if the group assigns partitions now.
fn members(client: &Client, group: &CStr) -> Result<(Vec<GroupMember>, bool), Code> {
    use rd_kafka_consumer_group_state_t::{
        RD_KAFKA_CONSUMER_GROUP_STATE_COMPLETING_REBALANCE as COMPLETING,
        RD_KAFKA_CONSUMER_GROUP_STATE_PREPARING_REBALANCE as PREPARING,
        RD_KAFKA_CONSUMER_GROUP_STATE_UNKNOWN as UNKNOWN,
    };
    let operation = rd_kafka_admin_op_t::RD_KAFKA_ADMIN_OP_DESCRIBECONSUMERGROUPS;
    let mut names = [group.as_ptr()];
    let send = |client, options, queue| {
        // SAFETY: all arguments are alive, and librdkafka copies the name.
        unsafe { rd_kafka_DescribeConsumerGroups(client, names.as_mut_ptr(), names.len(), options, queue) };
    };
    let response = request(client, operation, send)?;
    let (mut members, mut is_rebalancing) = (Vec::new(), false);
    // SAFETY: the response is alive, and it owns the descriptions.
    unsafe {
        let result = rd_kafka_event_DescribeConsumerGroups_result(response.pointer());
        if result.is_null() {
            return Err(Code::BadMessage);
        }
        let mut count = 0;
        let groups = rd_kafka_DescribeConsumerGroups_result_groups(result, &raw mut count);
        for group in list(groups, count) {
            match check(rd_kafka_ConsumerGroupDescription_error(*group)) {
                Ok(()) => {}
                // Later brokers report an unknown group by an error, and earlier brokers by an empty group.
                Err(Code::GroupIdNotFound) => continue,
                Err(code) => return Err(code),
            }
            // librdkafka has no names for the states `Assigning` and `Reconciling` of the protocol of KIP-848.
            let state = rd_kafka_ConsumerGroupDescription_state(*group);
            is_rebalancing |= matches!(state, PREPARING | COMPLETING | UNKNOWN);
            for at in 0..rd_kafka_ConsumerGroupDescription_member_count(*group) {
                members.extend(member(rd_kafka_ConsumerGroupDescription_member(*group, at)));
            }
        }
    }
    Ok((members, is_rebalancing))
}

/// # Safety
/// The member must be null or alive.
unsafe fn member(member: *const rd_kafka_MemberDescription_t) -> Option<GroupMember> {
    if member.is_null() {
        return None;
    }
    // SAFETY: the caller guarantees that the member is alive. It owns its texts and its partitions.
    unsafe {
        let assignment = rd_kafka_MemberDescription_assignment(member);
        let assigned =
            if assignment.is_null() { ptr::null() } else { rd_kafka_MemberAssignment_partitions(assignment) };
        let mut partitions: Vec<Partition> = elements(assigned).filter_map(|one| partition(one)).collect();
        partitions.sort_unstable();
        Some(GroupMember {
            id: text(rd_kafka_MemberDescription_consumer_id(member)),
            name: text(rd_kafka_MemberDescription_client_id(member)),
            // Kafka writes an address as Java does, for example `/127.0.0.1`.
            host: text(rd_kafka_MemberDescription_host(member)).trim_start_matches('/').to_owned(),
            partitions,
        })
    }
}

/// Returns the committed offsets of a group.
fn committed(client: &Client, group: &CStr) -> Result<BTreeMap<Partition, Committed>, Code> {
    let operation = rd_kafka_admin_op_t::RD_KAFKA_ADMIN_OP_LISTCONSUMERGROUPOFFSETS;
    // SAFETY: librdkafka copies the name. Without a list, the request is about all partitions.
    let wanted = unsafe {
        let wanted = rd_kafka_ListConsumerGroupOffsets_new(group.as_ptr(), ptr::null());
        Owned::new(wanted, rd_kafka_ListConsumerGroupOffsets_destroy)
    };
    let wanted = wanted.expect("librdkafka ends the process if it gets no memory");
    let mut pointers = [wanted.pointer()];
    let send = |client, options, queue| {
        // SAFETY: all arguments are alive, and librdkafka copies them.
        unsafe { rd_kafka_ListConsumerGroupOffsets(client, pointers.as_mut_ptr(), pointers.len(), options, queue) };
    };
    let response = request(client, operation, send)?;
    let mut found = BTreeMap::new();
    // SAFETY: the response is alive, and it owns the lists.
    unsafe {
        let result = rd_kafka_event_ListConsumerGroupOffsets_result(response.pointer());
        if result.is_null() {
            return Err(Code::BadMessage);
        }
        let mut count = 0;
        let groups = rd_kafka_ListConsumerGroupOffsets_result_groups(result, &raw mut count);
        for group in list(groups, count) {
            check(rd_kafka_group_result_error(*group))?;
            for element in elements(rd_kafka_group_result_partitions(*group)) {
                found.extend(commit(element)?);
            }
        }
    }
    Ok(found)
}

/// Returns the partition and the committed offset of an element; `None` if the group has not committed an offset of it.
///
/// # Safety
/// The element and its pointers must be alive.
unsafe fn commit(element: *const rd_kafka_topic_partition_t) -> Result<Option<(Partition, Committed)>, Code> {
    // SAFETY: the caller guarantees that the element, the name of its topic and its metadata are alive. librdkafka stores
    // the size of the metadata in bytes.
    let (partition, offset, metadata) = unsafe {
        code(error_of(element))?;
        let (metadata, size): (*const u8, usize) = ((*element).metadata.cast_const().cast(), (*element).metadata_size);
        let metadata = if metadata.is_null() { &[] } else { slice::from_raw_parts(metadata, size) };
        (partition(element), (*element).offset, String::from_utf8_lossy(metadata).into_owned())
    };
    // A negative number is not an offset of a record.
    let offset = u64::try_from(offset).ok().map(Offset);
    Ok(partition.zip(offset).map(|(partition, offset)| (partition, Committed { offset, metadata })))
}

/// Sends a request, and waits for its response. `send` adds the request to the client. The response arrives in the queue.
fn request(
    client: &Client,
    operation: rd_kafka_admin_op_t,
    send: impl FnOnce(*mut rd_kafka_t, *const rd_kafka_AdminOptions_t, *mut rd_kafka_queue_t),
) -> Result<Owned<rd_kafka_event_t>, Code> {
    const MEMORY: &str = "librdkafka ends the process if it gets no memory";
    let client = client.client().native_ptr();
    // SAFETY: the client is alive during this function. The options and the queue live until the end of the block.
    // librdkafka copies the options, and it writes no text of an error if the size for the text is 0. If the queue ends
    // before the response arrives, librdkafka drops the response.
    unsafe {
        let options = Owned::new(rd_kafka_AdminOptions_new(client, operation), rd_kafka_AdminOptions_destroy);
        let options = options.expect(MEMORY);
        let queue = Owned::new(rd_kafka_queue_new(client), rd_kafka_queue_destroy).expect(MEMORY);
        let set = rd_kafka_AdminOptions_set_request_timeout(options.pointer(), ATTEMPT_MILLIS, ptr::null_mut(), 0);
        code(set as i32)?;
        send(client, options.pointer(), queue.pointer());
        let event = Owned::new(rd_kafka_queue_poll(queue.pointer(), 2 * ATTEMPT_MILLIS), rd_kafka_event_destroy);
        let event = event.ok_or(Code::OperationTimedOut)?;
        code(rd_kafka_event_error(event.pointer()))?;
        Ok(event)
    }
}

/// Object of librdkafka that ends with this value.
struct Owned<T> {
    object: NonNull<T>,
    destroy: unsafe extern "C" fn(*mut T),
}

impl<T> Owned<T> {
    /// Returns `None` if the object is null.
    ///
    /// # Safety
    /// The caller must own the object, and `destroy` must be its destructor.
    unsafe fn new(object: *mut T, destroy: unsafe extern "C" fn(*mut T)) -> Option<Self> {
        Some(Owned { object: NonNull::new(object)?, destroy })
    }

    fn pointer(&self) -> *mut T {
        self.object.as_ptr()
    }
}

impl<T> Drop for Owned<T> {
    fn drop(&mut self) {
        // SAFETY: this value owns the object, and no code uses the object after its drop.
        unsafe { (self.destroy)(self.object.as_ptr()) }
    }
}

// librdkafka passes the error codes of brokers through, and brokers may send codes that the enum of the crate rdkafka
// does not contain. Such a value of the enum would be undefined behaviour, so these declarations return numbers.
unsafe extern "C" {
    fn rd_kafka_error_code(error: *const rd_kafka_error_t) -> i32;
    fn rd_kafka_event_error(event: *mut rd_kafka_event_t) -> i32;
}

/// Translates an error code of librdkafka or of a broker.
fn code(code: i32) -> Result<(), Code> {
    match RDKafkaRespErr::try_from(code) {
        Ok(RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR) => Ok(()),
        Ok(known) => Err(known.into()),
        Err(_) => Err(Code::Unknown),
    }
}

/// Returns the error code of an element. It may be a code that the enum of the crate rdkafka does not contain.
///
/// # Safety
/// The element must be alive.
unsafe fn error_of(element: *const rd_kafka_topic_partition_t) -> i32 {
    // SAFETY: the caller guarantees that the element is alive. The field has the size and the alignment of an `i32`.
    unsafe { (&raw const (*element).err).cast::<i32>().read() }
}

/// # Safety
/// The error must be null, which means no error, or alive.
unsafe fn check(error: *const rd_kafka_error_t) -> Result<(), Code> {
    // SAFETY: the caller guarantees that the error is alive. librdkafka returns no error for null.
    code(unsafe { rd_kafka_error_code(error) })
}

/// # Safety
/// `first` must be null or the start of `count` pointers that live as long as the result.
unsafe fn list<'a, T>(first: *mut *const T, count: usize) -> &'a [*const T] {
    // SAFETY: the caller guarantees it.
    if first.is_null() { &[] } else { unsafe { slice::from_raw_parts(first, count) } }
}

/// Returns pointers and not references, because an element may contain an error code that its enum does not contain.
///
/// # Safety
/// The list must be null or live as long as the result.
unsafe fn elements(
    list: *const rd_kafka_topic_partition_list_t,
) -> impl Iterator<Item = *const rd_kafka_topic_partition_t> {
    // SAFETY: the caller guarantees that the list is alive. It has `cnt` elements.
    let (first, count) = if list.is_null() { (ptr::null_mut(), 0) } else { unsafe { ((*list).elems, (*list).cnt) } };
    let count = if first.is_null() { 0 } else { usize::try_from(count).unwrap_or(0) };
    (0..count).map(move |at| first.cast_const().wrapping_add(at))
}

/// # Safety
/// The element and the name of its topic must be alive.
unsafe fn partition(element: *const rd_kafka_topic_partition_t) -> Option<Partition> {
    // SAFETY: the caller guarantees it.
    let (topic, index) = unsafe { (text((*element).topic), (*element).partition) };
    Some(Partition { topic: TopicName::new(&topic).ok()?, index: u32::try_from(index).ok()? })
}

/// # Safety
/// The text must be null or a text that ends with a zero.
unsafe fn text(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: the caller guarantees it.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use rdkafka::bindings::{
        rd_kafka_topic_partition_list_add, rd_kafka_topic_partition_list_destroy, rd_kafka_topic_partition_list_new,
    };

    use super::*;

    #[test]
    fn unknown_error_code_of_a_broker_is_an_error() {
        // SAFETY: this test owns the list, and the memory of an error code has the size of an `i32`.
        unsafe {
            let list = rd_kafka_topic_partition_list_new(1);
            let element = rd_kafka_topic_partition_list_add(list, c"orders".as_ptr(), 3);
            for (raw, expected) in [
                (0, Ok(None)),
                (16, Err(Code::NotCoordinator)),
                (29_999, Err(Code::Unknown)),
                (-999, Err(Code::Unknown)),
            ] {
                (&raw mut (*element).err).cast::<i32>().write(raw);
                // The element has no committed offset.
                let found: Vec<_> = elements(list).map(|element| commit(element)).collect();
                assert_eq!(found, [expected], "{raw}");
            }
            (&raw mut (*element).err).cast::<i32>().write(0);
            rd_kafka_topic_partition_list_destroy(list);
        }
    }
}
