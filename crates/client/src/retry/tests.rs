use std::time::Duration;

use serde_json::json;

use super::{Repeat, wait};
use crate::{Error, Options, Rejection};

const LONG: Duration = Duration::from_secs(3_600);

fn rejected(status: u16, retry_after: Option<u64>) -> Error {
    let problem = json!({"type": "urn:x", "title": "", "status": status, "code": "a_code", "detail": ""});
    let problem = serde_json::from_value(problem).unwrap();
    Error::Rejected(Box::new(Rejection { problem, retry_after: retry_after.map(Duration::from_secs) }))
}

fn broken() -> Error {
    Error::Broken { source: "reset".into() }
}

fn is_sent_again(error: &Error, repeat: Repeat) -> bool {
    wait(error, repeat, 1, LONG, &Options::default(), 0).is_some()
}

#[test]
fn client_repeats_request_of_unknown_outcome_only_if_idempotent() {
    for error in [broken(), rejected(503, None), rejected(504, None), Error::TimedOut { limit: LONG }] {
        assert!(is_sent_again(&error, Repeat::Always), "{error:?}");
        assert!(!is_sent_again(&error, Repeat::IfUntouched), "{error:?}");
    }
    let unreachable = Error::Unreachable { url: String::new(), source: "refused".into() };
    for error in [unreachable, rejected(429, None), rejected(507, None)] {
        assert!(is_sent_again(&error, Repeat::IfUntouched), "{error:?}");
    }
}

#[test]
fn client_does_not_retry_a_permanent_rejection() {
    for status in [400, 401, 403, 404, 409, 412, 413, 422, 500] {
        assert!(!is_sent_again(&rejected(status, None), Repeat::Always), "{status}");
    }
}

#[test]
fn attempt_limit_and_deadline_end_the_retries() {
    let options = Options::default();
    let after = |attempt, left| wait(&broken(), Repeat::Always, attempt, left, &options, u64::MAX);
    assert!(after(options.attempts_max - 1, LONG).is_some());
    assert_eq!(after(options.attempts_max, LONG), None);
    assert_eq!(after(1, Duration::ZERO), None);
}

#[test]
fn backoff_grows_with_each_attempt_up_to_its_maximum() {
    let options = Options { attempts_max: 100, ..Options::default() };
    let longest = |attempt| {
        let draws = (0..1_000).map(|draw| draw * 0x0012_3456_789a_bcde_u64);
        draws.filter_map(|random| wait(&broken(), Repeat::Always, attempt, LONG, &options, random)).max().unwrap()
    };
    assert!(longest(1) < options.backoff && longest(1) > options.backoff / 2);
    assert!(longest(3) < options.backoff * 4 && longest(3) > options.backoff);
    assert!(longest(60) < options.backoff_max && longest(60) > options.backoff_max / 2);
    let asked = wait(&rejected(429, Some(7)), Repeat::Always, 1, LONG, &options, 0);
    assert_eq!(asked, Some(Duration::from_secs(7)));
    assert_eq!(wait(&rejected(429, Some(7)), Repeat::Always, 1, Duration::from_secs(7), &options, 0), None);
    let none = Options { backoff: Duration::ZERO, ..Options::default() };
    assert_eq!(wait(&broken(), Repeat::Always, 1, LONG, &none, 17), Some(Duration::ZERO));
}
