//! `reveille secret`: what a tenant's callbacks are signed with.

use clap::{Args, Subcommand};
use cli_support::console;
use reveille_client::api::SigningSecretList;

use super::connect::As;
use super::explain::explain;
use super::key::Whose;
use super::show;

#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Make a second secret, printed this once; callbacks are signed with both until one is deleted
    Create(Whose),
    /// List what callbacks are signed with, without what is secret
    List(Whose),
    /// Delete a secret, once no receiver needs it
    Delete(Delete),
}

#[derive(Args, Debug)]
pub(crate) struct Delete {
    /// As `reveille secret list` has it
    id: String,
    #[command(flatten)]
    whose: Whose,
}

pub(super) async fn obey(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Create(arguments) => create(arguments).await,
        Command::List(arguments) => list(arguments).await,
        Command::Delete(arguments) => delete(arguments).await,
    }
}

async fn create(arguments: Whose) -> anyhow::Result<()> {
    let client = arguments.connect.client(As::Operator)?;
    let made = client.create_signing_secret(&arguments.of.tenant).await;
    let made = made.map_err(|error| explain(&client, &error))?;
    if arguments.output.json {
        return show::json(&made);
    }
    show::fields(&[
        ("id", Some(made.signing_secret.id)),
        ("secret", Some(made.secret.0)),
        ("", Some("it is told this once: give it to the receivers, then delete the older one".to_owned())),
    ])
}

async fn list(arguments: Whose) -> anyhow::Result<()> {
    let client = arguments.connect.client(As::Operator)?;
    let signing_secrets = client.signing_secrets(&arguments.of.tenant).await;
    let signing_secrets = signing_secrets.map_err(|error| explain(&client, &error))?;
    if arguments.output.json {
        return show::json(&SigningSecretList { signing_secrets });
    }
    let rows: Vec<_> = signing_secrets.into_iter().map(|secret| [secret.id, secret.created_at.to_string()]).collect();
    show::table(["secret", "created"], &rows)
}

async fn delete(arguments: Delete) -> anyhow::Result<()> {
    let Whose { of, output, connect } = arguments.whose;
    let client = connect.client(As::Operator)?;
    let deleted = client.delete_signing_secret(&of.tenant, &arguments.id).await;
    let deleted = deleted.map_err(|error| explain(&client, &error))?;
    match output.json {
        true => show::json(&deleted),
        false => Ok(console::line(&format!("{} is deleted", deleted.id))?),
    }
}
