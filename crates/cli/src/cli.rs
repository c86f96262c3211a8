//! Commands and flags.

use crate::link::LinkFlag;
use crate::rank_count::RankCount;
use clap::builder::RangedU64ValueParser;
use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;
use phalanx_algo::{Algorithm, Selector, WORLD_SIZE_MAX, Way};
use phalanx_bench::{SizeFlags, parse_bytes};
use phalanx_core::OpKind;
use phalanx_launch::Elastic;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

/// Distributed training for Rust: starts the ranks of a program and looks after them.
#[derive(Debug, Parser)]
#[command(name = "phalanx", version, max_term_width = 100, arg_required_else_help = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
#[allow(clippy::large_enum_variant, reason = "a process has one")]
pub(crate) enum Command {
    Run(Run),
    /// Measure every operation on every backend, beside other libraries if you like
    ///
    /// Prints the table of nccl-tests: time (the median), its 99th percentile, algbw (size / time), busbw (algbw times
    /// the operation's factor), and the elements that came out wrong. A sample is {rewrite the buffer, barrier,
    /// clock, operation, clock}, and the longest of all ranks counts. Sizes are those of the whole buffer: one rank's for
    /// all_reduce, broadcast, reduce and send_recv, that of all blocks together for the others. send_recv is half of a
    /// way there and back.
    ///
    /// Ranks are started on this host; under a launcher (`phalanx run`, torchrun) it measures the ranks that there are.
    #[command(after_help = AFTER_BENCH)]
    Bench(phalanx_bench::Flags),
    /// Measure once what moving bytes costs on this machine, so that jobs choose algorithms by it
    ///
    /// Takes about two seconds; let nothing else run meanwhile. The prices are kept in phalanx/machine.json under XDG_CACHE_HOME
    /// or ~/.cache, and hold until processor, cores or kernel change. In a job those of rank 0 count. Without them phalanx
    /// takes built-in ones.
    Tune,
    /// What `phalanx run --hosts` starts on the other hosts
    #[command(hide = true)]
    Agent,
    /// Look at the collective algorithms: list them, draw them, price them, prove them
    #[command(subcommand)]
    Algo(Algo),
    /// Predict what operations would cost on a cluster of any size, by the cost model
    ///
    /// For each operation, size and algorithm: the time, the bytes of the busiest rank and of a host's network card, messages, and rounds; which one
    /// is chosen, and from which size. Nothing is measured and no rank is started. Sizes are those of `phalanx bench`, of f32.
    Simulate(Simulate),
    /// Put together what the ranks of a job wrote of their latest operations, and say who went astray
    ///
    /// Ranks write trace_rank_N.json into the folder PHALANX_TRACE_DIR (`phalanx run --log-dir` sets it) when a group fails, when
    /// SIGUSR1 asks for it (PHALANX_TRACE_SIGNAL=1), and where the program calls dump_trace. Says for each group who called
    /// something else than the others and where, who did not come, who was late, or that all agree.
    Trace(Trace),
    /// Print what a shell reads to complete commands and flags
    ///
    /// As in `source <(phalanx completions bash)`, or kept as a file where the shell looks for such.
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Print a man page, as in `phalanx man run | man -l -`
    Man {
        /// The command that it is of [default: all]
        command: Option<String>,
    },
}

const AFTER_BENCH: &str = "\
With --against, a peer counts with the better of in place and out of place and with its fastest algorithm, is compiled \
for this machine and given its best settings. In every round each operation is measured by one library right after the \
other; ratios are ours / theirs, within a round. scripts/install-peers installs the peers on Debian.

Exit code: 0 if all went well; 1 if data came out wrong or ranks failed; 2 for wrong usage; 127 if a peer is not installed.";

const AFTER_RUN: &str = "\
Exit code: 0 if all ranks exit with 0; else that of the rank that failed first, or 128 + signal if one killed it (if it \
ended with 0 too early, or hung and had to be ended: that of the first rank that failed because of it); 128 + signal if one ended phalanx; 124 if time ran out; 127 if there is no such program, 126 if it cannot be executed; \
2 for wrong usage. Of a job that is restarted the last attempt counts.

Signals: SIGINT, SIGTERM and SIGHUP are passed on to all ranks; a second one kills them at once. SIGUSR1 and SIGUSR2 are \
passed on to those that have a handler, and end nothing. Of several hosts, a signal to any of the commands is one to the job.

Environment: PHALANX_LOG=debug shows what phalanx itself does. Where another launcher has started this command once on each \
host, they make one job: node rank, hosts, ranks and rendezvous are taken from PET_* (torchrun, Kubeflow), SLURM_* (srun with one task a node), SKYPILOT_*, \
RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT (a PyTorchJob), JOB_COMPLETION_INDEX, as far as they say them and no flag does. Where that is not enough, each \
would make a job of its own: that is refused, unless PHALANX_ALONE=1 says that it is meant.

Several hosts: they wait for each other for PHALANX_INIT_TIMEOUT_S (120); a host of which nothing is heard for three fifths of \
PHALANX_HEARTBEAT_TIMEOUT_S (10) is lost. PHALANX_HOST_ID is the name of this host in lines and reports, if it is to be another than the system's. Of commands that are \
started on each host, program, arguments, -n, --env, -x, --wdir, --bind-to, --encrypt, --backend, --op-timeout and --heartbeat are those of each host's own, and all \
else is that of node rank 0; with --hosts one command says all.";

/// Start N ranks of a program, on this host or on several
///
/// Each rank learns from its environment who it is and where the others are: phalanx::init() reads it, and so does
/// software written for torchrun. What the ranks write is shown line by line behind their rank. When one fails, the
/// others are ended, and a report says which was first, how it ended, what the ranks say of it, and what it last wrote to
/// stderr.
///
/// On several hosts this command is started on each (--nnodes, --node-rank, --rendezvous, and a secret), by hand or by another
/// launcher, or --hosts starts it there through ssh. The one of node rank 0 leads; all end with the job's exit code.
#[derive(Debug, Args)]
#[command(after_long_help = AFTER_RUN)]
pub(crate) struct Run {
    /// How many ranks to start on this host, -np as well: a number; cpu: one for each core that this process may use; gpu: one for
    /// each GPU of NVIDIA's (CUDA_VISIBLE_DEVICES, else those of the driver); auto: gpu where there is one, else cpu [default: what the environment of another launcher says]
    #[arg(
        short = 'n',
        long = "nproc-per-node",
        visible_aliases = ["ranks", "np"],
        alias = "nproc",
        value_name = "N|auto|gpu|cpu"
    )]
    pub(crate) ranks: Option<RankCount>,

    /// Start a failed job again, all its ranks, up to N times [default: 0]; with --elastic replace up to
    /// N processes in all [default: 3 * MAX]
    #[arg(long, value_name = "N")]
    pub(crate) max_restarts: Option<usize>,

    /// Start MAX ranks; replace only those that fail, and go on while at least MIN are left. The program must
    /// use ProcessGroup::rejoin. Several hosts may have room for more than MAX (-n on each): who is lost with its host is replaced there
    #[arg(long, value_name = "MIN:MAX")]
    pub(crate) elastic: Option<Elastic>,

    /// Keep each rank's output in DIR/JOB_ID/attempt_K/RANK/{stdout,stderr}.log (K: its restarts), and in
    /// DIR/JOB_ID/attempt_K what each did lately if it fails (see phalanx trace); with --elastic always under attempt_0
    #[arg(long, value_name = "DIR")]
    pub(crate) log_dir: Option<PathBuf>,

    /// Write how the job ended to FILE, as one line of JSON: outcome, exit code, the rank that is named with its cause and the end of its stderr,
    /// restarts, times. FILE is emptied when the job begins
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,

    /// Name of the job, in its environment and its log folder [default: random]
    #[arg(long, value_name = "ID")]
    pub(crate) job_id: Option<String>,

    /// End the job if it takes longer than this many seconds
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub(crate) timeout: Option<Duration>,

    /// Time between SIGTERM and SIGKILL for ranks that have to end
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "5")]
    pub(crate) grace: Duration,

    /// Show lines as the ranks wrote them, without `[rank] `, or of several hosts `[rank host] `, in front
    #[arg(long)]
    pub(crate) no_prefix: bool,

    /// Show lines with `[rank] ` in front, which is so anyway
    #[arg(long, conflicts_with = "no_prefix")]
    pub(crate) tag_output: bool,

    /// Show lines with the time (UTC) at which they were read here, as `[rank 2026-11-24T17:52:35.123Z] `; with --no-prefix as
    /// `[2026-11-24T17:52:35.123Z] `
    #[arg(long, alias = "timestamp-output")]
    pub(crate) timestamps: bool,

    /// Encrypt all that ranks say to each other over TCP, as PHALANX_ENCRYPT=1 does
    #[arg(long)]
    pub(crate) encrypt: bool,

    /// Set an environment variable in all ranks; can be given several times
    #[arg(long = "env", value_name = "NAME=VALUE", value_parser = variable)]
    pub(crate) env: Vec<(String, String)>,

    /// As --env; without a value, the one that the variable has here, which must be set. Ranks of this host inherit all variables as it is;
    /// those that --hosts starts elsewhere have only PHALANX_*, --env and -x from here
    #[arg(short = 'x', value_name = "NAME[=VALUE]")]
    pub(crate) passed: Vec<String>,

    /// The folder in which the ranks start, -wdir as well; a program that is given as ./NAME is looked up from there [default: this one]
    #[arg(long, aliases = ["chdir", "wd"], value_name = "DIR")]
    pub(crate) wdir: Option<PathBuf>,

    /// What performs the operations: auto, shm, tcp, or a name that the program has registered. Sets PHALANX_BACKEND
    #[arg(long, value_name = "NAME", value_parser = backend)]
    pub(crate) backend: Option<String>,

    /// Time limit of each operation of the ranks, unless the program sets another. Sets PHALANX_TIMEOUT_S
    #[arg(long, value_name = "SECONDS")]
    pub(crate) op_timeout: Option<String>,

    /// A rank that shows no sign of life for so long is lost; 0 waits for ever. Sets PHALANX_HEARTBEAT_TIMEOUT_S
    #[arg(long, value_name = "SECONDS")]
    pub(crate) heartbeat: Option<String>,

    /// Which rank reads the standard input of this command: 0, or none, which leaves the keyboard to others. The other ranks find theirs
    /// empty. What is typed into a terminal comes to rank 0 through a pipe, a line at a time
    #[arg(long, value_name = "RANK", value_parser = ["0", "none"], default_value = "0")]
    pub(crate) stdin: String,

    /// Bind each rank to cores of those that this command may use: core, to its share of them, a whole number of cores where there are as many as
    /// ranks; numa, to those of a NUMA node, which the ranks take in turn
    #[arg(long, value_name = "WHAT", value_parser = ["core", "numa", "none"], default_value = "none")]
    pub(crate) bind_to: String,

    /// The program, looked up in PATH unless it contains a slash, and its arguments, passed on as they are
    #[arg(trailing_var_arg = true, required = true, num_args = 1.., value_names = ["PROGRAM", "ARGS"])]
    pub(crate) command: Vec<OsString>,

    #[command(flatten)]
    pub(crate) hosts: Hosts,
}

/// A job over several hosts: this command on each of them.
#[derive(Debug, Args)]
#[command(next_help_heading = "Several hosts")]
pub(crate) struct Hosts {
    /// How many hosts the job has: this command is started on each, and -n counts the ranks of its own host
    #[arg(long, value_name = "HOSTS")]
    pub(crate) nnodes: Option<usize>,

    /// The number of this host, from 0. The command of number 0 leads: it supervises all ranks, shows their output and has
    /// the report; what is to hold for the whole job, as --max-restarts or --log-dir, counts from there
    #[arg(long, value_name = "K")]
    pub(crate) node_rank: Option<usize>,

    /// Where the command of node rank 0 listens and the others call it. It takes two more ports, any that are free
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) rendezvous: Option<String>,

    /// A file with 64 hexadecimal digits (openssl rand -hex 32), the same on all hosts, that only its owner can read: who
    /// knows them belongs to the job [default: PHALANX_SECRET_FILE or PHALANX_SECRET]
    #[arg(long, value_name = "FILE")]
    pub(crate) secret_file: Option<String>,

    /// Instead of a command on each host: start on all of these, through ssh, from the first, which is this host. HOST:N has
    /// N ranks, the others as many as -n says
    #[arg(long, value_name = "HOST[:N],...", value_delimiter = ',', conflicts_with_all = ["nnodes", "node_rank", "secret_file"])]
    pub(crate) hosts: Vec<String>,

    /// As --hosts, from a file: a host a line, as HOST, HOST:N or HOST slots=N
    #[arg(long, value_name = "FILE", conflicts_with_all = ["hosts", "nnodes", "node_rank", "secret_file"])]
    pub(crate) hostfile: Option<PathBuf>,

    /// What starts a program on another host, instead of `ssh -T -o BatchMode=yes`; words are separated by spaces
    #[arg(long, value_name = "COMMAND")]
    pub(crate) ssh: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct Trace {
    /// One file of each rank; or a folder of logs, of which the newest attempt and generation are taken
    #[arg(value_name = "FILE|DIR", required = true, num_args = 1..)]
    pub(crate) files: Vec<PathBuf>,

    /// Write a timeline of all ranks to OUT.json, for ui.perfetto.dev or chrome://tracing
    #[arg(long, value_name = "OUT.json")]
    pub(crate) chrome: Option<PathBuf>,

    /// Print the verdict as JSON, for programs that read it
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Simulate {
    /// Ranks of all hosts
    #[arg(short = 'n', long, value_name = "N", value_parser = RangedU64ValueParser::<usize>::new().range(1..=1_000_000))]
    pub(crate) ranks: usize,

    /// Ranks on each host; the last one has what is left
    #[arg(long, value_name = "N", default_value = "1", value_parser = RangedU64ValueParser::<usize>::new().range(1..=1_000_000))]
    pub(crate) ranks_per_host: usize,

    /// Between hosts: bits a second that a host's network card carries in each direction (or bytes: 3.1GB/s), and the time of a short message
    #[arg(long, value_name = "BANDWIDTH,LATENCY", default_value = "25G,10us")]
    pub(crate) link: LinkFlag,

    /// Inside a host: what a rank copies, and how long others take to see it
    #[arg(long, value_name = "BANDWIDTH,LATENCY", default_value = "120G,500ns")]
    pub(crate) host_link: LinkFlag,

    /// Operations to price [default: all]
    #[arg(long, value_name = "OP,…", value_delimiter = ',', value_parser = operation)]
    pub(crate) ops: Vec<OpKind>,

    #[command(flatten)]
    pub(crate) sizes: SizeFlags,

    /// Print JSON instead of tables
    #[arg(long)]
    pub(crate) json: bool,

    /// Draw time over size, as text
    #[cfg(feature = "plot")]
    #[arg(long, conflicts_with = "json")]
    pub(crate) draw: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Algo {
    /// List all algorithms with what they cost
    List,

    /// Show an algorithm's properties and the schedule of its ranks
    Draw {
        /// The algorithm, as in all_reduce/ring or all_reduce/shm/push
        name: Way,
        /// Number of ranks
        #[arg(long, value_name = "N", default_value = "4", value_parser = RangedU64ValueParser::<usize>::new().range(1..=32))]
        world: usize,
    },

    /// Say which algorithm an operation takes, and why
    Explain {
        /// The operation, as in all_reduce
        #[arg(value_parser = operation)]
        op: OpKind,
        /// Size of the buffer in bytes; 64K and 64KiB are 65536
        #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
        bytes: usize,
        /// Number of ranks
        #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<usize>::new().range(1..=1_000_000))]
        world: usize,
        /// How many of the ranks are on one host [default: all]
        #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
        local_world: Option<usize>,
        /// How many cores that host has [default: as this one]
        #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
        cores: Option<usize>,
        /// Algorithms to take whatever they cost, as in all_reduce=ring,broadcast=shm/staged
        #[arg(long, value_name = "CHOICES", default_value = "", value_parser = Selector::forced_from)]
        force: Selector,
    },

    /// Prove that the schedules of all algorithms are right, for every world up to a size
    Check {
        /// Largest number of ranks
        #[arg(long, value_name = "N", default_value = "16",
            value_parser = RangedU64ValueParser::<usize>::new().range(1..=WORLD_SIZE_MAX as u64))]
        world: usize,
    },
}

fn operation(name: &str) -> Result<OpKind, String> {
    let mut ops: Vec<_> = Algorithm::ALL.iter().map(|algorithm| algorithm.op()).collect();
    ops.dedup();
    let names = || ops.iter().map(|op| op.name()).collect::<Vec<_>>().join(", ");
    ops.iter().copied().find(|op| op.name() == name).ok_or_else(|| format!("the collectives are {}", names()))
}

fn seconds(text: &str) -> Result<Duration, String> {
    let number = text.parse().map_err(|_| "not a number of seconds".to_owned())?;
    Duration::try_from_secs_f64(number).map_err(|error| error.to_string())
}

/// Backends have names that a variable can hold; which there are, only the program knows.
fn backend(text: &str) -> Result<String, String> {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-_".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        Ok(text.to_owned())
    } else {
        Err("a backend has a name of lower-case letters, digits, `-` and `_`: auto, shm, tcp, or one that the program has registered".into())
    }
}

fn variable(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("there is no `=` as in NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn help(of: &[&str]) -> String {
        let mut command = Cli::command().term_width(100);
        command.build();
        let command =
            of.iter().fold(&mut command, |command, name| command.find_subcommand_mut(name).unwrap());
        command.clone().term_width(100).render_long_help().to_string()
    }

    fn run(words: &[&str]) -> Result<Run, clap::Error> {
        Cli::try_parse_from(words).map(|cli| match cli.command {
            Command::Run(run) => run,
            other => panic!("{other:?}"),
        })
    }

    #[test]
    fn flags_are_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_help_reads_well() {
        insta::assert_snapshot!("help", help(&[]));
        insta::assert_snapshot!("help_run", help(&["run"]));
        #[cfg(feature = "plot")]
        insta::assert_snapshot!("help_bench", help(&["bench"]));
        insta::assert_snapshot!("help_algo", help(&["algo"]));
        #[cfg(feature = "plot")]
        insta::assert_snapshot!("help_simulate", help(&["simulate"]));
        insta::assert_snapshot!("help_trace", help(&["trace"]));
    }

    #[test]
    fn everything_after_the_program_is_its_own() {
        let words =
            ["phalanx", "run", "-n", "2", "train", "-n", "7", "--grace", "x", "--help", "--", "--env"];
        let run = run(&words).unwrap();
        assert_eq!(run.ranks, Some(RankCount::Number(2)));
        assert_eq!(run.command, &words[4..]);
    }

    #[test]
    fn flags_of_torchrun_users_work() {
        for flag in ["-n", "--nproc-per-node", "--nproc", "--np", "--ranks"] {
            let run = run(&["phalanx", "run", flag, "3", "train"]).unwrap();
            assert_eq!(run.ranks, Some(RankCount::Number(3)));
        }
    }

    #[test]
    fn nonsense_is_refused() {
        for (words, complaint) in [
            (&["-n", "two", "train"][..], "a number of ranks, or auto, gpu or cpu"),
            (&["-n", "2"], "<PROGRAM>"),
            (&["-n", "2", "--bogus", "train"], "--bogus"),
            (&["-n", "2", "--grace=-1", "train"], "--grace"),
            (&["-n", "2", "--timeout", "soon", "train"], "not a number of seconds"),
            (&["-n", "2", "--timeout", "nan", "train"], "timeout"),
            (&["-n", "2", "--env", "A", "train"], "no `=`"),
            (&["--elastic", "4:2", "train"], "no MIN:MAX"),
            (&["-n", "2", "--max-restarts=-1", "train"], "--max-restarts"),
        ] {
            let error = run(&[&["phalanx", "run"], words].concat()).unwrap_err();
            assert_eq!(error.exit_code(), 2);
            assert!(error.to_string().contains(complaint), "{words:?}: {error}");
        }
    }
}
