//! Meeting over a file, for programs that have no process group.

use crate::comm::Communicator;
use crate::device::Device;
use crate::id::UniqueId;
use crate::load::Nccl;
use phalanx_core::{Deadline, Error, Result};
use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// How often a rank looks for the file.
const INTERVAL: Duration = Duration::from_millis(10);
/// How long an id that has failed must be gone until it is clear that rank 0 has ended, and none is about to begin.
const GONE_TIME: Duration = Duration::from_secs(2);

/// Which rank of a communicator to be, and the file over which its ranks meet, in a folder that all of them see.
///
/// Rank 0 writes NCCL's id there, in one piece, so that only its user can read it, and removes it when all have come, or it has given up. A file that is left of
/// an earlier run does no harm: who has read it, and whatever came of that, goes on when rank 0 writes.
///
/// In a job with a [`ProcessGroup`](phalanx_group::ProcessGroup) none of this is needed: [`NcclGroup::new`](crate::NcclGroup::new) sends the id over
/// the group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DistributedConfig {
    /// Ranks of the communicator.
    pub world_size: usize,
    /// This rank, below `world_size`.
    pub rank: usize,
    /// The file with the id.
    pub comm_file: PathBuf,
}

impl DistributedConfig {
    /// Joins the communicator with `device`. All ranks must come within `timeout`.
    ///
    /// # Errors
    /// [`Rendezvous`](Error::Rendezvous): they did not. [`Io`](Error::Io): the file can't be written or read. Those of
    /// [`Communicator::init`].
    ///
    /// # Examples
    /// ```
    /// use phalanx_nccl::{Cuda, Device, DistributedConfig, Nccl};
    /// use std::time::Duration;
    ///
    /// # phalanx_nccl_double::stand_in();
    /// # let folder = tempfile::tempdir().unwrap();
    /// let config = DistributedConfig { world_size: 1, rank: 0, comm_file: folder.path().join("job-7") };
    /// let limit = Duration::from_secs(60);
    /// let comm = config.connect(Nccl::load()?, &Device::open(Cuda::load()?, 0)?, limit)?;
    /// assert!(!config.comm_file.exists()); // all have come
    /// # comm.finalize(limit)?;
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn connect(&self, nccl: Nccl, device: &Device, timeout: Duration) -> Result<Communicator> {
        let deadline = Deadline::after(Instant::now(), timeout);
        if self.rank == 0 {
            let id = UniqueId::new(nccl)?;
            self.write(&id)?;
            let comm = self.init(|| Ok(()), nccl, device, &id, &deadline);
            // Whether it is there any more does not matter to anybody.
            let _ = fs::remove_file(&self.comm_file);
            return comm;
        }
        // What came of the id that was found last.
        let mut failed: Option<(UniqueId, Error)> = None;
        loop {
            let id = self.wait(failed.as_ref(), &deadline)?;
            let is_another = || matches!(self.read(), Ok(Some(other)) if other.as_bytes() != id.as_bytes());
            let is_wanted =
                || if is_another() { Err(self.late("another id came", &deadline)) } else { Ok(()) };
            match self.init(is_wanted, nccl, device, &id, &deadline) {
                // That may have been of an earlier run.
                Err(error @ (Error::Library { .. } | Error::Rendezvous { .. }))
                    if !deadline.has_passed(Instant::now()) =>
                {
                    failed = Some((id, error));
                }
                outcome => return outcome,
            }
        }
    }

    fn init(
        &self,
        is_wanted: impl Fn() -> Result<()>,
        nccl: Nccl,
        device: &Device,
        id: &UniqueId,
        deadline: &Deadline,
    ) -> Result<Communicator> {
        let left = deadline.remaining(Instant::now());
        Communicator::init_while(is_wanted, nccl, device, id, self.rank, self.world_size, left)
    }

    fn write(&self, id: &UniqueId) -> Result<()> {
        let mut name = self.comm_file.as_os_str().to_owned();
        name.push(format!(".{}", std::process::id()));
        let new = PathBuf::from(name);
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let written = options.open(&new).and_then(|mut file| file.write_all(id.as_bytes()));
        written
            .and_then(|()| fs::rename(&new, &self.comm_file))
            .map_err(|e| Error::io(format!("writing NCCL's id to {}", self.comm_file.display()), e))
    }

    fn read(&self) -> Result<Option<UniqueId>> {
        match fs::read(&self.comm_file) {
            Ok(bytes) => Ok(bytes.try_into().ok().map(UniqueId::from_bytes)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => {
                Err(Error::io(format!("reading NCCL's id from {}", self.comm_file.display()), error))
            }
        }
    }

    /// An id that is not the one that has failed. There will be none where rank 0 has removed that one, as it does when it ends: unless it
    /// was one of an earlier run.
    fn wait(&self, failed: Option<&(UniqueId, Error)>, deadline: &Deadline) -> Result<UniqueId> {
        let mut gone_since = None;
        loop {
            match (self.read()?, failed) {
                (Some(id), Some((old, _))) if old.as_bytes() == id.as_bytes() => {}
                (Some(id), _) => return Ok(id),
                (None, Some((_, error))) => {
                    if gone_since.get_or_insert_with(Instant::now).elapsed() > GONE_TIME {
                        return Err(error.clone());
                    }
                }
                (None, None) => {}
            }
            if deadline.has_passed(Instant::now()) {
                return Err(match failed {
                    Some((_, error)) => {
                        let what = format!(
                            "the id there is of no use ({error}), and rank 0 has not written another"
                        );
                        self.late(&what, deadline)
                    }
                    None => self.late("rank 0 has not written NCCL's id", deadline),
                });
            }
            std::thread::sleep(INTERVAL);
        }
    }

    fn late(&self, what: &str, deadline: &Deadline) -> Error {
        let Self { world_size, rank, comm_file } = self;
        let what = format!("{what} to {}", comm_file.display());
        Error::Rendezvous {
            rank: *rank,
            world_size: *world_size,
            what,
            waited: deadline.elapsed(Instant::now()),
        }
    }
}
