//! Index keys. Their byte order is the order in which the port lists rows.

use domain::{
    DueKey, Incarnation, LabelKey, Occurrence, PollerId, Revision, ScheduleId, ScheduleVersion, ShardId, TargetKey,
    TenantId, Timestamp,
};
use stored::{Malformed, Take};

// Kinds of rows in `Family::Points`. The first byte of a row's key is the kind.
const ID: u8 = b'i';
const STATE: u8 = b's';
pub(crate) const RUN: u8 = b'r';
const DEAD_LETTER: u8 = b'd';
pub(crate) const POSITIONS: u8 = b'p';
pub(crate) const TERM: u8 = b't';
pub(crate) const TENANT: u8 = b'u';
pub(crate) const HANDED_OVER: u8 = b'h';
pub(crate) const AUDIT: u8 = b'a';
pub(crate) const TICK: u8 = b'c';
pub(crate) const USAGE: u8 = b'n';
// The kinds b'k', b'l', b'o' and b'x' are not free: the modules `super::counted`, `super::listed` and `super::timed`
// use them.
const LABEL: u8 = b'b';
pub(crate) const PAST_TIMING: u8 = b'v';

/// Returns the key of a schedule's row in `Family::Rows`.
pub(crate) fn row(key: Incarnation) -> [u8; 16] {
    key.0.to_be_bytes()
}

pub(crate) fn id(tenant: TenantId, id: &str) -> Vec<u8> {
    let mut key = Vec::with_capacity(5 + id.len());
    key.push(ID);
    key.extend_from_slice(&tenant.0.to_be_bytes());
    key.extend_from_slice(id.as_bytes());
    key
}

/// Returns the bounds of the keys of a tenant's chosen ids: an inclusive lower and an exclusive upper key.
pub(crate) fn id_bounds(tenant: TenantId) -> (Vec<u8>, Vec<u8>) {
    let from = id(tenant, "");
    // An id consists of ASCII characters, so this byte is above every first byte of an id.
    let to = [&from[..], &[0xff]].concat();
    (from, to)
}

pub(crate) fn parse_id(key: &[u8]) -> Result<ScheduleId, Malformed> {
    let mut take = Take::new("an id's key", key);
    take.version(ID)?;
    let _tenant = take.bytes(4)?;
    let malformed = take.malformed();
    let text = str::from_utf8(take.bytes(key.len() - 5)?).ok();
    text.and_then(|text| ScheduleId::new(text).ok()).ok_or(malformed)
}

pub(crate) fn state(incarnation: Incarnation) -> [u8; 17] {
    let mut key = [STATE; 17];
    key[1..].copy_from_slice(&incarnation.0.to_be_bytes());
    key
}

pub(crate) const RUN_LEN: usize = 31;

pub(crate) fn run(of: &Occurrence) -> [u8; RUN_LEN] {
    let mut key = [RUN; RUN_LEN];
    key[1..].copy_from_slice(&occurrence(of));
    key
}

pub(crate) fn parse_run(key: &[u8]) -> Result<Occurrence, Malformed> {
    let mut take = Take::new("the key of a run", key);
    take.version(RUN)?;
    let of = parse_occurrence(&mut take)?;
    take.end()?;
    Ok(of)
}

pub(crate) fn dead_letter(tenant: TenantId, of: &Occurrence) -> [u8; 35] {
    let mut key = [DEAD_LETTER; 35];
    key[1..5].copy_from_slice(&tenant.0.to_be_bytes());
    key[5..].copy_from_slice(&occurrence(of));
    key
}

pub(crate) fn parse_dead_letter(key: &[u8]) -> Result<(TenantId, Occurrence), Malformed> {
    let mut take = Take::new("a dead letter's key", key);
    take.version(DEAD_LETTER)?;
    let tenant = TenantId(u32::from_be_bytes(take.array()?));
    let of = parse_occurrence(&mut take)?;
    take.end()?;
    Ok((tenant, of))
}

fn occurrence(of: &Occurrence) -> [u8; 30] {
    let mut key = [0; 30];
    key[..16].copy_from_slice(&of.incarnation.0.to_be_bytes());
    key[16..24].copy_from_slice(&instant(of.nominal));
    key[24..28].copy_from_slice(&of.revision.0.to_be_bytes());
    key[28..].copy_from_slice(&of.replay.to_be_bytes());
    key
}

fn parse_occurrence(take: &mut Take<'_>) -> Result<Occurrence, Malformed> {
    Ok(Occurrence {
        incarnation: Incarnation(u128::from_be_bytes(take.array()?)),
        nominal: parse_instant(take)?,
        revision: Revision(u32::from_be_bytes(take.array()?)),
        replay: u16::from_be_bytes(take.array()?),
    })
}

/// Returns the bytes of an occurrence in the order of [`Occurrence::by_time`].
pub(super) fn occurrence_by_time(of: &Occurrence) -> [u8; 30] {
    let mut key = [0; 30];
    key[..8].copy_from_slice(&instant(of.nominal));
    key[8..24].copy_from_slice(&of.incarnation.0.to_be_bytes());
    key[24..28].copy_from_slice(&of.revision.0.to_be_bytes());
    key[28..].copy_from_slice(&of.replay.to_be_bytes());
    key
}

pub(super) fn parse_occurrence_by_time(take: &mut Take<'_>) -> Result<Occurrence, Malformed> {
    let nominal = parse_instant(take)?;
    Ok(Occurrence {
        incarnation: Incarnation(u128::from_be_bytes(take.array()?)),
        nominal,
        revision: Revision(u32::from_be_bytes(take.array()?)),
        replay: u16::from_be_bytes(take.array()?),
    })
}

/// Returns the sortable bytes of an instant. The encoding flips the sign bit, so that instants before 1970 sort first.
pub(super) fn instant(at: Timestamp) -> [u8; 8] {
    (at.as_millis().cast_unsigned() ^ 1 << 63).to_be_bytes()
}

fn parse_instant(take: &mut Take<'_>) -> Result<Timestamp, Malformed> {
    Ok(Timestamp::from_millis((u64::from_be_bytes(take.array()?) ^ 1 << 63).cast_signed()))
}

const POLLER_LEN: usize = 8;

/// Returns the common prefix of the keys of all due rows of a poller.
pub(crate) fn poller(of: PollerId) -> [u8; POLLER_LEN] {
    let mut key = [0; POLLER_LEN];
    key[..4].copy_from_slice(&of.tenant.0.to_be_bytes());
    key[4..6].copy_from_slice(&of.generation.to_be_bytes());
    key[6..].copy_from_slice(&of.number.to_be_bytes());
    key
}

fn parse_poller(take: &mut Take<'_>) -> Result<PollerId, Malformed> {
    Ok(PollerId {
        tenant: TenantId(u32::from_be_bytes(take.array()?)),
        generation: u16::from_be_bytes(take.array()?),
        number: u16::from_be_bytes(take.array()?),
    })
}

pub(crate) const DUE_LEN: usize = 52;

/// Returns the key of a due row in `Family::Due`. The key starts with the poller, followed by the fields of [`DueKey`]
/// in their sort order.
pub(crate) fn due(of: PollerId, due: &DueKey) -> [u8; DUE_LEN] {
    let mut key = [0; DUE_LEN];
    key[..8].copy_from_slice(&poller(of));
    key[8..16].copy_from_slice(&instant(due.position));
    key[16..46].copy_from_slice(&occurrence(&due.occurrence));
    key[46..48].copy_from_slice(&due.attempt.to_be_bytes());
    key[48..].copy_from_slice(&due.target.0.to_be_bytes());
    key
}

pub(crate) fn parse_due(key: &[u8]) -> Result<(PollerId, DueKey), Malformed> {
    let mut take = Take::new("a due row's key", key);
    let poller = parse_poller(&mut take)?;
    let due = DueKey {
        position: parse_instant(&mut take)?,
        occurrence: parse_occurrence(&mut take)?,
        attempt: u16::from_be_bytes(take.array()?),
        target: TargetKey(u32::from_be_bytes(take.array()?)),
    };
    take.end()?;
    Ok((poller, due))
}

/// Returns a key that is above every due row of the poller at or before `at`, and below every later due row.
pub(crate) fn due_after(of: PollerId, at: Timestamp) -> Vec<u8> {
    let mut key = Vec::with_capacity(POLLER_LEN + 8);
    key.extend_from_slice(&poller(of));
    let next = at.as_millis().saturating_add(1);
    key.extend_from_slice(&instant(Timestamp::from_millis(next)));
    key
}

/// Returns the first and the last position that a due row of the poller with a key from `from` (inclusive) to `to`
/// (exclusive) can have. Returns `None` if no key of the poller is in this range.
pub(crate) fn due_positions(of: PollerId, from: &[u8], to: &[u8]) -> Option<(Timestamp, Timestamp)> {
    let (first, end) = (poller(of), due_end(of));
    let (from, to) = (from.max(&first), to.min(&end));
    if from >= to {
        return None;
    }
    let position = |key: &[u8]| {
        let bytes = key.get(POLLER_LEN..POLLER_LEN + 8)?;
        let at = parse_instant(&mut Take::new("a position", bytes)).ok()?;
        Some(at.clamp(Timestamp::MIN, Timestamp::MAX))
    };
    // A bound that ends with the poller has no position.
    Some((position(from).unwrap_or(Timestamp::MIN), position(to).unwrap_or(Timestamp::MIN)))
}

/// Returns the tenant at the start of a due row's key.
pub(crate) fn due_tenant(key: &[u8]) -> TenantId {
    let bytes = key.first_chunk().copied().unwrap_or_default();
    TenantId(u32::from_be_bytes(bytes))
}

/// Returns a key that is above every due row of the poller.
pub(crate) fn due_end(of: PollerId) -> Vec<u8> {
    let mut key = poller(of).to_vec();
    key.extend_from_slice(&[0xff; DUE_LEN - POLLER_LEN + 1]);
    key
}

/// Returns the bounds of the keys of an incarnation's runs: an inclusive lower and an exclusive upper key.
pub(crate) fn run_bounds(incarnation: Incarnation) -> (Vec<u8>, Vec<u8>) {
    let mut from = vec![RUN];
    from.extend_from_slice(&incarnation.0.to_be_bytes());
    let mut to = from.clone();
    to.extend_from_slice(&[0xff; 15]);
    (from, to)
}

/// Returns a key that is at or below the key of each run of the schedule at or after `at`, and above the key of each
/// earlier run.
pub(crate) fn runs_from(incarnation: Incarnation, at: Timestamp) -> Vec<u8> {
    let mut from = vec![RUN];
    from.extend_from_slice(&incarnation.0.to_be_bytes());
    from.extend_from_slice(&instant(at));
    from
}

/// Returns the bounds of the keys of a tenant's dead letters: an inclusive lower and an exclusive upper key.
pub(crate) fn dead_letter_bounds(tenant: TenantId) -> (Vec<u8>, Vec<u8>) {
    let mut from = vec![DEAD_LETTER];
    from.extend_from_slice(&tenant.0.to_be_bytes());
    let mut to = from.clone();
    to.extend_from_slice(&[0xff; 31]);
    (from, to)
}

pub(crate) fn positions(of: PollerId) -> [u8; 1 + POLLER_LEN] {
    let mut key = [POSITIONS; 1 + POLLER_LEN];
    key[1..].copy_from_slice(&poller(of));
    key
}

pub(crate) fn parse_positions(key: &[u8]) -> Result<PollerId, Malformed> {
    let mut take = Take::new("a positions key", key);
    take.version(POSITIONS)?;
    let poller = parse_poller(&mut take)?;
    take.end()?;
    Ok(poller)
}

pub(crate) fn term(shard: ShardId) -> [u8; 3] {
    let [high, low] = shard.0.to_be_bytes();
    [TERM, high, low]
}

pub(crate) fn handed_over(shard: ShardId) -> [u8; 3] {
    let [high, low] = shard.0.to_be_bytes();
    [HANDED_OVER, high, low]
}

/// Returns the shard in a key that [`term`] or [`handed_over`] built. `kind` is the first byte of the key.
pub(crate) fn parse_shard(kind: u8, key: &[u8]) -> Result<ShardId, Malformed> {
    let mut take = Take::new("a shard's key", key);
    take.version(kind)?;
    let shard = ShardId(u16::from_be_bytes(take.array()?));
    take.end()?;
    Ok(shard)
}

pub(crate) fn audit(tenant: TenantId, version: u64) -> [u8; 13] {
    let mut key = [AUDIT; 13];
    key[1..5].copy_from_slice(&tenant.0.to_be_bytes());
    key[5..].copy_from_slice(&version.to_be_bytes());
    key
}

/// Returns the key of the row that lists `incarnation` under a label.
pub(crate) fn labelled(tenant: TenantId, label: LabelKey, incarnation: Incarnation) -> [u8; 29] {
    let mut key = [LABEL; 29];
    key[1..5].copy_from_slice(&tenant.0.to_be_bytes());
    key[5..13].copy_from_slice(&label.0.to_be_bytes());
    key[13..].copy_from_slice(&incarnation.0.to_be_bytes());
    key
}

pub(crate) fn parse_labelled(key: &[u8]) -> Result<Incarnation, Malformed> {
    let mut take = Take::new("the key of a row that lists a schedule under a label", key);
    take.version(LABEL)?;
    let _tenant_and_label = take.bytes(12)?;
    let incarnation = Incarnation(u128::from_be_bytes(take.array()?));
    take.end()?;
    Ok(incarnation)
}

/// Returns the key of the past timing of a revision.
pub(crate) fn past_timing(of: ScheduleVersion) -> [u8; 21] {
    let mut key = [PAST_TIMING; 21];
    key[1..17].copy_from_slice(&of.incarnation.0.to_be_bytes());
    key[17..].copy_from_slice(&of.revision.0.to_be_bytes());
    key
}

pub(crate) fn parse_past_timing(key: &[u8]) -> Result<ScheduleVersion, Malformed> {
    let mut take = Take::new("a past timing's key", key);
    take.version(PAST_TIMING)?;
    let incarnation = Incarnation(u128::from_be_bytes(take.array()?));
    let revision = Revision(u32::from_be_bytes(take.array()?));
    take.end()?;
    Ok(ScheduleVersion { incarnation, revision })
}

/// Returns the bounds of the keys of a schedule's past timings from the revision `from` on: an inclusive lower and an
/// exclusive upper key.
pub(crate) fn past_timing_bounds(incarnation: Incarnation, from: Revision) -> (Vec<u8>, Vec<u8>) {
    let to = past_timing(ScheduleVersion { incarnation, revision: Revision(u32::MAX) });
    (past_timing(ScheduleVersion { incarnation, revision: from }).to_vec(), [&to[..], &[0]].concat())
}

pub(crate) fn parse_row(key: &[u8]) -> Result<Incarnation, Malformed> {
    let mut take = Take::new("a schedule's key", key);
    let incarnation = Incarnation(u128::from_be_bytes(take.array()?));
    take.end()?;
    Ok(incarnation)
}

pub(crate) fn parse_tenant(key: &[u8]) -> Result<TenantId, Malformed> {
    let mut take = Take::new("a tenant's key", key);
    take.version(TENANT)?;
    let id = TenantId(u32::from_be_bytes(take.array()?));
    take.end()?;
    Ok(id)
}

/// Returns the key of the row that contains the numbers of a tenant's schedules and bytes. A separate row whose key is
/// only [`USAGE`] marks the numbers of all tenants as complete.
pub(crate) fn usage(tenant: TenantId) -> [u8; 5] {
    let mut key = [USAGE; 5];
    key[1..].copy_from_slice(&tenant.0.to_be_bytes());
    key
}

pub(crate) fn parse_usage(key: &[u8]) -> Result<TenantId, Malformed> {
    let mut take = Take::new("the key of a tenant's usage row", key);
    take.version(USAGE)?;
    let id = TenantId(u32::from_be_bytes(take.array()?));
    take.end()?;
    Ok(id)
}

pub(crate) fn tenant(tenant: TenantId) -> [u8; 5] {
    let mut key = [TENANT; 5];
    key[1..].copy_from_slice(&tenant.0.to_be_bytes());
    key
}

/// Returns the key of the history sweep's clock record with the time `at`.
pub(crate) fn tick(at: Timestamp) -> [u8; 9] {
    let mut key = [TICK; 9];
    key[1..].copy_from_slice(&instant(at));
    key
}

pub(crate) fn parse_tick(key: &[u8]) -> Result<Timestamp, Malformed> {
    let mut take = Take::new("a tick's key", key);
    take.version(TICK)?;
    let at = parse_instant(&mut take)?;
    take.end()?;
    Ok(at)
}

/// Bounds of the keys of all schedules' states: an inclusive lower and an exclusive upper key.
pub(crate) const STATES: ([u8; 1], [u8; 1]) = ([STATE], [STATE + 1]);

pub(crate) fn parse_state(key: &[u8]) -> Result<Incarnation, Malformed> {
    let mut take = Take::new("a state's key", key);
    take.version(STATE)?;
    let incarnation = Incarnation(u128::from_be_bytes(take.array()?));
    take.end()?;
    Ok(incarnation)
}
