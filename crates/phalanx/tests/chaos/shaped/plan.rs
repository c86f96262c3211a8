//! Which rank is hurt in a round, how and when, and how the others end. All of it follows from shape, harm, backend and seed.

use crate::plan::{Backend, named};
use phalanx::launch::ExitKind;
use phalanx_testkit::oracle::Random;
use std::fmt;
use std::str::FromStr;

/// What rounds have in common.
pub(crate) type Case = (Shape, Harm, Backend);

/// The most ranks of a job.
const RANKS_MAX: usize = 9;
/// The latest step at which a round does its harm.
const LATEST: usize = 30;

named! {
    /// Which groups the ranks work in.
    Shape {
        /// The group of all.
        World = "world",
        /// The rows and columns of a grid that is as square as it can be, and never the group of all.
        Mesh = "mesh",
        /// Two halves; now and then the group of all.
        Split = "split",
    }
}

named! {
    /// What becomes of the victim.
    Harm {
        Panic = "panic",
        /// `exit(0)` while the others need it.
        ExitZero = "exit-0",
        ExitThree = "exit-3",
        /// SIGKILL.
        Kill = "kill",
        /// It sleeps in the program, and its heartbeat goes on.
        Hang = "hang",
        /// SIGSTOP: nothing of it goes on.
        Stop = "stop",
    }
}

named! {
    /// How a survivor ends that has an error.
    End {
        Exit = "exit",
        /// It drops its groups, and exits then.
        Drop = "drop",
        /// As of `unwrap`.
        Panic = "panic",
    }
}

/// What happens in one round, and how the others end.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) shape: Shape,
    pub(crate) harm: Harm,
    pub(crate) backend: Backend,
    pub(crate) seed: u64,
    pub(crate) ranks: usize,
    pub(crate) victim: usize,
    /// Before which step it is hurt.
    pub(crate) step: usize,
    /// How all survivors end; each as it likes, if there is none.
    end: Option<End>,
}

impl Plan {
    pub(crate) fn new(shape: Shape, harm: Harm, backend: Backend, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let ranks = 2 + random.below(RANKS_MAX - 1);
        let victim = random.below(ranks);
        let step = random.below(LATEST);
        let end = [None, Some(End::Exit), Some(End::Drop), Some(End::Panic)][random.below(4)];
        Self { shape, harm, backend, seed, ranks, victim, step, end }
    }

    /// Ranks in a row of the mesh.
    pub(crate) fn width(&self) -> usize {
        (1..).find(|width| width * width >= self.ranks).expect("there are so many numbers")
    }

    pub(crate) fn end(&self, rank: usize) -> End {
        self.end.unwrap_or(End::ALL[(self.seed as usize + rank) % End::ALL.len()])
    }

    /// How the launcher must say that the victim ended.
    pub(crate) fn exit(&self) -> ExitKind {
        match self.harm {
            Harm::Panic => ExitKind::Code(101),
            Harm::ExitZero => ExitKind::Code(0),
            Harm::ExitThree => ExitKind::Code(3),
            Harm::Kill => ExitKind::Signal(9),
            Harm::Hang | Harm::Stop => ExitKind::StillRunning,
        }
    }

    /// With what the launcher may exit.
    pub(crate) fn exit_codes(&self) -> &'static [i32] {
        match self.harm {
            Harm::Panic => &[101],
            Harm::ExitThree => &[3],
            Harm::Kill => &[137],
            // As the first of the others.
            Harm::ExitZero | Harm::Hang | Harm::Stop => &[1, 101],
        }
    }

    /// What a rank of the job needs to make this plan again.
    pub(crate) fn to_text(&self) -> String {
        format!("{} {} {} {}", self.shape, self.harm, self.backend, self.seed)
    }

    pub(crate) fn from_text(text: &str) -> Self {
        let words: Vec<_> = text.split(' ').collect();
        let [shape, harm, backend, seed] = words[..] else {
            panic!("a plan is shape, harm, backend and seed, not {text:?}")
        };
        fn parsed<T: FromStr<Err: fmt::Debug>>(word: &str) -> T {
            word.parse().expect("written by to_text")
        }
        Self::new(parsed(shape), parsed(harm), parsed(backend), parsed(seed))
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { shape, harm, backend, seed, ranks, victim, step, end } = self;
        write!(
            f,
            "cargo xtask chaos --rounds 1 --seed {seed} --shapes {shape} --kinds {harm} --backends {backend}"
        )?;
        let end = end.map_or("as each likes".into(), |end| end.to_string());
        write!(f, ": rank {victim} of {ranks} before step {step}; the others end: {end}")
    }
}
