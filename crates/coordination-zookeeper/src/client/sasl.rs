//! SASL mechanism DIGEST-MD5 (RFC 2831), with which ZooKeeper's servers check a user and its password.
//!
//! The mechanism does not send the password. But a listener on the network can guess passwords and compare each guess
//! with the messages, and the mechanism does not encrypt the messages that follow. Only TLS prevents both.

use md5::{Digest as _, Md5};

/// User that a connection authenticates. The debug text does not contain the password.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct User {
    pub(crate) name: String,
    pub(crate) password: String,
}

impl std::fmt::Debug for User {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("User").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Name of the service in the digest. All servers of ZooKeeper use the same name, so the digest does not depend on the
/// host.
const SERVICE: &str = "zookeeper/zk-sasl-md5";

/// Response to the challenge of a server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Response {
    pub(super) message: Vec<u8>,
    /// Message with which the server proves that it knows the password.
    pub(super) expected_proof: String,
}

/// Returns the response of `user` to a challenge. `nonce` is a random text that no other response contains. Returns
/// `None` if the challenge is not a challenge of this mechanism.
pub(super) fn respond(challenge: &[u8], user: &User, nonce: &str) -> Option<Response> {
    respond_for(SERVICE, challenge, user, nonce)
}

fn respond_for(service: &str, challenge: &[u8], user: &User, nonce: &str) -> Option<Response> {
    let challenge = directives(std::str::from_utf8(challenge).ok()?)?;
    let find = |name: &str| challenge.iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value);
    let (server_nonce, realm) = (find("nonce")?, find("realm").map_or("", String::as_str));
    // A server that lists no protection supports authentication without protection.
    let protects_nothing = find("qop").is_none_or(|list| list.split(',').any(|each| each.trim() == "auth"));
    if !protects_nothing || find("algorithm")? != "md5-sess" || find("charset")? != "utf-8" {
        return None;
    }
    let secret = Md5::digest([encoded(&user.name), encoded(realm), encoded(&user.password)].join(&b':'));
    let session = hex(&[&secret, &b":"[..], server_nonce.as_bytes(), b":", nonce.as_bytes()].concat());
    let digest = |purpose: &str| {
        let purpose = hex(format!("{purpose}:{service}").as_bytes());
        hex(format!("{session}:{server_nonce}:00000001:{nonce}:auth:{purpose}").as_bytes())
    };
    let message = format!(
        "charset=utf-8,username={},realm={},nonce={},nc=00000001,cnonce={},digest-uri={},response={},qop=auth",
        quoted(&user.name),
        quoted(realm),
        quoted(server_nonce),
        quoted(nonce),
        quoted(service),
        digest("AUTHENTICATE"),
    );
    Some(Response { message: message.into_bytes(), expected_proof: format!("rspauth={}", digest("")) })
}

/// Parses a list of `name=value` and `name="value"`. Returns `None` if the text is not such a list.
fn directives(mut text: &str) -> Option<Vec<(&str, String)>> {
    let mut found = Vec::new();
    loop {
        text = text.trim_start_matches([',', ' ', '\t', '\r', '\n']);
        if text.is_empty() {
            return Some(found);
        }
        let (name, rest) = text.split_once('=')?;
        let (value, rest) = match rest.strip_prefix('"') {
            Some(rest) => unquoted(rest)?,
            None => {
                let end = rest.find(',').unwrap_or(rest.len());
                (rest[..end].trim_end().to_owned(), &rest[end..])
            }
        };
        found.push((name.trim(), value));
        text = rest;
    }
}

/// Takes a text until its closing quotation mark. Returns the text and the rest.
fn unquoted(text: &str) -> Option<(String, &str)> {
    let (mut value, mut chars) = (String::new(), text.char_indices());
    while let Some((at, char)) = chars.next() {
        match char {
            '"' => return Some((value, &text[at + 1..])),
            '\\' => value.push(chars.next()?.1),
            char => value.push(char),
        }
    }
    None
}

fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

/// Encodes a text for the digest of the password: in ISO 8859-1 if this encoding has all characters, and otherwise in
/// UTF-8 (RFC 2831, 2.1.2.1).
fn encoded(text: &str) -> Vec<u8> {
    let latin: Result<Vec<u8>, _> = text.chars().map(u8::try_from).collect();
    latin.unwrap_or_else(|_| text.as_bytes().to_owned())
}

fn hex(text: &[u8]) -> String {
    Md5::digest(text).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(name: &str, password: &str) -> User {
        User { name: name.to_owned(), password: password.to_owned() }
    }

    /// Example of RFC 2831, section 4.
    #[test]
    fn response_matches_the_example_of_the_rfc() {
        let challenge =
            br#"realm="elwood.innosoft.com",nonce="OA6MG9tEQGm2hh",qop="auth",algorithm=md5-sess,charset=utf-8"#;
        let service = "imap/elwood.innosoft.com";
        let Response { message, expected_proof } =
            respond_for(service, challenge, &user("chris", "secret"), "OA6MHXh6VqTrRk").unwrap();
        let message = String::from_utf8(message).unwrap();
        assert_eq!(
            message,
            "charset=utf-8,username=\"chris\",realm=\"elwood.innosoft.com\",nonce=\"OA6MG9tEQGm2hh\",nc=00000001,\
             cnonce=\"OA6MHXh6VqTrRk\",digest-uri=\"imap/elwood.innosoft.com\",\
             response=d388dad90d4bbd760a152321f2143af7,qop=auth"
        );
        assert_eq!(expected_proof, "rspauth=ea40f60335c427b5527b84dbabcdfffd");
    }

    #[test]
    fn response_quotes_names_that_contain_quotation_marks() {
        let challenge = br#" realm="a\"b,c" , nonce="n\\m",algorithm=md5-sess,charset=utf-8 ,stale=false"#;
        let response = respond(challenge, &user(r#"a"\b"#, "secret"), "x").unwrap();
        let message = String::from_utf8(response.message).unwrap();
        assert!(message.contains(r#"username="a\"\\b",realm="a\"b,c",nonce="n\\m","#), "{message}");
    }

    #[test]
    fn challenge_of_another_mechanism_is_rejected() {
        for challenge in [
            "",
            "nonce",
            "nonce=\"a",
            "nonce=\"a\\",
            "algorithm=md5-sess,charset=utf-8",
            "nonce=\"a\",algorithm=md5,charset=utf-8",
            "nonce=\"a\",algorithm=md5-sess,charset=utf-8,qop=\"auth-int,auth-conf\"",
            "nonce=\"a\",algorithm=md5-sess",
        ] {
            assert_eq!(respond(challenge.as_bytes(), &user("a", "b"), "x"), None, "{challenge}");
        }
    }

    #[test]
    fn debug_text_of_a_user_contains_no_password() {
        let shown = format!("{:?}", user("ann", "hunter2"));
        assert!(shown.contains("ann") && !shown.contains("hunter2"), "{shown}");
    }
}
