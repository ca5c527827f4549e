//! Settings that older engines ignore, although a container without them is another one.

use bollard::ClientVersion;
use jaco_proto::manifest::compose::Recursive;

use crate::{EngineError, spec::ContainerSpec};

/// Version of the engine's API.
type Version = (usize, usize);

/// Version with `MountVolumeOptions.Subpath`. Source: Docker Engine API, version history.
const VOLUME_SUBPATH: Version = (1, 45);
/// Version with `MountBindOptions.ReadOnlyNonRecursive` and `ReadOnlyForceRecursive`.
const READ_ONLY_RECURSION: Version = (1, 44);
/// Version in which a container has a hardware address per network.
const MAC_ADDRESS: Version = (1, 44);
/// Version with `HostConfig.Annotations`.
const ANNOTATIONS: Version = (1, 43);

/// Fails if the engine would silently ignore a setting that decides what the container sees.
///
/// # Errors
/// [`EngineError::Api`], with the setting and the version that has it.
pub(super) fn check(spec: &ContainerSpec, version: &ClientVersion) -> Result<(), EngineError> {
    let version = (version.major_version, version.minor_version);
    let service = &spec.service;
    let mounts = || service.volumes.iter();
    let recursion = |recursive| matches!(recursive, Recursive::Writable | Recursive::ReadOnly);
    let settings = [
        (
            "volume.subpath",
            VOLUME_SUBPATH,
            mounts().any(|mount| mount.subpath.is_some()),
        ),
        (
            "bind.recursive",
            READ_ONLY_RECURSION,
            mounts().any(|mount| recursion(mount.recursive)),
        ),
        ("mac_address", MAC_ADDRESS, service.mac_address.is_some()),
        ("annotations", ANNOTATIONS, !service.annotations.is_empty()),
    ];
    let missing = settings
        .into_iter()
        .find(|(_, since, is_set)| *is_set && version < *since);
    let Some((name, (major, minor), _)) = missing else {
        return Ok(());
    };
    let message = format!(
        "the engine on this node (API {}.{}) has no {name}, which needs API {major}.{minor}: \
         upgrade the engine, or remove the setting",
        version.0, version.1
    );
    Err(EngineError::Api { status: 0, message })
}

#[cfg(test)]
mod tests {
    use jaco_proto::manifest::compose::{Mount, MountSource, Service};

    use super::*;
    use crate::spec::Networking;

    fn version(minor: usize) -> ClientVersion {
        ClientVersion {
            major_version: 1,
            minor_version: minor,
        }
    }

    #[test]
    fn older_engines_refuse_what_they_would_ignore() {
        let subpath = |path: Option<&str>| Mount {
            subpath: path.map(str::to_owned),
            ..Mount::new(MountSource::Volume("data".into()), "/x")
        };
        let recursive = Mount {
            recursive: Recursive::Writable,
            ..Mount::new(MountSource::Volume("data".into()), "/x")
        };
        let mounting = |mount| Service {
            volumes: vec![mount],
            ..Default::default()
        };
        let addressed = Service {
            mac_address: Some("02:42:ac:11:65:43".into()),
            ..Default::default()
        };
        let annotated = Service {
            annotations: [("a".to_owned(), "b".to_owned())].into(),
            ..Default::default()
        };
        for (service, needed) in [
            (Service::default(), 0),
            (mounting(subpath(None)), 0),
            (mounting(subpath(Some("a"))), 45),
            (mounting(recursive), 44),
            (addressed, 44),
            (annotated, 43),
        ] {
            let spec = ContainerSpec {
                cluster_id: String::new(),
                row: Default::default(),
                service,
                volumes: Default::default(),
                networking: Networking::None,
                shared_containers: Default::default(),
                home: String::new(),
                files: Vec::new(),
            };
            assert_eq!(check(&spec, &version(needed)), Ok(()));
            if let Some(older) = needed.checked_sub(1) {
                let error = check(&spec, &version(older)).unwrap_err().to_string();
                let wanted = format!("needs API 1.{needed}");
                assert!(error.contains(&wanted), "{error}");
            }
        }
    }
}
