//! The commands that are clients of a server: schedules, runs, tenants, keys, signing secrets and quotas.
//!
//! They go through the SDK and know nothing that it does not: no store, no data folder but for the address and the keys that
//! `serve` leaves there. With `--json` they print the API's JSON; otherwise tables and lines for people, in which nothing that
//! others wrote can drive a terminal. Progress goes to standard error, and only where that is a terminal.
//!
//! Always true here: an error says what to do next, and no key is printed but one that was just made.

mod connect;
mod explain;
mod key;
mod quota;
mod run;
mod schedule;
mod secret;
pub(crate) mod show;
mod tenant;

use clap::{Args, CommandFactory, Subcommand};
use clap_complete::Shell;
use cli_support::console;
use runtime::Runtime;

/// How a command's result is told.
#[derive(Args, Clone, Copy, Debug)]
struct Output {
    /// Print the API's JSON
    #[arg(long)]
    json: bool,
}

#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Ask for callbacks, look at them, change and cancel them
    #[command(subcommand)]
    Schedule(schedule::Command),
    /// See what failed for good, and run it again
    #[command(subcommand)]
    Run(run::Command),
    /// Make tenants, and look at them; for operators
    #[command(subcommand)]
    Tenant(tenant::Command),
    /// Make, list and revoke a tenant's keys
    #[command(subcommand)]
    Key(key::Command),
    /// Make, list and delete what a tenant's callbacks are signed with
    #[command(subcommand)]
    Secret(secret::Command),
    /// Show and set what a tenant may use
    #[command(subcommand)]
    Quota(quota::Command),
    /// Print what a shell needs to complete these commands
    Completions {
        /// Which shell
        shell: Shell,
    },
}

pub(crate) async fn obey<C: CommandFactory>(runtime: &Runtime, command: Command) -> anyhow::Result<()> {
    match command {
        Command::Schedule(command) => Box::pin(schedule::obey(runtime, command)).await,
        Command::Run(command) => Box::pin(run::obey(runtime, command)).await,
        Command::Tenant(command) => Box::pin(tenant::obey(command)).await,
        Command::Key(command) => Box::pin(key::obey(runtime, command)).await,
        Command::Secret(command) => Box::pin(secret::obey(command)).await,
        Command::Quota(command) => Box::pin(quota::obey(command)).await,
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut C::command(), "reveille", &mut script);
            Ok(console::line(String::from_utf8_lossy(&script).trim_end())?)
        }
    }
}
