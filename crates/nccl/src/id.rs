//! NCCL's unique id: how the ranks of a communicator find each other.

use crate::blocking;
use crate::load::Nccl;
use crate::sys::nccl::RawId;
use phalanx_core::Result;
use std::fmt;

/// The id that all ranks of a new communicator must have.
#[derive(Clone, Copy)]
pub struct UniqueId(pub(crate) RawId);

impl fmt::Debug for UniqueId {
    /// Not the bytes: with them anybody could join.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("UniqueId")
    }
}

impl UniqueId {
    /// Bytes it has.
    pub const LEN: usize = 128;

    /// A new one. This process listens for the others from now on.
    ///
    /// # Errors
    /// [`Library`](phalanx_core::Error::Library): NCCL found no network interface, say. [`Config`](phalanx_core::Error::Config): `NCCL_COMM_BLOCKING` says that
    /// NCCL is to wait for ever.
    ///
    /// # Examples
    /// ```
    /// use phalanx_nccl::{Nccl, UniqueId};
    ///
    /// # phalanx_nccl_double::stand_in();
    /// let nccl = Nccl::load()?;
    /// assert_ne!(UniqueId::new(nccl)?.as_bytes(), UniqueId::new(nccl)?.as_bytes());
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn new(nccl: Nccl) -> Result<Self> {
        let mut id = RawId([0; Self::LEN]);
        nccl.all_is_well(None);
        // SAFETY: `id` is good for one.
        let code = unsafe { (nccl.table().get_unique_id)(&raw mut id) };
        nccl.check("ncclGetUniqueId", code, None)?;
        // Before the others have the id, and wait inside NCCL.
        blocking::refuse()?;
        Ok(Self(id))
    }

    /// For the way to the other ranks.
    ///
    /// # Examples
    /// ```
    /// use phalanx_nccl::{Nccl, UniqueId};
    ///
    /// # phalanx_nccl_double::stand_in();
    /// let id = UniqueId::new(Nccl::load()?)?;
    /// let bytes: [u8; UniqueId::LEN] = *id.as_bytes(); // to the other ranks
    /// assert_eq!(UniqueId::from_bytes(bytes).as_bytes(), &bytes);
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn as_bytes(&self) -> &[u8; Self::LEN] {
        &self.0.0
    }

    /// Reads the id that another rank sent.
    ///
    /// # Examples
    /// ```
    /// use phalanx_nccl::{Nccl, UniqueId};
    ///
    /// # phalanx_nccl_double::stand_in();
    /// let id = UniqueId::new(Nccl::load()?)?;
    /// let bytes: [u8; UniqueId::LEN] = *id.as_bytes(); // to the other ranks
    /// assert_eq!(UniqueId::from_bytes(bytes).as_bytes(), &bytes);
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn from_bytes(bytes: [u8; Self::LEN]) -> Self {
        Self(RawId(bytes))
    }
}
