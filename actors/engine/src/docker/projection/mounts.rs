//! Mounts, and the engine names of volumes.

use bollard::models::{
    Mount as EngineMount, MountBindOptions, MountBindOptionsPropagationEnum as Propagation,
    MountType, MountVolumeOptions,
};
use jaco_proto::manifest::compose::{Mount, MountSource};

use super::ContainerSpec;

/// Splits mounts into binds that create a missing host path, and all others.
///
/// Only the older bind syntax creates the path on every engine version.
pub(super) fn split(source: &ContainerSpec) -> (Vec<String>, Vec<EngineMount>) {
    let mut binds = Vec::new();
    let mut mounts = Vec::new();
    for mount in &source.service.volumes {
        match &mount.source {
            MountSource::Bind { path, create: true } if !path.contains(':') => {
                binds.push(bind(&at_home(path, &source.home), mount));
            }
            MountSource::Bind { path, .. } => mounts.push(EngineMount {
                source: Some(at_home(path, &source.home)),
                bind_options: mount.propagation.as_deref().map(|text| MountBindOptions {
                    propagation: propagation(text),
                    ..Default::default()
                }),
                ..engine_mount(mount, MountType::BIND)
            }),
            MountSource::Volume(key) => mounts.push(EngineMount {
                source: Some(volume_name(source, key)),
                volume_options: volume_options(mount),
                ..engine_mount(mount, MountType::VOLUME)
            }),
            MountSource::Anonymous => mounts.push(EngineMount {
                volume_options: volume_options(mount),
                ..engine_mount(mount, MountType::VOLUME)
            }),
            MountSource::Tmpfs => mounts.push(engine_mount(mount, MountType::TMPFS)),
            MountSource::Other { kind, source } => {
                if let Some(kind) = other_kind(kind) {
                    mounts.push(EngineMount {
                        source: Some(source.clone()),
                        ..engine_mount(mount, kind)
                    });
                }
            }
        }
    }
    (binds, mounts)
}

/// Expands `~` and `~/...` to the home directory; other paths stay unchanged.
fn at_home(path: &str, home: &str) -> String {
    match path.strip_prefix('~') {
        Some(rest) if rest.is_empty() || rest.starts_with('/') => format!("{home}{rest}"),
        Some(_) | None => path.to_owned(),
    }
}

fn bind(path: &str, mount: &Mount) -> String {
    let mut options = Vec::new();
    if mount.read_only {
        options.push("ro");
    }
    options.extend(mount.propagation.as_deref());
    options.extend(mount.selinux.as_deref());
    let mut text = format!("{path}:{}", mount.target);
    if !options.is_empty() {
        text.push(':');
        text.push_str(&options.join(","));
    }
    text
}

fn engine_mount(mount: &Mount, kind: MountType) -> EngineMount {
    EngineMount {
        target: Some(mount.target.clone()),
        typ: Some(kind),
        read_only: Some(mount.read_only),
        ..Default::default()
    }
}

fn volume_options(mount: &Mount) -> Option<MountVolumeOptions> {
    mount.no_copy.then(|| MountVolumeOptions {
        no_copy: Some(true),
        ..Default::default()
    })
}

fn volume_name(source: &ContainerSpec, key: &str) -> String {
    match source.volumes.get(key) {
        Some(declared) => match (&declared.name, declared.external) {
            (Some(name), _) => name.clone(),
            (None, true) => key.to_owned(),
            (None, false) => format!("jaco_{}_{key}", source.row.deployment),
        },
        None => format!("jaco_{}_{key}", source.row.deployment),
    }
}

fn propagation(text: &str) -> Option<Propagation> {
    match text {
        "private" => Some(Propagation::PRIVATE),
        "rprivate" => Some(Propagation::RPRIVATE),
        "shared" => Some(Propagation::SHARED),
        "rshared" => Some(Propagation::RSHARED),
        "slave" => Some(Propagation::SLAVE),
        "rslave" => Some(Propagation::RSLAVE),
        _ => None,
    }
}

fn other_kind(kind: &str) -> Option<MountType> {
    match kind {
        "npipe" => Some(MountType::NPIPE),
        "cluster" => Some(MountType::CLUSTER),
        "image" => Some(MountType::IMAGE),
        _ => None,
    }
}
