//! What a request and its answer carry to show that their senders know the cluster's secret.
//!
//! A request's MAC is over its method and path, its operation, who sends it, whom it is for, a nonce, the sender's clock, and the
//! hash of its body. The hash travels in the head, so that the head can be judged before a byte of the body is read.
//! An answer's MAC is over the request's nonce, the status and the hash of the answer's body: so it answers this
//! request and no other. The two begin with different words, and none can pass for the other.

use domain::Timestamp;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use membership::MemberId;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use crate::secret::{ClusterSecret, Hash, hex, parse_hash};

pub(crate) const PATH: &str = "/peer/v2/request";

const OPERATION: HeaderName = HeaderName::from_static("reveille-peer-operation");
const FROM: HeaderName = HeaderName::from_static("reveille-peer-from");
const TO: HeaderName = HeaderName::from_static("reveille-peer-to");
const NONCE: HeaderName = HeaderName::from_static("reveille-peer-nonce");
const TIME: HeaderName = HeaderName::from_static("reveille-peer-time");
const BODY: HeaderName = HeaderName::from_static("reveille-peer-body");
const PROOF: HeaderName = HeaderName::from_static("reveille-peer-proof");

/// A name as it is sent and logged: letters and digits as they are, all else percent-encoded.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Sender(String);

impl Sender {
    pub(crate) fn new(name: &str) -> Self {
        Sender(utf8_percent_encode(name, NON_ALPHANUMERIC).to_string())
    }

    fn parse(text: &str) -> Option<Self> {
        let is_plain = text.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'%');
        is_plain.then(|| Sender(text.to_owned()))
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

/// All of a request that its MAC is over, but for what is the same in all.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Head {
    pub(crate) operation: String,
    pub(crate) from: Sender,
    pub(crate) to: MemberId,
    pub(crate) nonce: u128,
    /// By the sender's clock.
    pub(crate) sent_at: Timestamp,
    pub(crate) body: Hash,
}

impl Head {
    /// No part can hold the line's end that separates them.
    fn text(&self) -> String {
        let Head { operation, from, to, nonce, sent_at, body } = self;
        let (from, sent_at, body) = (from.as_str(), sent_at.as_millis(), hex(body));
        format!("reveille-peer-2 request\nPOST\n{PATH}\n{operation}\n{from}\n{to}\n{nonce:032x}\n{sent_at}\n{body}")
    }

    /// The headers that say all this, and prove it.
    pub(crate) fn write(&self, secret: &ClusterSecret, headers: &mut HeaderMap) {
        let texts = [
            (OPERATION, self.operation.clone()),
            (FROM, self.from.as_str().to_owned()),
            (TO, self.to.to_string()),
            (NONCE, format!("{:032x}", self.nonce)),
            (TIME, self.sent_at.as_millis().to_string()),
            (BODY, hex(&self.body)),
            (PROOF, hex(&secret.mac(&self.text()))),
        ];
        for (name, text) in texts {
            headers.insert(name, HeaderValue::from_str(&text).expect("letters, digits, percent signs and underscores"));
        }
    }

    /// What `headers` claim; it is true only if [`Claimed::proved`] gives it.
    pub(crate) fn read(headers: &HeaderMap) -> Option<Claimed> {
        let text = |name: HeaderName| headers.get(name)?.to_str().ok();
        let head = Head {
            operation: text(OPERATION)?.to_owned(),
            from: Sender::parse(text(FROM)?)?,
            to: MemberId(parse_u128(text(TO)?)?),
            nonce: parse_u128(text(NONCE)?)?,
            sent_at: Timestamp::from_millis(text(TIME)?.parse().ok()?),
            body: parse_hash(text(BODY)?)?,
        };
        Some(Claimed { head, mac: parse_hash(text(PROOF)?)? })
    }
}

/// A head that is not to be believed yet.
pub(crate) struct Claimed {
    head: Head,
    mac: Hash,
}

impl Claimed {
    /// The head, if whoever made it knows the secret.
    pub(crate) fn proved(self, secret: &ClusterSecret) -> Option<Head> {
        secret.is_mac(&self.head.text(), &self.mac).then_some(self.head)
    }
}

fn parse_u128(text: &str) -> Option<u128> {
    let is_plain = text.len() == 32 && text.bytes().all(|c| c.is_ascii_hexdigit());
    u128::from_str_radix(text, 16).ok().filter(|_| is_plain)
}

fn answer_text(nonce: u128, status: StatusCode, body: &Hash) -> String {
    format!("reveille-peer-2 answer\n{nonce:032x}\n{}\n{}", status.as_u16(), hex(body))
}

pub(crate) fn prove_answer(
    secret: &ClusterSecret,
    nonce: u128,
    status: StatusCode,
    body: &Hash,
    headers: &mut HeaderMap,
) {
    let mac = hex(&secret.mac(&answer_text(nonce, status, body)));
    headers.insert(PROOF, HeaderValue::from_str(&mac).expect("digits"));
}

/// The MAC that an answer carries, whoever made it.
pub(crate) fn answer_mac(headers: &HeaderMap) -> Option<Hash> {
    parse_hash(headers.get(PROOF)?.to_str().ok()?)
}

pub(crate) fn is_answer_proved(
    secret: &ClusterSecret,
    nonce: u128,
    status: StatusCode,
    body: &Hash,
    mac: &Hash,
) -> bool {
    secret.is_mac(&answer_text(nonce, status, body), mac)
}

#[cfg(test)]
mod tests;
