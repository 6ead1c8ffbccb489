//! What a schedule is to be, from flags. All but the form of the flags is the server's to judge.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read as _};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use domain::{Timestamp, duration};
use reveille_client::ScheduleRequest;
use reveille_client::api::{RetryRequest, TargetRequest, TargetRequestHttp};
use serde_json::value::RawValue;

#[derive(Args, Debug)]
#[group(id = "ask", multiple = true)]
pub(super) struct Ask {
    /// A name of your own; letters, digits, `_` and `-` [default: one is made]
    #[arg(long)]
    id: Option<String>,
    /// Once, at this instant: 2030-01-02T03:04:05Z, with any offset
    #[arg(long, group = "when")]
    at: Option<String>,
    /// Once, after a while: 30s, 10m, 1h30m, by this machine's clock
    #[arg(long = "in", group = "when", value_name = "DURATION", value_parser = duration::parse)]
    after: Option<Duration>,
    /// By a cron expression of five fields, or six with seconds first
    #[arg(long, group = "when", value_name = "EXPRESSION")]
    cron: Option<String>,
    /// Every so often: 30s, 10m, 1h30m
    #[arg(long, group = "when", value_name = "DURATION")]
    every: Option<String>,
    /// The zone of --cron, as Europe/Berlin [default: UTC]
    #[arg(long)]
    zone: Option<String>,
    /// What is called
    #[arg(long, required_unless_present = "file")]
    url: Option<String>,
    /// How it is called [default: POST]
    #[arg(long)]
    method: Option<String>,
    /// A header of the call; may be repeated
    #[arg(long = "header", value_name = "NAME:VALUE", value_parser = pair)]
    headers: Vec<(String, String)>,
    /// For one attempt [default: 10s]
    #[arg(long, value_name = "DURATION")]
    timeout: Option<String>,
    /// The body of the call, in JSON
    #[arg(long, value_name = "JSON", conflicts_with = "payload_file")]
    payload: Option<String>,
    /// The body of the call, from a file in JSON; `-` for standard input
    #[arg(long, value_name = "FILE")]
    payload_file: Option<PathBuf>,
    /// A label; may be repeated
    #[arg(long = "label", value_name = "NAME:VALUE", value_parser = pair)]
    labels: Vec<(String, String)>,
    /// Attempts in all [default: 5]
    #[arg(long, value_name = "NUMBER")]
    attempts_max: Option<u16>,
    /// The bound of the wait after the first attempt, doubled for each further one [default: 1s]
    #[arg(long, value_name = "DURATION")]
    backoff: Option<String>,
    /// No wait is longer [default: 10m]
    #[arg(long, value_name = "DURATION")]
    backoff_max: Option<String>,
}

/// `name:value`, white space around them not of them.
pub(super) fn pair(text: &str) -> Result<(String, String), &'static str> {
    let (name, value) = text.split_once(':').ok_or("it has the form NAME:VALUE")?;
    Ok((name.trim().to_owned(), value.trim().to_owned()))
}

impl Ask {
    /// # Errors
    /// If the payload cannot be read, or is no JSON.
    pub(super) fn request(self, now: Timestamp) -> anyhow::Result<ScheduleRequest> {
        let payload = self.payload()?;
        let map = |pairs: Vec<(String, String)>| {
            let pairs: BTreeMap<String, String> = pairs.into_iter().collect();
            (!pairs.is_empty()).then_some(pairs)
        };
        let Ask { attempts_max, backoff, backoff_max, .. } = self;
        let asks_retry = attempts_max.is_some() || backoff.is_some() || backoff_max.is_some();
        let http = TargetRequestHttp {
            url: self.url.unwrap_or_default(),
            method: self.method,
            headers: map(self.headers),
            timeout: self.timeout,
        };
        Ok(ScheduleRequest {
            id: self.id,
            at: self.at.or_else(|| self.after.map(|after| (now + after).to_string())),
            cron: self.cron,
            every: self.every,
            zone: self.zone,
            target: TargetRequest { http },
            payload,
            labels: map(self.labels),
            retry: asks_retry.then_some(RetryRequest { attempts_max, backoff, backoff_max }),
        })
    }

    fn payload(&self) -> anyhow::Result<Option<Box<RawValue>>> {
        let (text, from) = match (&self.payload, &self.payload_file) {
            (Some(text), _) => (text.clone(), "--payload".to_owned()),
            (None, Some(path)) if path.as_os_str() == "-" => {
                let mut text = String::new();
                io::stdin().read_to_string(&mut text).context("standard input is no text")?;
                (text, "standard input".to_owned())
            }
            (None, Some(path)) => {
                let from = path.display().to_string();
                (fs::read_to_string(path).with_context(|| format!("cannot read {from}"))?, from)
            }
            (None, None) => return Ok(None),
        };
        let payload = RawValue::from_string(text.trim().to_owned());
        Ok(Some(payload.with_context(|| format!(r#"{from} is not JSON; a word is written as '"word"'"#))?))
    }
}
