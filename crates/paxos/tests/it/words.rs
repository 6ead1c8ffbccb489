//! How stories put what is sent, written and told.

use std::time::Duration;

use bytes::Bytes;
use paxos::{Claim, Entry, Instant, Message, NodeId, Over, Position, Record, Slot, Tenure, Value};

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
        Value::BeMaster(wish) => {
            let liveness = if wish.liveness > 0 { format!(" by liveness {}", wish.liveness) } else { String::new() };
            let claim = match wish.claim {
                Claim::Waited { tenure: Tenure::NONE, .. } => "nobody was".to_owned(),
                Claim::Waited { tenure, lease_slot } => format!("{tenure} is over since {lease_slot}"),
                Claim::Own { tenure } => format!("{tenure} is mine"),
                Claim::Consent { tenure } => format!("{tenure} was left to me"),
            };
            format!("{} is master{liveness}: {claim}", wish.node)
        }
        Value::Shorten(shorten) => format!("{} ends in {:?}, for {}", shorten.tenure, shorten.remaining, shorten.to),
        Value::Members(members) => format!("members {}", nodes(members)),
    }
}

/// With its ballot, if it is not that of the one before.
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
        Message::Prepare { ballot, trial, over } => {
            let trial = if *trial { " on trial" } else { "" };
            let over = match over {
                Over::Waited { .. } => String::new(),
                Over::Expired { node, liveness, .. } => format!(", liveness {liveness} of {node} is expired"),
                Over::Consent { tenure } => format!(", {tenure} was left to me"),
            };
            format!("prepare {ballot}{trial}{over}")
        }
        Message::Promise { ballot, trial, last, idle } => {
            let trial = if *trial { " on trial" } else { "" };
            format!("promise {ballot}{trial}, log to {}, idle {idle:?}", position(*last))
        }
        Message::Refuse { ballot, promised } => format!("refuse {ballot}, promised {promised}"),
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
        Message::Ask { tenure } => format!("ask for {tenure}"),
        Message::Consent { tenure, taker } => format!("consent: {tenure} is left to {taker}"),
        Message::Decline { tenure } => format!("decline {tenure}"),
        Message::Report(_) | Message::Orders(_) => unreachable!("stories have no nodes, but members alone"),
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
