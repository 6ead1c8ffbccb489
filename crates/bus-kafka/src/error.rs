//! Translation of librdkafka's errors.

use bus::{BusError, TopicName};
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};

pub(crate) fn bus_error(error: &KafkaError) -> BusError {
    match (error, error.rdkafka_error_code()) {
        (_, Some(code)) => bus_error_of_code(code, None),
        (KafkaError::ClientConfig(..) | KafkaError::ClientCreation(_) | KafkaError::Nul(_), None) => {
            BusError::Invalid(error.to_string())
        }
        (_, None) => BusError::Disconnected(error.to_string()),
    }
}

/// Translates a code. `topic` is the topic of the request, if it has one.
pub(crate) fn bus_error_of_code(code: Code, topic: Option<&TopicName>) -> BusError {
    match (code, topic) {
        (Code::UnknownTopicOrPartition | Code::UnknownTopic, Some(topic)) => BusError::UnknownTopic(topic.clone()),
        (
            Code::TopicAuthorizationFailed
            | Code::GroupAuthorizationFailed
            | Code::ClusterAuthorizationFailed
            | Code::TransactionalIdAuthorizationFailed
            | Code::SaslAuthenticationFailed
            | Code::Authentication,
            _,
        ) => BusError::Unauthorized(code.to_string()),
        (
            Code::IllegalGeneration
            | Code::UnknownMemberId
            | Code::FencedInstanceId
            | Code::FencedMemberEpoch
            | Code::StaleMemberEpoch,
            _,
        ) => BusError::Fenced,
        (
            Code::InvalidConfig
            | Code::InvalidPartitions
            | Code::InvalidReplicationFactor
            | Code::InvalidRequest
            | Code::InvalidArgument
            | Code::InvalidGroupId
            | Code::InvalidSessionTimeout
            | Code::InconsistentGroupProtocol
            | Code::InvalidTopic
            | Code::PolicyViolation
            | Code::UnknownPartition
            | Code::InvalidRecord
            | Code::InvalidTimestamp
            | Code::MessageSizeTooLarge,
            _,
        ) => BusError::Invalid(code.to_string()),
        _ => BusError::Disconnected(code.to_string()),
    }
}
