//! The settings by name.

use jaco_proto::{Error, ErrorCode};

use super::{ClusterSettings, VALUE_BYTES, values};

/// A setting.
#[derive(Debug)]
pub struct Key {
    /// Name, such as `ingress.limits`.
    pub name: &'static str,
    /// Type, for display.
    pub kind: &'static str,
    /// Value in force while the setting is not set, in canonical form.
    pub default: &'static str,
    /// Description of the valid values, for errors.
    pub expected: &'static str,
    /// Parses a value into its field; returns its canonical form, or `None` if it is not valid.
    pub(super) apply: fn(&mut ClusterSettings, &str) -> Option<String>,
}

/// Every setting, by name.
pub static KEYS: &[Key] = &[
    Key {
        name: "ingress.limits",
        kind: "limits",
        default: "off",
        expected: "off, or requests per second, burst multiplier and connections, such as 20,5,20",
        apply: |settings, text| {
            settings.ingress_limits = values::limits(text)?;
            let limits = settings.ingress_limits.as_ref();
            Some(limits.map_or_else(|| "off".to_owned(), ToString::to_string))
        },
    },
    Key {
        name: "ingress.public_addresses",
        kind: "addresses",
        default: "",
        expected: "IP addresses or host names, separated by commas",
        apply: |settings, text| {
            settings.public_addresses = values::list(text)?;
            Some(values::join(&settings.public_addresses))
        },
    },
    Key {
        name: "ingress.trusted_proxies",
        kind: "cidrs",
        default: "",
        expected: "IP prefixes such as 10.0.0.0/8 or 2001:db8::/32, separated by commas",
        apply: |settings, text| {
            settings.trusted_proxies = values::list(text)?;
            Some(values::join(&settings.trusted_proxies))
        },
    },
];

/// Returns the setting of this name.
#[must_use]
pub fn key(name: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.name == name)
}

impl Key {
    /// Returns the setting of this name.
    ///
    /// # Errors
    /// `config_key_unknown` with the name, and with the one that was probably meant.
    pub fn find(name: &str) -> Result<&'static Self, Error> {
        key(name).ok_or_else(|| unknown(name))
    }

    /// Checks a value and returns the text to store.
    ///
    /// # Errors
    /// `config_value_invalid` with key, value and what was expected.
    pub fn canonical(&self, value: &str) -> Result<String, Error> {
        let found = (value.len() <= VALUE_BYTES)
            .then(|| (self.apply)(&mut ClusterSettings::default(), value))
            .flatten();
        found.ok_or_else(|| {
            Error::new(
                ErrorCode::ConfigValueInvalid,
                format!(
                    "the value of {} is not valid: expected {}",
                    self.name, self.expected
                ),
            )
            .with("key", self.name)
            .with("value", shortened(value))
            .with("expected", self.expected)
        })
    }
}

fn unknown(name: &str) -> Error {
    let shown = shortened(name);
    let error = match nearest(name) {
        Some(near) => Error::new(
            ErrorCode::ConfigKeyUnknown,
            format!("there is no setting {shown:?}, did you mean {near:?}?"),
        )
        .with("suggestion", near),
        None => Error::new(
            ErrorCode::ConfigKeyUnknown,
            format!("there is no setting {shown:?}"),
        ),
    };
    error.with("key", shown)
}

/// The most similar name; also for a name without its first part, such as `limits`.
fn nearest(name: &str) -> Option<&'static str> {
    // The distance costs quadratic time, and a misspelt name is never this long.
    if name.len() > 64 {
        return None;
    }
    let allowed = (name.chars().count() / 3).clamp(1, 3);
    let distance = |known: &str| {
        let short = known.rsplit('.').next().unwrap_or(known);
        strsim::osa_distance(name, known).min(strsim::osa_distance(name, short))
    };
    KEYS.iter()
        .map(|key| (distance(key.name), key.name))
        .filter(|(distance, _)| *distance <= allowed)
        .min()
        .map(|(_, name)| name)
}

/// Returns the beginning of a text that a client sent.
fn shortened(text: &str) -> &str {
    let mut end = text.len().min(200);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}
