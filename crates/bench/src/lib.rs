//! `phalanx bench`: what every operation costs on every backend, beside other libraries if they are installed.
//!
//! ```sh
//! phalanx bench                                       # all operations, 2 ranks, 4 B to 64 MiB
//! phalanx bench -n 2,4,8 --backend shm,tcp --ops all_reduce --csv figures.csv --plot figures.svg
//! phalanx bench --against openmpi,mpich,intelmpi,gloo,torch-gloo --record benches/record
//! phalanx bench --ops all_reduce --registered also --limit    # beside what memory, or a socket, allows
//! phalanx bench --check benches/record/2026-11-21-tcp.csv    # has anything become slower since?
//! phalanx bench -n 4 -e 4 --hogs 2 --against openmpi    # on a machine that others use too
//! ```
//!
//! # Method
//! A **sample** is {rewrite the buffer, barrier, clock, operation, clock}, and the longest of all ranks counts. Rewriting
//! is what a training program does: without it, data that never leaves a cache flatters whoever copies least.
//! The data is checked before and after the samples. Of some ten to some thousand samples the median is the
//! reported **time**; percentiles stand in the JSON and CSV. **algbw** is size / time, and **busbw** is algbw times a factor
//! of the operation, so that it can be compared with what a link can carry; both as in nccl-tests, and so are the sizes.
//!
//! # Comparison
//! The peers' programs measure in the same way, are compiled for this machine, are given their best settings, and count
//! with the better of in place and out of place, as ours does, and with their fastest algorithm where they let the user
//! choose. Our operations on buffers of the group, and the limit that memory or a plain socket sets, stand beside them like libraries.
//! The ranks of all libraries are started first and take turns ([`turns`]): in every round each case is measured by one library right after the
//! other. Ratios are taken within a round, and medians of rounds are shown. A ratio below 1 means that phalanx took less time.
//!
//! # Features
//! `plot`, on unless turned off: `--plot`, and the picture of `--record`. It brings 48 crates.
//!
//! # Inside
//! A library ([`library`]) performs a task ([`task`]) with ranks of its own and says a line ([`line`]) for each case;
//! ours does so too, in processes that are this program again ([`rank`]). All else is arithmetic on a [`Report`].
//!
//! Deliberately absent: micro-benchmarks of kernels, which need no ranks.
#![allow(rustdoc::private_intra_doc_links, reason = "the section Inside is for who reads the source")]

mod backend;
mod case;
#[cfg(feature = "plot")]
mod cells;
mod check;
mod compare;
mod data;
mod effort;
mod flags;
#[cfg(feature = "plot")]
mod grid;
mod hogs;
mod job;
mod library;
mod limit;
mod line;
mod listener;
mod machine;
mod op;
mod output;
mod peers;
mod player;
#[cfg(feature = "plot")]
mod plot;
mod progress;
mod rank;
mod record;
mod report;
mod setting;
mod sizes;
mod stats;
mod subject;
mod sweep;
mod table;
mod task;
mod timing;
mod turns;
mod wire;

pub use backend::Backend;
pub use flags::Flags;
pub use machine::Machine;
pub use op::{Op, Place};
pub use report::Report;
pub use sizes::{SizeFlags, parse_bytes, short, sweep};
pub use stats::Stats;
pub use table::time;

use check::{Checked, Earlier};
use hogs::Hogs;
use library::Library;
use phalanx::{Error, Result};
use std::io::Write;
use task::Task;

/// Draws values over sizes as text, with logarithmic axes as the pictures have: a letter for each line, whose names stand below. A line is its name
/// and its (bytes, value) pairs, all more than 0. The drawing is `size` characters wide and high.
///
/// # Errors
/// [`Internal`](Error::Internal): it can't be drawn, as where `size` leaves no room beside the axes.
///
/// # Examples
/// ```
/// let ring = ("ring".to_owned(), vec![(64.0, 10.0), (4096.0, 20.0), (1048576.0, 900.0)]);
/// let text = phalanx_bench::draw_text("all_reduce", "µs", &[ring], (60, 12))?;
/// assert!(text.contains("4 KiB") && text.ends_with("a ring\n"), "{text}");
/// # Ok::<(), phalanx::Error>(())
/// ```
#[cfg(feature = "plot")]
pub fn draw_text(
    title: &str,
    unit: &str,
    lines: &[(String, Vec<(f64, f64)>)],
    size: (u32, u32),
) -> Result<String> {
    plot::text(title, unit, lines, size)
}

/// Whether all is well with what was measured.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Elements of ours that came out wrong.
    pub wrong: u64,
    /// Cells that take over 10 % longer than in the record of `--check`.
    pub slower: usize,
}

/// Measures what `flags` ask for, and writes tables or JSON to `out`.
///
/// Starts ranks by running this program again with the same arguments, so it must be called early, by a program that
/// does nothing else with them. In such a rank, and in a rank that a launcher has started, it takes its part
/// instead; only rank 0 then writes to `out`.
///
/// # Errors
/// [`Config`](Error::Config): the flags contradict each other, or the record is of another machine. [`Unavailable`](Error::Unavailable): a peer that was asked
/// for by name is not installed. [`Io`](Error::Io): our ranks failed, or a file cannot be written or read. What operations return.
pub fn run(flags: &Flags, out: &mut dyn Write) -> Result<Verdict> {
    flags.check()?;
    if hogs::is_one() {
        hogs::spin();
    }
    if let Some(task) = Task::from_env()? {
        return rank::process(&task).map(|()| Verdict::default());
    }
    if std::env::var_os("WORLD_SIZE").is_some() {
        let group = phalanx::init()?;
        let flags = flags.launched(group.world_size())?;
        let joined = |subject| Library::Joined { subject, group: group.clone() };
        let libraries: Vec<_> = flags.subjects().into_iter().map(joined).collect();
        let verdict = match group.rank() {
            0 => present(&flags, &libraries, out)?,
            _ => {
                Verdict { wrong: sweep::sweep(&flags, &libraries, &mut std::io::sink())?.wrong(), slower: 0 }
            }
        };
        return group.finalize().map(|()| verdict);
    }
    let scratch = tempfile::tempdir().map_err(|e| Error::io("making a temporary folder", e))?;
    let ours = |subject| Library::Ours { subject, algorithms: flags.algorithms.clone() };
    let mut libraries: Vec<_> = flags.subjects().into_iter().map(ours).collect();
    let setup = peers::Setup { tools: &flags.peers, bind: flags.bind, newest: flags.newest };
    let peers = peers::build(&flags.against, scratch.path(), &setup)?;
    libraries.extend(peers.into_iter().map(Library::Peer));
    present(flags, &libraries, out)
}

/// Measures and shows.
fn present(flags: &Flags, libraries: &[Library], out: &mut dyn Write) -> Result<Verdict> {
    let earlier = flags.earlier.as_deref().map(Earlier::read).transpose()?;
    let report = {
        let _hogs = Hogs::start(flags.hogs)?;
        sweep::sweep(flags, libraries, out)?
    };
    let checked = earlier.map(|earlier| earlier.check(&report)).transpose();
    let found = checked.as_ref().ok().and_then(Option::as_ref);
    let text = if flags.json {
        format!("{:#}\n", output::json(&report, found))
    } else {
        let tables = if libraries.len() > 1 {
            let rows = compare::rows(&report);
            table::preamble(&report)
                + "\n"
                + &table::comparison(&rows)
                + &table::summary(&rows).iter().map(|line| format!("# {line}\n")).collect::<String>()
        } else {
            table::foot(&report)
        };
        tables + &found.map(Checked::text).unwrap_or_default()
    };
    // A reader that has left (`| head`) is no failure.
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    if let Some(path) = &flags.csv {
        output::write_csv(&report, path)?;
    }
    #[cfg(feature = "plot")]
    if let Some(path) = &flags.plot {
        plot::draw(&report, path)?;
    }
    #[cfg(feature = "plot")]
    if let Some(path) = &flags.grid {
        grid::draw(&compare::rows(&report), path)?;
    }
    if let Some(folder) = &flags.record {
        record::keep(&report, folder)?;
    }
    // Only now: what was measured is not lost to a record that does not fit.
    Ok(Verdict { wrong: report.wrong(), slower: checked?.map_or(0, |checked| checked.slower.len()) })
}
