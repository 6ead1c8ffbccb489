//! SQL statements of the tree, and conversion of their rows.

use bytes::Bytes;
use coordination::tree::session::SessionId;
use coordination::tree::{
    Acl, CreateMode, Created, Done, Expected, Grant, Identity, Node, NodePath, Op, Permissions, Stat, TreeError, Zxid,
};
use instants::Timestamp;
use postgres_client::tokio_postgres::Row;

use super::Inner;

pub(super) const OPEN: &str = "select reveille_coordination.tree_open($1, $2)";
pub(super) const RENEW: &str = "select reveille_coordination.tree_renew($1)";
pub(super) const CLOSE: &str = "select reveille_coordination.tree_close($1)";
pub(super) const REAP: &str = "select reveille_coordination.tree_reap()";
/// Reads the number of the last change, and whether [`REAP`] has anything to remove.
pub(super) const POLL: &str = "
    select last,
        exists (select 1 from reveille_coordination.tree_session where lease_end <= clock_timestamp())
        or exists (select 1 from reveille_coordination.tree_node where is_over)
        or (select at < clock_timestamp() - interval '20 minutes'
            from reveille_coordination.tree_event order by zxid, step limit 1) is true
    from reveille_coordination.tree";
/// Reads the events after a given position, up to and including the events of a given change.
pub(super) const EVENTS: &str = "
    select tree.forgotten, event.zxid, event.step, event.kind, event.path
    from reveille_coordination.tree left join (
        select zxid, step, kind, path from reveille_coordination.tree_event
        where (zxid, step) > ($1, $2) and zxid <= $3 order by zxid, step limit $4
    ) as event on true
    order by event.zxid, event.step";

/// Reads the number of the last change and a node, in the columns that [`Found`] expects. One statement reads both, so
/// both belong to the same state.
macro_rules! node {
    ($data:literal, $names:literal) => {
        concat!(
            "select tree.last, node.created, node.modified, node.children_modified, node.version, node.acl_version,
                node.creations, node.children, node.owner, reveille_coordination.millis(node.created_at),
                reveille_coordination.millis(node.modified_at), octet_length(node.data), node.grants, ",
            $data,
            ", ",
            $names,
            " from reveille_coordination.tree left join reveille_coordination.tree_node as node on node.path = $1"
        )
    };
}

pub(super) const GET: &str = node!("node.data", "'{}'::text[]");
pub(super) const EXISTS: &str = node!("''::bytea", "'{}'::text[]");
pub(super) const CHILDREN: &str = node!(
    "''::bytea",
    "array(select substr(path, length(parent) + (case parent when '/' then 1 else 2 end))
        from reveille_coordination.tree_node where parent = $1 order by parent, path)"
);

const CHANGE: &str = "
    select zxid, step, problem, path, created, modified, children_modified, version, acl_version, creations, children, owner,
        reveille_coordination.millis(created_at), reveille_coordination.millis(modified_at), data_bytes
    from reveille_coordination.tree_change($1, $2, $3, $4, $5, $6, $7, $8, $9)";

pub(super) fn unexpected() -> TreeError {
    TreeError::Disconnected(
        "unexpected response from the database; check whether its schema was changed manually".to_owned(),
    )
}

/// Returns the text that represents an identity in the rows.
fn text_of(identity: &Identity) -> String {
    match identity {
        Identity::Anyone => "anyone".to_owned(),
        Identity::Digest(digest) => format!("digest {digest}"),
    }
}

fn identity_of(text: &str) -> Option<Identity> {
    match text.split_once(' ') {
        None if text == "anyone" => Some(Identity::Anyone),
        Some(("digest", digest)) => Some(Identity::Digest(digest.to_owned())),
        _ => None,
    }
}

/// Returns the identities of a session as texts. The server determines the permissions of the session from these texts.
///
/// # Errors
/// Returns [`TreeError::Invalid`] if a text contains a character that a row cannot store.
pub(super) fn identity_names(identities: &[Identity]) -> Result<Vec<String>, TreeError> {
    let names: Vec<String> = [Identity::Anyone].iter().chain(identities).map(text_of).collect();
    if names.iter().any(|text| text.contains(['\n', '\0'])) {
        return Err(TreeError::Invalid(
            "the name of a credential must not contain line feeds or NUL characters".to_owned(),
        ));
    }
    Ok(names)
}

/// Returns the grants of `acl` as text. Returns `None` if a row cannot store the grants or if they grant nothing.
fn list_of(acl: &Acl, identities: &[Identity]) -> Option<String> {
    let grants = acl.grants(identities).ok()?;
    let lines: Vec<String> =
        grants.iter().map(|Grant { to, permissions }| format!("{} {}", permissions.bits(), text_of(to))).collect();
    (!lines.iter().any(|line| line.contains(['\n', '\0']))).then(|| lines.join("\n"))
}

fn grant_of(line: &str) -> Option<Grant> {
    let (bits, to) = line.split_once(' ')?;
    Some(Grant { permissions: Permissions::from_bits(bits.parse().ok()?), to: identity_of(to)? })
}

/// Converts eleven columns of `row` to a [`Stat`]. The first of these columns has the index `at`.
fn stat_of(row: &Row, at: usize) -> Option<Stat> {
    let zxid = |at| row.try_get(at).ok().map(Zxid);
    let number = |at| row.try_get::<_, i32>(at).ok();
    let time = |at| row.try_get(at).ok().map(Timestamp::from_millis);
    let (creations, children) = (number(at + 5)?, number(at + 6)?);
    Some(Stat {
        created: zxid(at)?,
        modified: zxid(at + 1)?,
        children_modified: zxid(at + 2)?,
        version: number(at + 3)?,
        children_version: creations.wrapping_mul(2).wrapping_sub(children),
        acl_version: number(at + 4)?,
        owner: row.try_get::<_, Option<i64>>(at + 7).ok()?.map(SessionId),
        data_bytes: usize::try_from(number(at + 10)?).ok()?,
        children: usize::try_from(children).ok()?,
        created_at: time(at + 8)?,
        modified_at: time(at + 9)?,
    })
}

/// Node at a path, if it exists, in the state after the change `zxid`.
pub(super) struct Found {
    pub(super) zxid: i64,
    pub(super) node: Option<Node>,
    pub(super) grants: Vec<Grant>,
    /// Names of the node's children. The list is empty if the statement does not read them.
    pub(super) names: Vec<String>,
}

impl Found {
    pub(super) async fn query(inner: &Inner, statement: &'static str, path: &NodePath) -> Result<Self, TreeError> {
        let rows = inner.read(statement, &[&path.as_str()]).await?;
        rows.first().and_then(Found::of).ok_or_else(unexpected)
    }

    fn of(row: &Row) -> Option<Self> {
        let zxid = row.try_get(0).ok()?;
        if row.try_get::<_, Option<i64>>(1).ok()?.is_none() {
            return Some(Found { zxid, node: None, grants: Vec::new(), names: Vec::new() });
        }
        let stat = stat_of(row, 1)?;
        let lines: Vec<&str> = row.try_get(12).ok()?;
        let data = Bytes::copy_from_slice(row.try_get(13).ok()?);
        Some(Found {
            zxid,
            node: Some(Node { data, stat }),
            grants: lines.into_iter().map(grant_of).collect::<Option<_>>()?,
            names: row.try_get(14).ok()?,
        })
    }
}

/// One step of a change to the tree.
pub(super) enum Step {
    Op(Op),
    SetAcl { path: NodePath, acl: Acl },
}

/// Steps of a change, split into one list for each parameter of the server function `tree_change`.
#[derive(Default)]
pub(super) struct Change<'a> {
    steps: &'a [Step],
    kinds: Vec<&'static str>,
    paths: Vec<&'a str>,
    parents: Vec<Option<String>>,
    datas: Vec<&'a [u8]>,
    versions: Vec<Option<i32>>,
    modes: Vec<i32>,
    lists: Vec<Option<String>>,
}

impl<'a> Change<'a> {
    pub(super) fn new(identities: &[Identity], steps: &'a [Step]) -> Self {
        let mut change = Change { steps, ..Change::default() };
        let list = |acl| list_of(acl, identities);
        for step in steps {
            match step {
                Step::Op(Op::Check { path, expected }) => change.add("check", path, &[], *expected, 0, None),
                Step::Op(Op::Create { path, data, mode, acl }) => {
                    change.add("create", path, data, Expected::Any, bits_of(*mode), list(acl));
                }
                Step::Op(Op::Set { path, data, expected }) => change.add("set", path, data, *expected, 0, None),
                Step::Op(Op::Delete { path, expected }) => change.add("delete", path, &[], *expected, 0, None),
                Step::SetAcl { path, acl } => change.add("set_acl", path, &[], Expected::Any, 0, list(acl)),
            }
        }
        change
    }

    fn add(
        &mut self,
        kind: &'static str,
        path: &'a NodePath,
        data: &'a [u8],
        expected: Expected,
        mode: i32,
        list: Option<String>,
    ) {
        self.kinds.push(kind);
        self.paths.push(path.as_str());
        self.parents.push(path.parent().map(|parent| parent.as_str().to_owned()));
        self.datas.push(data);
        self.versions.push(match expected {
            Expected::Any => None,
            Expected::Version(version) => Some(version),
        });
        self.modes.push(mode);
        self.lists.push(list);
    }

    /// Runs the change. Returns the number of the change and the results of the steps, or the index and the error of
    /// the failed step. Returns an error if the session has ended or the outcome is unknown.
    pub(super) async fn query(
        &self,
        inner: &Inner,
        session: SessionId,
        call: i64,
    ) -> Result<Result<(i64, Vec<Done>), (usize, TreeError)>, TreeError> {
        let Change { steps, kinds, paths, parents, datas, versions, modes, lists } = self;
        let parameters: [&(dyn postgres_client::tokio_postgres::types::ToSql + Sync); 9] =
            [&session.0, &call, kinds, paths, parents, datas, versions, modes, lists];
        let rows = inner.query(&inner.database.serial, CHANGE, &parameters).await?;
        if let Some(row) = rows.first()
            && let Some(problem) = row.try_get(2).map_err(|_| unexpected())?
        {
            let at = row.try_get(1).ok().and_then(|at: i32| usize::try_from(at).ok()).ok_or_else(unexpected)?;
            return match problem_of(problem) {
                error @ (TreeError::SessionLost | TreeError::Disconnected(_)) => Err(error),
                error => Ok(Err((at, error))),
            };
        }
        if rows.len() != steps.len() {
            return Err(unexpected());
        }
        let zxid = rows.first().map_or(Ok(0), |row| row.try_get(0)).map_err(|_| unexpected())?;
        let done: Option<Vec<Done>> = rows.iter().zip(*steps).map(|(row, step)| done_of(row, step)).collect();
        Ok(Ok((zxid, done.ok_or_else(unexpected)?)))
    }
}

fn bits_of(mode: CreateMode) -> i32 {
    i32::from(mode.is_sequential())
        | i32::from(mode.is_ephemeral()) << 1
        | i32::from(mode == CreateMode::Container) << 2
}

fn done_of(row: &Row, step: &Step) -> Option<Done> {
    Some(match step {
        Step::Op(Op::Check { .. }) => Done::Check,
        Step::Op(Op::Delete { .. }) => Done::Delete,
        Step::Op(Op::Create { .. }) => {
            let path = NodePath::new(row.try_get(3).ok()?).ok()?;
            Done::Create(Created { path, stat: stat_of(row, 4)? })
        }
        Step::Op(Op::Set { .. }) | Step::SetAcl { .. } => Done::Set(stat_of(row, 4)?),
    })
}

fn problem_of(problem: &str) -> TreeError {
    match problem {
        "no_node" => TreeError::NoNode,
        "node_exists" => TreeError::NodeExists,
        "bad_version" => TreeError::BadVersion,
        "not_empty" => TreeError::NotEmpty,
        "no_children_for_ephemerals" => TreeError::NoChildrenForEphemerals,
        "forbidden" => TreeError::Forbidden,
        "invalid_acl" => TreeError::InvalidAcl,
        "too_long" => {
            TreeError::Invalid(format!("with its sequence number, the path exceeds {} bytes", NodePath::LEN_MAX))
        }
        "root_stays" => TreeError::Invalid("the root cannot be deleted".to_owned()),
        "session_lost" => TreeError::SessionLost,
        "overtaken" => TreeError::Disconnected(
            "the server rejected the change, because a later change from the same session arrived first".to_owned(),
        ),
        other => TreeError::Disconnected(format!(
            "the database reported an unknown problem: {other}; \
             check whether its schema was changed manually"
        )),
    }
}
