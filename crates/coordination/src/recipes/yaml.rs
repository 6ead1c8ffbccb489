//! Decodes and encodes the YAML maps that nodes contain. People, or programs in other programming languages, may have
//! written these maps.

use bytes::Bytes;
use serde_json::{Map, Value};

use crate::tree::TreeError;

/// Decodes a YAML map. An empty text counts as an empty map.
///
/// # Errors
/// Returns the reason why the text is not a YAML map.
pub(super) fn decode(data: &[u8]) -> Result<Map<String, Value>, String> {
    let text = std::str::from_utf8(data).map_err(|_| "not valid UTF-8".to_owned())?;
    if text.trim().is_empty() {
        return Ok(Map::new());
    }
    // The error texts do not quote the document, because the callers log the errors and the document may contain a
    // password.
    let options = serde_saphyr::options! { with_snippet: false };
    match serde_saphyr::from_str_with_options(text, options) {
        Ok(Value::Object(map)) => Ok(map),
        Ok(Value::Null) => Ok(Map::new()),
        Ok(_) => Err("the YAML value is not a map".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

/// Encodes a map as YAML.
///
/// # Errors
/// Returns [`TreeError::Invalid`] if YAML cannot represent the map.
pub(super) fn encode(map: &Map<String, Value>) -> Result<Bytes, TreeError> {
    let text = serde_saphyr::to_string(map);
    text.map(Bytes::from).map_err(|error| TreeError::Invalid(format!("cannot encode the map as YAML: {error}")))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn decoder_reads_the_header_that_the_petting_zoo_library_writes() {
        let text = "header:\n  metadata: {protocol: memcached, version: 1.0}\n  service_class: kestrel\nhost: localhost\nport: 22133\n";
        let read = decode(text.as_bytes()).unwrap();
        assert_eq!(
            read["header"],
            json!({"metadata": {"protocol": "memcached", "version": 1.0}, "service_class": "kestrel"})
        );
        assert_eq!(read["port"], json!(22_133));
        assert_eq!(decode(&encode(&read).unwrap()), Ok(read));
    }

    #[test]
    fn yaml_decoder_accepts_only_maps_and_empty_documents() {
        assert_eq!((decode(b""), decode(b" \n"), decode(b"null")), (Ok(Map::new()), Ok(Map::new()), Ok(Map::new())));
        for bad in [&b"[1, 2]"[..], b"text", b"a: [", b"\xff", b"a: 1\na: 2"] {
            assert!(decode(bad).is_err(), "{}", String::from_utf8_lossy(bad));
        }
    }

    #[test]
    fn decode_error_contains_no_text_of_the_document() {
        for bad in [
            "password: [hunter2",
            "password: hunter2\npassword: hunter2",
            "hunter2: {a: \"hunter2",
            "- hunter2\n- [",
            "&hunter2 [*hunter3]",
        ] {
            let text = decode(bad.as_bytes()).unwrap_err();
            assert!(!text.contains("hunter2"), "{text}");
        }
    }

    /// A process that may write a node must not be able to crash the processes that read the node.
    #[test]
    fn yaml_decoder_rejects_a_document_that_could_crash_a_reader() {
        let mut bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
        for level in 1..9 {
            let inner = format!("*a{}", level - 1);
            bomb += &format!("a{level}: &a{level} [{}]\n", vec![inner; 10].join(", "));
        }
        assert!(decode(bomb.as_bytes()).is_err());
        assert!(decode("[".repeat(100_000).as_bytes()).is_err());
        assert!(decode(format!("a: {}", "{a: ".repeat(100_000)).as_bytes()).is_err());
    }
}
