//! Paths and names of nodes.

use std::fmt;
use std::sync::Arc;

/// `/a/b`: absolute, of parts that are not empty, not `.` and not `..`; the root is `/`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodePath(Arc<str>);

/// Why a text is no path.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NodePathError {
    #[error("a path begins with `/`, ends without one, and has at most {} bytes", NodePath::LEN_MAX)]
    Form,
    #[error("a path's parts are not empty, not `.` and not `..`")]
    Part,
    /// ZooKeeper refuses control characters and those that Java cannot be sure of.
    #[error("a path cannot have {0:?}")]
    Character(char),
}

impl NodePath {
    /// What an index of PostgreSQL holds with room to spare; ZooKeeper's own limit is that of a request.
    pub const LEN_MAX: usize = 1_024;

    #[must_use]
    pub fn root() -> Self {
        NodePath("/".into())
    }

    /// # Errors
    /// If it is none.
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

    /// A child, or what is further below: `name` may have several parts.
    ///
    /// # Errors
    /// If the path would be none.
    pub fn join(&self, name: &str) -> Result<Self, NodePathError> {
        if name.is_empty() {
            return Err(NodePathError::Part);
        }
        let parent = if self.is_root() { "" } else { &self.0 };
        NodePath::new(&format!("{parent}/{name}"))
    }

    #[must_use]
    pub fn is_root(&self) -> bool {
        &*self.0 == "/"
    }

    /// `None` for the root.
    #[must_use]
    pub fn parent(&self) -> Option<Self> {
        let (parent, _) = self.split()?;
        Some(if parent.is_empty() { NodePath::root() } else { NodePath(parent.into()) })
    }

    /// The last part; empty for the root.
    #[must_use]
    pub fn name(&self) -> &str {
        self.split().map_or("", |(_, name)| name)
    }

    fn split(&self) -> Option<(&str, &str)> {
        self.0.rsplit_once('/').filter(|(_, name)| !name.is_empty())
    }

    /// Whether this is `above` or below it.
    #[must_use]
    pub fn is_within(&self, above: &NodePath) -> bool {
        let rest = self.0.strip_prefix(&*above.0);
        above.is_root() || rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }

    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

fn check_part(part: &str) -> Result<(), NodePathError> {
    if matches!(part, "" | "." | "..") {
        return Err(NodePathError::Part);
    }
    let is_refused = |c: &char| matches!(c, '\0'..='\u{1f}' | '\u{7f}'..='\u{9f}' | '\u{e000}'..='\u{f8ff}' | '\u{fff0}'..='\u{ffff}');
    part.chars().find(is_refused).map_or(Ok(()), |refused| Err(NodePathError::Character(refused)))
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

/// The number that a tree gave to a sequential node: its parent's count of creations, 32 bits with a sign. After 2³¹ − 1 comes
/// −2³¹, so a parent's nodes are in the order of their making only until then; recipes that must not err take the
/// node's [`created`](super::Stat::created).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Sequence(pub i32);

impl Sequence {
    const DIGITS: usize = 10;

    /// Of a sequential node's name after the last `prefix` in it; `None` if what is there is no such number. As Curator
    /// sorts.
    #[must_use]
    pub fn after(name: &str, prefix: &str) -> Option<Self> {
        let (_, text) = name.rsplit_once(prefix)?;
        let sequence = Sequence(text.parse().ok()?);
        (sequence.to_string() == text).then_some(sequence)
    }

    /// Of a name whose prefix is not known: its last ten characters, as the recipes of seed 002 and kazoo read it. Below
    /// −999,999,999 a number needs eleven, and is told from a positive one only where its last ten are no number.
    #[must_use]
    pub fn of(name: &str) -> Option<Self> {
        let last = |count: usize| name.len().checked_sub(count).and_then(|at| name.get(at..));
        let number = |text: &str| text.parse().ok().map(Sequence).filter(|number| number.to_string() == text);
        last(Self::DIGITS).and_then(number).or_else(|| last(Self::DIGITS + 1).and_then(number))
    }

    /// The one after it.
    #[must_use]
    pub fn next(self) -> Self {
        Sequence(self.0.wrapping_add(1))
    }
}

/// As it stands at the end of a name.
impl fmt::Display for Sequence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:010}", self.0)
    }
}

#[cfg(test)]
mod tests;
