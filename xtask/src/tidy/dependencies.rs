//! Policy of `deny.toml` for dependencies: their licences, duplicate versions, and sources.
//!
//! This module reads the part of cargo-deny's format that this project uses, so that cargo-deny can use the same file.
//! The project does not use cargo-deny itself, because a build of cargo-deny takes longer than all tests. The parser
//! rejects unknown fields, because this module would not enforce the rules in these fields.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, ensure};
use serde::Deserialize;

use super::{File, Finding};

pub(super) const POLICY: &str = "deny.toml";

/// Part of the output of `cargo metadata` that this module uses.
#[derive(Deserialize, Debug)]
pub(super) struct Graph {
    packages: Vec<Crate>,
    resolve: Resolve,
}

impl Graph {
    /// Returns the names of the packages that use the package `id` in the build. A package that no package uses counts
    /// as a user of itself.
    fn users(&self, id: &str) -> impl Iterator<Item = &str> {
        let uses = |node: &&Node| node.dependencies.iter().any(|used| used == id);
        let has_users = self.resolve.nodes.iter().any(|node| uses(&node));
        let is_user = move |node: &&Node| if has_users { uses(node) } else { node.id == id };
        let users: BTreeSet<&str> = self.resolve.nodes.iter().filter(is_user).map(|node| node.id.as_str()).collect();
        self.packages.iter().filter(move |package| users.contains(package.id.as_str())).map(|it| it.name.as_str())
    }
}

#[derive(Deserialize, Debug)]
struct Resolve {
    nodes: Vec<Node>,
}

/// Package that a build for the requested target needs.
#[derive(Deserialize, Debug)]
struct Node {
    id: String,
    /// Identifiers of the packages that this package uses in the build.
    #[serde(default)]
    dependencies: Vec<String>,
}

#[derive(Deserialize, Debug)]
struct Crate {
    id: String,
    name: String,
    version: String,
    /// SPDX expression.
    license: Option<String>,
    /// Source of the package; `None` for a package of the workspace.
    source: Option<String>,
    dependencies: Vec<Dependency>,
}

#[derive(Deserialize, Debug)]
struct Dependency {
    name: String,
    req: String,
    path: Option<String>,
}

/// Contents of `deny.toml`. The parser rejects unknown fields.
#[derive(Deserialize, PartialEq, Eq, Debug)]
#[serde(deny_unknown_fields)]
pub(super) struct Policy {
    graph: Targets,
    licenses: Licenses,
    bans: Bans,
    sources: Sources,
}

#[derive(Deserialize, PartialEq, Eq, Debug)]
#[serde(deny_unknown_fields)]
struct Targets {
    /// Exactly one target.
    targets: Vec<String>,
}

#[derive(Deserialize, PartialEq, Eq, Debug)]
#[serde(deny_unknown_fields)]
struct Licenses {
    allow: BTreeSet<String>,
}

#[derive(Deserialize, PartialEq, Eq, Debug)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Bans {
    multiple_versions: Level,
    skip: Vec<Named>,
    wildcards: Level,
    deny: Vec<Banned>,
}

#[derive(Deserialize, PartialEq, Eq, Debug)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Sources {
    unknown_registry: Level,
    unknown_git: Level,
    allow_registry: BTreeSet<String>,
    /// Empty.
    allow_git: Vec<String>,
}

#[derive(Deserialize, PartialEq, Eq, Debug)]
#[serde(rename_all = "lowercase")]
enum Level {
    Deny,
}

#[derive(Deserialize, PartialEq, Eq, Debug)]
#[serde(deny_unknown_fields)]
struct Named {
    name: String,
    reason: String,
}

#[derive(Deserialize, PartialEq, Eq, Debug)]
#[serde(deny_unknown_fields)]
struct Banned {
    name: String,
    reason: String,
    /// Packages that may use the banned package. Empty if no package may use it.
    #[serde(default)]
    wrappers: BTreeSet<String>,
}

impl Policy {
    /// # Errors
    /// Returns an error if the file is not TOML, or if it contains a field or a value that this module does not
    /// enforce.
    pub(super) fn read(file: &File) -> anyhow::Result<Self> {
        let policy: Policy = toml::from_str(&file.text).context(POLICY)?;
        let skipped = policy.bans.skip.iter().map(|named| (&named.name, &named.reason));
        let banned = policy.bans.deny.iter().map(|banned| (&banned.name, &banned.reason));
        let without = skipped.chain(banned).find(|(_, reason)| reason.is_empty());
        ensure!(without.is_none(), "{POLICY}: {without:?} has no reason");
        ensure!(policy.graph.targets.len() == 1, "{POLICY}: the list `targets` must contain exactly one target");
        ensure!(policy.sources.allow_git.is_empty(), "{POLICY}: git sources are not supported; leave allow-git empty");
        Ok(policy)
    }

    /// Returns the target whose packages the policy covers.
    pub(super) fn target(&self) -> &str {
        &self.graph.targets[0]
    }

    fn may_have_versions(&self, name: &str) -> bool {
        self.bans.skip.iter().any(|named| named.name == name)
    }
}

pub(super) fn findings(file: &File, policy: &Policy, graph: &Graph) -> Vec<Finding> {
    let built: BTreeSet<&str> = graph.resolve.nodes.iter().map(|node| node.id.as_str()).collect();
    let mut found = Vec::new();
    let mut versions: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for it in graph.packages.iter().filter(|it| built.contains(it.id.as_str())) {
        let Crate { name, version, .. } = it;
        let mut report = |fault: String| found.push(file.finding(0, format!("{name} {version} {fault}")));
        versions.entry(name).or_default().push(version);
        if let Some(banned) = policy.bans.deny.iter().find(|banned| banned.name == *name)
            && !graph.users(&it.id).all(|user| banned.wrappers.contains(user))
        {
            report("is banned".to_owned());
        }
        let Some(source) = &it.source else {
            for dependency in it.dependencies.iter().filter(|it| it.req == "*" && it.path.is_none()) {
                report(format!("accepts any version of the package {}; require a specific version", dependency.name));
            }
            continue;
        };
        let registry = source.strip_prefix("registry+");
        if !registry.is_some_and(|registry| policy.sources.allow_registry.contains(registry)) {
            report(format!("comes from {source}"));
        }
        match &it.license {
            None => report("has no licence".to_owned()),
            Some(license) if !is_allowed(license, &policy.licenses.allow) => report(format!("is under {license}")),
            Some(_) => {}
        }
    }
    for (name, versions) in &versions {
        match (versions.len() > 1, policy.may_have_versions(name)) {
            (true, false) => found.push(file.finding(
                0,
                format!(
                    "{name} is a dependency in versions {}; use only one version, or add the package to `skip`",
                    versions.join(" and ")
                ),
            )),
            (false, true) => {
                found.push(file.finding(0, format!("{name} has only one version now; remove it from `skip`")))
            }
            (true, true) | (false, false) => {}
        }
    }
    let gone = policy.bans.skip.iter().filter(|named| !versions.contains_key(named.name.as_str()));
    found.extend(
        gone.map(|named| file.finding(0, format!("{} is no longer a dependency; remove it from `skip`", named.name))),
    );
    found
}

/// Returns true if the allowed licences satisfy the licence `expression` (SPDX; `/` is an old form of `OR`). An
/// exception (`WITH`) only grants further rights, so the function ignores exceptions.
fn is_allowed(expression: &str, allowed: &BTreeSet<String>) -> bool {
    let spaced = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let mut words = spaced.split_whitespace().peekable();
    let is_allowed = either(&mut words, allowed);
    is_allowed && words.next().is_none()
}

type Words<'a> = std::iter::Peekable<std::str::SplitWhitespace<'a>>;

fn either(words: &mut Words<'_>, allowed: &BTreeSet<String>) -> bool {
    let mut is_allowed = both(words, allowed);
    while words.next_if_eq(&"OR").is_some() {
        // The operator `||` would skip its second operand if the first operand is true. The parser would then not
        // consume the words of the second operand.
        is_allowed |= both(words, allowed);
    }
    is_allowed
}

fn both(words: &mut Words<'_>, allowed: &BTreeSet<String>) -> bool {
    let mut is_allowed = one(words, allowed);
    while words.next_if_eq(&"AND").is_some() {
        is_allowed &= one(words, allowed);
    }
    is_allowed
}

fn one(words: &mut Words<'_>, allowed: &BTreeSet<String>) -> bool {
    if words.next_if_eq(&"(").is_some() {
        let is_allowed = either(words, allowed);
        return words.next() == Some(")") && is_allowed;
    }
    let is_allowed = words.next().is_some_and(|license| allowed.contains(license));
    if words.next_if_eq(&"WITH").is_some() {
        words.next();
    }
    is_allowed
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"
        [graph]
        targets = ["x86_64-unknown-linux-gnu"]
        [licenses]
        allow = ["MIT", "ISC"]
        [bans]
        multiple-versions = "deny"
        skip = [{ name = "twice", reason = "dependencies require both" }]
        wildcards = "deny"
        deny = [
            { name = "openssl-sys", reason = "TLS is rustls" },
            { name = "wrapped", wrappers = ["ours"], reason = "only one package needs it" },
        ]
        [sources]
        unknown-registry = "deny"
        unknown-git = "deny"
        allow-registry = ["https://registry.example"]
        allow-git = []
    "#;

    fn found(crates: &str) -> Vec<String> {
        let file = File::new(POLICY, TEXT);
        let mut packages: Vec<serde_json::Value> = serde_json::from_str(crates).unwrap();
        for version in ["1.0.0", "2.0.0"] {
            let twice = r#"{"name":"twice","license":"MIT","source":"registry+https://registry.example"}"#;
            let mut twice: serde_json::Value = serde_json::from_str(twice).unwrap();
            twice["version"] = version.into();
            packages.push(twice);
        }
        for (at, package) in packages.iter_mut().enumerate() {
            package["id"] = at.to_string().into();
            let fields = package.as_object_mut().unwrap();
            fields.entry("version").or_insert("1.0.0".into());
            fields.entry("dependencies").or_insert(serde_json::json!([]));
        }
        // Each package uses the next one.
        let node =
            |(at, _): (usize, _)| serde_json::json!({"id": at.to_string(), "dependencies": [(at + 1).to_string()]});
        let nodes: Vec<_> = packages.iter().enumerate().map(node).collect();
        let graph = serde_json::json!({"packages": packages, "resolve": {"nodes": nodes}});
        let found = findings(&file, &Policy::read(&file).unwrap(), &serde_json::from_value(graph).unwrap());
        found.into_iter().map(|finding| finding.what).collect()
    }

    #[test]
    fn check_finds_dependencies_that_violate_the_policy() {
        const GOOD: &str = r#"{"name":"good","license":"MIT","source":"registry+https://registry.example"}"#;
        assert_eq!(found(&format!("[{GOOD}]")), [] as [&str; 0]);
        let bad = |field: &str, value: &str| {
            let mut bad: serde_json::Value = serde_json::from_str(GOOD).unwrap();
            bad[field] = serde_json::from_str(value).unwrap();
            found(&format!("[{bad}]"))
        };
        assert_eq!(bad("license", r#""GPL-3.0""#), ["good 1.0.0 is under GPL-3.0"]);
        assert_eq!(bad("license", "null"), ["good 1.0.0 has no licence"]);
        assert_eq!(bad("source", r#""git+https://a.example/b""#), ["good 1.0.0 comes from git+https://a.example/b"]);
        assert_eq!(
            bad("source", r#""registry+https://b.example""#),
            ["good 1.0.0 comes from registry+https://b.example"]
        );
        assert_eq!(bad("name", r#""openssl-sys""#), ["openssl-sys 1.0.0 is banned"]);
        let ours =
            r#"[{"name":"ours","license":null,"source":null,"dependencies":[{"name":"a","req":"*","path":null}]}]"#;
        assert_eq!(found(ours), ["ours 1.0.0 accepts any version of the package a; require a specific version"]);
        let wrapped = GOOD.replace("good", "wrapped");
        let ours = r#"{"name":"ours","license":null,"source":null}"#;
        assert_eq!(found(&format!("[{ours},{wrapped}]")), [] as [&str; 0]);
        for others in [format!("[{GOOD},{wrapped}]"), format!("[{wrapped}]")] {
            assert_eq!(found(&others), ["wrapped 1.0.0 is banned"]);
        }
        let two = r#"{"name":"good","license":"MIT","source":"registry+https://registry.example","version":"2.0.0"}"#;
        assert_eq!(
            found(&format!("[{GOOD},{two}]")),
            ["good is a dependency in versions 1.0.0 and 2.0.0; use only one version, or add the package to `skip`"]
        );
    }

    #[test]
    fn policy_allows_licence_expression_that_allowed_licences_satisfy() {
        let allowed = BTreeSet::from(["MIT".to_owned(), "ISC".to_owned()]);
        let good = [
            "MIT",
            "MIT/Apache-2.0",
            "Apache-2.0 / MIT",
            "GPL-3.0 OR MIT",
            "MIT AND ISC",
            "(GPL-3.0 OR MIT) AND ISC",
            "MIT WITH LLVM-exception OR GPL-3.0",
        ];
        for expression in good {
            assert!(is_allowed(expression, &allowed), "{expression}");
        }
        for expression in ["", "GPL-3.0", "MIT AND GPL-3.0", "(MIT", "MIT ISC", "ISC AND (GPL-3.0 OR Apache-2.0)", "OR"]
        {
            assert!(!is_allowed(expression, &allowed), "{expression}");
        }
    }

    #[test]
    fn parser_rejects_policy_with_an_unsupported_rule() {
        for (original, replacement) in [
            ("unknown-git = \"deny\"", "unknown-git = \"warn\""),
            ("wildcards = \"deny\"", "wildcards = \"deny\"\nhighlight = \"all\""),
            ("[graph]", "[advisories]\nignore = []\n[graph]"),
            ("\"dependencies require both\"", "\"\""),
            ("allow-git = []", "allow-git = [\"https://a.example\"]"),
        ] {
            assert!(Policy::read(&File::new(POLICY, &TEXT.replace(original, replacement))).is_err(), "{replacement}");
        }
    }
}
