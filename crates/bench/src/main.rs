//! Sweeps the collectives over sizes and prints one line of CSV for each case.
//!
//! The program starts its own ranks (`--ranks 4`), or is one of them when a launcher has started it. The columns are those
//! of the peers' benchmarks in `crates/bench/peers`, so that results can be put one behind the other; `compare.py`
//! runs them in turn and divides.

mod case;
mod line;
mod op;
mod timing;

use case::Case;
use clap::{Parser, ValueEnum};
use line::Line;
use op::Op;
use phalanx::launch::{Launch, Outcome};
use phalanx::{Error, ProcessGroup, Result, SimulatedBackend};
use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

/// Sizes at which every operation is measured.
const SIZES: [usize; 10] =
    [4, 64, 1 << 10, 8 << 10, 64 << 10, 512 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20];

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Transport {
    /// Ranks are processes that talk over TCP.
    Tcp,
    /// Ranks are threads of one process.
    Thread,
}

/// Measure the collectives.
#[derive(Debug, Parser)]
#[command(version)]
struct Flags {
    /// How many ranks to start, unless a launcher has started this program as one.
    #[arg(long, short, default_value_t = 2)]
    ranks: usize,
    #[arg(long, value_enum, default_value_t = Transport::Tcp)]
    transport: Transport,
    /// Operations to measure; all by default.
    #[arg(long, value_enum, value_delimiter = ',')]
    ops: Vec<Op>,
    /// Sizes up to this are measured.
    #[arg(long, default_value_t = 64 << 20)]
    max_bytes: usize,
    /// Sizes from this on are measured.
    #[arg(long, default_value_t = 0)]
    min_bytes: usize,
    /// About how long each case is measured.
    #[arg(long, default_value_t = 300)]
    budget_ms: u64,
    /// The first column.
    #[arg(long, default_value = "phalanx")]
    peer: String,
    /// Algorithms to use instead of the recommended ones: `all_reduce=ring,broadcast=binomial`.
    #[arg(long, default_value = "")]
    algorithms: String,
}

fn main() -> ExitCode {
    let flags = Flags::parse();
    let done = match flags.transport {
        Transport::Thread => threads(&flags),
        Transport::Tcp if std::env::var_os("WORLD_SIZE").is_some() => {
            phalanx::init().and_then(|group| sweep(group, &flags))
        }
        Transport::Tcp => processes(&flags),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "phalanx-bench: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Starts this program once for each rank.
fn processes(flags: &Flags) -> Result<()> {
    let myself = std::env::current_exe().map_err(|e| Error::io("looking for this program", e))?;
    let launch = Launch::new(myself).args(std::env::args_os().skip(1)).ranks(flags.ranks).prefix(false);
    match launch.env("PHALANX_ALGO", &flags.algorithms).run()? {
        Outcome::Success => Ok(()),
        failure => Err(Error::Unavailable { what: "a result".into(), tried: failure.to_string() }),
    }
}

fn threads(flags: &Flags) -> Result<()> {
    let groups =
        SimulatedBackend::create_group_with(flags.ranks, Duration::from_secs(60), &flags.algorithms)?;
    std::thread::scope(|scope| {
        let ranks: Vec<_> =
            groups.into_iter().map(|group| scope.spawn(move || sweep(group, flags))).collect();
        ranks.into_iter().try_for_each(|rank| rank.join().expect("a rank panicked"))
    })
}

/// One rank's part: every operation at every size; rank 0 reports.
fn sweep(group: ProcessGroup, flags: &Flags) -> Result<()> {
    let ops = if flags.ops.is_empty() { Op::value_variants() } else { &flags.ops };
    let budget = Duration::from_millis(flags.budget_ms);
    for &op in ops {
        for &bytes in op.sizes(&SIZES) {
            if bytes < flags.min_bytes || bytes > flags.max_bytes {
                continue;
            }
            let Some(mut case) = Case::new(op, bytes, &group) else { continue };
            let timing = timing::measure(&group, &mut case, budget)?;
            if group.rank() == 0 {
                let line = Line { peer: &flags.peer, group: &group, op, bytes, timing };
                // A reader that has left (`| head`) is no failure.
                let _ = writeln!(std::io::stdout(), "{line}");
            }
        }
    }
    group.finalize()
}
