use domain::{Incarnation, Occurrence, Revision};
use proptest::prelude::*;

use super::*;

proptest! {
    #[test]
    fn rfc3339_function_writes_the_same_text_as_the_display_trait(millis in 0..=Timestamp::MAX.as_millis()) {
        let instant = Timestamp::from_millis(millis);
        let written = rfc3339(instant);
        prop_assert_eq!(std::str::from_utf8(&written).unwrap(), instant.to_string());
    }
}

#[test]
fn rfc3339_function_handles_leap_days_and_extreme_instants() {
    for millis in [0, 951_782_399_999, 951_782_400_000, 951_868_800_000, 4_107_542_400_000, Timestamp::MAX.as_millis()]
    {
        let instant = Timestamp::from_millis(millis);
        assert_eq!(std::str::from_utf8(&rfc3339(instant)).unwrap(), instant.to_string());
    }
}

#[test]
fn attempts_of_a_run_have_one_trace_id_but_different_span_ids() {
    let run = |replay| {
        Occurrence {
            incarnation: Incarnation(7),
            nominal: Timestamp::from_millis(1_795_255_200_000),
            revision: Revision(0),
            replay,
        }
        .run_id()
    };
    assert_eq!(trace_id(&run(0)), trace_id(&run(0)));
    assert_ne!(trace_id(&run(0)), trace_id(&run(1)));
    let stamper = Stamper::new(3, Arc::new(Keyring::NONE));
    assert_ne!(stamper.span_id(), stamper.span_id());
    let text = traceparent(0x0123_4567_89ab_cdef_0011_2233_4455_6677, 0xfedc_ba98_7654_3210);
    assert_eq!(&text, b"00-0123456789abcdef0011223344556677-fedcba9876543210-01");
}
