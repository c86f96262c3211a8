//! A rank's end of its lifeline.

use super::end::end_this_process;
use super::{Ended, FirstCause, Word, encode};
use crate::Config;
use phalanx_core::{Deadline, Error, Result};
use phalanx_transport::handshake::Hello;
use phalanx_transport::{Secret, SessionReceiver, SessionSender, open_session_if_listening};
use std::fmt;
use std::io::ErrorKind;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// How long the listening thread sleeps at most.
const IDLE_TIME: Duration = Duration::from_secs(3600);
/// How long a process that comes when its launcher is gone may take to end in order, with the error that says so.
const LATE_TIME: Duration = Duration::from_secs(5);
/// How long it may take to log why this process ends. Whoever reads its log may be gone, or stuck.
const LOG_TIME: Duration = Duration::from_millis(100);
/// Failures of one generation that are reported. The first one counts.
const REPORTS_MAX: usize = 16;

/// The lifelines of this process: one for each launcher's address and worker.
static LIFELINES: Mutex<Vec<Arc<Lifeline>>> = Mutex::new(Vec::new());

/// Hears of each process that has ended, until it returns false.
type Listener = Box<dyn FnMut(Ended) -> bool + Send>;

/// This process's session with the launcher that started it. It lasts as long as the process.
///
/// When the launcher ends, or is killed, this process and all of its process group are killed at once.
pub struct Lifeline {
    addr: String,
    worker: u64,
    /// The process that made the session: a process made by fork has a copy of it that it must not use.
    process: u32,
    sender: SessionSender,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    ended: Vec<Ended>,
    listeners: Vec<Listener>,
    /// The generation of the latest report, and how many it had.
    reports: (u64, usize),
}

impl fmt::Debug for Lifeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { addr, worker, .. } = self;
        f.debug_struct("Lifeline").field("addr", addr).field("worker", worker).finish_non_exhaustive()
    }
}

impl Lifeline {
    /// The lifeline of this process to the launcher that `config` names; `None` if it names none. The first call opens it.
    ///
    /// # Errors
    /// [`Error::Unavailable`]: the launcher is gone. If the process still runs 5 s later, it is killed. [`Error::Rendezvous`]: the launcher
    /// does not answer before the deadline, or what answers is none.
    pub fn open(config: &Config, deadline: &Deadline) -> Result<Option<Arc<Self>>> {
        let (Some(addr), Some(secret)) = (&config.lifeline, &config.secret) else { return Ok(None) };
        let mut all = lock(&LIFELINES);
        let process = std::process::id();
        let is_it = |l: &&Arc<Self>| (l.process, l.worker, &l.addr) == (process, config.worker, addr);
        if let Some(open) = all.iter().find(is_it) {
            return Ok(Some(open.clone()));
        }
        let hello = Hello::lifeline(config.rank, config.world_size);
        let opened = Self::connect(addr, secret, &hello, config.worker, deadline, end_with_launcher);
        let lifeline = opened.inspect_err(|error| {
            if matches!(error, Error::Unavailable { .. }) {
                end_later();
            }
        })?;
        all.push(lifeline.clone());
        Ok(Some(lifeline))
    }

    /// `gone` is called when the launcher is.
    fn connect(
        addr: &str,
        secret: &Secret,
        hello: &Hello,
        worker: u64,
        deadline: &Deadline,
        gone: impl FnOnce(&Error) + Send + 'static,
    ) -> Result<Arc<Self>> {
        let session = open_session_if_listening(addr, secret, hello, deadline).map_err(|error| match error {
            Error::Io { source, .. } if source.kind() == ErrorKind::ConnectionRefused => Error::Unavailable {
                what: "the launcher that started this rank".into(),
                tried: format!(
                    "{addr}, where nobody listens any more: it has ended, or this process is in another network namespace"
                ),
            },
            other => other,
        })?;
        let (sender, incoming) = session.split();
        let (addr, process) = (addr.to_owned(), std::process::id());
        let lifeline = Arc::new(Self { addr, worker, process, sender, state: Mutex::default() });
        lifeline.say(&Word::Here { worker, pid: process });
        let listener = lifeline.clone();
        thread::Builder::new()
            .name("phalanx-lifeline".into())
            .spawn(move || gone(&listener.listen(incoming)))
            .map_err(|error| Error::io("starting the thread that notices the launcher's end", error))?;
        Ok(lifeline)
    }

    /// Listens until the launcher is gone.
    fn listen(&self, mut incoming: SessionReceiver) -> Error {
        loop {
            match incoming.recv(&Deadline::after(Instant::now(), IDLE_TIME)) {
                Ok(Some(message)) => match postcard::from_bytes(&message) {
                    Ok(ended) => self.hear(ended),
                    Err(error) => tracing::warn!(%error, "the launcher said what can't be read"),
                },
                Ok(None) => {}
                Err(error) => return error,
            }
        }
    }

    fn hear(&self, ended: Ended) {
        let mut state = lock(&self.state);
        state.ended.push(ended);
        state.listeners.retain_mut(|listener| listener(ended));
    }

    /// The number of this process among all that the job had.
    pub fn worker(&self) -> u64 {
        self.worker
    }

    /// Tells the launcher what went wrong first in this generation of the job, as far as this rank has heard. Never fails, and never
    /// waits. Call it before anybody on this rank hears of the failure, who may end the process.
    pub fn report(&self, generation: u64, first: FirstCause) {
        {
            let (latest, count) = &mut lock(&self.state).reports;
            if *latest != generation {
                (*latest, *count) = (generation, 0);
            }
            *count += 1;
            if *count > REPORTS_MAX {
                return;
            }
        }
        self.say(&Word::Failed { generation, first: first.cut() });
    }

    /// Tells the launcher that this process belongs to that generation: what went wrong in those before no longer matters.
    pub fn formed(&self, generation: u64) {
        self.say(&Word::Formed { generation });
    }

    /// Tells the launcher why this process could not become a rank. As [`report`](Self::report) otherwise.
    pub fn gave_up(&self, first: FirstCause) {
        self.say(&Word::GaveUp { first: first.cut() });
    }

    /// The processes of the job that have ended, as far as the launcher has said, in order.
    pub fn ended(&self) -> Vec<Ended> {
        lock(&self.state).ended.clone()
    }

    /// Calls `hear` for each process that has ended until now, and for each that will, until it returns false. It is called under a lock: it must not wait, and
    /// call nothing of this lifeline.
    pub fn on_ended(&self, mut hear: impl FnMut(Ended) -> bool + Send + 'static) {
        let mut state = lock(&self.state);
        if state.ended.iter().all(|ended| hear(*ended)) {
            state.listeners.push(Box::new(hear));
        }
    }

    fn say(&self, word: &Word) {
        if self.process == std::process::id() {
            // If the launcher is gone, the other half of the session shows it.
            let _ = self.sender.send(&encode(word));
        }
    }
}

/// The launcher is gone: logs that, if that is possible at once, and ends this process.
fn end_with_launcher(error: &Error) {
    let error = error.to_string();
    let (done, logged) = channel::<()>();
    let log = move || {
        tracing::error!("the launcher that started this rank is gone ({error}); this process ends with it");
        drop(done);
    };
    if thread::Builder::new().spawn(log).is_ok() {
        let _ = logged.recv_timeout(LOG_TIME);
    }
    end_this_process()
}

/// Ends this process if it does not do so itself.
fn end_later() {
    let end = || {
        thread::sleep(LATE_TIME);
        end_this_process()
    };
    if thread::Builder::new().name("phalanx-lifeline".into()).spawn(end).is_err() {
        end_this_process();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lifeline::{Exit, Heard, LifelineServer};
    use std::net::TcpListener;
    use std::sync::mpsc::Receiver;

    const HANG: Duration = Duration::from_secs(60);

    fn within(limit: Duration) -> Deadline {
        Deadline::after(Instant::now(), limit)
    }

    struct Pair {
        server: LifelineServer,
        heard: Receiver<Heard>,
        lifeline: Arc<Lifeline>,
        gone: Receiver<()>,
    }

    fn pair() -> Pair {
        let secret = Secret::generate().unwrap();
        let (hear, heard) = channel();
        let hear = move |word| hear.send(word).unwrap();
        let server = LifelineServer::start("127.0.0.1:0".parse().unwrap(), &secret, hear).unwrap();
        let (end, gone) = channel();
        let addr = server.addr().to_string();
        let end = move |_: &Error| end.send(()).unwrap();
        let lifeline =
            Lifeline::connect(&addr, &secret, &Hello::lifeline(1, 4), 5, &within(HANG), end).unwrap();
        Pair { server, heard, lifeline, gone }
    }

    #[test]
    fn a_rank_and_its_launcher_tell_each_other_what_they_know() {
        let Pair { server, heard, lifeline, gone } = pair();
        let first = FirstCause { culprit: Some(2), words: "rank 2 (h:7) panicked".into() };
        lifeline.formed(3);
        lifeline.report(3, first.clone());
        let next = || heard.recv_timeout(HANG).unwrap();
        assert_eq!(next(), Heard::Here { worker: 5, pid: std::process::id() });
        assert_eq!(next(), Heard::Formed { worker: 5, generation: 3 });
        assert_eq!(next(), Heard::Failed { worker: 5, generation: 3, first });

        let (listener, ended) = channel();
        lifeline.on_ended(move |word| listener.send(word).is_ok());
        let word = Ended { worker: 2, exit: Exit::Signal(9) };
        server.tell(word);
        assert_eq!(ended.recv_timeout(HANG).unwrap(), word);
        assert_eq!(lifeline.ended(), [word]);
        assert!(gone.try_recv().is_err(), "the launcher is there");
        drop(server);
        gone.recv_timeout(HANG).expect("the end of the launcher is noticed");
    }

    #[test]
    fn the_launcher_can_end_one_worker_now_and_if_it_comes_again() {
        let Pair { server, heard, lifeline: _lifeline, gone } = pair();
        assert!(matches!(heard.recv_timeout(HANG).unwrap(), Heard::Here { worker: 5, .. }));
        server.end(4);
        server.catch_up(HANG);
        assert!(gone.try_recv().is_err(), "another one was meant");
        server.end(5);
        gone.recv_timeout(HANG).expect("its lifeline ends");
    }

    #[test]
    fn a_rank_that_fails_again_and_again_does_not_flood_its_launcher() {
        let Pair { server: _server, heard, lifeline, gone: _gone } = pair();
        for generation in [0, 1] {
            for _ in 0..3 * REPORTS_MAX {
                lifeline.report(generation, FirstCause { culprit: None, words: String::new() });
            }
        }
        lifeline.formed(2);
        let heard: Vec<_> = std::iter::from_fn(|| heard.recv_timeout(HANG).ok())
            .take_while(|word| !matches!(word, Heard::Formed { .. }))
            .collect();
        assert_eq!(heard.len(), 1 + 2 * REPORTS_MAX);
    }

    #[test]
    fn a_launcher_that_does_not_listen_is_gone_and_not_waited_for() {
        let secret = Secret::generate().unwrap();
        let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
        let hello = Hello::lifeline(1, 4);
        let tried = Lifeline::connect(&nobody, &secret, &hello, 1, &within(HANG), |_| {});
        let error = tried.unwrap_err();
        assert!(matches!(error, Error::Unavailable { .. }), "{error}");
        assert!(error.to_string().contains("it has ended"), "{error}");
    }
}
