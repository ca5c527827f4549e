//! Length-prefixed frames, without I/O: four bytes of length, big-endian, then the content.

use bytes::{BufMut, Bytes, BytesMut};

/// Length of the header in bytes.
const HEADER: usize = 4;
/// Initial allocation for a frame; the announced length is not trusted before the data arrives.
const INITIAL_CAPACITY: usize = 64 << 10;
/// Frames up to this length are copied into one buffer; longer ones are passed on without a copy.
const MAX_COPIED_BYTES: usize = 8 << 10;

/// Why bytes are not valid frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The announced length exceeds the limit.
    #[error("frame of {length} bytes, where {limit} are allowed")]
    TooLong {
        /// The announced length in bytes.
        length: usize,
        /// The limit in bytes.
        limit: usize,
    },
    /// The stream ended within a frame.
    #[error("the stream ended within a frame")]
    Truncated,
}

/// Decodes frames from a byte stream that arrives in chunks of any size.
#[derive(Debug)]
pub struct Decoder {
    limit: usize,
    header: [u8; HEADER],
    /// Bytes of the header that were read.
    have: usize,
    body: Vec<u8>,
    /// Bytes of the body that are missing, once the header is complete.
    missing: usize,
}

impl Decoder {
    /// A decoder of frames of at most `limit` bytes.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self {
            limit,
            header: [0; HEADER],
            have: 0,
            body: Vec::new(),
            missing: 0,
        }
    }

    /// Consumes `input` until a frame is complete or `input` is empty.
    ///
    /// # Errors
    /// [`FrameError::TooLong`]; the stream cannot be decoded any further.
    pub fn decode(&mut self, input: &mut &[u8]) -> Result<Option<Vec<u8>>, FrameError> {
        let header = self.header(input)?;
        Ok(header.and_then(|_| self.body(input)))
    }

    /// Consumes `input` until the header of the present frame is complete or `input` is empty.
    /// Returns the length of the frame once its header is complete.
    ///
    /// # Errors
    /// [`FrameError::TooLong`]; the stream cannot be decoded any further.
    pub fn header(&mut self, input: &mut &[u8]) -> Result<Option<usize>, FrameError> {
        if self.have < HEADER {
            let take = input.len().min(HEADER - self.have);
            let (front, rest) = input.split_at(take);
            self.header[self.have..self.have + take].copy_from_slice(front);
            self.have += take;
            *input = rest;
            if self.have < HEADER {
                return Ok(None);
            }
            let length = self.length();
            if length > self.limit {
                self.have = 0;
                let limit = self.limit;
                return Err(FrameError::TooLong { length, limit });
            }
            self.missing = length;
        }
        Ok(Some(self.length()))
    }

    /// Length of the present frame, whose header is complete.
    fn length(&self) -> usize {
        u32::from_be_bytes(self.header) as usize
    }

    /// Consumes `input`, whose frame has a complete header, until the frame is complete or `input`
    /// is empty.
    pub fn body(&mut self, input: &mut &[u8]) -> Option<Vec<u8>> {
        if self.body.capacity() == 0 {
            self.body = Vec::with_capacity(self.missing.min(INITIAL_CAPACITY));
        }
        let take = input.len().min(self.missing);
        let (front, rest) = input.split_at(take);
        if self.body.capacity() - self.body.len() < take {
            // Doubles the buffer, but never beyond the length of the frame.
            let room = self.body.len().max(take).min(self.missing);
            self.body.reserve_exact(room);
        }
        self.body.extend_from_slice(front);
        self.missing -= take;
        *input = rest;
        if self.missing > 0 {
            return None;
        }
        self.have = 0;
        Some(std::mem::take(&mut self.body))
    }

    /// Checks that the stream may end here.
    ///
    /// # Errors
    /// [`FrameError::Truncated`] if the end is within a frame.
    pub fn finish(&self) -> Result<(), FrameError> {
        if self.have == 0 {
            Ok(())
        } else {
            Err(FrameError::Truncated)
        }
    }
}

/// Encodes frames into few chunks: short frames share a buffer, long ones are not copied.
#[derive(Debug, Default)]
pub struct Batch {
    short: BytesMut,
    parts: Vec<Bytes>,
    bytes: usize,
}

impl Batch {
    /// Adds a frame of at most `u32::MAX` bytes, the longest that the header can express.
    ///
    /// # Errors
    /// [`FrameError::TooLong`].
    pub fn push(&mut self, frame: impl AsRef<[u8]> + Into<Bytes>) -> Result<(), FrameError> {
        self.push_parts(&[], frame)
    }

    /// Adds one frame with the content `prefix` followed by `frame`.
    ///
    /// # Errors
    /// [`FrameError::TooLong`].
    pub fn push_parts(
        &mut self,
        prefix: &[u8],
        frame: impl AsRef<[u8]> + Into<Bytes>,
    ) -> Result<(), FrameError> {
        let length = prefix.len() + frame.as_ref().len();
        let announced = u32::try_from(length).map_err(|_| FrameError::TooLong {
            length,
            limit: u32::MAX as usize,
        })?;
        self.short.put_u32(announced);
        self.short.put_slice(prefix);
        self.bytes += HEADER + length;
        if frame.as_ref().len() <= MAX_COPIED_BYTES {
            self.short.put_slice(frame.as_ref());
        } else {
            self.seal();
            self.parts.push(frame.into());
        }
        Ok(())
    }

    /// Total length of the added frames in bytes, headers included.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Takes the chunks, to be written in order; the batch is empty afterwards.
    #[must_use]
    pub fn take(&mut self) -> Vec<Bytes> {
        self.seal();
        self.bytes = 0;
        std::mem::take(&mut self.parts)
    }

    fn seal(&mut self) {
        if !self.short.is_empty() {
            self.parts.push(self.short.split().freeze());
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn decode_all(decoder: &mut Decoder, pieces: &[Bytes]) -> Result<Vec<Vec<u8>>, FrameError> {
        let mut frames = Vec::new();
        for piece in pieces {
            let mut input = &piece[..];
            // An empty frame needs no input, so the decoder is called again at the end of a chunk.
            while let Some(frame) = decoder.decode(&mut input)? {
                frames.push(frame);
                if input.is_empty() {
                    break;
                }
            }
        }
        Ok(frames)
    }

    #[test]
    fn too_long_frame_is_refused_by_its_header() {
        let mut decoder = Decoder::new(8);
        let mut input = &[0, 0, 0, 9, 1][..];
        let error = decoder.decode(&mut input).unwrap_err();
        assert_eq!(
            error,
            FrameError::TooLong {
                length: 9,
                limit: 8
            }
        );
    }

    #[test]
    fn announced_length_allocates_no_memory() {
        let mut decoder = Decoder::new(usize::MAX);
        let mut input = &[0xff, 0xff, 0xff, 0xff, 1, 2, 3][..];
        assert_eq!(decoder.decode(&mut input).unwrap(), None);
        assert!(decoder.body.capacity() <= INITIAL_CAPACITY);
        assert_eq!(decoder.finish(), Err(FrameError::Truncated));
    }

    proptest! {
        #[test]
        fn frames_survive_any_chunking(
            frames in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..20_000), 0..8),
            cut in 1_usize..5_000,
        ) {
            let mut batch = Batch::default();
            for frame in &frames {
                batch.push(Bytes::from(frame.clone())).unwrap();
            }
            let wire: Vec<u8> = batch.take().concat();
            prop_assert_eq!(batch.bytes(), 0);
            let pieces: Vec<_> = wire.chunks(cut).map(Bytes::copy_from_slice).collect();
            let mut decoder = Decoder::new(20_000);
            prop_assert_eq!(decode_all(&mut decoder, &pieces).unwrap(), frames);
            prop_assert_eq!(decoder.finish(), Ok(()));
        }

        #[test]
        fn arbitrary_bytes_never_panic_or_exceed_the_limit(
            bytes in prop::collection::vec(any::<u8>(), 0..4_000),
            limit in 0_usize..2_000,
        ) {
            let mut decoder = Decoder::new(limit);
            if let Ok(frames) = decode_all(&mut decoder, &[Bytes::from(bytes)]) {
                prop_assert!(frames.iter().all(|frame| frame.len() <= limit));
            }
        }
    }
}
