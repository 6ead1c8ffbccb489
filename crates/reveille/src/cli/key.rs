//! Commands `reveille key`, which create, list and revoke keys of a tenant.

use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use cli_support::console;
use domain::duration;
use reveille_client::api::KeyList;
use reveille_client::{Key, KeyRequest, Role, Time};
use runtime::Runtime;

use super::Output;
use super::connect::{Connect, DefaultKey};
use super::explain::explain;
use super::show::{self, or_dash, word};

#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Create a key and print it; no later command can print the key
    Create(Create),
    /// List a tenant's keys
    List(TenantArguments),
    /// Revoke a key
    Revoke(Revoke),
}

#[derive(Args, Debug)]
pub(crate) struct Create {
    /// Role of the key; each role includes the permissions of the roles that are listed before it
    #[arg(long, value_enum, default_value_t = RoleName::Writer)]
    role: RoleName,
    /// Name of the key in lists
    #[arg(long, default_value = "")]
    name: String,
    /// Lifetime of the key, such as 12h or 90d [default: unlimited]
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    expires_in: Option<Duration>,
    #[command(flatten)]
    common: TenantArguments,
}

/// Arguments that all commands for keys or secrets of a tenant share.
#[derive(Args, Debug)]
pub(crate) struct TenantArguments {
    #[command(flatten)]
    pub(super) scope: TenantScope,
    #[command(flatten)]
    pub(super) output: Output,
    #[command(flatten)]
    pub(super) connect: Connect,
}

#[derive(Args, Debug)]
pub(crate) struct Revoke {
    /// Id of the key: the part of the key before the dot
    id: String,
    #[command(flatten)]
    common: TenantArguments,
}

/// Option for the tenant to which a command applies.
#[derive(Args, Debug)]
pub(super) struct TenantScope {
    /// Tenant that owns the key or the secret
    #[arg(long, env = "REVEILLE_TENANT", default_value = "default", value_name = "NAME")]
    pub(super) tenant: String,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum RoleName {
    /// Read schedules and runs
    Reader,
    /// Create and change schedules
    Writer,
    /// Change the tenant's keys and secrets
    Admin,
    /// Create tenants; only for keys of the tenant `operator`
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

pub(super) async fn execute(runtime: &Runtime, command: Command) -> anyhow::Result<()> {
    match command {
        Command::Create(arguments) => create(runtime, arguments).await,
        Command::List(arguments) => list(arguments).await,
        Command::Revoke(arguments) => revoke(arguments).await,
    }
}

async fn create(runtime: &Runtime, arguments: Create) -> anyhow::Result<()> {
    let TenantArguments { scope, output, connect } = arguments.common;
    let client = connect.client(DefaultKey::Operator)?;
    let expires_at = arguments.expires_in.map(|after| Time((runtime.now() + after).as_millis()));
    let request = KeyRequest { role: arguments.role.into(), name: arguments.name, expires_at };
    let created = client.create_key(&scope.tenant, &request).await.map_err(|error| explain(&client, &error))?;
    if output.json {
        return show::json(&created);
    }
    show::fields(&[
        ("key", Some(created.secret.0)),
        ("role", Some(word(&created.key.role))),
        ("expires", Some(or_dash(created.key.expires_at))),
        ("", Some("the server does not show this key again: store it safely".to_owned())),
    ])
}

async fn list(arguments: TenantArguments) -> anyhow::Result<()> {
    let client = arguments.connect.client(DefaultKey::Operator)?;
    let keys = client.keys(&arguments.scope.tenant).await.map_err(|error| explain(&client, &error))?;
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
    let TenantArguments { scope, output, connect } = arguments.common;
    let client = connect.client(DefaultKey::Operator)?;
    let revoked = client.revoke_key(&scope.tenant, &arguments.id).await;
    let revoked = revoked.map_err(|error| explain(&client, &error))?;
    match output.json {
        true => show::json(&revoked),
        false => {
            Ok(console::line(&format!("the key {} is revoked; other members reject it within seconds", revoked.id))?)
        }
    }
}
