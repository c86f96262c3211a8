//! Everything that was asked for, in an order in which figures compare.
//!
//! In every round each case is measured by one library right after the other, and nobody always comes first.

use crate::flags::Flags;
use crate::job::JOB_SECONDS;
use crate::library::Library;
use crate::listener::Listener;
use crate::machine::Machine;
use crate::player::Player;
use crate::progress::Progress;
use crate::report::Report;
use crate::setting::Setting;
use crate::table;
use crate::task::Task;
use phalanx::Result;
use std::io::Write;
use std::time::Duration;

/// A case may take so much longer than its budget.
const CASE_SECONDS: Duration = Duration::from_secs(30);

/// Measures everything; shows our own cases on `out` as they come, unless they will be compared or printed as JSON.
///
/// # Errors
/// What our own library returns; a peer that fails is left out, and that is said.
pub(crate) fn sweep(flags: &Flags, libraries: &[Library], out: &mut dyn Write) -> Result<Report> {
    let mut report = Report {
        machine: Machine::here(),
        command: std::env::args().collect::<Vec<_>>().join(" "),
        dtype: flags.dtype,
        reduce: flags.redop,
        method: method(flags),
        measurements: Vec::new(),
    };
    let live = !flags.json && libraries.len() == 1;
    let settings = settings(flags);
    let cases = |s: &Setting| flags.task(s.op, s.ranks).bytes.len();
    let per_round: usize = settings.iter().map(cases).sum();
    let progress = Progress::new(per_round * libraries.len() * flags.rounds());
    if live {
        progress.say(out, &table::preamble(&report));
    }
    // The subjects of one group can't have calls under way at the same time.
    let is_joined = |library: &Library| matches!(library, Library::Joined { .. });
    if libraries.len() > 1 && !libraries.iter().any(is_joined) {
        for setting in settings {
            in_turns(flags, libraries, setting, &progress, &mut report)?;
        }
        return Ok(report);
    }
    for round in 0..flags.rounds() {
        for setting in &settings {
            for turn in 0..libraries.len() {
                let library = &libraries[(turn + round) % libraries.len()];
                progress.begin(setting.label(library, round, flags));
                let shown = live && round + 1 == flags.rounds();
                alone(flags, library, *setting, &mut report, |report, first| {
                    if shown {
                        progress.say(out, &live_line(report, first));
                    }
                })?;
                progress.advance(cases(setting));
            }
        }
    }
    Ok(report)
}

/// One library, while no other has ranks; `shown` is called after each case, and told whether it is the first of its place.
fn alone(
    flags: &Flags,
    library: &Library,
    setting: Setting,
    report: &mut Report,
    mut shown: impl FnMut(&Report, bool),
) -> Result<()> {
    let Setting { backend, ranks, op } = setting;
    let task = flags.task(op, ranks);
    if task.bytes.is_empty() || !library.knows(op, ranks) {
        return Ok(());
    }
    let first = report.measurements.len();
    let mut listener = Listener::new(library, setting, flags.dtype);
    let job = library.start(backend, ranks, &task)?;
    while let Some(text) = job.line(JOB_SECONDS + case_limit(&task))? {
        if listener.hear(&text, report) {
            let [earlier @ .., newest] = &report.measurements[first..] else { continue };
            shown(report, earlier.last().is_none_or(|last| last.place != newest.place));
        }
    }
    job.end()?;
    listener.check()
}

/// Several libraries, whose ranks live at the same time.
fn in_turns(
    flags: &Flags,
    libraries: &[Library],
    setting: Setting,
    progress: &Progress,
    report: &mut Report,
) -> Result<()> {
    let Setting { ranks, op, .. } = setting;
    let task = Task { rounds: flags.rounds(), ..flags.task(op, ranks) };
    if task.bytes.is_empty() {
        return Ok(());
    }
    let mut players = Vec::new();
    for library in libraries.iter().filter(|library| library.knows(op, ranks)) {
        players.push(Player::start(library, setting, &task)?);
    }
    players.iter_mut().try_for_each(Player::meet)?;
    // A case is measured in place and out of place, and by some libraries with several algorithms.
    let patience = JOB_SECONDS + 8 * case_limit(&task);
    let count = players.len();
    for _ in &task.bytes {
        for round in 0..task.rounds {
            for turn in 0..count {
                let player = &mut players[(turn + round) % count];
                progress.begin(setting.label(player.library(), round, flags));
                player.play(patience)?;
                progress.advance(1);
            }
        }
    }
    players.into_iter().try_for_each(|player| player.end(report))
}

/// How long a case may take.
fn case_limit(task: &Task) -> Duration {
    CASE_SECONDS + 5 * task.effort.budget
}

/// The newest case, typical among its rounds.
fn live_line(report: &Report, first: bool) -> String {
    let newest = report.measurements.last();
    let typical = newest.and_then(|m| report.typical(m.case, m.library, &[m.place]));
    typical.map_or_else(String::new, |m| {
        let head = if first { table::head(m) } else { String::new() };
        head + &table::line(m, report.dtype, report.reduce)
    })
}

fn settings(flags: &Flags) -> Vec<Setting> {
    let of = |&backend| flags.ranks.iter().map(move |&ranks| (backend, ranks));
    let places = flags.backend.iter().flat_map(of);
    let all = |(backend, ranks)| flags.ops().iter().map(move |&op| Setting { backend, ranks, op });
    places.flat_map(all).collect()
}

/// How it is measured, for a reader of the figures.
fn method(flags: &Flags) -> String {
    let effort = flags.effort();
    let samples = match effort.samples {
        Some(samples) => format!("{samples} samples"),
        None => format!("{} ms", effort.budget.as_millis()),
    };
    let touch =
        if effort.touch { "buffers rewritten before each operation" } else { "buffers not rewritten" };
    let rounds = match flags.rounds() {
        1 => "of one round".to_owned(),
        rounds => format!("of {rounds} rounds"),
    };
    let hogs = match flags.hogs {
        0 => String::new(),
        number => format!("; beside {number} processes that spin"),
    };
    let turns = if flags.against.is_empty() { "" } else { "; libraries take turns at each size" };
    format!(
        "medians {rounds}, {samples} a case{turns}; a sample is the longest of all ranks, after a barrier; {touch}{hogs}"
    )
}
