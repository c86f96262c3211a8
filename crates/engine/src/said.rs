//! What a rank says of its calls.

use phalanx_core::Signature;
use phalanx_transport::encode_signature;

/// A call's signature as the other side must see it. A loop sends the same call again and again, so it is encoded once.
#[derive(Debug, Default)]
pub(crate) struct Said {
    latest: Option<(Signature, u64, Vec<u8>)>,
}

impl Said {
    /// The fingerprint of a call, and its signature in the form in which it is sent.
    pub(crate) fn of(&mut self, call: &Signature) -> (u64, &[u8]) {
        let is_known = self.latest.as_ref().is_some_and(|(known, ..)| known == call);
        if !is_known {
            self.latest = Some((call.clone(), call.fingerprint(), encode_signature(call)));
        }
        self.latest.as_ref().map_or((0, &[]), |(_, fingerprint, encoded)| (*fingerprint, encoded))
    }
}
