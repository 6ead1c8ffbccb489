//! Messages of OTLP 1 that the export of spans uses, from `opentelemetry/proto/collector/trace/v1/trace_service.proto`
//! and its imports.
//!
//! The tag numbers come from the protocol and never change. Fields of the protocol that are missing here have their
//! default values.

use prost::{Message, Oneof};

/// Value of `Status.code`.
pub(super) const UNSET: i32 = 0;
pub(super) const ERROR: i32 = 2;

/// Values of `Span.kind`.
pub(super) mod kind {
    pub(in super::super) const INTERNAL: i32 = 1;
    pub(in super::super) const SERVER: i32 = 2;
    pub(in super::super) const CLIENT: i32 = 3;
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ExportTraceServiceRequest {
    #[prost(message, repeated, tag = "1")]
    pub(super) resource_spans: Vec<ResourceSpans>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ResourceSpans {
    #[prost(message, optional, tag = "1")]
    pub(super) resource: Option<Resource>,
    #[prost(message, repeated, tag = "2")]
    pub(super) scope_spans: Vec<ScopeSpans>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Resource {
    #[prost(message, repeated, tag = "1")]
    pub(super) attributes: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ScopeSpans {
    #[prost(message, optional, tag = "1")]
    pub(super) scope: Option<Scope>,
    #[prost(message, repeated, tag = "2")]
    pub(super) spans: Vec<Span>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Scope {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(string, tag = "2")]
    pub(super) version: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Span {
    #[prost(bytes = "vec", tag = "1")]
    pub(super) trace_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub(super) span_id: Vec<u8>,
    /// Id of the parent span. The id is empty if the span has no parent.
    #[prost(bytes = "vec", tag = "4")]
    pub(super) parent_span_id: Vec<u8>,
    #[prost(string, tag = "5")]
    pub(super) name: String,
    #[prost(int32, tag = "6")]
    pub(super) kind: i32,
    #[prost(fixed64, tag = "7")]
    pub(super) start_nanos: u64,
    #[prost(fixed64, tag = "8")]
    pub(super) end_nanos: u64,
    #[prost(message, repeated, tag = "9")]
    pub(super) attributes: Vec<KeyValue>,
    #[prost(message, repeated, tag = "13")]
    pub(super) links: Vec<Link>,
    #[prost(message, optional, tag = "15")]
    pub(super) status: Option<Status>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Link {
    #[prost(bytes = "vec", tag = "1")]
    pub(super) trace_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub(super) span_id: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Status {
    #[prost(int32, tag = "3")]
    pub(super) code: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct KeyValue {
    #[prost(string, tag = "1")]
    pub(super) key: String,
    #[prost(message, optional, tag = "2")]
    pub(super) value: Option<AnyValue>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct AnyValue {
    #[prost(oneof = "Value", tags = "1, 3")]
    pub(super) value: Option<Value>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(super) enum Value {
    #[prost(string, tag = "1")]
    Text(String),
    #[prost(int64, tag = "3")]
    Number(i64),
}

impl AnyValue {
    pub(super) fn text(text: &str) -> Self {
        AnyValue { value: Some(Value::Text(text.to_owned())) }
    }

    pub(super) fn number(number: i64) -> Self {
        AnyValue { value: Some(Value::Number(number)) }
    }
}

impl KeyValue {
    pub(super) fn of(key: &str, text: &str) -> Self {
        KeyValue { key: key.to_owned(), value: Some(AnyValue::text(text)) }
    }

    pub(super) fn text(&self) -> Option<&str> {
        match self.value.as_ref()?.value.as_ref()? {
            Value::Text(text) => Some(text),
            Value::Number(_) => None,
        }
    }

    pub(super) fn number(&self) -> Option<i64> {
        match self.value.as_ref()?.value.as_ref()? {
            Value::Text(_) => None,
            Value::Number(number) => Some(*number),
        }
    }
}
