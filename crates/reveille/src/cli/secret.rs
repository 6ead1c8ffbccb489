//! Commands `reveille secret`, which create, list and delete the secrets that sign a tenant's callbacks.

use clap::{Args, Subcommand};
use cli_support::console;
use reveille_client::api::SigningSecretList;

use super::connect::DefaultKey;
use super::explain::explain;
use super::key::TenantArguments;
use super::show;

#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Create a second secret and print it once; the server signs callbacks with both secrets until you delete one
    Create(TenantArguments),
    /// List the ids of the secrets, without their values
    List(TenantArguments),
    /// Delete a secret that no receiver uses any more
    Delete(Delete),
}

#[derive(Args, Debug)]
pub(crate) struct Delete {
    /// Id of the secret, as `reveille secret list` shows it
    id: String,
    #[command(flatten)]
    common: TenantArguments,
}

pub(super) async fn execute(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Create(arguments) => create(arguments).await,
        Command::List(arguments) => list(arguments).await,
        Command::Delete(arguments) => delete(arguments).await,
    }
}

async fn create(arguments: TenantArguments) -> anyhow::Result<()> {
    let client = arguments.connect.client(DefaultKey::Operator)?;
    let created = client.create_signing_secret(&arguments.scope.tenant).await;
    let created = created.map_err(|error| explain(&client, &error))?;
    if arguments.output.json {
        return show::json(&created);
    }
    let hint = "the secret is shown only now: configure it in all receivers, then delete the older secret";
    show::fields(&[
        ("id", Some(created.signing_secret.id)),
        ("secret", Some(created.secret.0)),
        ("", Some(hint.to_owned())),
    ])
}

async fn list(arguments: TenantArguments) -> anyhow::Result<()> {
    let client = arguments.connect.client(DefaultKey::Operator)?;
    let signing_secrets = client.signing_secrets(&arguments.scope.tenant).await;
    let signing_secrets = signing_secrets.map_err(|error| explain(&client, &error))?;
    if arguments.output.json {
        return show::json(&SigningSecretList { signing_secrets });
    }
    let rows: Vec<_> = signing_secrets.into_iter().map(|secret| [secret.id, secret.created_at.to_string()]).collect();
    show::table(["secret", "created"], &rows)
}

async fn delete(arguments: Delete) -> anyhow::Result<()> {
    let TenantArguments { scope, output, connect } = arguments.common;
    let client = connect.client(DefaultKey::Operator)?;
    let deleted = client.delete_signing_secret(&scope.tenant, &arguments.id).await;
    let deleted = deleted.map_err(|error| explain(&client, &error))?;
    match output.json {
        true => show::json(&deleted),
        false => Ok(console::line(&format!("{} is deleted", deleted.id))?),
    }
}
