//! How the processes of another launcher's job meet without a variable: one of them says a few words, and all hear them.

use crate::shared_file::SharedFile;
use phalanx_core::Deadline;
use phalanx_pmi::Fault;
use std::fmt;

/// The word under which rank 0 speaks.
const KEY: &str = "phalanx";

/// A way in which rank 0 of a job can say a few words to all its processes before they know each other. It is as safe as the launcher's own
/// connections, or as the directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Channel {
    /// PMI-1 over this descriptor, which the launcher left open.
    Pmi(i32),
    /// PMIx, by its library.
    Pmix,
    /// A private file in a directory that all hosts see.
    File(SharedFile),
}

impl fmt::Display for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pmi(descriptor) => write!(f, "PMI over descriptor {descriptor}"),
            Self::Pmix => f.write_str("PMIx"),
            Self::File(file) => write!(f, "the file {}", file.path().display()),
        }
    }
}

impl Channel {
    /// Says `words`, those of rank 0, to all, or hears them. A file is heard by those who come later too; the other channels once, by all.
    pub(crate) fn share(
        &self,
        rank: usize,
        words: Option<&str>,
        deadline: &Deadline,
    ) -> Result<String, Fault> {
        if !matches!(self, Self::File(_))
            && let Some(mpi) = phalanx_pmi::loaded_mpi()
        {
            return Err(Fault::Unusable(format!(
                "MPI is in this process ({mpi}) and speaks to the launcher itself"
            )));
        }
        match (self, words) {
            (Self::File(file), Some(words)) => file.write(words).map(|()| words.to_owned()),
            (Self::File(file), None) => file.read(deadline),
            #[cfg(unix)]
            (Self::Pmi(descriptor), words) => phalanx_pmi::pmi::share(*descriptor, KEY, words, deadline),
            #[cfg(unix)]
            (Self::Pmix, words) => phalanx_pmi::pmix::share(rank as u32, KEY, words, deadline),
            #[cfg(not(unix))]
            _ => Err(Fault::Unusable(format!("{KEY} uses it on Unix only (rank {rank})"))),
        }
    }
}
