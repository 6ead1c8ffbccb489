//! Binary of Reveille. It reads the configuration, connects the parts of the service, and contains the operator's
//! tools.
//!
//! This is the only crate that depends on concrete storage engines.

mod admin;
mod authority;
#[cfg(feature = "bench")]
mod bench_store;
#[cfg(feature = "kafka")]
mod bus_commands;
mod cli;
mod cluster;
mod configuration;
mod control;
mod data_folder;
mod demo;
mod descriptors;
mod engine;
mod header_binding;
mod identity;
mod inbox;
mod logs;
mod maintenance;
mod message_bus;
mod otlp;
mod privacy;
mod progress;
mod receiver;
mod recipes;
mod serve;
mod server_url;
mod service;
mod stop;
mod store_key;
mod tls;
mod transfer;
mod tuning;

use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::{Parser, Subcommand};
use cli_support::console;
use runtime::Runtime;

use cli::show::escaped_lines;
use logs::LogArguments;
use otlp::Exporter;

/// Memory allocator of the process. docs/decisions/0081 gives the reason for this allocator.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Scheduler that calls services back on time
#[derive(Parser, Debug)]
#[command(name = "reveille", version, about)]
struct Arguments {
    /// Kill this process when its parent process ends; used for the child processes of `bench`
    #[arg(long, global = true, hide = true)]
    ends_with_parent: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Run the service, with its data on the local disk or in a database that several members share
    Serve(Box<serve::ServeArguments>),
    /// Run a short demonstration with a server, a receiver and some schedules; it needs no setup
    Demo {
        /// Duration of the demonstration in seconds [1 to 3600]
        #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u64).range(1..=3_600))]
        seconds: u64,
    },
    #[command(flatten)]
    Client(cli::Command),
    #[command(flatten)]
    Recipes(recipes::Command),
    /// Show and change a message bus: its topics, records, groups and failing records
    #[cfg(feature = "kafka")]
    #[command(subcommand)]
    Bus(bus_commands::Command),
    /// Print each callback that arrives
    Receiver(receiver::ReceiverArguments),
    /// Manage the database that holds a cluster's data
    #[command(subcommand)]
    Store(admin::StoreCommand),
    /// Show the state of a cluster
    #[command(subcommand)]
    Cluster(admin::ClusterCommand),
    /// Copy a data folder to a database, so that a cluster can continue with the data
    Export(transfer::TransferArguments),
    /// Copy a database to a data folder, so that a single process can continue with the data
    Import(transfer::TransferArguments),
    /// Copy the data of a server to a backup folder; the server may be running
    Backup(maintenance::BackupArguments),
    /// Create a data folder from a backup
    Restore(maintenance::RestoreArguments),
    /// Verify all data of a store against its checksums
    Check(maintenance::CheckArguments),
    /// Measure the limits of this machine and the performance of Reveille on it
    #[cfg(feature = "bench")]
    #[command(subcommand)]
    Bench(bench::Command),
}

impl Command {
    /// Returns true if the command writes data, keys or backups. Other users have access to the files of the other
    /// commands, for example to man pages, if the umask permits it.
    fn writes_data(&self) -> bool {
        match self {
            Command::Serve(_)
            | Command::Demo { .. }
            | Command::Store(_)
            | Command::Export(_)
            | Command::Import(_)
            | Command::Backup(_)
            | Command::Restore(_)
            | Command::Check(_) => true,
            Command::Client(_) | Command::Recipes(_) | Command::Receiver(_) | Command::Cluster(_) => false,
            #[cfg(feature = "kafka")]
            Command::Bus(_) => false,
            #[cfg(feature = "bench")]
            Command::Bench(_) => false,
        }
    }
}

fn main() -> ExitCode {
    let configuration = match configuration::load(std::env::args_os().collect()) {
        Ok(configuration) => configuration,
        Err(error) => return fail(&error, 2),
    };
    if let Some(shown) = configuration.shown {
        return match console::line(shown.trim_end()) {
            Ok(()) => ExitCode::SUCCESS,
            Err(_) => ExitCode::FAILURE,
        };
    }
    match start(configuration.arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&error, 1),
    }
}

fn fail(error: &anyhow::Error, code: u8) -> ExitCode {
    // A person reads this error, so the process does not write it as a log event. If standard error is closed, the text
    // is lost.
    let _unwritten = writeln!(io::stderr(), "reveille: {}", error_text(error));
    ExitCode::from(code)
}

/// Returns the text of an error and its causes. Escapes control characters except line ends and tabs, because names and
/// responses in the text come from other users and could contain terminal commands.
fn error_text(error: &anyhow::Error) -> String {
    escaped_lines(&format!("{error:#}"))
}

fn start(arguments: Arguments) -> anyhow::Result<()> {
    if arguments.ends_with_parent {
        let signal = Some(rustix::process::Signal::KILL);
        rustix::process::set_parent_process_death_signal(signal)
            .context("cannot configure this process to end when its parent process ends")?;
    }
    if arguments.command.writes_data() {
        privacy::restrict_new_files();
    }
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.enable_all();
    if let Command::Serve(serve) = &arguments.command {
        if !serve.debuggable {
            privacy::keep_memory()?;
        }
        if let Some(threads) = serve.threads {
            builder.worker_threads(usize::from(threads));
        }
    }
    let tokio = builder.build().context("cannot start the worker threads that run tasks")?;
    tokio.block_on(execute(arguments.command))
}

async fn execute(command: Command) -> anyhow::Result<()> {
    let runtime = Runtime::real();
    let logs = match &command {
        Command::Serve(arguments) => arguments.logs.clone(),
        _ => LogArguments::default(),
    };
    let is_server = matches!(command, Command::Serve(_));
    let exporting = logs::begin(&runtime, &logs, is_server).map(Exporter::start);
    let done = run(&runtime, command).await;
    if let Some(exporting) = exporting {
        exporting.stop().await;
    }
    done
}

async fn run(runtime: &Runtime, command: Command) -> anyhow::Result<()> {
    match command {
        Command::Serve(arguments) => serve::serve(runtime, &arguments).await,
        Command::Demo { seconds } => demo::run(runtime, Duration::from_secs(seconds)).await,
        Command::Client(command) => cli::execute::<Arguments>(runtime, command).await,
        Command::Recipes(command) => Box::pin(recipes::execute(runtime, command)).await,
        #[cfg(feature = "kafka")]
        Command::Bus(command) => Box::pin(bus_commands::execute(runtime, command)).await,
        Command::Receiver(arguments) => receiver::print(runtime, &arguments).await,
        Command::Store(command) => admin::store(runtime, &command).await,
        Command::Cluster(command) => admin::cluster(runtime, &command).await,
        Command::Export(arguments) => transfer::export(runtime, &arguments).await,
        Command::Import(arguments) => transfer::import(runtime, &arguments).await,
        Command::Backup(arguments) => maintenance::backup(runtime, &arguments).await,
        Command::Restore(arguments) => maintenance::restore(runtime, &arguments).await,
        Command::Check(arguments) => maintenance::check(runtime, &arguments).await,
        #[cfg(feature = "bench")]
        Command::Bench(bench::Command::LoadRuns(arguments)) => bench_store::load_runs(runtime, &arguments).await,
        #[cfg(feature = "bench")]
        Command::Bench(command) => {
            // Some benchmarks open thousands of connections, so the process needs a high limit of open files.
            descriptors::raise_limit();
            bench::run(runtime, command, store_postgres::Options::default().creator_connections).await
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn error_text_escapes_control_characters() {
        let error = anyhow::anyhow!("cause \u{1b}[2J").context("line 1\n\tline 2\r");
        assert_eq!(super::error_text(&error), "line 1\n\tline 2\\r: cause \\u{1b}[2J");
    }
}
