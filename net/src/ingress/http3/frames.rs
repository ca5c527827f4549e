//! Boundaries of the frames on a stream (RFC 9114, section 7.1), without I/O.
//!
//! h3 buffers every frame but DATA until it is complete, whatever its length, takes an empty DATA
//! frame for the end of the body, and reads ahead of what it has parsed. So it is fed from here:
//! piece by piece, without frames that carry nothing, and without those that are too long.

use std::mem::take;

use bytes::{Buf, Bytes};

const DATA: u64 = 0x0;
/// Frame types that have a meaning or are forbidden (RFC 9114, section 7.2; RFC 9113, section 6),
/// and the stream signal of WebTransport. Other frames are ignored.
const KNOWN: [u64; 12] = [DATA, 0x1, 0x2, 0x3, 0x4, 0x5, 0x6, 0x7, 0x8, 0x9, 0xd, 0x41];
/// Type of a control stream (RFC 9114, section 6.2.1).
const CONTROL: u64 = 0x0;
/// Longest type and length together.
const MAX_HEADER: usize = 16;

/// Why a stream cannot be read on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum FrameError {
    #[error("frame is longer than the limit")]
    TooLong,
    #[error("stream ends within a frame")]
    Truncated,
}

/// Splits the bytes of one stream at the boundaries of its frames.
#[derive(Debug)]
pub(super) struct FrameScanner {
    state: State,
    /// The bytes of a type or header that is not complete.
    partial: Vec<u8>,
    /// Largest length of a frame other than DATA.
    limit: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Before the type of a unidirectional stream.
    StreamType,
    Header,
    Payload {
        left: u64,
        ignored: bool,
    },
    /// A stream without frames.
    Opaque,
}

impl FrameScanner {
    /// For a stream that carries a request.
    pub(super) fn request(limit: usize) -> Self {
        Self {
            state: State::Header,
            partial: Vec::new(),
            limit: u64::try_from(limit).unwrap_or(u64::MAX),
        }
    }

    /// For a unidirectional stream, which begins with its type.
    pub(super) fn unidirectional(limit: usize) -> Self {
        Self {
            state: State::StreamType,
            ..Self::request(limit)
        }
    }

    /// Takes the next piece from `input`: a header, or some of a payload. `None` if more input is
    /// needed, in which case all of `input` was used.
    pub(super) fn next_piece(&mut self, input: &mut Bytes) -> Result<Option<Bytes>, FrameError> {
        while !input.is_empty() {
            match self.state {
                State::Opaque => return Ok(Some(take(input))),
                State::StreamType => {
                    if let Some((stream_type, piece)) = self.complete(input, varint) {
                        self.state = if stream_type == CONTROL {
                            State::Header
                        } else {
                            State::Opaque
                        };
                        return Ok(Some(piece));
                    }
                }
                State::Payload { left, ignored } => {
                    let length = usize::try_from(left).unwrap_or(usize::MAX);
                    let piece = input.split_to(length.min(input.len()));
                    self.enter(left - piece.len() as u64, ignored);
                    if !ignored {
                        return Ok(Some(piece));
                    }
                }
                State::Header => {
                    let Some(((kind, length), piece)) = self.complete(input, header) else {
                        continue;
                    };
                    let known = KNOWN.contains(&kind);
                    let ignored = !known || (kind == DATA && length == 0);
                    if known && kind != DATA && length > self.limit {
                        return Err(FrameError::TooLong);
                    }
                    self.enter(length, ignored);
                    if !ignored {
                        return Ok(Some(piece));
                    }
                }
            }
        }
        Ok(None)
    }

    /// Checks that the stream may end here.
    pub(super) fn end(&self) -> Result<(), FrameError> {
        let between = matches!(self.state, State::Header | State::StreamType);
        if (between && self.partial.is_empty()) || self.state == State::Opaque {
            Ok(())
        } else {
            Err(FrameError::Truncated)
        }
    }

    fn enter(&mut self, left: u64, ignored: bool) {
        self.state = if left == 0 {
            State::Header
        } else {
            State::Payload { left, ignored }
        };
    }

    /// Reads what `parse` needs; the bytes of an incomplete value are kept.
    fn complete<T>(
        &mut self,
        input: &mut Bytes,
        parse: impl Fn(&[u8]) -> Option<(T, usize)>,
    ) -> Option<(T, Bytes)> {
        if self.partial.is_empty()
            && let Some((value, length)) = parse(input)
        {
            return Some((value, input.split_to(length)));
        }
        while self.partial.len() < MAX_HEADER && input.has_remaining() {
            self.partial.push(input.get_u8());
            if let Some((value, _)) = parse(&self.partial) {
                return Some((value, Bytes::from(take(&mut self.partial))));
            }
        }
        None
    }
}

/// Type and length of a frame, and how many bytes they take.
fn header(bytes: &[u8]) -> Option<((u64, u64), usize)> {
    let (kind, first) = varint(bytes)?;
    let (length, second) = varint(bytes.get(first..)?)?;
    Some(((kind, length), first + second))
}

/// A number of variable length (RFC 9000, section 16) and how many bytes it takes.
fn varint(bytes: &[u8]) -> Option<(u64, usize)> {
    let first = *bytes.first()?;
    let length = 1 << (first >> 6);
    let rest = bytes.get(1..length)?;
    let start = u64::from(first & 0x3f);
    let value = rest
        .iter()
        .fold(start, |value, byte| (value << 8) | u64::from(*byte));
    Some((value, length))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LIMIT: usize = 100;

    fn frame(kind: u64, payload: &[u8]) -> Vec<u8> {
        let mut bytes = number(kind);
        bytes.extend(number(payload.len() as u64));
        bytes.extend(payload);
        bytes
    }

    /// The value in the longest form, which every reader must accept.
    fn number(value: u64) -> Vec<u8> {
        (value | 0xc000_0000_0000_0000).to_be_bytes().to_vec()
    }

    fn pieces(scanner: &mut FrameScanner, bytes: &[u8]) -> Result<Vec<Bytes>, FrameError> {
        let (mut input, mut all) = (Bytes::copy_from_slice(bytes), Vec::new());
        while let Some(piece) = scanner.next_piece(&mut input)? {
            all.push(piece);
        }
        assert!(input.is_empty());
        Ok(all)
    }

    #[test]
    fn headers_and_payloads_are_separate_pieces() {
        let mut scanner = FrameScanner::request(LIMIT);
        let found = pieces(&mut scanner, &[1, 2, b'a', b'b', 0, 3, b'x', b'y', b'z']).unwrap();
        assert_eq!(found, [&[1, 2][..], b"ab", &[0, 3], b"xyz"]);
        assert_eq!(scanner.end(), Ok(()));
    }

    #[test]
    fn frames_without_meaning_are_left_out() {
        let mut scanner = FrameScanner::request(LIMIT);
        let mut bytes = frame(0x21, &[7; 500]); // longer than the limit, but never held
        bytes.extend([0, 0, 1, 1, b'h']);
        bytes.extend(frame(0x0f_0700, b"priority"));
        assert_eq!(pieces(&mut scanner, &bytes).unwrap(), [&[1, 1][..], b"h"]);
        assert_eq!(scanner.end(), Ok(()));
    }

    #[test]
    fn only_data_may_exceed_the_limit() {
        for (kind, expected) in [
            (0, Ok(2)),
            (1, Err(FrameError::TooLong)),
            (4, Err(FrameError::TooLong)),
        ] {
            let bytes = frame(kind, &[0; LIMIT + 1]);
            let found = pieces(&mut FrameScanner::request(LIMIT), &bytes);
            assert_eq!(found.map(|all| all.len()), expected, "{kind}");
        }
        let longest = frame(1, &[0; LIMIT]);
        assert_eq!(
            pieces(&mut FrameScanner::request(LIMIT), &longest)
                .unwrap()
                .len(),
            2
        );
    }

    #[test]
    fn end_within_a_frame_is_noticed() {
        let whole = frame(0, b"abc");
        for end in 1..whole.len() {
            let mut scanner = FrameScanner::request(LIMIT);
            pieces(&mut scanner, &whole[..end]).unwrap();
            assert_eq!(scanner.end(), Err(FrameError::Truncated), "{end}");
        }
    }

    #[test]
    fn only_control_streams_have_frames() {
        let settings = frame(4, b"ab");
        let mut control = FrameScanner::unidirectional(LIMIT);
        let bytes = [&[0][..], &settings].concat();
        let found = pieces(&mut control, &bytes).unwrap();
        assert_eq!(found, [&[0][..], &settings[..16], b"ab"]);
        let mut encoder = FrameScanner::unidirectional(LIMIT);
        let found = pieces(&mut encoder, &[2, 0x3f, 0xe1, 0x1f]).unwrap();
        assert_eq!(found, [&[2][..], &[0x3f, 0xe1, 0x1f]]);
        assert_eq!(encoder.end(), Ok(()));
    }

    proptest! {
        #[test]
        fn pieces_do_not_depend_on_the_packets(
            frames in prop::collection::vec((0..16u64, prop::collection::vec(any::<u8>(), 0..40)), 0..8),
            cuts in prop::collection::vec(1..30usize, 1..60),
        ) {
            let bytes: Vec<u8> = frames.iter().flat_map(|(kind, payload)| frame(*kind, payload)).collect();
            let whole = pieces(&mut FrameScanner::request(LIMIT), &bytes).unwrap().concat();
            let (mut scanner, mut rest, mut parts) = (FrameScanner::request(LIMIT), &bytes[..], Vec::new());
            for cut in cuts.iter().cycle() {
                if rest.is_empty() {
                    break;
                }
                let (part, after) = rest.split_at((*cut).min(rest.len()));
                parts.extend(pieces(&mut scanner, part).unwrap().concat());
                rest = after;
            }
            prop_assert_eq!(parts, whole);
            prop_assert_eq!(scanner.end(), Ok(()));
        }

        #[test]
        fn any_bytes_are_scanned(bytes in prop::collection::vec(any::<u8>(), 0..200), uni in any::<bool>()) {
            let mut scanner = if uni {
                FrameScanner::unidirectional(LIMIT)
            } else {
                FrameScanner::request(LIMIT)
            };
            let _ = pieces(&mut scanner, &bytes);
        }
    }
}
