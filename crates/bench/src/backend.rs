//! The backends that can be measured.

use serde::Serialize;

/// Ranks that are threads of one process: no process could choose that.
const THREAD: &str = "thread";

/// The backend that carries the data: one that is [registered](phalanx::backend::registered_backends), or threads of one process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct Backend(&'static str);

impl Backend {
    /// The one that `phalanx::init()` chooses.
    pub const AUTO: Self = Self("auto");
    /// Threads of one process.
    pub const THREAD: Self = Self(THREAD);
    /// TCP between processes.
    pub const TCP: Self = Self("tcp");

    /// All there are, in this program.
    fn all() -> impl Iterator<Item = &'static str> {
        phalanx::backend::registered_backends().into_iter().chain([THREAD])
    }

    pub(crate) fn name(self) -> &'static str {
        self.0
    }
}

/// Parses what `--backend` takes.
pub(crate) fn backend(name: &str) -> Result<Backend, String> {
    Backend::all().find(|known| *known == name).map(Backend).ok_or_else(|| {
        format!(
            "no such backend is registered in this program, only {}",
            Backend::all().collect::<Vec<_>>().join(", ")
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_registered_can_be_measured() {
        assert_eq!(backend("auto"), Ok(Backend::AUTO));
        assert_eq!(backend("thread"), Ok(Backend::THREAD));
        assert_eq!(backend("shm").unwrap().name(), "shm");
        // More may be registered where another crate of the build has a feature for it.
        let error = backend("none").unwrap_err();
        let whole = error.starts_with("no such backend is registered in this program, only auto, shm, tcp, ");
        assert!(whole && error.ends_with("thread"), "{error}");
    }
}
