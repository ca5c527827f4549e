//! Keeps one responder per requested address.

use std::{sync::Arc, time::Duration};

use jaco_engine::cidr::Cidr;
use jaco_policy::network::names::NetworkId;
use jaco_supervision::{ChildDone, ChildEvent, ChildSpec, Context, Failure, KeyedChildren, Worker};
use tracing::warn;

use super::{
    directory::{Directory, Wanted},
    names::Names,
    responder::{self, ResponderActor},
};

/// Delay before restarting a responder that exhausted its restarts.
const RETRY: Duration = Duration::from_secs(30);

/// Arguments of a [`ResponderManager`].
#[derive(Clone)]
pub(super) struct Args {
    pub(super) directory: Directory,
    pub(super) names: Arc<Names>,
    pub(super) port: u16,
}

/// Messages of a [`ResponderManager`].
pub(super) enum Msg {
    /// The requests changed.
    Wanted(Wanted),
    /// A request about a responder has ended, or the responder exhausted its restarts.
    Done(ChildDone),
    /// Restart the responder with this child id, if it is exhausted.
    Restart(String),
}

/// Starts and stops the sibling responders.
pub(super) struct ResponderManager {
    args: Args,
    responders: KeyedChildren<Self, Responder>,
}

struct Responder {
    network: NetworkId,
    block: Cidr,
}

impl Worker for ResponderManager {
    type Msg = Msg;
    type Args = Args;
    const KIND: &'static str = "ResponderManager";

    async fn start(ctx: &Context<Self>, args: Args) -> Result<Self, Failure> {
        // The addresses of responders that an earlier instance started are not known any more.
        // Responders hold no state, so they are replaced.
        let mut responders = KeyedChildren::new("dns:", Msg::Done).report_exhausted();
        responders.adopt(ctx, |_, _| None);
        let mut wanted = args.directory.subscribe();
        wanted.mark_changed();
        ctx.watch(wanted, Msg::Wanted);
        Ok(Self { args, responders })
    }

    async fn handle(&mut self, ctx: &Context<Self>, msg: Msg) -> Result<(), Failure> {
        match msg {
            Msg::Wanted(wanted) => self.reconcile(ctx, &wanted),
            Msg::Restart(id) => self.responders.restart(ctx, &id),
            Msg::Done(done) => match self.responders.handle_done(ctx, done) {
                Some(ChildEvent::Exhausted(id, reason)) => {
                    warn!(
                        subsystem = "dns",
                        responder = id,
                        reason,
                        "responder exhausted its restarts"
                    );
                    ctx.send_after(RETRY, Msg::Restart(id));
                }
                Some(ChildEvent::NotStarted(_, error)) => return Err(error.into()),
                Some(ChildEvent::Started(_) | ChildEvent::Stopped(_)) | None => {}
            },
        }
        Ok(())
    }
}

impl ResponderManager {
    /// Stops responders that are not requested, or of another block, and starts missing ones.
    fn reconcile(&mut self, ctx: &Context<Self>, wanted: &Wanted) {
        let is_wanted =
            |responder: &Responder| wanted.get(&responder.network) == Some(&responder.block);
        let outdated = self.responders.iter();
        let outdated = outdated.filter(|(_, responder)| !is_wanted(responder));
        let outdated: Vec<String> = outdated.map(|(id, _)| id.to_owned()).collect();
        for id in outdated {
            self.responders.stop(ctx, &id);
        }
        for (network, block) in wanted {
            let id = format!("{}:{}", network.deployment(), network.network());
            let args = responder::Args {
                network: network.clone(),
                block: *block,
                port: self.args.port,
                names: Arc::clone(&self.args.names),
                directory: self.args.directory.clone(),
            };
            let (spec, _) = ChildSpec::worker::<ResponderActor>(self.responders.key(&id), args);
            let responder = Responder {
                network: network.clone(),
                block: *block,
            };
            // A responder that is there already stays.
            self.responders.start(ctx, &id, spec, responder);
        }
    }
}
