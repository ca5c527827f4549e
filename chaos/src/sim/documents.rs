//! Compose documents of simulated deployments, in a short form that is cheap to parse:
//! `web=image-3,db=image-1`.

use std::collections::BTreeMap;

use jaco_policy::scheduler::{
    projects::{Template, Templates},
    rollout,
};
use jaco_proto::{
    manifest::compose::{Project, Service},
    v1,
};

use super::{jobs, startup};

/// The service that has a volume.
pub(super) const STATEFUL: &str = "db";

pub(super) fn write(services: &[(&str, u64)]) -> Vec<u8> {
    let service = |(name, image): &(&str, u64)| format!("{name}=image-{image}");
    let services: Vec<String> = services.iter().map(service).collect();
    services.join(",").into_bytes()
}

/// Image of each service.
pub(super) fn read(document: &[u8]) -> BTreeMap<&str, &str> {
    let text = std::str::from_utf8(document).unwrap_or_default();
    let services = text.split(',').filter_map(|pair| pair.split_once('='));
    services.collect()
}

/// Parses a document as the runtime does.
pub(super) fn project(document: &[u8]) -> Result<Project, String> {
    let services = read(document);
    let has_job = services.contains_key(jobs::JOB);
    let service = |(name, image): (&str, &str)| {
        let mut service = Service {
            image: Some(image.to_owned()),
            ..Service::default()
        };
        jobs::configure(name, &mut service, has_job);
        startup::configure(name, &mut service);
        (name.to_owned(), service)
    };
    Ok(Project {
        services: services.into_iter().map(service).collect(),
        ..Project::default()
    })
}

/// Parses a document as the scheduler does.
pub(super) fn templates(deployment: &v1::Deployment) -> Templates {
    let services = read(&deployment.compose_yaml);
    let has_job = services.contains_key(jobs::JOB);
    let template = |(name, image): (&str, &str)| {
        let spec = deployment.services.iter().find(|spec| spec.name == name);
        let files = spec.map(|spec| spec.files.clone()).unwrap_or_default();
        let ids = files.iter().map(|file| file.content_id.as_str());
        let networks = spec.map_or(&[][..], |spec| &spec.networks);
        let networks = networks.iter().map(String::as_str);
        let hashed: Vec<&str> = std::iter::once(image).chain(networks).chain(ids).collect();
        let mut service = Service::default();
        jobs::configure(name, &mut service, has_job);
        let template = Template {
            image: image.to_owned(),
            spec_hash: hashed.join(" ").into_bytes(),
            files,
            stateful: name == STATEFUL,
            depends_on: service.depends_on,
            rollout: rollout::Settings::default(),
        };
        (name.to_owned(), template)
    };
    Ok(services.into_iter().map(template).collect())
}
