//! What the scheduler needs of each compose document, read once per content.

use std::{collections::BTreeMap, sync::Arc};

use jaco_proto::{manifest, v1};
use jaco_raftnode::State;

/// Scheduling view of one service of a compose document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    /// Image reference; `None` if the document has no such service or gives it no image.
    pub image: Option<String>,
    /// Hash of everything the container is built from, or why it cannot be taken.
    pub spec_hash: Result<Vec<u8>, String>,
}

/// Templates by service name, or why the document cannot be read.
pub type Templates = Result<BTreeMap<String, Template>, String>;

/// Templates by deployment.
///
/// An entry is good for exactly the document and services it was made from, so a rollback, or a
/// deployment that was deleted and applied again under the same revision, is read anew.
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
    /// Starts empty, with `read` as the way from a deployment to its templates.
    #[must_use]
    pub fn reading_with(read: fn(&v1::Deployment) -> Templates) -> Self {
        Self {
            read,
            known: BTreeMap::new(),
        }
    }

    /// Templates of `deployment`, read only if its content is new.
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

    /// Forgets deployments that `state` no longer has.
    pub fn retain(&mut self, state: &State) {
        self.known.retain(|name, _| state.deployments.contains_key(name));
    }
}

fn same_content(a: &v1::Deployment, b: &v1::Deployment) -> bool {
    a.applied_revision == b.applied_revision
        && a.compose_yaml == b.compose_yaml
        && a.services == b.services
}

/// Reads the stored document of a deployment.
fn read(deployment: &v1::Deployment) -> Templates {
    let project = manifest::compose::Project::parse(&deployment.compose_yaml)
        .map_err(|error| error.to_string())?;
    let template = |spec: &v1::ServiceSpec| Template {
        image: project
            .services
            .get(&spec.name)
            .and_then(|service| service.image.clone())
            .filter(|image| !image.is_empty()),
        spec_hash: manifest::spec_hash(&deployment.compose_yaml, &spec.name, &spec.networks)
            .map(|hash| hash.to_vec())
            .map_err(|error| error.to_string()),
    };
    let services = deployment.services.iter();
    Ok(services.map(|spec| (spec.name.clone(), template(spec))).collect())
}
