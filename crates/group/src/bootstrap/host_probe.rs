//! Probing hosts, and calling the arbiter anew, when a line has been silent for long and before its other end is taken for lost.
//!
//! A line whose packets were lost for a while is tried again by the system after pauses that double: it stays silent for up to twice as long
//! as the network was cut. A connection that is begun afresh comes through at once. So a rank in doubt [calls](Recaller) the arbiter anew, which
//! is a sign of life for both; and both ask the systems of other hosts, by which they know who is cut off.

use phalanx_core::Deadline;
use phalanx_transport::handshake::Hello;
use phalanx_transport::{Secret, open_session, probe_hosts};
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Tries in the time after which silence is a loss.
const TRIES: u32 = 10;
const TRY_TIME_MAX: Duration = Duration::from_secs(1);
/// Hosts that are asked: enough to know whether it is this one that is cut off.
const HOSTS_MAX: usize = 16;

/// How long one try may take, where silence for as long as `limit` is a loss.
fn try_time(limit: Duration) -> Duration {
    (limit / TRIES).clamp(Duration::from_millis(50), TRY_TIME_MAX)
}

/// Asks the systems of hosts, on a thread of its own while somebody wants to know.
#[derive(Debug)]
pub(crate) struct HostProber {
    limit: Duration,
    known: Arc<Mutex<Known>>,
}

#[derive(Debug, Default)]
struct Known {
    addrs: Vec<SocketAddr>,
    /// The moment until which somebody wants to know.
    until: Option<Instant>,
    answered: BTreeMap<IpAddr, Instant>,
    is_asking: bool,
}

impl HostProber {
    pub(crate) fn new(limit: Duration) -> Self {
        Self { limit, known: Arc::default() }
    }

    /// Asks these for a while, one address of each host.
    pub(crate) fn ask(&self, addrs: impl IntoIterator<Item = SocketAddr>) {
        let hosts: BTreeMap<IpAddr, SocketAddr> = addrs.into_iter().map(|addr| (addr.ip(), addr)).collect();
        let mut known = lock(&self.known);
        known.addrs = hosts.into_values().take(HOSTS_MAX).collect();
        known.until = Some(Instant::now() + self.limit / 2);
        if !known.is_asking && !known.addrs.is_empty() {
            let (shared, pause) = (self.known.clone(), try_time(self.limit));
            let thread = std::thread::Builder::new().name("phalanx-probe".into());
            known.is_asking = thread.spawn(move || run(&shared, pause)).is_ok();
        }
    }

    /// Whether the system of a host has answered in the last half of the time after which silence is a loss.
    pub(crate) fn answers(&self, host: IpAddr, now: Instant) -> bool {
        let at = lock(&self.known).answered.get(&host).copied();
        at.is_some_and(|at| now.saturating_duration_since(at) < self.limit / 2)
    }
}

fn run(known: &Mutex<Known>, pause: Duration) {
    loop {
        let addrs = {
            let mut known = lock(known);
            if known.until.is_none_or(|until| until < Instant::now()) {
                known.is_asking = false;
                return;
            }
            known.addrs.clone()
        };
        let begun = Instant::now();
        let answers = probe_hosts(&addrs, pause);
        let now = Instant::now();
        let answered = addrs.iter().zip(answers).filter(|(_, answers)| *answers);
        lock(known).answered.extend(answered.map(|(addr, _)| (addr.ip(), now)));
        std::thread::sleep(pause.saturating_sub(begun.elapsed()));
    }
}

/// Calls the arbiter anew, on a thread of its own while its line is silent.
#[derive(Debug)]
pub(crate) struct Recaller {
    addr: String,
    secret: Secret,
    hello: Hello,
    limit: Duration,
    state: Arc<Mutex<Calling>>,
}

#[derive(Debug, Default)]
struct Calling {
    is_wanted: bool,
    is_calling: bool,
    answered: Option<Instant>,
}

impl Recaller {
    pub(crate) fn new(addr: String, secret: Secret, hello: Hello, limit: Duration) -> Self {
        Self { addr, secret, hello, limit, state: Arc::default() }
    }

    /// Whether to call, from now on.
    pub(crate) fn want(&self, is_wanted: bool) {
        let mut state = lock(&self.state);
        state.is_wanted = is_wanted;
        if is_wanted && !state.is_calling {
            let (addr, secret, hello) = (self.addr.clone(), self.secret.clone(), self.hello);
            let (shared, limit) = (self.state.clone(), try_time(self.limit));
            let thread = std::thread::Builder::new().name("phalanx-recall".into());
            state.is_calling = thread.spawn(move || call(&addr, &secret, &hello, limit, &shared)).is_ok();
        }
    }

    /// When the arbiter has answered, if it did since this was asked last.
    pub(crate) fn answered(&self) -> Option<Instant> {
        lock(&self.state).answered.take()
    }
}

impl Drop for Recaller {
    fn drop(&mut self) {
        lock(&self.state).is_wanted = false;
    }
}

fn call(addr: &str, secret: &Secret, hello: &Hello, limit: Duration, state: &Mutex<Calling>) {
    loop {
        let begun = Instant::now();
        // Both ends have proved who they are when it is open, and that packets go both ways. More is not wanted.
        let is_open = open_session(addr, secret, hello, &Deadline::after(begun, limit)).is_ok();
        let mut state = lock(state);
        if is_open {
            state.answered = Some(Instant::now());
        }
        if is_open || !state.is_wanted {
            state.is_calling = false;
            return;
        }
        drop(state);
        std::thread::sleep(limit.saturating_sub(begun.elapsed()));
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
