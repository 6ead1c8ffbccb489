//! Prints results on standard output, as tables and fields for people or as JSON for programs.

use std::io::{self, Write as _};

use cli_support::console;
use reveille_client::{Error, Problem};
use serde::Serialize;

/// Prints `value` as JSON, on one line.
pub(crate) fn json(value: &impl Serialize) -> anyhow::Result<()> {
    Ok(console::line(&serde_json::to_string(value)?)?)
}

/// Result of an operation on one of several objects, as JSON.
#[derive(Serialize)]
struct ItemResult<'a, T> {
    id: &'a str,
    #[serde(flatten)]
    result: T,
}

/// Failure of an operation on one of several objects, as JSON.
#[derive(Serialize)]
struct ItemFailure<'a> {
    error: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<&'a Problem>,
}

/// Prints the result for the object with this id as JSON, on one line.
pub(crate) fn json_item(id: &str, result: impl Serialize) -> anyhow::Result<()> {
    json(&ItemResult { id, result })
}

/// Prints the failure for the object with this id as JSON, on one line.
pub(crate) fn json_failure(id: &str, error: &Error) -> anyhow::Result<()> {
    json_item(id, ItemFailure { error: error.to_string(), problem: error.problem() })
}

/// Prints a warning on standard error.
pub(super) fn warn(text: &str) {
    // If standard error is closed, the text is lost.
    let _unwritten = writeln!(io::stderr(), "reveille: warning: {}", escaped(text));
}

/// Prints a warning about runs that the server could not read.
pub(super) fn warn_of_unreadable(count: u64) {
    warn(&format!("{count} damaged runs of this range may be missing; the server's log contains their ids"));
}

/// Prints the rows as a table with a heading above each column. Each column is as wide as its widest cell.
pub(crate) fn table<const N: usize>(heads: [&str; N], rows: &[[String; N]]) -> anyhow::Result<()> {
    Ok(console::line(text_of(heads, rows).trim_end())?)
}

/// Prints one row of a table whose other rows are not known yet. A cell that is longer than its width moves the later
/// cells of the row.
pub(crate) fn open_row<const N: usize>(cells: &[String; N], widths: [usize; N]) -> anyhow::Result<()> {
    let cells: Vec<String> =
        cells.iter().zip(widths).map(|(cell, width)| format!("{:<width$}", escaped(cell))).collect();
    Ok(console::line(cells.join("  ").trim_end())?)
}

/// Prints one object with one field per line. The function omits fields without a value.
pub(crate) fn fields(fields: &[(&str, Option<String>)]) -> anyhow::Result<()> {
    let width = fields.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let present = fields.iter().filter_map(|(name, value)| Some((name, value.as_ref()?)));
    let lines: Vec<String> = present.map(|(name, value)| format!("{name:<width$}  {}", escaped(value))).collect();
    Ok(console::line(&lines.join("\n"))?)
}

/// Prints lines of text.
pub(crate) fn lines(lines: &[String]) -> anyhow::Result<()> {
    let lines: Vec<String> = lines.iter().map(|line| escaped(line)).collect();
    Ok(console::line(&lines.join("\n"))?)
}

fn text_of<const N: usize>(heads: [&str; N], rows: &[[String; N]]) -> String {
    let rows = rows.iter().map(|row| row.each_ref().map(|cell| escaped(cell)));
    let lines: Vec<[String; N]> = [heads.map(str::to_uppercase)].into_iter().chain(rows).collect();
    let mut text = String::new();
    for line in &lines {
        let mut padded = String::new();
        for (at, cell) in line.iter().enumerate() {
            let width = lines.iter().map(|line| line[at].chars().count()).max().unwrap_or(0);
            padded.push_str(&format!("{cell:<width$}  "));
        }
        text.push_str(padded.trim_end());
        text.push('\n');
    }
    text
}

/// Escapes control characters, because labels, names and responses come from other users and could contain terminal
/// commands.
pub(crate) fn escaped(text: &str) -> String {
    let spell = |c: char| if c.is_control() { c.escape_default().to_string() } else { c.to_string() };
    text.chars().map(spell).collect()
}

/// Escapes control characters as [`escaped`] does, except line ends and tabs.
pub(crate) fn escaped_lines(text: &str) -> String {
    let spell =
        |c: char| if c.is_control() && !"\n\t".contains(c) { c.escape_default().to_string() } else { c.to_string() };
    text.chars().map(spell).collect()
}

/// Breaks a line of text of another system into lines of at most `columns` columns, so that no part of the text begins
/// at the left margin of the terminal. Escapes control characters as [`escaped`] does, and characters that change the
/// direction of text or that no terminal shows, with which a text could look like another text. Each character that is
/// not ASCII counts as two columns, because some are that wide.
pub(crate) fn foreign_lines(line: &str, columns: usize) -> Vec<String> {
    let is_hidden = |c: char| {
        matches!(c, '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}'
            | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
            | '\u{2800}' | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}' | '\u{fff9}'..='\u{fffb}'
            | '\u{e0000}'..='\u{e007f}' | '\u{e0100}'..='\u{e01ef}')
    };
    let (mut lines, mut width) = (vec![String::new()], 0);
    for c in line.chars() {
        let spelled = match c {
            c if is_hidden(c) => c.escape_unicode().to_string(),
            c if c.is_control() => c.escape_default().to_string(),
            c => c.to_string(),
        };
        let added: usize = spelled.chars().map(|c| if c.is_ascii() { 1 } else { 2 }).sum();
        if width + added > columns {
            lines.push(String::new());
            width = 0;
        }
        width += added;
        lines.last_mut().expect("the list has a line").push_str(&spelled);
    }
    lines
}

/// Returns the value as text, or `-` if the value is `None`.
pub(crate) fn or_dash(value: Option<impl ToString>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

/// Returns the name that the API uses for a value of an enum.
pub(super) fn word(value: &impl Serialize) -> String {
    serde_json::to_value(value).ok().and_then(|value| value.as_str().map(str::to_owned)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_aligns_columns_and_escapes_control_characters() {
        let rows = [
            ["a".to_owned(), "größer".to_owned(), "x".to_owned()],
            ["\u{1b}[2J".to_owned(), "b".to_owned(), String::new()],
        ];
        let text = text_of(["id", "state", "next"], &rows);
        assert_eq!(text, "ID         STATE   NEXT\na          größer  x\n\\u{1b}[2J  b\n");
    }
}
