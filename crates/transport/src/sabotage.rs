//! Mechanisms that the simulation breaks on purpose, to see that it notices. Nothing can be broken without the feature
//! `__simulation`, which only tests of this workspace turn on.

/// A mechanism that can be broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mechanism {
    /// Of two ranks that call each other at once, one gives way.
    Crossing,
    /// A link for a group that does not exist here yet is kept for it.
    EarlyLinks,
    /// A call ends when its time is over.
    Deadline,
    /// A frame is used only where the call that sent it was the same as the one that takes it.
    Fingerprint,
    /// A rank that notices trouble asks the arbiter what came first.
    FirstCause,
    /// A caller proves that it knows the secret.
    Handshake,
    /// A frame goes to the operation it is for.
    Tag,
    /// A worker that announces itself while another does so tries again.
    Announcement,
    /// Of the rosters that are proposed for a generation, the first one counts.
    FirstProposal,
    /// A worker shows that it lives while a generation forms.
    Beat,
    /// A worker without which a generation has formed is out.
    Latecomer,
}

#[cfg(feature = "__simulation")]
std::thread_local! {
    static BROKEN: std::cell::Cell<Option<Mechanism>> = const { std::cell::Cell::new(None) };
}

/// Whether this mechanism is broken on this thread.
#[cfg(feature = "__simulation")]
pub fn breaks(mechanism: Mechanism) -> bool {
    BROKEN.get() == Some(mechanism)
}

/// Never.
#[cfg(not(feature = "__simulation"))]
#[inline(always)]
pub const fn breaks(_mechanism: Mechanism) -> bool {
    false
}

/// Breaks a mechanism on this thread, or repairs all.
#[cfg(feature = "__simulation")]
pub fn sabotage(mechanism: Option<Mechanism>) {
    BROKEN.set(mechanism);
}
