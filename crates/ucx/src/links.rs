//! One rank's side of all its links, as groups have it.

use crate::handle::Handle;
use crate::hub::{Hub, Membership};
use crate::introductions::Introductions;
use crate::load::Ucp;
use crate::transport::UcxTransport;
use phalanx_core::{Error, GroupId, Result};
use phalanx_group::{JobLinks, LinkPeer};
use phalanx_transport::Transport;
use std::ffi::CStr;
use std::fmt;
use std::sync::Arc;

/// One rank's side of all its links over UCX.
pub(crate) struct UcxLinks {
    handle: Arc<Handle>,
    address: Vec<u8>,
    rank: usize,
    /// The job's own connections.
    introductions: Option<Box<dyn JobLinks>>,
}

impl fmt::Debug for UcxLinks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UcxLinks").field("rank", &self.rank).finish_non_exhaustive()
    }
}

impl UcxLinks {
    /// Opens what UCX finds of devices, among `transports` if that says which.
    ///
    /// # Errors
    /// [`Unavailable`](Error::Unavailable): there is no UCX, or it finds no device among those that it may use. [`Io`](Error::Io): the system refuses a thread or descriptors.
    pub(crate) fn open(
        transports: Option<&CStr>,
        me: Membership,
        introductions: Option<Box<dyn JobLinks>>,
    ) -> Result<Self> {
        let (ucp, rank, limit) = (Ucp::load()?, me.rank, me.link_timeout);
        let transports = transports.map(CStr::to_owned);
        let (handle, address) = Handle::start(limit, move || {
            Hub::open(ucp, transports.as_deref(), me).map_err(|why| {
                let what = format!("a UCX worker of rank {rank}");
                let tried = format!("{ucp}: {why}; UCX_TLS and UCX_NET_DEVICES say what it may use");
                Error::Unavailable { what, tried }
            })
        })?;
        Ok(Self { handle: Arc::new(handle), address, rank, introductions })
    }
}

impl JobLinks for UcxLinks {
    fn address(&self) -> Option<Vec<u8>> {
        Some(self.address.clone())
    }

    fn open(&self, group: GroupId, peers: &[LinkPeer<'_>]) -> Box<dyn Transport> {
        self.handle.with(|hub| peers.iter().for_each(|peer| hub.learn(peer.rank, peer.address)));
        let members: Vec<_> = peers.iter().map(|peer| peer.rank as u32).collect();
        let rank = peers.iter().position(|peer| peer.rank == self.rank).expect("this rank is a member");
        let connections = self.introductions.as_ref().map(|links| links.open(group, peers));
        let introductions = Introductions::new(connections, peers.len());
        Box::new(UcxTransport::new(self.handle.clone(), group, rank, members, introductions))
    }
}
