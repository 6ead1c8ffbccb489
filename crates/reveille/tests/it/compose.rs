//! Tests of `deploy/compose.yaml`, which the parser of `docker compose` reads for these tests (tools/compose). No test
//! starts a container engine. Instead, a test runs the commands of the services as the users that the file and the image
//! name, with new volumes, in mount namespaces of their own. These commands need root.
//!
//! docs/decisions/0087-check-deployment-files-with-standard-tools.md gives the reasons for the design.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use test_servers::postgres::Postgres;
use test_servers::{go, python};

use crate::client::one_shot;
use crate::now_millis;
use crate::server::{BINARY, Server};

const CONTAINERFILE: &str = include_str!("../../../../deploy/Containerfile");
/// Services that run the image of `deploy/Containerfile`.
const OWN: [&str; 4] = ["migrate", "a", "b", "c"];

/// Files that the build of the image needs, and files of a checkout that may contain secrets.
const NEEDED: [&str; 4] =
    ["Cargo.lock", "crates/reveille/src/main.rs", "crates/reveille/Cargo.toml", "xtask/Cargo.toml"];
const PRIVATE: [&str; 7] = [
    "deploy/db_password",
    "deploy/password",
    ".env",
    ".git/config",
    "data/store.key",
    "store.key",
    "target/debug/reveille",
];

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Returns the output of tools/compose: the parsed project, and the paths that are not in the build context.
fn parsed() -> Value {
    let root = repository();
    let programs = python::environment("go", &root.join("tools/go/requirements.txt")).unwrap();
    let mut command = go::command(&programs).unwrap();
    command.args(["run", ".", "../../deploy/compose.yaml"]).args(NEEDED).args(PRIVATE);
    let output = command.current_dir(root.join("tools/compose")).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn texts(list: &Value) -> impl Iterator<Item = &str> {
    list.as_array().into_iter().flatten().filter_map(Value::as_str)
}

/// Returns whether `service` starts only after `condition` holds for the service `first`.
fn waits(services: &Value, service: &str, first: &str, condition: &str) -> bool {
    services[service]["depends_on"][first]["condition"] == condition
}

#[test]
fn compose_file_contains_no_password_and_needs_no_other_file() {
    let parsed = parsed();
    assert_eq!(texts(&parsed["excluded"]).collect::<Vec<_>>(), PRIVATE, "the build context contains no private file");
    let project = &parsed["project"];
    assert!(project["secrets"].is_null() && project["configs"].is_null(), "the project needs no file of the checkout");
    let services = &project["services"];
    for (name, service) in services.as_object().unwrap() {
        assert!(service["env_file"].is_null() && service["build"]["args"].is_null(), "{name}");
        for (variable, value) in service["environment"].as_object().into_iter().flatten() {
            let value = value.as_str().unwrap();
            let has_password = value.split_once("://").is_some_and(|(_, rest)| rest.contains(':'));
            assert!(!has_password && (!variable.ends_with("PASSWORD")), "{name} has {variable}={value}");
        }
        for volume in service["volumes"].as_array().unwrap() {
            assert_eq!(volume["type"], "volume", "{name} uses only named volumes");
            let source = volume["source"].as_str().unwrap();
            assert!(project["volumes"][source].is_object(), "{source}");
        }
    }
    assert!(waits(services, "db", "prepare", "service_completed_successfully"));
    assert!(waits(services, "migrate", "db", "service_healthy"));
    for member in ["a", "b", "c"] {
        assert!(waits(services, member, "migrate", "service_completed_successfully"), "{member}");
        assert_eq!(services[member]["ports"][0]["host_ip"], "127.0.0.1", "the members serve without TLS");
    }
    let check: Vec<&str> = texts(&services["db"]["healthcheck"]["test"]).collect();
    assert_eq!(check[..4], ["CMD", "pg_isready", "--host", "127.0.0.1"], "the check does not use the local socket");
}

/// Emulates the parts of a container engine that the services need: volumes, users, arguments and environments.
struct Engine {
    services: Value,
    /// Folder with one folder for each volume.
    volumes: tempfile::TempDir,
}

impl Engine {
    fn new() -> Self {
        let volumes = tempfile::tempdir().unwrap();
        let project = &parsed()["project"];
        for name in project["volumes"].as_object().unwrap().keys() {
            std::fs::create_dir(volumes.path().join(name)).unwrap(); // A new volume belongs to root.
        }
        Engine { services: project["services"].clone(), volumes }
    }

    fn volume(&self, name: &str) -> PathBuf {
        self.volumes.path().join(name)
    }

    /// Returns the command of a service. The file system of the service has its volumes, and the home folder of the
    /// image's user. `environment` replaces variables of the service.
    fn command(&self, name: &str, environment: &[(&str, &str)]) -> Command {
        let service = &self.services[name];
        let is_own = OWN.contains(&name);
        let image_user = CONTAINERFILE.lines().find_map(|line| line.strip_prefix("USER ")).unwrap();
        let user = if is_own { image_user } else { service["user"].as_str().unwrap() };
        let (user, group) = user.split_once(':').unwrap();
        let mut script = format!(
            "for folder in /run /var/lib; do mount -t tmpfs -o mode=755 tmpfs $folder; done
             install --directory --owner {user} --group {group} /var/lib/reveille
             touch /run/reveille-binary
             mount --bind '{BINARY}' /run/reveille-binary\n"
        );
        for volume in service["volumes"].as_array().unwrap() {
            let (source, target) = (volume["source"].as_str().unwrap(), volume["target"].as_str().unwrap());
            let source = self.volume(source);
            script += &format!("mkdir --parents '{target}'\nmount --bind '{}' '{target}'\n", source.display());
            if volume["read_only"] == true {
                script += &format!("mount -o remount,bind,ro '{target}'\n");
            }
        }
        script += "cd /var/lib/reveille\nexec \"$@\"";
        let mut command = Command::new("unshare");
        command.args(["--mount", "--", "sh", "-ec", &script, "sh", "setpriv", "--clear-groups"]);
        command.arg(format!("--reuid={user}")).arg(format!("--regid={group}"));
        command.args(["env", "--ignore-environment", "NO_COLOR=1", "PATH=/usr/sbin:/usr/bin:/sbin:/bin"]);
        let mut variables = service["environment"].as_object().cloned().unwrap_or_default();
        for (variable, value) in environment {
            let replaced = variables.insert((*variable).to_owned(), (*value).into());
            assert!(replaced.is_some(), "{name} sets {variable}");
        }
        command.args(variables.iter().map(|(variable, value)| format!("{variable}={}", value.as_str().unwrap())));
        if is_own {
            command.arg("/run/reveille-binary");
        }
        command.args(texts(&service["entrypoint"])).args(texts(&service["command"]));
        command
    }

    fn run(&self, name: &str, environment: &[(&str, &str)]) {
        let output = self.command(name, environment).output().unwrap();
        assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn compose_services_start_with_new_volumes() {
    let engine = Engine::new();
    engine.run("prepare", &[]);
    let password = std::fs::read_to_string(engine.volume("password").join("password")).unwrap();
    engine.run("prepare", &[]);
    let again = std::fs::read_to_string(engine.volume("password").join("password")).unwrap();
    assert_eq!(again, password, "a later start keeps the password");

    // The image `postgres` creates a superuser and a database with the name of this user.
    let postgres = Postgres::start().unwrap();
    let user = engine.services["db"]["environment"]["POSTGRES_USER"].as_str().unwrap();
    assert!(password.trim().len() >= 32);
    postgres.sql("postgres", &format!("create role {user} superuser login password '{}'", password.trim())).unwrap();
    postgres.sql("postgres", &format!("create database {user} owner {user}")).unwrap();

    let url = engine.services["a"]["environment"]["REVEILLE_STORE"].as_str().unwrap();
    let url = url.replace("@db/", &format!("@127.0.0.1:{}/", postgres.port()));
    engine.run("migrate", &[("REVEILLE_STORE", &url)]);
    let any_port = "127.0.0.1:0";
    let addresses =
        [("REVEILLE_STORE", url.as_str()), ("REVEILLE_LISTEN", any_port), ("REVEILLE_PEER_LISTEN", any_port)];
    let member = Server::start_where(engine.command("a", &addresses), |_| engine.volume("key"));
    let schedule = one_shot("later", now_millis() + 3_600_000, "https://example.com", &serde_json::json!(1));
    assert_eq!(member.client().create(&schedule).status, 201);
    assert!(member.stop().success());
}
