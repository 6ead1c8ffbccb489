use super::*;
use crate::secret::sha256;

fn head() -> Head {
    Head {
        operation: "let_go".to_owned(),
        from: Sender::new("Müller's host\n2"),
        to: MemberId(7),
        nonce: 9,
        sent_at: Timestamp::from_millis(1_800_000_000_123),
        body: sha256(b"body"),
    }
}

fn secret() -> ClusterSecret {
    ClusterSecret::new(&[3; 32])
}

fn written() -> HeaderMap {
    let mut headers = HeaderMap::new();
    head().write(&secret(), &mut headers);
    headers
}

#[test]
fn request_head_is_valid_only_with_the_secret_of_its_sender() {
    let read = || Head::read(&written()).unwrap();
    assert_eq!(read().verified(&secret()), Some(head()));
    assert_eq!(read().verified(&ClusterSecret::new(&[4; 32])), None);
}

#[test]
fn request_mac_covers_every_header_of_the_peer_protocol() {
    let others = [
        (OPERATION, "put".to_owned()),
        (FROM, Sender::new("other").as_str().to_owned()),
        (TO, format!("{:032x}", 8)),
        (NONCE, format!("{:032x}", 10)),
        (TIME, "1800000000124".to_owned()),
        (BODY, hex(&sha256(b"other"))),
        (PROOF, hex(&sha256(b"other"))),
    ];
    for (name, other) in others {
        let mut headers = written();
        headers.insert(&name, HeaderValue::from_str(&other).unwrap());
        assert_eq!(Head::read(&headers).unwrap().verified(&secret()), None, "{name}");
        headers.remove(&name);
        assert!(Head::read(&headers).is_none(), "{name}");
        for strange in ["", "\u{1}", "+1", "a b", "é"] {
            if let Ok(value) = HeaderValue::from_bytes(strange.as_bytes()) {
                headers.insert(&name, value);
                assert!(Head::read(&headers).and_then(|unverified| unverified.verified(&secret())).is_none(), "{name}");
            }
        }
    }
}

#[test]
fn response_mac_covers_request_nonce_response_status_and_body() {
    let (ok, body) = (StatusCode::OK, sha256(b"response"));
    let mut headers = HeaderMap::new();
    sign_response(&secret(), 9, ok, &body, &mut headers);
    let mac = response_mac(&headers).unwrap();
    assert!(is_response_authentic(&secret(), 9, ok, &body, &mac));
    assert!(!is_response_authentic(&secret(), 8, ok, &body, &mac));
    assert!(!is_response_authentic(&secret(), 9, StatusCode::CREATED, &body, &mac));
    assert!(!is_response_authentic(&secret(), 9, ok, &sha256(b"other"), &mac));
    assert!(!is_response_authentic(&ClusterSecret::new(&[4; 32]), 9, ok, &body, &mac));
}
