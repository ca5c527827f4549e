//! Validation of the values that members submit.

use std::{collections::BTreeMap, net::SocketAddr};

use jaco_proto::{
    Error, ErrorCode, node_labels,
    v1::{self, command::Payload},
};

/// Longest version, in bytes.
const VERSION_BYTES: usize = 64;
/// Length of a Curve25519 key in base64; as raw bytes it is shorter.
pub const KEY_BYTES: usize = 44;
/// Length of a SHA-256.
const FINGERPRINT_BYTES: usize = 32;
/// Longest platform, in bytes.
const PLATFORM_BYTES: usize = 64;
/// Largest number of entries in a map of texts.
const ENTRIES: usize = 32;
/// Size limit of a map of texts in bytes, keys and values together.
const TEXT_BYTES: usize = 8 << 10;

/// Whether others can dial `address`, the text of an IP address and a port.
#[must_use]
pub fn is_dialable(address: &str) -> bool {
    address.parse::<SocketAddr>().is_ok_and(|address| {
        !address.ip().is_unspecified() && !address.ip().is_multicast() && address.port() != 0
    })
}

/// Rejects values that are invalid in a report of a node: other nodes dial the addresses, and
/// operators read the texts.
///
/// # Errors
/// `validation_failed` with the field.
pub(super) fn check(payload: &Payload) -> Result<(), Error> {
    match payload {
        Payload::NodeUpdateSelf(update) => check_self(update),
        Payload::NodeStatusUpdate(update) => check_texts("details", &update.details),
        Payload::AuditAppend(v1::AuditAppend { event: Some(event) }) => {
            check_texts("payload", &event.payload)
        }
        _ => Ok(()),
    }
}

fn check_self(update: &v1::NodeUpdateSelf) -> Result<(), Error> {
    for (field, address) in [
        ("address", &update.address),
        ("grpc_address", &update.grpc_address),
    ] {
        if !address.is_empty() && !is_dialable(address) {
            return Err(invalid(field, "it cannot be dialled"));
        }
    }
    let version = &update.version;
    if version.len() > VERSION_BYTES || version.chars().any(char::is_control) {
        return Err(invalid("version", "it is too long or not printable"));
    }
    if update.wireguard_pubkey.len() > KEY_BYTES {
        return Err(invalid("wireguard_pubkey", "it is too long"));
    }
    if !matches!(update.server_cert_fingerprint.len(), 0 | FINGERPRINT_BYTES) {
        return Err(invalid("server_cert_fingerprint", "it is no SHA-256"));
    }
    if u16::try_from(update.wg_port).is_err() {
        return Err(invalid("wg_port", "it is no port"));
    }
    if let Some(traits) = &update.traits {
        let is_platform =
            |text: &String| text.len() <= PLATFORM_BYTES && !text.chars().any(char::is_control);
        if traits.platforms.len() > ENTRIES || !traits.platforms.iter().all(is_platform) {
            return Err(invalid(
                "platforms",
                "they are too many, too long or not printable",
            ));
        }
        node_labels::check(&traits.labels)
            .map_err(|_| invalid("labels", "they are too many, too long or not printable"))?;
    }
    Ok(())
}

fn check_texts(field: &str, texts: &BTreeMap<String, String>) -> Result<(), Error> {
    let bytes: usize = texts
        .iter()
        .map(|(key, value)| key.len() + value.len())
        .sum();
    if texts.len() > ENTRIES || bytes > TEXT_BYTES {
        return Err(invalid(field, "it is too large"));
    }
    Ok(())
}

/// The error does not repeat the value, which can be arbitrary text.
fn invalid(field: &str, reason: &str) -> Error {
    Error::new(ErrorCode::ValidationFailed, format!("{field} is not valid"))
        .with("field", field)
        .because(reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(payload: Payload) -> Option<String> {
        check(&payload).err().map(|error| {
            assert_eq!(error.code, ErrorCode::ValidationFailed);
            error.details["field"].clone()
        })
    }

    #[test]
    fn invalid_self_report_is_refused_by_field() {
        let long = "1".repeat(VERSION_BYTES + 1);
        let fine = v1::NodeUpdateSelf {
            hostname: "n2".to_owned(),
            address: "10.0.0.2:7001".to_owned(),
            grpc_address: "[fd00::2]:7000".to_owned(),
            version: "0.3.1-rc.1+abc".to_owned(),
            wireguard_pubkey: vec![b'a'; KEY_BYTES],
            server_cert_fingerprint: vec![1; FINGERPRINT_BYTES],
            wg_port: 51820,
            traits: Some(v1::NodeTraits {
                platforms: vec!["linux/amd64".to_owned()],
                labels: [("zone".to_owned(), "eu".to_owned())].into(),
            }),
        };
        assert_eq!(fault(Payload::NodeUpdateSelf(fine.clone())), None);
        assert_eq!(fault(Payload::NodeUpdateSelf(Default::default())), None);
        type Change<'a> = &'a dyn Fn(&mut v1::NodeUpdateSelf);
        let table: &[(&str, Change<'_>)] = &[
            ("address", &|node| node.address = "n2:7001".to_owned()),
            ("address", &|node| node.address = "0.0.0.0:7001".to_owned()),
            ("address", &|node| node.address = "10.0.0.2:0".to_owned()),
            ("address", &|node| {
                node.address = "10.0.0.2:1 \u{1b}[2J".to_owned()
            }),
            ("grpc_address", &|node| {
                node.grpc_address = "10.0.0.2:1 --token=x; rm -rf /".to_owned();
            }),
            ("grpc_address", &|node| {
                node.grpc_address = "224.0.0.1:1".to_owned()
            }),
            ("version", &|node| node.version = "1\n2".to_owned()),
            ("version", &|node| node.version = long.clone()),
            ("wireguard_pubkey", &|node| {
                node.wireguard_pubkey = vec![0; 45]
            }),
            ("server_cert_fingerprint", &|node| {
                node.server_cert_fingerprint = vec![0; 31];
            }),
            ("wg_port", &|node| node.wg_port = 65_536),
            ("platforms", &|node| {
                node.traits.get_or_insert_default().platforms = vec!["a".repeat(65)];
            }),
            ("platforms", &|node| {
                node.traits.get_or_insert_default().platforms = vec![String::new(); 33];
            }),
            ("labels", &|node| {
                let labels = &mut node.traits.get_or_insert_default().labels;
                labels.insert("a b".to_owned(), String::new());
            }),
        ];
        for (field, change) in table {
            let mut update = fine.clone();
            change(&mut update);
            let found = fault(Payload::NodeUpdateSelf(update.clone()));
            assert_eq!(found.as_deref(), Some(*field), "{update:?}");
        }
    }

    #[test]
    fn oversized_maps_are_refused() {
        let map = |entries: usize, bytes: usize| -> BTreeMap<String, String> {
            let entry = |n| (format!("{n:02}"), "x".repeat(bytes - 2));
            (0..entries).map(entry).collect()
        };
        for (texts, fits) in [
            (map(ENTRIES, 2), true),
            (map(ENTRIES + 1, 2), false),
            (map(1, TEXT_BYTES), true),
            (map(1, TEXT_BYTES + 1), false),
        ] {
            let status = v1::NodeStatusUpdate {
                details: texts.clone(),
                ..Default::default()
            };
            let event = v1::AuditEvent {
                payload: texts,
                ..Default::default()
            };
            let append = v1::AuditAppend { event: Some(event) };
            assert_eq!(fault(Payload::NodeStatusUpdate(status)).is_none(), fits);
            assert_eq!(fault(Payload::AuditAppend(append)).is_none(), fits);
        }
    }
}
