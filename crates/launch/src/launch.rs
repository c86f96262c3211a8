//! The public face: what to launch, and the job that runs.

use crate::binding::Binding;
use crate::hosts::node::Node;
use crate::hosts::ssh::{RemoteHost, SSH};
use crate::outcome::Outcome;
use crate::report::Report;
use crate::running::Running;
use crate::writer::Sink;
use phalanx_core::Result;
use phalanx_rendezvous::Elastic;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::io::Write;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::mpsc::channel;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant, SystemTime};

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
    pub(crate) program: OsString,
    pub(crate) args: Vec<OsString>,
    pub(crate) ranks: usize,
    pub(crate) max_restarts: Option<usize>,
    pub(crate) elastic: Option<Elastic>,
    pub(crate) env: BTreeMap<String, OsString>,
    pub(crate) job_id: Option<String>,
    pub(crate) log_dir: Option<PathBuf>,
    pub(crate) prefix: bool,
    pub(crate) timestamps: bool,
    pub(crate) stdin: bool,
    pub(crate) working_dir: Option<PathBuf>,
    pub(crate) binding: Binding,
    pub(crate) out: Sink,
    pub(crate) err: Sink,
    pub(crate) grace: Duration,
    pub(crate) timeout: Option<Duration>,
    pub(crate) node: Option<Node>,
    pub(crate) remote: Option<Remote>,
}

/// Hosts on which this launcher starts agents.
pub(crate) struct Remote {
    pub(crate) hosts: Vec<RemoteHost>,
    pub(crate) shell: Vec<OsString>,
    pub(crate) agent: Vec<OsString>,
    pub(crate) rendezvous: Option<String>,
}

impl Launch {
    /// The time between SIGTERM and SIGKILL, unless [`grace`](Self::grace) says otherwise.
    pub const GRACE: Duration = Duration::from_secs(5);

    /// A launch of one rank of `program`, which is looked up in `PATH` unless it contains a slash.
    ///
    /// # Examples
    /// ```
    /// # if cfg!(unix) {
    /// assert!(phalanx_launch::Launch::new("true").run()?.is_success());
    /// # }
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn new(program: impl Into<OsString>) -> Self {
        Self {
            program: program.into(),
            args: Vec::new(),
            ranks: 1,
            max_restarts: None,
            elastic: None,
            env: BTreeMap::new(),
            job_id: None,
            log_dir: None,
            prefix: true,
            timestamps: false,
            stdin: false,
            working_dir: None,
            binding: Binding::None,
            out: Box::new(std::io::stdout()),
            err: Box::new(std::io::stderr()),
            grace: Self::GRACE,
            timeout: None,
            node: None,
            remote: None,
        }
    }

    /// Adds arguments, the same for all ranks.
    ///
    /// # Examples
    /// ```
    /// # use phalanx_launch::Launch;
    /// # if cfg!(unix) {
    /// let outcome = Launch::new("test").args(["a", "=", "a"]).run()?;
    /// assert!(outcome.is_success());
    /// # }
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn args<A: Into<OsString>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// How many ranks to start, from 1 to [`RANKS_MAX`](crate::RANKS_MAX). Default: 1.
    ///
    /// # Examples
    /// ```
    /// # use phalanx_launch::Launch;
    /// # if cfg!(unix) {
    /// let outcome = Launch::new("sh").args(["-c", "test $PHALANX_WORLD_SIZE = 4"]).ranks(4).run()?;
    /// assert!(outcome.is_success());
    /// # }
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn ranks(mut self, ranks: usize) -> Self {
        self.ranks = ranks;
        self
    }

    /// How often a job that has failed is started again: all its ranks, with a new secret and store, and logs in `attempt_1` and so on.
    /// A program finds the number in `PHALANX_RESTART_COUNT` (or `TORCHELASTIC_RESTART_COUNT`), and has to continue from what it has saved.
    /// For an [elastic](Self::elastic) job, how many processes are replaced in all. Default: 0; in an elastic job three times its ranks.
    ///
    /// # Examples
    /// ```
    /// use phalanx_launch::Launch;
    /// # if cfg!(unix) {
    /// let outcome = Launch::new("sh").args(["-c", "test $PHALANX_RESTART_COUNT = 2"]).ranks(2).max_restarts(3).run()?;
    /// assert!(outcome.is_success()); // the third time
    /// # }
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn max_restarts(mut self, max_restarts: usize) -> Self {
        self.max_restarts = Some(max_restarts);
        self
    }

    /// Starts `size.max()` ranks, and goes on after a failure as long as `size.min()` are left: the process that failed, and only
    /// that, is replaced, up to [`max_restarts`](Self::max_restarts) times in all; one that fails within 10 s of its start after a pause of 0.1 s, which doubles
    /// each time, up to 5 s. Once one has succeeded nobody is replaced any more, and what
    /// fails then does no harm if enough others succeed: also a replacement that still waited to be let in. The program has to play its part: see `ProcessGroup::rejoin`.
    ///
    /// # Examples
    /// ```
    /// use phalanx_launch::Launch;
    /// # if cfg!(unix) {
    /// // Rank 1 fails once, and is replaced; rank 0 takes its time.
    /// let rank = "if [ $PHALANX_WORKER = 1 ]; then exit 3; else sleep 0.3; fi";
    /// let outcome = Launch::new("sh").args(["-c", rank]).elastic("1:2".parse()?).run()?;
    /// assert!(outcome.is_success(), "{outcome}");
    /// # }
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn elastic(mut self, size: Elastic) -> Self {
        self.elastic = Some(size);
        self
    }

    /// Sets an environment variable in all ranks. Those that the launcher sets itself are refused, except the thread
    /// counts (see the [crate's documentation](crate#the-environment-of-a-rank)).
    ///
    /// # Examples
    /// ```
    /// # use phalanx_launch::Launch;
    /// # if cfg!(unix) {
    /// let outcome = Launch::new("sh").args(["-c", "test $EPOCHS = 20"]).env("EPOCHS", "20").run()?;
    /// assert!(outcome.is_success());
    /// # }
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn env(mut self, name: impl Into<String>, value: impl Into<OsString>) -> Self {
        self.env.insert(name.into(), value.into());
        self
    }

    /// Names the job: up to 64 letters, digits, `.`, `_`, `-`. Default: eight random hexadecimal digits.
    ///
    /// # Examples
    /// ```
    /// # use phalanx_launch::Launch;
    /// # if cfg!(unix) {
    /// let running = Launch::new("true").job_id("digits-7").spawn()?;
    /// assert_eq!(running.job_id(), "digits-7");
    /// assert!(running.wait()?.is_success());
    /// # }
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn job_id(mut self, job_id: impl Into<String>) -> Self {
        self.job_id = Some(job_id.into());
        self
    }

    /// Keeps each rank's output, byte for byte, in `<folder>/<job id>/attempt_<n>/<rank>/{stdout.log,stderr.log}`, where n
    /// counts the starts of the rank from 0.
    /// Files of an earlier job with the same id are not overwritten: `spawn` fails. When a group fails, the ranks write what they did
    /// lately to `<folder>/<job id>/attempt_<n>/trace_rank_<rank>.json` (see `phalanx trace`); those of an elastic job, whose groups have
    /// ranks of several starts, all under `attempt_0`, those of a later generation in `generation_<m>` there. Default: none.
    ///
    /// # Examples
    /// ```
    /// # use phalanx_launch::Launch;
    /// # if cfg!(unix) {
    /// # let temporary = std::env::temp_dir().join(format!("phalanx-logs-{}", std::process::id()));
    /// # let folder = temporary.as_path();
    /// let outcome = Launch::new("echo").args(["hello"]).job_id("digits").log_dir(folder).run()?;
    /// assert!(outcome.is_success());
    /// let log = std::fs::read_to_string(folder.join("digits/attempt_0/0/stdout.log"));
    /// assert_eq!(log.unwrap(), "hello\n");
    /// # std::fs::remove_dir_all(folder).unwrap();
    /// # }
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn log_dir(mut self, folder: impl Into<PathBuf>) -> Self {
        self.log_dir = Some(folder.into());
        self
    }

    /// Whether each line of output begins with its rank, as in `[3] `. Default: yes.
    ///
    /// # Examples
    /// ```
    /// # use phalanx_launch::Launch;
    /// # if cfg!(unix) {
    /// let (mut lines, to) = std::io::pipe().unwrap();
    /// let outcome = Launch::new("echo").args(["hello"]).prefix(false).output(to, std::io::sink()).run()?;
    /// assert!(outcome.is_success());
    /// assert_eq!(std::io::read_to_string(&mut lines).unwrap(), "hello\n"); // and not "[0] hello\n"
    /// # }
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn prefix(mut self, prefix: bool) -> Self {
        self.prefix = prefix;
        self
    }

    /// Whether each line of output begins with the time (UTC) at which this process has read it, behind its rank: `[3 2026-11-24T17:52:35.123Z] `,
    /// and `[2026-11-24T17:52:35.123Z] ` without [prefix](Self::prefix). Of several hosts, all times are of the leader's clock. Files of
    /// [`log_dir`](Self::log_dir) have none. Default: no.
    ///
    /// # Examples
    /// ```
    /// # use phalanx_launch::Launch;
    /// # if cfg!(unix) {
    /// let (mut lines, to) = std::io::pipe().unwrap();
    /// let outcome = Launch::new("echo").args(["hello"]).timestamps(true).output(to, std::io::sink()).run()?;
    /// assert!(outcome.is_success());
    /// let line = std::io::read_to_string(&mut lines).unwrap();
    /// assert!(line.starts_with("[0 20") && line.ends_with("Z] hello\n"), "{line}");
    /// # }
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn timestamps(mut self, timestamps: bool) -> Self {
        self.timestamps = timestamps;
        self
    }

    /// Whether rank 0 reads the standard input of this process; the others find theirs empty. A file or a pipe is handed over as it is, also to a process that takes the
    /// place of rank 0: it reads on. A terminal is read by this process while it is in the foreground, line by line, and rank 0 has a pipe.
    /// Of several hosts, the launcher of node rank 0 has rank 0. Default: no, all find it empty.
    ///
    /// # Examples
    /// ```
    /// # use phalanx_launch::Launch;
    /// # if cfg!(unix) {
    /// // Tests have no standard input: it ends at once.
    /// assert!(Launch::new("cat").ranks(2).stdin(true).run()?.is_success());
    /// # }
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn stdin(mut self, to_rank_0: bool) -> Self {
        self.stdin = to_rank_0;
        self
    }

    /// The folder in which the ranks start, and from which a path to the program that does not begin with a slash is looked up. Default: that of this
    /// process.
    ///
    /// # Examples
    /// ```
    /// # use phalanx_launch::Launch;
    /// # if cfg!(unix) {
    /// let outcome = Launch::new("sh").args(["-c", "test $(pwd) = /"]).working_dir("/").run()?;
    /// assert!(outcome.is_success());
    /// assert!(Launch::new("true").working_dir("/no/such").run().is_err());
    /// # }
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn working_dir(mut self, folder: impl Into<PathBuf>) -> Self {
        self.working_dir = Some(folder.into());
        self
    }

    /// Binds each rank to some of the cores that this process may use. On Linux only. Default: [`Binding::None`].
    ///
    /// # Examples
    /// ```
    /// use phalanx_launch::{Binding, Launch};
    /// # if cfg!(target_os = "linux") {
    /// let outcome = Launch::new("grep").args(["Cpus_allowed_list", "/proc/self/status"]).ranks(2).bind_to(Binding::Core).run()?;
    /// assert!(outcome.is_success());
    /// # }
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn bind_to(mut self, binding: Binding) -> Self {
        self.binding = binding;
        self
    }

    /// Sets where the lines of the ranks' stdout and stderr go. Default: to this process's own.
    ///
    /// A writer is given whole lines, on a thread of its own. What it refuses with an error is lost, which is logged once; the job goes on,
    /// and the next lines are tried again. While a writer takes its time, up to a mebibyte is kept for it, and files of
    /// [`log_dir`](Self::log_dir) don't wait; then they stand still, and the ranks have to wait. So does the end of the job: until all is
    /// written, or a signal asks to leave it, or the [`timeout`](Self::timeout) is over, and a grace period of its own.
    ///
    /// # Examples
    /// ```
    /// # use phalanx_launch::Launch;
    /// # if cfg!(unix) {
    /// let (mut lines, to) = std::io::pipe().unwrap();
    /// let outcome = Launch::new("echo").args(["hello"]).output(to, std::io::stderr()).run()?;
    /// assert!(outcome.is_success());
    /// assert_eq!(std::io::read_to_string(&mut lines).unwrap(), "[0] hello\n");
    /// # }
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn output(mut self, out: impl Write + Send + 'static, err: impl Write + Send + 'static) -> Self {
        self.out = Box::new(out);
        self.err = Box::new(err);
        self
    }

    /// How long ranks that were asked to end may take before they are killed. Default: [`GRACE`](Self::GRACE).
    ///
    /// # Examples
    /// ```
    /// # use phalanx_launch::{Launch, Outcome};
    /// # use std::time::Duration;
    /// # if cfg!(unix) {
    /// // Rank 1 fails, and rank 0 does not listen: it is killed.
    /// let rank = "test $PHALANX_RANK = 0 || exit 3; trap '' TERM; sleep 60";
    /// let outcome = Launch::new("sh").args(["-c", rank]).ranks(2).grace(Duration::from_millis(50)).run()?;
    /// assert!(matches!(outcome, Outcome::Failure(failure) if failure.rank == 1));
    /// # }
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// How long the whole job may take before it is ended; `None` for as long as it likes, which is the default. Writers of its
    /// [`output`](Self::output) that are not done by then have the [grace period](Self::grace), also if all ranks have ended before.
    ///
    /// # Examples
    /// ```
    /// # use phalanx_launch::{Launch, Outcome};
    /// # use std::time::Duration;
    /// # if cfg!(unix) {
    /// let limit = Duration::from_millis(50);
    /// let outcome = Launch::new("sleep").args(["60"]).timeout(Some(limit)).run()?;
    /// assert_eq!(outcome, Outcome::TimedOut { limit });
    /// # }
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn timeout(mut self, timeout: Option<Duration>) -> Self {
        self.timeout = timeout;
        self
    }

    /// Makes this launcher one of several, each on its own host. That of node rank 0 leads: it waits until the others have called (`PHALANX_INIT_TIMEOUT_S`),
    /// has them start [`ranks`](Self::ranks) ranks each, which may be another number on each host, and supervises all. What holds for the whole job,
    /// as [`max_restarts`](Self::max_restarts), is its word; the program, its arguments and [variables](Self::env) are those of each
    /// host's own launcher. Ranks are numbered by hosts.
    ///
    /// The other launchers are its agents. They show no output, which goes to the leader, and end as [`Outcome::Led`] where the job did not succeed.
    /// A signal to any of them is one to the job. When an agent loses the leader it kills its ranks and ends with an error; when the leader loses an
    /// agent, or hears nothing of it for three fifths of `PHALANX_HEARTBEAT_TIMEOUT_S`, the ranks there have ended as
    /// [`ExitKind::HostLost`](crate::ExitKind::HostLost).
    ///
    /// An [elastic](Self::elastic) job has `size.max()` ranks, whatever the hosts have room for beyond that: a rank of a lost host is replaced at a
    /// place that is free, or the job goes on without it. The agent of a host that comes back offers its places anew.
    ///
    /// # Examples
    /// Two launchers of one machine play two hosts.
    /// ```
    /// use phalanx_launch::{Launch, Node, Secret};
    /// # if cfg!(unix) {
    /// # let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    /// let secret = Secret::generate()?;
    /// let host = |rank| -> phalanx_core::Result<_> {
    ///     let node = Node::new(rank, 2, format!("127.0.0.1:{port}"), secret.clone())?;
    ///     Ok(Launch::new("sh").args(["-c", "test $WORLD_SIZE = 3"]).node(node))
    /// };
    /// let agent = host(1)?.ranks(1).spawn()?;
    /// assert!(host(0)?.ranks(2).run()?.is_success());
    /// assert!(agent.wait()?.is_success());
    /// # }
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn node(mut self, node: Node) -> Self {
        self.node = Some(node);
        self
    }

    /// Makes this the first of several hosts, and starts the agents on the others, through ssh: `agent` is their command there, which has to call
    /// [`serve_agent`](crate::serve_agent), as `phalanx agent` does. All that an agent needs to know, with the job's secret, goes through the shell's standard
    /// input, and nothing of it stands on a command line. The program is started in the folder of the same path; of this process's variables only
    /// `PHALANX_*` and those of [`env`](Self::env) are taken along. `shell` is the remote shell and its flags; empty: `ssh -T -o BatchMode=yes`, which asks
    /// for no password. It is given the name of a host and a command for a shell there. `rendezvous` is the address of this host that the
    /// others call, with the port; `None`: one that they will most likely reach, and any port.
    ///
    /// When a job is started again, so are agents that have gone. All else is as for [`node`](Self::node).
    ///
    /// # Examples
    /// ```
    /// use phalanx_launch::{Launch, RemoteHost};
    /// # if cfg!(unix) {
    /// // No shell is needed for none; of two more hosts: vec![RemoteHost::new("node-b", 8), RemoteHost::new("node-c", 4)]
    /// let hosts: Vec<RemoteHost> = Vec::new();
    /// let outcome = Launch::new("true").remote_hosts(hosts, ["phalanx", "agent"], [""; 0], None).run()?;
    /// assert!(outcome.is_success());
    /// # }
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn remote_hosts<A: Into<OsString>, S: Into<OsString>>(
        mut self,
        hosts: Vec<RemoteHost>,
        agent: impl IntoIterator<Item = A>,
        shell: impl IntoIterator<Item = S>,
        rendezvous: Option<String>,
    ) -> Self {
        let mut shell: Vec<OsString> = shell.into_iter().map(Into::into).collect();
        if shell.is_empty() {
            shell = SSH.map(OsString::from).to_vec();
        }
        self.remote =
            Some(Remote { hosts, shell, agent: agent.into_iter().map(Into::into).collect(), rendezvous });
        self
    }

    /// Starts the ranks and waits until the last is gone.
    ///
    /// SIGINT, SIGTERM and SIGHUP that this process receives meanwhile are passed on to the ranks, and a second
    /// one kills them at once. For that the first `run` installs handlers that stay: with no job running, the
    /// signals end this process, as without handlers, even if another library handles them too. SIGUSR1 and SIGUSR2 are passed on to ranks that have a
    /// handler for them, and end nothing while a job runs.
    ///
    /// # Errors
    /// As [`spawn`](Self::spawn). A job that fails is not an error but an [`Outcome`].
    ///
    /// # Examples
    /// ```
    /// use phalanx_launch::Launch;
    /// # if cfg!(unix) {
    /// let outcome = Launch::new("sh").args(["-c", "exit $PHALANX_RANK"]).ranks(2).run()?;
    /// assert!(outcome.to_string().contains("rank 1 of 2"), "{outcome}");
    /// assert_eq!(outcome.exit_code(), 1);
    /// # }
    /// assert!(Launch::new("no-such-program").run().is_err()); // nothing was started
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn run(self) -> Result<Outcome> {
        Ok(self.report()?.outcome)
    }

    /// As [`run`](Self::run), and says more of the job: its name, how many ranks it had, how often it was started again, and how long it took.
    ///
    /// # Errors
    /// As [`spawn`](Self::spawn). A job that fails is not an error but an [`Outcome`].
    ///
    /// # Examples
    /// ```
    /// use phalanx_launch::Launch;
    /// # if cfg!(unix) {
    /// let rank = "test $PHALANX_RESTART_COUNT = 1";
    /// let report = Launch::new("sh").args(["-c", rank]).ranks(2).max_restarts(3).report()?;
    /// assert!(report.outcome.is_success());
    /// assert_eq!((report.ranks, report.restarts), (2, 1));
    /// # }
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn report(self) -> Result<Report> {
        let (started, began) = (SystemTime::now(), Instant::now());
        let (events, inbox) = channel();
        #[cfg(unix)]
        let _forwarding = crate::signals::forward_to(events.clone())?;
        let running = self.start(events, inbox)?;
        let (job_id, pids, restarts) =
            (running.job_id.clone(), Arc::clone(&running.pids), Arc::clone(&running.restarts));
        let outcome = running.wait()?;
        let ranks = pids.lock().unwrap_or_else(PoisonError::into_inner).len();
        let restarts = restarts.load(Ordering::Relaxed);
        Ok(Report { job_id, ranks, restarts, started, took: began.elapsed(), outcome })
    }

    /// Starts the ranks and returns. Signals to this process are left alone.
    ///
    /// # Errors
    /// `Config`: the number of ranks, the job id, a variable's name or the log folder is no good. `Unavailable`: there
    /// is no such program. `Io`: the system refused to start it, or to open the store's port.
    /// In each case no rank is left running.
    ///
    /// # Examples
    /// ```
    /// # use phalanx_launch::Launch;
    /// # if cfg!(unix) {
    /// let running = Launch::new("sleep").args(["0.1"]).ranks(2).spawn()?;
    /// // … something else meanwhile …
    /// assert!(running.wait()?.is_success());
    /// # }
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn spawn(self) -> Result<Running> {
        let (events, inbox) = channel();
        self.start(events, inbox)
    }
}

impl fmt::Debug for Launch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            program,
            args,
            ranks,
            max_restarts,
            elastic,
            env,
            job_id,
            log_dir,
            prefix,
            timestamps,
            stdin,
            working_dir,
            binding,
            out: _,
            err: _,
            grace,
            timeout,
            node,
            remote: _,
        } = self;
        // Values of variables are often secrets.
        let env: Vec<_> = env.keys().collect();
        f.debug_struct("Launch")
            .field("program", program)
            .field("args", args)
            .field("ranks", ranks)
            .field("max_restarts", max_restarts)
            .field("elastic", elastic)
            .field("env", &env)
            .field("job_id", job_id)
            .field("log_dir", log_dir)
            .field("prefix", prefix)
            .field("timestamps", timestamps)
            .field("stdin", stdin)
            .field("working_dir", working_dir)
            .field("binding", binding)
            .field("grace", grace)
            .field("timeout", timeout)
            .field("node", node)
            .finish_non_exhaustive()
    }
}
