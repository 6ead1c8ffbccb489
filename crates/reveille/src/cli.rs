//! Commands that act as clients of a server. They manage schedules, runs, tenants, keys, signing secrets and quotas.
//!
//! The commands use only the SDK, except `schedule preview`, which calls the server's check of schedules and needs no
//! server. They open no store. From a data folder, they read only the address and the keys that
//! `serve` writes there. With `--json`, they print the JSON of the API. Otherwise they print tables and lines for
//! people, and escape the control characters in text that other users wrote. They print progress to standard error, and
//! only if standard error is a terminal.
//!
//! Invariants: every error names the next step. Only the command that creates a key prints the key.
//!
//! docs/decisions/0121-put-client-commands-in-the-same-binary.md gives the reasons for the design.

mod audit;
mod connect;
mod explain;
mod key;
mod quota;
mod report;
mod run;
mod schedule;
mod secret;
pub(crate) mod show;
mod tenant;

use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::{Args, CommandFactory, Subcommand};
use clap_complete::Shell;
use cli_support::console;
use runtime::Runtime;

/// Option for the format of a command's result.
#[derive(Args, Clone, Copy, Debug)]
struct Output {
    /// Print the result as the JSON of the API
    #[arg(long)]
    json: bool,
}

#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Create, preview, show, change and cancel schedules
    #[command(subcommand)]
    Schedule(schedule::Command),
    /// Show and list runs, and run those again that failed after their last attempt (dead letters)
    #[command(subcommand)]
    Run(run::Command),
    /// Count the runs that have ended, by state, label, host or hour, with percentiles of lateness and duration
    #[command(
        after_help = "Examples:\n  reveille report --last 24h --by host\n  reveille report --from 2026-11-01T00:00:00Z --to \
                      2026-12-01T00:00:00Z --by label --format csv\n  reveille report --last 7d --by hour --plot runs.svg"
    )]
    Report(report::Command),
    /// Create and show tenants; requires an operator's key
    #[command(subcommand)]
    Tenant(tenant::Command),
    /// Create, list and revoke a tenant's keys
    #[command(subcommand)]
    Key(key::Command),
    /// Create, list and delete the secrets that sign a tenant's callbacks
    #[command(subcommand)]
    Secret(secret::Command),
    /// Show and set a tenant's quotas
    #[command(subcommand)]
    Quota(quota::Command),
    /// Show the differences between the timings of schedules and the stored outcomes; exits with 1 if there are any
    Audit(audit::Arguments),
    /// Print the completion script for a shell
    Completions {
        /// Shell of the completion script
        shell: Shell,
    },
    /// Write the man pages, one for each command
    Man {
        /// Folder of the pages; the command creates the folder if it does not exist
        #[arg(long, value_name = "FOLDER")]
        to: PathBuf,
    },
}

pub(crate) async fn execute<C: CommandFactory>(runtime: &Runtime, command: Command) -> anyhow::Result<()> {
    match command {
        Command::Schedule(command) => Box::pin(schedule::execute(runtime, command)).await,
        Command::Run(command) => Box::pin(run::execute(runtime, command)).await,
        Command::Report(command) => Box::pin(report::execute(runtime, command)).await,
        Command::Tenant(command) => Box::pin(tenant::execute(command)).await,
        Command::Key(command) => Box::pin(key::execute(runtime, command)).await,
        Command::Secret(command) => Box::pin(secret::execute(command)).await,
        Command::Quota(command) => Box::pin(quota::execute(command)).await,
        Command::Audit(arguments) => audit::audit(runtime, arguments).await,
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut visible(&C::command()), "reveille", &mut script);
            Ok(console::line(String::from_utf8_lossy(&script).trim_end())?)
        }
        Command::Man { to } => write_man_pages(C::command(), &to),
    }
}

/// Writes one man page for each command that is not hidden. The pages leave out hidden options.
fn write_man_pages(command: clap::Command, folder: &Path) -> anyhow::Result<()> {
    let mut command = command.disable_help_subcommand(true);
    command.build();
    let write = || {
        std::fs::create_dir_all(folder)?;
        write_man_page(&command, folder)
    };
    write().with_context(|| format!("cannot write man pages to {}", folder.display()))
}

fn write_man_page(command: &clap::Command, folder: &Path) -> std::io::Result<()> {
    for subcommand in command.get_subcommands().filter(|subcommand| !subcommand.is_hide_set()) {
        write_man_page(subcommand, folder)?;
    }
    let source = concat!("Reveille ", env!("CARGO_PKG_VERSION"));
    let page = clap_mangen::Man::new(command.clone()).source(source).manual("Reveille manual");
    let mut text = Vec::new();
    page.render(&mut text)?;
    // The library calls the text after the options `EXTRA`. All these texts are examples.
    let text = String::from_utf8_lossy(&text).replace(".SH EXTRA\nExamples:\n", ".SH EXAMPLES\n");
    std::fs::write(folder.join(page.get_filename()), text)
}

/// Returns the command without hidden options and subcommands. Otherwise a completion script would offer them.
fn visible(command: &clap::Command) -> clap::Command {
    let options: Vec<_> = command.get_arguments().filter(|option| !option.is_hide_set()).cloned().collect();
    let is_shown = |id: &clap::Id| options.iter().any(|option| option.get_id() == id);
    // Options refer to option groups by name, so the result contains an option group even if all its options are
    // hidden.
    let groups: Vec<_> = command
        .get_groups()
        .map(|group| clap::ArgGroup::new(group.get_id().clone()).args(group.get_args().filter(|id| is_shown(id))))
        .collect();
    let subcommands = command.get_subcommands().filter(|subcommand| !subcommand.is_hide_set()).map(visible);
    let name = command.get_name().to_owned();
    let shown = clap::Command::new(name).groups(groups).args(options).subcommands(subcommands);
    match command.get_about() {
        Some(about) => shown.about(about.clone()),
        None => shown,
    }
}
