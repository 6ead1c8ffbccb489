//! Codec of journal entries. An entry contains the batch of one call, or a part of the batch. The reader decodes the
//! items one by one, and the items borrow the entry's bytes.

use domain::{
    Audit, Author, DueKey, Hour, Incarnation, Occurrence, PollerId, Precondition, Revision, RunOrigin, ScheduleId,
    ScheduleVersion, ShardId, Tenant, TenantId, Term, Timestamp,
};
use store::{Cancellation, Change, HandOver, HandedOver, Insert, OwnerWrite, Positions};
use stored::{Malformed, Put, Take, count, hand_over, run, schedule};

use super::tenant;

const VERSION: u8 = 1;

/// Operation of a journal entry. All items of the entry have this operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Kind {
    Insert = 1,
    Place = 2,
    Cancellation = 3,
    PutTenant = 4,
    Take = 5,
    Write = 6,
    HandOver = 7,
    ChangeTenant = 8,
    Forget = 9,
    Rebuild = 10,
    IndexRuns = 11,
    /// Cancellations with authors. Entries of the kind `Cancellation` contain none.
    AuthoredCancellation = 12,
}

/// Builder of the journal entries of one call. It begins a new entry when the current entry has reached `entry_len_max`
/// bytes.
pub(crate) struct Builder {
    kind: Kind,
    entry_len_max: usize,
    current: Vec<u8>,
    count: u32,
    full: Vec<Vec<u8>>,
}

const HEADER_LEN: usize = 6;

impl Builder {
    pub(crate) fn new(kind: Kind, entry_len_max: usize) -> Self {
        Builder { kind, entry_len_max, current: Vec::new(), count: 0, full: Vec::new() }
    }

    fn item(&mut self, put: impl FnOnce(&mut Vec<u8>)) {
        if self.current.len() >= self.entry_len_max {
            self.cut();
        }
        if self.current.is_empty() {
            self.current.extend_from_slice(&[VERSION, self.kind as u8, 0, 0, 0, 0]);
        }
        put(&mut self.current);
        self.count += 1;
        // The builder ends the entry here, because the number of an item in an entry has only 16 bits.
        if self.count == OPS_MAX {
            self.cut();
        }
    }

    fn cut(&mut self) {
        if self.count > 0 {
            self.current[2..HEADER_LEN].copy_from_slice(&self.count.to_le_bytes());
            self.full.push(std::mem::take(&mut self.current));
            self.count = 0;
        }
    }

    pub(crate) fn finish(mut self) -> Vec<Vec<u8>> {
        self.cut();
        self.full
    }

    pub(crate) fn insert(&mut self, insert: &Insert) {
        self.item(|out| put_insert(out, insert));
    }

    /// Adds the item of an entry of the kind [`Kind::Place`] or [`Kind::Rebuild`].
    pub(crate) fn place(&mut self, poller: PollerId, due: &DueKey) {
        self.item(|out| {
            out.poller(poller);
            out.due(due);
        });
    }

    /// Adds the item of an entry of the kind [`Kind::AuthoredCancellation`].
    pub(crate) fn cancellation(&mut self, mark: &Cancellation) {
        let is_authored = self.kind == Kind::AuthoredCancellation;
        self.item(|out| {
            out.u32(mark.tenant.0);
            out.text(mark.id.as_str());
            if is_authored {
                out.u8(u8::from(mark.author.is_some()));
                mark.author.iter().for_each(|author| put_author(out, author));
            }
        });
    }

    pub(crate) fn change_tenant(&mut self, tenant: &Tenant, entry: &Audit) {
        self.item(|out| {
            out.u32(tenant.id.0);
            out.u64(tenant.version);
            out.blob(&stored::tenant::encode(tenant));
            out.blob(&stored::tenant::encode_audit(entry));
        });
    }

    pub(crate) fn take(&mut self, shard: ShardId) {
        self.item(|out| out.u16(shard.0));
    }

    pub(crate) fn write(&mut self, write: &OwnerWrite) {
        self.item(|out| put_write(out, write));
    }

    pub(crate) fn forget(&mut self, item: &ForgetItem) {
        self.item(|out| match item {
            ForgetItem::Tick(at) => {
                out.u8(0);
                out.timestamp(*at);
            }
            ForgetItem::DropTick(at) => {
                out.u8(1);
                out.timestamp(*at);
            }
            ForgetItem::Run { of, seen } => {
                out.u8(2);
                out.occurrence(of);
                out.u64(*seen);
            }
            ForgetItem::Schedule { incarnation, seen, before } => {
                out.u8(3);
                out.u128(incarnation.0);
                out.u64(*seen);
                out.timestamp(*before);
            }
            ForgetItem::PastTiming { of, seen } => {
                out.u8(4);
                put_edition(out, of);
                out.u64(*seen);
            }
            ForgetItem::Counts { tenant, before } => {
                out.u8(5);
                out.u32(tenant.0);
                out.i64(before.0);
            }
        });
    }

    /// Adds an item that writes the listing rows of up to `count` runs that an earlier build stored.
    pub(crate) fn index_runs(&mut self, count: u32) {
        self.item(|out| out.u32(count));
    }

    pub(crate) fn hand_over(&mut self, list: &HandOver) {
        self.item(|out| {
            out.u16(list.shard.0);
            out.u64(list.term.0);
            out.blob(&hand_over::encode(&list.attempts));
        });
    }
}

/// Maximum number of items in one entry.
pub(crate) const OPS_MAX: u32 = 1 << 16;

fn put_blob_of(out: &mut Vec<u8>, put: impl FnOnce(&mut Vec<u8>)) {
    let at = out.len();
    out.u32(0);
    put(out);
    let len = u32::try_from(out.len() - at - 4).expect("the size limit of requests keeps every value below 2^32 bytes");
    out[at..at + 4].copy_from_slice(&len.to_le_bytes());
}

fn put_insert(out: &mut Vec<u8>, insert: &Insert) {
    out.due(&insert.due);
    put_blob_of(out, |out| schedule::put(out, &insert.schedule));
}

fn put_edition(out: &mut Vec<u8>, edition: &ScheduleVersion) {
    out.u128(edition.incarnation.0);
    out.u32(edition.revision.0);
}

fn put_author(out: &mut Vec<u8>, author: &Author) {
    out.timestamp(author.at);
    out.u8(u8::from(author.key.is_some()));
    author.key.iter().for_each(|key| out.text(key));
}

fn put_write(out: &mut Vec<u8>, write: &OwnerWrite) {
    out.u64(write.term.0);
    out.poller(write.poller);
    match &write.change {
        Change::Put(insert) => {
            out.u8(if insert.by.is_some() { 13 } else { 0 });
            insert.by.iter().for_each(|by| out.text(by));
            put_insert(out, insert);
        }
        Change::Cancel(incarnation) => {
            out.u8(1);
            out.u128(incarnation.0);
        }
        Change::Run { run, then, ends, origin } => {
            out.u8(if origin.is_some() { 15 } else { 2 });
            origin.iter().for_each(|origin| count::put_origin(out, origin));
            put_blob_of(out, |out| run::put(out, run));
            out.u8(u8::from(then.is_some()));
            if let Some(due) = then {
                out.due(due);
            }
            out.u8(u8::from(*ends));
        }
        Change::Advance { incarnation, revision, due } => {
            out.u8(3);
            out.u128(incarnation.0);
            out.u32(revision.0);
            out.due(due);
        }
        Change::End { incarnation, revision } => {
            out.u8(4);
            out.u128(incarnation.0);
            out.u32(revision.0);
        }
        Change::Defer(due) => {
            out.u8(5);
            out.due(due);
        }
        Change::Redrive { of, due } => {
            out.u8(6);
            out.occurrence(of);
            out.due(due);
        }
        Change::Positions(positions) => {
            out.u8(7);
            out.timestamp(positions.closed);
            out.timestamp(positions.done);
        }
        Change::Reopen(positions) => {
            out.u8(11);
            out.timestamp(positions.closed);
            out.timestamp(positions.done);
        }
        Change::PutIf { insert, seen } => {
            out.u8(if insert.by.is_some() { 14 } else { 8 });
            out.u8(u8::from(seen.is_some()));
            if let Some(Precondition { edition, next }) = seen {
                put_edition(out, edition);
                out.u8(u8::from(next.is_some()));
                out.timestamp(next.unwrap_or_default());
            }
            insert.by.iter().for_each(|by| out.text(by));
            put_insert(out, insert);
        }
        Change::CancelIf(edition, author) => {
            out.u8(if author.is_some() { 12 } else { 9 });
            put_edition(out, edition);
            author.iter().for_each(|author| put_author(out, author));
        }
        Change::Reencrypt(schedule) => {
            out.u8(10);
            put_blob_of(out, |out| schedule::put(out, schedule));
        }
    }
}

/// Reader of a journal entry. It decodes one item at a time.
pub(crate) struct Reader<'a> {
    pub(crate) kind: Kind,
    pub(crate) count: u32,
    take: Take<'a>,
}

/// Schedule to create, in its encoded form.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct InsertItem<'a> {
    pub due: DueKey,
    pub head: schedule::Head,
    pub id: &'a str,
    /// Bytes of [`schedule::put`].
    pub row: &'a [u8],
    /// Id of the API key that requested a put.
    pub by: Option<&'a str>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct WriteItem<'a> {
    pub term: Term,
    pub poller: PollerId,
    pub change: ChangeItem<'a>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum ChangeItem<'a> {
    Put(InsertItem<'a>),
    PutIf { insert: InsertItem<'a>, seen: Option<Precondition> },
    Cancel(Incarnation),
    CancelIf(ScheduleVersion, Option<Author>),
    Run { run: RunItem<'a>, then: Option<DueKey>, ends: bool, origin: Option<RunOrigin> },
    Advance { incarnation: Incarnation, revision: Revision, due: DueKey },
    End { incarnation: Incarnation, revision: Revision },
    Defer(DueKey),
    Redrive { of: Occurrence, due: DueKey },
    Positions(Positions),
    Reopen(Positions),
    Reencrypt { head: schedule::Head, row: &'a [u8] },
}

/// Run, still encoded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RunItem<'a> {
    pub tenant: TenantId,
    pub occurrence: Occurrence,
    pub state: domain::RunState,
    /// Bytes of [`run::put`].
    pub value: &'a [u8],
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct TenantItem<'a> {
    pub tenant: Tenant,
    /// Bytes of [`stored::tenant::encode`].
    pub value: &'a [u8],
    /// Bytes of [`stored::tenant::encode_audit`].
    pub entry: &'a [u8],
}

/// Operation of the history sweep. It deletes a run or schedule only if the last write of its row was at the sequence
/// `seen`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ForgetItem {
    /// Records the current time of the clock. Every write with a later sequence than this operation happened after the
    /// recorded time.
    Tick(Timestamp),
    /// Deletes a clock record that the sweep no longer needs.
    DropTick(Timestamp),
    /// Deletes a run that has a final outcome.
    Run { of: Occurrence, seen: u64 },
    /// Deletes an ended or cancelled schedule without runs. The poller's `done` must be at or after `before`.
    Schedule { incarnation: Incarnation, seen: u64, before: Timestamp },
    /// Deletes the past timing of a revision.
    PastTiming { of: ScheduleVersion, seen: u64 },
    /// Deletes counts of runs of the hours before `before`.
    Counts { tenant: TenantId, before: Hour },
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct HandOverItem<'a> {
    pub shard: ShardId,
    pub term: Term,
    pub attempts: Vec<HandedOver>,
    /// Bytes of [`hand_over::encode`].
    pub value: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(crate) fn new(entry: &'a [u8]) -> Result<Self, Malformed> {
        let mut take = Take::new("a journal entry", entry);
        take.version(VERSION)?;
        let kind = match take.u8()? {
            1 => Kind::Insert,
            2 => Kind::Place,
            3 => Kind::Cancellation,
            4 => Kind::PutTenant,
            5 => Kind::Take,
            6 => Kind::Write,
            7 => Kind::HandOver,
            8 => Kind::ChangeTenant,
            9 => Kind::Forget,
            10 => Kind::Rebuild,
            11 => Kind::IndexRuns,
            12 => Kind::AuthoredCancellation,
            _ => return Err(take.malformed()),
        };
        let count = take.u32()?;
        if count > OPS_MAX {
            return Err(take.malformed());
        }
        Ok(Reader { kind, count, take })
    }

    pub(crate) fn insert(&mut self) -> Result<InsertItem<'a>, Malformed> {
        let due = self.take.due()?;
        let row = self.take.blob()?;
        let (head, id) = schedule::head_and_id(row)?;
        Ok(InsertItem { due, head, id, row, by: None })
    }

    fn insert_by(&mut self) -> Result<InsertItem<'a>, Malformed> {
        let by = Some(self.take.text()?);
        Ok(InsertItem { by, ..self.insert()? })
    }

    /// Decodes the item of an entry of the kind [`Kind::Place`] or [`Kind::Rebuild`].
    pub(crate) fn place(&mut self) -> Result<(PollerId, DueKey), Malformed> {
        Ok((self.take.poller()?, self.take.due()?))
    }

    /// Decodes the item of an entry of the kind [`Kind::Cancellation`] or [`Kind::AuthoredCancellation`].
    pub(crate) fn cancellation(&mut self) -> Result<Cancellation, Malformed> {
        let tenant = TenantId(self.take.u32()?);
        let id = ScheduleId::new(self.take.text()?).map_err(|_| self.take.malformed())?;
        let has_author = self.kind == Kind::AuthoredCancellation && self.flag()?;
        let author = if has_author { Some(self.author()?) } else { None };
        Ok(Cancellation { tenant, id, author })
    }

    fn author(&mut self) -> Result<Author, Malformed> {
        let at = self.take.timestamp()?;
        let key = if self.flag()? { Some(self.take.text()?.to_owned()) } else { None };
        Ok(Author { at, key })
    }

    /// Decodes a tenant that a build without tenant versions wrote.
    pub(crate) fn tenant(&mut self) -> Result<(Tenant, &'a [u8]), Malformed> {
        let value = self.take.blob()?;
        Ok((tenant::take_first(value)?, value))
    }

    pub(crate) fn change_tenant(&mut self) -> Result<TenantItem<'a>, Malformed> {
        let (id, version) = (TenantId(self.take.u32()?), self.take.u64()?);
        let (value, entry) = (self.take.blob()?, self.take.blob()?);
        let tenant = tenant::take(id, value)?;
        if tenant.version != version {
            return Err(self.take.malformed());
        }
        Ok(TenantItem { tenant, value, entry })
    }

    pub(crate) fn forget(&mut self) -> Result<ForgetItem, Malformed> {
        Ok(match self.take.u8()? {
            0 => ForgetItem::Tick(self.take.timestamp()?),
            1 => ForgetItem::DropTick(self.take.timestamp()?),
            2 => ForgetItem::Run { of: self.take.occurrence()?, seen: self.take.u64()? },
            3 => ForgetItem::Schedule {
                incarnation: Incarnation(self.take.u128()?),
                seen: self.take.u64()?,
                before: self.take.timestamp()?,
            },
            4 => ForgetItem::PastTiming { of: self.edition()?, seen: self.take.u64()? },
            5 => ForgetItem::Counts { tenant: TenantId(self.take.u32()?), before: Hour(self.take.i64()?) },
            _ => return Err(self.take.malformed()),
        })
    }

    pub(crate) fn index_runs(&mut self) -> Result<usize, Malformed> {
        usize::try_from(self.take.u32()?).map_err(|_| self.take.malformed())
    }

    pub(crate) fn take(&mut self) -> Result<ShardId, Malformed> {
        self.take.u16().map(ShardId)
    }

    pub(crate) fn hand_over(&mut self) -> Result<HandOverItem<'a>, Malformed> {
        let (shard, term) = (ShardId(self.take.u16()?), Term(self.take.u64()?));
        let value = self.take.blob()?;
        Ok(HandOverItem { shard, term, attempts: hand_over::decode(value)?, value })
    }

    pub(crate) fn write(&mut self) -> Result<WriteItem<'a>, Malformed> {
        let term = Term(self.take.u64()?);
        let poller = self.take.poller()?;
        let change = match self.take.u8()? {
            0 => ChangeItem::Put(self.insert()?),
            13 => ChangeItem::Put(self.insert_by()?),
            1 => ChangeItem::Cancel(Incarnation(self.take.u128()?)),
            2 => self.run(None)?,
            15 => {
                let origin = count::take_origin(&mut self.take)?;
                self.run(Some(origin))?
            }
            3 => ChangeItem::Advance {
                incarnation: Incarnation(self.take.u128()?),
                revision: Revision(self.take.u32()?),
                due: self.take.due()?,
            },
            4 => ChangeItem::End { incarnation: Incarnation(self.take.u128()?), revision: Revision(self.take.u32()?) },
            5 => ChangeItem::Defer(self.take.due()?),
            6 => ChangeItem::Redrive { of: self.take.occurrence()?, due: self.take.due()? },
            7 => ChangeItem::Positions(self.positions()?),
            8 => {
                let seen = if self.flag()? { Some(self.seen()?) } else { None };
                ChangeItem::PutIf { insert: self.insert()?, seen }
            }
            14 => {
                let seen = if self.flag()? { Some(self.seen()?) } else { None };
                ChangeItem::PutIf { insert: self.insert_by()?, seen }
            }
            9 => ChangeItem::CancelIf(self.edition()?, None),
            12 => ChangeItem::CancelIf(self.edition()?, Some(self.author()?)),
            10 => {
                let row = self.take.blob()?;
                ChangeItem::Reencrypt { head: schedule::head(row)?, row }
            }
            11 => ChangeItem::Reopen(self.positions()?),
            _ => return Err(self.take.malformed()),
        };
        Ok(WriteItem { term, poller, change })
    }

    fn run(&mut self, origin: Option<RunOrigin>) -> Result<ChangeItem<'a>, Malformed> {
        let value = self.take.blob()?;
        let (tenant, occurrence, state) = run::summary(value)?;
        let run = RunItem { tenant, occurrence, state, value };
        let then = if self.flag()? { Some(self.take.due()?) } else { None };
        Ok(ChangeItem::Run { run, then, ends: self.flag()?, origin })
    }

    fn positions(&mut self) -> Result<Positions, Malformed> {
        Ok(Positions { closed: self.take.timestamp()?, done: self.take.timestamp()? })
    }

    fn edition(&mut self) -> Result<ScheduleVersion, Malformed> {
        Ok(ScheduleVersion { incarnation: Incarnation(self.take.u128()?), revision: Revision(self.take.u32()?) })
    }

    fn seen(&mut self) -> Result<Precondition, Malformed> {
        let edition = self.edition()?;
        let (has_next, next) = (self.flag()?, self.take.timestamp()?);
        Ok(Precondition { edition, next: has_next.then_some(next) })
    }

    fn flag(&mut self) -> Result<bool, Malformed> {
        match self.take.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(self.take.malformed()),
        }
    }

    pub(crate) fn end(self) -> Result<(), Malformed> {
        self.take.end()
    }
}
