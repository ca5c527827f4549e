//! Fuzzes the messages between members.

use bytes::Bytes;
use jaco_actors::testing::read_peer_frame;
use jaco_net::quic::frame::{Batch, Decoder};

/// Largest frame of an input.
const LIMIT: usize = 4096;

/// Input: a byte that selects the chunk size, and the stream.
///
/// The frames do not depend on the chunks, none exceeds the size limit, and they are written like
/// they were read. Decoding the content of a frame never panics, and decoded content round-trips.
pub fn peer_frames(data: &[u8]) {
    let Some((cut, stream)) = data.split_first() else {
        return;
    };
    let whole = decode(&[stream]);
    let pieces: Vec<_> = stream.chunks(usize::from(*cut).max(1)).collect();
    assert_eq!(decode(&pieces), whole, "pieces differ from the whole");
    let mut batch = Batch::default();
    for frame in &whole {
        assert!(frame.len() <= LIMIT);
        read_peer_frame(frame);
        batch.push(Bytes::copy_from_slice(frame)).unwrap();
    }
    let written = batch.take().concat();
    assert!(
        stream.starts_with(&written),
        "frames were not read in order"
    );
}

/// Decodes frames up to the first that is too long, or the end.
fn decode(pieces: &[&[u8]]) -> Vec<Vec<u8>> {
    let mut decoder = Decoder::new(LIMIT);
    let mut frames = Vec::new();
    for piece in pieces {
        let mut rest = *piece;
        while !rest.is_empty() {
            match decoder.decode(&mut rest) {
                Ok(Some(frame)) => frames.push(frame),
                Ok(None) => {}
                Err(_) => return frames,
            }
        }
    }
    frames
}
