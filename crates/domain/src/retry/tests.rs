use proptest::prelude::*;

use super::*;

const LARGEST: u64 = u64::MAX;

#[test]
fn default_backoff_doubles_from_one_to_eight_seconds() {
    let policy = RetryPolicy::default();
    let waits: Vec<u128> =
        (1..).map_while(|attempt| policy.wait(attempt, LARGEST, None)).map(|wait| wait.as_millis() + 1).collect();
    assert_eq!(waits, [1_000, 2_000, 4_000, 8_000]);
}

#[test]
fn random_retry_wait_is_uniform_up_to_the_current_backoff() {
    let policy = RetryPolicy { attempts_max: 10, ..RetryPolicy::default() };
    let half = policy.wait(4, 1 << 63, None);
    assert_eq!(half, Some(Duration::from_secs(4)));
    assert_eq!(policy.wait(4, 0, None), Some(Duration::from_millis(1)));
}

#[test]
fn retry_policy_adds_a_random_wait_to_the_retry_after_header() {
    let policy = RetryPolicy::default();
    assert_eq!(policy.wait(1, 0, Some(Duration::from_secs(30))), Some(Duration::from_secs(30)));
    assert_eq!(policy.wait(1, 1 << 63, Some(Duration::from_secs(30))), Some(Duration::from_millis(30_500)));
    assert_eq!(policy.wait(1, 0, Some(Duration::from_secs(86_400))), Some(policy.backoff_max));
    assert_eq!(policy.wait(5, 0, Some(Duration::from_secs(30))), None);
}

proptest! {
    #[test]
    fn retry_wait_is_between_one_millisecond_and_backoff_max(
        attempts_max in 1_u16..,
        attempt in 1_u16..,
        random: u64,
        backoff_millis in 1_u64..,
        backoff_max_millis in 1_u64..,
        retry_after_secs: Option<u64>,
    ) {
        let policy = RetryPolicy {
            attempts_max,
            backoff: Duration::from_millis(backoff_millis),
            backoff_max: Duration::from_millis(backoff_max_millis),
        };
        let wait = policy.wait(attempt, random, retry_after_secs.map(Duration::from_secs));
        prop_assert_eq!(wait.is_some(), attempt < attempts_max);
        if let Some(wait) = wait {
            prop_assert!(wait >= Duration::from_millis(1) && wait <= policy.backoff_max);
        }
    }
}
