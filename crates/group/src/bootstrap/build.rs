//! The build of a process, as far as ranks must be alike in it.

use phalanx_transport::handshake::VERSION;
#[cfg(test)]
use std::cell::RefCell;

/// The build: what makes a process do otherwise than another that has the same settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Build {
    /// The release, and what its algorithms do.
    pub(crate) name: String,
    /// The version of what goes over the wire. Who has another seldom comes so far that this is compared.
    pub(crate) protocol: u16,
    /// Elements travel as they lie in memory.
    pub(crate) is_little_endian: bool,
}

#[cfg(test)]
thread_local! {
    /// The build that a rank pretends to be, in tests whose ranks are threads.
    pub(crate) static PRETENDED: RefCell<Option<Build>> = const { RefCell::new(None) };
}

impl Build {
    /// The build of this process.
    pub(crate) fn here() -> Self {
        #[cfg(test)]
        if let Some(pretended) = PRETENDED.take() {
            return pretended;
        }
        let schedules = phalanx_algo::fingerprint() as u32;
        let name = format!("phalanx {} (schedules {schedules:08x})", env!("CARGO_PKG_VERSION"));
        Self { name, protocol: VERSION, is_little_endian: cfg!(target_endian = "little") }
    }

    /// Names and values, for the [settings of this rank](super::own_settings).
    pub(crate) fn settings(self) -> [(&'static str, String); 3] {
        let order = if self.is_little_endian { "little-endian" } else { "big-endian" };
        [("build", self.name), ("wire version", self.protocol.to_string()), ("byte order", order.into())]
    }
}
