//! What a rank says of its calls.

use phalanx_core::{CallSite, Signature};
use phalanx_transport::encode_signature;

/// A call's signature as the other side must see it. A loop sends the same call again and again, so it is encoded once.
#[derive(Debug, Default)]
pub(crate) struct Said {
    latest: Option<Latest>,
}

#[derive(Debug)]
struct Latest {
    fingerprint: u64,
    site: CallSite,
    encoded: Vec<u8>,
}

impl Said {
    /// The fingerprint of a call, and its signature in the form in which it is sent.
    #[inline]
    pub(crate) fn of(&mut self, call: &Signature) -> (u64, &[u8]) {
        let fingerprint = call.fingerprint();
        let is_same = |latest: &Latest| latest.fingerprint == fingerprint && latest.site == call.site;
        if !self.latest.as_ref().is_some_and(is_same) {
            let (site, encoded) = (call.site.clone(), encode_signature(call));
            self.latest = Some(Latest { fingerprint, site, encoded });
        }
        (fingerprint, self.latest.as_ref().map_or(&[], |latest| &latest.encoded))
    }
}
