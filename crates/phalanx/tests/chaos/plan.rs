//! What happens in a round: who is hurt, how and when. All of it follows from kind, backend and seed.

use crate::script::Op;
use phalanx_testkit::oracle::Random;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// Ranks of a job.
pub(crate) const RANKS: usize = 4;
/// The one bound on time in the contract: a death is known everywhere this soon.
const KNOWN_WITHIN: Duration = Duration::from_secs(5);
/// How long a rank may be silent, where some are stopped.
pub(crate) const HEARTBEAT: Duration = Duration::from_secs(2);
/// How long ranks wait for one that does not come.
pub(crate) const INIT_TIMEOUT: Duration = Duration::from_secs(6);
/// What a victim that ends itself exits with: others exit with 1.
pub(crate) const EXIT_CODE: i32 = 7;
/// The latest operation at which a round does its harm.
const LATEST: usize = 24;

/// An enum whose values have names on the command line and in tables.
macro_rules! named {
    ($(#[$doc:meta])* $name:ident { $($(#[$about:meta])* $value:ident = $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum $name { $($(#[$about])* $value,)* }

        impl $name {
            pub(crate) const ALL: &[Self] = &[$(Self::$value),*];
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(match self { $(Self::$value => $text),* })
            }
        }

        impl FromStr for $name {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, String> {
                let found = Self::ALL.iter().find(|value| value.to_string() == text);
                found.copied().ok_or_else(|| format!("{text:?} is none of {:?}", Self::ALL.iter().map(Self::to_string).collect::<Vec<_>>()))
            }
        }
    };
}

pub(crate) use named;

named! {
    /// A way in which ranks are hurt.
    Kind {
        /// SIGKILL.
        Kill = "kill",
        /// SIGKILL for two ranks at once.
        Two = "two",
        /// `exit` on another thread, in the middle of everything.
        Exit = "exit",
        /// SIGSTOP, and later SIGCONT, or the launcher's SIGKILL.
        Stop = "stop",
        /// The cable of one host, cut.
        Cut = "cut",
        /// A panic between calls, or while operations are in flight.
        Panic = "panic",
        /// `abort` of the group, on another thread.
        Abort = "abort",
        /// SIGKILL, SIGTERM or SIGINT for the launcher.
        Launcher = "launcher",
    }
}

named! {
    /// What carries the data.
    Backend {
        /// Ranks are threads of one process.
        Thread = "thread",
        Shm = "shm",
        Tcp = "tcp",
        /// UCX, where the test was built with the feature and it is installed.
        Ucx = "ucx",
        /// Two ranks on each of two hosts, which are one.
        TwoLevel = "two-level",
    }
}

/// When it happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Moment {
    /// While the ranks come together.
    Init,
    /// In one operation.
    Operation { index: usize, op: Option<Op> },
    /// In `finalize`, which follows that many operations.
    Finalize { after: usize },
}

/// What happens in one round.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) kind: Kind,
    pub(crate) backend: Backend,
    pub(crate) seed: u64,
    pub(crate) victims: Vec<usize>,
    pub(crate) moment: Moment,
    /// From the beginning of that until the harm.
    pub(crate) delay: Duration,
    /// Survivors that drop their groups before they exit, and victims that go on after SIGSTOP; the others exit at once.
    pub(crate) tidy: [bool; RANKS],
}

impl Plan {
    pub(crate) fn new(kind: Kind, backend: Backend, seed: u64) -> Self {
        let mut random = Random::new(seed);
        // Rank 0 has the arbiter: it is hurt more often than others.
        let first = (random.below(RANKS + 1)) % RANKS;
        let second = (first + 1 + random.below(RANKS - 1)) % RANKS;
        let victims = match kind {
            Kind::Two => vec![first, second],
            Kind::Launcher => Vec::new(),
            _ => vec![first],
        };
        let index = random.below(LATEST);
        let moment = match random.below(8) {
            // Who is cut off in the beginning or at the end is late, or not missed.
            _ if matches!(kind, Kind::Launcher | Kind::Cut) => Moment::Operation { index, op: None },
            // Who panics or aborts has a group, and nobody panics in a call.
            0 if !matches!(kind, Kind::Panic | Kind::Abort) => Moment::Init,
            1 if kind != Kind::Panic => Moment::Finalize { after: index },
            2 => Moment::Operation { index, op: Some(Op::AllReduceAllocated) },
            3 => Moment::Operation { index, op: Some(Op::Split) },
            _ => Moment::Operation { index, op: None },
        };
        let delay_us = match moment {
            _ if kind == Kind::Launcher => random.below(300_000),
            Moment::Init => random.below(50_000),
            // As many short ones as long ones.
            _ => {
                let scale = random.below(15);
                random.below(1 << scale)
            }
        };
        let delay = Duration::from_micros(delay_us as u64);
        let tidy = std::array::from_fn(|_| random.below(2) == 0);
        Self { kind, backend, seed, victims, moment, delay, tidy }
    }

    /// The operation to perform at `index` instead of any other.
    pub(crate) fn insists(&self, index: usize) -> Option<Op> {
        match self.moment {
            Moment::Operation { index: at, op } if at == index => op,
            _ => None,
        }
    }

    /// How a [`phalanx::error::Cause`] must say that the victim was lost.
    pub(crate) fn how(&self) -> &'static [&'static str] {
        match self.kind {
            // The launcher says how a process ended, and may be late with that on a busy machine.
            Kind::Kill | Kind::Two | Kind::Launcher => &["Killed", "Died"],
            Kind::Exit => &["Exited", "Died"],
            Kind::Stop => &["Silent"],
            Kind::Cut if self.hosts() == 2 => &["Apart"],
            Kind::Cut => &["Silent", "Unreachable"],
            Kind::Panic => &["Panicked"],
            Kind::Abort => &["Aborted"],
        }
    }

    /// Ranks of one host, where hosts are cut apart.
    pub(crate) fn per_host(&self) -> usize {
        if self.backend == Backend::TwoLevel { 2 } else { 1 }
    }

    fn hosts(&self) -> usize {
        RANKS.div_ceil(self.per_host())
    }

    /// Where the rank is after the harm: those at one place can agree on what has happened.
    pub(crate) fn is_cut_off(&self, rank: usize) -> bool {
        self.kind == Kind::Cut && rank / self.per_host() == self.victims[0] / self.per_host()
    }

    /// Whether it is right when `rank` names `named`.
    pub(crate) fn may_name(&self, rank: usize, named: usize) -> bool {
        match self.kind {
            // Nobody can know which of the two was cut off: each names the other.
            Kind::Cut if self.hosts() == 2 => self.is_cut_off(named) != self.is_cut_off(rank),
            // The host that was cut off names itself, too.
            Kind::Cut => self.is_cut_off(named),
            _ => self.victims.contains(&named),
        }
    }

    /// After that time all have heard of it.
    pub(crate) fn known_within(&self) -> Duration {
        match (self.kind, self.moment) {
            (Kind::Stop, Moment::Init) => INIT_TIMEOUT + KNOWN_WITHIN,
            (Kind::Stop | Kind::Cut, _) => HEARTBEAT + KNOWN_WITHIN,
            _ => KNOWN_WITHIN,
        }
    }

    /// Whether this rank ends without a word.
    pub(crate) fn silences(&self, rank: usize) -> bool {
        let speaks =
            matches!(self.kind, Kind::Abort | Kind::Cut) || self.kind == Kind::Stop && self.tidy[rank];
        self.victims.contains(&rank) && !speaks
    }

    /// The signal by which the launcher knows who was first. Of those who exit, it may see the survivors before.
    pub(crate) fn signal(&self) -> Option<i32> {
        matches!(self.kind, Kind::Kill | Kind::Two).then_some(9)
    }

    /// What a rank of the job, or a person, needs to make this plan again.
    pub(crate) fn to_text(&self) -> String {
        format!("{} {} {}", self.kind, self.backend, self.seed)
    }

    pub(crate) fn from_text(text: &str) -> Self {
        let words: Vec<_> = text.split(' ').collect();
        let [kind, backend, seed] = words[..] else {
            panic!("a plan is kind, backend and seed, not {text:?}")
        };
        let parsed = "written by to_text";
        Self::new(kind.parse().expect(parsed), backend.parse().expect(parsed), seed.parse().expect(parsed))
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, backend, seed, victims, moment, delay, .. } = self;
        write!(f, "cargo xtask chaos --rounds 1 --seed {seed} --kinds {kind} --backends {backend}")?;
        write!(f, ": ranks {victims:?}, {moment:?}, after {delay:?}")
    }
}
