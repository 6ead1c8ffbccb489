//! Electors as rows of PostgreSQL. A row contains a lease, the leader that holds the lease, and a term. The server
//! increases the term each time a replica takes the lease after the lease has ended.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use coordination::{
    Answer, Elector, ElectorError, Followed, Follower, KnownLeader, Leader, Leadership, Term, check_replica,
    poll_departures, poll_leader,
};
use postgres_client::tokio_postgres::Row;
use postgres_client::tokio_postgres::types::ToSql;
use runtime::Runtime;

use crate::database::{Database, OnDrop};
use crate::error::of_failure;
use crate::{OpenError, Options, millis};

const IS_LEADER: &str = "select leads, term from reveille_coordination.is_leader($1, $2, $3::text::uuid, $4)";
const RESIGN: &str = "select 1 from reveille_coordination.resign($1, $2, $3::text::uuid)";
const FOLLOWERS: &str = "
    with clock as materialized (select clock_timestamp() as now)
    select replica.replica, coalesce(elector.lease_end > clock.now, false)
    from clock, reveille_coordination.replica
    left join reveille_coordination.elector
        on elector.name = replica.elector and elector.replica = replica.replica and elector.life = replica.life
    where replica.elector = $1 and replica.lease_end > clock.now
    order by replica.replica, replica.life";
const LEADER: &str = "
    select replica, term from reveille_coordination.elector where name = $1 and lease_end > clock_timestamp()";

/// Access of one process to the electors of a database.
///
/// The wall clock of the database server determines when a lease ends. A jump of this clock moves the ends of all
/// present leases:
///
/// - After a jump *forward*, a lease ends earlier by the length of the jump. The leader notices this only at its next
///   call, so two replicas can lead for at most the rest of the lease. Their terms differ. If the leader itself makes
///   the next call after the early end of its lease, it leads under a later term.
/// - After a jump *back*, a lease ends later by the length of the jump. No two replicas lead at once. The next call of a
///   living leader corrects the end of the lease. After the death of the leader, no replica leads until the extended
///   lease ends.
///
/// Terms never decrease. A target that rejects writes with an earlier term is therefore safe during any jump. A clock
/// that NTP slews does not jump.
///
/// Its connections close after the process drops this object and
/// all its electors. The leases of the process then end when they expire.
pub struct PostgresElectors {
    database: Arc<Database>,
}

impl PostgresElectors {
    /// Connects to the server and checks the schema that [`crate::migrate`] created.
    ///
    /// # Errors
    /// Returns the errors of [`Database::open`].
    pub async fn open(runtime: &Runtime, url: &str, options: &Options) -> Result<Self, OpenError> {
        let database = Database::open(runtime, url, options, "reveille_coordination").await?;
        Ok(PostgresElectors { database: Arc::new(database) })
    }

    /// Returns an elector with which this process takes part in the replica group `group`.
    #[must_use]
    pub fn elector(&self, group: &GroupName) -> PostgresElector {
        let life = format!("{:032x}", self.database.runtime.random_u128());
        PostgresElector { database: self.database.clone(), group: group.0.clone(), life }
    }
}

impl fmt::Debug for PostgresElectors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PostgresElectors({})", self.database.server)
    }
}

/// Name of a replica group. It matches `[A-Za-z0-9_./-]{1,128}`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GroupName(String);

impl GroupName {
    /// Largest length of the name of a replica group, in bytes. Every allowed character has one byte.
    pub const LEN_MAX: usize = 128;

    /// Checks that `text` is a valid name, and returns the name.
    ///
    /// # Errors
    /// Returns [`GroupNameError`] if `text` does not match `[A-Za-z0-9_./-]{1,128}`.
    pub fn new(text: &str) -> Result<Self, GroupNameError> {
        let is_allowed = |c: char| c.is_ascii_alphanumeric() || "_./-".contains(c);
        if text.is_empty() || text.len() > Self::LEN_MAX {
            return Err(GroupNameError::Length(text.len()));
        }
        match text.char_indices().find(|(_, c)| !is_allowed(*c)) {
            Some((at, found)) => Err(GroupNameError::Character { at, found }),
            None => Ok(GroupName(text.to_owned())),
        }
    }
}

/// Reason why a text is not a valid name of a replica group.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum GroupNameError {
    /// The text is empty or longer than [`GroupName::LEN_MAX`]. The field contains the length of the text in bytes.
    #[error("invalid name of a replica group: it has {0} bytes instead of 1 to 128")]
    Length(usize),
    /// The text contains a character outside `[A-Za-z0-9_./-]`.
    #[error("invalid name of a replica group: it contains {found:?} at byte {at}; use only A-Z, a-z, 0-9, _ . / and -")]
    Character {
        /// Byte index of the first character that is not allowed in a name.
        at: usize,
        /// First character that is not allowed in a name.
        found: char,
    },
}

/// Access of one replica to its replica group. [`PostgresElectors::elector`] returns this object. A drop of the object
/// does not end the lease of the replica.
#[derive(Clone)]
pub struct PostgresElector {
    database: Arc<Database>,
    group: String,
    life: String,
}

impl PostgresElector {
    async fn query(
        &self,
        statement: &'static str,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, ElectorError> {
        let rows = self.database.query(&self.database.urgent, statement, parameters, OnDrop::Abandon);
        rows.await.map_err(of_failure)
    }
}

/// Returns the term in the second column of `row`.
fn term(row: &Row) -> Option<Term> {
    u64::try_from(row.try_get::<_, i64>(1).ok()?).ok().map(Term)
}

fn unexpected(what: &str) -> ElectorError {
    ElectorError::Rejected(format!(
        "unexpected response from the database ({what}); check whether its schema was changed manually"
    ))
}

impl Elector for PostgresElector {
    fn is_leader(&self, replica: &str, lease: Duration) -> Answer<'_, Leadership> {
        let (replica, lease) = (replica.to_owned(), millis(lease));
        Box::pin(async move {
            check_replica(&replica)?;
            let rows = self.query(IS_LEADER, &[&self.group, &replica, &self.life, &lease]).await?;
            let row = rows.first().ok_or_else(|| unexpected("no row"))?;
            let leadership = || Some(Leadership { leads: row.try_get(0).ok()?, term: term(row)? });
            leadership().ok_or_else(|| unexpected("no term"))
        })
    }

    fn resign(&self, replica: &str) -> Answer<'_, ()> {
        let replica = replica.to_owned();
        Box::pin(async move {
            check_replica(&replica)?;
            self.query(RESIGN, &[&self.group, &replica, &self.life]).await?;
            Ok(())
        })
    }

    fn followers(&self) -> Answer<'_, Vec<Follower>> {
        Box::pin(async move {
            let rows = self.query(FOLLOWERS, &[&self.group]).await?;
            let follower = |row: &Row| Some(Follower { replica: row.try_get(0).ok()?, leads: row.try_get(1).ok()? });
            rows.iter().map(follower).collect::<Option<_>>().ok_or_else(|| unexpected("malformed replica row"))
        })
    }

    fn departures(&self, replica: &str, known: Vec<Follower>) -> Answer<'_, Option<Vec<Follower>>> {
        let replica = replica.to_owned();
        Box::pin(async move { poll_departures(&self.database.runtime, self, &replica, &known).await })
    }

    fn follow_leader(&self) -> Answer<'_, Followed<KnownLeader>> {
        let this = self.clone();
        let read = move || -> Answer<'static, Option<Leader>> {
            let this = this.clone();
            Box::pin(async move {
                let rows = this.query(LEADER, &[&this.group]).await?;
                let Some(row) = rows.first() else { return Ok(None) };
                let leader = || Some(Leader { id: row.try_get(0).ok()?, term: term(row)? });
                leader().map(Some).ok_or_else(|| unexpected("malformed elector row"))
            })
        };
        Box::pin(async move { poll_leader(&self.database.runtime, read).await })
    }
}
