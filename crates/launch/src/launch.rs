//! The public face: what to launch, and the job that runs.

use crate::job::Job;
use crate::logs::Sink;
use crate::outcome::Outcome;
use crate::plan::{Site, check, plan};
use crate::supervise::{Event, SIGKILL};
use phalanx_core::{Error, Result};
use phalanx_rendezvous::TcpStoreServer;
use phalanx_transport::Secret;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// A job to start: which program, how many times, and how to treat it.
///
/// # Examples
/// ```
/// use phalanx_launch::{Launch, Outcome};
/// # if cfg!(unix) {
/// let outcome = Launch::new("sh").args(["-c", "test $RANK -lt 2 || exit 3"]).ranks(3).run()?;
/// let Outcome::Failure(failure) = &outcome else { panic!("{outcome}") };
/// assert_eq!((failure.rank, outcome.exit_code()), (2, 3));
/// # }
/// # Ok::<(), phalanx_core::Error>(())
/// ```
#[must_use = "nothing is started before `run` or `spawn`"]
pub struct Launch {
    program: OsString,
    args: Vec<OsString>,
    ranks: usize,
    env: BTreeMap<String, OsString>,
    job_id: Option<String>,
    log_dir: Option<PathBuf>,
    prefix: bool,
    out: Sink,
    err: Sink,
    grace: Duration,
    timeout: Option<Duration>,
}

impl Launch {
    /// The time between SIGTERM and SIGKILL, unless [`grace`](Self::grace) says otherwise.
    pub const GRACE: Duration = Duration::from_secs(5);

    /// One rank of `program`, which is looked up in `PATH` unless it contains a slash.
    pub fn new(program: impl Into<OsString>) -> Self {
        Self {
            program: program.into(),
            args: Vec::new(),
            ranks: 1,
            env: BTreeMap::new(),
            job_id: None,
            log_dir: None,
            prefix: true,
            out: Arc::new(Mutex::new(std::io::stdout())),
            err: Arc::new(Mutex::new(std::io::stderr())),
            grace: Self::GRACE,
            timeout: None,
        }
    }

    /// Adds arguments, the same for all ranks.
    pub fn args<A: Into<OsString>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// How many ranks to start, from 1 to [`RANKS_MAX`](crate::RANKS_MAX). Default: 1.
    pub fn ranks(mut self, ranks: usize) -> Self {
        self.ranks = ranks;
        self
    }

    /// Sets an environment variable in all ranks. Those that the launcher sets itself are refused, except the thread
    /// counts (see the [crate's documentation](crate#the-environment-of-a-rank)).
    pub fn env(mut self, name: impl Into<String>, value: impl Into<OsString>) -> Self {
        self.env.insert(name.into(), value.into());
        self
    }

    /// Names the job: up to 64 letters, digits, `.`, `_`, `-`. Default: eight random hexadecimal digits.
    pub fn job_id(mut self, job_id: impl Into<String>) -> Self {
        self.job_id = Some(job_id.into());
        self
    }

    /// Keeps each rank's output, byte for byte, in `<folder>/<job id>/attempt_0/<local rank>/{stdout.log,stderr.log}`.
    /// Files of an earlier job with the same id are not overwritten: `spawn` fails. When a group fails, the ranks write what they did
    /// lately to `<folder>/<job id>/attempt_0/trace_rank_<rank>.json` (see `phalanx trace`). Default: none.
    pub fn log_dir(mut self, folder: impl Into<PathBuf>) -> Self {
        self.log_dir = Some(folder.into());
        self
    }

    /// Whether each line of output begins with its rank, as in `[3] `. Default: yes.
    pub fn prefix(mut self, prefix: bool) -> Self {
        self.prefix = prefix;
        self
    }

    /// Where the lines of the ranks' stdout and stderr go. Default: to this process's own.
    ///
    /// A writer is given whole lines. After its first error it gets no more, and the job goes on.
    pub fn output(mut self, out: impl Write + Send + 'static, err: impl Write + Send + 'static) -> Self {
        self.out = Arc::new(Mutex::new(out));
        self.err = Arc::new(Mutex::new(err));
        self
    }

    /// How long ranks that were asked to end may take before they are killed. Default: [`GRACE`](Self::GRACE).
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// How long the whole job may take before it is ended; `None` for as long as it likes, which is the default.
    pub fn timeout(mut self, timeout: Option<Duration>) -> Self {
        self.timeout = timeout;
        self
    }

    /// Starts the ranks and waits until the last is gone.
    ///
    /// SIGINT, SIGTERM and SIGHUP that this process receives meanwhile are passed on to the ranks, and a second
    /// one kills them at once. For that the first `run` installs handlers that stay: with no job running, the
    /// signals end this process, as without handlers, even if another library handles them too.
    ///
    /// # Errors
    /// As [`spawn`](Self::spawn). A job that fails is not an error but an [`Outcome`].
    pub fn run(self) -> Result<Outcome> {
        let (events, inbox) = channel();
        #[cfg(unix)]
        let _forwarding = crate::signals::forward_to(events.clone())?;
        self.start(events, inbox)?.wait()
    }

    /// Starts the ranks and returns. Signals to this process are left alone.
    ///
    /// # Errors
    /// `Config`: the number of ranks, the job id, a variable's name or the log folder is no good. `Unavailable`: there
    /// is no such program. `Io`: the system refused to start it, or to open the store's port.
    /// In each case no rank is left running.
    pub fn spawn(self) -> Result<Running> {
        let (events, inbox) = channel();
        self.start(events, inbox)
    }

    fn start(self, events: Sender<Event>, inbox: Receiver<Event>) -> Result<Running> {
        let job_id = self.job_id.map_or_else(random_id, Ok)?;
        check(self.ranks, &job_id, self.env.keys().map(String::as_str))?;

        // As the ranks will understand it: the store must do as they do.
        let encrypt =
            self.env.get("PHALANX_ENCRYPT").cloned().or_else(|| std::env::var_os("PHALANX_ENCRYPT"));
        let secret = Secret::generate()?;
        let secret = if encrypt.is_some_and(|on| on == "1") { secret.encrypting() } else { secret };
        let store = TcpStoreServer::start(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), &secret)?;
        let site = Site {
            store: store.addr(),
            master_port: free_port()?,
            cores: thread::available_parallelism().map_or(1, usize::from),
        };
        let is_set = |name: &str| self.env.contains_key(name) || std::env::var_os(name).is_some();
        let ranks = plan(self.ranks, &job_id, self.log_dir.as_deref(), &site, is_set);
        let secret = ("PHALANX_SECRET".to_owned(), secret.to_hex().into());
        let job = Job {
            program: self.program,
            args: self.args,
            env: self.env.into_iter().chain([secret]).collect(),
            ranks,
            prefix: self.prefix,
            out: self.out,
            err: self.err,
            grace: self.grace,
            timeout: self.timeout,
        };
        tracing::debug!(job_id, store = %site.store, ranks = self.ranks, "starting");

        // The ranks die with the thread that starts them, so that thread must be the last to leave: it supervises them.
        let (started, pids) = channel();
        let watchers = events.clone();
        let supervise = move || {
            let job = job.start(&watchers)?;
            // Nobody waits for this only if the starter has panicked.
            let _ = started.send(job.pids());
            drop(started);
            let outcome = job.supervise(&inbox);
            drop(store);
            outcome
        };
        let supervisor = thread::Builder::new()
            .name("phalanx-launch".to_owned())
            .spawn(supervise)
            .map_err(|error| Error::io("starting the thread that supervises the ranks", error))?;
        match pids.recv() {
            Ok(pids) => Ok(Running { job_id, pids, events, supervisor: Some(supervisor) }),
            Err(_) => {
                Err(join(supervisor).err().unwrap_or_else(|| Error::Internal { what: "no ranks".into() }))
            }
        }
    }
}

impl fmt::Debug for Launch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { program, args, ranks, env, job_id, log_dir, prefix, out: _, err: _, grace, timeout } =
            self;
        // Values of variables are often secrets.
        let env: Vec<_> = env.keys().collect();
        f.debug_struct("Launch")
            .field("program", program)
            .field("args", args)
            .field("ranks", ranks)
            .field("env", &env)
            .field("job_id", job_id)
            .field("log_dir", log_dir)
            .field("prefix", prefix)
            .field("grace", grace)
            .field("timeout", timeout)
            .finish_non_exhaustive()
    }
}

/// A job whose ranks have been started.
///
/// Dropping it kills the ranks and waits until they are gone.
#[derive(Debug)]
#[must_use = "dropping a running job kills it"]
pub struct Running {
    job_id: String,
    pids: Vec<u32>,
    events: Sender<Event>,
    supervisor: Option<JoinHandle<Result<Outcome>>>,
}

impl Running {
    /// The job's name.
    pub fn job_id(&self) -> &str {
        &self.job_id
    }

    /// The ranks' processes, in rank order. On Unix each leads a process group.
    pub fn pids(&self) -> &[u32] {
        &self.pids
    }

    /// Does what the launcher does when it receives `signal`: passes it on to all ranks, grants them the grace period,
    /// then kills them. A second signal, or SIGKILL, kills at once.
    pub fn signal(&self, signal: i32) {
        // A job that is over needs no signal.
        let _ = self.events.send(Event::Signal(signal));
    }

    /// Waits until no rank is left and all their output is written.
    ///
    /// # Errors
    /// `Internal` only. A job that fails is not an error but an [`Outcome`].
    pub fn wait(mut self) -> Result<Outcome> {
        self.supervisor.take().map_or_else(|| Err(Error::Internal { what: "waited twice".into() }), join)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(supervisor) = self.supervisor.take() {
            self.signal(SIGKILL);
            // Nobody is left to hear how the job ended.
            let _ = join(supervisor);
        }
    }
}

fn join(supervisor: JoinHandle<Result<Outcome>>) -> Result<Outcome> {
    supervisor
        .join()
        .unwrap_or_else(|_| Err(Error::Internal { what: "the launcher's thread panicked".into() }))
}

/// A port that is free now. Another program may take it before the ranks do; phalanx itself does not use it.
fn free_port() -> Result<u16> {
    let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|listener| listener.local_addr());
    Ok(port.map_err(|error| Error::io("looking for a free port", error))?.port())
}

fn random_id() -> Result<String> {
    let id = getrandom::u32().map_err(|error| Error::Unavailable {
        what: "a source of random numbers".to_owned(),
        tried: error.to_string(),
    })?;
    Ok(format!("{id:08x}"))
}
