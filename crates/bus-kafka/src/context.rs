//! Log messages and errors of librdkafka's clients.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};

use bus::BusError;
use rdkafka::ClientContext;
use rdkafka::config::RDKafkaLogLevel as Level;
use rdkafka::consumer::ConsumerContext;
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::statistics::Statistics;

/// Writes log messages, and keeps the last error of the connections. librdkafka repeats failing connections without
/// end, and a request that times out does not name the cause.
#[derive(Debug, Default)]
pub(crate) struct Context {
    last: Mutex<Option<Cause>>,
    has_failed: AtomicBool,
}

#[derive(Clone, Debug)]
struct Cause {
    code: Option<Code>,
    reason: String,
}

impl Context {
    fn last(&self) -> MutexGuard<'_, Option<Cause>> {
        self.last.lock().expect("no code panics while it holds this mutex")
    }

    /// Returns true if librdkafka has reported that the connections to all brokers failed.
    pub(crate) fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::Acquire)
    }

    /// Returns the reason if the last connection failed because a broker rejected the user.
    pub(crate) fn rejection(&self) -> Option<BusError> {
        let is_rejection = |cause: &Cause| cause.code == Some(Code::Authentication);
        self.last().clone().filter(is_rejection).map(|cause| BusError::Unauthorized(cause.reason))
    }

    /// Adds the cause to the error of a request that got no response.
    pub(crate) fn explain(&self, error: BusError) -> BusError {
        match (error, self.last().clone()) {
            (BusError::Disconnected(text), Some(cause)) => {
                BusError::Disconnected(format!("{text}; the last error of a connection: {}", cause.reason))
            }
            (error, _) => error,
        }
    }
}

impl ClientContext for Context {
    fn log(&self, level: Level, facility: &str, message: &str) {
        match level {
            Level::Emerg | Level::Alert | Level::Critical | Level::Error | Level::Warning => {
                tracing::warn!(facility, "librdkafka: {message}");
            }
            Level::Notice | Level::Info | Level::Debug => tracing::debug!(facility, "librdkafka: {message}"),
        }
    }

    fn stats(&self, _: Statistics) {}

    fn error(&self, error: KafkaError, reason: &str) {
        let code = error.rdkafka_error_code();
        // This error follows the errors of the connections, and it names no cause.
        if code == Some(Code::AllBrokersDown) {
            self.has_failed.store(true, Ordering::Release);
        } else {
            *self.last() = Some(Cause { code, reason: reason.to_owned() });
        }
        tracing::debug!(%error, "librdkafka: {reason}");
    }
}

impl ConsumerContext for Context {}
