use axum::http::header::{IF_MATCH, IF_NONE_MATCH};
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use domain::{Incarnation, Revision, ScheduleVersion};
use proptest::prelude::*;

use super::{Condition, PATTERN, Tags, etag};

const EDITION: ScheduleVersion = ScheduleVersion { incarnation: Incarnation(7), revision: Revision(3) };
const TAG: &str = "\"00000000000000000000000007-3\"";

fn read(name: &HeaderName, values: &[&[u8]]) -> Option<Condition> {
    let mut headers = HeaderMap::new();
    for value in values {
        headers.append(name.clone(), HeaderValue::from_bytes(value).unwrap());
    }
    Condition::read(&headers).ok()
}

fn matching(values: &[&str]) -> Option<Option<Tags>> {
    let values: Vec<&[u8]> = values.iter().map(|value| value.as_bytes()).collect();
    read(&IF_MATCH, &values).map(|condition| condition.matching)
}

#[test]
fn condition_parser_returns_the_etag_that_the_server_wrote() {
    assert_eq!(etag(EDITION), TAG);
    assert_eq!(matching(&[TAG]), Some(Some(Tags::These(vec![EDITION]))));
    assert_eq!(matching(&[]), Some(None));
}

#[test]
fn parser_accepts_every_valid_form_of_a_tag_list() {
    let one = Some(Some(Tags::These(vec![EDITION])));
    for list in [format!(" {TAG} "), format!(",, {TAG},\t"), format!("\"a,b\" , {TAG}"), format!("\"\",{TAG}")] {
        assert_eq!(matching(&[&list]), one, "{list:?}");
    }
    assert_eq!(matching(&["\"x\"", TAG]), one);
    assert_eq!(matching(&[" * "]), Some(Some(Tags::Any)));
    assert_eq!(matching(&[""]), Some(Some(Tags::These(Vec::new()))), "an empty list matches nothing");
}

#[test]
fn weak_tag_matches_only_in_an_if_none_match_header() {
    let weak = format!("W/{TAG}");
    assert_eq!(matching(&[&weak]), Some(Some(Tags::These(Vec::new()))));
    let condition = read(&IF_NONE_MATCH, &[weak.as_bytes()]).unwrap();
    assert_eq!(condition.none_matching, Some(Tags::These(vec![EDITION])));
}

#[test]
fn parser_rejects_malformed_list_of_tags() {
    let bare = &TAG[1..TAG.len() - 1];
    for bad in [
        bare,
        "\"",
        "\"a",
        "a\"",
        "\"a\"\"b\"",
        "\"a\" \"b\"",
        "w/\"a\"",
        "W/ \"a\"",
        "W/*",
        "\"a b\"",
        "*, \"a\"",
        "\"a\", *",
    ] {
        assert_eq!(matching(&[bad]), None, "{bad:?}");
    }
    assert_eq!(matching(&["*", "\"a\""]), None, "all headers together are one list");
    assert_eq!(
        read(&IF_MATCH, &[b"\"\xff\""]).unwrap().matching,
        Some(Tags::These(Vec::new())),
        "a tag may contain other octets"
    );
    assert!(read(&IF_MATCH, &[b"\xff"]).is_none());
}

proptest! {
    #[test]
    fn server_never_ignores_a_precondition_header(
        value in prop::collection::vec(prop_oneof![Just(b'"'), Just(b','), Just(b'*'), 0x20..=0xff_u8], 0..40),
    ) {
        prop_assume!(!value.contains(&0x7f));
        if let Some(condition) = read(&IF_MATCH, &[&value]) {
            prop_assert!(!condition.is_none());
        }
    }

    /// The test removes the anchors `^` and `$` from the pattern, because proptest accepts no pattern with anchors.
    #[test]
    fn parser_accepts_every_header_that_matches_the_documented_pattern(value in PATTERN.trim_matches(['^', '$'])) {
        prop_assert!(read(&IF_MATCH, &[value.as_bytes()]).is_some());
    }
}
