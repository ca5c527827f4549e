//! Scheduling view of compose documents, parsed once per content.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use jaco_proto::{
    manifest::{
        SpecHasher,
        compose::{Dependency, Mount, MountSource, Project, Service},
    },
    v1,
};
use jaco_state::State;

use super::{moves, rollout};

/// Scheduling view of one service of a compose document.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Template {
    /// Image reference.
    pub image: String,
    /// Hash of all inputs of the container.
    pub spec_hash: Vec<u8>,
    /// Files that the daemon writes for the container.
    pub files: Vec<v1::MountedFile>,
    /// Whether it mounts data of its host: a path or a named volume.
    pub stateful: bool,
    /// Services that it depends on.
    pub depends_on: BTreeMap<String, Dependency>,
    /// Settings of its rolling updates.
    pub rollout: rollout::Settings,
}

impl Template {
    /// Whether a container of `row` has these settings, and secrets of this version.
    pub(super) fn is_of(&self, row: &v1::ReplicaDesired, secrets_version: u64) -> bool {
        row.image == self.image
            && row.spec_hash == self.spec_hash
            && row.secrets_version == secrets_version
    }

    /// Returns the ids of those of `rows` that have finished with these settings, and with secrets of
    /// this version.
    pub(super) fn finished<'r>(
        &self,
        state: &State,
        rows: &BTreeMap<&'r str, &'r v1::ReplicaDesired>,
        secrets_version: u64,
    ) -> BTreeSet<&'r str> {
        let done = |row: &v1::ReplicaDesired| moves::finished(state, row).is_some();
        let rows = rows.iter();
        let rows = rows.filter(|(_, row)| self.is_of(row, secrets_version) && done(row));
        rows.map(|(id, _)| *id).collect()
    }
}

/// Templates of the services that the document defines with an image, or why it cannot be parsed.
pub type Templates = Result<BTreeMap<String, Template>, String>;

/// Cache of templates by deployment.
///
/// An entry is valid only for the document and services it was derived from, so a rollback, or a
/// deployment that was deleted and applied again under the same revision, is parsed again.
pub struct Projects {
    read: fn(&v1::Deployment) -> Templates,
    known: BTreeMap<String, (Arc<v1::Deployment>, Arc<Templates>)>,
}

impl Default for Projects {
    fn default() -> Self {
        Self::reading_with(read)
    }
}

impl Projects {
    /// Creates an empty cache that derives templates with `read`.
    #[must_use]
    pub fn reading_with(read: fn(&v1::Deployment) -> Templates) -> Self {
        Self {
            read,
            known: BTreeMap::new(),
        }
    }

    /// Returns the templates of `deployment`; parses its document only if the content changed.
    pub fn of(&mut self, deployment: &Arc<v1::Deployment>) -> Arc<Templates> {
        if let Some((from, templates)) = self.known.get_mut(&deployment.name) {
            if Arc::ptr_eq(from, deployment) {
                return Arc::clone(templates);
            }
            if same_content(from, deployment) {
                *from = Arc::clone(deployment);
                return Arc::clone(templates);
            }
        }
        let templates = Arc::new((self.read)(deployment));
        let entry = (Arc::clone(deployment), Arc::clone(&templates));
        self.known.insert(deployment.name.clone(), entry);
        templates
    }

    /// Drops deployments that `state` no longer has.
    pub fn retain(&mut self, state: &State) {
        self.known
            .retain(|name, _| state.deployments.contains_key(name));
    }
}

fn same_content(a: &v1::Deployment, b: &v1::Deployment) -> bool {
    a.applied_revision == b.applied_revision
        && a.compose_yaml == b.compose_yaml
        && a.services == b.services
}

/// Parses the stored document of a deployment.
fn read(deployment: &v1::Deployment) -> Templates {
    let fault = |error: jaco_proto::Error| error.to_string();
    let project = Project::parse(&deployment.compose_yaml).map_err(fault)?;
    let hasher = SpecHasher::new(&deployment.compose_yaml).map_err(fault)?;
    let template = |spec: &v1::ServiceSpec| {
        let service = project.services.get(&spec.name)?;
        let template = Template {
            image: service.image.clone()?,
            spec_hash: hasher
                .hash(&spec.name, &spec.networks, &spec.files)?
                .to_vec(),
            files: spec.files.clone(),
            stateful: is_stateful(service, &spec.files),
            depends_on: service.depends_on.clone(),
            rollout: rollout::Settings::from(&service.deploy.update),
        };
        Some((spec.name.clone(), template))
    };
    Ok(deployment.services.iter().filter_map(template).collect())
}

/// Whether the service stores data on its host that a replica elsewhere would lack. A bind that the
/// client has shipped is written on every host.
fn is_stateful(service: &Service, files: &[v1::MountedFile]) -> bool {
    let is_shipped = |path: &str| {
        let mut files = files.iter();
        files.any(|file| file.kind() == v1::FileKind::Bind && file.name == path)
    };
    let lasts = |mount: &Mount| match &mount.source {
        MountSource::Bind { path, .. } => !is_shipped(path),
        MountSource::Volume(_) | MountSource::Other { .. } => true,
        MountSource::Anonymous | MountSource::Tmpfs => false,
    };
    service.volumes.iter().any(lasts)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn templates(compose: &str, services: &[&str]) -> Templates {
        read(&v1::Deployment {
            compose_yaml: compose.as_bytes().to_vec(),
            services: services
                .iter()
                .map(|&name| v1::ServiceSpec {
                    name: name.into(),
                    networks: vec!["_default".into()],
                    ..Default::default()
                })
                .collect(),
            ..Default::default()
        })
    }

    #[test]
    fn templates_have_image_and_hash() {
        let one = "services: {web: {image: nginx}, db: {image: postgres}}";
        let other = "# same\nservices:\n  web:\n    image: nginx\n  db:\n    image: mysql\n";
        let [one, other] = [one, other].map(|text| templates(text, &["web", "db"]).unwrap());
        assert_eq!(one["web"].image, "nginx");
        assert_eq!(one["web"], other["web"]);
        assert_ne!(one["db"].spec_hash, other["db"].spec_hash);
    }

    #[test]
    fn service_missing_in_document_has_no_template() {
        let found = templates("services: {web: {image: nginx}}", &["web", "gone"]).unwrap();
        assert_eq!(found.keys().collect::<Vec<_>>(), ["web"]);
    }

    #[test]
    fn host_mounts_make_a_service_stateful() {
        for (mount, stateful) in [
            ("data:/data", true),
            ("/srv/data:/data", true),
            ("/data", false),
            ("{type: tmpfs, target: /data}", false),
        ] {
            let text = format!(
                "services:\n  web:\n    image: nginx\n    volumes: [{mount}]\nvolumes:\n  data: {{}}\n"
            );
            let found = templates(&text, &["web"]).unwrap();
            assert_eq!(found["web"].stateful, stateful, "{mount}");
        }
    }

    #[test]
    fn shipped_bind_keeps_no_data() {
        let mut deployment = v1::Deployment {
            compose_yaml: b"services: {web: {image: a, volumes: ['/srv/a:/a:ro']}}".to_vec(),
            services: vec![v1::ServiceSpec {
                name: "web".into(),
                ..Default::default()
            }],
            ..Default::default()
        };
        let before = read(&deployment).unwrap().remove("web").unwrap();
        deployment.services[0].files = vec![v1::MountedFile {
            kind: v1::FileKind::Bind.into(),
            name: "/srv/a".into(),
            content_id: "x".into(),
            ..Default::default()
        }];
        let shipped = read(&deployment).unwrap().remove("web").unwrap();
        assert!(before.stateful && !shipped.stateful);
        assert_eq!(shipped.files, deployment.services[0].files);
        deployment.services[0].files[0].content_id = "y".into();
        let changed = read(&deployment).unwrap().remove("web").unwrap();
        assert_ne!(changed.spec_hash, shipped.spec_hash);
    }

    #[test]
    fn invalid_document_is_an_error() {
        assert!(templates("services: [", &["web"]).is_err());
    }
}
