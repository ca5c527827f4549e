//! Mounts, and the engine names of volumes.

use std::collections::HashMap;

use bollard::models::{
    Mount as EngineMount, MountBindOptions, MountBindOptionsPropagationEnum as Propagation,
    MountImageOptions, MountTmpfsOptions, MountType, MountVolumeOptions,
    MountVolumeOptionsDriverConfig,
};
use jaco_proto::manifest::compose::{Mount, MountSource, Recursive, VolumeDeclaration};

use super::ContainerSpec;

/// Splits mounts into binds in the older syntax, and all others.
///
/// Only the older syntax creates a missing path on every engine version, and relabels for SELinux;
/// it cannot say how mounts below the path are treated.
pub(super) fn split(source: &ContainerSpec) -> (Vec<String>, Vec<EngineMount>) {
    let mut binds = Vec::new();
    let mut mounts = Vec::new();
    let is_replaced = |path: &String| {
        let mut files = source.files.iter();
        files.any(|file| file.replaces.as_ref() == Some(path))
    };
    for file in &source.files {
        mounts.push(EngineMount {
            source: Some(file.source.clone()),
            target: Some(file.target.clone()),
            typ: Some(MountType::BIND),
            read_only: Some(true),
            ..EngineMount::default()
        });
    }
    for mount in &source.service.volumes {
        match &mount.source {
            MountSource::Bind { path, .. } if is_replaced(path) => {}
            MountSource::Bind { path, create }
                if !path.contains(':')
                    && mount.recursive == Recursive::Enabled
                    && (*create || mount.selinux.is_some()) =>
            {
                binds.push(bind(&at_home(path, &source.home), mount));
            }
            MountSource::Bind { path, create } => mounts.push(EngineMount {
                source: Some(at_home(path, &source.home)),
                bind_options: bind_options(mount, *create),
                ..engine_mount(mount, MountType::BIND)
            }),
            MountSource::Volume(key) => {
                let declared = source
                    .volumes
                    .get(key)
                    .filter(|declared| !declared.external);
                mounts.push(EngineMount {
                    source: Some(volume_name(source, key)),
                    volume_options: volume_options(mount, declared),
                    ..engine_mount(mount, MountType::VOLUME)
                });
            }
            MountSource::Anonymous => mounts.push(EngineMount {
                volume_options: volume_options(mount, None),
                ..engine_mount(mount, MountType::VOLUME)
            }),
            MountSource::Tmpfs => mounts.push(EngineMount {
                tmpfs_options: tmpfs_options(mount),
                ..engine_mount(mount, MountType::TMPFS)
            }),
            MountSource::Other { kind, source } => {
                if let Some(kind) = other_kind(kind) {
                    let subpath = mount.subpath.clone();
                    mounts.push(EngineMount {
                        image_options: subpath.filter(|_| kind == MountType::IMAGE).map(|path| {
                            MountImageOptions {
                                subpath: Some(path),
                            }
                        }),
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

/// `None` when nothing differs from the engine's default.
fn bind_options(mount: &Mount, create: bool) -> Option<MountBindOptions> {
    let is = |recursive| (mount.recursive == recursive).then_some(true);
    let options = MountBindOptions {
        propagation: mount.propagation.as_deref().and_then(propagation),
        non_recursive: is(Recursive::Disabled),
        read_only_non_recursive: is(Recursive::Writable),
        read_only_force_recursive: is(Recursive::ReadOnly),
        create_mountpoint: (create && mount.recursive != Recursive::Enabled).then_some(true),
    };
    (options != MountBindOptions::default()).then_some(options)
}

/// Options of a mounted volume, and of the volume itself if it does not exist yet.
fn volume_options(
    mount: &Mount,
    declared: Option<&VolumeDeclaration>,
) -> Option<MountVolumeOptions> {
    let driver =
        declared.filter(|declared| !declared.driver.is_empty() || !declared.driver_opts.is_empty());
    let labels = declared.into_iter().flat_map(|declared| &declared.labels);
    let labels: HashMap<_, _> = labels
        .chain(&mount.labels)
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect();
    let options = MountVolumeOptions {
        no_copy: mount.no_copy.then_some(true),
        labels: (!labels.is_empty()).then_some(labels),
        driver_config: driver.map(|declared| MountVolumeOptionsDriverConfig {
            name: (!declared.driver.is_empty()).then(|| declared.driver.clone()),
            options: (!declared.driver_opts.is_empty())
                .then(|| declared.driver_opts.clone().into_iter().collect()),
        }),
        subpath: mount.subpath.clone(),
    };
    (options != MountVolumeOptions::default()).then_some(options)
}

fn tmpfs_options(mount: &Mount) -> Option<MountTmpfsOptions> {
    (mount.size.is_some() || mount.mode.is_some()).then(|| MountTmpfsOptions {
        size_bytes: mount.size,
        mode: mount.mode.map(i64::from),
        options: None,
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
