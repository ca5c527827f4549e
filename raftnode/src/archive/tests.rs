use std::io::{Read, Write as _};

use flate2::{Compression, write::GzEncoder};
use jaco_proto::v1;
use proptest::prelude::*;
use prost_types::Timestamp;
use tar::{EntryType, Header};

use super::*;
use jaco_state::{
    State,
    testing::{logs, state_of},
};

const VERSION: &str = "1.4.0";

fn sample() -> (Meta, State) {
    let cluster = v1::ClusterMeta {
        cluster_id: "c-1".to_owned(),
        ca_cert: vec![7; 400],
        ..Default::default()
    };
    let state = State {
        applied_index: 50,
        cluster: Some(cluster.into()),
        ..State::default()
    };
    (describe(&state), state)
}

fn describe(state: &State) -> Meta {
    let taken_at = Timestamp {
        seconds: 1_700_000_000,
        nanos: 0,
    };
    Meta::new(state, 3, VERSION, "one:7001", taken_at).unwrap()
}

fn archive(meta: &Meta, state: &State) -> Vec<u8> {
    let mut bytes = Vec::new();
    write(meta, state, &mut bytes).unwrap();
    bytes
}

fn open(bytes: &[u8]) -> Result<Archive, Error> {
    read(bytes, VERSION, &ArchiveLimits::default())
}

#[test]
fn archive_over_restore_limits_is_not_written() {
    let (meta, mut state) = sample();
    let blob = |bytes| v1::CertBlob {
        key: "k".to_owned(),
        value: vec![0; bytes],
        ..Default::default()
    };
    state.cert_blobs.insert("k".to_owned(), blob(500).into());
    let length = state.snapshot_length();
    let limits = ArchiveLimits {
        snapshot_bytes: length,
        entity_bytes: 506,
        entities: 2,
        ..ArchiveLimits::default()
    };
    let text = |limits| check_size(&state, &limits).err().map(|e| e.to_string());
    assert_eq!(text(limits), None);
    for (limits, message) in [
        (
            ArchiveLimits {
                entities: 1,
                ..limits
            },
            "the snapshot exceeds 1 entities".to_owned(),
        ),
        (
            ArchiveLimits {
                entity_bytes: 505,
                ..limits
            },
            "the snapshot exceeds 505 bytes in one entity".to_owned(),
        ),
        (
            ArchiveLimits {
                snapshot_bytes: length - 1,
                ..limits
            },
            format!("snapshot.bin exceeds {} bytes", length - 1),
        ),
    ] {
        assert_eq!(text(limits), Some(message));
    }
    let most = ArchiveLimits::default().entity_bytes as usize;
    state.cert_blobs.insert("k".to_owned(), blob(most).into());
    let mut bytes = Vec::new();
    let error = write(&meta, &state, &mut bytes).unwrap_err();
    assert!(error.to_string().contains("in one entity"), "{error}");
    assert!(bytes.is_empty());
}

/// An entry of a hand-made archive.
#[derive(Clone)]
struct Part {
    name: &'static str,
    kind: EntryType,
    content: Vec<u8>,
    /// Size in the header, if it differs from the length of the content.
    size: Option<u64>,
}

fn part(name: &'static str, content: &[u8]) -> Part {
    Part {
        name,
        kind: EntryType::Regular,
        content: content.to_vec(),
        size: None,
    }
}

/// The two entries of a valid archive.
fn parts() -> (Part, Part) {
    let (meta, state) = sample();
    let json = meta.to_json();
    (part(META, &json), part(SNAPSHOT, &state.encode_snapshot()))
}

fn raw(parts: &[Part]) -> Vec<u8> {
    let mut tar = Vec::new();
    for part in parts {
        let mut header = Header::new_ustar();
        // Written into the header directly: the library rejects the names under test.
        header.as_old_mut().name[..part.name.len()].copy_from_slice(part.name.as_bytes());
        header.set_entry_type(part.kind);
        header.set_mode(0o600);
        header.set_size(part.size.unwrap_or(part.content.len() as u64));
        if part.kind.is_symlink() || part.kind.is_hard_link() {
            header.set_link_name("/etc/passwd").unwrap();
        }
        header.set_cksum();
        tar.extend_from_slice(header.as_bytes());
        tar.extend_from_slice(&part.content);
        tar.resize(tar.len().next_multiple_of(512), 0);
    }
    tar.resize(tar.len() + 1024, 0);
    tar
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
    gzip.write_all(bytes).unwrap();
    gzip.finish().unwrap()
}

fn refusal(parts: &[Part]) -> String {
    match open(&gzip(&raw(parts))) {
        Ok(_) => String::new(),
        Err(error) => jaco_proto::chain(&error),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn archive_round_trips(log in logs()) {
        let mut state = state_of(&log);
        let id = v1::ClusterMeta { cluster_id: "c-1".to_owned(), ..Default::default() };
        state.cluster = Some(id.into());
        let meta = describe(&state);
        let found = open(&archive(&meta, &state)).unwrap();
        prop_assert_eq!(found.meta, meta);
        prop_assert_eq!(found.state.digest(), state.digest());
        prop_assert_eq!(found.state, state);
        prop_assert!(found.unknown_fields.is_empty());
    }

    /// Checksums cover every bit of the content; the remaining bits belong to the header and
    /// trailer of the gzip stream.
    #[test]
    fn damaged_or_truncated_archive_is_rejected(at in any::<prop::sample::Index>(), bit in 0..8) {
        let (meta, state) = sample();
        let whole = archive(&meta, &state);
        let at = at.index(whole.len());
        prop_assert!(open(&whole[..at]).is_err());
        let mut damaged = whole.clone();
        damaged[at] ^= 1_u8 << bit;
        if let Ok(found) = open(&damaged) {
            prop_assert_eq!((found.meta, found.state), (meta, state));
        }
    }

    #[test]
    fn random_bytes_are_rejected(bytes in prop::collection::vec(any::<u8>(), 0..2048)) {
        prop_assert!(open(&bytes).is_err());
        prop_assert!(open(&gzip(&bytes)).is_err());
    }
}

/// Fixes the byte layout that other implementations read.
#[test]
fn entries_are_two_regular_files_with_owner_mode() {
    let (meta, state) = sample();
    let mut tar = Vec::new();
    flate2::read::GzDecoder::new(&*archive(&meta, &state))
        .read_to_end(&mut tar)
        .unwrap();
    let json = concat!(
        "{\n  \"schema_version\": 1,\n  \"cluster_id\": \"c-1\",\n  \"snapshot_index\": 50,\n",
        "  \"snapshot_term\": 3,\n  \"jaco_version\": \"1.4.0\",\n",
        "  \"taken_at\": \"2023-11-14T22:13:20Z\",\n  \"leader_at_snapshot\": \"one:7001\"\n}\n"
    );
    let snapshot = state.encode_snapshot();
    let mut at = 0;
    for (name, content) in [(META, json.as_bytes()), (SNAPSHOT, &snapshot)] {
        let header = &tar[at..at + 512];
        let field = |from: usize, to: usize| {
            let end = header[from..to].iter().position(|b| *b == 0);
            std::str::from_utf8(&header[from..end.map_or(to, |end| from + end)]).unwrap()
        };
        assert_eq!(field(0, 100), name);
        assert_eq!(field(100, 108), "0000600");
        assert_eq!((field(108, 116), field(116, 124)), ("0000000", "0000000"));
        let size = u64::from_str_radix(field(124, 136), 8).unwrap();
        assert_eq!(size, content.len() as u64);
        assert_eq!(header[156], b'0');
        assert_eq!(&header[257..265], b"ustar\x0000");
        at += 512;
        assert_eq!(&tar[at..at + content.len()], content);
        at = (at + content.len()).next_multiple_of(512);
    }
    assert_eq!(tar.len(), at + 1024);
    assert!(tar[at..].iter().all(|byte| *byte == 0));
}

/// The archives were written by another language's standard library, with only the fields that
/// every implementation has: rows in any order, events of one index without ordinals, a time with
/// an offset.
#[test]
fn foreign_archives_are_read() {
    for bytes in [
        &include_bytes!("testdata/foreign.tgz")[..],
        include_bytes!("testdata/foreign-pax.tgz"),
    ] {
        let found = read(bytes, "0.9.0", &ArchiveLimits::default()).unwrap();
        assert_eq!(found.meta.snapshot_index, 57);
        assert_eq!(found.meta.taken_at, "2024-05-06T07:08:09Z");
        let state = &found.state;
        assert_eq!(state.applied_index, 57);
        assert_eq!(state.nodes.keys().collect::<Vec<_>>(), ["old-0", "old-1"]);
        assert_eq!(state.replicas_desired["shop-web-1"].raft_index, 41);
        assert_eq!(state.deployments["shop"].services[0].replicas, 2);
        assert_eq!(state.audit.len(), 5);
        assert!(state.audit.contains_key(&(40, 0)) && state.audit.contains_key(&(40, 1)));
        let rewritten = open(&archive(
            &Meta {
                jaco_version: VERSION.to_owned(),
                ..found.meta.clone()
            },
            state,
        ));
        assert_eq!(rewritten.unwrap().state, *state);
        let from_source = read(bytes, "dev", &ArchiveLimits::default());
        assert_eq!(from_source.unwrap().meta, found.meta);
        let other = read(bytes, "1.0.0", &ArchiveLimits::default()).unwrap_err();
        assert!(matches!(other, Error::Version { .. }), "{other}");
    }
}

#[test]
fn only_two_regular_entries_in_order_are_accepted() {
    let (meta, snapshot) = parts();
    let extra = part("extra", b"x");
    let of_kind = |base: &Part, kind| Part {
        kind,
        ..base.clone()
    };
    let named = |base: &Part, name| Part {
        name,
        ..base.clone()
    };
    let pair = |a: &Part, b: &Part| vec![a.clone(), b.clone()];
    for (parts, expected) in [
        (pair(&meta, &snapshot), ""),
        (vec![], "the archive holds no meta.json"),
        (vec![meta.clone()], "the archive holds no snapshot.bin"),
        (
            pair(&snapshot, &meta),
            "the archive holds \"snapshot.bin\" where meta.json belongs",
        ),
        (
            pair(&meta, &meta),
            "the archive holds \"meta.json\" where snapshot.bin belongs",
        ),
        (
            vec![meta.clone(), snapshot.clone(), snapshot.clone()],
            "the archive holds \"snapshot.bin\" where the end belongs",
        ),
        (
            vec![meta.clone(), snapshot.clone(), extra.clone()],
            "the archive holds \"extra\" where the end belongs",
        ),
        (
            vec![meta.clone(), extra, snapshot.clone()],
            "the archive holds \"extra\" where snapshot.bin belongs",
        ),
        (
            pair(&named(&meta, "../meta.json"), &snapshot),
            "the archive holds \"../meta.json\" where meta.json belongs",
        ),
        (
            pair(&named(&meta, "/etc/meta.json"), &snapshot),
            "the archive holds \"/etc/meta.json\" where meta.json belongs",
        ),
        (
            pair(&meta, &named(&snapshot, "./snapshot.bin")),
            "the archive holds \"./snapshot.bin\" where snapshot.bin belongs",
        ),
        (
            pair(&of_kind(&part(META, b""), EntryType::Symlink), &snapshot),
            "meta.json is not a regular file in the archive",
        ),
        (
            pair(&meta, &of_kind(&part(SNAPSHOT, b""), EntryType::Link)),
            "snapshot.bin is not a regular file in the archive",
        ),
        (
            pair(&meta, &of_kind(&part(SNAPSHOT, b""), EntryType::Directory)),
            "snapshot.bin is not a regular file in the archive",
        ),
        (
            pair(&meta, &of_kind(&snapshot, EntryType::GNUSparse)),
            "snapshot.bin is not a regular file in the archive",
        ),
        (
            vec![
                of_kind(&named(&meta, "././@LongLink"), EntryType::GNULongName),
                meta.clone(),
                snapshot.clone(),
            ],
            "the archive holds \"././@LongLink\" where meta.json belongs",
        ),
    ] {
        assert_eq!(refusal(&parts), expected);
    }
}

#[test]
fn extension_headers_may_only_carry_harmless_keys() {
    let (meta, snapshot) = parts();
    let header = |records: &[u8]| Part {
        kind: EntryType::XHeader,
        ..part("PaxHeaders/x", records)
    };
    let with = |records: &[u8]| refusal(&[header(records), meta.clone(), snapshot.clone()]);
    assert_eq!(with(b"20 mtime=1234567.89\n"), "");
    for (records, key) in [
        (&b"18 path=meta.json\n"[..], "path"),
        (b"13 size=9999\n", "size"),
        (b"22 GNU.sparse.major=1\n", "GNU.sparse.major"),
        (b"23 linkpath=/etc/hosts\n", "linkpath"),
    ] {
        let found = with(records);
        assert!(found.ends_with(&format!("headers with {key:?}")), "{found}");
    }
    assert!(with(b"no record").contains("cannot be read"));
    let large = Part {
        size: Some(1 << 40),
        ..header(b"")
    };
    assert_eq!(refusal(&[large]), "a header exceeds 16384 bytes");
    let many: Vec<_> = vec![header(b"12 comment=\n"); 9];
    let found = refusal(&[many, vec![meta, snapshot]].concat());
    assert!(found.contains("PaxHeaders/x"), "{found}");
}

#[test]
fn meta_and_snapshot_must_match() {
    let (meta, state) = sample();
    let json = |change: &dyn Fn(&mut Meta)| {
        let mut meta = meta.clone();
        change(&mut meta);
        String::from_utf8(meta.to_json()).unwrap()
    };
    let snapshot = part(SNAPSHOT, &state.encode_snapshot());
    let refused = |json: &str| refusal(&[part(META, json.as_bytes()), snapshot.clone()]);
    for (json, expected) in [
        (json(&|_| ()), ""),
        (json(&|m| m.jaco_version.clear()), ""),
        (json(&|m| m.leader_at_snapshot.clear()), ""),
        (
            json(&|m| m.schema_version = 2),
            "schema version 2 is not supported",
        ),
        (
            "{\"schema_version\": 2}".to_owned(),
            "schema version 2 is not supported",
        ),
        (
            json(&|m| m.jaco_version = "2.0.0".to_owned()),
            "the archive is of version \"2.0.0\", this is version \"1.4.0\"",
        ),
        (
            json(&|m| m.cluster_id = "c-2".to_owned()),
            "meta.json is of cluster \"c-2\", snapshot.bin of \"c-1\"",
        ),
        (
            json(&|m| m.cluster_id = "c-1\nimported_at=now".to_owned()),
            "meta.json cannot be used: cluster_id is not an id",
        ),
        (
            json(&|m| m.snapshot_index = 0),
            "meta.json cannot be used: snapshot_index is 0",
        ),
        (
            json(&|m| m.snapshot_index = u64::MAX),
            "meta.json cannot be used: snapshot_index is 18446744073709551615",
        ),
        (
            json(&|m| m.snapshot_term = 0),
            "meta.json cannot be used: snapshot_term is 0",
        ),
        (
            json(&|m| m.taken_at = "2024-01-01T00:00:00Z\nx=y".to_owned()),
            "meta.json cannot be used: taken_at is not a time",
        ),
    ] {
        assert_eq!(refused(&json), expected, "{json}");
    }
    for json in [
        "",
        "{",
        "[]",
        "{\"schema_version\": 1}",
        "{\"schema_version\": -1}",
    ] {
        assert!(
            refused(json).starts_with("meta.json cannot be used: "),
            "{json}"
        );
    }
    let no_cluster = part(SNAPSHOT, &State::default().encode_snapshot());
    let meta = part(META, &meta.to_json());
    assert_eq!(
        refusal(&[meta, no_cluster]),
        "meta.json is of cluster \"c-1\", snapshot.bin of \"\""
    );
}

#[test]
fn entity_newer_than_the_snapshot_is_rejected() {
    let (meta, state) = sample();
    let event = v1::AuditEvent {
        raft_index: 51,
        ..Default::default()
    };
    let desired = v1::ReplicaDesired {
        id: "r".to_owned(),
        raft_index: 52,
        ..Default::default()
    };
    let mut later = state.clone();
    later.audit.insert((51, 0), event.into());
    let error = open(&archive(&meta, &later)).unwrap_err();
    assert!(
        matches!(
            error,
            Error::Later {
                index: 50,
                entity: 51
            }
        ),
        "{error}"
    );
    let mut later = state;
    later
        .replicas_desired
        .insert("r".to_owned(), desired.into());
    let error = open(&archive(&meta, &later)).unwrap_err();
    assert!(matches!(error, Error::Later { entity: 52, .. }), "{error}");
}

#[test]
fn sizes_are_checked_before_reading() {
    let (meta, snapshot) = parts();
    let limits = ArchiveLimits {
        meta_bytes: meta.content.len() as u64,
        snapshot_bytes: snapshot.content.len() as u64,
        ..ArchiveLimits::default()
    };
    let bytes = gzip(&raw(&[meta.clone(), snapshot.clone()]));
    assert!(read(&*bytes, VERSION, &limits).is_ok());
    let smaller = [
        ArchiveLimits {
            meta_bytes: limits.meta_bytes - 1,
            ..limits
        },
        ArchiveLimits {
            snapshot_bytes: limits.snapshot_bytes - 1,
            ..limits
        },
    ];
    for (limits, entry) in smaller.iter().zip([META, SNAPSHOT]) {
        let error = read(&*bytes, VERSION, limits).unwrap_err();
        assert!(
            matches!(error, Error::TooLarge { entry: e, .. } if e == entry),
            "{error}"
        );
    }
    // A declared size above the limit is rejected at once; one within it fails because the bytes
    // are missing.
    let claim = |size| Part {
        size: Some(size),
        ..snapshot.clone()
    };
    assert_eq!(
        refusal(&[meta.clone(), claim(u64::MAX >> 1)]),
        "snapshot.bin exceeds 2147483648 bytes"
    );
    assert_ne!(refusal(&[meta, claim(1 << 30)]), "");
}

/// A compression bomb (megabytes of zeros in a few kilobytes) is read up to the limit only.
#[test]
fn compression_bomb_is_rejected_within_limits() {
    struct Zeros(u64);
    impl Read for Zeros {
        fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
            let count = buffer.len().min(usize::try_from(self.0).unwrap());
            buffer[..count].fill(0);
            self.0 -= count as u64;
            Ok(count)
        }
    }
    let (meta, snapshot) = parts();
    let mut bomb = GzEncoder::new(Vec::new(), Compression::best());
    bomb.write_all(&raw(&[meta.clone(), snapshot])).unwrap();
    std::io::copy(&mut Zeros(64 << 20), &mut bomb).unwrap();
    let bytes = bomb.finish().unwrap();
    assert!(bytes.len() < 1 << 20);
    assert!(matches!(open(&bytes), Err(Error::Trailing)));

    // One entity with a declared size as large as its file.
    let size: u64 = 96 << 20;
    let mut snapshot = b"\x12".to_vec();
    prost::encode_length_delimiter(size as usize, &mut snapshot).unwrap();
    let head = Part {
        size: Some(size + snapshot.len() as u64),
        ..part(SNAPSHOT, &snapshot)
    };
    let found = refusal(&[meta, head]);
    assert_eq!(found, "the snapshot exceeds 67108864 bytes in one entity");
}

#[test]
fn trailing_bytes_are_rejected() {
    let (meta, state) = sample();
    let whole = archive(&meta, &state);
    let (json, snapshot) = parts();
    let tar = raw(&[json, snapshot]);
    let padded = [tar.clone(), vec![0; 9000]].concat();
    assert!(
        open(&gzip(&padded)).is_ok(),
        "tar programs pad to their block size"
    );
    for bytes in [
        [whole.clone(), b"x".to_vec()].concat(),
        [whole.clone(), whole].concat(),
        gzip(&[tar, b"hidden".to_vec()].concat()),
    ] {
        assert!(matches!(open(&bytes), Err(Error::Trailing)));
    }
}
