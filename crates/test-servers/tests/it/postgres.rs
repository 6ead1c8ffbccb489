use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use test_servers::postgres::{Options, Postgres, shared};

#[test]
fn killed_server_keeps_its_rows_until_the_test_drops_it() {
    let postgres = Postgres::start().unwrap();
    let folder = postgres.folder().to_owned();
    postgres.sql("postgres", "create table kept (number int); insert into kept values (42)").unwrap();
    postgres.kill().unwrap();
    postgres.sql("postgres", "select 1").unwrap_err();
    postgres.restart().unwrap();
    assert_eq!(postgres.sql("postgres", "select number from kept").unwrap(), "42");
    postgres.stop().unwrap();
    postgres.restart().unwrap();
    assert_eq!(postgres.sql("postgres", "show fsync; show synchronous_commit").unwrap(), "on\non");
    postgres.pause().unwrap();
    drop(postgres);
    assert!(!folder.exists());
}

#[test]
fn table_exists_only_in_its_database_and_in_copies_of_it() {
    let postgres = shared();
    let one = postgres.create_database().unwrap();
    let other = postgres.create_database().unwrap();
    assert_ne!(one, other);
    let name = |url: &str| url.rsplit_once('/').unwrap().1.to_owned();
    postgres.sql(&name(&one), "create table only_here ()").unwrap();
    postgres.sql(&name(&other), "select from only_here").unwrap_err();
    let copy = postgres.copy_database(&name(&one)).unwrap();
    postgres.sql(&name(&copy), "select from only_here").unwrap();
}

#[test]
fn table_on_a_full_disk_does_not_affect_tables_on_other_disks() {
    let postgres = Postgres::start_with(Options { disk_bytes: Some(1 << 20), ..Options::default() }).unwrap();
    let disk = postgres.folder().join("disk").display().to_string();
    postgres.sql("postgres", &format!("create tablespace small location '{disk}'")).unwrap();
    let fill = "create table full_one tablespace small as select generate_series(1, 100000)";
    let error = postgres.sql("postgres", fill).unwrap_err();
    assert!(error.to_string().contains("No space left on device"), "{error}");
    postgres.sql("postgres", "create table elsewhere as select generate_series(1, 100000)").unwrap();
}

#[test]
fn server_with_tls_writes_its_root_certificate_to_a_file() {
    let postgres = Postgres::start_with(Options { tls: true, ..Options::default() }).unwrap();
    assert_eq!(postgres.sql("postgres", "show ssl").unwrap(), "on");
    assert!(std::fs::read_to_string(postgres.root_certificate()).unwrap().contains("BEGIN CERTIFICATE"));
}

/// Helper process, not a test. The test [`server_ends_after_the_process_that_started_it_is_killed`] kills it.
#[test]
fn helper_process_waits_until_the_test_kills_it() {
    let mut arguments = std::env::args();
    if !arguments.any(|argument| argument == "--nocapture") {
        return;
    }
    // The helper starts the server from a thread that ends before the process, as the threads of tests do.
    let folder = std::thread::scope(|scope| scope.spawn(|| shared().folder().to_owned()).join().unwrap());
    println!("folder={}", folder.display());
    // The channel never receives a message, so the helper waits until the test kills this process.
    let (_sender, receiver) = mpsc::channel::<()>();
    receiver.recv_timeout(Duration::from_secs(60)).unwrap_err();
}

#[test]
#[expect(
    clippy::disallowed_methods,
    reason = "a process is not notified of the end of a process that is not its child"
)]
fn server_ends_after_the_process_that_started_it_is_killed() {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "postgres::helper_process_waits_until_the_test_kills_it", "--nocapture"]);
    let mut process = command.stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(process.stdout.take().unwrap()).lines();
    let folder = lines.map(Result::unwrap).find_map(|line| Some(line.split_once("folder=")?.1.to_owned())).unwrap();
    let first_line = std::fs::read_to_string(Path::new(&folder).join("data/postmaster.pid")).unwrap();
    let server = Path::new("/proc").join(first_line.lines().next().unwrap());
    assert!(server.join("status").exists());
    process.kill().unwrap();
    process.wait().unwrap();
    let is_gone = || !Path::new(&folder).exists() && !server.exists();
    for _ in 0..1500 {
        if is_gone() {
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    panic!("the server in {folder} still exists 30 s after its process was killed");
}
