//! Answers of all responders.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use arc_swap::ArcSwap;
use jaco_engine::cidr::Cidr;
use jaco_net::dns::{self, Answer, Handler};
use jaco_policy::network::{
    dns::{
        answer::{Decision, decide, is_client, shuffle},
        message::{Request, Transport, Unreadable},
        records::Records,
        wire::response_code,
    },
    names::NetworkId,
};
use tokio::sync::watch;

use super::forwarder::Forwarder;
use crate::{health::Hosts, telemetry::Metrics};

/// State shared by the responders of a node.
pub(super) struct Names {
    host: String,
    fresh: watch::Receiver<Hosts>,
    records: ArcSwap<Records>,
    forwarder: Arc<Forwarder>,
    metrics: Metrics,
    /// Number of the next order of addresses.
    orders: AtomicU64,
}

impl Names {
    pub(super) fn new(
        host: String,
        fresh: watch::Receiver<Hosts>,
        forwarder: Arc<Forwarder>,
        metrics: Metrics,
    ) -> Arc<Self> {
        Arc::new(Self {
            host,
            fresh,
            records: ArcSwap::default(),
            forwarder,
            metrics,
            orders: AtomicU64::new(0),
        })
    }

    /// Replaces the index that answers come from.
    pub(super) fn publish(&self, records: Records) {
        self.records.store(Arc::new(records));
    }

    fn decide(&self, scope: &NetworkId, client: Ipv4Addr, request: &Request) -> Decision {
        let fresh = self.fresh.borrow();
        let is_fresh = |host: &str| host == self.host || fresh.contains(host);
        let records = self.records.load();
        decide(&records, scope, &self.host, is_fresh, client, request)
    }
}

/// Answers the queries of one network.
pub(super) struct NetworkNames {
    names: Arc<Names>,
    scope: NetworkId,
    /// Addresses of the network's containers on this host.
    block: Cidr,
}

impl NetworkNames {
    pub(super) fn new(names: Arc<Names>, scope: NetworkId, block: Cidr) -> Self {
        Self {
            names,
            scope,
            block,
        }
    }

    fn forward(&self, client: Ipv4Addr, request: Request, answer: &mut Vec<u8>) -> Answer {
        let names = &self.names;
        if names.forwarder.cached(&request, answer) {
            return self.ready("external", answer);
        }
        let deployment = self.scope.deployment();
        let Some(later) = names.forwarder.ask(request.clone(), client, deployment) else {
            request.server_failure(answer);
            return self.ready("external", answer);
        };
        let metrics = names.metrics.clone();
        Answer::Pending(Box::pin(async move {
            let message = later.await;
            metrics.dns_query("external", response_code(&message));
            Some(message)
        }))
    }

    fn ready(&self, kind: &'static str, answer: &[u8]) -> Answer {
        self.names.metrics.dns_query(kind, response_code(answer));
        Answer::Ready
    }
}

impl Handler for NetworkNames {
    fn handle(
        &self,
        message: &[u8],
        client: SocketAddr,
        transport: dns::Transport,
        answer: &mut Vec<u8>,
    ) -> Answer {
        let Some(client) = is_client(self.block, client.ip()) else {
            return Answer::None;
        };
        let transport = match transport {
            dns::Transport::Udp => Transport::Udp,
            dns::Transport::Tcp => Transport::Tcp,
        };
        let request = match Request::read(message, transport) {
            Ok(request) => request,
            Err(Unreadable::Rejected(rejection)) => {
                *answer = rejection;
                return Answer::Ready;
            }
            Err(Unreadable::Ignored) => return Answer::None,
        };
        match self.names.decide(&self.scope, client, &request) {
            Decision::Addresses(mut addresses) => {
                let order = self.names.orders.fetch_add(1, Ordering::Relaxed);
                shuffle(&mut addresses, order);
                request.addresses(&addresses, answer);
            }
            Decision::NoData => request.no_data(answer),
            Decision::NxDomain => request.nx_domain(answer),
            Decision::Refused => request.refused(answer),
            Decision::Forward => return self.forward(client, request, answer),
        }
        self.ready("service", answer)
    }
}
