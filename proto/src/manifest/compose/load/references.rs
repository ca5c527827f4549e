//! References to other services of the file, and the dependencies that follow from them.

use crate::{
    Error,
    manifest::compose::{
        Condition, Dependency, Link, NetworkMode, Service, VolumesFrom, reader::Reader,
    },
    yaml::Node,
};

use super::network;

const STARTED: Dependency = Dependency {
    condition: Condition::ServiceStarted,
    required: true,
};

/// Makes services that are linked, or whose namespaces or volumes are shared, required
/// dependencies: a container cannot join what has not started.
pub(super) fn add_dependencies(service: &mut Service) {
    let shared = [&service.ipc, &service.pid, &service.uts]
        .into_iter()
        .filter_map(|mode| mode.as_ref()?.service().map(str::to_owned));
    let joined = match &service.network_mode {
        Some(NetworkMode::Service(target)) => Some(target.clone()),
        Some(NetworkMode::None | NetworkMode::Host) | None => None,
    };
    let volumes = service.volumes_from.iter().map(|from| from.service.clone());
    let linked = service.links.iter().map(|link| link.service.clone());
    let targets: Vec<String> = shared.chain(joined).chain(volumes).chain(linked).collect();
    for target in targets {
        let dependency = service.depends_on.entry(target).or_insert(STARTED);
        if !dependency.required {
            *dependency = STARTED;
        }
    }
}

/// Reads `service[:alias]` entries.
pub(super) fn links(reader: &Reader<'_>, node: &Node) -> Result<Vec<Link>, Error> {
    let mut links = Vec::new();
    for item in reader.distinct("links", node)? {
        let Some(text) = reader.string("links", item)? else {
            continue;
        };
        let (service, alias) = text.split_once(':').unwrap_or((&text, &text));
        network::check_name(reader, "links", item, alias)?;
        links.push(Link {
            service: service.to_owned(),
            alias: alias.to_owned(),
        });
    }
    Ok(links)
}

/// Reads `service[:ro|:rw]` entries.
pub(super) fn volumes_from(reader: &Reader<'_>, node: &Node) -> Result<Vec<VolumesFrom>, Error> {
    let mut sources = Vec::new();
    for item in reader.distinct("volumes_from", node)? {
        let Some(text) = reader.string("volumes_from", item)? else {
            continue;
        };
        let (service, mode) = text.split_once(':').unwrap_or((&text, "rw"));
        let read_only = match mode {
            "ro" => true,
            "rw" => false,
            _ => return Err(reader.wrong("volumes_from", item, "service[:ro] or service[:rw]")),
        };
        sources.push(VolumesFrom {
            service: service.to_owned(),
            read_only,
        });
    }
    Ok(sources)
}
