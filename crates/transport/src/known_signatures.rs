//! Signatures that went over a link before. A loop makes the same calls again and again, so each signature goes over once, to be kept at a place
//! that the sender chooses; afterwards its place is enough.

/// How many are kept for a direction of a link: a loop sends a few kinds of messages.
const PLACES: usize = 4;

/// What a header says of the signature of its call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mention {
    /// Nothing: the frame is not the first of its operation.
    Nothing,
    /// It follows, to be kept at this place.
    New(u8),
    /// It is at this place since an earlier frame.
    Known(u8),
}

impl Mention {
    #[inline]
    pub(crate) fn encode(self) -> u8 {
        match self {
            Self::Nothing => 0,
            Self::New(place) => 0x40 | place,
            Self::Known(place) => 0x80 | place,
        }
    }

    /// `None` for what no header says.
    #[inline]
    pub(crate) fn decode(byte: u8) -> Option<Self> {
        let place = byte & 0x3f;
        match byte >> 6 {
            0 if place == 0 => Some(Self::Nothing),
            1 if usize::from(place) < PLACES => Some(Self::New(place)),
            2 if usize::from(place) < PLACES => Some(Self::Known(place)),
            _ => None,
        }
    }
}

/// The latest signatures of one direction of a link, the same at both ends. Each is not empty.
#[derive(Debug, Default)]
pub(crate) struct KnownSignatures {
    places: Vec<Vec<u8>>,
    /// Where the sender keeps the next one.
    next: usize,
}

impl KnownSignatures {
    /// How the sender mentions a signature. It is known once it [was sent](Self::sent).
    #[inline]
    pub(crate) fn mention(&self, signature: &[u8]) -> Mention {
        if signature.is_empty() {
            return Mention::Nothing;
        }
        match self.places.iter().position(|known| known == signature) {
            Some(place) => Mention::Known(place as u8),
            None => Mention::New(self.next as u8),
        }
    }

    /// A frame was sent that mentions this signature.
    #[inline]
    pub(crate) fn sent(&mut self, mention: Mention, signature: &[u8]) {
        if let Mention::New(place) = mention {
            self.next = (usize::from(place) + 1) % PLACES;
            self.keep(place.into(), signature);
        }
    }

    /// A frame came that mentions a signature, with these bytes of it; an error says what is wrong with them.
    #[inline]
    pub(crate) fn mentioned(&mut self, mention: Mention, came: &[u8]) -> Result<(), String> {
        match mention {
            Mention::Nothing if came.is_empty() => {}
            Mention::New(place) if !came.is_empty() && usize::from(place) <= self.places.len() => {
                self.keep(place.into(), came);
            }
            Mention::Known(place) if came.is_empty() && usize::from(place) < self.places.len() => {}
            _ => {
                return Err(format!(
                    "a frame with {} bytes of a signature that says {mention:?}",
                    came.len()
                ));
            }
        }
        Ok(())
    }

    /// The signature at the place of a mention, until another comes that is to be kept there.
    pub(crate) fn at(&self, mention: Mention) -> &[u8] {
        match mention {
            Mention::Nothing => &[],
            Mention::New(place) | Mention::Known(place) => {
                self.places.get(usize::from(place)).map_or(&[], Vec::as_slice)
            }
        }
    }

    fn keep(&mut self, place: usize, signature: &[u8]) {
        if place == self.places.len() {
            self.places.push(Vec::new());
        }
        let kept = &mut self.places[place];
        kept.clear();
        kept.extend_from_slice(signature);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signature_goes_over_once_unless_many_others_came_since() {
        let (mut sender, mut receiver) = (KnownSignatures::default(), KnownSignatures::default());
        let calls = [1, 2, 1, 1, 3, 4, 5, 1, 2, 5, 4];
        let mut went = Vec::new();
        for call in calls {
            let signature = vec![call; usize::from(call)];
            let mention = sender.mention(&signature);
            assert_eq!(sender.mention(&signature), mention, "it was not sent yet");
            sender.sent(mention, &signature);
            assert_eq!(Mention::decode(mention.encode()), Some(mention));
            let is_new = matches!(mention, Mention::New(_));
            let came = if is_new { &signature[..] } else { &[] };
            assert_eq!(receiver.mentioned(mention, came), Ok(()));
            assert_eq!(receiver.at(mention), signature);
            went.extend(is_new.then_some(call));
        }
        assert_eq!(went, [1, 2, 3, 4, 5, 1, 2], "4 places are filled in turn");
        assert_eq!(sender.mention(&[]), Mention::Nothing);
        assert_eq!(receiver.mentioned(Mention::Nothing, &[]), Ok(()));
        assert!(receiver.at(Mention::Nothing).is_empty());
    }

    #[test]
    fn what_no_correct_peer_says_is_refused() {
        let refused = |mention, came: &[u8]| KnownSignatures::default().mentioned(mention, came).is_err();
        assert!(refused(Mention::Known(0), &[]) && refused(Mention::New(0), &[]));
        assert!(refused(Mention::New(1), &[7]) && refused(Mention::Nothing, &[7]));
        for byte in [1, 0x44, 0x84, 0x7f, 0xc0, 0xff] {
            assert_eq!(Mention::decode(byte), None, "{byte:#x}");
        }
    }
}
