//! Secrets that containers have as environment variables.

use jaco_proto::v1;
use jaco_state::State;

use super::mutation::Mutation;
use crate::Rng;

/// The secrets that a deployment may have.
const NAMES: [&str; 2] = ["API_KEY", "DB_PASSWORD"];

/// Name of a secret that gets a new value.
pub(super) fn draw(chance: &mut Rng) -> String {
    let name = chance.choose(&NAMES).copied();
    name.unwrap_or_default().to_owned()
}

/// Secrets that a service has, as far as they have values by then.
pub(super) fn draw_used(chance: &mut Rng) -> Vec<String> {
    let used = NAMES.iter().filter(|_| chance.within(0..2) == 0);
    used.map(|&name| name.to_owned()).collect()
}

/// Leaves a revision the secrets that `state` has values of: clients send none here.
pub(super) fn retain_known(state: &State, apply: &mut v1::DeploymentApply) {
    for spec in &mut apply.services {
        let deployment = &apply.deployment;
        spec.secrets
            .retain(|name| state.secret(deployment, name).is_some());
    }
}

/// The next version of a secret.
pub(super) fn next(state: &State, deployment: String, name: String) -> v1::SecretUpsert {
    let known = state.secret(&deployment, &name);
    let version = known.map_or(0, |known| known.version) + 1;
    v1::SecretUpsert {
        secret: Some(v1::Secret {
            sealed: version.to_be_bytes().to_vec(),
            deployment,
            name,
            version,
            ..Default::default()
        }),
    }
}

impl Mutation {
    /// State without the versions of secrets.
    pub(super) fn without_secrets(state: &State) -> State {
        let mut seen = state.clone();
        seen.secrets = Default::default();
        seen
    }
}
