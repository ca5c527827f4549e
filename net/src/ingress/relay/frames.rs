//! Frames of WebSocket, as far as their ends have to be found (RFC 6455, section 5.2).

/// Opcode of a close frame.
const CLOSE: u8 = 8;
/// Bytes of the longest head without the masking key.
const MAX_HEAD: usize = 10;
/// Status of an endpoint that goes away, as a server that stops (RFC 6455, section 7.4.1).
const GOING_AWAY: [u8; 2] = 1001_u16.to_be_bytes();

/// Position in the frames that one side sends. Only heads are read.
#[derive(Clone, Debug, Default)]
pub(super) struct Frames {
    head: [u8; MAX_HEAD],
    /// Bytes of the head that have passed.
    filled: usize,
    /// Bytes of masking key and payload that have not passed.
    rest: u64,
    closed: bool,
}

impl Frames {
    /// Whether another frame may be inserted here.
    pub(super) fn is_between(&self) -> bool {
        self.filled == 0 && self.rest == 0
    }

    /// Whether a close frame has passed, after which no other may.
    pub(super) fn is_closed(&self) -> bool {
        self.closed
    }

    /// Follows all of `bytes`.
    pub(super) fn pass(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let passed = self.pass_frame(bytes);
            bytes = bytes.get(passed..).unwrap_or_default();
        }
    }

    /// Follows `bytes` up to the end of the frame, or all of them; returns their number.
    pub(super) fn pass_frame(&mut self, bytes: &[u8]) -> usize {
        let mut passed = 0;
        while let Some(&byte) = bytes.get(passed) {
            if self.rest == 0 {
                self.pass_head(byte);
                passed += 1;
            } else {
                let here =
                    (bytes.len() - passed).min(usize::try_from(self.rest).unwrap_or(usize::MAX));
                self.rest -= here as u64;
                passed += here;
            }
            if self.is_between() {
                break;
            }
        }
        passed
    }

    fn pass_head(&mut self, byte: u8) {
        if let Some(next) = self.head.get_mut(self.filled) {
            *next = byte;
        }
        self.filled += 1;
        let [first, second, length @ ..] = self.head;
        let extended = match second & 0x7f {
            126 => 2,
            127 => 8,
            _ => 0,
        };
        if self.filled < 2 + extended {
            return;
        }
        let masking_key = if second & 0x80 == 0 { 0 } else { 4 };
        let length = match extended {
            0 => u64::from(second & 0x7f),
            _ => length[..extended]
                .iter()
                .fold(0, |length, byte| length << 8 | u64::from(*byte)),
        };
        self.closed |= first & 0x0f == CLOSE;
        self.filled = 0;
        self.rest = length.saturating_add(masking_key);
    }
}

/// The close frame of a server that goes away.
pub(super) fn going_away() -> Vec<u8> {
    [&[0x80 | CLOSE, 2], &GOING_AWAY[..]].concat()
}

/// The same from a client, whose frames are masked.
pub(super) fn masked_going_away() -> Vec<u8> {
    // The payload is no secret: a key that can be guessed does no harm.
    let key = getrandom::u32().unwrap_or_default().to_be_bytes();
    let masked = [GOING_AWAY[0] ^ key[0], GOING_AWAY[1] ^ key[1]];
    [&[0x80 | CLOSE, 0x82], &key[..], &masked[..]].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A binary frame with `length` bytes.
    fn frame(length: usize, masked: bool) -> Vec<u8> {
        let mask = if masked { 0x80 } else { 0 };
        let mut frame = vec![0x82];
        match length {
            0..126 => frame.push(mask | length as u8),
            126..65_536 => {
                frame.push(mask | 126);
                frame.extend((length as u16).to_be_bytes());
            }
            _ => {
                frame.push(mask | 127);
                frame.extend((length as u64).to_be_bytes());
            }
        }
        if masked {
            frame.extend([1, 2, 3, 4]);
        }
        // Looks like heads of frames.
        frame.extend(std::iter::repeat_n(0x88, length));
        frame
    }

    #[test]
    fn ends_of_frames_are_found_in_any_chunks() {
        let lengths = [0, 1, 125, 126, 127, 65_535, 65_536, 3];
        for (masked, chunk) in [false, true]
            .into_iter()
            .flat_map(|m| [(m, 1), (m, 7), (m, 8192)])
        {
            let mut stream = Vec::new();
            let mut ends = vec![0];
            for length in lengths {
                stream.extend(frame(length, masked));
                ends.push(stream.len());
            }
            let mut frames = Frames::default();
            let (mut at, mut found) = (0, vec![0]);
            while at < stream.len() {
                let end = (at + chunk).min(stream.len());
                at += frames.pass_frame(&stream[at..end]);
                if frames.is_between() {
                    found.push(at);
                }
            }
            assert_eq!(found, ends, "{masked} {chunk}");
            assert!(!frames.is_closed());
            let mut whole = Frames::default();
            whole.pass(&stream);
            assert!(whole.is_between());
            whole.pass(&stream[..1]);
            assert!(!whole.is_between());
        }
    }

    #[test]
    fn own_frames_end_the_conversation() {
        for (frame, key) in [(going_away(), None), (masked_going_away(), Some(2))] {
            let mut frames = Frames::default();
            assert_eq!(frames.pass_frame(&frame), frame.len());
            assert!(frames.is_between() && frames.is_closed());
            let unmasked = match key {
                None => [frame[2], frame[3]],
                Some(key) => [frame[6] ^ frame[key], frame[7] ^ frame[key + 1]],
            };
            assert_eq!(u16::from_be_bytes(unmasked), 1001);
        }
    }

    #[test]
    fn absurd_length_is_followed() {
        let mut frames = Frames::default();
        let head = [[0x82, 0xff].as_slice(), &[0xff; 8]].concat();
        frames.pass(&head);
        assert!(!frames.is_between());
        frames.pass(&[0; 100]);
        assert!(!frames.is_between());
    }
}
