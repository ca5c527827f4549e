//! The engine's event stream; one subscription per node.

use std::{sync::Arc, time::Duration};

use futures::StreamExt;
use jaco_engine::Event;
use jaco_supervision::{Context, Failure, Handle, Worker};
use tracing::{info, warn};

use super::{RuntimeContext, manager};
use crate::log_dedup::LogDedup;

/// Delay between attempts to subscribe.
const RETRY: Duration = Duration::from_secs(1);

/// Arguments of an [`EngineEventsActor`].
#[derive(Clone)]
pub struct Args {
    pub(crate) shared: Arc<RuntimeContext>,
    pub(crate) manager: Handle<manager::Msg>,
}

/// Messages of the [`EngineEventsActor`].
#[derive(Debug)]
pub enum Msg {
    /// Subscribe.
    Connect,
    /// The engine responded and the subscription is active.
    Connected,
    /// An engine event arrived.
    Event(Event),
    /// The stream ended.
    Ended(String),
}

/// Subscribes to engine events and forwards them to the manager.
pub struct EngineEventsActor {
    args: Args,
    failures: LogDedup,
}

impl Worker for EngineEventsActor {
    type Msg = Msg;
    type Args = Args;
    const KIND: &'static str = "EngineEventsActor";

    async fn start(ctx: &Context<Self>, args: Args) -> Result<Self, Failure> {
        let this = Self {
            args,
            failures: LogDedup::default(),
        };
        this.publish_events_up(false);
        ctx.send_to_self(Msg::Connect);
        Ok(this)
    }

    async fn handle(&mut self, ctx: &Context<Self>, msg: Msg) -> Result<(), Failure> {
        match msg {
            Msg::Connect => self.connect(ctx),
            Msg::Connected => {
                self.failures.clear();
                info!(subsystem = "runtime/reconciler", "engine events connected");
                self.publish_events_up(true);
            }
            Msg::Event(event) => {
                // Fails without subscribers.
                let _ = self.args.shared.engine_events.send(event.clone());
                // A restarting manager re-checks every replica in `start`, so a lost event is
                // harmless.
                let _ = self.args.manager.cast(manager::Msg::Engine(event));
            }
            Msg::Ended(reason) => {
                if self.failures.is_new(&reason) {
                    warn!(subsystem = "runtime/reconciler", %reason, "engine events lost");
                }
                self.publish_events_up(false);
                ctx.send_after(RETRY, Msg::Connect);
            }
        }
        Ok(())
    }
}

impl EngineEventsActor {
    fn connect(&self, ctx: &Context<Self>) {
        let deps = self.args.shared.deps.clone();
        let me = ctx.handle();
        ctx.spawn(async move {
            let mut state = deps.raft.subscribe();
            let cluster = state.wait_for(|state| state.cluster.is_some()).await;
            let cluster = match cluster.map(|state| state.cluster.clone()) {
                Ok(Some(cluster)) => cluster,
                Ok(None) | Err(_) => return Msg::Ended("the state is gone".to_owned()),
            };
            let mut events = deps.engine.events(&cluster.cluster_id);
            // The first poll sends the subscription; it completes with the first event.
            let mut first = events.next();
            let early = tokio::select! {
                biased;
                event = &mut first => Some(event),
                ping = deps.engine.ping() => match ping {
                    Ok(()) => None,
                    Err(error) => return Msg::Ended(error.to_string()),
                },
            };
            let up = !matches!(early, Some(None | Some(Err(_))));
            if up {
                let _ = me.cast(Msg::Connected);
            }
            let mut next = match early {
                Some(event) => event,
                None => first.await,
            };
            loop {
                match next {
                    Some(Ok(event)) => {
                        let _ = me.cast(Msg::Event(event));
                    }
                    Some(Err(error)) => return Msg::Ended(error.to_string()),
                    None => return Msg::Ended("the stream ended".to_owned()),
                }
                next = events.next().await;
            }
        });
    }

    fn publish_events_up(&self, up: bool) {
        if self.args.shared.set_events_up(up) {
            let _ = self.args.manager.cast(manager::Msg::EventsUp(up));
        }
    }
}
