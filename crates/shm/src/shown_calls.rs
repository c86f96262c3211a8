//! The calls that a rank shows the others, who look at them when they find that theirs is another.
//!
//! A program makes the same few calls again and again, and mostly in the same order. So their signatures are written once, as far as they are agreed on, and each knows
//! which came after it: the next is found at once.

use crate::plan::Plan;
use crate::region::{Region, SIGNATURE_LEN, SIGNATURES};
use phalanx_core::{CallSite, Method, Signature};

/// What one rank shows.
#[derive(Debug, Default)]
pub(crate) struct ShownCalls {
    calls: Vec<Shown>,
    /// Where the running operation's call is in `calls`.
    index: usize,
}

/// A call, and how it is performed.
#[derive(Debug)]
struct Shown {
    /// The call in which it was last shown.
    seq: u64,
    fingerprints: (u64, u64),
    site: CallSite,
    /// With the plan, in words.
    method: Method,
    /// Where the call is that came next when this one last came.
    next: usize,
}

/// A call to be shown.
pub(crate) struct ShownCall<'a> {
    pub(crate) seq: u64,
    /// Those of the call and of the plan.
    pub(crate) fingerprints: (u64, u64),
    pub(crate) signature: &'a Signature,
    pub(crate) plan: Plan<'a>,
}

impl ShownCall<'_> {
    #[inline(always)]
    fn is_shown_by(&self, shown: &Shown) -> bool {
        self.fingerprints == shown.fingerprints && self.signature.site == shown.site
    }
}

impl ShownCalls {
    /// Where the running operation's signature is among those that the rank keeps in the region.
    pub(crate) fn index(&self) -> usize {
        self.index
    }

    /// How the running operation is performed.
    pub(crate) fn method(&self) -> Method {
        self.calls[self.index].method.clone()
    }

    /// Shows `call`, which `rank` performs now.
    #[inline(always)]
    pub(crate) fn show(&mut self, call: &ShownCall<'_>, region: &Region, rank: usize) {
        let expected = self.calls.get(self.index).map_or(0, |shown| shown.next);
        match self.calls.get_mut(expected) {
            Some(shown) if call.is_shown_by(shown) => {
                shown.seq = call.seq;
                self.index = expected;
            }
            _ => self.show_unexpected(call, region, rank),
        }
    }

    #[cold]
    fn show_unexpected(&mut self, call: &ShownCall<'_>, region: &Region, rank: usize) {
        let last = self.index;
        match self.calls.iter().position(|shown| call.is_shown_by(shown)) {
            Some(index) => self.index = index,
            None => self.keep(call, region, rank),
        }
        self.calls[self.index].seq = call.seq;
        self.calls[last].next = self.index;
    }

    fn keep(&mut self, call: &ShownCall<'_>, region: &Region, rank: usize) {
        let &ShownCall { seq, fingerprints, signature, plan } = call;
        let method = signature.method.then(&plan.method());
        let whole = Signature { method: method.clone(), ..signature.clone() };
        let shown = Shown { seq, fingerprints, site: signature.site.clone(), method, next: 0 };
        if self.calls.len() < SIGNATURES {
            self.index = self.calls.len();
            self.calls.push(shown);
        } else {
            // There are more than pieces under way, so nobody looks at the oldest any more.
            let oldest = (0..SIGNATURES).min_by_key(|&i| self.calls[i].seq);
            self.index = oldest.expect("there is room for signatures");
            self.calls[self.index] = shown;
        }
        let mut encoded = [0; SIGNATURE_LEN];
        // The longest call site and way fit; if they should not, the others learn less.
        let _ = postcard::to_slice(&whole, &mut encoded);
        region.control(rank).keep_signature(self.index, &encoded);
    }
}
