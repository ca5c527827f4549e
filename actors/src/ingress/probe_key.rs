//! Gives the data plane the key that signs probes.

use std::sync::Arc;

use jaco_net::{ingress::Proxy, secrets::SecretsKey};
use jaco_supervision::{ChildSpec, Context, Failure, Worker};

use super::certificate::{SecretsKeys, probe_key};

/// Arguments of a [`ProbeKeyActor`].
#[derive(Clone)]
pub struct ProbeKeyArgs {
    /// The data plane.
    pub proxy: Proxy,
    /// The key that the signing key is derived from.
    pub secrets_key: SecretsKeys,
}

/// Child specification of the actor, to be placed under the ingress supervisor.
#[must_use]
pub fn child(args: ProbeKeyArgs) -> ChildSpec {
    ChildSpec::worker::<ProbeKeyActor>("probe-key", args).0
}

/// Messages of a [`ProbeKeyActor`].
pub enum Msg {
    /// The secrets key came, changed or went.
    Key(Option<Arc<SecretsKey>>),
}

/// Follows the secrets key, so that this node answers probes with it.
pub struct ProbeKeyActor(Proxy);

impl Worker for ProbeKeyActor {
    type Msg = Msg;
    type Args = ProbeKeyArgs;
    const KIND: &'static str = "ProbeKeyActor";

    async fn start(ctx: &Context<Self>, mut args: ProbeKeyArgs) -> Result<Self, Failure> {
        args.secrets_key.mark_changed();
        ctx.watch(args.secrets_key, Msg::Key);
        Ok(Self(args.proxy))
    }

    async fn handle(&mut self, _: &Context<Self>, msg: Msg) -> Result<(), Failure> {
        let Msg::Key(key) = msg;
        self.0.swap_probe_key(key.as_deref().map(probe_key));
        Ok(())
    }
}
