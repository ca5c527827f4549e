//! Certificates of operators.

use jaco_proto::v1;

/// Directory that stands for operators where certificates have one.
pub const DIRECTORY: &str = "imported";

/// Entity and version that the key of a certificate is sealed as: it opens with its own chain only.
#[must_use]
pub fn sealed_as(cert: &v1::ImportedCert) -> (String, u64) {
    let first = cert.fingerprint.iter().take(8);
    let version = first.fold(0, |sum, byte| (sum << 8) | u64::from(*byte));
    (format!("imported_cert/{}", cert.name), version)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_belongs_to_name_and_fingerprint() {
        let sealed = |name: &str, fingerprint: &[u8]| {
            sealed_as(&v1::ImportedCert {
                name: name.to_owned(),
                fingerprint: fingerprint.to_vec(),
                ..v1::ImportedCert::default()
            })
        };
        let expected = ("imported_cert/*.example".to_owned(), 0x0102_0304_0506_0708);
        assert_eq!(sealed("*.example", &[1, 2, 3, 4, 5, 6, 7, 8, 9]), expected);
        assert_eq!(sealed("a", &[]).1, 0);
    }
}
