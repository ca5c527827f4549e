//! Manifests of the deployments that tests run.

use std::collections::BTreeMap;

use jaco_proto::v1;
use serde_json::{Value, json};

use crate::{engine::IMAGE, rng};

/// One service of a [`Workload`].
#[derive(Clone, Debug)]
pub struct Service {
    /// Name in the compose file.
    pub name: String,
    /// Number of containers.
    pub replicas: u32,
    /// Reference of its image.
    pub image: String,
    /// Value of the compose key `pull_policy`.
    pub pull_policy: &'static str,
    /// Command of each container, as an argument list.
    pub command: Vec<String>,
    /// Environment variables; a change replaces the containers.
    pub environment: BTreeMap<String, String>,
    /// Whether the engine checks its health, which makes it `running` sooner than without.
    pub healthcheck: bool,
    /// Pause between two checks, as in the compose file.
    pub health_interval: &'static str,
}

impl Service {
    /// A service with one replica that keeps running and has a health check.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            replicas: 1,
            image: IMAGE.to_owned(),
            pull_policy: "never",
            command: ["sleep", "86400"].map(str::to_owned).to_vec(),
            environment: BTreeMap::new(),
            healthcheck: true,
            health_interval: "300ms",
        }
    }

    /// Sets the number of replicas.
    #[must_use]
    pub fn replicas(mut self, replicas: u32) -> Self {
        self.replicas = replicas;
        self
    }

    /// Uses an image that is always pulled.
    #[must_use]
    pub fn pulled(mut self, image: &str) -> Self {
        image.clone_into(&mut self.image);
        self.pull_policy = "always";
        self
    }

    /// Runs a shell script, without a health check.
    #[must_use]
    pub fn script(mut self, script: &str) -> Self {
        self.command = ["sh", "-c", script].map(str::to_owned).to_vec();
        self.healthcheck = false;
        self
    }

    fn compose(&self) -> Value {
        let mut service = json!({
            "image": self.image,
            "pull_policy": self.pull_policy,
            "command": self.command,
            "environment": self.environment,
            // SIGTERM would have no effect: process 1 of a container ignores signals without a
            // handler.
            "stop_signal": "SIGKILL",
        });
        if self.healthcheck {
            service["healthcheck"] = json!({
                "test": ["CMD", "true"], "interval": self.health_interval, "timeout": "5s", "retries": 3,
            });
        }
        service
    }
}

/// A deployment whose name is unique among tests.
#[derive(Clone, Debug)]
pub struct Workload {
    /// Name of the deployment.
    pub name: String,
    /// Services of the deployment.
    pub services: Vec<Service>,
    /// Length of a comment in the compose file, to make it large.
    pub padding: usize,
}

impl Workload {
    /// A deployment of `services`; names of containers and networks derive from `prefix`.
    #[must_use]
    pub fn new(prefix: &str, services: impl IntoIterator<Item = Service>) -> Self {
        // Other daemons may use the same engine, whose names are global.
        let name = format!("{prefix}-{:08x}", rng::unique() >> 32);
        Self {
            name,
            services: services.into_iter().collect(),
            padding: 0,
        }
    }

    /// Sets `REVISION` in the environment of all services, which replaces every container.
    pub fn revise(&mut self, revision: u64) {
        for service in &mut self.services {
            service
                .environment
                .insert("REVISION".to_owned(), revision.to_string());
        }
    }

    /// Id of the replica that is the `index`th of a service.
    #[must_use]
    pub fn replica(&self, service: &str, index: u32) -> String {
        format!("{}-{service}-{index}", self.name)
    }

    /// Ids of all replicas of a first apply.
    #[must_use]
    pub fn replica_ids(&self) -> Vec<String> {
        self.services
            .iter()
            .flat_map(|s| (0..s.replicas).map(|index| self.replica(&s.name, index)))
            .collect()
    }

    /// The apply request of the deployment. JSON is valid YAML.
    #[must_use]
    pub fn request(&self) -> v1::ApplyRequest {
        let services: Vec<Value> = self
            .services
            .iter()
            .map(|s| json!({"name": s.name, "replicas": s.replicas}))
            .collect();
        let jaco = json!({"deployment": self.name, "acme": "off", "services": services});
        let compose: serde_json::Map<String, Value> = self
            .services
            .iter()
            .map(|s| (s.name.clone(), s.compose()))
            .collect();
        let mut compose = json!({"services": compose});
        if self.padding > 0 {
            compose["x-padding"] = "x".repeat(self.padding).into();
        }
        v1::ApplyRequest {
            jaco_yaml: jaco.to_string().into_bytes(),
            compose_yaml: compose.to_string().into_bytes(),
            dry_run: false,
            files: Vec::new(),
            secret_values: Default::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use jaco_proto::manifest;

    use super::*;

    #[test]
    fn manifests_are_valid_and_change_with_revision() {
        let mut workload = Workload::new(
            "shop",
            [
                Service::new("web").replicas(2),
                Service::new("job").script("exit 3"),
            ],
        );
        let first = workload.request();
        manifest::validate(Some(&first.jaco_yaml), Some(&first.compose_yaml)).unwrap();
        workload.revise(2);
        assert_ne!(workload.request().compose_yaml, first.compose_yaml);
        assert_eq!(workload.replica_ids().len(), 3);
    }
}
