//! Requests for networks.

use std::time::Duration;

use jaco_policy::network::names::NetworkId;
use jaco_supervision::{CallError, Handle, Reply};
use tokio::sync::watch;

use super::Msg;
use crate::network::bridge::{BridgeReady, Error};

/// Timeout of an ensure request: it may have to stop containers first, and wait for a request on
/// which the engine hangs.
const ENSURE_TIMEOUT: Duration = Duration::from_secs(300);
/// Longest wait of a request for an actor to start.
const START_TIMEOUT: Duration = Duration::from_secs(10);
/// Delay before retrying a request that died with its instance.
const RETRY_AFTER_RESTART: Duration = Duration::from_millis(10);

/// Handle through which the runtime requests networks.
#[derive(Clone, Debug)]
pub struct BridgeDirectory {
    manager: Handle<Msg>,
    repairs: watch::Receiver<u64>,
}

impl BridgeDirectory {
    /// Creates the directory for the manager behind `manager`, whose bridges count in `repairs`.
    #[must_use]
    pub fn new(manager: Handle<Msg>, repairs: watch::Receiver<u64>) -> Self {
        Self { manager, repairs }
    }

    /// Number of repairs of networks so far; addresses of containers may have changed with each.
    #[must_use]
    pub fn repairs(&self) -> watch::Receiver<u64> {
        self.repairs.clone()
    }

    /// Ensures this host's part of a network; idempotent.
    ///
    /// # Errors
    /// See [`Error`]; a retry continues where a failed attempt stopped.
    ///
    /// # Cancel safety
    /// The network is created even if the caller stops waiting.
    pub async fn ensure(&self, deployment: &str, network: &str) -> Result<BridgeReady, Error> {
        let id = NetworkId::new(deployment, network);
        call_with_retry(&self.manager, |reply| Msg::Ensure(id.clone(), reply)).await
    }
}

/// Calls an actor, and its next instance if this one ends before it responds; safe to repeat
/// because ensuring is idempotent.
pub(super) async fn call_with_retry<M>(
    handle: &Handle<M>,
    make: impl Fn(Reply<Result<BridgeReady, Error>>) -> M,
) -> Result<BridgeReady, Error> {
    loop {
        let up = tokio::time::timeout(START_TIMEOUT, handle.running()).await;
        up.map_err(|_| Error::Unavailable)?;
        match handle.call(ENSURE_TIMEOUT, &make).await {
            Ok(answer) => return answer,
            Err(CallError::Timeout) => return Err(Error::Unavailable),
            Err(CallError::Unavailable | CallError::NoReply) => {
                tokio::time::sleep(RETRY_AFTER_RESTART).await
            }
        }
    }
}
