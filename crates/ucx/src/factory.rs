//! The transport as the registry of backends has it.

#[cfg(target_os = "linux")]
use crate::hub::Membership;
#[cfg(target_os = "linux")]
use crate::links::UcxLinks;
use phalanx_core::{Error, Result};
use phalanx_group::{JobLinks, LinksStart, TransportFactory, register_transport};
use std::ffi::CString;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
#[cfg(target_os = "linux")]
use std::time::Duration;

/// The name by which `PHALANX_BACKEND` chooses it.
const NAME: &str = "ucx";

/// Makes `PHALANX_BACKEND=ucx` work in this process. Programs with the feature `ucx` of the crate `phalanx` need not call it: `init` does.
///
/// # Errors
/// [`Config`](Error::Config): the program has registered another backend under that name.
///
/// # Examples
/// ```
/// phalanx_ucx::register()?;
/// phalanx_ucx::register()?; // once is enough, and twice is no harm
/// assert!(phalanx_group::registered_backends().contains(&"ucx"));
/// # Ok::<(), phalanx_core::Error>(())
/// ```
pub fn register() -> Result<()> {
    static IS_REGISTERED: Mutex<bool> = Mutex::new(false);
    let mut is_registered = IS_REGISTERED.lock().unwrap_or_else(PoisonError::into_inner);
    if !*is_registered {
        register_transport(NAME, Arc::new(Ucx::default()))?;
        *is_registered = true;
    }
    Ok(())
}

/// Makes links over UCX: what [`register`] registers, and a program under another name if it wants.
#[derive(Default)]
pub struct Ucx {
    #[cfg_attr(not(target_os = "linux"), expect(dead_code, reason = "UCX is for Linux here"))]
    transports: Option<CString>,
}

impl fmt::Debug for Ucx {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("UCX")
    }
}

impl Ucx {
    /// Links over these transports of UCX alone, whatever `UCX_TLS` says; named as there: `rc`, `tcp`, `posix`, …
    ///
    /// # Errors
    /// [`Config`](Error::Config): no name has a zero byte.
    ///
    /// # Examples
    /// ```
    /// use phalanx_group::register_transport;
    /// use phalanx_ucx::Ucx;
    /// use std::sync::Arc;
    ///
    /// // PHALANX_BACKEND=ucx-tcp
    /// register_transport("ucx-tcp", Arc::new(Ucx::over("tcp,self")?))?;
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn over(transports: &str) -> Result<Self> {
        let transports = CString::new(transports);
        let transports =
            transports.map_err(|_| Error::config("a transport of UCX has a name without zero bytes"))?;
        Ok(Self { transports: Some(transports) })
    }

    /// The links of one rank without a job, which are to be told of the others as a job does. Messages that do not show `token` are dropped.
    ///
    /// # Errors
    /// [`Unavailable`](Error::Unavailable): there is no UCX, or it finds no device among those that it may use.
    ///
    /// # Examples
    /// ```
    /// use phalanx_group::LinkPeer;
    /// use phalanx_ucx::{Ucp, Ucx};
    ///
    /// # fn main() -> phalanx_core::Result<()> {
    /// if Ucp::load().is_err() {
    ///     return Ok(()); // no UCX here
    /// }
    /// let ucx = Ucx::over("tcp,self")?;
    /// let (a, b) = (ucx.links(0, 2, [7; 16])?, ucx.links(1, 2, [7; 16])?);
    /// let addresses = [a.address().unwrap(), b.address().unwrap()];
    /// let peers = [LinkPeer::new(0, &addresses[0]), LinkPeer::new(1, &addresses[1])];
    /// let (mut a, mut b) = (a.open(phalanx_core::WORLD, &peers), b.open(phalanx_core::WORLD, &peers));
    /// assert_eq!(a.send(1, &[std::io::IoSlice::new(b"abc")]), Ok(3));
    /// let mut buffer = [0; 8];
    /// while b.recv(0, &mut buffer).unwrap() == 0 {}
    /// assert_eq!(&buffer[..3], b"abc");
    /// # Ok(()) }
    /// ```
    #[cfg(target_os = "linux")]
    pub fn links(&self, rank: usize, world_size: usize, token: [u8; 16]) -> Result<Box<dyn JobLinks>> {
        self.open(Membership { rank, world_size, token, link_timeout: Duration::from_secs(60) }, None)
    }

    #[cfg(target_os = "linux")]
    fn open(&self, me: Membership, introductions: Option<Box<dyn JobLinks>>) -> Result<Box<dyn JobLinks>> {
        Ok(Box::new(UcxLinks::open(self.transports.as_deref(), me, introductions)?))
    }
}

impl TransportFactory for Ucx {
    #[cfg(target_os = "linux")]
    fn start(&self, at: &LinksStart<'_>) -> Result<Box<dyn JobLinks>> {
        let key = at.secret().key_bytes_for("ucx messages");
        let token = *key.first_chunk().expect("a key is longer");
        let link_timeout = at.link_timeout();
        let me = Membership { rank: at.rank(), world_size: at.world_size(), token, link_timeout };
        self.open(me, Some(at.tcp()))
    }

    #[cfg(not(target_os = "linux"))]
    fn start(&self, _: &LinksStart<'_>) -> Result<Box<dyn JobLinks>> {
        let (what, tried) = ("UCX".into(), "phalanx uses it on Linux only".into());
        Err(Error::Unavailable { what, tried })
    }
}
