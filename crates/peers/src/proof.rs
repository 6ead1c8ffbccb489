//! Headers that prove to the receiver of a request or response that the sender knows the cluster's secret.
//!
//! A request's MAC covers its method and path, its operation, its sender, its receiver, a nonce, the time by the
//! sender's clock, and the hash of its body. The head contains the hash, so the listener can verify the head before it
//! reads the body. A response's MAC covers the request's nonce, the status and the hash of the response's body, so this
//! MAC is valid only for a response to that request. The MACs of requests and of responses cover texts that begin with
//! different words. Therefore the MAC of a request is never valid for a response.

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

/// Encoded name of a sender, for headers and logs. The encoding keeps letters and digits and percent-encodes all other
/// characters.
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

/// Variable parts of the text that the MAC of a request covers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Head {
    pub(crate) operation: String,
    pub(crate) from: Sender,
    pub(crate) to: MemberId,
    pub(crate) nonce: u128,
    /// Time at which the sender sent the request, by the sender's clock.
    pub(crate) sent_at: Timestamp,
    pub(crate) body: Hash,
}

impl Head {
    /// Returns the text that the MAC covers. No part can contain the line feed that separates the parts.
    fn text(&self) -> String {
        let Head { operation, from, to, nonce, sent_at, body } = self;
        let (from, sent_at, body) = (from.as_str(), sent_at.as_millis(), hex(body));
        format!("reveille-peer-2 request\nPOST\n{PATH}\n{operation}\n{from}\n{to}\n{nonce:032x}\n{sent_at}\n{body}")
    }

    /// Writes the head and its MAC as headers.
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
            headers.insert(name, HeaderValue::from_str(&text).expect("every header value is visible ASCII text"));
        }
    }

    /// Parses a head from `headers`. The caller must not trust the head before [`UnverifiedHead::verified`] returns it.
    pub(crate) fn read(headers: &HeaderMap) -> Option<UnverifiedHead> {
        let text = |name: HeaderName| headers.get(name)?.to_str().ok();
        let head = Head {
            operation: text(OPERATION)?.to_owned(),
            from: Sender::parse(text(FROM)?)?,
            to: MemberId(parse_u128(text(TO)?)?),
            nonce: parse_u128(text(NONCE)?)?,
            sent_at: Timestamp::from_millis(text(TIME)?.parse().ok()?),
            body: parse_hash(text(BODY)?)?,
        };
        Some(UnverifiedHead { head, mac: parse_hash(text(PROOF)?)? })
    }
}

/// Head whose MAC is not verified yet.
pub(crate) struct UnverifiedHead {
    head: Head,
    mac: Hash,
}

impl UnverifiedHead {
    /// Returns the head if its sender knows the secret.
    pub(crate) fn verified(self, secret: &ClusterSecret) -> Option<Head> {
        secret.is_mac(&self.head.text(), &self.mac).then_some(self.head)
    }
}

fn parse_u128(text: &str) -> Option<u128> {
    let is_plain = text.len() == 32 && text.bytes().all(|c| c.is_ascii_hexdigit());
    u128::from_str_radix(text, 16).ok().filter(|_| is_plain)
}

fn response_text(nonce: u128, status: StatusCode, body: &Hash) -> String {
    format!("reveille-peer-2 answer\n{nonce:032x}\n{}\n{}", status.as_u16(), hex(body))
}

pub(crate) fn sign_response(
    secret: &ClusterSecret,
    nonce: u128,
    status: StatusCode,
    body: &Hash,
    headers: &mut HeaderMap,
) {
    let mac = hex(&secret.mac(&response_text(nonce, status, body)));
    headers.insert(PROOF, HeaderValue::from_str(&mac).expect("a hexadecimal MAC is a valid header value"));
}

/// Returns the unverified MAC of a response.
pub(crate) fn response_mac(headers: &HeaderMap) -> Option<Hash> {
    parse_hash(headers.get(PROOF)?.to_str().ok()?)
}

pub(crate) fn is_response_authentic(
    secret: &ClusterSecret,
    nonce: u128,
    status: StatusCode,
    body: &Hash,
    mac: &Hash,
) -> bool {
    secret.is_mac(&response_text(nonce, status, body), mac)
}

#[cfg(test)]
mod tests;
