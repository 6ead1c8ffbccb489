//! `cargo xtask chaos`: a cluster of real processes under load, disturbed in every way that it promises to survive, and
//! judged from what its clients and an outside receiver wrote down.
//!
//! What it does not do: repeat a run exactly. The seed draws the faults and the requests; the machine decides the rest.

// A chore waits, reads a clock and starts threads: `runtime` is the door of what is tested.
#![expect(clippy::disallowed_methods, reason = "no part of the product; see above")]

mod build;
mod chance;
mod clients;
mod faults;
mod instant;
mod judge;
mod log;
mod member;
mod network;
mod plan;
mod receiver;

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use clap::{Args, ValueEnum};
use test_servers::postgres::{Options, Postgres};

use chance::Chance;
use clients::{Client, World, connect};
use faults::{Stage, wait_until};
use judge::{Records, judge};
use log::{Log, Place, Told};
use member::{Home, Member};
use network::Network;
use plan::{GUEST, MEMBERS, Plan};
use receiver::Receiver;

#[derive(Args, Debug)]
pub(crate) struct ChaosArguments {
    /// Minutes of load and faults
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=1_440))]
    minutes: u64,
    /// Draws the faults and the requests [default: from the clock; printed]
    #[arg(long)]
    seed: Option<u64>,
    /// Requests a second, of all clients together
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rate: u32,
    /// A binary that is built already, instead of this checkout's
    #[arg(long, conflicts_with = "mutant")]
    binary: Option<PathBuf>,
    /// Build with one deliberate bug, which the judge must find
    #[arg(long, value_enum)]
    mutant: Option<Mutant>,
    /// Keep the logs in this folder [default: only if a promise is broken, in a temporary one]
    #[arg(long)]
    keep: Option<PathBuf>,
    /// Judge the logs of this folder again, and run nothing
    #[arg(long)]
    judge: Option<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Mutant {
    /// The store takes an old owner's writes, and an owner goes on after the end of its lease
    Unfenced,
    /// An owner that lets go of shards does not tell what is in flight, nor wait for what is booked
    NoDrain,
}

const CLIENTS: u32 = 24;
/// A run that is shorter hurries: short faults, little calm, callbacks due soon.
const HURRY_MINUTES: u64 = 5;
/// How long what is owed may take to come when all is healed and the last instant has passed.
const SETTLE: Duration = Duration::from_secs(60);
/// What must not come is waited for so long.
const QUIET: Duration = Duration::from_secs(10);
/// Schedules whose runs are looked up after a run.
const QUESTIONS_MAX: usize = 2_000;
/// Members are healthy for so long before the first fault and after the last one.
const CALM: Duration = Duration::from_secs(5);

/// # Errors
/// If it cannot be run.
pub(crate) fn run(arguments: &ChaosArguments) -> anyhow::Result<ExitCode> {
    if let Some(folder) = &arguments.judge {
        return conclude(folder, &[]);
    }
    let seed = arguments.seed.unwrap_or_else(log::now_millis);
    let (minutes, rate) = (arguments.minutes, arguments.rate);
    eprintln!(
        "chaos: seed {seed}, {minutes} minutes, {rate} requests a second; again: --seed {seed} --minutes {minutes}"
    );
    let binary = match &arguments.binary {
        Some(binary) => binary.canonicalize().with_context(|| format!("there is no {}", binary.display()))?,
        None => build::build(arguments.mutant)?,
    };
    let temporary = tempfile::Builder::new().prefix("reveille-chaos-").tempdir()?;
    let folder = arguments.keep.clone().unwrap_or_else(|| temporary.path().to_owned());
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let folder = folder.canonicalize()?;
    // Members know the cluster of an earlier run by what they left there, and refuse another.
    let is_empty = std::fs::read_dir(&folder)?.next().is_none();
    ensure!(is_empty, "{} is not empty: keep the logs somewhere else, or judge those with --judge", folder.display());
    let failures = play(arguments, seed, binary, &folder)?;
    let code = conclude(&folder, &failures)?;
    if code != ExitCode::SUCCESS {
        let _kept = temporary.keep();
        eprintln!("the logs are in {}; judge them again with --judge", folder.display());
    }
    Ok(code)
}

/// Prints the verdict.
fn conclude(folder: &Path, failures: &[String]) -> anyhow::Result<ExitCode> {
    let records = Records::read(folder)?;
    ensure!(!records.stories.is_empty(), "nothing was asked for: there is nothing to judge");
    let verdict = judge(&records);
    let text = verdict.text(&records);
    std::fs::write(folder.join("verdict.txt"), &text)?;
    let mut output = std::io::stdout().lock();
    output.write_all(text.as_bytes())?;
    for failure in failures {
        writeln!(output, "failed: {failure}")?;
    }
    let is_good = verdict.is_good() && failures.is_empty();
    writeln!(output, "\n{}", if is_good { "every promise was kept" } else { "NOT every promise was kept" })?;
    Ok(if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs a cluster until all is over, and leaves its logs in `folder`; what went wrong beside the promises.
fn play(arguments: &ChaosArguments, seed: u64, binary: PathBuf, folder: &Path) -> anyhow::Result<Vec<String>> {
    let mut chance = Chance::new(seed);
    let hurry = arguments.minutes < HURRY_MINUTES;
    let names: Vec<&'static str> = MEMBERS.into_iter().chain([GUEST]).collect();
    let network = Network::make(&names)?;
    let (postgres, url, reached) = database(&network)?;
    let key = member::migrate(&binary, &url, folder)?;
    let callbacks = Log::create(&folder.join(log::CALLBACKS))?;
    let receiver = Receiver::start(network.receiver(), callbacks, chance.fork())?;
    let world = Arc::new(World {
        log: Log::create(&folder.join(log::REQUESTS))?,
        key,
        target: format!("http://{}/", receiver.address),
        members: Mutex::default(),
        ahead_ms: if hurry { 15_000 } else { 60_000 },
        is_over: AtomicBool::new(false),
        requests: AtomicU64::new(0),
        unknown: AtomicU64::new(0),
    });
    let home = Arc::new(Home { binary, folder: folder.to_owned(), database: reached, network });
    let members: Vec<Member> =
        names.into_iter().enumerate().map(|(place, name)| Member::new(&home, name, place)).collect();
    let stage = Stage {
        postgres,
        members,
        world: world.clone(),
        log: Log::create(&folder.join(log::FAULTS))?,
        began: Instant::now(),
        count: AtomicUsize::new(0),
        failures: Mutex::default(),
    };
    for member in &stage.members[..MEMBERS.len()] {
        member.start()?;
        stage.show(member);
    }
    let clients = start_clients(&world, arguments.rate, &mut chance);
    disturb(&stage, &mut Plan::new(chance.fork(), hurry), 60 * arguments.minutes, &receiver);
    world.is_over.store(true, Ordering::Relaxed);
    for client in clients {
        ensure!(client.join().is_ok(), "a client panicked");
    }
    settle(&stage, folder, &receiver)?;
    ask_for_runs(&stage, folder)?;
    places(&stage.postgres, &url, folder)?;
    for member in &stage.members[..MEMBERS.len()] {
        member.stop()?;
    }
    let mut failures = stage.failures.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let (strange, first) = receiver.strange();
    if strange > 0 {
        failures
            .push(format!("{strange} callbacks were not what was asked for; the first: {}", first.unwrap_or_default()));
    }
    Ok(failures)
}

/// PostgreSQL, the URL of its database from here, and the one by which members reach it.
fn database(network: &Network) -> anyhow::Result<(Postgres, String, String)> {
    let address = network.database();
    let settings = vec![("listen_addresses".to_owned(), format!("127.0.0.1,{address}"))];
    let postgres = Postgres::start_with(Options { settings, ..Options::default() })?;
    let rules = postgres.folder().join("data/pg_hba.conf");
    let mut rules = std::fs::File::options().append(true).open(rules)?;
    writeln!(rules, "host all all {} scram-sha-256", network.range())?;
    postgres.restart()?;
    let url = postgres.create_database()?;
    let reached = url.replace("@127.0.0.1:", &format!("@{address}:"));
    Ok((postgres, url, reached))
}

fn start_clients(world: &Arc<World>, rate: u32, chance: &mut Chance) -> Vec<thread::JoinHandle<()>> {
    let per_second = f64::from(rate) / f64::from(CLIENTS);
    let start = |number| {
        let client = Client::new(world, number, chance.fork());
        thread::spawn(move || client.run(per_second))
    };
    (0..CLIENTS as usize).map(start).collect()
}

/// Faults for so long; meanwhile it is told how things go.
fn disturb(stage: &Stage, plan: &mut Plan, seconds: u64, receiver: &Receiver) {
    let end = stage.began + Duration::from_secs(seconds);
    let is_done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !wait_until(Duration::from_secs(30), || is_done.load(Ordering::Relaxed)) {
                let at = stage.began.elapsed().as_secs_f64();
                let (requests, unknown) = (&stage.world.requests, &stage.world.unknown);
                let (requests, unknown) = (requests.load(Ordering::Relaxed), unknown.load(Ordering::Relaxed));
                let callbacks = receiver.count();
                eprintln!("{at:7.1} s  {requests} requests, {unknown} of them not answered; {callbacks} callbacks");
            }
        });
        thread::sleep(CALM);
        stage.run(plan, end - CALM);
        thread::sleep(end.saturating_duration_since(Instant::now()).max(CALM));
        is_done.store(true, Ordering::Relaxed);
    });
}

/// Waits for all that is owed, and then for what must not come.
fn settle(stage: &Stage, folder: &Path, receiver: &Receiver) -> anyhow::Result<()> {
    eprintln!(
        "{:7.1} s  the last request was answered; what is due is waited for",
        stage.began.elapsed().as_secs_f64()
    );
    thread::sleep(Duration::from_millis(stage.world.ahead_ms));
    let deadline = Instant::now() + SETTLE;
    while Records::read(folder)?.lost() > 0 && Instant::now() < deadline {
        thread::sleep(Duration::from_secs(2));
    }
    let mut count = receiver.count();
    let mut since = Instant::now();
    wait_until(SETTLE, || {
        if receiver.count() != count {
            (count, since) = (receiver.count(), Instant::now());
        }
        since.elapsed() >= QUIET
    });
    stage.look_at_members();
    Ok(())
}

/// What the service says of schedules that the logs leave open.
fn ask_for_runs(stage: &Stage, folder: &Path) -> anyhow::Result<()> {
    let log = Log::create(&folder.join(log::RUNS))?;
    let questions = Records::read(folder)?.questions();
    let mut connection = connect(stage.members[0].address())?;
    for (token, id) in questions.into_iter().take(QUESTIONS_MAX) {
        let path = format!("/v1/schedules/{id}/runs?limit=1000");
        let answer = connection.exchange(&stage.world.request("GET", &path, ""))?.json();
        for run in answer["runs"].as_array().into_iter().flatten() {
            let instant_of = |name: &str| instant::parse(run[name].as_str()?);
            log.write(&Told {
                token: token.clone(),
                id: id.clone(),
                state: run["state"].as_str().unwrap_or("?").to_owned(),
                nominal_ms: instant_of("scheduled_at").unwrap_or(0),
                missed_last_ms: instant_of("missed_last"),
                attempts: run["attempts"].as_array().map_or(0, Vec::len),
            });
        }
    }
    Ok(())
}

/// The poller of each schedule, as its row has it; the row's payload has its token.
fn places(postgres: &Postgres, url: &str, folder: &Path) -> anyhow::Result<()> {
    let database = url.rsplit('/').next().context("a URL ends with the database's name")?;
    let select = r#"select substring(encode(spec, 'escape') from '"token":"([^"]*)"'), poller from reveille.schedule"#;
    let rows = postgres.sql(database, select)?;
    let log = Log::create(&folder.join(log::PLACES))?;
    let mut pollers: BTreeMap<&str, i64> = BTreeMap::new();
    for row in rows.lines() {
        let (token, poller) = row.split_once('|').with_context(|| format!("a row without a poller: {row}"))?;
        pollers.insert(token, poller.parse()?);
    }
    ensure!(!pollers.is_empty(), "the store has no schedules");
    for (token, poller) in pollers {
        log.write(&Place { token: token.to_owned(), poller });
    }
    Ok(())
}
