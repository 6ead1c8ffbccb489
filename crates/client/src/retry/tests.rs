use std::time::Duration;

use serde_json::json;

use super::{Repeat, wait};
use crate::{Error, Options, Refused};

const LONG: Duration = Duration::from_secs(3_600);

fn refused(status: u16, retry_after: Option<u64>) -> Error {
    let problem = json!({"type": "urn:x", "title": "", "status": status, "code": "a_code", "detail": ""});
    let problem = serde_json::from_value(problem).unwrap();
    Error::Refused(Box::new(Refused { problem, retry_after: retry_after.map(Duration::from_secs) }))
}

fn broken() -> Error {
    Error::Broken { source: "reset".into() }
}

fn is_sent_again(error: &Error, repeat: Repeat) -> bool {
    wait(error, repeat, 1, LONG, &Options::default(), 0).is_some()
}

#[test]
fn what_may_have_been_done_is_sent_again_only_if_twice_does_what_once_does() {
    for error in [broken(), refused(503, None), refused(504, None), Error::TimedOut { limit: LONG }] {
        assert!(is_sent_again(&error, Repeat::Always), "{error:?}");
        assert!(!is_sent_again(&error, Repeat::IfUntouched), "{error:?}");
    }
    let unreachable = Error::Unreachable { url: String::new(), source: "refused".into() };
    for error in [unreachable, refused(429, None), refused(507, None)] {
        assert!(is_sent_again(&error, Repeat::IfUntouched), "{error:?}");
    }
}

#[test]
fn a_refusal_that_stays_one_is_the_callers_at_once() {
    for status in [400, 401, 403, 404, 409, 412, 413, 422, 500] {
        assert!(!is_sent_again(&refused(status, None), Repeat::Always), "{status}");
    }
}

#[test]
fn the_attempts_and_the_deadline_are_bounds() {
    let options = Options::default();
    let after = |attempt, left| wait(&broken(), Repeat::Always, attempt, left, &options, u64::MAX);
    assert!(after(options.attempts_max - 1, LONG).is_some());
    assert_eq!(after(options.attempts_max, LONG), None);
    assert_eq!(after(1, Duration::ZERO), None);
}

#[test]
fn waits_grow_to_their_bound_and_are_never_shorter_than_the_server_asks() {
    let options = Options { attempts_max: 100, ..Options::default() };
    let longest = |attempt| {
        let draws = (0..1_000).map(|draw| draw * 0x0012_3456_789a_bcde_u64);
        draws.filter_map(|random| wait(&broken(), Repeat::Always, attempt, LONG, &options, random)).max().unwrap()
    };
    assert!(longest(1) < options.backoff && longest(1) > options.backoff / 2);
    assert!(longest(3) < options.backoff * 4 && longest(3) > options.backoff);
    assert!(longest(60) < options.backoff_max && longest(60) > options.backoff_max / 2);
    let asked = wait(&refused(429, Some(7)), Repeat::Always, 1, LONG, &options, 0);
    assert_eq!(asked, Some(Duration::from_secs(7)));
    assert_eq!(wait(&refused(429, Some(7)), Repeat::Always, 1, Duration::from_secs(7), &options, 0), None);
    let none = Options { backoff: Duration::ZERO, ..Options::default() };
    assert_eq!(wait(&broken(), Repeat::Always, 1, LONG, &none, 17), Some(Duration::ZERO));
}
