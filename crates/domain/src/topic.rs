//! Names of bus topics, and the patterns with which an operator lists the topics of a tenant.
//!
//! Invariant: no pattern matches an internal topic. A tenant could otherwise change the state of a consumer group, of a
//! leader election or of the bus itself.

use std::fmt;
use std::str::FromStr;

/// Largest length of a topic's name, in bytes.
pub const NAME_BYTES_MAX: usize = 249;

/// Beginnings of the names of internal topics: topics of the bus itself, and topics of Reveille, such as
/// `reveille-elector.jobs`.
const INTERNAL_STARTS: [&str; 2] = ["__", "reveille-"];

/// Ends of the names of internal topics: dead letters, the topics with the commands to consumer groups, and the topics of
/// elections.
const INTERNAL_ENDS: [&str; 6] = ["-dead", "-dead-letters", "-control", "-leader", "-leaders", "-elector"];

/// Returns true if `text` is the name of a topic: 1 to 249 letters, digits, `.`, `_` and `-`, but neither `.` nor `..`. The
/// rules are those of Kafka.
#[must_use]
pub fn is_name(text: &str) -> bool {
    (1..=NAME_BYTES_MAX).contains(&text.len()) && text.bytes().all(is_name_byte) && ![".", ".."].contains(&text)
}

fn is_name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"._-".contains(&byte)
}

/// Returns true if the topic belongs to the bus, to Reveille or to a consumer group: its name starts with `__` or
/// `reveille-`, or it has the name of a retry topic (`-retry-` and a number at the end), or it ends with `-dead`,
/// `-dead-letters`, `-control`, `-leader`, `-leaders` or `-elector`. The function ignores the case of letters, because some
/// tools for Kafka do.
#[must_use]
pub fn is_internal(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    let is_retry = name.rsplit_once("-retry-").is_some_and(|(_, step)| step.bytes().all(|byte| byte.is_ascii_digit()));
    INTERNAL_STARTS.iter().any(|start| name.starts_with(start))
        || is_retry
        || INTERNAL_ENDS.iter().any(|end| name.ends_with(end))
}

/// Pattern of topics: the name of one topic, or the beginning of names with `*` at the end.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct TopicPattern(String);

/// Reason why a text is not a pattern of topics.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TopicPatternError {
    #[error(
        "text is not a pattern of topics; use the name of a topic, or the beginning of names with `*` at the end, such as \
         `orders-*`"
    )]
    Syntax,
    #[error(
        "the topic is internal to the bus, to Reveille or to a consumer group, and no tenant may write to it; leave it out"
    )]
    Internal,
}

impl TopicPattern {
    /// Returns a pattern that an earlier build may have stored, or `None` if the text has another syntax. The pattern may
    /// name a topic that is internal since then. It matches no such topic.
    #[must_use]
    pub fn from_stored(text: &str) -> Option<Self> {
        let is_valid = match text.strip_suffix('*') {
            Some(start) => start.len() <= NAME_BYTES_MAX && start.bytes().all(is_name_byte),
            None => is_name(text),
        };
        is_valid.then(|| TopicPattern(text.to_owned()))
    }

    /// Returns true if the pattern lists the topic `name`. It is false for every internal topic.
    #[must_use]
    pub fn matches(&self, name: &str) -> bool {
        let is_listed = match self.0.strip_suffix('*') {
            Some(start) => name.starts_with(start),
            None => name == self.0,
        };
        is_listed && is_name(name) && !is_internal(name)
    }
}

impl FromStr for TopicPattern {
    type Err = TopicPatternError;

    fn from_str(text: &str) -> Result<Self, TopicPatternError> {
        let pattern = TopicPattern::from_stored(text).ok_or(TopicPatternError::Syntax)?;
        let is_internal = match text.strip_suffix('*') {
            Some(start) => {
                let start = start.to_ascii_lowercase();
                INTERNAL_STARTS.iter().any(|internal| start.starts_with(internal))
            }
            None => is_internal(text),
        };
        if is_internal { Err(TopicPatternError::Internal) } else { Ok(pattern) }
    }
}

impl fmt::Display for TopicPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn pattern(text: &str) -> TopicPattern {
        text.parse().unwrap()
    }

    #[test]
    fn pattern_matches_a_name_or_the_beginning_of_names() {
        assert!(pattern("orders").matches("orders"));
        for other in ["orders2", "Orders", "order", "", "orders*", "ORDERS", "orders ", "orders\0", "ordеrs"] {
            assert!(!pattern("orders").matches(other), "{other:?}");
        }
        assert!(pattern("team.a-*").matches("team.a-orders") && pattern("team.a-*").matches("team.a-"));
        for other in
            ["team.a", "teamxa-orders", "Team.a-orders", "team.a-%6frders", "team.a-é", "team.a-*", "x-team.a-b"]
        {
            assert!(!pattern("team.a-*").matches(other), "{other:?}");
        }
        assert!(pattern("*").matches("orders") && !pattern("*").matches("..") && !pattern("*").matches("a b"));
    }

    #[test]
    fn no_pattern_matches_an_internal_topic() {
        let internal = [
            "__consumer_offsets",
            "__Consumer_Offsets",
            "__transaction_state",
            "__",
            "reveille-elector.jobs",
            "Reveille-Elector.jobs",
            "orders-billing-retry-0",
            "orders-billing-RETRY-12",
            "orders-retry-",
            "orders-dead",
            "ORDERS-Dead",
            "orders-dead-letters",
            "orders-control",
            "billing-leader",
            "billing-Leaders",
            "billing-elector",
        ];
        for name in internal {
            assert!(is_internal(name), "{name}");
            assert!(!pattern("*").matches(name), "{name}");
            assert_eq!(name.parse::<TopicPattern>(), Err(TopicPatternError::Internal), "{name}");
            for pattern in [name.to_owned(), format!("{}*", &name[..name.len() - 1])] {
                assert!(!TopicPattern::from_stored(&pattern).unwrap().matches(name), "{pattern}");
            }
        }
        for public in [
            "orders",
            "_orders",
            "orders-retry-now",
            "dead",
            "deadline",
            "orders-leaderboard",
            "orders.__x",
            "reveille",
            "my-reveille-x",
        ] {
            assert!(!is_internal(public), "{public}");
        }
    }

    #[test]
    fn malformed_pattern_is_rejected() {
        for text in ["", ".", "..", "a b", "a*b", "**", "*a", "ordérs", "orders\n", "a/b", "%2a", "orders?", "[a]*"] {
            assert_eq!(text.parse::<TopicPattern>(), Err(TopicPatternError::Syntax), "{text:?}");
        }
        assert!("a".repeat(249).parse::<TopicPattern>().is_ok());
        assert_eq!("a".repeat(250).parse::<TopicPattern>(), Err(TopicPatternError::Syntax));
        assert_eq!(format!("{}*", "a".repeat(250)).parse::<TopicPattern>(), Err(TopicPatternError::Syntax));
    }

    proptest! {
        #[test]
        fn parsed_pattern_has_its_text(text in "[a-z._*-]{1,9}") {
            if let Ok(pattern) = text.parse::<TopicPattern>() {
                prop_assert_eq!(pattern.to_string(), text);
            }
        }

        #[test]
        fn matched_name_is_a_valid_public_name(start in "[a-z_-]{0,4}", name in ".{0,12}") {
            if let Ok(pattern) = format!("{start}*").parse::<TopicPattern>() && pattern.matches(&name) {
                prop_assert!(is_name(&name) && !is_internal(&name) && name.starts_with(&start));
            }
        }
    }
}
