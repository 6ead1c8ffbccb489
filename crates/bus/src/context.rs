//! Context of a record: headers that connect the records and requests of one operation.

use crate::producer::NewRecord;
use crate::topic::{Header, Record};

/// Names of the headers, from the W3C recommendations *Trace Context* and *Baggage*.
const NAMES: [&str; 3] = ["traceparent", "tracestate", "baggage"];

/// Headers `traceparent`, `tracestate` and `baggage` of a record. Copies of failed records contain them, too.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Context(Vec<Header>);

impl Context {
    /// Returns the context of a record. It is empty if the record has none of the headers.
    #[must_use]
    pub fn of(record: &Record) -> Self {
        Context(record.headers.iter().filter(|header| is_context(header)).cloned().collect())
    }

    /// Returns the headers of the context.
    #[must_use]
    pub fn headers(&self) -> &[Header] {
        &self.0
    }
}

impl NewRecord {
    /// Sets the context of the record. It replaces an earlier context.
    #[must_use]
    pub fn with_context(mut self, context: &Context) -> Self {
        self.headers.retain(|header| !is_context(header));
        self.headers.extend(context.0.iter().cloned());
        self
    }
}

fn is_context(header: &Header) -> bool {
    NAMES.contains(&header.name.as_str())
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use instants::Timestamp;

    use super::*;
    use crate::{Offset, TopicName};

    #[test]
    fn context_passes_from_a_received_record_to_a_sent_record() {
        let header = |name: &str, value: &'static str| Header {
            name: name.to_owned(),
            value: Some(Bytes::from_static(value.as_bytes())),
        };
        let headers = vec![header("traceparent", "00-1-2-01"), header("color", "red"), header("baggage", "user=ann")];
        let record =
            Record { offset: Offset(0), timestamp: Timestamp::from_millis(0), key: None, value: None, headers };
        let mut new = NewRecord::new(&TopicName::new("orders").unwrap(), "a", "1");
        new.headers = vec![header("size", "1"), header("baggage", "user=bob")];
        let new = new.with_context(&Context::of(&record));
        let expected = [header("size", "1"), header("traceparent", "00-1-2-01"), header("baggage", "user=ann")];
        assert_eq!(new.headers, expected);
    }
}
