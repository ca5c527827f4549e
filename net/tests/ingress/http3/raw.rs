//! Bytes of frames as a careless or hostile client may send them.

use super::*;

/// A length of QPACK with a prefix of `bits` (RFC 9204, section 4.1.1).
fn prefixed(first: u8, bits: u32, length: usize) -> Vec<u8> {
    let most = (1_usize << bits) - 1;
    if length < most {
        return vec![first | length as u8];
    }
    let (mut bytes, mut rest) = (vec![first | most as u8], length - most);
    while rest >= 128 {
        bytes.push(rest as u8 | 128);
        rest /= 128;
    }
    bytes.push(rest as u8);
    bytes
}

/// A HEADERS frame with literal fields.
fn headers(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut block = vec![0, 0];
    for (name, value) in fields {
        block.extend(prefixed(0x20, 3, name.len()));
        block.extend(name.bytes());
        block.extend(prefixed(0, 7, value.len()));
        block.extend(value.bytes());
    }
    frame(1, &block)
}

fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u64) | (0b11 << 62);
    [&[kind][..], &length.to_be_bytes(), payload].concat()
}

fn head(more: &[(&str, &str)]) -> Vec<u8> {
    let mut fields = vec![
        (":method", "POST"),
        (":scheme", "https"),
        (":authority", HOST),
        (":path", "/"),
    ];
    fields.extend(more);
    headers(&fields)
}

/// Outcome of a request, as its client sees it.
#[derive(Debug, PartialEq, Eq)]
enum Seen {
    /// A response with some status: its HEADERS frame came.
    Response,
    /// The stream was reset with this code.
    Reset(u64),
    /// The connection was closed with this code.
    Closed(u64),
}

async fn send(quic: &Quic, bytes: &[u8], finish: bool, closes: bool) -> Seen {
    let connection = quic.handshake(HOST, &quic.issued).await.unwrap();
    let mut control = connection.open_uni().await.unwrap();
    control.write_all(&[0, 4, 0]).await.unwrap();
    let (mut send, mut receive) = connection.open_bi().await.unwrap();
    // The server may stop the stream before everything is sent.
    let _ = send.write_all(bytes).await;
    if finish {
        let _ = send.finish();
    }
    let closed = |why: quinn::ConnectionError| match why {
        quinn::ConnectionError::ApplicationClosed(closed) => {
            Seen::Closed(closed.error_code.into_inner())
        }
        other => panic!("{other}"),
    };
    if closes {
        // The stream may be reset before.
        let ended = tokio::time::timeout(TIMEOUT, connection.closed()).await;
        return closed(ended.unwrap());
    }
    let mut first = [0];
    let read = receive.read(&mut first);
    match tokio::time::timeout(TIMEOUT, read).await.unwrap() {
        Ok(Some(_)) => Seen::Response,
        Ok(None) => panic!("the stream ended without a response"),
        Err(quinn::ReadError::Reset(code)) => Seen::Reset(code.into_inner()),
        Err(quinn::ReadError::ConnectionLost(why)) => closed(why),
        Err(other) => panic!("{other}"),
    }
}

#[tokio::test]
async fn malformed_requests_get_errors_of_http3() {
    let settings = Settings {
        request_head_timeout: Duration::from_secs(2),
        ..Settings::default()
    };
    let quic = Quic::start(settings);
    quic.proxy.swap(RouteTable::new([rule([echo().await])]));
    let message_error = Seen::Reset(Code::H3_MESSAGE_ERROR.value());
    let body = |length: usize| frame(0, &vec![b'x'; length]);
    let truncated = [head(&[]), vec![0, 5, b'x']].concat();
    let table: Vec<(&str, Vec<u8>, Seen)> = vec![
        ("whole", [head(&[]), body(3)].concat(), Seen::Response),
        (
            "body before the head",
            body(3),
            Seen::Closed(Code::H3_FRAME_UNEXPECTED.value()),
        ),
        (
            "settings in a request",
            [head(&[]), frame(4, &[])].concat(),
            Seen::Closed(Code::H3_FRAME_UNEXPECTED.value()),
        ),
        (
            "frame of HTTP/2",
            frame(2, &[0; 5]),
            Seen::Closed(Code::H3_FRAME_UNEXPECTED.value()),
        ),
        (
            "truncated frame",
            truncated,
            Seen::Closed(Code::H3_FRAME_ERROR.value()),
        ),
        (
            "no method",
            headers(&[(":scheme", "https"), (":authority", HOST), (":path", "/")]),
            message_error,
        ),
        (
            "upper case",
            head(&[("X-Upper", "1")]),
            Seen::Reset(Code::H3_MESSAGE_ERROR.value()),
        ),
        (
            "line break",
            head(&[("x", "a\r\nb")]),
            Seen::Reset(Code::H3_MESSAGE_ERROR.value()),
        ),
        (
            "connection field",
            head(&[("connection", "close")]),
            Seen::Reset(Code::H3_MESSAGE_ERROR.value()),
        ),
        (
            "chunked",
            head(&[("transfer-encoding", "chunked")]),
            Seen::Reset(Code::H3_MESSAGE_ERROR.value()),
        ),
        (
            "lengths",
            head(&[("content-length", "3"), ("content-length", "4")]),
            Seen::Reset(Code::H3_MESSAGE_ERROR.value()),
        ),
        (
            "dynamic table",
            frame(1, &[2, 0, 0x80]),
            Seen::Closed(Code::QPACK_DECOMPRESSION_FAILED.value()),
        ),
        (
            "nothing",
            Vec::new(),
            Seen::Reset(Code::H3_REQUEST_INCOMPLETE.value()),
        ),
    ];
    for (name, bytes, expected) in table {
        let closes = matches!(expected, Seen::Closed(_));
        let seen = send(&quic, &bytes, true, closes).await;
        assert_eq!(seen, expected, "{name}");
    }
    // A head that never ends is given up.
    let unfinished = &head(&[])[..20];
    let seen = send(&quic, unfinished, false, false).await;
    assert_eq!(seen, Seen::Reset(Code::H3_REQUEST_INCOMPLETE.value()));
    // A frame that would have to be held in memory is refused at its header.
    let endless = [
        &[1][..],
        &((1_u64 << 30) | (0b11 << 62)).to_be_bytes(),
        &[0; 4096],
    ]
    .concat();
    let seen = send(&quic, &endless, false, false).await;
    assert!(matches!(seen, Seen::Reset(_)), "{seen:?}");
}

#[tokio::test]
async fn body_must_have_its_announced_length() {
    let quic = Quic::start(Settings::default());
    quic.proxy.swap(RouteTable::new([rule([echo().await])]));
    for (announced, sent, answered) in [("3", 3, "200"), ("4", 3, "400"), ("2", 3, "400")] {
        let mut asked = request(Method::POST, "/");
        asked
            .headers_mut()
            .insert("content-length", announced.parse().unwrap());
        let mut client = quic.client().await;
        let mut stream = client.start(asked).await;
        stream.send_data(vec![b'x'; sent].into()).await.unwrap();
        let _ = stream.finish().await;
        // The answer of the replica may have begun before the body is known to be wrong.
        match stream.recv_response().await {
            Ok(response) if answered == "200" => {
                assert_eq!(response.status().as_str(), answered);
                assert_eq!(rest(&mut stream).await.len(), sent);
            }
            Ok(response) => {
                let failed = loop {
                    match stream.recv_data().await {
                        Ok(Some(_)) => {}
                        Ok(None) => break false,
                        Err(_) => break true,
                    }
                };
                let refused = response.status().as_str() == answered;
                assert!(failed || refused, "{announced} {response:?}");
            }
            Err(why) => assert_ne!(answered, "200", "{why}"),
        }
    }
}

#[tokio::test]
async fn long_heads_get_431() {
    let quic = Quic::start(Settings::default());
    quic.proxy.swap(RouteTable::new([rule([echo().await])]));
    let connection = quic.handshake(HOST, &quic.issued).await.unwrap();
    let mut control = connection.open_uni().await.unwrap();
    control.write_all(&[0, 4, 0]).await.unwrap();
    for (length, status) in [(60, "200"), (66, "431")] {
        let long = "x".repeat(length * 1024);
        let (mut send, mut receive) = connection.open_bi().await.unwrap();
        let _ = send.write_all(&head(&[("x", &long)])).await;
        let _ = send.finish();
        let response = receive.read_to_end(1 << 20).await.unwrap();
        // The status is a literal, one in the code of Huffman, or number 25 of the static table.
        let block = &response[2..];
        let literal = block.windows(3).any(|found| found == status.as_bytes());
        let coded = match status {
            "200" => block.contains(&(0xc0 | 25)),
            _ => block.windows(3).any(|found| found == [0x69, 0x90, 0xff]),
        };
        assert!(literal || coded, "{status} {response:?}");
    }
}
