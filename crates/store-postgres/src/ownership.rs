//! Terms of shards, and the lists of attempts in flight that an owner hands over to the next owner.

use std::collections::BTreeMap;

use domain::{ShardId, Term};
use store::{HandOver, HandedOver, StoreError, WriteRejection};
use stored::hand_over;

use crate::engine::Inner;
use crate::epoch::NEWEST;
use crate::error::store_error;

/// Raises the terms of shards. The statement locks the shards in the same order as owners' writes do.
const TAKE: &str = "with locked as (
        select s.shard, i.times from unnest($1::smallint[], $2::bigint[]) as i (shard, times)
        join reveille.shard s on s.shard = i.shard order by s.shard for update of s
    )
    update reveille.shard s set term = s.term + l.times from locked l where s.shard = l.shard
    returning s.shard, s.term";
const HAND_OVER: &str = "with locked as (
        select s.shard, i.attempts from unnest($1::smallint[], $2::bigint[], $3::bytea[]) as i (shard, term, attempts)
        join reveille.shard s on s.shard = i.shard and s.term = i.term order by s.shard for update of s
    )
    update reveille.shard s set handed_over = l.attempts from locked l where s.shard = l.shard
    returning s.shard, s.term";
const HANDED_OVER: &str = "select shard, handed_over from reveille.shard where shard = any($1::smallint[])";

impl Inner {
    pub(crate) async fn take(&self, shards: &[ShardId]) -> Result<Vec<Term>, StoreError> {
        if shards.is_empty() {
            return Ok(Vec::new());
        }
        let mut times: BTreeMap<ShardId, i64> = BTreeMap::new();
        shards.iter().for_each(|shard| *times.entry(*shard).or_default() += 1);
        let (numbers, counts): (Vec<i16>, Vec<i64>) =
            times.iter().map(|(shard, times)| (shard.0.cast_signed(), *times)).unzip();
        let rows = self.takers.query(TAKE, &[&numbers, &counts]).await.map_err(store_error)?;
        let epoch = rows.iter().map(|row| Term(row.get::<_, i64>(1).cast_unsigned()).epoch()).max().unwrap_or(0);
        if epoch > self.epochs.newest() {
            let newest = self.readers.query(NEWEST, &[]).await.map_err(store_error)?;
            newest.iter().for_each(|row| self.epochs.learn_from(row));
        }
        if epoch != self.epochs.newest() {
            // Another connection of this process reached a database in a later epoch.
            return Err(StoreError::Unavailable("a new epoch of the database has begun; retry".to_owned()));
        }
        // Maps each shard to the next term that this method returns for the shard.
        let mut next: BTreeMap<ShardId, i64> = BTreeMap::new();
        for row in &rows {
            let shard = ShardId(row.get::<_, i16>(0).cast_unsigned());
            next.insert(shard, row.get::<_, i64>(1) - times.get(&shard).copied().unwrap_or_default() + 1);
        }
        let term = |shard: &ShardId| {
            let next = next.get_mut(shard)?;
            *next += 1;
            Some(Term((*next - 1).cast_unsigned()))
        };
        let missing = || StoreError::Damaged("the table reveille.shard has no row for a requested shard".to_owned());
        shards.iter().map(term).collect::<Option<Vec<Term>>>().ok_or_else(missing)
    }

    pub(crate) async fn hand_over(&self, lists: Vec<HandOver>) -> Result<Vec<Result<(), WriteRejection>>, StoreError> {
        if lists.is_empty() {
            return Ok(Vec::new());
        }
        // If the call contains several lists for a shard, the last list takes effect.
        let mut last: BTreeMap<(ShardId, Term), Vec<u8>> = BTreeMap::new();
        for HandOver { shard, term, attempts } in &lists {
            let of_shard = attempts.iter().all(|attempt| attempt.poller.shard() == *shard);
            assert!(of_shard, "a hand-over contains only attempts of its shard: {shard:?}");
            last.insert((*shard, *term), hand_over::encode(attempts));
        }
        let mut columns = (Vec::new(), Vec::new(), Vec::new());
        for ((shard, term), attempts) in last {
            columns.0.push(shard.0.cast_signed());
            columns.1.push(term.0.cast_signed());
            columns.2.push(attempts);
        }
        let rows = self.takers.query(HAND_OVER, &[&columns.0, &columns.1, &columns.2]).await.map_err(store_error)?;
        let written: BTreeMap<i16, i64> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
        let response = |list: &HandOver| {
            let under = written.get(&list.shard.0.cast_signed());
            if under == Some(&list.term.0.cast_signed()) { Ok(()) } else { Err(WriteRejection::Superseded) }
        };
        Ok(lists.iter().map(response).collect())
    }

    pub(crate) async fn handed_over(&self, shards: &[ShardId]) -> Result<Vec<Vec<HandedOver>>, StoreError> {
        if shards.is_empty() {
            return Ok(Vec::new());
        }
        let numbers: Vec<i16> = shards.iter().map(|shard| shard.0.cast_signed()).collect();
        let rows = self.readers.query(HANDED_OVER, &[&numbers]).await.map_err(store_error)?;
        let mut found: BTreeMap<i16, Vec<HandedOver>> = BTreeMap::new();
        for row in &rows {
            if let Some(stored) = row.get::<_, Option<&[u8]>>(1) {
                found.insert(row.get(0), hand_over::decode(stored)?);
            }
        }
        Ok(numbers.iter().map(|number| found.get(number).cloned().unwrap_or_default()).collect())
    }
}
