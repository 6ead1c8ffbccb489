//! Electors as rows: a lease, its holder, and a term that rises when it is taken anew.

use std::sync::Arc;
use std::time::Duration;

use coordination::{Answer, ClaimName, Elector, Follower, Leadership, MemberId, check_replica, poll_departures};
use domain::Term;

use crate::{Inner, millis, unexpected};

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

/// See [`crate::PostgresCoordination::elector`]. Its leases outlive the object.
pub struct PostgresElector {
    inner: Arc<Inner>,
    group: String,
    life: String,
}

impl PostgresElector {
    pub(crate) fn new(inner: Arc<Inner>, group: &ClaimName) -> Self {
        let life = MemberId::random(&inner.database.runtime).to_string();
        PostgresElector { inner, group: group.as_str().to_owned(), life }
    }
}

impl Elector for PostgresElector {
    fn is_leader(&self, replica: &str, lease: Duration) -> Answer<'_, Leadership> {
        let (replica, lease) = (replica.to_owned(), millis(lease));
        Box::pin(async move {
            check_replica(&replica)?;
            let rows = self
                .inner
                .ask(&self.inner.database.pulse, IS_LEADER, &[&self.group, &replica, &self.life, &lease])
                .await?;
            let row = rows.first().ok_or_else(|| unexpected("no row"))?;
            let leadership = || {
                let term = u64::try_from(row.try_get::<_, i64>(1).ok()?).ok()?;
                Some(Leadership { leads: row.try_get(0).ok()?, term: Term(term) })
            };
            leadership().ok_or_else(|| unexpected("no term"))
        })
    }

    fn resign(&self, replica: &str) -> Answer<'_, ()> {
        let replica = replica.to_owned();
        Box::pin(async move {
            check_replica(&replica)?;
            self.inner.ask(&self.inner.database.pulse, RESIGN, &[&self.group, &replica, &self.life]).await?;
            Ok(())
        })
    }

    fn followers(&self) -> Answer<'_, Vec<Follower>> {
        Box::pin(async move {
            let rows = self.inner.ask(&self.inner.database.pulse, FOLLOWERS, &[&self.group]).await?;
            let follower = |row: &postgres_client::tokio_postgres::Row| {
                Some(Follower { replica: row.try_get(0).ok()?, leads: row.try_get(1).ok()? })
            };
            rows.iter().map(follower).collect::<Option<_>>().ok_or_else(|| unexpected("what no replica wrote"))
        })
    }
    fn departures(&self, replica: &str, known: Vec<Follower>) -> Answer<'_, Option<Vec<Follower>>> {
        let replica = replica.to_owned();
        Box::pin(async move { poll_departures(&self.inner.database.runtime, self, &replica, &known).await })
    }
}
