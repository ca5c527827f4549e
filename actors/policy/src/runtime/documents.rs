//! Cache of parsed compose documents.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use jaco_proto::{manifest::compose::Project, v1::Deployment};

/// Parses the bytes of a document into its project.
pub type ReadProject = fn(&[u8]) -> Result<Project, String>;

type Entry = (Arc<Deployment>, Arc<Result<Project, String>>);

/// Parsed projects by deployment; an entry is valid only for the document it was parsed from.
pub struct Documents {
    read: ReadProject,
    known: Mutex<BTreeMap<String, Entry>>,
}

impl Default for Documents {
    fn default() -> Self {
        Self::reading_with(|bytes| Project::parse(bytes).map_err(|error| error.to_string()))
    }
}

impl Documents {
    /// Creates an empty cache that parses documents with `read`.
    #[must_use]
    pub fn reading_with(read: ReadProject) -> Self {
        Self {
            read,
            known: Mutex::default(),
        }
    }

    /// Returns the project of a deployment, or why its document cannot be parsed.
    #[must_use]
    pub fn of(&self, deployment: &Arc<Deployment>) -> Arc<Result<Project, String>> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((from, project)) = known.get_mut(&deployment.name)
            && (Arc::ptr_eq(from, deployment) || from.compose_yaml == deployment.compose_yaml)
        {
            *from = Arc::clone(deployment);
            return Arc::clone(project);
        }
        let project = Arc::new((self.read)(&deployment.compose_yaml));
        let entry = (Arc::clone(deployment), Arc::clone(&project));
        known.insert(deployment.name.clone(), entry);
        project
    }

    /// Drops deployments for which `keep` returns false.
    pub fn retain(&self, keep: impl Fn(&str) -> bool) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|name, _| keep(name));
    }
}
