//! What this process has said or heard through its launcher's channel. A channel serves once in the life of a process, and a process may join
//! its job again and again.

use crate::TcpStoreServer;
use crate::channel::Channel;
use crate::meeting::Meeting;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

static HEARD: Mutex<Option<Heard>> = Mutex::new(None);

#[derive(Debug)]
pub(crate) struct Heard {
    pub(crate) through: Channel,
    pub(crate) meeting: Meeting,
    /// On rank 0: the store's server, which lives as long as the process.
    pub(crate) server: Option<Arc<TcpStoreServer>>,
    /// How often this process has joined the job.
    pub(crate) joined: u64,
}

/// Nobody else of this process says or hears anything meanwhile.
pub(crate) fn heard() -> MutexGuard<'static, Option<Heard>> {
    HEARD.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The server that this process, rank 0, has started for whoever comes through the launcher's channel.
pub(crate) fn server_at(port: u16) -> Option<Arc<TcpStoreServer>> {
    let heard = heard();
    heard.as_ref()?.server.clone().filter(|server| server.addr().port() == port)
}

/// Nobody needs the file any more that this process, rank 0, has written.
pub(crate) fn nobody_else_comes() {
    if let Some(Heard { through: Channel::File(file), server: Some(_), .. }) = &*heard() {
        file.remove();
    }
}
