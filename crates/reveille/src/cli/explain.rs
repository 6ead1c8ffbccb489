//! What a person should do about an error of the server's.

use std::error::Error as _;

use anyhow::anyhow;
use reveille_client::api::FieldError;
use reveille_client::{Client, Error};

use super::show::harmless;

/// The error in words, each field by the flag that sets it, and the next step.
pub(super) fn explain(client: &Client, error: &Error) -> anyhow::Error {
    let mut text = match error {
        Error::Refused(refused) => format!("{}: {}", refused.problem.title, refused.problem.detail),
        error => error.to_string(),
    };
    if !error.field_errors().is_empty() {
        text = "the server refuses it:".to_owned();
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
        text.push_str(&format!("\nthe server's log tells more of request {id}"));
    }
    anyhow!(text.lines().map(harmless).collect::<Vec<_>>().join("\n"))
}

fn field_line(error: &FieldError) -> String {
    let place = match (&error.pointer, &error.parameter, &error.header) {
        (Some(pointer), ..) => flag_of(pointer).map_or_else(|| pointer.clone(), str::to_owned),
        (None, Some(parameter), _) => format!("--{}", parameter.replace('_', "-")),
        (None, None, header) => header.as_deref().unwrap_or_default().to_owned(),
    };
    let hint = error.hint.as_ref().map(|hint| format!(" ({hint})")).unwrap_or_default();
    let colon = if place.is_empty() { "" } else { ": " };
    format!("{place}{colon}{}{hint}", error.detail)
}

/// The flag of `reveille schedule` that sets what a JSON Pointer points to.
fn flag_of(pointer: &str) -> Option<&'static str> {
    const FLAGS: [(&str, &str); 13] = [
        ("/id", "--id"),
        ("/at", "--at"),
        ("/cron", "--cron"),
        ("/every", "--every"),
        ("/zone", "--zone"),
        ("/target/http/url", "--url"),
        ("/target/http/method", "--method"),
        ("/target/http/headers", "--header"),
        ("/target/http/timeout", "--timeout"),
        ("/payload", "--payload"),
        ("/labels", "--label"),
        ("/retry/attempts_max", "--attempts-max"),
        ("/retry/backoff_max", "--backoff-max"),
    ];
    let is_under = |of: &str| pointer.strip_prefix(of).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    let known = FLAGS.iter().find(|(of, _)| is_under(of)).map(|(_, flag)| *flag);
    known.or_else(|| is_under("/retry/backoff").then_some("--backoff"))
}

/// It is there, and its certificate is not believed.
fn is_distrusted(error: &Error) -> bool {
    has_tls_error(error, |error| matches!(error, rustls::Error::InvalidCertificate(_)))
}

/// It is there, and what it says is no TLS.
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
        // What another error was wrapped into is told by that one, and not as its source.
        source = inner.map(|inner| inner as &(dyn std::error::Error + 'static)).or_else(|| error.source());
    }
    false
}

fn next_step(client: &Client, error: &Error) -> Option<String> {
    let url = client.url();
    let step = match (error, error.code()) {
        (Error::Unreachable { .. }, _) if is_distrusted(error) => {
            "give the authority that its certificate comes from with --root-certificate or REVEILLE_ROOT_CERTIFICATE, and with \
             --server a name that the certificate is of"
        }
        (Error::Unreachable { .. }, _) if is_plain(error) => {
            "what listens there answers in plain HTTP: say `http://` with --server or REVEILLE_URL"
        }
        (Error::Unreachable { .. }, _) => {
            "start it with `reveille serve`, or say where it is with --server or REVEILLE_URL"
        }
        (Error::Foreign { .. } | Error::Unreadable { .. }, _) => {
            return Some(format!("look whether {url} is Reveille; --server or REVEILLE_URL say where it is"));
        }
        (Error::Broken { .. } | Error::TimedOut { .. }, _) => {
            "what was asked for may have been done: look (`reveille schedule get`, `… list`) before you ask again"
        }
        (_, Some("invalid_credentials")) => {
            "look at --key-file or REVEILLE_KEY: the key may be revoked, expired, or of another server"
        }
        (_, Some("role_forbidden")) => {
            "take another key with --key-file: the operator's (`operator.key` in the data folder) makes tenants and raises ceilings, a \
             tenant's (`admin.key`, or one of `reveille key create`) does all else"
        }
        (_, Some("schedule_not_found")) => "`reveille schedule list` tells which there are",
        (_, Some("run_not_found" | "not_dead_letter")) => "`reveille run dead-letters` tells which there are",
        (_, Some("tenant_not_found")) => "`reveille tenant list` tells which there are; --tenant names one",
        (_, Some("key_not_found")) => "`reveille key list` and `reveille secret list` tell which there are",
        (_, Some("schedule_exists")) => "--replace replaces it; without --id it gets an id of its own",
        (_, Some("tenant_exists")) => "`reveille tenant get` shows it; `reveille key create` makes a key for it",
        (_, Some("quota_exceeded" | "rate_exceeded")) => {
            "`reveille quota get` shows what there is, `reveille quota set` changes it"
        }
        (_, Some("quota_ceiling")) => {
            "an operator raises it: `reveille quota set --tenant NAME --ceiling QUOTA=NUMBER`"
        }
        (_, Some("schedule_over")) => {
            "one that is cancelled is made anew with `reveille schedule create --id ID --replace`, one that has ended goes on at a new time \
             with `reveille schedule reschedule`"
        }
        (_, Some("precondition_failed")) => {
            "somebody changed it meanwhile: `reveille schedule get` shows it, and its tag"
        }
        (_, Some("store_unavailable" | "storage_full")) => {
            "try again later; `reveille cluster status` and the server's log tell more"
        }
        _ => return None,
    };
    Some(step.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_place_in_a_body_has_its_flag() {
        assert_eq!(flag_of("/retry/backoff"), Some("--backoff"));
        assert_eq!(flag_of("/retry/backoff_max"), Some("--backoff-max"));
        assert_eq!(flag_of("/target/http/headers/x-a"), Some("--header"));
        assert_eq!(flag_of("/labels/team"), Some("--label"));
        assert_eq!(flag_of("/attic"), None);
        assert_eq!(flag_of(""), None);
    }
}
