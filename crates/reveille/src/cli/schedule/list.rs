//! Command `reveille schedule list`, which lists the active schedules or the schedules that match a filter.

use anyhow::{Context as _, ensure};
use clap::{Args, ValueEnum};
use cli_support::console;
use reveille_client::{ListBy, Order, Schedule, SchedulePage, ScheduleState, Time};
use serde::Deserialize as _;
use serde::de::IntoDeserializer;
use serde::de::value::Error;

use crate::cli::Output;
use crate::cli::connect::{Connect, DefaultKey};
use crate::cli::explain::explain;
use crate::cli::run::Page;
use crate::cli::show::{self, or_dash, word};

#[derive(Args, Debug)]
pub(crate) struct List {
    /// State of the schedules to list [default: active]
    #[arg(long, conflicts_with_all = ["label", "due_from"])]
    state: Option<State>,
    /// Order of the list: the oldest or the newest schedule first, or by id (not with --label) [default: newest]
    #[arg(long, conflicts_with = "due_from")]
    order: Option<ListOrder>,
    /// Label of the schedules to list, as NAME:VALUE
    #[arg(long, value_name = "NAME:VALUE", value_parser = label, conflicts_with = "due_from")]
    label: Option<(String, String)>,
    /// Earliest due instant of the schedules to list (RFC 3339); the list is in the order of due instants
    #[arg(long, value_name = "INSTANT", value_parser = instant, requires = "due_until")]
    due_from: Option<Time>,
    /// End of the period that begins at --due-from; the period has at most 24 hours
    #[arg(long, value_name = "INSTANT", value_parser = instant, requires = "due_from")]
    due_until: Option<Time>,
    #[command(flatten)]
    page: Page,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    connect: Connect,
}

#[derive(Clone, Copy, ValueEnum, Debug)]
enum State {
    Active,
    Ended,
    Cancelled,
    All,
}

/// Value of `--order`.
#[derive(Clone, Copy, ValueEnum, Debug)]
enum ListOrder {
    Oldest,
    Newest,
    Id,
}

pub(in crate::cli) fn label(text: &str) -> anyhow::Result<(String, String)> {
    let (name, value) = text.split_once(':').context("the value is not a label; write a label as NAME:VALUE")?;
    ensure!(!name.contains('='), "cannot list by a label with `=` in its name; the form of a label is NAME:VALUE");
    Ok((name.trim().to_owned(), value.trim().to_owned()))
}

pub(in crate::cli) fn instant(text: &str) -> anyhow::Result<Time> {
    Time::deserialize(IntoDeserializer::<Error>::into_deserializer(text))
        .context("the value is not an instant; write an instant such as 2030-01-02T03:04:05Z")
}

impl List {
    fn by(&self) -> ListBy {
        if let Some((name, value)) = self.label.clone() {
            return ListBy::Label { name, value };
        }
        match (self.due_from, self.due_until) {
            (Some(from), Some(until)) => ListBy::Due { from, until },
            _ => match self.state.unwrap_or(State::Active) {
                State::Active => ListBy::State(ScheduleState::Active),
                State::Ended => ListBy::State(ScheduleState::Ended),
                State::Cancelled => ListBy::State(ScheduleState::Cancelled),
                State::All => ListBy::All,
            },
        }
    }

    fn order(&self) -> Order {
        match self.order {
            Some(ListOrder::Oldest) => Order::Oldest,
            Some(ListOrder::Newest) => Order::Newest,
            Some(ListOrder::Id) => Order::Id,
            // For a list by due time, the API accepts only [`Order::Oldest`].
            None if self.due_from.is_some() => Order::Oldest,
            None => Order::Newest,
        }
    }
}

pub(super) async fn list(arguments: List) -> anyhow::Result<()> {
    let client = arguments.connect.client(DefaultKey::Admin)?;
    let Page { limit, page_token } = &arguments.page;
    let page = client.schedule_page(&arguments.by(), arguments.order(), *limit, page_token.as_deref()).await;
    let page = page.map_err(|error| explain(&client, &error))?;
    if arguments.output.json {
        return show::json(&page);
    }
    show_page(&page)?;
    let count = client.count_schedules().await.map_err(|error| explain(&client, &error))?.active;
    Ok(console::line(&format!("\n{count} active {}", if count == 1 { "schedule" } else { "schedules" }))?)
}

fn show_page(page: &SchedulePage) -> anyhow::Result<()> {
    let rows: Vec<_> = page.schedules.iter().map(row).collect();
    show::table(["schedule", "state", "next", "when", "target", "labels"], &rows)?;
    match &page.next_page_token {
        Some(token) => Ok(console::line(&format!("\nmore: --page-token {}", show::escaped(token)))?),
        None => Ok(()),
    }
}

fn row(schedule: &Schedule) -> [String; 6] {
    let when = match (&schedule.at, &schedule.cron, &schedule.every) {
        (Some(_), ..) => "once".to_owned(),
        (None, Some(cron), _) => cron.clone(),
        (None, None, every) => every.as_ref().map_or_else(String::new, |every| format!("every {every}")),
    };
    let labels: Vec<String> = schedule.labels.iter().map(|(name, value)| format!("{name}:{value}")).collect();
    let target = super::target(&schedule.target);
    [schedule.id.clone(), word(&schedule.state), or_dash(schedule.next), when, target, labels.join(" ")]
}
