//! Rule against cyclic dependencies between the modules of a crate.
//!
//! A module is a file. It uses another module if its code contains a path to that module or to an item in it. The path
//! starts with `crate`, `self`, `super` or the name of a submodule. If the path leads to a file that only re-exports an
//! item, the path counts as a use of the file that defines the item. `mod` lines and re-exports do not count as uses.
//!
//! A file and the files in the folder with the same name are parts of one module, so they may use each other. The rule
//! also ignores the root file of a crate, because all other files of the crate are parts of this root module.
//!
//! The check splits the files into words and does not parse Rust. Therefore it does not find a path that a macro
//! builds.

use std::collections::{BTreeMap, BTreeSet};

use super::{File, Finding};

/// Pairs of modules that may use each other. Each entry has the folder of a crate, two files in the crate's `src`
/// folder, and the reason. A `*` as the second file stands for every other file of the crate.
const STAY: [(&str, &str, &str, &str); 2] = [
    (
        "crates/coordination",
        "recipes/client.rs",
        "recipes/node.rs",
        "`client.rs` creates nodes with functions of `node.rs`, and `node.rs` sends requests through a `Client`",
    ),
    (
        "crates/store-postgres",
        "engine.rs",
        "*",
        "the methods of the engine's type are in several files, one file for each group of calls",
    ),
];

pub(super) fn findings(files: &[File]) -> Vec<Finding> {
    let mut crates: BTreeMap<&str, BTreeMap<Module, &File>> = BTreeMap::new();
    for file in files {
        if let Some((folder, module)) = product_module(&file.path) {
            crates.entry(folder).or_default().insert(module, file);
        }
    }
    crates.into_iter().flat_map(|(folder, modules)| circles(folder, &modules, &STAY)).collect()
}

/// Path of a module in its crate, with one name for each level. The path of the crate's root is empty.
type Module = Vec<String>;

/// Returns the crate's folder and the module of the file at `path`. Returns `None` for files outside `src`, for files
/// in `src/bin`, and for tests.
fn product_module(path: &str) -> Option<(&str, Module)> {
    let (folder, rest) = path.split_once("/src/")?;
    let mut module: Module = rest.strip_suffix(".rs")?.split('/').map(str::to_owned).collect();
    if module.first()? == "bin" || module.iter().any(|name| name == "tests") {
        return None;
    }
    let is_root = module.len() == 1 && (module[0] == "lib" || module[0] == "main");
    if is_root || module.last().is_some_and(|name| name == "mod") {
        module.pop();
    }
    Some((folder, module))
}

fn circles(folder: &str, modules: &BTreeMap<Module, &File>, stay: &[(&str, &str, &str, &str)]) -> Vec<Finding> {
    let sources: BTreeMap<&Module, Source> =
        modules.iter().map(|(module, file)| (module, Source::read(module, &file.text, modules))).collect();
    let mut uses: BTreeMap<&Module, BTreeSet<&Module>> = BTreeMap::new();
    for (&module, source) in &sources {
        let used = source.paths.iter().map(|path| resolve(path, modules, &sources));
        uses.insert(module, used.filter(|used| *used != module && !used.is_empty() && !module.is_empty()).collect());
    }
    let name = |module: &Module| modules[module].path.rsplit_once("/src/").map_or("", |(_, rest)| rest).to_owned();
    for (crate_folder, one, other, _) in stay {
        if *crate_folder == folder {
            for (user, used) in &mut uses {
                let user = name(user);
                used.retain(|used| {
                    let used = name(used);
                    let is_pair = |a: &str, b: &str| a == *one && (b == *other || *other == "*");
                    !(is_pair(&user, &used) || is_pair(&used, &user))
                });
            }
        }
    }
    let mut found = Vec::new();
    for circle in components(&uses) {
        let is_one_module = circle.iter().any(|top| circle.iter().all(|module| module.starts_with(top)));
        if circle.len() > 1 && !is_one_module {
            let used_by = |user: &Module| {
                let used: Vec<String> =
                    uses[user].iter().filter(|used| circle.contains(used)).map(|used| name(used)).collect();
                format!("{} uses {}", name(user), used.join(" and "))
            };
            let names: Vec<String> = circle.iter().map(|user| used_by(user)).collect();
            let what = format!(
                "modules depend on each other in a cycle: {}; move the shared code to a lower module; \
                 see xtask/src/tidy/modules.rs",
                names.join(", ")
            );
            found.push(Finding { path: format!("{folder}/src"), line: 0, what });
        }
    }
    found
}

/// Returns the module that defines the item at `path`.
fn resolve<'a>(
    path: &[String],
    modules: &'a BTreeMap<Module, &File>,
    sources: &BTreeMap<&'a Module, Source>,
) -> &'a Module {
    let mut path = path.to_vec();
    // A re-export may name another re-export, so the loop follows one re-export in each step. The number of steps is
    // limited, because re-exports that form a cycle would make the loop endless.
    for _ in 0..modules.len() {
        let (module, rest) = (0..=path.len())
            .rev()
            .find_map(|len| Some((modules.get_key_value(&path[..len])?.0, &path[len..])))
            .expect("every crate has a root module");
        match rest.first().and_then(|name| sources[module].exports.get(name)) {
            Some(target) => path = [target, &rest[1..]].concat(),
            None => return module,
        }
    }
    modules.keys().next().expect("every crate has a root module")
}

/// References of one file to other files.
#[derive(Default)]
struct Source {
    /// Paths of the items that the file's code uses. Each path starts at the crate's root.
    paths: BTreeSet<Vec<String>>,
    /// Names that the file re-exports. The value is the path from the crate's root to the re-exported item.
    exports: BTreeMap<String, Vec<String>>,
}

impl Source {
    fn read(module: &Module, text: &str, modules: &BTreeMap<Module, &File>) -> Self {
        let words = words(text);
        let mut source = Source::default();
        let is_child = |name: &str| modules.contains_key(&[module.as_slice(), &[name.to_owned()]].concat());
        let mut at = 0;
        while at < words.len() {
            let begins_path = words.get(at + 1) == Some(&"::") && (at == 0 || words[at - 1] != "::");
            let base = match words[at] {
                _ if !begins_path => None,
                "crate" => Some(Vec::new()),
                "self" => Some(module.clone()),
                "super" => Some(module[..module.len().saturating_sub(1)].to_vec()),
                name if is_child(name) => Some([module.as_slice(), &[name.to_owned()]].concat()),
                _ => None,
            };
            let Some(base) = base else {
                at += 1;
                continue;
            };
            let is_export = is_export(&words[..at]);
            let mut leaves = Vec::new();
            at = tree(&words, at + 2, base, &mut leaves);
            for (path, alias) in leaves {
                match path.last() {
                    Some(name) if is_export => {
                        let name = alias.unwrap_or_else(|| name.clone());
                        source.exports.insert(name, path);
                    }
                    _ => {
                        source.paths.insert(path);
                    }
                }
            }
        }
        source
    }
}

/// Returns true if `before`, the words before a path, ends with `pub use` or `pub(crate) use`. These words re-export
/// the path.
fn is_export(before: &[&str]) -> bool {
    let Some((&"use", before)) = before.split_last() else { return false };
    matches!(before, [.., "pub"]) || before.ends_with(&[")"]) && before.iter().rev().take(4).any(|word| *word == "pub")
}

/// Reads the rest of a path that starts with `base`. The rest begins at position `at` of `words`. Adds the whole path
/// to `leaves`, or one path for each entry of a list in braces. Returns the position of the first word after the path.
fn tree(words: &[&str], mut at: usize, base: Vec<String>, leaves: &mut Vec<(Vec<String>, Option<String>)>) -> usize {
    let mut path = base;
    loop {
        match words.get(at).copied() {
            Some("super") => {
                path.pop();
                at += 1;
            }
            Some("self") => at += 1,
            Some("{") => {
                at += 1;
                while let Some(&word) = words.get(at) {
                    match word {
                        "}" => return at + 1,
                        "," => at += 1,
                        _ => at = tree(words, at, path.clone(), leaves).max(at + 1),
                    }
                }
                return at;
            }
            Some(name) if is_name(name) => {
                path.push(name.to_owned());
                at += 1;
            }
            _ => break,
        }
        if words.get(at) == Some(&"::") {
            at += 1;
        } else {
            break;
        }
    }
    let alias = (words.get(at) == Some(&"as")).then(|| words.get(at + 1).map(|word| (*word).to_owned())).flatten();
    if alias.is_some() {
        at += 2;
    }
    leaves.push((path, alias));
    at
}

fn is_name(word: &str) -> bool {
    word.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

/// Splits the text of a Rust file into names, `::` and single characters. The result omits comments, string literals,
/// and the tests at the end of the file.
fn words(text: &str) -> Vec<&str> {
    let text = text.split_once("#[cfg(test)]\nmod tests {").map_or(text, |(code, _)| code);
    let bytes = text.as_bytes();
    let mut words = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let rest = &text[at..];
        let len = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with('"') {
            string_len(rest)
        } else if rest.starts_with("r\"") || rest.starts_with("r#\"") {
            let end = if rest.starts_with("r\"") { "\"" } else { "\"#" };
            let begin = end.len() + 1;
            rest[begin..].find(end).map_or(rest.len(), |found| begin + found + end.len())
        } else if rest.starts_with("'\"'") || rest.starts_with("b'\"'") {
            rest.find("\"'").map_or(1, |found| found + 2)
        } else if rest.starts_with("::") {
            words.push("::");
            2
        } else {
            let name = rest.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(rest.len());
            let len = name.max(rest.chars().next().map_or(1, char::len_utf8));
            if !rest[..len].trim().is_empty() {
                words.push(&rest[..len]);
            }
            len
        };
        at += len;
    }
    words
}

/// Returns the length of the string literal at the start of `text`.
fn string_len(text: &str) -> usize {
    let mut is_escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            '"' => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// Returns the strongly connected components of the graph `uses`. The modules of a component use each other, directly
/// or through other modules.
fn components<'a>(uses: &BTreeMap<&'a Module, BTreeSet<&'a Module>>) -> Vec<Vec<&'a Module>> {
    let reached: BTreeMap<&Module, BTreeSet<&Module>> =
        uses.keys().map(|module| (*module, reached_from(module, uses))).collect();
    let mut components: Vec<Vec<&Module>> = Vec::new();
    for module in uses.keys() {
        let is_mutual = |other: &&Module| reached[module].contains(*other) && reached[*other].contains(*module);
        match components.iter_mut().find(|component| is_mutual(&component[0])) {
            Some(component) => component.push(module),
            None => components.push(vec![module]),
        }
    }
    components
}

fn reached_from<'a>(from: &'a Module, uses: &BTreeMap<&'a Module, BTreeSet<&'a Module>>) -> BTreeSet<&'a Module> {
    let mut reached = BTreeSet::new();
    let mut open = vec![from];
    while let Some(module) = open.pop() {
        for used in &uses[module] {
            if reached.insert(*used) {
                open.push(used);
            }
        }
    }
    reached
}

#[cfg(test)]
mod tests {
    use super::*;

    fn circles_of(files: &[(&str, &str)]) -> Vec<String> {
        let files: Vec<File> =
            files.iter().map(|(path, text)| File::new(&format!("crates/a/src/{path}"), text)).collect();
        findings(&files).into_iter().map(|finding| finding.what).collect()
    }

    #[test]
    fn check_finds_two_modules_that_use_each_other() {
        let found = circles_of(&[
            ("lib.rs", "mod one; mod two;"),
            ("one.rs", "use crate::two::Two;"),
            ("two.rs", "use crate::{other, one::{self, One}};"),
        ]);
        assert_eq!(found.len(), 1);
        assert!(found[0].contains("one.rs uses two.rs, two.rs uses one.rs"), "{found:?}");
    }

    #[test]
    fn check_finds_cycle_through_inline_paths_and_super_paths() {
        let found = circles_of(&[
            ("lib.rs", ""),
            ("one.rs", "fn f() { crate::inner::two::g(); }"),
            ("inner/mod.rs", ""),
            ("inner/two.rs", "fn g() { super::super::one::f() }"),
        ]);
        assert_eq!(found.len(), 1);
    }

    #[test]
    fn use_of_a_reexport_counts_as_use_of_the_defining_module() {
        let reexported = [
            ("lib.rs", "mod one; mod two; pub use one::One; pub(crate) use two::{Two as Second};"),
            ("one.rs", "use crate::Second;"),
        ];
        assert!(circles_of(&[reexported[0], reexported[1], ("two.rs", "")]).is_empty());
        assert_eq!(circles_of(&[reexported[0], reexported[1], ("two.rs", "use crate::One;")]).len(), 1);
    }

    #[test]
    fn check_allows_uses_between_the_crate_root_and_its_modules() {
        let root = ("lib.rs", "mod one; use one::One; pub struct Options;");
        assert!(circles_of(&[root, ("one.rs", "use crate::Options;")]).is_empty());
    }

    #[test]
    fn check_allows_a_module_and_its_submodules_to_use_each_other() {
        let found = circles_of(&[
            ("lib.rs", ""),
            ("one.rs", "mod part; use part::Part; struct Whole;"),
            ("one/part.rs", "use super::Whole;"),
        ]);
        assert!(found.is_empty(), "{found:?}");
    }

    #[test]
    fn check_ignores_comments_strings_and_tests() {
        let found = circles_of(&[
            ("lib.rs", ""),
            ("one.rs", "use crate::two::Two;"),
            (
                "two.rs",
                "//! [`crate::one`]\nconst A: &str = \"crate::one::a\\\" crate::one\";\n#[cfg(test)]\nmod tests {\n use crate::one;\n}",
            ),
            ("two/tests.rs", "use crate::one;"),
        ]);
        assert!(found.is_empty(), "{found:?}");
    }

    #[test]
    fn check_accepts_cycle_of_two_modules_that_is_a_listed_exception() {
        let files =
            [File::new("crates/a/src/b.rs", "use crate::c::C;"), File::new("crates/a/src/c.rs", "use crate::b::B;")];
        let modules: BTreeMap<Module, &File> =
            files.iter().filter_map(|file| Some((product_module(&file.path)?.1, file))).collect();
        assert_eq!(circles("crates/a", &modules, &[]).len(), 1);
        assert!(circles("crates/a", &modules, &[("crates/a", "c.rs", "b.rs", "a reason")]).is_empty());
    }
}
