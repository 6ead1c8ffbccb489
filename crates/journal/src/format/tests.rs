use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

const LENGTH: u64 = 1 << 30;

fn record(buffer: &mut RecordBuffer, salt: u64, offset: u64, first_index: u64, entries: &[Vec<u8>]) -> Vec<u8> {
    buffer.begin();
    for entry in entries {
        buffer.push(entry);
    }
    buffer.finish(salt, offset, first_index, first_index).to_vec()
}

fn header(bytes: &[u8], salt: u64, offset: u64) -> Option<RecordHeader> {
    RecordHeader::decode(bytes.first_chunk().unwrap(), salt, offset, LENGTH)
}

/// Returns the entries of the record if `bytes` are a whole record.
fn decode(bytes: &[u8], salt: u64, offset: u64) -> Option<Vec<(u64, Bytes)>> {
    let header = header(bytes, salt, offset)?;
    let body = bytes.get(HEADER_BYTES..HEADER_BYTES + header.body_bytes())?;
    let whole = header.matches(salt, body);
    whole.then(|| Entries::new(Bytes::copy_from_slice(body), header.first_index).collect())
}

proptest! {
    #[test]
    fn record_decodes_to_the_encoded_entries(
        salt: u64,
        block in 1..1000_u64,
        first_index in 1..u64::MAX / 2,
        entries in vec(vec(any::<u8>(), 0..3000), 0..8),
    ) {
        let offset = block * BLOCK;
        let mut buffer = RecordBuffer::default();
        // The record must not contain the earlier contents of the buffer.
        let _earlier = record(&mut buffer, salt, BLOCK, 1, &[vec![0xff; 9000]]);
        let bytes = record(&mut buffer, salt, offset, first_index, &entries);
        prop_assert_eq!(bytes.len() as u64 % BLOCK, 0);
        let decoded = decode(&bytes, salt, offset).unwrap();
        let expected: Vec<_> = (first_index..).zip(entries.into_iter().map(Bytes::from)).collect();
        prop_assert_eq!(decoded, expected);
    }

    #[test]
    fn decoder_rejects_record_with_a_changed_byte(
        salt: u64,
        entries in vec(vec(any::<u8>(), 0..300), 1..4),
        at: prop::sample::Index,
        change in 1..=255_u8,
    ) {
        let bytes = record(&mut RecordBuffer::default(), salt, BLOCK, 1, &entries);
        let written = HEADER_BYTES + entries.iter().map(|entry| ENTRY_OVERHEAD + entry.len()).sum::<usize>();
        let mut changed = bytes;
        changed[at.index(written)] ^= change;
        prop_assert_eq!(decode(&changed, salt, BLOCK), None);
    }

    #[test]
    fn decoder_rejects_record_with_a_wrong_salt_or_offset(salt: u64, other: u64, block in 2..1000_u64) {
        let bytes = record(&mut RecordBuffer::default(), salt, BLOCK, 1, &[b"entry".to_vec()]);
        prop_assert!(header(&bytes, salt, BLOCK).is_some());
        prop_assert_eq!(header(&bytes, salt, block * BLOCK), None);
        prop_assume!(other != salt);
        prop_assert_eq!(header(&bytes, other, BLOCK), None);
    }

    #[test]
    fn parser_never_panics_on_random_bytes(bytes in vec(any::<u8>(), HEADER_BYTES..400), salt: u64) {
        let _nothing = (decode(&bytes, salt, BLOCK), SegmentHeader::decode(bytes.first_chunk().unwrap()));
        let _nothing = (0..20).map(|count| is_whole(&bytes, count)).filter(|whole| *whole).count();
    }

    #[test]
    fn segment_header_decodes_only_if_no_byte_has_changed(
        header in (any::<u128>(), any::<u64>(), any::<u64>(), any::<u64>(), 2..1000_u64, 0..=u64::from(u16::MAX)),
        at in 0..HEADER_BYTES,
        change in 1..=255_u8,
    ) {
        let (journal_id, number, salt, synced_below, blocks, filled) = header;
        let (length, filled) = (blocks * BLOCK, filled * BLOCK);
        let header = SegmentHeader { journal_id, number, salt, synced_below, length, filled };
        let mut bytes = header.encode();
        prop_assert_eq!(SegmentHeader::decode(&bytes), Ok(header));
        bytes[at] ^= change;
        prop_assert_eq!(SegmentHeader::decode(&bytes), Err(SegmentHeaderError::Damaged));
    }

    #[test]
    fn proof_decodes_only_if_no_byte_has_changed(
        journal_id: u128, synced_below: u64, at in 0..HEADER_BYTES, change in 1..=255_u8
    ) {
        let proof = Proof { journal_id, synced_below };
        let mut bytes = proof.encode();
        prop_assert_eq!(Proof::decode(&bytes), Some(proof));
        bytes[at] ^= change;
        prop_assert_eq!(Proof::decode(&bytes), None);
    }
}

/// `testdata/v1/durable` contains the proof that all entries of `testdata/v1` are durable.
#[test]
fn encoded_proof_equals_the_golden_file() {
    let proof = Proof { journal_id: 0x0f0e_0d0c_0b0a_0908_0706_0504_0302_0100, synced_below: 4 };
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/v1/durable");
    let known = std::fs::read(path).expect("the repository contains the file");
    assert!(proof.encode().as_slice() == known, "the proof has changed");
}

/// Returns the bytes of `testdata/v1`, which `tests/it/golden.rs` reads through the public API.
fn golden() -> Vec<u8> {
    let header = SegmentHeader {
        journal_id: 0x0f0e_0d0c_0b0a_0908_0706_0504_0302_0100,
        number: 1,
        salt: 0x1716_1514_1312_1110,
        synced_below: 1,
        length: 6 * BLOCK,
        filled: 0,
    };
    let mut buffer = RecordBuffer::default();
    let mut bytes = vec![0; to_usize(header.length)];
    bytes[..HEADER_BYTES].copy_from_slice(&header.encode());
    let mut put = |offset: u64, first_index, entries: &[Vec<u8>]| {
        let record = record(&mut buffer, header.salt, offset, first_index, entries);
        bytes[to_usize(offset)..][..record.len()].copy_from_slice(&record);
    };
    put(BLOCK, 1, &[b"first".to_vec(), Vec::new()]);
    put(2 * BLOCK, 3, &[b"third".to_vec()]);
    put(3 * BLOCK, 4, &[]);
    bytes
}

#[test]
fn encoder_output_equals_the_golden_file() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/v1/segment-00000000000000000001.journal");
    assert!(std::fs::read(path).unwrap() == golden(), "the format has changed; increase its version");
}
