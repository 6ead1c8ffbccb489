//! Records of the topics of requests and answers. The key of each record is the id of its request.

use std::collections::BTreeSet;

use bytes::Bytes;
use instants::Timestamp;

use super::{GatherAnswer, GatherRequest};
use crate::producer::NewRecord;
use crate::topic::{Header, Offset, Record, TopicName};

/// Header with the kind of a record: `request`, `answer`, `end` or `deadline`.
pub const KIND_HEADER: &str = "reveille-gather-kind";
/// Header of a request with the names of the expected services, separated by commas.
pub const SERVICES_HEADER: &str = "reveille-gather-services";
/// Header of a request with its deadline, in milliseconds since 1970-01-01 00:00 UTC.
pub const DEADLINE_HEADER: &str = "reveille-gather-deadline";
/// Header with the decimal offset of the request in the topic of the answers. The coordinator adds it to a request for the
/// services. Each answer and each end has the same header.
pub const REQUEST_HEADER: &str = "reveille-gather-request";
/// Header of an answer or an end with the name of the service.
pub const SERVICE_HEADER: &str = "reveille-gather-service";
/// Header of an answer with its decimal number, which is 0 for the first answer of a service. Header of an end with the
/// number of answers.
pub const NUMBER_HEADER: &str = "reveille-gather-number";

const REQUEST: &str = "request";
const ANSWER: &str = "answer";
const END: &str = "end";
const DEADLINE: &str = "deadline";
/// Largest number of services of a request.
const SERVICES_MAX: usize = 1_000;

/// Content of a record.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Message {
    /// Beginning of a request.
    Request(GatherRequest),
    /// Answer to the request with this offset.
    Answer(Offset, GatherAnswer),
    /// Message that a service has sent all its answers to the request with this offset.
    End { id: String, request: Offset, service: String, answers: u64 },
    /// Message that the request with this offset is over.
    Deadline { id: String, request: Offset },
}

impl Message {
    /// Returns the content of a record; `None` if its key or its headers are damaged.
    pub(super) fn parse(record: &Record) -> Option<Self> {
        let id = String::from_utf8(record.key.as_ref()?.to_vec()).ok().filter(|id| !id.is_empty())?;
        let value = record.value.clone().unwrap_or_default();
        let request = || request_of(record);
        let service = || text(record, SERVICE_HEADER).map(str::to_owned);
        let number = || text(record, NUMBER_HEADER)?.parse().ok();
        match text(record, KIND_HEADER)? {
            REQUEST => {
                let services = text(record, SERVICES_HEADER)?.split(',').map(str::to_owned).collect();
                let services = Some(services).filter(are_valid)?;
                let deadline = Timestamp::from_millis(text(record, DEADLINE_HEADER)?.parse().ok()?);
                Some(Message::Request(GatherRequest { id, services, deadline, value }))
            }
            ANSWER => {
                let answer = GatherAnswer { id, service: service()?, number: number()?, value };
                Some(Message::Answer(request()?, answer))
            }
            END => Some(Message::End { id, request: request()?, service: service()?, answers: number()? }),
            DEADLINE => Some(Message::Deadline { id, request: request()? }),
            _ => None,
        }
    }
}

/// Returns the offset of the request to which a record belongs.
pub(super) fn request_of(record: &Record) -> Option<Offset> {
    text(record, REQUEST_HEADER)?.parse().ok().map(Offset)
}

/// Returns true if a request may have these names of services.
pub(super) fn are_valid(services: &BTreeSet<String>) -> bool {
    let is_valid = |name: &String| !name.is_empty() && !name.contains(',');
    (1..=SERVICES_MAX).contains(&services.len()) && services.iter().all(is_valid)
}

/// Returns the record of a request that starts it.
pub(super) fn request(topic: &TopicName, request: &GatherRequest) -> NewRecord {
    let services: Vec<&str> = request.services.iter().map(String::as_str).collect();
    let headers = [
        (KIND_HEADER, REQUEST.to_owned()),
        (SERVICES_HEADER, services.join(",")),
        (DEADLINE_HEADER, request.deadline.as_millis().to_string()),
    ];
    record(topic, request.id.clone(), request.value.clone(), headers)
}

/// Returns the record of a request for the services. `at` is the offset of the request in the topic of the answers.
pub(super) fn question(topic: &TopicName, question: &GatherRequest, at: Offset) -> NewRecord {
    let mut record = request(topic, question);
    record.headers.push(header((REQUEST_HEADER, at.to_string())));
    record
}

/// Returns the record of an answer to the request with the offset `request`.
pub(super) fn answer(topic: &TopicName, request: Offset, answer: GatherAnswer) -> NewRecord {
    let GatherAnswer { id, service, number, value } = answer;
    let headers = [
        (KIND_HEADER, ANSWER.to_owned()),
        (REQUEST_HEADER, request.to_string()),
        (SERVICE_HEADER, service),
        (NUMBER_HEADER, number.to_string()),
    ];
    record(topic, id, value, headers)
}

/// Returns the record with which a service ends its answers to the request with the offset `request`.
pub(super) fn end(topic: &TopicName, id: String, request: Offset, service: String, answers: u64) -> NewRecord {
    let headers = [
        (KIND_HEADER, END.to_owned()),
        (REQUEST_HEADER, request.to_string()),
        (SERVICE_HEADER, service),
        (NUMBER_HEADER, answers.to_string()),
    ];
    record(topic, id, Bytes::new(), headers)
}

/// Returns the record with which the coordinator ends the request with the offset `request`.
pub(super) fn deadline(topic: &TopicName, id: String, request: Offset) -> NewRecord {
    let headers = [(KIND_HEADER, DEADLINE.to_owned()), (REQUEST_HEADER, request.to_string())];
    record(topic, id, Bytes::new(), headers)
}

fn record<const N: usize>(topic: &TopicName, id: String, value: Bytes, headers: [(&str, String); N]) -> NewRecord {
    NewRecord { headers: headers.map(header).into(), ..NewRecord::new(topic, id, value) }
}

fn header((name, value): (&str, String)) -> Header {
    Header { name: name.to_owned(), value: Some(Bytes::from(value)) }
}

fn text<'a>(record: &'a Record, name: &str) -> Option<&'a str> {
    let header = record.headers.iter().find(|header| header.name == name)?;
    std::str::from_utf8(header.value.as_deref()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn received(new: NewRecord) -> Record {
        let NewRecord { key, value, headers, .. } = new;
        Record { offset: Offset(7), timestamp: Timestamp::from_millis(1), key, value, headers }
    }

    #[test]
    fn records_contain_their_messages() {
        let topic = TopicName::new("answers").unwrap();
        let (id, at) = ("r-1".to_owned(), Offset(17));
        let services = ["mail".to_owned(), "shop grüße".to_owned()].into();
        let (deadline_at, value) = (Timestamp::from_millis(-5), Bytes::from_static(b"who"));
        let sent = GatherRequest { id: id.clone(), services, deadline: deadline_at, value };
        assert_eq!(Message::parse(&received(request(&topic, &sent))), Some(Message::Request(sent.clone())));
        let asked = received(question(&topic, &sent, at));
        assert_eq!((Message::parse(&asked), request_of(&asked)), (Some(Message::Request(sent)), Some(at)));
        let service = "mail".to_owned();
        let sent = GatherAnswer { id: id.clone(), service: service.clone(), number: 3, value: Bytes::new() };
        assert_eq!(Message::parse(&received(answer(&topic, at, sent.clone()))), Some(Message::Answer(at, sent)));
        let expected = Message::End { id: id.clone(), request: at, service: service.clone(), answers: u64::MAX };
        assert_eq!(Message::parse(&received(end(&topic, id.clone(), at, service, u64::MAX))), Some(expected));
        let expected = Message::Deadline { id: id.clone(), request: at };
        assert_eq!(Message::parse(&received(deadline(&topic, id, at))), Some(expected));
    }

    #[test]
    fn damaged_record_has_no_message() {
        let topic = TopicName::new("answers").unwrap();
        let valid = || received(end(&topic, "r-1".to_owned(), Offset(17), "mail".to_owned(), 2));
        let with = |change: fn(&mut Record)| {
            let mut record = valid();
            change(&mut record);
            Message::parse(&record)
        };
        assert!(Message::parse(&valid()).is_some());
        let changes: [fn(&mut Record); 8] = [
            |record| record.key = None,
            |record| record.key = Some(Bytes::new()),
            |record| record.key = Some(Bytes::from_static(b"\xff")),
            |record| record.headers.clear(),
            |record| record.headers[0].value = Some(Bytes::from_static(b"finish")),
            |record| record.headers[1].value = Some(Bytes::from_static(b"first")),
            |record| record.headers[3].value = Some(Bytes::from_static(b"-1")),
            |record| record.headers[2].value = None,
        ];
        for (at, change) in changes.into_iter().enumerate() {
            assert_eq!(with(change), None, "change {at}");
        }
        let many: Vec<String> = (0..=SERVICES_MAX).map(|number| number.to_string()).collect();
        for services in ["", "a,,b", &many.join(",")] {
            let services = (SERVICES_HEADER, services.to_owned());
            let headers = [(KIND_HEADER, REQUEST.to_owned()), (DEADLINE_HEADER, "5".to_owned()), services];
            assert_eq!(Message::parse(&received(record(&topic, "r-1".to_owned(), Bytes::new(), headers))), None);
        }
    }
}
