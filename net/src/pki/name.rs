//! Validation of node names.

use jaco_proto::config::is_hostname;

use super::Error;

/// Accepts a sequence of DNS labels of at most 253 characters, the only names that certificates and
/// file names are made from.
///
/// # Errors
/// [`Error::Hostname`] for anything else, path separators and wildcards included.
pub fn check_hostname(name: &str) -> Result<(), Error> {
    if is_hostname(name) {
        Ok(())
    } else {
        Err(Error::Hostname(name.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_dns_labels_name_a_node() {
        let long = "a".repeat(64);
        let table = [
            ("node-1", true),
            ("a.b.example", true),
            ("N1", true),
            ("", false),
            ("a..b", false),
            ("-a", false),
            ("a-", false),
            ("../etc", false),
            ("*.example", false),
            ("a_b", false),
            (long.as_str(), false),
        ];
        for (name, ok) in table {
            assert_eq!(check_hostname(name).is_ok(), ok, "{name}");
        }
    }
}
