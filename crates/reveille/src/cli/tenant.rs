//! Commands `reveille tenant`, which create and show tenants and set their egress policies and their other settings.

use clap::{Args, Subcommand, ValueEnum};
use reveille_client::TryStreamExt as _;
use reveille_client::api::{AuditPage, Egress, EgressPatch, Tenant, TenantList, TenantPatch, TenantRequest};

use super::Output;
use super::connect::{Connect, DefaultKey};
use super::explain::explain;
use super::show;

#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Create a tenant, and print its first key and signing secret, which no later command can print
    Create(NameArguments),
    /// List all tenants
    List(List),
    /// Show a tenant
    Get(NameArguments),
    /// Set the addresses that a tenant's callbacks may reach in addition to public addresses; all other addresses are
    /// forbidden. Or set the topics that they may reach; without another option, the addresses then stay the same
    Egress(EgressArguments),
    /// Set whether a tenant's runs record the first 1,024 bytes of the body of each response; an admin of the tenant
    /// may run this command, too
    Excerpts(ExcerptArguments),
    /// List the changes to a tenant, with the time and the API key of each change
    Audit(NameArguments),
}

#[derive(Args, Debug)]
pub(crate) struct NameArguments {
    /// Name of the tenant
    name: String,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    connect: Connect,
}

#[derive(Args, Debug)]
pub(crate) struct EgressArguments {
    /// Name of the tenant
    name: String,
    /// Class of addresses to allow: loopback, private, link_local or shared
    #[arg(long, value_name = "CLASS")]
    allow: Vec<String>,
    /// Network to allow, such as 10.1.0.0/16
    #[arg(long, value_name = "NETWORK")]
    allow_network: Vec<String>,
    /// Allow only targets with the scheme https
    #[arg(long)]
    forbid_http: bool,
    /// Topic of the message bus to allow, or the beginning of names of topics with `*` at the end; may be repeated
    #[arg(long, value_name = "PATTERN")]
    allow_topic: Vec<String>,
    /// Allow no topic of the message bus
    #[arg(long, conflicts_with = "allow_topic")]
    no_topics: bool,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    connect: Connect,
}

#[derive(Args, Debug)]
pub(crate) struct ExcerptArguments {
    /// Name of the tenant
    name: String,
    /// Setting for further attempts; the runs keep the excerpts that they have
    #[arg(value_enum)]
    setting: Setting,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    connect: Connect,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Setting {
    On,
    Off,
}

#[derive(Args, Debug)]
pub(crate) struct List {
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    connect: Connect,
}

pub(super) async fn execute(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Create(arguments) => create(arguments).await,
        Command::List(arguments) => list(arguments).await,
        Command::Get(arguments) => get(arguments).await,
        Command::Egress(arguments) => set_egress(arguments).await,
        Command::Excerpts(arguments) => set_excerpts(arguments).await,
        Command::Audit(arguments) => audit(arguments).await,
    }
}

async fn create(arguments: NameArguments) -> anyhow::Result<()> {
    let client = arguments.connect.client(DefaultKey::Operator)?;
    let created = client.create_tenant(&TenantRequest::new(arguments.name)).await;
    let created = created.map_err(|error| explain(&client, &error))?;
    if arguments.output.json {
        return show::json(&created);
    }
    show::fields(&[
        ("tenant", Some(created.tenant.name)),
        ("admin's key", Some(created.key.secret.0)),
        ("signing secret", Some(created.signing_secret.secret.0)),
        ("", Some("the key and the secret are shown only now: store them safely".to_owned())),
    ])
}

async fn list(arguments: List) -> anyhow::Result<()> {
    let client = arguments.connect.client(DefaultKey::Operator)?;
    let tenants = client.tenants().await.map_err(|error| explain(&client, &error))?;
    if arguments.output.json {
        return show::json(&TenantList { tenants });
    }
    let row = |tenant: &Tenant| [tenant.name.clone(), tenant.keys.to_string(), tenant.version.to_string()];
    show::table(["tenant", "keys", "version"], &tenants.iter().map(row).collect::<Vec<_>>())
}

async fn get(arguments: NameArguments) -> anyhow::Result<()> {
    let client = arguments.connect.client(DefaultKey::Operator)?;
    let tenant = client.tenant(&arguments.name).await.map_err(|error| explain(&client, &error))?;
    show_tenant(tenant, arguments.output)
}

async fn set_egress(arguments: EgressArguments) -> anyhow::Result<()> {
    let client = arguments.connect.client(DefaultKey::Operator)?;
    let EgressArguments { allow, allow_network, forbid_http, allow_topic, no_topics, .. } = arguments;
    // The options for topics and the other options each replace their own part of the policy.
    let sets_topics = no_topics || !allow_topic.is_empty();
    let sets_addresses = !sets_topics || !allow.is_empty() || !allow_network.is_empty() || forbid_http;
    let egress = EgressPatch {
        allow: sets_addresses.then_some(allow),
        allow_networks: sets_addresses.then_some(allow_network),
        forbid_http: sets_addresses.then_some(forbid_http),
        allow_topics: sets_topics.then_some(allow_topic),
    };
    let patch = TenantPatch { egress: Some(egress), ..TenantPatch::default() };
    let tenant = client.update_tenant(&arguments.name, &patch).await.map_err(|error| explain(&client, &error))?;
    show_tenant(tenant, arguments.output)
}

async fn set_excerpts(arguments: ExcerptArguments) -> anyhow::Result<()> {
    let client = arguments.connect.client(DefaultKey::Operator)?;
    let patch = TenantPatch { excerpts: Some(arguments.setting == Setting::On), ..TenantPatch::default() };
    let tenant = client.update_tenant(&arguments.name, &patch).await.map_err(|error| explain(&client, &error))?;
    show_tenant(tenant, arguments.output)
}

fn show_tenant(tenant: Tenant, output: Output) -> anyhow::Result<()> {
    if output.json {
        return show::json(&tenant);
    }
    let Egress { allow, allow_networks, forbid_http, allow_topics } = tenant.egress;
    let mut egress = vec!["public".to_owned()];
    egress.extend(allow);
    egress.extend(allow_networks);
    let scheme = if forbid_http { "https only" } else { "http and https" };
    show::fields(&[
        ("tenant", Some(tenant.name)),
        ("keys", Some(tenant.keys.to_string())),
        ("version", Some(tenant.version.to_string())),
        ("callbacks to", Some(format!("{}; {scheme}", egress.join(" ")))),
        ("excerpts", Some(if tenant.excerpts { "on" } else { "off" }.to_owned())),
        ("topics", (!allow_topics.is_empty()).then(|| allow_topics.join(" "))),
        ("quotas", Some("`reveille quota get --tenant NAME` shows the quotas".to_owned())),
    ])
}

async fn audit(arguments: NameArguments) -> anyhow::Result<()> {
    let client = arguments.connect.client(DefaultKey::Operator)?;
    let entries: Result<Vec<_>, _> = client.audit(&arguments.name).try_collect().await;
    let entries = entries.map_err(|error| explain(&client, &error))?;
    if arguments.output.json {
        return show::json(&AuditPage { entries, next_page_token: None });
    }
    let rows: Vec<_> = entries
        .into_iter()
        .map(|entry| [entry.version.to_string(), entry.at.to_string(), entry.actor, entry.action, entry.subject])
        .collect();
    show::table(["version", "at", "actor", "action", "subject"], &rows)
}
