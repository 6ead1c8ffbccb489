//! Commands `reveille quota`, which show and set the quotas of a tenant.

use clap::{Args, Subcommand};
use reveille_client::api::{Tenant, TenantPatch};
use reveille_client::{Quota, QuotaSheet};

use super::Output;
use super::connect::{Connect, DefaultKey};
use super::explain::explain;
use super::show::{self, word};

#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Show a tenant's quotas, and the ceilings up to which the tenant's admins may set the quotas
    Get(Get),
    /// Set quotas; other quotas do not change
    Set(Set),
}

#[derive(Args, Debug)]
pub(crate) struct Get {
    #[command(flatten)]
    scope: OptionalTenant,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    connect: Connect,
}

#[derive(Args, Debug)]
pub(crate) struct Set {
    /// Quota and its value, such as `pending_max=1000`; with `pending_max=none`, only the limit of the service applies
    #[arg(required = true, value_name = "QUOTA=NUMBER", value_parser = setting)]
    settings: Vec<(Quota, Option<u32>)>,
    /// Set the ceilings up to which the tenant's admins may set the quotas; requires an operator's key and --tenant
    #[arg(long, requires = "tenant")]
    ceiling: bool,
    #[command(flatten)]
    scope: OptionalTenant,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    connect: Connect,
}

#[derive(Args, Debug)]
struct OptionalTenant {
    /// Tenant that has the quotas; requires an operator's key [default: the tenant of the key]
    #[arg(long, value_name = "NAME")]
    tenant: Option<String>,
}

fn setting(text: &str) -> Result<(Quota, Option<u32>), String> {
    let (name, number) = text.split_once('=').ok_or("not of the form QUOTA=NUMBER")?;
    let quota = serde_json::from_value(name.into()).map_err(|error| error.to_string())?;
    match number {
        "none" => Ok((quota, None)),
        number => {
            let number = number
                .parse()
                .map_err(|_| format!("{number:?} is neither `none` nor a number from 0 to {}", u32::MAX))?;
            Ok((quota, Some(number)))
        }
    }
}

pub(super) async fn execute(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Get(arguments) => get(arguments).await,
        Command::Set(arguments) => set(arguments).await,
    }
}

async fn get(arguments: Get) -> anyhow::Result<()> {
    let client = arguments.connect.client(arguments.scope.default_key())?;
    let sheet = match &arguments.scope.tenant {
        Some(name) => client.tenant(name).await.map(sheet_of),
        None => client.quotas().await,
    };
    show_sheet(&sheet.map_err(|error| explain(&client, &error))?, arguments.output)
}

async fn set(arguments: Set) -> anyhow::Result<()> {
    let client = arguments.connect.client(arguments.scope.default_key())?;
    let settings = arguments.settings.into_iter().collect();
    let sheet = match &arguments.scope.tenant {
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
    QuotaSheet { quotas: tenant.quotas, ceilings: tenant.ceilings, usage: tenant.usage }
}

impl OptionalTenant {
    fn default_key(&self) -> DefaultKey {
        match self.tenant {
            Some(_) => DefaultKey::Operator,
            None => DefaultKey::Admin,
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
    let used = |quota: &Quota| match quota {
        Quota::PendingMax => sheet.usage.active.to_string(),
        Quota::StoredMibMax => sheet.usage.stored_bytes.div_ceil(1 << 20).to_string(),
        _ => String::new(),
    };
    let row = |(quota, value)| [word(quota), used(quota), number(Some(value)), number(sheet.ceilings.get(quota))];
    show::table(["quota", "used", "value", "ceiling"], &sheet.quotas.iter().map(row).collect::<Vec<_>>())
}
