//! `clusters.yaml`: named remote clusters with their credentials.

use std::{
    collections::BTreeSet,
    fs, io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use jaco_net::pki::Fingerprint;
use jaco_proto::{
    secret::SecretString,
    yaml::{self, Map, Node},
};

use super::address;
use crate::client::failure::{Failure, Local};

/// Required mode: the file holds tokens, so only its owner may read it.
const MODE: u32 = 0o600;

/// The content of the file.
#[derive(Default)]
pub(crate) struct Contexts {
    current: Option<String>,
    contexts: Vec<Context>,
}

/// Connection settings of one cluster.
#[derive(Default)]
pub(crate) struct Context {
    name: String,
    server_addrs: Vec<String>,
    pub(super) ca_cert_path: Option<String>,
    pub(super) ca_fingerprint: Option<String>,
    pub(super) token: Option<SecretString>,
}

impl Context {
    /// Addresses in the order they are tried.
    ///
    /// # Errors
    /// `context_invalid` if the list is empty.
    pub(super) fn servers(&self) -> Result<Vec<&str>, Failure> {
        if self.server_addrs.is_empty() {
            let message = format!(
                "context {:?} of clusters.yaml has no server_addrs",
                self.name
            );
            return Err(invalid(message).with("context", &self.name));
        }
        Ok(self.server_addrs.iter().map(String::as_str).collect())
    }
}

impl Contexts {
    /// The entry with this name.
    pub(super) fn get(&self, name: &str) -> Option<&Context> {
        self.contexts.iter().find(|context| context.name == name)
    }

    /// The current entry, else the first.
    ///
    /// # Errors
    /// `context_invalid` if the current one is not an entry.
    pub(super) fn current(&self) -> Result<Option<&Context>, Failure> {
        match &self.current {
            None => Ok(self.contexts.first()),
            Some(name) => self.get(name).map(Some).ok_or_else(|| {
                invalid(format!(
                    "current_context {name:?} of clusters.yaml is not one of its contexts"
                ))
            }),
        }
    }

    /// Parses the text of a file.
    ///
    /// # Errors
    /// `context_invalid` for unknown keys, values of the wrong type and duplicate names.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, Failure> {
        let document = yaml::parse(bytes).map_err(|e| invalid(format!("clusters.yaml: {e}")))?;
        let Some(root) = document.root.filter(|root| !root.is_null()) else {
            return Ok(Self::default());
        };
        let root = map(&root, "clusters.yaml")?;
        known(root, &["current_context", "contexts"])?;
        let contexts: Vec<Context> = match root.get("contexts").filter(|node| !node.is_null()) {
            None => Vec::new(),
            Some(node) => list(node, "contexts")?
                .iter()
                .map(context)
                .collect::<Result<_, _>>()?,
        };
        let mut names = BTreeSet::new();
        if let Some(twice) = contexts.iter().find(|entry| !names.insert(&entry.name)) {
            return Err(invalid(format!(
                "clusters.yaml has two contexts {:?}",
                twice.name
            )));
        }
        Ok(Self {
            current: text(root, "current_context")?,
            contexts,
        })
    }

    /// Reads the file; `None` if it does not exist.
    ///
    /// # Errors
    /// `context_invalid` if it is not a regular file of mode 0600 or does not parse.
    pub(crate) fn read(path: &Path) -> Result<Option<Self>, Failure> {
        let metadata = match fs::symlink_metadata(path) {
            Ok(metadata) => metadata,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(invalid(format!("{}: {error}", path.display()))),
        };
        if !metadata.is_file() {
            return Err(invalid(format!("{} is not a regular file", path.display())));
        }
        let mode = metadata.permissions().mode() & 0o7777;
        if mode != MODE {
            return Err(invalid(format!(
                "{} holds tokens but has mode {mode:04o}; make it 0600",
                path.display()
            ))
            .with("mode", format!("{mode:04o}")));
        }
        let bytes =
            fs::read(path).map_err(|error| invalid(format!("{}: {error}", path.display())))?;
        Self::parse(&bytes).map(Some)
    }
}

/// Path of the file, from the values of `XDG_CONFIG_HOME` and `HOME`.
pub(crate) fn path(xdg_config_home: Option<&str>, home: Option<&str>) -> Option<PathBuf> {
    let config = match xdg_config_home.filter(|dir| !dir.is_empty()) {
        Some(dir) => PathBuf::from(dir),
        None => Path::new(home.filter(|dir| !dir.is_empty())?).join(".config"),
    };
    Some(config.join("jaco/clusters.yaml"))
}

fn context(node: &Node) -> Result<Context, Failure> {
    let entry = map(node, "a context")?;
    known(
        entry,
        &[
            "name",
            "server_addrs",
            "ca_cert_path",
            "ca_fingerprint",
            "token",
        ],
    )?;
    let name = text(entry, "name")?
        .filter(|name| !name.is_empty())
        .ok_or_else(|| invalid(format!("clusters.yaml {}: a context needs a name", node.at)))?;
    let server_addrs = match entry.get("server_addrs") {
        None => Vec::new(),
        Some(node) => list(node, "server_addrs")?
            .iter()
            .map(|item| {
                item.text()
                    .filter(|text| address(text).is_ok())
                    .map(str::to_owned)
                    .ok_or_else(|| wrong(item, "an address host:port"))
            })
            .collect::<Result<_, _>>()?,
    };
    let ca_fingerprint = text(entry, "ca_fingerprint")?;
    if let (Some(print), Some(node)) = (&ca_fingerprint, entry.get("ca_fingerprint"))
        && print.to_ascii_lowercase().parse::<Fingerprint>().is_err()
    {
        return Err(wrong(node, "sha256: and 64 hex digits for ca_fingerprint"));
    }
    Ok(Context {
        name,
        server_addrs,
        ca_cert_path: text(entry, "ca_cert_path")?,
        ca_fingerprint,
        token: text(entry, "token")?.map(SecretString::new),
    })
}

fn map<'a>(node: &'a Node, what: &str) -> Result<&'a Map, Failure> {
    node.as_map()
        .ok_or_else(|| wrong(node, &format!("a mapping for {what}")))
}

fn list<'a>(node: &'a Node, what: &str) -> Result<&'a [Node], Failure> {
    node.as_seq()
        .ok_or_else(|| wrong(node, &format!("a list for {what}")))
}

fn text(map: &Map, key: &str) -> Result<Option<String>, Failure> {
    match map.get(key).filter(|node| !node.is_null()) {
        None => Ok(None),
        Some(node) => match node.text() {
            Some(text) => Ok(Some(text.to_owned())),
            None => Err(wrong(node, &format!("text for {key}"))),
        },
    }
}

fn known(map: &Map, keys: &[&str]) -> Result<(), Failure> {
    match map
        .iter()
        .find(|(key, _)| !keys.contains(&key.text.as_str()))
    {
        None => Ok(()),
        Some((key, _)) => Err(invalid(format!(
            "clusters.yaml {}: unknown key {:?}",
            key.at, key.text
        ))),
    }
}

/// Reports a value of the wrong type. The value is omitted: it may be a misplaced token.
fn wrong(node: &Node, want: &str) -> Failure {
    invalid(format!(
        "clusters.yaml {}: want {want}, found {}",
        node.at,
        node.kind()
    ))
}

fn invalid(message: impl Into<String>) -> Failure {
    Failure::new(Local::ContextInvalid, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO: &str = "current_context: b\ncontexts:\n  - {name: a, server_addrs: [x:1, y:2], token: t}\n  - {name: b, server_addrs: [z:3], ca_cert_path: /ca}\n";

    #[test]
    fn contexts_are_found_by_name_and_default() {
        let contexts = Contexts::parse(TWO.as_bytes()).unwrap();
        let a = contexts.get("a").unwrap();
        assert_eq!(a.servers().unwrap(), ["x:1", "y:2"]);
        assert_eq!(a.token.as_ref().map(SecretString::expose), Some("t"));
        assert_eq!(contexts.current().unwrap().unwrap().name, "b");
        assert!(contexts.get("c").is_none());

        let without = TWO.replace("current_context: b\n", "");
        let first = Contexts::parse(without.as_bytes()).unwrap();
        assert_eq!(first.current().unwrap().unwrap().name, "a");
        let dangling = TWO.replace("current_context: b", "current_context: c");
        let dangling = Contexts::parse(dangling.as_bytes()).unwrap();
        assert_eq!(dangling.current().err().unwrap().code, "context_invalid");
    }

    #[test]
    fn an_empty_file_has_no_context() {
        for text in ["", "# nothing\n", "contexts:\n", "contexts: []\n"] {
            let contexts = Contexts::parse(text.as_bytes()).unwrap();
            assert!(contexts.current().unwrap().is_none(), "{text:?}");
        }
    }

    #[test]
    fn invalid_file_is_refused_without_showing_values() {
        for text in [
            "[]",
            "contexts: {}",
            "contexts: [sesame]",
            "contexts: [{token: sesame}]",
            "contexts: [{name: a, server_addrs: sesame}]",
            "contexts: [{name: a, server_addrs: [sesame]}]",
            "contexts: [{name: a, ca_fingerprint: sesame}]",
            "contexts: [{name: a, token: sesame}, {name: a}]",
            "contexts: [{name: a, token: [sesame]}]",
            "contexts: [{name: a, tokn: sesame}]",
            "context: a",
            "a: b: c",
        ] {
            let failure = Contexts::parse(text.as_bytes()).err().unwrap();
            assert_eq!(failure.code, "context_invalid", "{text}");
            assert!(!failure.message.contains("sesame"), "{}", failure.message);
        }
    }

    #[test]
    fn context_without_server_is_refused_on_use() {
        let contexts = Contexts::parse(b"contexts: [{name: a, token: sesame}]").unwrap();
        let failure = contexts.get("a").unwrap().servers().unwrap_err();
        assert_eq!(failure.code, "context_invalid");
        assert_eq!(failure.details["context"], "a");
        assert!(!failure.message.contains("sesame"));
    }

    #[test]
    fn only_a_private_regular_file_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("clusters.yaml");
        assert!(Contexts::read(&file).unwrap().is_none());

        fs::write(&file, TWO).unwrap();
        for (mode, shown) in [
            (0o644, "0644"),
            (0o640, "0640"),
            (0o400, "0400"),
            (0o4600, "4600"),
        ] {
            fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
            let failure = Contexts::read(&file).err().unwrap();
            assert_eq!(failure.code, "context_invalid");
            assert!(failure.message.contains(shown), "{}", failure.message);
        }
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        assert!(Contexts::read(&file).unwrap().is_some());

        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&file, &link).unwrap();
        for path in [link.as_path(), dir.path()] {
            let failure = Contexts::read(path).err().unwrap();
            assert!(
                failure.message.contains("regular file"),
                "{}",
                failure.message
            );
        }
    }

    #[test]
    fn path_follows_the_configuration_directory() {
        for (xdg, home, expected) in [
            (Some("/x"), Some("/h"), Some("/x/jaco/clusters.yaml")),
            (Some(""), Some("/h"), Some("/h/.config/jaco/clusters.yaml")),
            (None, Some("/h"), Some("/h/.config/jaco/clusters.yaml")),
            (None, None, None),
        ] {
            assert_eq!(path(xdg, home), expected.map(PathBuf::from));
        }
    }
}
