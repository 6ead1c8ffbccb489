//! Results on standard output: tables and fields for people, JSON for programs.

use cli_support::console;
use serde::Serialize;

/// Prints `value` as JSON, on one line.
pub(crate) fn json(value: &impl Serialize) -> anyhow::Result<()> {
    Ok(console::line(&serde_json::to_string(value)?)?)
}

/// Rows under heads, each column as wide as its widest cell.
pub(crate) fn table<const N: usize>(heads: [&str; N], rows: &[[String; N]]) -> anyhow::Result<()> {
    Ok(console::line(text_of(heads, rows).trim_end())?)
}

/// One thing, a field a line; those without a value are left out.
pub(crate) fn fields(fields: &[(&str, Option<String>)]) -> anyhow::Result<()> {
    let width = fields.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let told = fields.iter().filter_map(|(name, value)| Some((name, value.as_ref()?)));
    let lines: Vec<String> = told.map(|(name, value)| format!("{name:<width$}  {}", harmless(value))).collect();
    Ok(console::line(&lines.join("\n"))?)
}

fn text_of<const N: usize>(heads: [&str; N], rows: &[[String; N]]) -> String {
    let rows = rows.iter().map(|row| row.each_ref().map(|cell| harmless(cell)));
    let lines: Vec<[String; N]> = [heads.map(str::to_uppercase)].into_iter().chain(rows).collect();
    let mut text = String::new();
    for line in &lines {
        let mut told = String::new();
        for (at, cell) in line.iter().enumerate() {
            let width = lines.iter().map(|line| line[at].chars().count()).max().unwrap_or(0);
            told.push_str(&format!("{cell:<width$}  "));
        }
        text.push_str(told.trim_end());
        text.push('\n');
    }
    text
}

/// Labels, names and answers were written by others: what would drive a terminal is spelled out.
pub(crate) fn harmless(text: &str) -> String {
    let spell = |c: char| if c.is_control() { c.escape_default().to_string() } else { c.to_string() };
    text.chars().map(spell).collect()
}

/// As [`harmless`], with the ends of lines and tabs as they are.
pub(crate) fn harmless_lines(text: &str) -> String {
    let spell =
        |c: char| if c.is_control() && !"\n\t".contains(c) { c.escape_default().to_string() } else { c.to_string() };
    text.chars().map(spell).collect()
}

/// A value that may not be there.
pub(crate) fn or_dash(value: Option<impl ToString>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

/// The wire's own word for a value of an enum.
pub(super) fn word(value: &impl Serialize) -> String {
    serde_json::to_value(value).ok().and_then(|value| value.as_str().map(str::to_owned)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_cells_and_nothing_drives_the_terminal() {
        let rows = [
            ["a".to_owned(), "größer".to_owned(), "x".to_owned()],
            ["\u{1b}[2J".to_owned(), "b".to_owned(), String::new()],
        ];
        let text = text_of(["id", "state", "next"], &rows);
        assert_eq!(text, "ID         STATE   NEXT\na          größer  x\n\\u{1b}[2J  b\n");
    }
}
