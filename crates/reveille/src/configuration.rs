//! Configuration of `serve`: a TOML file, environment variables and flags. A variable overrides the file, and a flag
//! overrides both.
//!
//! The flags of `serve` are the only list of options. A key of the file is the name of a flag without its dashes. This
//! module passes the value of each key to the parser of flags, so the file, the variables and the flags have the same
//! types, bounds and errors. Users can set a new flag in all three places without further code.
//!
//! This module reads only the file that `--config` names. Invariants: an unknown key is an error. The module redacts
//! the passwords in all text that it prints.
//!
//! docs/decisions/0084-define-each-option-once-as-a-flag.md gives the reasons for the design.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::builder::Resettable;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command, CommandFactory, FromArgMatches};
use toml::de::{DeTable, DeValue};

use crate::Arguments;

/// Maximum size of a configuration file in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;
const SERVE: &str = "serve";
/// Flags of `serve` that a configuration file cannot set.
const NOT_IN_A_FILE: [&str; 4] = ["config", "print-config", "help", "version"];

/// Parses the command line, the environment and the configuration file. Exits the process, as clap does, if the command
/// line is invalid or asks for help.
///
/// # Errors
/// Returns an error if the file cannot be read, or if it has an unknown key or an invalid value.
pub(crate) fn load(words: Vec<OsString>) -> anyhow::Result<Configuration> {
    let mut command = Arguments::command();
    command.build();
    // This parse ignores errors, because the second parse, with the values of the file, reports the errors of the
    // command line.
    let typed = command.clone().ignore_errors(true).try_get_matches_from(&words).ok();
    let typed = typed.as_ref().and_then(|matches| matches.subcommand_matches(SERVE));
    let file = match typed.and_then(|serve| serve.get_one::<PathBuf>("config")) {
        Some(path) => File::read(path, &command)?,
        None => File::default(),
    };
    let is_overridden = |key: &str| {
        let id = id_of(&command, key);
        let source = typed.zip(id).and_then(|(serve, id)| serve.value_source(&id));
        matches!(source, Some(ValueSource::CommandLine | ValueSource::EnvVariable))
    };
    let mut used = BTreeMap::new();
    let mut all = words;
    if let Some(at) = all.iter().position(|word| word == SERVE) {
        let entries = file.entries.iter().filter(|(key, _)| !is_overridden(key));
        let entries: Vec<_> = entries.collect();
        all.splice(at + 1..at + 1, entries.iter().flat_map(|(_, entry)| entry.words.iter().map(OsString::from)));
        used.extend(entries.into_iter().map(|(key, entry)| (key.clone(), entry.place.clone())));
    }
    warn_of_unread_variables(&command);
    let is_of_schedule = all.iter().any(|word| word == "schedule");
    let matches = command.clone().try_get_matches_from(all).unwrap_or_else(|mut error| {
        if is_of_schedule {
            add_hint(&mut error);
        }
        error.exit()
    });
    let arguments = Arguments::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    let is_to_print = matches.subcommand_matches(SERVE).is_some_and(|serve| serve.get_flag("print_config"));
    let shown = is_to_print.then(|| show(&command, &matches, &used));
    Ok(Configuration { arguments, shown })
}

/// Adds a hint to the error of an unknown `schedule` command if other programs have a command with this name.
fn add_hint(error: &mut clap::Error) {
    let Some(ContextValue::String(name)) = error.get(ContextKind::InvalidSubcommand) else { return };
    let hint = match name.as_str() {
        "delete" | "remove" | "rm" => "to cancel a schedule, use `reveille schedule cancel`",
        "update" | "edit" | "patch" => {
            "to replace a schedule, use `reveille schedule create --id ID --replace`; to change only its timing, \
             use `reveille schedule reschedule`"
        }
        _ => return,
    };
    error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![hint.into()]));
}

/// Prints a warning for each environment variable whose name starts with `REVEILLE_` and that no option reads.
fn warn_of_unread_variables(command: &Command) {
    for name in std::env::vars_os().filter_map(|(name, _)| name.into_string().ok()) {
        if let Some(warning) = unread_variable(command, &name) {
            // If standard error is closed, the warning is lost.
            let _unwritten = writeln!(io::stderr(), "reveille: warning: {warning}");
        }
    }
}

/// Returns a warning if the name of the environment variable starts with `REVEILLE_` but no option reads the variable.
fn unread_variable(command: &Command, name: &str) -> Option<String> {
    let suffix = name.strip_prefix("REVEILLE_")?;
    // The function returns no warning for the variables that Docker and Kubernetes set for a service with the name
    // `reveille`, and for `REVEILLE_TERM`, which `reveille elect` sets.
    if suffix == "TERM" || suffix == "PORT" || suffix.starts_with("PORT_") || suffix.starts_with("SERVICE_") {
        return None;
    }
    let mut known = Vec::new();
    add_variables(command, &mut known);
    if known.iter().any(|known| known == name) {
        return None;
    }
    let likeness = |known: &&String| (strsim::jaro_winkler(name, known) * 1_000.0).round();
    let closest = known.iter().max_by(|one, other| likeness(one).total_cmp(&likeness(other)));
    Some(match closest.filter(|known| likeness(known) >= 900.0) {
        Some(known) => format!("no option reads the environment variable {name}; did you mean {known}?"),
        None => format!(
            "no option reads the environment variable {name}; `reveille help COMMAND` lists the variables of a command"
        ),
    })
}

fn add_variables(command: &Command, known: &mut Vec<String>) {
    known.extend(command.get_arguments().filter_map(|option| Some(option.get_env()?.to_string_lossy().into_owned())));
    for subcommand in command.get_subcommands() {
        add_variables(subcommand, known);
    }
}

pub(crate) struct Configuration {
    pub(crate) arguments: Arguments,
    /// Text of the effective configuration. `None` unless the process must print the configuration and exit.
    pub(crate) shown: Option<String>,
}

/// Returns the options that a configuration file can set, with their names.
fn options(command: &Command) -> impl Iterator<Item = (&str, &Arg)> {
    let serve = command.find_subcommand(SERVE).expect("the command `serve` exists");
    let options = serve.get_arguments().filter_map(|option| Some((option.get_long()?, option)));
    options.filter(|(long, option)| !NOT_IN_A_FILE.contains(long) && !option.is_hide_set())
}

fn option<'a>(command: &'a Command, key: &str) -> Option<&'a Arg> {
    options(command).find_map(|(long, option)| (long == key).then_some(option))
}

fn id_of(command: &Command, key: &str) -> Option<String> {
    Some(option(command, key)?.get_id().to_string())
}

#[derive(Default)]
struct File {
    /// Entries of a configuration file, by the names of their flags.
    entries: BTreeMap<String, Entry>,
}

struct Entry {
    /// Words of a command line that have the same effect as this entry of the file. A switch that is off has no words.
    words: Vec<String>,
    /// File and line.
    place: String,
}

impl File {
    fn read(path: &Path, command: &Command) -> anyhow::Result<Self> {
        let shown = path.display();
        let bytes =
            std::fs::metadata(path).with_context(|| format!("cannot read the configuration file {shown}"))?.len();
        anyhow::ensure!(
            bytes <= FILE_BYTES_MAX,
            "configuration file too long: {shown} has {bytes} bytes, but the maximum is {FILE_BYTES_MAX} bytes"
        );
        let text =
            std::fs::read_to_string(path).with_context(|| format!("cannot read the configuration file {shown}"))?;
        let place = |at: usize| format!("{shown}:{}", line_of(&text, at));
        let table = DeTable::parse(&text).map_err(|error| {
            // The `Display` text of the error shows the invalid line of the file, which may contain a password.
            // Therefore this function uses only the message of the error.
            let at = error.span().map_or(0, |span| span.start);
            anyhow::anyhow!("{}: invalid TOML: {}", place(at), error.message())
        })?;
        let mut entries = BTreeMap::new();
        for (key, value) in table.get_ref() {
            let (key, place) = (key.get_ref().as_ref(), place(key.span().start));
            let Some(option) = option(command, key) else { bail!("{place}: {}", unknown(command, key)) };
            let words = words(key, option, value.get_ref()).with_context(|| place.clone())?;
            check(command, key, &words).with_context(|| place.clone())?;
            entries.insert(key.to_owned(), Entry { words, place });
        }
        Ok(File { entries })
    }
}

fn line_of(text: &str, at: usize) -> usize {
    text.as_bytes().iter().take(at).filter(|byte| **byte == b'\n').count() + 1
}

fn unknown(command: &Command, key: &str) -> String {
    // Users may write underscores in a key, as in the configuration files of other programs.
    let name = key.replace('_', "-");
    let likeness = |known: &&str| (strsim::jaro_winkler(&name, known) * 1_000.0).round();
    let closest = options(command).map(|(long, _)| long).max_by(|one, other| likeness(one).total_cmp(&likeness(other)));
    match closest.filter(|known| likeness(known) >= 800.0) {
        Some(known) => format!("unknown option `{key}`: did you mean `{known}`?"),
        None => format!("unknown option `{key}`: `reveille serve --help` lists the options"),
    }
}

/// Returns the words of a command line that set the option to this value of the file.
fn words(key: &str, option: &Arg, value: &DeValue<'_>) -> anyhow::Result<Vec<String>> {
    if matches!(option.get_action(), ArgAction::SetTrue) {
        return match value {
            DeValue::Boolean(true) => Ok(vec![format!("--{key}")]),
            DeValue::Boolean(false) => Ok(Vec::new()),
            _ => bail!("invalid value of `{key}`: the value must be true or false"),
        };
    }
    let text = match value {
        DeValue::Array(values) if option.get_value_delimiter().is_some() => {
            let values: Option<Vec<String>> = values.iter().map(|value| scalar(value.get_ref())).collect();
            values.map(|values| values.join(","))
        }
        value => scalar(value),
    };
    let text = text.with_context(|| format!("invalid value of `{key}`: the value must be a string or a number"))?;
    Ok(vec![format!("--{key}={text}")])
}

fn scalar(value: &DeValue<'_>) -> Option<String> {
    match value {
        DeValue::String(text) => Some(text.to_string()),
        DeValue::Integer(number) => Some(match i128::from_str_radix(number.as_str(), number.radix()) {
            Ok(number) => number.to_string(),
            Err(_) => number.to_string(),
        }),
        DeValue::Float(number) => Some(number.to_string()),
        DeValue::Boolean(_) | DeValue::Datetime(_) | DeValue::Array(_) | DeValue::Table(_) => None,
    }
}

/// Checks whether the parser of the command line accepts these words, independently of all other options.
fn check(command: &Command, key: &str, words: &[String]) -> anyhow::Result<()> {
    let alone = command.clone().mut_subcommand(SERVE, |serve| serve.mut_args(|option| option.env(Resettable::Reset)));
    let words = ["reveille", SERVE].into_iter().map(str::to_owned).chain(words.iter().cloned());
    let Err(error) = alone.try_get_matches_from(words) else { return Ok(()) };
    if !matches!(error.kind(), ErrorKind::ValueValidation | ErrorKind::InvalidValue) {
        // The option may require other options. The parse of the whole configuration checks this requirement.
        return Ok(());
    }
    let reason = match error.get(ContextKind::ValidValue) {
        Some(ContextValue::Strings(valid)) => format!("the value must be one of {}", valid.join(", ")),
        _ => std::error::Error::source(&error)
            .map_or_else(|| "the value cannot be parsed".to_owned(), ToString::to_string),
    };
    bail!("invalid value of `{key}`: {reason}")
}

/// Returns the effective configuration as a configuration file, with the source of each value in a comment.
fn show(command: &Command, matches: &ArgMatches, of_file: &BTreeMap<String, String>) -> String {
    let serve = matches.subcommand_matches(SERVE).expect("the parsed command line has the command `serve`");
    let mut shown = String::from("# Effective configuration of `reveille serve`. Passwords are redacted.\n");
    for (long, option) in options(command) {
        let id = option.get_id().as_str();
        let help = option.get_help().map(ToString::to_string).unwrap_or_default();
        let values: Option<Vec<String>> = serve
            .try_get_raw(id)
            .ok()
            .flatten()
            .map(|values| values.map(|value| value.to_string_lossy().into_owned()).collect());
        let source = match (of_file.get(long), serve.value_source(id)) {
            (Some(place), _) => place.clone(),
            (None, Some(ValueSource::CommandLine)) => "flag".to_owned(),
            (None, Some(ValueSource::EnvVariable)) => {
                option.get_env().map_or_else(String::new, |name| name.to_string_lossy().into_owned())
            }
            (None, _) => "default".to_owned(),
        };
        let line = match values {
            Some(values) => format!("{long} = {}  # {source}", literal(option, &values)),
            None => format!("# {long} is not set"),
        };
        let written = writeln!(shown, "\n# {help}\n{line}");
        written.expect("writing to a string never fails");
    }
    shown
}

fn literal(option: &Arg, values: &[String]) -> String {
    let one = |value: &String| {
        let value = if option.is_hide_env_values_set() { without_password(value) } else { value.clone() };
        let is_number = value.parse::<i64>().is_ok_and(|number| number.to_string() == value);
        if is_number || matches!(option.get_action(), ArgAction::SetTrue) { value } else { quoted(&value) }
    };
    match option.get_value_delimiter() {
        Some(_) => format!("[{}]", values.iter().map(one).collect::<Vec<_>>().join(", ")),
        None => values.first().map(one).unwrap_or_default(),
    }
}

/// Returns `text` as a basic string of TOML.
fn quoted(text: &str) -> String {
    let mut quoted = String::from('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            c if c.is_control() => {
                write!(quoted, "\\u{:04X}", u32::from(c)).expect("writing to a string never fails");
            }
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

/// Returns the URL with `***` instead of its password. If the position of the password is ambiguous, the function
/// replaces the whole URL with `***`.
fn without_password(url: &str) -> String {
    const HIDDEN: &str = "***";
    let (base, query) = url.split_once('?').unwrap_or((url, ""));
    let (Some((scheme, rest)), false) = (base.split_once("://"), query.contains('@')) else { return HIDDEN.to_owned() };
    let place = match rest.rsplit_once('@') {
        Some((userinfo, place)) => match userinfo.split_once(':') {
            Some((user, _)) => format!("{user}:{HIDDEN}@{place}"),
            None => format!("{userinfo}@{place}"),
        },
        None => rest.to_owned(),
    };
    let parameter = |parameter: &str| match parameter.split_once('=') {
        Some((name, _)) if name.contains("pass") => format!("{name}={HIDDEN}"),
        _ => parameter.to_owned(),
    };
    let query: Vec<String> = query.split('&').filter(|part| !part.is_empty()).map(parameter).collect();
    let separator = if query.is_empty() { "" } else { "?" };
    format!("{scheme}://{place}{separator}{}", query.join("&"))
}

#[cfg(test)]
mod tests;
