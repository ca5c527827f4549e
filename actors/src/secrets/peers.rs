//! Calls about the secrets key to other members.

use std::time::Duration;

use futures::future::BoxFuture;
use jaco_net::secrets::SecretsKey;
use jaco_proto::v1::{self, internal_client::InternalClient};
use tokio::time::timeout;
use tonic::Status;
use zeroize::Zeroize as _;

use crate::peer::Peers;

/// Time limit of a call.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The other members.
pub(crate) trait KeyPeers: Send + Sync + 'static {
    /// Has `host` write the key to its disk.
    fn store(&self, host: &str, key: &SecretsKey) -> BoxFuture<'static, Result<(), String>>;

    /// Asks `host` for a key.
    fn fetch(&self, host: &str, id: &str) -> BoxFuture<'static, Result<SecretsKey, String>>;
}

impl KeyPeers for Peers {
    fn store(&self, host: &str, key: &SecretsKey) -> BoxFuture<'static, Result<(), String>> {
        let mut client = InternalClient::new(self.channel(host));
        let message = to_message(key);
        Box::pin(async move {
            limited(client.store_secrets_key(message)).await?;
            Ok(())
        })
    }

    fn fetch(&self, host: &str, id: &str) -> BoxFuture<'static, Result<SecretsKey, String>> {
        let mut client = InternalClient::new(self.channel(host));
        let id = id.to_owned();
        Box::pin(async move {
            let request = v1::SecretsKeyId { id: id.clone() };
            let found = limited(client.fetch_secrets_key(request)).await?;
            let key = from_message(found.into_inner()).map_err(|error| error.to_string())?;
            match key.id() == id {
                true => Ok(key),
                false => Err("the answer is another key".to_owned()),
            }
        })
    }
}

async fn limited<T>(call: impl Future<Output = Result<T, Status>>) -> Result<T, String> {
    match timeout(TIMEOUT, call).await {
        Ok(answer) => answer.map_err(|status| status.message().to_owned()),
        Err(_) => Err("no answer in time".to_owned()),
    }
}

/// Returns the message of a key.
pub(crate) fn to_message(key: &SecretsKey) -> v1::SecretsKey {
    v1::SecretsKey {
        id: key.id(),
        key: key.expose().to_vec(),
    }
}

/// Returns the key of a message, whose bytes are zeroed.
pub(crate) fn from_message(
    mut message: v1::SecretsKey,
) -> Result<SecretsKey, jaco_net::secrets::Error> {
    let key = SecretsKey::from_slice(&message.key);
    message.key.zeroize();
    key
}
