//! The flags of `phalanx bench`.

use crate::backend::{Backend, backend};
use crate::effort::Effort;
use crate::op::Op;
use crate::peers::Asked;
use crate::sizes::SizeFlags;
use crate::subject::Subject;
use crate::task::Task;
use crate::timing::SAMPLES;
use clap::builder::RangedU64ValueParser;
use clap::{Args, ValueEnum};
use phalanx::{DType, Error, ReduceOp, Result};
use std::path::PathBuf;
use std::time::Duration;

/// Whether operations on buffers of the group are measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Registered {
    /// Instead of those on a program's own buffers
    Only,
    /// Beside them
    Also,
}

/// The flags of `phalanx bench`.
#[derive(Debug, Clone, Args)]
pub struct Flags {
    /// Ranks to start; several numbers are measured one after the other
    #[arg(short = 'n', long, visible_alias = "nproc-per-node", value_name = "N,…", value_delimiter = ',',
        default_value = "2", value_parser = RangedU64ValueParser::<usize>::new().range(1..=1024))]
    pub(crate) ranks: Vec<usize>,

    /// Backends to measure: auto, shm, tcp, thread (ranks as threads of one process), or what this program has registered
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', default_value = "auto", value_parser = backend)]
    pub(crate) backend: Vec<Backend>,

    /// Operations to measure [default: all]
    #[arg(long, value_enum, value_name = "OP,…", value_delimiter = ',')]
    pub(crate) ops: Vec<Op>,

    #[command(flatten)]
    pub(crate) sizes: SizeFlags,

    /// Element type: f32, f64, f16, bf16, i8 to i64, u8 to u64
    #[arg(short = 'd', long, value_name = "TYPE", default_value = "f32", value_parser = dtype)]
    pub(crate) dtype: DType,

    /// How contributions are combined: sum, avg, prod, min, max; bit_and, bit_or, bit_xor for integers
    #[arg(short = 'o', long, value_name = "OP", default_value = "sum", value_parser = reduce_op)]
    pub(crate) redop: ReduceOp,

    /// About how long each case is measured, in milliseconds
    #[arg(long, value_name = "MS", default_value = "100", value_parser = RangedU64ValueParser::<u64>::new().range(1..=3_600_000))]
    pub(crate) budget_ms: u64,

    /// Samples of each case, instead of a budget
    #[arg(long, value_name = "N",
        value_parser = RangedU64ValueParser::<usize>::new().range(1..=*SAMPLES.end() as u64))]
    pub(crate) iters: Option<usize>,

    /// Operations of each case before those that count [default: a tenth of the samples]
    #[arg(long, value_name = "N")]
    pub(crate) warmup: Option<usize>,

    /// Don't rewrite the buffers before each operation: flatters whoever leaves them in a cache
    #[arg(long)]
    pub(crate) no_touch: bool,

    /// Algorithms to take instead of the recommended ones, as in all_reduce=ring,broadcast=binomial
    #[arg(long, value_name = "CHOICES")]
    pub(crate) algorithms: Option<String>,

    /// Measure operations on buffers made by the group (`ProcessGroup::alloc`), which ranks of a host share
    #[arg(long, value_enum, value_name = "WHEN", num_args = 0..=1, default_missing_value = "only")]
    pub(crate) registered: Option<Registered>,

    /// Measure the least that an operation can take, and print ratios. In shared memory what an all_reduce in place reads
    /// and writes, without a word between ranks; over TCP what two ranks send, through a plain socket
    #[arg(long)]
    pub(crate) limit: bool,

    /// Measure beside so many other processes that use all they get of a core, with the priority of the ranks
    #[arg(long, value_name = "N", default_value = "0", hide_default_value = true,
        value_parser = RangedU64ValueParser::<usize>::new().range(0..=1024))]
    pub(crate) hogs: usize,

    /// Measure other libraries too, in turn, and print ratios; `installed` means those that are. The better of in place
    /// and out of place counts, for ours and for theirs
    #[arg(long, value_enum, value_name = "PEER,…", value_delimiter = ',')]
    pub(crate) against: Vec<Asked>,

    /// How often everything is measured; medians of rounds are reported [default: 3 where anything is compared, else 1]
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<usize>::new().range(1..=1000))]
    pub(crate) rounds: Option<usize>,

    /// Let the MPI libraries bind each rank to a core where there are enough; else no rank of any library is bound, as
    /// ours never are
    #[arg(long)]
    pub(crate) bind: bool,

    /// Take Open MPI and MPICH from their Python packages, which are newer than Debian's: each from the Python environment of its name in that of --peers
    #[arg(long)]
    pub(crate) newest: bool,

    /// The Python environment in which PyTorch and Intel MPI are installed
    #[arg(
        long,
        value_name = "DIR",
        env = "PHALANX_PEERS",
        hide_env_values = true,
        default_value = "/opt/phalanx-peers"
    )]
    pub(crate) peers: PathBuf,

    /// Compare with an earlier record of this machine, the .csv of --record or --csv: exits with 1 if a case takes over 10 % longer. It needs the flags
    /// of the record
    #[arg(long = "check", value_name = "RECORD")]
    pub(crate) earlier: Option<PathBuf>,

    /// Print JSON instead of tables
    #[arg(long)]
    pub(crate) json: bool,

    /// Write one line a measurement to this file
    #[arg(long, value_name = "FILE")]
    pub(crate) csv: Option<PathBuf>,

    /// Draw latency and bandwidth over size, as SVG or PNG by the name's ending
    #[cfg(feature = "plot")]
    #[arg(long, value_name = "FILE", value_parser = picture)]
    pub(crate) plot: Option<PathBuf>,

    /// Draw the ratios to the fastest other library as a grid, an operation a row and a size a column, as SVG or PNG
    #[cfg(feature = "plot")]
    #[arg(long, value_name = "FILE", value_parser = picture)]
    pub(crate) grid: Option<PathBuf>,

    /// Keep a record in this folder: DATE-WHAT.md with the machine and the tables, .csv and .svg
    #[arg(long, value_name = "DIR")]
    pub(crate) record: Option<PathBuf>,
}

impl Flags {
    /// Refuses what cannot be measured.
    pub(crate) fn check(&self) -> Result<()> {
        self.sizes.check()?;
        self.redop.check(self.dtype).map_err(Error::config)?;
        if (!self.against.is_empty() || self.limit) && (self.dtype, self.redop) != (DType::F32, ReduceOp::Sum)
        {
            return Err(Error::config("--against and --limit compare sums of f32 only"));
        }
        #[cfg(feature = "plot")]
        if self.grid.is_some() && self.against.is_empty() {
            return Err(Error::config("--grid draws ratios to other libraries: name some with --against"));
        }
        Ok(())
    }

    /// Fits the flags to ranks that a launcher has started, of which there are `world_size`.
    ///
    /// # Errors
    /// `Config`: something is asked for that only those who start the ranks can do.
    pub(crate) fn launched(&self, world_size: usize) -> Result<Self> {
        if !self.against.is_empty() || self.algorithms.is_some() || self.backend != [Backend::AUTO] {
            let what = "ranks of a launcher cannot be measured with --against, --algorithms or --backend; \
                        PHALANX_ALGO and PHALANX_BACKEND can be set for them";
            return Err(Error::config(what));
        }
        Ok(Self { ranks: vec![world_size], ..self.clone() })
    }

    /// Which of our own are measured.
    pub(crate) fn subjects(&self) -> Vec<Subject> {
        let ours: &[Subject] = match self.registered {
            None => &[Subject::Plain],
            Some(Registered::Only) => &[Subject::Registered],
            Some(Registered::Also) => &[Subject::Plain, Subject::Registered],
        };
        ours.iter().copied().chain(self.limit.then_some(Subject::Limit)).collect()
    }

    pub(crate) fn rounds(&self) -> usize {
        let compares = !self.against.is_empty() || self.subjects().len() > 1;
        self.rounds.unwrap_or(if compares { 3 } else { 1 })
    }

    pub(crate) fn ops(&self) -> &[Op] {
        if self.ops.is_empty() { Op::value_variants() } else { &self.ops }
    }

    /// The task of measuring `op` among `ranks`: sizes too small to be dealt out are left out.
    pub(crate) fn task(&self, op: Op, ranks: usize) -> Task {
        let sizes = self.sizes.sweep();
        let fits = |&bytes: &usize| op.count(bytes, ranks, self.dtype.size()).is_some();
        let bytes = op.sizes(&sizes).iter().copied().filter(fits).collect();
        Task {
            op,
            subject: Subject::Plain,
            bytes,
            dtype: self.dtype,
            reduce: self.redop,
            effort: self.effort(),
            rounds: 1,
            turns: None,
        }
    }

    pub(crate) fn effort(&self) -> Effort {
        Effort {
            budget: Duration::from_millis(self.budget_ms),
            samples: self.iters,
            warmup: self.warmup,
            touch: !self.no_touch,
        }
    }
}

fn dtype(name: &str) -> Result<DType, String> {
    named(&DType::ALL, DType::name, name)
}

fn reduce_op(name: &str) -> Result<ReduceOp, String> {
    named(&ReduceOp::ALL, ReduceOp::name, name)
}

fn named<T: Copy>(all: &[T], name_of: impl Fn(T) -> &'static str, name: &str) -> Result<T, String> {
    let names = || all.iter().map(|&one| name_of(one)).collect::<Vec<_>>().join(", ");
    all.iter().copied().find(|&one| name_of(one) == name).ok_or_else(|| format!("there are {}", names()))
}

#[cfg(feature = "plot")]
fn picture(name: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(name);
    match path.extension().and_then(|end| end.to_str()) {
        Some("svg" | "png") => Ok(path),
        _ => Err("the name must end in .svg or .png".to_owned()),
    }
}
