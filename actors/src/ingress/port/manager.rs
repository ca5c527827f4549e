//! Keeps the table of served ports up to date, and one port actor per published port.

use std::{collections::BTreeSet, fmt, sync::Arc, time::Duration};

use jaco_net::l4::Ports;
use jaco_policy::ingress::ports::{PortKey, same_input, served_ports};
use jaco_raftnode::State;
use jaco_supervision::{
    ActorState, ChildDone, ChildEvent, ChildSpec, Context, Failure, KeyedChildren, Worker,
};
use tokio::sync::watch;

use super::{PortActor, PortArgs, PortTable, backends, key_of, port_of};
use crate::{
    ingress::view::{Event, ServingInput, View},
    serving::Installed,
};

/// Delay before restarting an exhausted port actor.
const RETRY: Duration = Duration::from_secs(30);
/// Time for which established connections may go on when the node stops; shorter than a worker's
/// shutdown timeout.
pub(crate) const DRAIN: Duration = Duration::from_secs(2);

/// Arguments of a [`PortManager`]; clones share the data plane and the table.
#[derive(Clone)]
pub struct PortManagerArgs {
    input: ServingInput,
    installed: Installed,
    ports: Ports,
    table: watch::Sender<PortTable>,
}

impl PortManagerArgs {
    /// Creates arguments for the data plane `ports` of a node. `installed` records the states of
    /// its tables.
    #[must_use]
    pub fn new(input: ServingInput, installed: Installed, ports: Ports) -> Self {
        Self {
            input,
            installed,
            ports,
            table: watch::Sender::default(),
        }
    }
}

impl fmt::Debug for PortManagerArgs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PortManagerArgs")
            .field("input", &self.input)
            .field("ports", &self.ports)
            .finish_non_exhaustive()
    }
}

/// Messages of a [`PortManager`].
#[derive(Debug)]
pub enum Msg {
    /// The state or the reachable hosts changed.
    Changed(Event),
    /// A request about a port actor has ended, or the actor exhausted its restarts.
    PortDone(ChildDone),
    /// Restart the port actor with this child id, if it is exhausted.
    RestartPort(String),
}

/// Starts and stops the sibling port actors.
pub struct PortManager {
    args: PortManagerArgs,
    view: View<Self>,
    /// Whether the actor of each port has exhausted its restarts.
    children: KeyedChildren<Self, bool>,
}

impl Worker for PortManager {
    type Msg = Msg;
    type Args = PortManagerArgs;
    const KIND: &'static str = "PortManager";

    async fn start(ctx: &Context<Self>, args: PortManagerArgs) -> Result<Self, Failure> {
        let installed = args.installed.clone();
        let view = View::follow(ctx, args.input.clone(), same_input, installed, Msg::Changed);
        let mut children = KeyedChildren::new("port:", Msg::PortDone).report_exhausted();
        // Port actors need nothing of their manager, so those of an earlier instance stay.
        let published: BTreeSet<String> = keys(view.state()).map(child_id).collect();
        let mut exhausted = Vec::new();
        children.adopt(ctx, |id, info| {
            if info.state == ActorState::Exhausted {
                exhausted.push(id.to_owned());
            }
            published.contains(id).then_some(false)
        });
        let mut manager = Self {
            args,
            view,
            children,
        };
        manager.publish(ctx);
        for id in exhausted {
            manager.children.restart(ctx, &id);
        }
        Ok(manager)
    }

    async fn handle(&mut self, ctx: &Context<Self>, msg: Msg) -> Result<(), Failure> {
        match msg {
            Msg::Changed(event) => {
                if self.view.handle(ctx, event) {
                    self.publish(ctx);
                }
            }
            Msg::PortDone(done) => self.port_done(ctx, done)?,
            Msg::RestartPort(id) => {
                // The port may have been replaced since it was exhausted.
                let exhausted = self.children.get_mut(&id);
                if exhausted.is_some_and(std::mem::take) {
                    self.children.restart(ctx, &id);
                }
            }
        }
        Ok(())
    }

    async fn stop(&mut self, _ctx: &Context<Self>) {
        self.args.ports.drain(DRAIN).await;
    }
}

impl PortManager {
    /// Publishes the table of the current state, and starts and stops port actors.
    fn publish(&mut self, ctx: &Context<Self>) {
        let (ports, current) = (&self.args.ports, &self.args.table);
        self.view.install(served_ports, |table| {
            // The actors open and close ports later; until then an open one must not lead to a
            // replica that the table lacks.
            for port in ports.open_ports() {
                let served = table.get(&key_of(port)).map(backends);
                ports.replace(port, served.unwrap_or_default());
            }
            current.send_if_modified(|current| {
                let differs = **current != table;
                if differs {
                    *current = Arc::new(table);
                }
                differs
            });
        });
        let published: BTreeSet<PortKey> = keys(self.view.state()).collect();
        for key in &published {
            let id = child_id(*key);
            if self.children.get(&id).is_some() {
                continue;
            }
            let args = PortArgs {
                key: *key,
                table: self.args.table.subscribe(),
                ports: self.args.ports.clone(),
            };
            let (spec, _) = ChildSpec::worker::<PortActor>(self.children.key(&id), args);
            self.children.start(ctx, &id, spec, false);
        }
        let published: BTreeSet<String> = published.into_iter().map(child_id).collect();
        let wanted = self.children.iter().map(|(id, _)| id.to_owned());
        let removed: Vec<String> = wanted.filter(|id| !published.contains(id)).collect();
        for id in removed {
            self.children.stop(ctx, &id);
        }
    }

    fn port_done(&mut self, ctx: &Context<Self>, done: ChildDone) -> Result<(), Failure> {
        match self.children.handle_done(ctx, done) {
            Some(ChildEvent::Stopped(_)) => self.close_removed(),
            Some(ChildEvent::Exhausted(id, reason)) => {
                tracing::warn!(subsystem = "ingress", port = %id, %reason, "port actor exhausted its restarts");
                if let Some(exhausted) = self.children.get_mut(&id) {
                    *exhausted = true;
                }
                ctx.send_after(RETRY, Msg::RestartPort(id));
            }
            Some(ChildEvent::NotStarted(_, error)) => return Err(error.into()),
            Some(ChildEvent::Started(_)) | None => {}
        }
        Ok(())
    }

    /// Closes ports that are not published any more: an actor that was down did not.
    fn close_removed(&self) {
        let published: BTreeSet<_> = keys(self.view.state()).map(port_of).collect();
        for port in self.args.ports.open_ports() {
            if !published.contains(&port) {
                self.args.ports.close(port);
            }
        }
    }
}

/// Published ports of a state, served or not.
fn keys(state: &State) -> impl Iterator<Item = PortKey> + '_ {
    state
        .tcp_routes
        .values()
        .filter_map(|route| PortKey::of(route))
}

/// Id of a port among the children of the manager; `/` would separate levels of a path.
fn child_id(key: PortKey) -> String {
    key.to_string().replace('/', ":")
}
