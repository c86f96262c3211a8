//! A rank: performs its [`Script`] until something goes wrong, and says what. A victim hurts itself when its time has come.

use crate::plan::{Backend, EXIT_CODE, Kind, Moment, Plan, RANKS};
use crate::script::{Script, Trouble};
use crate::support;
use phalanx::error::{Cause, Loss};
use phalanx::{Config, Error, ProcessGroup, threads_with};
use rustix::process::{Signal, getpid, kill_process};
use signal_hook::consts::SIGTERM;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

/// Far more than a death takes to be known: who waits so long was told nothing.
const TIMEOUT: Duration = Duration::from_secs(60);
/// What a rank exits with that was given a wrong result.
pub(crate) const WRONG: i32 = 3;

/// The program of a process of the job.
pub(crate) fn run(plan: &Plan) -> ! {
    if plan.backend == Backend::Thread {
        let groups = threads_with(RANKS, TIMEOUT, "").expect("no algorithm is forced");
        thread::scope(|scope| {
            for group in groups {
                scope.spawn(|| {
                    let rank = group.rank();
                    // A panic is what the plan wants; what it leads to is for the others to say.
                    let _ = catch_unwind(AssertUnwindSafe(|| work(group, plan, &Harm::new(plan, rank))));
                });
            }
        });
        std::process::exit(1);
    }
    // Who is asked to end says first what it knows; who can't know anything yet just ends.
    if plan.kind != Kind::Launcher && plan.moment != Moment::Init {
        signal_hook::flag::register(SIGTERM, Arc::default()).expect("there is such a signal");
    }
    let mut config = Config::from_env().expect("everything is set");
    if plan.backend == Backend::TwoLevel {
        config.host_id = Some(format!("host {}", config.rank / 2));
    }
    let (rank, harm) = (config.rank, Harm::new(plan, config.rank));
    harm.begin(Moment::Init, None);
    let code = match phalanx::join(&config) {
        Ok(group) => work(group, plan, &harm),
        Err(error) => {
            say_failed(rank, &error);
            1
        }
    };
    std::process::exit(code)
}

/// Goes on until the end, or until something is wrong; the code to exit with.
fn work(group: ProcessGroup, plan: &Plan, harm: &Harm) -> i32 {
    let rank = group.rank();
    let meanwhile = || harm.strike_if_due();
    let mut script = Script::new(plan.seed, &meanwhile);
    support::say("started", rank);
    let trouble = (0..).find_map(|index| {
        if plan.moment == (Moment::Finalize { after: index }) {
            harm.begin(plan.moment, Some(&group));
            return Some(group.clone().finalize().map_err(Trouble::Failed));
        }
        harm.begin(Moment::Operation { index, op: plan.insists(index) }, Some(&group));
        script.step(&group, plan.insists(index)).err().map(Err)
    });
    let code = match trouble.expect("it ends only so") {
        Ok(()) => {
            support::say("done", rank);
            0
        }
        Err(Trouble::Wrong(what)) => {
            support::say("wrong", format!("{rank} {what}"));
            WRONG
        }
        Err(Trouble::Failed(error)) => {
            say_failed(rank, &error);
            1
        }
    };
    if !plan.tidy[rank] && plan.backend != Backend::Thread {
        std::process::exit(code);
    }
    code
}

/// The rank at fault, and how it was lost.
fn culprit(error: &Error) -> Option<(usize, String)> {
    let name = |how: &Loss| format!("{how:?}").split(' ').next().unwrap_or_default().to_owned();
    let of_cause = |cause: &Cause| match cause {
        Cause::Lost { peer, how } => Some((peer.rank, name(how))),
        Cause::Aborted { peer, .. } => Some((peer.rank, "Aborted".into())),
        _ => None,
    };
    match error {
        Error::PeerLost { peer, how, .. } => Some((peer.rank, name(how))),
        Error::Aborted { peer, .. } => Some((peer.rank, "Aborted".into())),
        Error::Poisoned { cause, .. } => of_cause(cause),
        _ => None,
    }
}

fn say_failed(rank: usize, error: &Error) {
    let (named, how) =
        culprit(error).map_or(("nobody".into(), "-".into()), |(rank, how)| (rank.to_string(), how));
    support::say("failed", format!("{rank} {} {named} {how} {error}", support::now_ms()));
}

/// What a rank does to itself, and when. Nothing, if it is no victim.
struct Harm {
    plan: Option<Plan>,
    begin: Sender<Option<ProcessGroup>>,
    /// The rank is to panic.
    due: Arc<AtomicBool>,
}

impl Harm {
    fn new(plan: &Plan, rank: usize) -> Self {
        let (begin, begun) = channel::<Option<ProcessGroup>>();
        let due = Arc::<AtomicBool>::default();
        let plan = plan.victims.contains(&rank).then(|| plan.clone());
        if let Some(Plan { kind, delay, .. }) = plan {
            let due = due.clone();
            thread::spawn(move || {
                let Ok(group) = begun.recv() else { return };
                wait(delay);
                support::say("dying", format!("{rank} {}", support::now_ms()));
                match kind {
                    Kind::Kill | Kind::Two => {
                        kill_process(getpid(), Signal::KILL).expect("it is our own process");
                    }
                    Kind::Stop => kill_process(getpid(), Signal::STOP).expect("it is our own process"),
                    Kind::Exit => std::process::exit(EXIT_CODE),
                    Kind::Panic => due.store(true, Ordering::Relaxed),
                    Kind::Abort => group.expect("it has begun in one").abort("chaos"),
                    Kind::Cut => {} // by the test
                    Kind::Launcher => unreachable!("no rank is a victim"),
                }
            });
        }
        Self { plan, begin, due }
    }

    /// The rank has come to `moment`. Only who aborts needs the group: to hold it would change how others die.
    fn begin(&self, moment: Moment, group: Option<&ProcessGroup>) {
        if let Some(plan) = self.plan.as_ref().filter(|plan| plan.moment == moment) {
            // The thread waits for this.
            let _ = self.begin.send(group.filter(|_| plan.kind == Kind::Abort).cloned());
        }
        self.strike_if_due();
    }

    fn strike_if_due(&self) {
        assert!(!self.due.load(Ordering::Relaxed), "chaos");
    }
}

/// Sleeps, and looks at the clock for the rest: a sleep is longer than the shortest delays.
fn wait(delay: Duration) {
    let until = Instant::now() + delay;
    thread::sleep(delay.saturating_sub(Duration::from_millis(1)));
    while Instant::now() < until {
        std::hint::spin_loop();
    }
}
