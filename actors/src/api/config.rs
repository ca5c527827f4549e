//! The `Config` service: settings that hold on every node.

use std::sync::Arc;

use jaco_policy::settings::{KEYS, Key};
use jaco_proto::v1::{self, command::Payload, config_server::Config};
use jaco_raftnode::{State, StateReader as _};
use tonic::{Request, Response, Status};

use super::caller::Caller;
use crate::{
    commit::{commit, outcome},
    node::NodeContext,
};

pub(super) struct ConfigService(pub(super) Arc<NodeContext>);

#[tonic::async_trait]
impl Config for ConfigService {
    async fn get(
        &self,
        request: Request<v1::ConfigKey>,
    ) -> Result<Response<v1::ConfigEntry>, Status> {
        let node = self.0.running()?;
        let key = Key::find(&request.get_ref().key)?;
        let state = node.raft.state();
        Ok(node.read_response(&state, entry(&state, key)))
    }

    async fn set(
        &self,
        request: Request<v1::ConfigSetRequest>,
    ) -> Result<Response<v1::ConfigEntry>, Status> {
        let caller = Caller::of(&request)?;
        let node = self.0.running()?;
        let v1::ConfigSetRequest { key, value, unset } = request.into_inner();
        let key = Key::find(&key)?;
        let value = match unset {
            true => String::new(),
            false => key.canonical(&value)?,
        };
        let payload = Payload::ClusterConfigSet(v1::ClusterConfigSet {
            key: key.name.to_owned(),
            value,
            unset,
        });
        let command = node.command(&caller.identity, payload);
        outcome(commit(&node.raft, command)).await?;
        let state = node.raft.state();
        Ok(node.read_response(&state, entry(&state, key)))
    }

    async fn list(
        &self,
        _request: Request<v1::ConfigListRequest>,
    ) -> Result<Response<v1::ConfigListResponse>, Status> {
        let node = self.0.running()?;
        let state = node.raft.state();
        let entries = KEYS.iter().map(|key| entry(&state, key)).collect();
        Ok(node.read_response(&state, v1::ConfigListResponse { entries }))
    }
}

/// Returns a setting with its value in force.
fn entry(state: &State, key: &Key) -> v1::ConfigEntry {
    let row = state.cluster_config.get(key.name);
    v1::ConfigEntry {
        key: key.name.to_owned(),
        value: row.map_or(key.default, |row| &row.value).to_owned(),
        default_value: key.default.to_owned(),
        is_set: row.is_some(),
        r#type: key.kind.to_owned(),
        updated_at: row.and_then(|row| row.updated_at),
        updated_by: row.map(|row| row.updated_by.clone()).unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use jaco_policy::settings::ClusterSettings;
    use jaco_proto::{error::DecodedError, v1::config_client::ConfigClient};

    use super::*;
    use crate::{
        api::admission::Transport,
        testing::cluster::{Cluster, MemberApi},
    };

    async fn set(
        client: &mut ConfigClient<MemberApi>,
        key: &str,
        value: Option<&str>,
    ) -> Result<v1::ConfigEntry, DecodedError> {
        let request = v1::ConfigSetRequest {
            key: key.to_owned(),
            value: value.unwrap_or_default().to_owned(),
            unset: value.is_none(),
        };
        Ok(client.set(request).await?.into_inner())
    }

    #[tokio::test(start_paused = true)]
    async fn setting_changed_through_one_member_holds_on_all() {
        let cluster = Cluster::start(3).await;
        let mut client = ConfigClient::new(cluster.member_api(2, Transport::Local));
        let entry = set(&mut client, "ingress.limits", Some("20.0, 5, 20")).await;
        let entry = entry.unwrap();
        assert_eq!(
            (entry.value.as_str(), entry.default_value.as_str()),
            ("20,5,20", "off")
        );
        assert_eq!((entry.is_set, entry.updated_by.as_str()), (true, "local"));
        for id in 1..=3 {
            let limits = ClusterSettings::of(&cluster.state(id)).ingress_limits;
            assert_eq!(limits.map(|limits| limits.connections), Some(20), "n{id}");
        }
        let request = v1::ConfigKey {
            key: entry.key.clone(),
        };
        assert_eq!(client.get(request).await.unwrap().into_inner(), entry);
        let list = client.list(v1::ConfigListRequest {}).await.unwrap();
        let keys: Vec<_> = list
            .get_ref()
            .entries
            .iter()
            .map(|e| e.key.as_str())
            .collect();
        assert_eq!(keys, KEYS.iter().map(|key| key.name).collect::<Vec<_>>());

        let entry = set(&mut client, "ingress.limits", None).await.unwrap();
        assert_eq!((entry.value.as_str(), entry.is_set), ("off", false));
        let state = cluster.state(2);
        let event = state.audit.values().next_back().unwrap();
        assert_eq!(event.r#type(), v1::AuditEventType::ConfigChanged);
        assert_eq!(
            (event.payload["old"].as_str(), event.identity.as_str()),
            ("20,5,20", "local")
        );
    }

    #[tokio::test(start_paused = true)]
    async fn bad_settings_are_not_proposed() {
        let cluster = Cluster::start(1).await;
        let mut client = ConfigClient::new(cluster.member_api(1, Transport::Local));
        let before = cluster.group.committed().len();
        let error = set(&mut client, "ingress.limit", Some("off"))
            .await
            .unwrap_err();
        assert_eq!(error.code, "config_key_unknown");
        assert_eq!(error.details["suggestion"], "ingress.limits");
        let error = set(&mut client, "ingress.limits", Some("20"))
            .await
            .unwrap_err();
        assert_eq!(error.code, "config_value_invalid");
        assert_eq!(error.details["value"], "20");
        assert_eq!(cluster.group.committed().len(), before);
    }
}
