//! State of the open requests of one partition. It is a pure state machine. The state of an id depends only on the last
//! request with this id in the partition, and on the records after it. So each owner of the partition comes to the same
//! state, if it reads from the oldest open request on.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use instants::Timestamp;

use super::message::Message;
use super::{GatherOutcome, OpenRequest};
use crate::topic::Offset;

/// Work that a message requires before the state changes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Step {
    /// The message has no effect, because it repeats an earlier message or belongs to no open request.
    Ignore,
    /// The services must receive the request.
    Ask,
    /// The gatherer must receive the answer.
    Pass,
    /// Only the state changes.
    Note,
    /// The gatherer must receive the outcome.
    Finish(GatherOutcome),
}

/// Open requests of a partition.
#[derive(Default)]
pub(super) struct Requests {
    open: HashMap<String, Open>,
    by_offset: BTreeMap<Offset, String>,
    /// Times at which the coordinator must end requests.
    alarms: BTreeSet<(Timestamp, String)>,
}

struct Open {
    /// Offset of the request.
    offset: Offset,
    deadline: Timestamp,
    /// Time in the list of alarms; `None` if the record that ends the request is on its way.
    alarm: Option<Timestamp>,
    /// Services that have not ended, each with the number of its next answer.
    missing: BTreeMap<String, u64>,
}

impl Requests {
    /// Returns the work that the next message requires.
    pub(super) fn step(&self, message: &Message) -> Step {
        let outcome = |id: &String, missing| Step::Finish(GatherOutcome { id: id.clone(), missing });
        match message {
            Message::Request(_) => Step::Ask,
            // A service numbers its answers without gaps. After an answer that the bus has not acknowledged, it sends all
            // answers again.
            Message::Answer(request, answer) => match self.next(&answer.id, *request, &answer.service) {
                Some(next) if next == answer.number => Step::Pass,
                _ => Step::Ignore,
            },
            Message::End { id, request, service, answers } => match self.next(id, *request, service) {
                Some(next) if next < *answers => Step::Ignore,
                Some(_) if self.open[id].missing.len() == 1 => outcome(id, BTreeSet::new()),
                Some(_) => Step::Note,
                None => Step::Ignore,
            },
            Message::Deadline { id, request } => match self.get(id, *request) {
                Some(open) => outcome(id, open.missing.keys().cloned().collect()),
                None => Step::Ignore,
            },
        }
    }

    /// Changes the state after the work of a message. `offset` is the offset of its record.
    pub(super) fn apply(&mut self, offset: Offset, message: &Message) {
        match (self.step(message), message) {
            (Step::Ask, Message::Request(request)) => {
                let (id, deadline) = (&request.id, request.deadline);
                self.close(id);
                let missing = request.services.iter().map(|service| (service.clone(), 0)).collect();
                self.open.insert(id.clone(), Open { offset, deadline, alarm: None, missing });
                self.by_offset.insert(offset, id.clone());
                self.set_alarm(id, offset, deadline);
            }
            (Step::Pass, Message::Answer(_, answer)) => {
                let open = self.open.get_mut(&answer.id);
                if let Some(next) = open.and_then(|open| open.missing.get_mut(&answer.service)) {
                    *next += 1;
                }
            }
            (Step::Note, Message::End { id, service, .. }) => {
                if let Some(open) = self.open.get_mut(id) {
                    open.missing.remove(service);
                }
            }
            (Step::Finish(outcome), _) => self.close(&outcome.id),
            _ => {}
        }
    }

    fn close(&mut self, id: &str) {
        if let Some(open) = self.open.remove(id) {
            self.by_offset.remove(&open.offset);
            if let Some(alarm) = open.alarm {
                self.alarms.remove(&(alarm, id.to_owned()));
            }
        }
    }

    /// Returns the open request with this id and this offset.
    fn get(&self, id: &str, request: Offset) -> Option<&Open> {
        self.open.get(id).filter(|open| open.offset == request)
    }

    fn next(&self, id: &str, request: Offset, service: &str) -> Option<u64> {
        self.get(id, request)?.missing.get(service).copied()
    }

    /// Returns the offset of the oldest open request.
    pub(super) fn oldest(&self) -> Option<Offset> {
        self.by_offset.first_key_value().map(|(offset, _)| *offset)
    }

    pub(super) fn len(&self) -> usize {
        self.open.len()
    }

    pub(super) fn is_open(&self, id: &str) -> bool {
        self.open.contains_key(id)
    }

    /// Returns the ids and the offsets of requests that the coordinator must end, at most `max`. Later calls do not return
    /// them again.
    pub(super) fn take_overdue(&mut self, now: Timestamp, max: usize) -> Vec<(String, Offset)> {
        let mut overdue = Vec::new();
        while overdue.len() < max && self.alarms.first().is_some_and(|(alarm, _)| *alarm <= now) {
            let Some((_, id)) = self.alarms.pop_first() else { break };
            let open = self.open.get_mut(&id).expect("only open requests have an alarm");
            open.alarm = None;
            overdue.push((id, open.offset));
        }
        overdue
    }

    /// Sets the time at which the coordinator must end the request with this offset, if it is open.
    pub(super) fn set_alarm(&mut self, id: &str, request: Offset, at: Timestamp) {
        let Some(open) = self.open.get_mut(id).filter(|open| open.offset == request) else { return };
        if let Some(earlier) = open.alarm.replace(at) {
            self.alarms.remove(&(earlier, id.to_owned()));
        }
        self.alarms.insert((at, id.to_owned()));
    }

    /// Returns open requests, at most `max`, those with the earliest deadline first.
    pub(super) fn open(&self, max: usize) -> Vec<OpenRequest> {
        let by_deadline = |one: &(&String, &Open), other: &(&String, &Open)| {
            (one.1.deadline, one.0).cmp(&(other.1.deadline, other.0))
        };
        let mut all: Vec<(&String, &Open)> = self.open.iter().collect();
        // The processor waits for this function, so it does not sort requests that the caller does not want.
        if max < all.len() {
            all.select_nth_unstable_by(max, by_deadline);
            all.truncate(max);
        }
        all.sort_unstable_by(by_deadline);
        let open = |(id, open): (&String, &Open)| {
            let missing = open.missing.keys().cloned().collect();
            OpenRequest { id: id.clone(), missing, deadline: open.deadline }
        };
        all.into_iter().map(open).collect()
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use proptest::prelude::*;

    use super::super::{GatherAnswer, GatherRequest};
    use super::*;

    fn at(millis: i64) -> Timestamp {
        Timestamp::from_millis(millis)
    }

    fn request(id: &str, services: &[&str]) -> Message {
        let services = services.iter().map(|name| (*name).to_owned()).collect();
        Message::Request(GatherRequest { id: id.to_owned(), services, deadline: at(1_000), value: Bytes::new() })
    }

    fn answer(id: &str, request: u64, service: &str, number: u64) -> Message {
        let (id, service) = (id.to_owned(), service.to_owned());
        Message::Answer(Offset(request), GatherAnswer { id, service, number, value: Bytes::new() })
    }

    fn end(id: &str, request: u64, service: &str, answers: u64) -> Message {
        Message::End { id: id.to_owned(), request: Offset(request), service: service.to_owned(), answers }
    }

    fn deadline(id: &str, request: u64) -> Message {
        Message::Deadline { id: id.to_owned(), request: Offset(request) }
    }

    fn outcome(id: &str, missing: &[&str]) -> Step {
        let missing = missing.iter().map(|name| (*name).to_owned()).collect();
        Step::Finish(GatherOutcome { id: id.to_owned(), missing })
    }

    /// Applies the messages, whose offsets start at `first`, and returns their steps.
    fn steps(requests: &mut Requests, first: u64, messages: &[Message]) -> Vec<Step> {
        let apply = |(offset, message): (u64, &Message)| {
            let step = requests.step(message);
            requests.apply(Offset(offset), message);
            step
        };
        (first..).zip(messages).map(apply).collect()
    }

    #[test]
    fn request_is_complete_when_all_services_have_ended() {
        let mut requests = Requests::default();
        let messages = [
            request("r", &["a", "b"]),
            answer("r", 0, "a", 0),
            answer("r", 0, "a", 0),
            answer("r", 0, "a", 2),
            answer("r", 0, "other", 0),
            end("r", 0, "a", 2),
            answer("r", 0, "a", 1),
            end("r", 0, "a", 2),
            answer("r", 0, "a", 2),
            end("r", 0, "a", 2),
            end("r", 0, "b", 0),
            end("r", 0, "b", 0),
            answer("r", 0, "b", 0),
            deadline("r", 0),
        ];
        use Step::{Ask, Ignore, Note, Pass};
        let expected = [
            Ask,
            Pass,
            Ignore,
            Ignore,
            Ignore,
            Ignore,
            Pass,
            Note,
            Ignore,
            Ignore,
            outcome("r", &[]),
            Ignore,
            Ignore,
            Ignore,
        ];
        assert_eq!(steps(&mut requests, 0, &messages), expected);
        assert_eq!((requests.len(), requests.oldest()), (0, None));
    }

    #[test]
    fn later_request_with_the_same_id_replaces_the_earlier_one() {
        let mut requests = Requests::default();
        let messages = [
            request("r", &["a", "b"]),
            end("r", 0, "a", 0),
            request("r", &["a", "b"]),
            end("r", 0, "b", 0),
            deadline("r", 0),
            end("r", 2, "b", 0),
            end("r", 2, "a", 0),
        ];
        use Step::{Ask, Ignore, Note};
        let expected = [Ask, Note, Ask, Ignore, Ignore, Note, outcome("r", &[])];
        assert_eq!(steps(&mut requests, 0, &messages), expected);
    }

    #[test]
    fn deadline_names_the_missing_services() {
        let mut requests = Requests::default();
        let before = [request("r", &["a", "b", "c"]), end("r", 0, "b", 0), request("s", &["a"])];
        steps(&mut requests, 0, &before);
        assert_eq!(requests.oldest(), Some(Offset(0)));
        assert_eq!(requests.take_overdue(at(999), 10), []);
        assert_eq!(requests.take_overdue(at(1_000), 1), [("r".to_owned(), Offset(0))]);
        assert_eq!(requests.take_overdue(at(1_000), 9), [("s".to_owned(), Offset(2))]);
        assert_eq!(requests.take_overdue(at(5_000), 9), [], "the records are on their way");
        requests.set_alarm("r", Offset(0), at(6_000));
        assert_eq!(requests.take_overdue(at(6_000), 9), [("r".to_owned(), Offset(0))]);
        assert_eq!(steps(&mut requests, 9, &[deadline("r", 0)]), [outcome("r", &["a", "c"])]);
        let missing = ["a".to_owned()].into();
        assert_eq!(requests.open(9), [OpenRequest { id: "s".to_owned(), missing, deadline: at(1_000) }]);
        assert_eq!((requests.len(), requests.oldest()), (1, Some(Offset(2))));
    }

    #[test]
    fn alarm_of_an_earlier_request_does_not_end_a_later_one() {
        let mut requests = Requests::default();
        steps(&mut requests, 0, &[request("r", &["a"])]);
        assert_eq!(requests.take_overdue(at(1_000), 9), [("r".to_owned(), Offset(0))]);
        // The record that ends the request is lost, and the sender has repeated its request.
        steps(&mut requests, 1, &[request("r", &["a"])]);
        requests.set_alarm("r", Offset(0), at(500));
        assert_eq!(requests.take_overdue(at(999), 9), []);
        assert_eq!(requests.take_overdue(at(1_000), 9), [("r".to_owned(), Offset(1))]);
    }

    #[test]
    fn open_requests_are_listed_by_their_deadlines() {
        let mut requests = Requests::default();
        let with_deadline = |(number, deadline): (u64, i64)| {
            let services = ["a".to_owned()].into();
            Message::Request(GatherRequest {
                id: number.to_string(),
                services,
                deadline: at(deadline),
                value: Bytes::new(),
            })
        };
        let messages: Vec<Message> = (0..5).zip([50, 10, 40, 20, 30]).map(with_deadline).collect();
        steps(&mut requests, 0, &messages);
        for max in 0..7 {
            let listed = requests.open(max).iter().map(|open| open.deadline.as_millis()).collect::<Vec<_>>();
            assert_eq!(listed, [10, 20, 30, 40, 50][..max.min(5)]);
        }
    }

    /// Returns messages whose offsets are their indexes. Records after a request belong to it, or to an earlier request.
    fn any_messages() -> impl Strategy<Value = Vec<Message>> {
        let one = (0_usize..3, 0_usize..2, 0_u64..3, 0..10, 0_usize..2);
        prop::collection::vec(one, 1..60).prop_map(|all| {
            let mut asked: [Vec<u64>; 3] = Default::default();
            let message = |(offset, (id, service, number, kind, back)): (u64, (usize, usize, u64, i32, usize))| {
                let (name, service) = (["r", "s", "t"][id], ["a", "b"][service]);
                let request_at = asked[id].iter().rev().nth(back).or(asked[id].last()).copied().unwrap_or(0);
                match kind {
                    0 | 1 => asked[id].push(offset),
                    _ => {}
                }
                match kind {
                    0 => request(name, &["a", "b"]),
                    1 => request(name, &[service]),
                    2..=5 => answer(name, request_at, service, number),
                    6..=8 => end(name, request_at, service, number),
                    _ => deadline(name, request_at),
                }
            };
            (0..).zip(all).map(message).collect()
        })
    }

    proptest! {
        #[test]
        fn oldest_open_request_determines_the_state(messages in any_messages(), count in 0_usize..60) {
            let (before, after) = messages.split_at(count.min(messages.len()));
            let mut whole = Requests::default();
            steps(&mut whole, 0, before);
            let oldest = whole.oldest().map_or(before.len() as u64, |offset| offset.0);
            let mut rebuilt = Requests::default();
            steps(&mut rebuilt, oldest, &before[usize::try_from(oldest).unwrap()..]);
            prop_assert_eq!(whole.open(10), rebuilt.open(10));
            prop_assert_eq!(whole.oldest(), rebuilt.oldest());
            let next = before.len() as u64;
            prop_assert_eq!(steps(&mut whole, next, after), steps(&mut rebuilt, next, after));
        }
    }
}
