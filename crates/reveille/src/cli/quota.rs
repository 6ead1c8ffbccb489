//! `reveille quota`.

use clap::{Args, Subcommand};
use reveille_client::api::{Tenant, TenantPatch};
use reveille_client::{Quota, QuotaSheet};

use super::Output;
use super::connect::{As, Connect};
use super::explain::explain;
use super::show::{self, word};

#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Show what a tenant may use, and how high its admins may set that
    Get(Get),
    /// Set quotas; those that are not named stay as they are
    Set(Set),
}

#[derive(Args, Debug)]
pub(crate) struct Get {
    #[command(flatten)]
    of: Of,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    connect: Connect,
}

#[derive(Args, Debug)]
pub(crate) struct Set {
    /// As `pending_max=1000`, or `pending_max=none` for as much as the service takes from anybody
    #[arg(required = true, value_name = "QUOTA=NUMBER", value_parser = setting)]
    settings: Vec<(Quota, Option<u32>)>,
    /// Set how high the tenant's admins may set them; for operators, with --tenant
    #[arg(long, requires = "tenant")]
    ceiling: bool,
    #[command(flatten)]
    of: Of,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    connect: Connect,
}

#[derive(Args, Debug)]
struct Of {
    /// Of this tenant, as an operator [default: the key's own]
    #[arg(long, value_name = "NAME")]
    tenant: Option<String>,
}

fn setting(text: &str) -> Result<(Quota, Option<u32>), String> {
    let (name, number) = text.split_once('=').ok_or("it has the form QUOTA=NUMBER")?;
    let quota = serde_json::from_value(name.into()).map_err(|error| error.to_string())?;
    match number {
        "none" => Ok((quota, None)),
        number => {
            Ok((quota, Some(number.parse().map_err(|_| format!("{number:?} is no whole number up to {}", u32::MAX))?)))
        }
    }
}

pub(super) async fn obey(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Get(arguments) => get(arguments).await,
        Command::Set(arguments) => set(arguments).await,
    }
}

async fn get(arguments: Get) -> anyhow::Result<()> {
    let client = arguments.connect.client(arguments.of.who())?;
    let sheet = match &arguments.of.tenant {
        Some(name) => client.tenant(name).await.map(sheet_of),
        None => client.quotas().await,
    };
    show_sheet(&sheet.map_err(|error| explain(&client, &error))?, arguments.output)
}

async fn set(arguments: Set) -> anyhow::Result<()> {
    let client = arguments.connect.client(arguments.of.who())?;
    let settings = arguments.settings.into_iter().collect();
    let sheet = match &arguments.of.tenant {
        Some(name) => {
            let patch = match arguments.ceiling {
                true => TenantPatch { ceilings: settings, ..TenantPatch::default() },
                false => TenantPatch { quotas: settings, ..TenantPatch::default() },
            };
            client.update_tenant(name, &patch).await.map(sheet_of)
        }
        None => client.set_quotas(&settings).await,
    };
    show_sheet(&sheet.map_err(|error| explain(&client, &error))?, arguments.output)
}

fn sheet_of(tenant: Tenant) -> QuotaSheet {
    QuotaSheet { quotas: tenant.quotas, ceilings: tenant.ceilings }
}

impl Of {
    fn who(&self) -> As {
        match self.tenant {
            Some(_) => As::Operator,
            None => As::Admin,
        }
    }
}

fn show_sheet(sheet: &QuotaSheet, output: Output) -> anyhow::Result<()> {
    if output.json {
        return show::json(sheet);
    }
    let number = |number: Option<&Option<u32>>| match number {
        Some(Some(number)) => number.to_string(),
        Some(None) | None => "none".to_owned(),
    };
    let row = |(quota, own)| [word(quota), number(Some(own)), number(sheet.ceilings.get(quota))];
    show::table(["quota", "is", "at most"], &sheet.quotas.iter().map(row).collect::<Vec<_>>())
}
