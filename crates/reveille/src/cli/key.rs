//! `reveille key`.

use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use cli_support::console;
use domain::duration;
use reveille_client::api::KeyList;
use reveille_client::{Key, KeyRequest, Role, Time};
use runtime::Runtime;

use super::Output;
use super::connect::{As, Connect};
use super::explain::explain;
use super::show::{self, or_dash, word};

#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Make a key; it is printed, this once
    Create(Create),
    /// List a tenant's keys
    List(Whose),
    /// Revoke a key
    Revoke(Revoke),
}

#[derive(Args, Debug)]
pub(crate) struct Create {
    /// What it may do, and what those before it may
    #[arg(long, value_enum, default_value_t = RoleName::Writer)]
    role: RoleName,
    /// What you call it
    #[arg(long, default_value = "")]
    name: String,
    /// It ends after a while: 12h, 90d [default: never]
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    expires_in: Option<Duration>,
    #[command(flatten)]
    whose: Whose,
}

/// What every command about something of a tenant's takes.
#[derive(Args, Debug)]
pub(crate) struct Whose {
    #[command(flatten)]
    pub(super) of: Of,
    #[command(flatten)]
    pub(super) output: Output,
    #[command(flatten)]
    pub(super) connect: Connect,
}

#[derive(Args, Debug)]
pub(crate) struct Revoke {
    /// The part of the key before its dot
    id: String,
    #[command(flatten)]
    whose: Whose,
}

/// Whose it is.
#[derive(Args, Debug)]
pub(super) struct Of {
    /// Whose
    #[arg(long, env = "REVEILLE_TENANT", default_value = "default", value_name = "NAME")]
    pub(super) tenant: String,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum RoleName {
    /// Reads schedules and runs
    Reader,
    /// Makes and changes schedules
    Writer,
    /// Changes the tenant's keys and secrets
    Admin,
    /// Makes tenants; of the tenant `operator` only
    Operator,
}

impl From<RoleName> for Role {
    fn from(name: RoleName) -> Role {
        match name {
            RoleName::Reader => Role::Reader,
            RoleName::Writer => Role::Writer,
            RoleName::Admin => Role::Admin,
            RoleName::Operator => Role::Operator,
        }
    }
}

pub(super) async fn obey(runtime: &Runtime, command: Command) -> anyhow::Result<()> {
    match command {
        Command::Create(arguments) => create(runtime, arguments).await,
        Command::List(arguments) => list(arguments).await,
        Command::Revoke(arguments) => revoke(arguments).await,
    }
}

async fn create(runtime: &Runtime, arguments: Create) -> anyhow::Result<()> {
    let Whose { of, output, connect } = arguments.whose;
    let client = connect.client(As::Operator)?;
    let expires_at = arguments.expires_in.map(|after| Time((runtime.now() + after).as_millis()));
    let request = KeyRequest { role: arguments.role.into(), name: arguments.name, expires_at };
    let made = client.create_key(&of.tenant, &request).await.map_err(|error| explain(&client, &error))?;
    if output.json {
        return show::json(&made);
    }
    show::fields(&[
        ("key", Some(made.secret.0)),
        ("role", Some(word(&made.key.role))),
        ("expires", Some(or_dash(made.key.expires_at))),
        ("", Some("it is told this once: keep it".to_owned())),
    ])
}

async fn list(arguments: Whose) -> anyhow::Result<()> {
    let client = arguments.connect.client(As::Operator)?;
    let keys = client.keys(&arguments.of.tenant).await.map_err(|error| explain(&client, &error))?;
    if arguments.output.json {
        return show::json(&KeyList { keys });
    }
    let row = |key: &Key| {
        let name = (!key.name.is_empty()).then_some(&key.name);
        let (created, expires) = (key.created_at.to_string(), or_dash(key.expires_at));
        [key.id.clone(), or_dash(name), word(&key.role), created, expires]
    };
    show::table(["key", "name", "role", "created", "expires"], &keys.iter().map(row).collect::<Vec<_>>())
}

async fn revoke(arguments: Revoke) -> anyhow::Result<()> {
    let Whose { of, output, connect } = arguments.whose;
    let client = connect.client(As::Operator)?;
    let revoked = client.revoke_key(&of.tenant, &arguments.id).await;
    let revoked = revoked.map_err(|error| explain(&client, &error))?;
    match output.json {
        true => show::json(&revoked),
        false => Ok(console::line(&format!("{} is revoked; other members know within seconds", revoked.id))?),
    }
}
