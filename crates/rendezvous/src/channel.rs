//! How the processes of another launcher's job meet without a variable: one of them says a few words, and all hear them.

use crate::shared_file::SharedFile;
use phalanx_core::Deadline;
use phalanx_pmi::Fault;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

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
    /// A way of the program's own.
    Own(OwnChannel),
}

/// A way of the program's own in which rank 0's words reach the others, as a store that some other library has there already.
///
/// Two are equal if they are clones of each other.
#[derive(Clone)]
pub struct OwnChannel {
    name: String,
    share: Arc<Share>,
}

/// Told what rank 0 says, on rank 0, and how long that may take; returns what rank 0 has said, or why nobody knows.
type Share = dyn Fn(Option<&str>, Duration) -> Result<String, String> + Send + Sync;

impl OwnChannel {
    /// A channel of this name, which errors say. `share` is called once on each rank: on rank 0 with the words that the others must get, elsewhere with
    /// none; it returns these words, or says what went wrong, within the given time. They hold the job's secret, so nobody else may read them.
    ///
    /// # Examples
    /// ```
    /// use phalanx_rendezvous::{MemoryStore, OwnChannel, Store};
    /// use std::sync::Arc;
    /// use std::time::Instant;
    ///
    /// let store = Arc::new(MemoryStore::new());
    /// let channel = OwnChannel::new("the program's store", move |words, limit| {
    ///     let done = match words {
    ///         Some(words) => store.set("phalanx", words.as_bytes()).map(|()| words.as_bytes().to_vec()),
    ///         None => store.get("phalanx", &phalanx_core::Deadline::after(Instant::now(), limit)),
    ///     };
    ///     done.map(|words| String::from_utf8_lossy(&words).into_owned()).map_err(|error| error.to_string())
    /// });
    /// assert_eq!(format!("{channel:?}"), "OwnChannel(\"the program's store\")");
    /// ```
    pub fn new(
        name: impl Into<String>,
        share: impl Fn(Option<&str>, Duration) -> Result<String, String> + Send + Sync + 'static,
    ) -> Self {
        Self { name: name.into(), share: Arc::new(share) }
    }
}

impl fmt::Debug for OwnChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("OwnChannel").field(&self.name).finish()
    }
}

impl PartialEq for OwnChannel {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.share, &other.share)
    }
}

impl Eq for OwnChannel {}

impl fmt::Display for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pmi(descriptor) => write!(f, "PMI over descriptor {descriptor}"),
            Self::Pmix => f.write_str("PMIx"),
            Self::File(file) => write!(f, "the file {}", file.path().display()),
            Self::Own(own) => f.write_str(&own.name),
        }
    }
}

impl Channel {
    /// Says `words`, those of rank 0, to all, or hears them. A file is heard by those who come later too; a launcher's channel once, by all.
    pub(crate) fn share(
        &self,
        rank: usize,
        words: Option<&str>,
        deadline: &Deadline,
    ) -> Result<String, Fault> {
        if matches!(self, Self::Pmi(_) | Self::Pmix)
            && let Some(mpi) = phalanx_pmi::loaded_mpi()
        {
            return Err(Fault::Unusable(format!(
                "MPI is in this process ({mpi}) and speaks to the launcher itself"
            )));
        }
        match (self, words) {
            (Self::File(file), Some(words)) => file.write(words).map(|()| words.to_owned()),
            (Self::File(file), None) => file.read(deadline),
            (Self::Own(own), words) => {
                let limit = deadline.remaining(Instant::now());
                (own.share)(words, limit).map_err(Fault::Unusable)
            }
            #[cfg(unix)]
            (Self::Pmi(descriptor), words) => phalanx_pmi::pmi::share(*descriptor, KEY, words, deadline),
            #[cfg(unix)]
            (Self::Pmix, words) => phalanx_pmi::pmix::share(rank as u32, KEY, words, deadline),
            #[cfg(not(unix))]
            _ => Err(Fault::Unusable(format!("{KEY} uses it on Unix only (rank {rank})"))),
        }
    }
}
