//! Finds the prose of a file, for the language check and for `cargo xtask sample`. Prose means comments, paragraphs of
//! documents, string literals and test names.
//!
//! The lexer recognizes only the comments, strings and character literals of Rust, and no other part of its grammar.

/// One piece of prose.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Prose {
    pub(crate) kind: Kind,
    /// Line number of the first word, counted from 1.
    pub(crate) line: usize,
    pub(crate) text: String,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// Consecutive lines of `///` or `//!`.
    DocComment,
    /// Consecutive lines of `//`, or of `#` in scripts and configuration files.
    Comment,
    /// A string literal with a space in it.
    Text,
    /// Name of a function with a test attribute.
    TestName,
    /// Paragraph, list item, heading or table row of a Markdown document.
    Paragraph,
}

/// Returns all prose of the file at `path`, whose content is `text`. Returns an empty list for kinds of files without
/// prose.
pub(crate) fn of_file(path: &str, text: &str) -> Vec<Prose> {
    match path.rsplit('.').next() {
        Some("rs") => of_rust(text),
        Some("md") => of_markdown(text),
        Some("py" | "toml" | "yaml" | "service" | "sh") => of_hash_comments(text),
        _ => Vec::new(),
    }
}

fn of_rust(text: &str) -> Vec<Prose> {
    let mut found: Vec<Prose> = Vec::new();
    let mut rest = text;
    let mut line = 1;
    // Number of the line on which the last comment ended. The lexer uses this number to join comments on consecutive
    // lines.
    let mut comment_end = 0;
    while let Some(first) = rest.chars().next() {
        let length = if let Some(comment) = rest.strip_prefix("//") {
            let comment = comment.lines().next().unwrap_or_default();
            let is_doc = comment.starts_with('!') || (comment.starts_with('/') && !comment.starts_with("//"));
            let kind = if is_doc { Kind::DocComment } else { Kind::Comment };
            let words = comment.trim_start_matches(['/', '!']);
            match found.last_mut() {
                Some(last) if last.kind == kind && comment_end + 1 == line => {
                    last.text.push('\n');
                    last.text.push_str(words.trim());
                }
                _ => found.push(Prose { kind, line, text: words.trim().to_owned() }),
            }
            comment_end = line;
            2 + comment.len()
        } else if let Some((content, length)) = string(rest) {
            if content.trim().contains(' ') {
                found.push(Prose { kind: Kind::Text, line, text: content.to_owned() });
            }
            length
        } else if first == '\'' {
            character(rest)
        } else {
            // The lexer skips a whole identifier, because a letter within an identifier would look like the start of a
            // raw string.
            let word = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
            word.max(first.len_utf8())
        };
        line += rest[..length].matches('\n').count();
        rest = &rest[length..];
    }
    found.extend(test_names(text));
    found
}

/// Returns the content and the length of the string literal at the start of `text`.
fn string(text: &str) -> Option<(&str, usize)> {
    let prefix = text.find(|c: char| c != 'b' && c != 'r' && c != 'c').filter(|at| *at <= 2)?;
    let hashes = if text[..prefix].ends_with('r') {
        text[prefix..].len() - text[prefix..].trim_start_matches('#').len()
    } else {
        0
    };
    let start = prefix + hashes + 1;
    if !text[prefix + hashes..].starts_with('"') {
        return None;
    }
    if text[..prefix].contains('r') {
        let end = format!("\"{}", "#".repeat(hashes));
        let length = text[start..].find(&end)?;
        return Some((&text[start..start + length], start + length + end.len()));
    }
    let mut is_escaped = false;
    for (at, c) in text[start..].char_indices() {
        match c {
            '"' if !is_escaped => return Some((&text[start..start + at], start + at + 1)),
            '\\' => is_escaped = !is_escaped,
            _ => is_escaped = false,
        }
    }
    None
}

/// Returns the length of the character literal at the start of `text`, or the length of the quote of a lifetime.
fn character(text: &str) -> usize {
    let mut chars = text.char_indices().skip(1);
    match (chars.next(), chars.next()) {
        (Some((_, '\\')), Some((at, c))) => {
            let after = at + c.len_utf8();
            text[after..].find('\'').map_or(1, |end| after + end + 1)
        }
        (Some(_), Some((at, '\''))) => at + 1,
        _ => 1,
    }
}

/// Returns the names of the functions below an attribute that ends with `test` or `test(...)`.
fn test_names(text: &str) -> Vec<Prose> {
    let mut found = Vec::new();
    let mut is_test = false;
    for (line, number) in text.lines().zip(1..) {
        let code = line.trim_start();
        if let Some(attribute) = code.strip_prefix("#[") {
            let name = attribute.split(['(', ']']).next().unwrap_or_default();
            is_test |= name == "test" || name.ends_with("::test");
        } else if let Some((_, rest)) = code.split_once("fn ").filter(|_| is_test) {
            let name = rest.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default();
            found.push(Prose { kind: Kind::TestName, line: number, text: name.to_owned() });
            is_test = false;
        }
    }
    found
}

fn of_markdown(text: &str) -> Vec<Prose> {
    let mut found: Vec<Prose> = Vec::new();
    let (mut is_fenced, mut is_open) = (false, false);
    for (line, number) in text.lines().zip(1..) {
        let is_fence = line.starts_with("```");
        is_fenced ^= is_fence;
        // A line that starts with four spaces continues an open paragraph or list item. If none is open, the line is
        // code.
        let is_indented_code = line.starts_with("    ") && !is_open;
        let is_code = is_fence || is_fenced || is_indented_code || line.starts_with("<!--");
        if is_code || line.trim().is_empty() || line.starts_with("|--") {
            is_open = false;
            continue;
        }
        let starts = line.starts_with(['#', '|']) || is_item(line);
        match found.last_mut() {
            Some(last) if is_open && !starts => {
                last.text.push('\n');
                last.text.push_str(line.trim());
            }
            _ => found.push(Prose { kind: Kind::Paragraph, line: number, text: line.trim().to_owned() }),
        }
        is_open = !line.starts_with(['#', '|']);
    }
    found
}

/// Returns true for the first line of a list item. Other lines may also start with a digit or with `*emphasis*`.
fn is_item(line: &str) -> bool {
    let digits = line.len() - line.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    line.starts_with("- ") || line.starts_with("* ") || (digits > 0 && line[digits..].starts_with(". "))
}

fn of_hash_comments(text: &str) -> Vec<Prose> {
    let mut found: Vec<Prose> = Vec::new();
    let mut end = 0;
    for (line, number) in text.lines().zip(1..) {
        let Some(comment) = line.trim_start().strip_prefix('#').filter(|comment| comment.starts_with(' ')) else {
            continue;
        };
        match found.last_mut() {
            Some(last) if end + 1 == number => {
                last.text.push('\n');
                last.text.push_str(comment.trim());
            }
            _ => found.push(Prose { kind: Kind::Comment, line: number, text: comment.trim().to_owned() }),
        }
        end = number;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(path: &str, text: &str) -> Vec<(Kind, usize, String)> {
        of_file(path, text).into_iter().map(|prose| (prose.kind, prose.line, prose.text)).collect()
    }

    #[test]
    fn lexer_finds_comments_strings_and_test_names_in_rust_code() {
        let text = "//! Purpose\n//! of this.\n\nfn f<'a>(c: &'a str) -> char {\n    // Reason.\n    let s = \"a text \\\" // x\";\n    \
                    let c = '\"';\n    let r = r#\"raw \"text\"#;\n    '\\''\n}\n#[test]\nfn it_holds() {}\n";
        let expected = [
            (Kind::DocComment, 1, "Purpose\nof this.".to_owned()),
            (Kind::Comment, 5, "Reason.".to_owned()),
            (Kind::Text, 6, "a text \\\" // x".to_owned()),
            (Kind::Text, 8, "raw \"text".to_owned()),
            (Kind::TestName, 12, "it_holds".to_owned()),
        ];
        assert_eq!(kinds("a.rs", text), expected);
    }

    #[test]
    fn markdown_parser_finds_paragraphs_but_ignores_code_blocks() {
        let text = "# Title\n\nOne\n2 two.\n\n    code\n\n- item\n  more\n1. first\n10. tenth\n    line\n\n```\nfenced\n```\n| a | b |\n|---|---|\n| c | d |\n";
        let found: Vec<String> = of_file("a.md", text).into_iter().map(|prose| prose.text).collect();
        assert_eq!(
            found,
            ["# Title", "One\n2 two.", "- item\nmore", "1. first", "10. tenth\nline", "| a | b |", "| c | d |"]
        );
    }

    #[test]
    fn lexer_joins_consecutive_comment_lines_that_start_with_a_hash() {
        assert_eq!(kinds("a.toml", "# One\n# two\nkey = 1\n#no\n"), [(Kind::Comment, 1, "One\ntwo".to_owned())]);
    }
}
