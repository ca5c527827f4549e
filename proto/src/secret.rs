//! Secret values: redacted in output, zeroed on drop.

use std::{collections::BTreeMap, fmt, ops::Deref};

use zeroize::Zeroize;

/// Replacement of a secret in output.
pub const REDACTED: &str = "<redacted>";

/// A text that redacts `Debug` and `Display` and is zeroed on drop.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretString(String);

impl SecretString {
    /// Wraps a secret text.
    #[must_use]
    pub fn new(secret: String) -> Self {
        Self(secret)
    }

    /// Returns the secret; the caller must not log it or store it unencrypted.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

/// Bytes that redact `Debug` and `Display` and are zeroed on drop.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretBytes(Vec<u8>);

impl SecretBytes {
    /// Wraps secret bytes.
    #[must_use]
    pub fn new(secret: Vec<u8>) -> Self {
        Self(secret)
    }

    /// Returns the secret; the caller must not log it or store it unencrypted.
    #[must_use]
    pub fn expose(&self) -> &[u8] {
        &self.0
    }
}

/// Redacts a value of a foreign type; does not zero it.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Redacted<T>(pub T);

impl<T> fmt::Debug for Redacted<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(REDACTED)
    }
}

/// Environment variables of a container: `Debug` prints only the names, and the values are zeroed
/// on drop. `None` is a variable without a value.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Environment(BTreeMap<String, Option<String>>);

impl Deref for Environment {
    type Target = BTreeMap<String, Option<String>>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl From<BTreeMap<String, Option<String>>> for Environment {
    fn from(variables: BTreeMap<String, Option<String>>) -> Self {
        Self(variables)
    }
}

impl Extend<(String, Option<String>)> for Environment {
    fn extend<I: IntoIterator<Item = (String, Option<String>)>>(&mut self, variables: I) {
        self.0.extend(variables);
    }
}

impl<const N: usize> From<[(String, Option<String>); N]> for Environment {
    fn from(variables: [(String, Option<String>); N]) -> Self {
        Self(variables.into())
    }
}

impl Drop for Environment {
    fn drop(&mut self) {
        for value in self.0.values_mut() {
            value.zeroize();
        }
    }
}

impl fmt::Debug for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map()
            .entries(self.0.keys().map(|name| (name, Redacted(()))))
            .finish()
    }
}

macro_rules! secret {
    ($($name:ident of $inner:ty;)*) => {$(
        impl From<$inner> for $name {
            fn from(secret: $inner) -> Self {
                Self(secret)
            }
        }

        impl Drop for $name {
            fn drop(&mut self) {
                self.0.zeroize();
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(REDACTED)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(REDACTED)
            }
        }
    )*};
}

secret! {
    SecretString of String;
    SecretBytes of Vec<u8>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_redacted() {
        let text = SecretString::new("hunter2".to_owned());
        let bytes = SecretBytes::new(b"hunter2".to_vec());
        let environment = Environment(BTreeMap::from([("NAME".into(), Some("hunter2".into()))]));
        let shown = format!(
            "{text} {text:?} {bytes} {bytes:?} {environment:?} {:?}",
            Redacted("hunter2")
        );
        assert_eq!(
            shown,
            "<redacted> <redacted> <redacted> <redacted> {\"NAME\": <redacted>} <redacted>"
        );
    }
}
