//! Command `reveille schedule explain`, which explains why a schedule fired or did not fire at an instant.

use clap::Args;
use reveille_client::Time;
use reveille_client::api::{Cause, CauseKind, Explanation, Verdict};

use super::list::instant;
use crate::cli::Output;
use crate::cli::connect::{Connect, DefaultKey};
use crate::cli::explain::explain;
use crate::cli::show;

#[derive(Args, Debug)]
pub(crate) struct Explain {
    /// Id of the schedule
    id: String,
    /// Instant to explain (RFC 3339)
    #[arg(long, value_name = "INSTANT", value_parser = instant)]
    at: Time,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    connect: Connect,
}

pub(super) async fn explain_at(arguments: Explain) -> anyhow::Result<()> {
    let client = arguments.connect.client(DefaultKey::Admin)?;
    let explained = client.explain(&arguments.id, arguments.at).await;
    let explanation = explained.map_err(|error| explain(&client, &error))?;
    match arguments.output.json {
        true => show::json(&explanation),
        false => show_explanation(&explanation),
    }
}

/// Prints one sentence per line: the verdict, and then the chain of causes.
fn show_explanation(explanation: &Explanation) -> anyhow::Result<()> {
    let at = explanation.at;
    let verdict = match explanation.verdict {
        Verdict::WillFire => format!("the schedule will fire at {at}"),
        Verdict::WillNotFire => format!("the schedule will not fire at {at}"),
        Verdict::Pending => format!("the occurrence at {at} has no final outcome yet"),
        Verdict::Fired => format!("the schedule fired at {at}"),
        Verdict::Failed => format!("the occurrence at {at} failed"),
        Verdict::DidNotFire => format!("the schedule did not fire at {at}"),
        _ => format!("the server cannot explain {at}"),
    };
    let causes = explanation.causes.iter().map(text_of);
    let lines: Vec<String> = [verdict].into_iter().chain(causes).map(|text| sentence(&text)).collect();
    show::lines(&lines)
}

/// Returns the text of a cause with its instant and its key.
fn text_of(cause: &Cause) -> String {
    let mut text = cause.text.clone();
    if let Some(at) = cause.at {
        let role = match cause.kind {
            CauseKind::NoMatch => "; its next occurrence is at",
            CauseKind::RetriesLeft => "; the next one is due at",
            CauseKind::OverQuota | CauseKind::Due => ", since",
            CauseKind::CircuitOpen => ", until",
            CauseKind::Ended => "; its last occurrence was at",
            CauseKind::ZoneMoved => "; the schedule fires at",
            CauseKind::NotCreated => "; it was created at",
            CauseKind::HistoryDeleted => "; the history begins at",
            _ => ", at",
        };
        text.push_str(&format!("{role} {at}"));
    }
    if let Some(key) = &cause.key {
        text.push_str(&format!(", by {key}"));
    }
    text
}

fn sentence(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().map(|first| first.to_uppercase().to_string()).unwrap_or_default();
    format!("{first}{}.", letters.as_str().trim_end_matches('.'))
}
