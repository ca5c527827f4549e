//! Answers of all responders.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use arc_swap::ArcSwap;
use jaco_net::dns::{self, Answer, Handler};
use jaco_policy::network::{
    dns::{
        answer::{Decision, decide, shuffle},
        message::{Received, Request, Transport},
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

    fn decide(&self, scope: &NetworkId, client: SocketAddr, request: &Request) -> Decision {
        let fresh = self.fresh.borrow().clone();
        let is_fresh = |host: &str| host == self.host || fresh.contains(host);
        let records = self.records.load();
        decide(&records, scope, &self.host, is_fresh, client.ip(), request)
    }
}

/// Answers the queries of one network.
pub(super) struct NetworkNames {
    names: Arc<Names>,
    scope: NetworkId,
}

impl NetworkNames {
    pub(super) fn new(names: Arc<Names>, scope: NetworkId) -> Self {
        Self { names, scope }
    }

    fn own(&self, message: Vec<u8>) -> Answer {
        self.names
            .metrics
            .dns_query("service", response_code(&message));
        Answer::Ready(message)
    }

    fn forward(&self, request: Request) -> Answer {
        let names = &self.names;
        if let Some(message) = names.forwarder.cached(&request) {
            names.metrics.dns_query("external", response_code(&message));
            return Answer::Ready(message);
        }
        let Some(answer) = names.forwarder.ask(request) else {
            return Answer::None; // overloaded: the client repeats its question
        };
        let metrics = names.metrics.clone();
        Answer::Pending(Box::pin(async move {
            let message = answer.await;
            metrics.dns_query("external", response_code(&message));
            Some(message)
        }))
    }
}

impl Handler for NetworkNames {
    fn handle(&self, message: &[u8], client: SocketAddr, transport: dns::Transport) -> Answer {
        let transport = match transport {
            dns::Transport::Udp => Transport::Udp,
            dns::Transport::Tcp => Transport::Tcp,
        };
        let request = match Received::read(message, transport) {
            Received::Query(request) => *request,
            Received::Rejected(answer) => return Answer::Ready(answer),
            Received::Ignored => return Answer::None,
        };
        match self.names.decide(&self.scope, client, &request) {
            Decision::Addresses(mut addresses) => {
                shuffle(
                    &mut addresses,
                    self.names.orders.fetch_add(1, Ordering::Relaxed),
                );
                self.own(request.addresses(&addresses))
            }
            Decision::NoData => self.own(request.no_data()),
            Decision::NxDomain => self.own(request.nx_domain()),
            Decision::Elsewhere => self.own(request.elsewhere()),
            Decision::Refused => self.own(request.refused()),
            Decision::Forward => self.forward(request),
        }
    }
}
