//! Fuzzes registry names, image references and the selection of a pull credential.

use std::sync::Arc;

use imbl::OrdMap;
use jaco_policy::runtime::registry_key::{InvalidReference, Reference, resolve};
use jaco_proto::v1::RegistryCredential;
use jaco_state::registry::canonical_key;

/// Maximum number of stored credentials per input.
const STORED: usize = 32;

/// Input: an image reference on the first line, then registries as written by an operator.
///
/// Computing a canonical key is idempotent and removes everything insignificant. The key of an
/// image is canonical and, parsed as an image, its own key. A pull never gets the credential of
/// another host, or of a path that does not contain the image; of the remaining ones it gets the
/// longest.
pub fn registry(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let mut lines = text.split('\n');
    let image = lines.next().unwrap_or_default();
    let keys: Vec<String> = lines.take(STORED).filter_map(canonical).collect();
    let stored = keys.iter().map(|key| (key.clone(), Arc::new(row(key))));
    let stored: OrdMap<_, _> = stored.collect();
    let (key, found) = match (image_key(image), resolve(image, &stored)) {
        (Ok(key), Ok(found)) => (key, found),
        (Err(_), Err(_)) => return,
        disagree => panic!("{disagree:?}"),
    };
    assert_eq!(canonical(&key).as_deref(), Some(key.as_str()), "{image:?}");
    let host = host_of(&key);
    // A host that is recognised by its capitals only is not recognised in lower case.
    if host.contains(['.', ':']) || host == "localhost" {
        assert_eq!(image_key(&key).as_deref(), Ok(key.as_str()), "{image:?}");
    }
    let prefixes = keys.iter().filter(|stored| is_under(&key, stored));
    let longest = prefixes.max_by_key(|stored| stored.len());
    match (found, longest) {
        (Some(found), Some(longest)) => assert_eq!(&found.username, longest),
        (Some(found), None) => assert_eq!(host_of(&found.username), host),
        (None, None) => {}
        (None, Some(longest)) => panic!("{longest:?} is not used for {image:?}"),
    }
}

fn canonical(registry: &str) -> Option<String> {
    let key = canonical_key(registry)?;
    assert_eq!(canonical_key(&key).as_ref(), Some(&key), "{registry:?}");
    assert!(!host_of(&key).is_empty(), "{registry:?}");
    assert_eq!(key.trim(), key, "{registry:?}");
    assert!(
        !key.contains(['?', '#']) && !key.contains("://"),
        "{registry:?}"
    );
    assert!(!key.ends_with('/'), "{registry:?}");
    Some(key)
}

/// Creates a credential whose user name is its key.
fn row(key: &str) -> RegistryCredential {
    RegistryCredential {
        registry: key.to_owned(),
        username: key.to_owned(),
        secret: b"secret".to_vec(),
        updated_at: None,
    }
}

fn is_under(key: &str, prefix: &str) -> bool {
    key.strip_prefix(prefix)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

fn host_of(key: &str) -> &str {
    key.split('/').next().unwrap_or_default()
}

fn image_key(image: &str) -> Result<String, InvalidReference> {
    Ok(Reference::parse(image)?.key())
}
