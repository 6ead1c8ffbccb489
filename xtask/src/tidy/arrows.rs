//! Rules for the dependencies between crates: a crate may use only the crates that its rule lists. The listed crates
//! are in lower layers.

use serde::Deserialize;

use super::Finding;

/// Part of `cargo metadata` that the rules use.
#[derive(Deserialize, Debug)]
pub(crate) struct Metadata {
    pub(crate) packages: Vec<Package>,
}

#[derive(Clone, Deserialize, Debug)]
pub(crate) struct Package {
    pub(crate) name: String,
    pub(crate) dependencies: Vec<Dependency>,
}

#[derive(Clone, Deserialize, Debug)]
pub(crate) struct Dependency {
    pub(crate) name: String,
    /// Kind of the dependency: `dev`, `build`, or `None` for a normal dependency.
    pub(crate) kind: Option<String>,
    /// Path of the crate if it belongs to the workspace; `None` for other crates.
    #[serde(default)]
    pub(crate) path: Option<String>,
}

struct Rule {
    name: &'static str,
    /// Crates of the workspace that the crate may use.
    may_use: &'static [&'static str],
    /// Further crates of the workspace that the crate's tests may use.
    tests_may_use: &'static [&'static str],
    /// External crates that the crate may use; `None` allows all.
    outside: Option<&'static [&'static str]>,
}

const fn rule(name: &'static str, may_use: &'static [&'static str], tests_may_use: &'static [&'static str]) -> Rule {
    Rule { name, may_use, tests_may_use, outside: None }
}

const RULES: &[Rule] = &[
    // Pure crates. They use no async runtime, no clock, no randomness and no I/O.
    Rule { name: "instants", may_use: &[], tests_may_use: &[], outside: Some(&["jiff"]) },
    Rule {
        name: "domain",
        may_use: &["instants"],
        tests_may_use: &[],
        outside: Some(&["bytes", "croner", "http", "jiff", "thiserror"]),
    },
    Rule { name: "paxos", may_use: &[], tests_may_use: &[], outside: Some(&["bytes", "thiserror"]) },
    Rule { name: "api", may_use: &[], tests_may_use: &[], outside: Some(&["jiff", "schemars", "serde", "serde_json"]) },
    Rule {
        name: "stored",
        may_use: &["domain", "store"],
        tests_may_use: &[],
        outside: Some(&["base64", "bytes", "serde", "serde_json", "thiserror"]),
    },
    rule("runtime", &["instants"], &["simulator"]),
    rule("journal", &["runtime"], &["simulator"]),
    rule("store", &["domain", "runtime"], &[]),
    rule("store-conformance", &["conformance", "domain", "store"], &["runtime", "simulator"]),
    // Conformance suites of the ports, and their shared code. Only tests use these crates.
    rule("conformance", &["runtime"], &[]),
    rule("bus-conformance", &["bus", "conformance", "runtime"], &[]),
    rule("coordination-conformance", &["conformance", "coordination", "runtime"], &[]),
    rule("membership-conformance", &["conformance", "domain", "membership", "runtime"], &[]),
    // General crates for any program. They do not depend on schedules, shards and members.
    rule("bus", &["instants", "runtime"], &["bus-conformance", "simulator"]),
    rule(
        "bus-kafka",
        &["bus", "instants", "runtime"],
        &["bus-buffer", "bus-conformance", "coordination-connect", "test-servers"],
    ),
    rule("bus-buffer", &["bus", "instants", "journal", "runtime"], &["simulator"]),
    rule(
        "coordination",
        &["instants", "runtime"],
        &["coordination-conformance", "coordination-connect", "domain", "simulator", "test-servers"],
    ),
    rule(
        "coordination-postgres",
        &["instants", "runtime", "coordination", "postgres-client"],
        &["coordination-conformance", "domain", "test-servers"],
    ),
    rule(
        "coordination-zookeeper",
        &["instants", "runtime", "coordination"],
        &["coordination-conformance", "test-servers"],
    ),
    rule(
        "coordination-connect",
        &["runtime", "coordination", "coordination-postgres", "coordination-zookeeper"],
        &["test-servers"],
    ),
    // `coordination-connect` is published, and the crates of the bus are not, so this crate adds Kafka to its electors.
    rule(
        "coordination-kafka",
        &["bus", "bus-kafka", "coordination", "coordination-connect", "instants", "runtime"],
        &["coordination-conformance", "simulator", "test-servers"],
    ),
    rule("membership", &["domain", "instants", "runtime"], &["membership-conformance", "simulator"]),
    rule(
        "membership-tree",
        &["coordination", "instants", "membership", "runtime"],
        &["coordination-zookeeper", "membership-conformance", "simulator", "test-servers"],
    ),
    // `membership-postgres` is the only engine that uses another engine, because its tables are in the schema of
    // `coordination-postgres` (decision 0165).
    rule(
        "membership-postgres",
        &["coordination-postgres", "instants", "membership", "postgres-client", "runtime"],
        &["coordination", "domain", "membership-conformance", "test-servers"],
    ),
    rule("store-embedded", &["domain", "runtime", "journal", "store", "stored"], &["simulator", "store-conformance"]),
    rule(
        "store-postgres",
        &["domain", "runtime", "store", "stored", "postgres-client"],
        &["store-conformance", "test-servers"],
    ),
    rule("postgres-client", &["runtime"], &["test-servers"]),
    rule("scheduler", &["domain", "runtime", "store", "stored", "membership"], &["simulator"]),
    rule("listener", &["runtime"], &[]),
    rule("callback", &["bus", "domain", "runtime", "store", "scheduler"], &["test-servers"]),
    rule("peers", &["domain", "runtime", "listener", "membership", "scheduler"], &["stored", "test-servers"]),
    rule(
        "server",
        &["api", "domain", "runtime", "listener", "store", "scheduler"],
        &["cron-oracle", "simulator", "test-servers"],
    ),
    // `client` is a library for programs of users. It uses only one crate of the service: `api`, which contains the
    // wire types.
    rule("client", &["api"], &["callback", "domain", "runtime", "scheduler", "server", "store"]),
    // `receiver` is a library for programs of users. It uses no crate of the service, because callbacks have a standard
    // format.
    rule("receiver", &[], &["callback", "test-servers", "runtime"]),
    // Oracle for the tests of cron expressions. It must share no code with the product.
    Rule { name: "cron-oracle", may_use: &[], tests_may_use: &[], outside: Some(&[]) },
    // The simulator uses the scheduler, the journal and the embedded engines, but never the server or an external
    // engine. It uses `callback` only for the transport to a message bus, which runs on the bus in memory.
    rule(
        "simulator",
        &[
            "bus",
            "callback",
            "cron-oracle",
            "domain",
            "runtime",
            "journal",
            "store",
            "store-embedded",
            "membership",
            "scheduler",
        ],
        &[],
    ),
    rule("paxos-simulator", &["paxos", "simulator"], &[]),
    rule("cli-support", &["domain", "listener", "runtime"], &[]),
    // The benchmarks use no store engine. They receive an engine's settings as arguments, and write runs in bulk through
    // the store's port.
    rule(
        "bench",
        &[
            "bus",
            "bus-buffer",
            "bus-kafka",
            "cli-support",
            "client",
            "coordination",
            "coordination-connect",
            "domain",
            "journal",
            "postgres-client",
            "runtime",
            "scheduler",
            "store",
        ],
        &[],
    ),
    rule(
        "reveille",
        &[
            "api",
            "bench",
            "bus",
            "bus-kafka",
            "callback",
            "cli-support",
            "client",
            "coordination",
            "coordination-connect",
            "domain",
            "journal",
            "membership",
            "membership-postgres",
            "membership-tree",
            "peers",
            "runtime",
            "scheduler",
            "server",
            "store",
            "store-embedded",
            "store-postgres",
        ],
        &["receiver", "simulator", "test-servers"],
    ),
    // Crate that starts real servers for tests.
    rule("test-servers", &[], &[]),
    rule("xtask", &["cron-oracle", "test-servers"], &[]),
];

pub(super) fn findings(packages: &[Package]) -> Vec<Finding> {
    packages.iter().flat_map(of_package).collect()
}

/// Returns the name of a package without the prefix of published packages. The result is also the name of the crate's
/// folder.
pub(super) fn short_name(name: &str) -> &str {
    name.strip_prefix("reveille-").unwrap_or(name)
}

fn of_package(package: &Package) -> Vec<Finding> {
    let finding = |what: String| Finding { path: package.name.clone(), line: 0, what };
    let Some(rule) = RULES.iter().find(|rule| rule.name == short_name(&package.name)) else {
        return vec![finding("this crate has no dependency rule; add one to xtask/src/tidy/arrows.rs".to_owned())];
    };
    let breaks = |dependency: &&Dependency| {
        let name = short_name(&dependency.name);
        let is_for_tests = dependency.kind.as_deref() == Some("dev");
        match (&dependency.path, rule.outside) {
            (Some(_), _) => !(rule.may_use.contains(&name) || is_for_tests && rule.tests_may_use.contains(&name)),
            (None, Some(outside)) => !is_for_tests && !outside.contains(&name),
            (None, None) => false,
        }
    };
    let broken = package.dependencies.iter().filter(breaks);
    broken
        .map(|dependency| {
            finding(format!("this crate must not use {}; see the rules in xtask/src/tidy/arrows.rs", dependency.name))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(name: &str, uses: &[(&str, Option<&str>, bool)]) -> Package {
        let dependency = |(name, kind, is_own): &(&str, Option<&str>, bool)| Dependency {
            name: (*name).to_owned(),
            kind: kind.map(str::to_owned),
            path: is_own.then(|| format!("crates/{name}")),
        };
        Package { name: name.to_owned(), dependencies: uses.iter().map(dependency).collect() }
    }

    fn count(package: Package) -> usize {
        findings(&[package]).len()
    }

    #[test]
    fn check_finds_dependency_on_a_crate_of_a_higher_layer() {
        assert_eq!(count(package("scheduler", &[("store", None, true)])), 0);
        assert_eq!(count(package("store", &[("scheduler", None, true)])), 1);
        assert_eq!(count(package("scheduler", &[("store-embedded", None, true)])), 1);
        assert_eq!(count(package("simulator", &[("server", None, true)])), 1);
    }

    #[test]
    fn check_finds_a_normal_dependency_on_a_test_only_crate() {
        assert_eq!(count(package("journal", &[("simulator", Some("dev"), true)])), 0);
        assert_eq!(count(package("journal", &[("simulator", None, true)])), 1);
        assert_eq!(count(package("store", &[("store", Some("dev"), true)])), 1);
    }

    #[test]
    fn check_finds_impure_dependency_of_a_pure_crate() {
        assert_eq!(count(package("domain", &[("jiff", None, false), ("proptest", Some("dev"), false)])), 0);
        assert_eq!(count(package("domain", &[("tokio", None, false)])), 1);
        assert_eq!(count(package("domain", &[("runtime", None, true)])), 1);
    }

    #[test]
    fn check_finds_crate_without_a_dependency_rule() {
        assert_eq!(count(package("broker", &[])), 1);
    }
}
