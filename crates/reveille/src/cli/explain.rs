//! Texts that explain errors of the SDK to the user, and name the user's next step.

use std::error::Error as _;

use anyhow::anyhow;
use reveille_client::api::FieldError;
use reveille_client::{Client, Error};
use rustls::CertificateError;

use super::show::escaped;

/// Returns the error as text. The text names each invalid field by the flag that sets the field, and ends with the next
/// step.
pub(super) fn explain(client: &Client, error: &Error) -> anyhow::Error {
    let mut text = match error {
        Error::Rejected(refused) => format!("{}: {}", refused.problem.title, refused.problem.detail),
        error => error.to_string(),
    };
    if !error.field_errors().is_empty() {
        text = "the server rejected the request:".to_owned();
        for field in error.field_errors() {
            text.push_str("\n  ");
            text.push_str(&field_line(field));
        }
    }
    let mut source = error.source();
    while let Some(reason) = source {
        text.push_str(&format!(": {reason}"));
        source = reason.source();
    }
    if let Some(step) = next_step(client, error) {
        text.push_str(&format!("\n{step}"));
    }
    if let (true, Some(id)) = (error.status().is_some_and(|status| status >= 500), error.request_id()) {
        text.push_str(&format!("\nthe server's log has details of request {id}"));
    }
    anyhow!(text.lines().map(escaped).collect::<Vec<_>>().join("\n"))
}

/// Returns the fault of one field as a line of text, which names the field by its flag.
pub(super) fn field_line(error: &FieldError) -> String {
    let place = match (&error.pointer, &error.parameter, &error.header) {
        (Some(pointer), ..) => flag_of(pointer).map_or_else(|| pointer.clone(), str::to_owned),
        (None, Some(parameter), _) => format!("--{}", parameter.replace('_', "-")),
        (None, None, header) => header.as_deref().unwrap_or_default().to_owned(),
    };
    let hint = error.hint.as_ref().map(|hint| format!(" ({hint})")).unwrap_or_default();
    let colon = if place.is_empty() { "" } else { ": " };
    format!("{place}{colon}{}{hint}", error.detail)
}

/// Returns the flag of `reveille schedule` that sets the field at this JSON Pointer.
fn flag_of(pointer: &str) -> Option<&'static str> {
    const FLAGS: [(&str, &str); 18] = [
        ("/id", "--id"),
        ("/at", "--at"),
        ("/cron", "--cron"),
        ("/every", "--every"),
        ("/zone", "--zone"),
        ("/target/http/url", "--url"),
        ("/target/http/method", "--method"),
        ("/target/http/headers", "--header"),
        ("/target/http/timeout", "--timeout"),
        ("/target/bus/key", "--record-key"),
        ("/target/bus/cloud_event", "--cloud-event"),
        ("/target/bus/headers", "--header"),
        ("/target/bus/timeout", "--timeout"),
        ("/target/bus", "--topic"),
        ("/payload", "--payload"),
        ("/labels", "--label"),
        ("/retry/attempts_max", "--attempts-max"),
        ("/retry/backoff_max", "--backoff-max"),
    ];
    let is_under = |of: &str| pointer.strip_prefix(of).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    let known = FLAGS.iter().find(|(of, _)| is_under(of)).map(|(_, flag)| *flag);
    known.or_else(|| is_under("/retry/backoff").then_some("--backoff"))
}

/// Returns `true` if the server presents a certificate that the client does not trust.
fn is_distrusted(error: &Error) -> bool {
    has_tls_error(error, |error| matches!(error, rustls::Error::InvalidCertificate(_)))
}

/// Returns `true` if the server presents the certificate of a certificate authority. A client accepts such a
/// certificate only as the issuer of other certificates.
fn is_authority(error: &Error) -> bool {
    has_tls_error(error, |error| match error {
        rustls::Error::InvalidCertificate(CertificateError::Other(reason)) => reason.to_string() == "CaUsedAsEndEntity",
        _ => false,
    })
}

/// Returns `true` if the server responds without TLS.
fn is_plain(error: &Error) -> bool {
    has_tls_error(error, |error| matches!(error, rustls::Error::InvalidMessage(_)))
}

fn has_tls_error(error: &Error, is_it: impl Fn(&rustls::Error) -> bool) -> bool {
    let mut source = error.source();
    while let Some(error) = source {
        let inner = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
        let found = inner.and_then(|inner| inner.downcast_ref::<rustls::Error>());
        if found.or_else(|| error.downcast_ref()).is_some_and(&is_it) {
            return true;
        }
        // `source` of an `io::Error` skips the error that the `io::Error` wraps. Therefore the loop continues with the
        // wrapped error.
        source = inner.map(|inner| inner as &(dyn std::error::Error + 'static)).or_else(|| error.source());
    }
    false
}

fn next_step(client: &Client, error: &Error) -> Option<String> {
    let url = client.url();
    let step = match (error, error.code()) {
        (Error::Unreachable { .. }, _) if is_authority(error) => {
            "the server's certificate is a certificate authority, which no client accepts as a server: create it with \
             `basicConstraints=CA:FALSE`, or sign it with an authority that --root-certificate names"
        }
        (Error::Unreachable { .. }, _) if is_distrusted(error) => {
            "give the certificate of the server's certificate authority with --root-certificate or \
             REVEILLE_ROOT_CERTIFICATE, and use a host name from the server's certificate in --server"
        }
        (Error::Unreachable { .. }, _) if is_plain(error) => {
            "the server responds in plain HTTP: use `http://` with --server or REVEILLE_URL"
        }
        (Error::Unreachable { .. }, _) => {
            "start the server with `reveille serve`, or give its URL with --server or REVEILLE_URL"
        }
        (Error::Foreign { .. } | Error::Unreadable { .. }, _) => {
            return Some(format!("check whether Reveille runs at {url}; --server or REVEILLE_URL sets the URL"));
        }
        (Error::Broken { .. } | Error::TimedOut { .. }, _) => {
            "the request may have taken effect: check with `reveille schedule get` or `reveille schedule \
             list` before you repeat it"
        }
        (_, Some("invalid_credentials")) => {
            "check --key-file or REVEILLE_KEY: the key may be revoked or expired, or may belong to another server"
        }
        (_, Some("role_forbidden")) => {
            "use another key with --key-file: to create tenants or raise the ceilings of quotas, use an operator's key \
             (`operator.key` in the data folder); for all other commands, use a tenant's key (`admin.key`, or a key \
             from `reveille key create`)"
        }
        (_, Some("schedule_not_found")) => "`reveille schedule list` shows the schedules and their ids",
        (_, Some("run_not_found")) => {
            "the id of a run is the `webhook-id` of its callbacks; `reveille run list` shows runs"
        }
        (_, Some("not_dead_letter")) => "`reveille run dead-letters` shows the dead letters",
        (_, Some("tenant_not_found")) => "`reveille tenant list` shows the tenants; use --tenant to name one of them",
        (_, Some("key_not_found")) => "`reveille key list` and `reveille secret list` show the keys and the secrets",
        (_, Some("schedule_exists")) => {
            "use --replace to replace the schedule, or omit --id to let the server choose a new id"
        }
        (_, Some("tenant_exists")) => {
            "`reveille tenant get` shows the tenant; `reveille key create` creates a key for it"
        }
        (_, Some("quota_exceeded" | "rate_exceeded")) => {
            "`reveille quota get` shows the quotas, and `reveille quota set` changes them"
        }
        (_, Some("quota_ceiling")) => {
            "an operator can raise the ceiling: `reveille quota set --tenant NAME --ceiling QUOTA=NUMBER`"
        }
        (_, Some("schedule_over")) => {
            "to create a cancelled schedule again, use `reveille schedule create --id ID --replace`; to continue an \
             ended schedule at a new time, use `reveille schedule reschedule`"
        }
        (_, Some("precondition_failed")) => {
            "another client changed the schedule: `reveille schedule get` shows the schedule and its new tag"
        }
        (_, Some("runs_not_indexed")) => {
            "`reveille run list --schedule ID` and `reveille run dead-letters` work without the index"
        }
        (_, Some("store_unavailable" | "coordination_unavailable" | "storage_full")) => {
            "try again later; `reveille cluster status` and the server's log show details"
        }
        _ => return None,
    };
    Some(step.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cli_error_names_the_flag_that_sets_the_field_at_a_json_pointer() {
        assert_eq!(flag_of("/retry/backoff"), Some("--backoff"));
        assert_eq!(flag_of("/retry/backoff_max"), Some("--backoff-max"));
        assert_eq!(flag_of("/target/http/headers/x-a"), Some("--header"));
        assert_eq!(flag_of("/target/bus/topic"), Some("--topic"));
        assert_eq!(flag_of("/target/bus/cloud_event/mode"), Some("--cloud-event"));
        assert_eq!(flag_of("/labels/team"), Some("--label"));
        assert_eq!(flag_of("/attic"), None);
        assert_eq!(flag_of(""), None);
    }
}
