//! Topic that some schedules of a chaos test have as target, on a real Kafka broker. The test reads the topic after all
//! faults, and logs each record in the form of a callback.

use std::io::Write;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, ensure};
use serde_json::Value;
use test_servers::kafka::Kafka;

use super::instant;
use super::log::{Callback, RECORDS};
use super::member::{Member, MemberConfig};
use super::network::Network;

pub(super) const NAME: &str = "chaos";
const PARTITIONS: u32 = 12;

pub(super) struct Topic {
    kafka: Kafka,
}

impl Topic {
    /// Starts the broker, and creates the topic. The times of its records are the times at which the broker stored
    /// them.
    ///
    /// # Errors
    /// Returns an error if the broker does not start, or if it rejects the topic.
    pub(super) fn create(network: &Network) -> anyhow::Result<Topic> {
        let kafka = Kafka::start_on(network.bus(), 1)?;
        kafka.create_topic_with_times_of_storage(NAME, PARTITIONS)?;
        Ok(Topic { kafka })
    }

    pub(super) fn kafka(&self) -> &Kafka {
        &self.kafka
    }

    pub(super) fn url(&self) -> String {
        format!("kafka://{}", self.kafka.addresses())
    }

    /// Reads the topic up to its present end, and replaces the log of its records.
    ///
    /// # Errors
    /// Returns an error if the topic cannot be read, or if a record does not have the form of a callback.
    pub(super) fn read(&self, config: &MemberConfig, folder: &Path) -> anyhow::Result<()> {
        let mut command = Command::new(&config.binary);
        command.args(["bus", "consume", NAME, "--until-end", "--json", "--bus", &self.url()]);
        let output = command.env("NO_COLOR", "1").output().context("cannot start `reveille bus consume`")?;
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "`reveille bus consume` failed: {}", errors.trim());
        let mut lines = Vec::new();
        for line in String::from_utf8(output.stdout)?.lines() {
            let record: Value = serde_json::from_str(line)?;
            let callback = callback(&record).with_context(|| format!("a record is not a callback: {line}"))?;
            serde_json::to_writer(&mut lines, &callback)?;
            writeln!(lines)?;
        }
        std::fs::write(folder.join(RECORDS), lines).context("cannot write the log of the records")
    }
}

/// Permits the tenant to write to the topic, and to call the receiver.
///
/// # Errors
/// Returns an error if the service rejects the request.
pub(super) fn allow(config: &MemberConfig, member: &Member) -> anyhow::Result<()> {
    let mut command = Command::new(&config.binary);
    command.args(["tenant", "egress", "default", "--allow", "private", "--allow-topic", NAME]);
    command.args(["--server", &format!("http://{}", member.address()), "--key-file"]).arg(config.operator_key());
    let output = command.env("NO_COLOR", "1").output().context("cannot start `reveille tenant egress`")?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "`reveille tenant egress` failed: {}", errors.trim());
    Ok(())
}

/// Returns the callback of a record; `None` if the record is malformed.
fn callback(record: &Value) -> Option<Callback> {
    let headers = record["headers"].as_array()?;
    let header = |name: &str| headers.iter().find(|header| header["name"] == name)?["value"].as_str();
    let number = |name: &str| header(name)?.parse::<u64>().ok();
    let body: Value = serde_json::from_str(record["value"].as_str()?).ok()?;
    let nominal_ms = instant::parse(header("reveille-scheduled-at")?)?;
    Some(Callback {
        token: body["token"].as_str()?.to_owned(),
        version: u32::try_from(body["version"].as_u64()?).ok()?,
        arrived_ms: instant::parse(record["timestamp"].as_str()?)?,
        started_ms: nominal_ms + number("reveille-lateness-ms")?,
        nominal_ms,
        run: header("webhook-id")?.to_owned(),
        schedule: header("reveille-schedule-id")?.to_owned(),
        attempt: u32::try_from(number("reveille-attempt")?).ok()?,
        term: number("reveille-term")?,
        from: String::new(),
        answered_with: 200,
        answered_after_ms: 0,
        is_record: true,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn record(attempt: &str) -> Value {
        let header = |name: &str, value: &str| json!({ "name": name, "value": value });
        json!({
            "topic": NAME,
            "partition": 3,
            "offset": 17,
            "timestamp": "2026-01-01T00:01:40.250Z",
            "value": r#"{"token": "4-17", "version": 2}"#,
            "headers": [
                header("webhook-id", "r"),
                header("reveille-schedule-id", "s"),
                header("reveille-attempt", attempt),
                header("reveille-scheduled-at", "2026-01-01T00:01:40.000Z"),
                header("reveille-lateness-ms", "12"),
                header("reveille-term", "9"),
            ],
        })
    }

    #[test]
    fn record_has_the_form_of_a_callback() {
        let callback = callback(&record("3")).unwrap();
        let nominal_ms = 1_767_225_700_000;
        assert_eq!((callback.nominal_ms, callback.started_ms), (nominal_ms, nominal_ms + 12));
        assert_eq!((callback.arrived_ms, callback.attempt, callback.term), (nominal_ms + 250, 3, 9));
        assert_eq!((callback.token.as_str(), callback.version, callback.run.as_str()), ("4-17", 2, "r"));
        assert!(callback.is_record && callback.from.is_empty());
    }

    #[test]
    fn malformed_record_is_not_a_callback() {
        assert!(callback(&record("first")).is_none());
        let mut record = record("3");
        record["headers"].as_array_mut().unwrap().remove(0);
        assert!(callback(&record).is_none());
    }
}
