//! Flags that describe a schedule. This module checks only the form of the flags. The server validates the values.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read as _};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use domain::{Timestamp, duration};
use reveille_client::ScheduleRequest;
use reveille_client::api::{
    CloudEvent, CloudEventMode, RetryRequest, TargetRequest, TargetRequestBus, TargetRequestHttp,
};
use serde_json::value::RawValue;

#[derive(Args, Debug)]
#[group(id = "request", multiple = true)]
pub(super) struct RequestArguments {
    /// Id of the schedule, of letters, digits, `_` and `-` [default: chosen by the server]
    #[arg(long)]
    id: Option<String>,
    /// Instant of a single callback, such as 2030-01-02T03:04:05Z, with any UTC offset
    #[arg(long, group = "when")]
    at: Option<String>,
    /// Delay of a single callback from now, by this machine's clock, such as 30s, 10m or 1h30m
    #[arg(long = "in", group = "when", value_name = "DURATION", value_parser = duration::parse)]
    after: Option<Duration>,
    /// Cron expression of five fields, or of six fields with the seconds first
    #[arg(long, group = "when", value_name = "EXPRESSION")]
    cron: Option<String>,
    /// Interval between callbacks, such as 30s, 10m or 1h30m
    #[arg(long, group = "when", value_name = "DURATION")]
    every: Option<String>,
    /// Time zone of --cron, such as Europe/Berlin [default: UTC]
    #[arg(long)]
    zone: Option<String>,
    /// URL of the target
    #[arg(long, conflicts_with = "topic")]
    url: Option<String>,
    /// HTTP method of the callback [default: POST]
    #[arg(long, conflicts_with = "topic")]
    method: Option<String>,
    /// Topic of the server's message bus, instead of a URL
    #[arg(long)]
    topic: Option<String>,
    /// Key of the records in the topic
    #[arg(long, requires = "topic")]
    record_key: Option<String>,
    /// Form of the records in the topic as CloudEvents: binary or structured
    #[arg(long, requires = "topic", value_name = "MODE", value_parser = cloud_event_mode)]
    cloud_event: Option<CloudEventMode>,
    /// Header of the callback or of the records; may be repeated
    #[arg(long = "header", value_name = "NAME:VALUE", value_parser = pair)]
    headers: Vec<(String, String)>,
    /// Timeout of one attempt [default: 10s]
    #[arg(long, value_name = "DURATION")]
    timeout: Option<String>,
    /// Body of the callback, in JSON
    #[arg(long, value_name = "JSON", conflicts_with = "payload_file")]
    payload: Option<String>,
    /// File with the body of the callback, in JSON; `-` for standard input
    #[arg(long, value_name = "FILE")]
    payload_file: Option<PathBuf>,
    /// Label of the schedule; may be repeated
    #[arg(long = "label", value_name = "NAME:VALUE", value_parser = pair)]
    labels: Vec<(String, String)>,
    /// Maximum number of attempts of a run [default: 5]
    #[arg(long, value_name = "NUMBER")]
    attempts_max: Option<u16>,
    /// Longest wait after the first attempt; the longest wait doubles after each further attempt [default: 1s]
    #[arg(long, value_name = "DURATION")]
    backoff: Option<String>,
    /// Longest wait between two attempts [default: 10m]
    #[arg(long, value_name = "DURATION")]
    backoff_max: Option<String>,
}

/// Parses `name:value` and removes the white space around the name and around the value.
pub(super) fn pair(text: &str) -> Result<(String, String), &'static str> {
    let (name, value) = text.split_once(':').ok_or("the value does not have the form NAME:VALUE")?;
    Ok((name.trim().to_owned(), value.trim().to_owned()))
}

fn cloud_event_mode(text: &str) -> Result<CloudEventMode, &'static str> {
    match text {
        "binary" => Ok(CloudEventMode::Binary),
        "structured" => Ok(CloudEventMode::Structured),
        _ => Err("unknown mode; use binary or structured"),
    }
}

impl RequestArguments {
    /// Returns true if the flags name a target.
    pub(super) fn has_target(&self) -> bool {
        self.url.is_some() || self.topic.is_some()
    }

    /// Returns the request that the flags describe.
    ///
    /// # Errors
    /// Returns an error if the payload cannot be read, or if it is not JSON.
    pub(super) fn request(self, now: Timestamp) -> anyhow::Result<ScheduleRequest> {
        let payload = self.payload()?;
        let map = |pairs: Vec<(String, String)>| {
            let pairs: BTreeMap<String, String> = pairs.into_iter().collect();
            (!pairs.is_empty()).then_some(pairs)
        };
        let RequestArguments { attempts_max, backoff, backoff_max, .. } = self;
        let sets_retry = attempts_max.is_some() || backoff.is_some() || backoff_max.is_some();
        let (headers, timeout) = (map(self.headers), self.timeout);
        let target = match self.topic {
            Some(topic) => {
                let event = |mode| CloudEvent { mode, kind: None, source: None };
                let cloud_event = self.cloud_event.map(event);
                let bus = TargetRequestBus { topic, key: self.record_key, headers, cloud_event, timeout };
                TargetRequest { http: None, bus: Some(bus) }
            }
            None => {
                let (url, method) = (self.url.unwrap_or_default(), self.method);
                TargetRequest { http: Some(TargetRequestHttp { url, method, headers, timeout }), bus: None }
            }
        };
        Ok(ScheduleRequest {
            id: self.id,
            at: self.at.or_else(|| self.after.map(|after| (now + after).to_string())),
            cron: self.cron,
            every: self.every,
            zone: self.zone,
            target,
            payload,
            labels: map(self.labels),
            retry: sets_retry.then_some(RetryRequest { attempts_max, backoff, backoff_max }),
        })
    }

    fn payload(&self) -> anyhow::Result<Option<Box<RawValue>>> {
        let (text, from) = match (&self.payload, &self.payload_file) {
            (Some(text), _) => (text.clone(), "--payload".to_owned()),
            (None, Some(path)) if path.as_os_str() == "-" => {
                let mut text = String::new();
                io::stdin()
                    .read_to_string(&mut text)
                    .context("cannot read the payload as UTF-8 text from standard input")?;
                (text, "standard input".to_owned())
            }
            (None, Some(path)) => {
                let from = path.display().to_string();
                (fs::read_to_string(path).with_context(|| format!("cannot read {from}"))?, from)
            }
            (None, None) => return Ok(None),
        };
        let text = text.trim();
        let hint = if text.starts_with(['{', '[']) {
            r#"write names and strings with double quotes, as in '{"order": 17}'"#
        } else {
            r#"write a string with quotes, as in '"word"'"#
        };
        let payload = RawValue::from_string(text.to_owned());
        Ok(Some(payload.with_context(|| format!("{from} is not valid JSON; {hint}"))?))
    }
}
