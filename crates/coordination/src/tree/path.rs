//! Paths and names of nodes.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// Absolute path such as `/a/b`. No part is empty, `.` or `..`. The path of the root is `/`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodePath(Arc<str>);

/// Reason why a text is not a valid path.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NodePathError {
    /// The text does not start with `/`, ends with `/`, or has more than [`NodePath::LEN_MAX`] bytes.
    #[error("invalid path: it must start with `/`, not end with `/`, and have at most {} bytes", NodePath::LEN_MAX)]
    Form,
    /// A part of the path is empty, `.` or `..`.
    #[error("invalid path: a part must not be empty, `.` or `..`")]
    Part,
    /// The path contains a character that ZooKeeper rejects. ZooKeeper rejects control characters, private-use
    /// characters, and the characters from U+FFF0 to U+FFFF.
    #[error("invalid path: it contains the character {0:?}, which is not allowed")]
    Character(char),
}

impl NodePath {
    /// Largest length of a path, in bytes. The limits of the engines are higher. An index of PostgreSQL can contain
    /// much longer keys, and ZooKeeper limits only the size of the whole request.
    pub const LEN_MAX: usize = 1_024;

    /// Returns the path of the root, `/`.
    #[must_use]
    pub fn root() -> Self {
        NodePath("/".into())
    }

    /// Parses a path.
    ///
    /// # Errors
    /// Returns an error if the text is not a valid path.
    pub fn new(text: &str) -> Result<Self, NodePathError> {
        if text == "/" {
            return Ok(NodePath::root());
        }
        let parts = text.strip_prefix('/').filter(|_| text.len() <= Self::LEN_MAX).ok_or(NodePathError::Form)?;
        if parts.ends_with('/') {
            return Err(NodePathError::Form);
        }
        parts.split('/').try_for_each(check_part)?;
        Ok(NodePath(text.into()))
    }

    /// Appends `name` to this path, and returns the result. `name` may have several parts, as in `a/b`.
    ///
    /// # Errors
    /// Returns an error if the result is not a valid path.
    pub fn join(&self, name: &str) -> Result<Self, NodePathError> {
        if name.is_empty() {
            return Err(NodePathError::Part);
        }
        let parent = if self.is_root() { "" } else { &self.0 };
        NodePath::new(&format!("{parent}/{name}"))
    }

    /// Returns true if this path is `/`.
    #[must_use]
    pub fn is_root(&self) -> bool {
        &*self.0 == "/"
    }

    /// Returns the parent of this path, or `None` for the root.
    #[must_use]
    pub fn parent(&self) -> Option<Self> {
        let (parent, _) = self.split()?;
        Some(if parent.is_empty() { NodePath::root() } else { NodePath(parent.into()) })
    }

    /// Returns the last part of this path. It is empty for the root.
    #[must_use]
    pub fn name(&self) -> &str {
        self.split().map_or("", |(_, name)| name)
    }

    fn split(&self) -> Option<(&str, &str)> {
        self.0.rsplit_once('/').filter(|(_, name)| !name.is_empty())
    }

    /// Returns true if this path equals `above` or is below it.
    #[must_use]
    pub fn is_within(&self, above: &NodePath) -> bool {
        let rest = self.0.strip_prefix(&*above.0);
        above.is_root() || rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }

    /// Returns the complete path as text, for example `/a/b`.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

fn check_part(part: &str) -> Result<(), NodePathError> {
    if matches!(part, "" | "." | "..") {
        return Err(NodePathError::Part);
    }
    let is_forbidden = |c: &char| matches!(c, '\0'..='\u{1f}' | '\u{7f}'..='\u{9f}' | '\u{e000}'..='\u{f8ff}' | '\u{fff0}'..='\u{ffff}');
    part.chars().find(is_forbidden).map_or(Ok(()), |forbidden| Err(NodePathError::Character(forbidden)))
}

impl FromStr for NodePath {
    type Err = NodePathError;

    fn from_str(text: &str) -> Result<Self, NodePathError> {
        NodePath::new(text)
    }
}

impl fmt::Display for NodePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for NodePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Number that a tree gives to a sequential node. It is the number of children that sessions have already created below
/// the same parent, as a signed 32-bit number. The number after 2³¹ − 1 is −2³¹. The numbers therefore show the order
/// of creation only until this overflow. Recipes that need the exact order use [`created`](super::Stat::created).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Sequence(pub i32);

impl Sequence {
    const DIGITS: usize = 10;

    /// Parses the number of a sequential node. Like Curator, the function uses the text after the last `prefix` in the
    /// name. Returns `None` if this text is not the number of a sequential node.
    #[must_use]
    pub fn after(name: &str, prefix: &str) -> Option<Self> {
        let (_, text) = name.rsplit_once(prefix)?;
        let sequence = Sequence(text.parse().ok()?);
        (sequence.to_string() == text).then_some(sequence)
    }

    /// Parses the number at the end of a node's name. The text before the number is unknown. Like the library kazoo,
    /// the function uses the last ten characters of the name. A number below −999,999,999 has eleven characters. The
    /// function recognizes an eleven-character number only if its last ten characters are not a valid number.
    #[must_use]
    pub fn of(name: &str) -> Option<Self> {
        let last = |count: usize| name.len().checked_sub(count).and_then(|at| name.get(at..));
        let number = |text: &str| text.parse().ok().map(Sequence).filter(|number| number.to_string() == text);
        last(Self::DIGITS).and_then(number).or_else(|| last(Self::DIGITS + 1).and_then(number))
    }

    /// Returns the next number. The next number after 2³¹ − 1 is −2³¹.
    #[must_use]
    pub fn next(self) -> Self {
        Sequence(self.0.wrapping_add(1))
    }
}

/// Formats the number as it appears at the end of a name.
impl fmt::Display for Sequence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:010}", self.0)
    }
}

#[cfg(test)]
mod tests;
