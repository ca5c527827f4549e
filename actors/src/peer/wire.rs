//! Encoding of call and heartbeat frames, without I/O.

use std::collections::BTreeSet;

use bytes::{BufMut, Bytes};
use http::{
    HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Version,
    request::Parts,
};

use jaco_policy::peer::{gossip::MembershipView, members::PeerInfo};

use super::Heartbeat;

/// Largest piece of a body in one frame; longer data is split.
pub(super) const DATA_BYTES: usize = 1 << 20;
/// Largest frame of a call: one piece of a body and its tag.
pub(super) const CALL_FRAME: usize = DATA_BYTES + 1;
/// Largest frame of a heartbeat stream, enough for a heartbeat that names 1000 members.
pub(super) const HEARTBEAT_BYTES: usize = 256 << 10;
/// Maximum number of members in one membership frame.
pub(super) const MEMBERS: usize = 1000;
/// Maximum number of headers in one head.
const HEADERS: usize = 128;

const HEAD: u8 = 1;
const DATA: u8 = 2;
const TRAILERS: u8 = 3;
const HEARTBEAT: u8 = 1;
const MEMBERSHIP: u8 = 2;
const SENSITIVE: u8 = 1;

/// First byte of a frame that holds a piece of a body.
pub(super) const DATA_PREFIX: [u8; 1] = [DATA];

/// Reason a message cannot be encoded or decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum WireError {
    /// Too many headers or members, or one of them is too long.
    #[error("the message is too long")]
    TooLong,
    /// The input ends before the message does.
    #[error("the message ends too early")]
    Truncated,
    /// The input is not a message of the expected kind.
    #[error("the message is not a {0}")]
    Not(&'static str),
}

/// A frame of a call, after its head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// A piece of the body, never empty.
    Data(Bytes),
    /// The trailers; always the last frame.
    Trailers(HeaderMap),
}

/// Encodes the head of a request.
pub(super) fn request_head(parts: &Parts) -> Result<Vec<u8>, WireError> {
    let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
    let mut out = vec![HEAD];
    put_short(&mut out, path.as_bytes())?;
    put_headers(&mut out, &parts.headers)?;
    Ok(out)
}

/// Decodes the head of a request; the body is empty.
pub(super) fn read_request(frame: &[u8]) -> Result<Request<()>, WireError> {
    let not = WireError::Not("request");
    let mut input = Input(frame);
    if input.byte()? != HEAD {
        return Err(not);
    }
    let path = input.short()?;
    // Only a path is accepted; an authority or scheme would name another host.
    if !path.starts_with(b"/") {
        return Err(not);
    }
    let headers = input.headers()?;
    let mut request = Request::builder()
        .method(Method::POST)
        .version(Version::HTTP_2)
        .uri(path)
        .body(())
        .map_err(|_| not)?;
    *request.headers_mut() = headers;
    Ok(request)
}

/// Encodes the head of a response.
pub(super) fn response_head(status: StatusCode, headers: &HeaderMap) -> Result<Vec<u8>, WireError> {
    let mut out = vec![HEAD];
    out.put_u16(status.as_u16());
    put_headers(&mut out, headers)?;
    Ok(out)
}

/// Decodes the head of a response; the body is empty.
pub(super) fn read_response(frame: &[u8]) -> Result<Response<()>, WireError> {
    let not = WireError::Not("response");
    let mut input = Input(frame);
    if input.byte()? != HEAD {
        return Err(not);
    }
    let status = StatusCode::from_u16(input.u16()?).map_err(|_| not)?;
    let headers = input.headers()?;
    let mut response = Response::new(());
    *response.status_mut() = status;
    *response.version_mut() = Version::HTTP_2;
    *response.headers_mut() = headers;
    Ok(response)
}

/// Encodes trailers.
pub(super) fn trailers(headers: &HeaderMap) -> Result<Vec<u8>, WireError> {
    let mut out = vec![TRAILERS];
    put_headers(&mut out, headers)?;
    Ok(out)
}

/// Decodes a frame after the head.
pub(super) fn read_part(frame: Vec<u8>) -> Result<Part, WireError> {
    match frame.first() {
        // A sender splits data into pieces with content; an empty one would cost memory for nothing.
        Some(&DATA) if frame.len() > 1 => Ok(Part::Data(Bytes::from(frame).slice(1..))),
        Some(&TRAILERS) => Input(&frame[1..]).headers().map(Part::Trailers),
        Some(_) | None => Err(WireError::Not("part of a call")),
    }
}

/// Encodes a heartbeat.
pub(super) fn heartbeat(beat: &Heartbeat) -> Result<Vec<u8>, WireError> {
    let mut out = vec![HEARTBEAT];
    out.put_u64(beat.applied);
    out.put_u64(beat.term);
    out.put_u8(u8::from(beat.leads));
    out.put_u16(u16::try_from(beat.live.len()).map_err(|_| WireError::TooLong)?);
    for host in &beat.live {
        put_short(&mut out, host.as_bytes())?;
    }
    // Last on the wire: an older version ignores trailing bytes.
    out.put_u8(u8::from(beat.halted));
    if out.len() > HEARTBEAT_BYTES {
        return Err(WireError::TooLong);
    }
    Ok(out)
}

/// A frame of the heartbeat stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ControlFrame {
    /// Heartbeat.
    Heartbeat(Heartbeat),
    /// Membership view.
    Membership(MembershipView),
    /// Frame type of a newer version.
    Unknown,
}

/// Encodes a membership view.
pub(super) fn encode_view(view: &MembershipView) -> Result<Vec<u8>, WireError> {
    if view.members.len() > MEMBERS {
        return Err(WireError::TooLong);
    }
    let mut out = vec![MEMBERSHIP];
    out.put_u64(view.applied);
    out.put_u16(u16::try_from(view.members.len()).map_err(|_| WireError::TooLong)?);
    for record in &view.members {
        put_short(&mut out, record.hostname.as_bytes())?;
        out.put_u64(record.raft_id);
        let address = record.address.map(|address| address.to_string());
        put_short(&mut out, address.unwrap_or_default().as_bytes())?;
        out.put_slice(&record.fingerprint);
    }
    if out.len() > HEARTBEAT_BYTES {
        return Err(WireError::TooLong);
    }
    Ok(out)
}

/// Decodes a frame of the heartbeat stream.
pub(super) fn read_control_frame(frame: &[u8]) -> Result<ControlFrame, WireError> {
    let mut input = Input(frame);
    match input.byte()? {
        HEARTBEAT => read_heartbeat(input).map(ControlFrame::Heartbeat),
        MEMBERSHIP => read_view(input).map(ControlFrame::Membership),
        _ => Ok(ControlFrame::Unknown),
    }
}

fn read_view(mut input: Input<'_>) -> Result<MembershipView, WireError> {
    let applied = input.u64()?;
    let count = usize::from(input.u16()?);
    if count > MEMBERS {
        return Err(WireError::TooLong);
    }
    let mut members = Vec::new();
    for _ in 0..count {
        let hostname = input.text()?;
        let raft_id = input.u64()?;
        let address = input.text()?;
        members.push(PeerInfo::new(hostname, raft_id, address, input.array()?));
    }
    Ok(MembershipView { applied, members })
}

fn read_heartbeat(mut input: Input<'_>) -> Result<Heartbeat, WireError> {
    let (applied, term) = (input.u64()?, input.u64()?);
    let leads = input.byte()? != 0;
    let mut live = BTreeSet::new();
    for _ in 0..input.u16()? {
        live.insert(input.text()?.to_owned());
    }
    // Absent in heartbeats of an older version.
    let halted = !input.0.is_empty() && input.byte()? != 0;
    Ok(Heartbeat {
        applied,
        term,
        leads,
        live,
        halted,
    })
}

/// Decodes `frame` as each kind of message, and encodes and decodes the result again; an entry
/// point for fuzzing.
///
/// # Panics
/// If the second decoding differs from the first.
#[cfg(any(test, feature = "testing"))]
pub(crate) fn read_frame(frame: &[u8]) {
    if let Ok(request) = read_request(frame) {
        let (parts, ()) = request.into_parts();
        let again = request_head(&parts).and_then(|head| read_request(&head));
        let again = again.map(|request| (request.uri().clone(), request.headers().clone()));
        assert_eq!(again, Ok((parts.uri, parts.headers)));
    }
    if let Ok(response) = read_response(frame) {
        let (status, headers) = (response.status(), response.headers());
        let again = response_head(status, headers).and_then(|head| read_response(&head));
        let again = again.map(|response| (response.status(), response.headers().clone()));
        assert_eq!(again, Ok((status, headers.clone())));
    }
    match read_control_frame(frame) {
        Ok(ControlFrame::Heartbeat(beat)) => {
            let again = heartbeat(&beat).and_then(|frame| read_control_frame(&frame));
            assert_eq!(again, Ok(ControlFrame::Heartbeat(beat)));
        }
        Ok(ControlFrame::Membership(view)) => {
            let again = encode_view(&view).and_then(|frame| read_control_frame(&frame));
            assert_eq!(again, Ok(ControlFrame::Membership(view)));
        }
        Ok(ControlFrame::Unknown) | Err(_) => {}
    }
    if let Ok(Part::Trailers(headers)) = read_part(frame.to_vec()) {
        let again = trailers(&headers).and_then(read_part);
        assert_eq!(again, Ok(Part::Trailers(headers)));
    }
}

fn put_short(out: &mut Vec<u8>, bytes: &[u8]) -> Result<(), WireError> {
    out.put_u16(u16::try_from(bytes.len()).map_err(|_| WireError::TooLong)?);
    out.put_slice(bytes);
    Ok(())
}

fn put_headers(out: &mut Vec<u8>, headers: &HeaderMap) -> Result<(), WireError> {
    if headers.len() > HEADERS {
        return Err(WireError::TooLong);
    }
    out.put_u16(u16::try_from(headers.len()).map_err(|_| WireError::TooLong)?);
    for (name, value) in headers {
        out.put_u8(if value.is_sensitive() { SENSITIVE } else { 0 });
        put_short(out, name.as_str().as_bytes())?;
        put_short(out, value.as_bytes())?;
    }
    Ok(())
}

/// Cursor that consumes bytes from the front.
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn take(&mut self, length: usize) -> Result<&'a [u8], WireError> {
        let (front, rest) = self
            .0
            .split_at_checked(length)
            .ok_or(WireError::Truncated)?;
        self.0 = rest;
        Ok(front)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], WireError> {
        let bytes = self.take(N)?;
        bytes.try_into().map_err(|_| WireError::Truncated)
    }

    fn byte(&mut self) -> Result<u8, WireError> {
        Ok(self.array::<1>()?[0])
    }

    fn u16(&mut self) -> Result<u16, WireError> {
        Ok(u16::from_be_bytes(self.array()?))
    }

    fn u64(&mut self) -> Result<u64, WireError> {
        Ok(u64::from_be_bytes(self.array()?))
    }

    fn short(&mut self) -> Result<&'a [u8], WireError> {
        let length = self.u16()?;
        self.take(usize::from(length))
    }

    fn text(&mut self) -> Result<&'a str, WireError> {
        std::str::from_utf8(self.short()?).map_err(|_| WireError::Not("text"))
    }

    fn headers(&mut self) -> Result<HeaderMap, WireError> {
        let count = usize::from(self.u16()?);
        if count > HEADERS {
            return Err(WireError::TooLong);
        }
        let mut headers = HeaderMap::with_capacity(count);
        for _ in 0..count {
            let flags = self.byte()?;
            let name = HeaderName::from_bytes(self.short()?);
            let value = HeaderValue::from_bytes(self.short()?);
            let (Ok(name), Ok(mut value)) = (name, value) else {
                return Err(WireError::Not("header"));
            };
            value.set_sensitive(flags & SENSITIVE != 0);
            headers.append(name, value);
        }
        Ok(headers)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn headers() -> impl Strategy<Value = HeaderMap> {
        let pair = ("[a-z][a-z0-9-]{0,20}", "[ -~]{0,80}", any::<bool>());
        prop::collection::vec(pair, 0..10).prop_map(|pairs| {
            let mut headers = HeaderMap::new();
            for (name, value, sensitive) in pairs {
                let mut value: HeaderValue = value.parse().unwrap();
                value.set_sensitive(sensitive);
                headers.append(name.parse::<HeaderName>().unwrap(), value);
            }
            headers
        })
    }

    proptest! {
        #[test]
        fn requests_round_trip(
            path in "/[a-z.0-9]{1,30}/[A-Za-z]{1,30}",
            headers in headers(),
        ) {
            let mut request = Request::post(&path).body(()).unwrap();
            *request.headers_mut() = headers;
            let (parts, ()) = request.into_parts();
            let read = read_request(&request_head(&parts).unwrap()).unwrap();
            prop_assert_eq!(read.uri().path(), path);
            prop_assert_eq!(read.headers(), &parts.headers);
            for (name, value) in read.headers() {
                let sent = parts.headers.get_all(name).iter().find(|sent| *sent == value);
                prop_assert!(sent.is_some());
            }
        }

        #[test]
        fn responses_and_trailers_round_trip(
            status in 100_u16..600,
            headers in headers(),
        ) {
            let status = StatusCode::from_u16(status).unwrap();
            let read = read_response(&response_head(status, &headers).unwrap()).unwrap();
            prop_assert_eq!(read.status(), status);
            prop_assert_eq!(read.headers(), &headers);
            let part = read_part(trailers(&headers).unwrap()).unwrap();
            prop_assert_eq!(part, Part::Trailers(headers));
        }

        #[test]
        fn heartbeats_round_trip(
            applied in any::<u64>(),
            term in any::<u64>(),
            leads in any::<bool>(),
            live in prop::collection::btree_set("[a-z0-9-]{1,63}", 0..20),
            halted in any::<bool>(),
        ) {
            let beat = Heartbeat { applied, term, leads, live, halted };
            let mut bytes = heartbeat(&beat).unwrap();
            let read = read_control_frame(&bytes).unwrap();
            prop_assert_eq!(read, ControlFrame::Heartbeat(beat.clone()));
            // Trailing bytes of a newer version are ignored.
            bytes.push(1);
            let read = read_control_frame(&bytes).unwrap();
            prop_assert_eq!(read, ControlFrame::Heartbeat(beat.clone()));
            // An older version omits `halted`.
            bytes.truncate(bytes.len() - 2);
            let earlier = Heartbeat { halted: false, ..beat };
            prop_assert_eq!(read_control_frame(&bytes).unwrap(), ControlFrame::Heartbeat(earlier));
        }

        #[test]
        fn rosters_round_trip(
            applied in any::<u64>(),
            rows in prop::collection::vec(("[a-z0-9-]{1,63}", any::<u64>(), any::<[u8; 32]>()), 0..9),
            address in prop::option::of("127.0.0.1:[1-9][0-9]{3}"),
        ) {
            let address = address.unwrap_or_default();
            let record = |(name, id, print): &(String, u64, _)| {
                PeerInfo::new(name, *id, &address, *print)
            };
            let view = MembershipView { applied, members: rows.iter().map(record).collect() };
            let read = read_control_frame(&encode_view(&view).unwrap()).unwrap();
            prop_assert_eq!(read, ControlFrame::Membership(view));
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            read_frame(&bytes);
        }
    }

    #[test]
    fn roster_over_member_limit_is_rejected() {
        let view = |count| MembershipView {
            applied: 1,
            members: vec![PeerInfo::new("a", 1, "", [1; 32]); count],
        };
        let most = encode_view(&view(MEMBERS)).unwrap();
        assert_eq!(
            read_control_frame(&most),
            Ok(ControlFrame::Membership(view(MEMBERS)))
        );
        assert_eq!(encode_view(&view(MEMBERS + 1)), Err(WireError::TooLong));
        // One member over the limit, built by hand.
        let mut more = most.clone();
        let count = u16::try_from(MEMBERS + 1).unwrap();
        more[9..11].copy_from_slice(&count.to_be_bytes());
        let record = (most.len() - 11) / MEMBERS;
        more.extend_from_slice(&most[11..11 + record]);
        assert_eq!(read_control_frame(&more), Err(WireError::TooLong));
    }

    #[test]
    fn empty_piece_of_body_is_rejected() {
        let part = |content: &[u8]| read_part([&DATA_PREFIX, content].concat());
        assert_eq!(part(b"x"), Ok(Part::Data(Bytes::from_static(b"x"))));
        for empty in [read_part(Vec::new()), part(b"")] {
            assert_eq!(empty, Err(WireError::Not("part of a call")));
        }
    }

    #[test]
    fn sensitive_header_stays_sensitive() {
        let mut request = Request::post("/a").body(()).unwrap();
        let mut secret = HeaderValue::from_static("x");
        secret.set_sensitive(true);
        request.headers_mut().insert("token", secret);
        let (parts, ()) = request.into_parts();
        let read = read_request(&request_head(&parts).unwrap()).unwrap();
        assert!(read.headers()["token"].is_sensitive());
    }

    #[test]
    fn oversized_headers_are_rejected_before_sending() {
        let mut headers = HeaderMap::new();
        headers.insert("x", HeaderValue::from_bytes(&vec![b'a'; 70_000]).unwrap());
        assert_eq!(trailers(&headers), Err(WireError::TooLong));
    }
}
