//! Backends and transports by name: what `PHALANX_BACKEND` chooses from. Those of this crate are entries like any other.

use crate::control::group_health::GroupHealth;
use crate::group::backend::BackendFactory;
use crate::host::BackendChoice;
use crate::host::choose_backend::HostBackends;
use crate::host::host_context::HostContext;
use crate::host::job_links::{JobLinks, LinksStart, TransportFactory};
use crate::host::own_health::Health;
use phalanx_algo::Selector;
use phalanx_core::{CallSite, Error, GroupId, Peer, Result};
use phalanx_rendezvous::Config;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Arc, LazyLock, PoisonError, RwLock};
use std::time::Duration;

/// What a name in `PHALANX_BACKEND` stands for: how the groups of a job get their backends, and over which links.
pub trait BackendKind: Send + Sync + Debug {
    /// In a few words, for lists: `shared memory between ranks of one host`.
    fn about(&self) -> &str;

    /// Makes the backends of this rank's groups. Called once for each job that the process joins.
    ///
    /// # Errors
    /// This kind does not work here.
    fn factory(&self, job: &JobHandle) -> Result<Arc<dyn BackendFactory>>;

    /// The links of the job. Default: TCP. A kind that delegates to one with links of its own takes them from there: [`backend_kind`].
    ///
    /// # Errors
    /// This rank can't be reached in this way.
    fn links(&self, at: &LinksStart<'_>) -> Result<Box<dyn JobLinks>> {
        Ok(at.tcp())
    }

    /// Whether ranks of one host may have memory in common: then each tells the others where it takes it. Default: yes.
    fn shares_memory(&self) -> bool {
        true
    }
}

/// The transport that the feature `ucx` of the crate `phalanx` registers.
const UCX: &str = "ucx";

type Kinds = BTreeMap<&'static str, Arc<dyn BackendKind>>;

static KINDS: LazyLock<RwLock<Kinds>> = LazyLock::new(|| {
    let own = |name, choice| (name, Arc::new(choice) as Arc<dyn BackendKind>);
    RwLock::new(Kinds::from([
        own("auto", BackendChoice::Auto),
        own("shm", BackendChoice::Shm),
        own("tcp", BackendChoice::Links),
    ]))
});

/// Makes `PHALANX_BACKEND=name` mean `kind` in this process. To be called before [`init`](crate::init), on all ranks.
///
/// # Errors
/// [`Config`](Error::Config) if the name is taken, or is not made of lower-case letters, digits, `-` and `_`.
///
/// # Examples
/// ```
/// use phalanx_core::Result;
/// use phalanx_group::{BackendFactory, BackendKind, JobHandle, backend_kind, register_backend};
/// use std::sync::Arc;
///
/// #[derive(Debug)]
/// struct Mine;
///
/// impl BackendKind for Mine {
///     fn about(&self) -> &str {
///         "a backend of mine"
///     }
///
///     fn factory(&self, job: &JobHandle) -> Result<Arc<dyn BackendFactory>> {
///         Ok(job.over_links()) // or backends of your own
///     }
/// }
///
/// register_backend("mine", Arc::new(Mine))?;
/// assert_eq!(backend_kind("mine")?.about(), "a backend of mine");
/// assert!(register_backend("mine", Arc::new(Mine)).is_err()); // the name is taken
/// # Ok::<(), phalanx_core::Error>(())
/// ```
pub fn register_backend(name: &'static str, kind: Arc<dyn BackendKind>) -> Result<()> {
    let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-_".contains(c);
    if name.is_empty() || !name.chars().all(is_plain) {
        return Err(Error::config(format!(
            "{name:?} can't name a backend: use lower-case letters, digits, - and _"
        )));
    }
    let mut kinds = KINDS.write().unwrap_or_else(PoisonError::into_inner);
    if let Some(other) = kinds.get(name) {
        return Err(Error::config(format!("the backend {name:?} is registered already: {}", other.about())));
    }
    kinds.insert(name, kind);
    Ok(())
}

/// Makes `PHALANX_BACKEND=name` mean that the algorithms of this crate send everything over `transport`.
///
/// # Errors
/// As for [`register_backend`].
///
/// # Examples
/// ```
/// use phalanx_core::Result;
/// use phalanx_group::{JobLinks, LinksStart, TransportFactory, backend_kind, register_transport};
/// use std::sync::Arc;
///
/// #[derive(Debug)]
/// struct Mine;
///
/// impl TransportFactory for Mine {
///     fn start(&self, at: &LinksStart<'_>) -> Result<Box<dyn JobLinks>> {
///         Ok(at.tcp()) // or links of your own
///     }
/// }
///
/// register_transport("mine", Arc::new(Mine))?;
/// assert_eq!(backend_kind("mine")?.about(), "the transport mine for all data");
/// # Ok::<(), phalanx_core::Error>(())
/// ```
pub fn register_transport(name: &'static str, transport: Arc<dyn TransportFactory>) -> Result<()> {
    let about = format!("the transport {name} for all data");
    register_backend(name, Arc::new(OverTransport { about, transport }))
}

/// The names that are registered, in order.
///
/// # Examples
/// ```
/// assert_eq!(phalanx_group::registered_backends(), ["auto", "shm", "tcp"]);
/// ```
pub fn registered_backends() -> Vec<&'static str> {
    KINDS.read().unwrap_or_else(PoisonError::into_inner).keys().copied().collect()
}

/// What is registered under a name.
///
/// # Errors
/// [`Config`](Error::Config), with the names that are registered, and the line that asked.
///
/// # Examples
/// ```
/// use phalanx_group::backend_kind;
///
/// assert_eq!(backend_kind("shm")?.about(), "shared memory only: an error where ranks can't share it");
/// let error = backend_kind("mpi").unwrap_err().to_string();
/// assert!(error.contains(r#"no backend "mpi" is registered in this program, only auto, shm, tcp, at "#), "{error}");
/// # Ok::<(), phalanx_core::Error>(())
/// ```
#[track_caller]
pub fn backend_kind(name: &str) -> Result<Arc<dyn BackendKind>> {
    let site = CallSite::caller();
    find(name).map_err(|unknown| Error::config(format!("{unknown}, at {site}")))
}

/// What the configuration of a job chooses.
///
/// # Errors
/// [`Config`](Error::Config), with the names that are registered.
pub(crate) fn chosen_kind(config: &Config) -> Result<Arc<dyn BackendKind>> {
    find(&config.backend).map_err(|unknown| Error::config(format!("PHALANX_BACKEND: {unknown}")))
}

/// What is registered under a name, or words for that nothing is.
fn find(name: &str) -> Result<Arc<dyn BackendKind>, String> {
    let kinds = KINDS.read().unwrap_or_else(PoisonError::into_inner);
    kinds.get(name).cloned().ok_or_else(|| {
        let known = kinds.keys().copied().collect::<Vec<_>>().join(", ");
        let hint = if name == UCX { ": build phalanx with its feature `ucx`" } else { "" };
        format!("no backend {name:?} is registered in this program, only {known}{hint}")
    })
}

/// This rank's job, as far as a backend needs it.
#[derive(Debug, Clone)]
pub struct JobHandle {
    context: Arc<dyn HostContext>,
    selector: Arc<Selector>,
}

impl JobHandle {
    pub(crate) fn new(context: Arc<dyn HostContext>, selector: Arc<Selector>) -> Self {
        Self { context, selector }
    }

    /// This rank in the job.
    ///
    /// # Examples
    /// ```
    /// # use phalanx_core::Result;
    /// # use phalanx_group::{BackendFactory, BackendKind, JobHandle};
    /// # use std::sync::Arc;
    /// # #[derive(Debug)]
    /// # struct Mine;
    /// impl BackendKind for Mine {
    ///     # fn about(&self) -> &str { "a backend of mine" }
    ///     fn factory(&self, job: &JobHandle) -> Result<Arc<dyn BackendFactory>> {
    ///         println!("rank {} begins", job.rank());
    ///         # assert!(job.rank() < 1);
    ///         Ok(job.over_links())
    ///     }
    /// }
    /// # phalanx_group::register_backend("mine", Arc::new(Mine))?;
    /// # let mut config = phalanx_rendezvous::Config::from_lookup(|_| None)?;
    /// # config.backend = "mine".into();
    /// # phalanx_group::join(&config)?.finalize()?;
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn rank(&self) -> usize {
        self.context.place().rank
    }

    /// How many ranks the job has.
    ///
    /// # Examples
    /// ```
    /// # use phalanx_core::Result;
    /// # use phalanx_group::{BackendFactory, BackendKind, JobHandle};
    /// # use std::sync::Arc;
    /// # #[derive(Debug)]
    /// # struct Mine;
    /// impl BackendKind for Mine {
    ///     # fn about(&self) -> &str { "a backend of mine" }
    ///     fn factory(&self, job: &JobHandle) -> Result<Arc<dyn BackendFactory>> {
    ///         assert!(job.rank() < job.world_size());
    ///         Ok(job.over_links())
    ///     }
    /// }
    /// # phalanx_group::register_backend("mine", Arc::new(Mine))?;
    /// # let mut config = phalanx_rendezvous::Config::from_lookup(|_| None)?;
    /// # config.backend = "mine".into();
    /// # phalanx_group::join(&config)?.finalize()?;
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn world_size(&self) -> usize {
        self.context.place().world_size
    }

    /// How long an operation may take unless the call says otherwise.
    ///
    /// # Examples
    /// ```
    /// # use phalanx_core::Result;
    /// # use phalanx_group::{BackendFactory, BackendKind, JobHandle};
    /// # use std::sync::Arc;
    /// # #[derive(Debug)]
    /// # struct Mine;
    /// impl BackendKind for Mine {
    ///     # fn about(&self) -> &str { "a backend of mine" }
    ///     fn factory(&self, job: &JobHandle) -> Result<Arc<dyn BackendFactory>> {
    ///         println!("an operation may take {:?}", job.timeout());
    ///         # assert_eq!(job.timeout().as_secs(), 600);
    ///         Ok(job.over_links())
    ///     }
    /// }
    /// # phalanx_group::register_backend("mine", Arc::new(Mine))?;
    /// # let mut config = phalanx_rendezvous::Config::from_lookup(|_| None)?;
    /// # config.backend = "mine".into();
    /// # phalanx_group::join(&config)?.finalize()?;
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn timeout(&self) -> Duration {
        self.context.place().timeout
    }

    /// A rank of the job, as errors name it.
    ///
    /// # Panics
    /// If there is no such rank.
    ///
    /// # Examples
    /// ```
    /// # use phalanx_core::Result;
    /// # use phalanx_group::{BackendFactory, BackendKind, JobHandle};
    /// # use std::sync::Arc;
    /// # #[derive(Debug)]
    /// # struct Mine;
    /// impl BackendKind for Mine {
    ///     # fn about(&self) -> &str { "a backend of mine" }
    ///     fn factory(&self, job: &JobHandle) -> Result<Arc<dyn BackendFactory>> {
    ///         println!("{} is reached", job.peer(0)); // rank 0 (node7:4211)
    ///         # assert_eq!(job.peer(0).rank, 0);
    ///         Ok(job.over_links())
    ///     }
    /// }
    /// # phalanx_group::register_backend("mine", Arc::new(Mine))?;
    /// # let mut config = phalanx_rendezvous::Config::from_lookup(|_| None)?;
    /// # config.backend = "mine".into();
    /// # phalanx_group::join(&config)?.finalize()?;
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn peer(&self, rank: usize) -> Peer {
        self.context.peer(rank)
    }

    /// A key for connections that a backend makes itself, of `purpose` and the job's secret, which can't be found from it. All ranks of the job have the
    /// same, for this start of it and these survivors, and nobody else has it. Whoever connects should prove that it knows it. Treat it like a password: it belongs into no
    /// argument, log or error. It is the key that [`LinksStart::secret`] gives for the same purpose.
    ///
    /// # Errors
    /// [`Unavailable`](Error::Unavailable) where ranks are threads, which need no secret, and the system has no randomness to make one.
    ///
    /// # Examples
    /// ```
    /// # use phalanx_core::Result;
    /// # use phalanx_group::{BackendFactory, BackendKind, JobHandle};
    /// # use std::sync::Arc;
    /// # #[derive(Debug)]
    /// # struct Mine;
    /// impl BackendKind for Mine {
    ///     # fn about(&self) -> &str { "a backend of mine" }
    ///     fn factory(&self, job: &JobHandle) -> Result<Arc<dyn BackendFactory>> {
    ///         let key: [u8; 32] = job.key("connections of mine")?; // for an HMAC over what both ends have sent
    ///         # assert_ne!(key, job.key("other connections")?);
    ///         Ok(job.over_links()) // or backends that connect with it
    ///     }
    /// }
    /// # phalanx_group::register_backend("mine", Arc::new(Mine))?;
    /// # let mut config = phalanx_rendezvous::Config::from_lookup(|_| None)?;
    /// # config.backend = "mine".into();
    /// # phalanx_group::join(&config)?.finalize()?;
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn key(&self, purpose: &str) -> Result<[u8; 32]> {
        Ok(self.context.secret()?.key_bytes_for(purpose))
    }

    /// The health of a group, for a backend that performs its operations itself and does not delegate to one of this crate's. `members` are ranks of the
    /// job, in group order, and this rank is one of them: what [`BackendFactory::create`] is given. One for each group.
    ///
    /// # Panics
    /// If this rank is not among the members.
    ///
    /// # Examples
    /// ```
    /// # use phalanx_core::GroupId;
    /// # use phalanx_group::{Health, JobHandle};
    /// // In `BackendFactory::create`, with what it is given:
    /// fn create(job: &JobHandle, id: GroupId, members: Vec<usize>) -> Health {
    ///     job.health(id, members)
    /// }
    /// ```
    pub fn health(&self, id: GroupId, members: Vec<usize>) -> Health {
        Health::new(GroupHealth::new(self.context.clone(), id, members))
    }

    /// Backends that send everything over the job's [links](BackendKind::links), by this crate's algorithms.
    ///
    /// # Examples
    /// ```
    /// # use phalanx_core::Result;
    /// # use phalanx_group::{BackendFactory, BackendKind, JobHandle};
    /// # use std::sync::Arc;
    /// # #[derive(Debug)]
    /// # struct Mine;
    /// impl BackendKind for Mine {
    ///     # fn about(&self) -> &str { "a backend of mine" }
    ///     fn factory(&self, job: &JobHandle) -> Result<Arc<dyn BackendFactory>> {
    ///         // All data go over links, whatever this rank shares with others.
    ///         Ok(job.over_links())
    ///     }
    /// }
    /// # phalanx_group::register_backend("mine", Arc::new(Mine))?;
    /// # let mut config = phalanx_rendezvous::Config::from_lookup(|_| None)?;
    /// # config.backend = "mine".into();
    /// # phalanx_group::join(&config)?.finalize()?;
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn over_links(&self) -> Arc<dyn BackendFactory> {
        Arc::new(HostBackends::new(self.context.clone(), BackendChoice::Links, self.selector.clone()))
    }
}

impl BackendKind for BackendChoice {
    fn about(&self) -> &str {
        match self {
            Self::Auto => "shared memory between ranks of one host, TCP for the rest",
            Self::Shm => "shared memory only: an error where ranks can't share it",
            Self::Links => "TCP for all data, also between ranks of one host",
        }
    }

    fn factory(&self, job: &JobHandle) -> Result<Arc<dyn BackendFactory>> {
        Ok(Arc::new(HostBackends::new(job.context.clone(), *self, job.selector.clone())))
    }

    fn shares_memory(&self) -> bool {
        match self {
            Self::Auto | Self::Shm => true,
            Self::Links => false,
        }
    }
}

/// A registered transport as a kind of backend.
#[derive(Debug)]
struct OverTransport {
    about: String,
    transport: Arc<dyn TransportFactory>,
}

impl BackendKind for OverTransport {
    fn about(&self) -> &str {
        &self.about
    }

    fn factory(&self, job: &JobHandle) -> Result<Arc<dyn BackendFactory>> {
        Ok(job.over_links())
    }

    fn links(&self, at: &LinksStart<'_>) -> Result<Box<dyn JobLinks>> {
        at.by(&*self.transport)
    }

    fn shares_memory(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_taken_once_and_plain() {
        for (name, words) in [
            ("tcp", "the backend \"tcp\" is registered already: TCP for all data"),
            ("", "\"\" can't name a backend"),
            ("UCX", "\"UCX\" can't name a backend: use lower-case letters"),
            ("a b", "\"a b\" can't name a backend"),
        ] {
            let error = register_backend(name, Arc::new(BackendChoice::Auto)).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
        register_backend("another-auto", Arc::new(BackendChoice::Auto)).unwrap();
        assert!(registered_backends().contains(&"another-auto"));
        let error = crate::join(&config("ucx")).unwrap_err().to_string();
        assert!(
            error.starts_with("configuration: PHALANX_BACKEND: no backend \"ucx\"")
                && error.contains("another-auto, auto, shm, tcp: build phalanx with its feature `ucx`"),
            "{error}"
        );
        let (line, error) = (line!(), backend_kind("ucx").unwrap_err().to_string());
        assert!(error.starts_with("configuration: no backend \"ucx\""), "no variable chose it: {error}");
        assert!(error.ends_with(&format!("backend_registry.rs:{line}")), "{error}");
        let group = crate::join(&config("another-auto")).unwrap();
        assert_eq!(group.describe(), "alone: 1 rank, nothing is sent");
    }

    fn config(backend: &str) -> phalanx_rendezvous::Config {
        let lookup = |name: &str| (name == "PHALANX_BACKEND").then(|| backend.to_owned());
        phalanx_rendezvous::Config::from_lookup(lookup).unwrap()
    }
}
