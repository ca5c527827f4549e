//! Handling of one request.

mod answer;
mod attempt;
mod head;
mod interim;
mod limit;

use std::{convert::Infallible, sync::Arc};

use http::{
    HeaderValue, Method, Request, Response, StatusCode, Version,
    header::{ALT_SVC, SET_COOKIE},
};
use hyper::{body::Incoming, upgrade::OnUpgrade};
use tokio::time::Instant;

pub(super) use self::interim::InterimResponses;
use self::{
    attempt::Forwarding,
    head::{Head, Outgoing},
};
use super::{
    Scheme,
    access_log::Logged,
    active::{MeterId, WorkerTable},
    affinity::StickyRoute,
    body::{ClientBody, Origin, RequestBody, ResponseBody},
    challenge,
    client_address::ClientAddress,
    connect::{self, Handshake},
    connection::Connection,
    headers,
    observe::Measured,
    probe,
    relay::relay,
    table::{Found, RouteId},
    timeouts::ServingGuard,
};
use crate::limit::Permit;

/// Serves one request of a client connection.
pub(super) async fn handle(
    connection: Arc<Connection>,
    serving: ServingGuard,
    request: Request<ClientBody>,
) -> Result<Response<ResponseBody>, Infallible> {
    // The request keeps its table to the end: a swap does not affect running requests.
    let table = connection.worker.table();
    let (since, version) = (Instant::now(), request.version());
    let mut meter = MeterId::Unknown;
    let log = connection.worker.shared.settings.access_log.as_ref();
    let logged = log.map(|log| Box::new(Logged::new(log, &connection, &table, &request)));
    let mut response = respond(&connection, &table, serving, request, &mut meter).await;
    if connection.scheme == Scheme::Https
        && let Some(alternative) = &*connection.worker.shared.alt_svc.load()
    {
        // An application may know alternatives of its own.
        let field = response.headers_mut().entry(ALT_SVC);
        field.or_insert_with(|| HeaderValue::clone(alternative));
    }
    let status = response.status();
    let switched = status == StatusCode::SWITCHING_PROTOCOLS || response.body().begins_tunnel();
    response.body_mut().measure(Measured {
        table,
        meter,
        status,
        switched,
        version,
        since,
        logged,
    });
    Ok(response)
}

/// Produces the response, and sets `meter` to the one that counts the request.
async fn respond(
    connection: &Arc<Connection>,
    table: &Arc<WorkerTable>,
    serving: ServingGuard,
    request: Request<ClientBody>,
    meter: &mut MeterId,
) -> Response<ResponseBody> {
    let checked = connect::is_websocket(&request).and_then(|_| Head::read(&request));
    let head = match checked {
        Ok(head) => head,
        Err(status) => return answer::refused(status, request.version(), serving),
    };
    let plain = connection.scheme == Scheme::Http;
    if let Some(token) = challenge::token(request.uri().path()).filter(|_| plain)
        && let Some(challenges) = &*connection.worker.shared.challenges.load()
    {
        let now = (connection.worker.shared.settings.wall_clock)();
        return answer::challenge(challenges.answer(token, now), serving);
    }
    if let Some(nonce) = probe::nonce(request.uri().path()).filter(|_| plain)
        && let Some(key) = &*connection.worker.shared.probe_key.load()
    {
        return answer::challenge(key.answer(nonce).map(Into::into), serving);
    }
    let found = table.0.table.find(&head.host, request.uri().path());
    *meter = found.into();
    match found {
        Some(Found {
            redirect_to_https: true,
            domain,
            ..
        }) if plain => {
            *meter = MeterId::Unanswered { domain };
            answer::redirect(&head.host, request.uri(), serving)
        }
        Some(Found {
            route: Some(id),
            is_limited,
            ..
        }) => {
            let trusted = table.0.table.trusted_proxies();
            let client = ClientAddress::find(connection.peer_ip, request.headers(), trusted);
            let limit = table.0.limit(id).filter(|_| is_limited);
            match limit::admit(&connection.worker.shared, limit, client.address) {
                Ok(permit) => {
                    let arrived = Arrived {
                        client,
                        permit,
                        serving,
                        request,
                    };
                    forward(connection, table, id, arrived).await
                }
                Err(refusal) => {
                    table.0.count_limited(id);
                    limit::refuse(refusal, request, serving)
                }
            }
        }
        Some(Found { route: None, .. }) | None => answer::empty(StatusCode::NOT_FOUND, serving),
    }
}

/// A request within the limits of its client.
struct Arrived {
    client: ClientAddress,
    /// Counts the request among those in flight.
    permit: Option<Permit>,
    serving: ServingGuard,
    request: Request<ClientBody>,
}

/// Forwards the request to a replica of its route.
async fn forward(
    connection: &Arc<Connection>,
    table: &Arc<WorkerTable>,
    id: RouteId,
    arrived: Arrived,
) -> Response<ResponseBody> {
    let Arrived {
        client,
        permit,
        serving,
        mut request,
    } = arrived;
    let Some(route) = table.0.table.route(id) else {
        return answer::empty(StatusCode::NOT_FOUND, serving);
    };
    let switch = match Switch::asked(&mut request, route.http2()) {
        Ok(switch) => switch,
        Err(status) => return answer::empty(status, serving),
    };
    let sticky = route.sticky();
    let preferred = sticky.and_then(|sticky| sticky.named_replica(request.headers()));
    let outgoing = Outgoing {
        forwarded_for: client.forwarded_for(),
        cookie: sticky.map(StickyRoute::cookie),
        cookies: table.0.table.cookies(id.domain),
        connection,
        path: route.stripped(request.uri().path()),
        upgrade: switch.as_ref().map(|switch| switch.protocol.clone()),
        http2: route.http2(),
    };
    let version = request.version();
    let interim = request.extensions_mut().remove::<InterimResponses>();
    let (parts, body) = request.into_parts();
    let outgoing = match outgoing.apply(parts) {
        // The bytes of a tunnel follow the switch; they are no body.
        Ok(parts) if switch.as_ref().is_some_and(Switch::is_tunnel) => {
            Request::from_parts(parts, RequestBody::empty())
        }
        Ok(parts) => Request::from_parts(parts, RequestBody::new(body)),
        Err(status) => return answer::empty(status, serving),
    };
    let forwarding = Forwarding {
        worker: &connection.worker,
        table,
        route: id,
        http2: route.http2(),
        upstreams: route.upstreams(),
        preferred,
        interim,
    };
    let tunnel = switch.as_ref().is_some_and(Switch::is_tunnel);
    let mut answered = forwarding.run(outgoing).await;
    if let (Some(sticky), Ok((response, origin))) = (sticky, &mut answered) {
        sticky.hide_from_client(response.headers_mut());
        let leaving = origin.target.upstream().is_none_or(|at| at.leaving);
        let at = origin.target.upstream;
        if preferred != Some(at) && !leaving {
            let cookie = sticky.set_cookie(at, connection.scheme == Scheme::Https);
            if let Some(cookie) = cookie {
                response.headers_mut().append(SET_COOKIE, cookie);
            }
        }
    }
    match answered {
        Ok((response, origin)) if response.status() == StatusCode::SWITCHING_PROTOCOLS => {
            switched(connection, response, &origin, switch, serving, permit)
        }
        // A success would begin a tunnel to a replica that did not open one.
        Ok((response, _)) if tunnel && response.status().is_success() => {
            answer::empty(StatusCode::BAD_GATEWAY, serving)
        }
        Ok((response, origin)) => {
            let mut response = answer::relayed(response, version, origin, serving);
            response.body_mut().hold(permit);
            response
        }
        Err(failure) => answer::empty(failure.status(), serving),
    }
}

/// A switch of protocols that the client asks for.
struct Switch {
    protocol: HeaderValue,
    client: OnUpgrade,
    /// The handshake made in the name of a client that opens a tunnel over HTTP/2.
    handshake: Option<Handshake>,
}

impl Switch {
    /// The switch that `request` asks for, if any; a tunnel becomes a request for an upgrade.
    ///
    /// Replicas that speak `http2` switch no protocols. An upgrade is an offer that the hop may
    /// ignore (RFC 9110, section 7.8), but a tunnel must not become a plain request: its answer
    /// would open the tunnel.
    ///
    /// # Errors
    /// The status to refuse the request with.
    fn asked(request: &mut Request<ClientBody>, http2: bool) -> Result<Option<Self>, StatusCode> {
        if connect::is_websocket(request)? {
            if http2 {
                return Err(StatusCode::NOT_IMPLEMENTED);
            }
            let client = hyper::upgrade::on(&mut *request);
            let (handshake, protocol) = Handshake::start(request.headers_mut());
            *request.method_mut() = Method::GET;
            return Ok(Some(Self {
                protocol,
                client,
                handshake: Some(handshake),
            }));
        }
        let protocol = headers::upgrade(request.headers());
        let protocol = protocol.filter(|_| !http2 && request.version() == Version::HTTP_11);
        Ok(protocol.map(|protocol| Self {
            protocol,
            client: hyper::upgrade::on(request),
            handshake: None,
        }))
    }

    fn is_tunnel(&self) -> bool {
        self.handshake.is_some()
    }
}

/// Connects client and replica after the replica agreed to switch protocols.
fn switched(
    connection: &Connection,
    mut response: Response<Incoming>,
    origin: &Origin,
    switch: Option<Switch>,
    serving: ServingGuard,
    permit: Option<Permit>,
) -> Response<ResponseBody> {
    let protocol = headers::upgrade(response.headers());
    let handshake = switch.as_ref().and_then(|switch| switch.handshake.as_ref());
    let completed = handshake.is_none_or(|handshake| handshake.complete(response.headers_mut()));
    let (Some(switch), Some(protocol), true) = (switch, protocol, completed) else {
        // The client asked for no switch, or the replica's answer does not fit the request.
        let replica_id = origin.target.upstream().map(|upstream| &*upstream.replica);
        tracing::debug!(
            subsystem = "ingress",
            replica_id,
            "unexpected switch of protocols"
        );
        return answer::empty(StatusCode::BAD_GATEWAY, serving);
    };
    let replica = hyper::upgrade::on(&mut response);
    let phase = connection.phase.clone();
    if switch.is_tunnel() {
        // The client's connection has other streams, and is not idle while the tunnel is open.
        let relayed = relay(switch.client, replica, phase, true, Some(serving), permit);
        tokio::spawn(relayed);
        return answer::tunnel(response);
    }
    let is_websocket = protocol.as_bytes().eq_ignore_ascii_case(b"websocket");
    let relayed = relay(switch.client, replica, phase, is_websocket, None, permit);
    tokio::spawn(relayed);
    let mut answer = answer::switched(response, serving);
    headers::set_upgrade(answer.headers_mut(), protocol);
    answer
}
