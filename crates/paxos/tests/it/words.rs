//! Texts of messages, records and entries for the output of scenarios.

use std::time::Duration;

use bytes::Bytes;
use paxos::{Claim, Entry, Instant, MastershipEnd, Message, NodeId, Position, Record, Slot, Term, Value};

pub(crate) fn time(instant: Instant) -> String {
    format!("{:?}", Duration::from_micros(instant.0))
}

pub(crate) fn text(bytes: &Bytes) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

pub(crate) fn nodes(nodes: &[NodeId]) -> String {
    nodes.iter().map(NodeId::to_string).collect::<Vec<_>>().join(" ")
}

pub(crate) fn value(value: &Value) -> String {
    match value {
        Value::Noop => "noop".to_owned(),
        Value::Data(batch) => format!("[{}]", batch.iter().map(text).collect::<Vec<_>>().join(" ")),
        Value::BeMaster(be_master) => {
            let liveness =
                if be_master.liveness > 0 { format!(" by liveness {}", be_master.liveness) } else { String::new() };
            let claim = match be_master.claim {
                Claim::Waited { term: Term::NONE, .. } => "no earlier master".to_owned(),
                Claim::Waited { term, lease_slot } => format!("{term} is over, last renewed by slot {lease_slot}"),
                Claim::Own { term } => format!("it holds {term}"),
                Claim::Consent { term } => format!("it has the consent for {term}"),
            };
            format!("{} is master{liveness}: {claim}", be_master.node)
        }
        Value::Shorten(shorten) => format!("{} ends in {:?}, for {}", shorten.term, shorten.remaining, shorten.to),
        Value::Members(members) => format!("members {}", nodes(members)),
    }
}

/// Returns the text of the entries. The text of an entry contains its ballot only if the ballot differs from the ballot
/// of the previous entry.
pub(crate) fn entries<'a>(entries: impl IntoIterator<Item = &'a Entry>) -> String {
    let mut ballot = None;
    let words = entries.into_iter().map(|entry| match ballot.replace(entry.ballot) {
        Some(before) if before == entry.ballot => value(&entry.value),
        _ => format!("{} {}", entry.ballot, value(&entry.value)),
    });
    words.collect::<Vec<_>>().join(", ")
}

fn position(position: Position) -> String {
    if position == Position::START { "0".to_owned() } else { format!("{} of {}", position.slot, position.ballot) }
}

pub(crate) fn message(message: &Message) -> String {
    match message {
        Message::Prepare { ballot, pre_vote, over } => {
            let pre_vote = if *pre_vote { " as pre-vote" } else { "" };
            let over = match over {
                MastershipEnd::Waited { .. } => String::new(),
                MastershipEnd::Expired { node, liveness, .. } => format!(", liveness {liveness} of {node} has expired"),
                MastershipEnd::Consent { term } => format!(", with the consent for {term}"),
            };
            format!("prepare {ballot}{pre_vote}{over}")
        }
        Message::Promise { ballot, pre_vote, last, idle } => {
            let pre_vote = if *pre_vote { " as pre-vote" } else { "" };
            format!("promise {ballot}{pre_vote}, log to {}, idle {idle:?}", position(*last))
        }
        Message::Reject { ballot, promised } => format!("reject {ballot}, promised {promised}"),
        Message::Pull { ballot, after, offset: 0 } => format!("pull for {ballot} after {}", position(*after)),
        Message::Pull { ballot, offset, .. } => format!("pull for {ballot} the snapshot from byte {offset}"),
        Message::Pulled { ballot, after, entries } => {
            format!("pulled for {ballot} after {}: {}", position(*after), self::entries(entries))
        }
        Message::Accept { ballot, after, entries, decided } => {
            let entries = if entries.is_empty() { String::new() } else { format!(": {}", self::entries(entries)) };
            format!("accept {ballot} after {}{entries}; decided {decided}", position(*after))
        }
        Message::Accepted { ballot, slot, decided } => format!("accepted {ballot} to {slot}; decided {decided}"),
        Message::Gap { ballot, slot } => format!("gap {ballot} after {slot}"),
        Message::Snapshot { ballot, head, offset, part } => {
            let (len, slot) = (head.len, head.position.slot);
            format!("snapshot {ballot} to {slot}, from byte {offset} of {len}: {}", text(part))
        }
        Message::Received { ballot, slot, offset } => format!("received {ballot} snapshot to {slot}, {offset} bytes"),
        Message::Forward { entry } => format!("forward {}", text(entry)),
        Message::RequestConsent { term } => format!("request consent for {term}"),
        Message::Consent { term, taker } => format!("consent: {term} is handed over to {taker}"),
        Message::Decline { term } => format!("decline {term}"),
        Message::Report(_) | Message::Orders(_) => unreachable!("scenarios have members only, not whole nodes"),
    }
}

pub(crate) fn record(record: &Record) -> String {
    match record {
        Record::Promise(ballot) => format!("promise {ballot}"),
        Record::Entries { after: Slot(after), entries } => format!("after {after}: {}", self::entries(entries)),
        Record::Decided(slot) => format!("decided {slot}"),
        Record::Snapshot(snapshot) => format!("snapshot to {}", snapshot.position.slot),
    }
}
