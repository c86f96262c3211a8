//! The front door for developers: `cargo xtask check`, `test`, `tidy`, `loom`, `miri`, `wasm`, `chaos`, `endings`, `elastic`, `played`, `fuzz`, `abi`,
//! `book`, `ci`.

mod abi;
mod book;
mod command;
mod corpus;
mod fuzz;
mod miri;
mod tidy;
mod wasm;

use clap::Parser;
use command::outcome;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

/// Everything a developer does here often.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask")]
enum Task {
    /// Format, lints, docs, tidiness: cheapest first, without running tests.
    Check,
    /// All tests.
    Test,
    /// What compilers don't check: which crate and which file may use which, where unsafe code may stand, what the README must name.
    Tidy(tidy::Tidy),
    /// The protocols between threads and in shared memory, under every order in which threads can meet.
    Loom,
    /// The code with raw pointers, under Miri (needs a nightly toolchain with it; skipped by name where there is none).
    Miri,
    /// The crates without clock, thread or socket, for a machine that has none (skipped by name where the target can't be had).
    Wasm,
    /// Real jobs whose ranks die in every way, many times over (see docs/design/chaos.md).
    Chaos(Chaos),
    /// Programs that end without `finalize()`, many jobs of each: none may fail or say anything.
    Endings {
        /// Jobs of each kind.
        #[arg(long, default_value = "100")]
        jobs: String,
        /// Ways to end, with commas between them; all, if none is named.
        #[arg(long)]
        ways: Option<String>,
    },
    /// Elastic jobs to which things happen at random, and hosts that are cut off for a while (see docs/reference/elastic.md).
    Elastic {
        /// How many jobs.
        #[arg(long, default_value = "20")]
        rounds: String,
        /// The seed of the first; each has the next.
        #[arg(long, default_value = "1")]
        seed: String,
        /// Cuts of the network between three hosts and between two instead, of 1 to 12 s: 20 minutes, as root.
        #[arg(long)]
        cuts: bool,
    },
    /// Whole jobs under a simulated network and clock, one from each seed. A seed without a number of seeds is replayed: its events
    /// are printed.
    Sim {
        /// How many seeds.
        #[arg(long)]
        seeds: Option<u64>,
        /// The first of them.
        #[arg(long)]
        seed: Option<u64>,
    },
    /// A large job on one machine, whose ranks but rank 0 are played on their lines to the arbiter: what that costs rank 0, and how long what all
    /// must hear takes (see docs/design/scale.md).
    Played {
        /// How many ranks. Each takes a descriptor of two processes.
        #[arg(long, default_value = "10000")]
        ranks: String,
    },
    /// Whatever strangers, lying peers and files can bring, found by coverage (needs cargo-fuzz).
    Fuzz(fuzz::Fuzz),
    /// What is said of NCCL's and the CUDA driver's C interfaces, compared with their headers (needs a C compiler, Python, and the network).
    Abi,
    /// Licences and advisories of dependencies (needs cargo-deny).
    Deny,
    /// The documentation of the crates, opened in a browser.
    Doc,
    /// The pages of `docs` as a book with search, in `target/book`; their links and indexes are checked first.
    Book,
    /// What CI runs.
    Ci,
}

/// What is to be hurt, and how often.
#[derive(Debug, clap::Args)]
struct Chaos {
    /// Rounds of each kind on each backend.
    #[arg(long, default_value = "100")]
    rounds: String,
    /// The seed of the first round; each has the next.
    #[arg(long, default_value = "1")]
    seed: String,
    /// Kinds of harm, with commas between them; all, if none is named.
    #[arg(long)]
    kinds: Option<String>,
    /// Shapes of jobs (world, mesh, split), with commas between them: rounds that ask who is named. Then the kinds are panic, exit-0, exit-3,
    /// kill, hang and stop, and the backends shm and tcp.
    #[arg(long)]
    shapes: Option<String>,
    /// Backends, likewise.
    #[arg(long)]
    backends: Option<String>,
    /// Jobs at a time.
    #[arg(long, default_value = "2")]
    jobs: String,
}

fn main() -> ExitCode {
    let steps: &[&[&str]] = match Task::parse() {
        Task::Check => &[
            &["fmt", "--all", "--check"],
            &["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"],
            &["doc", "--workspace", "--no-deps"],
            &["xtask", "tidy"],
        ],
        Task::Test => &[&["test", "--workspace"]],
        Task::Tidy(flags) => return tidy::run(&flags),
        Task::Loom => return loom(),
        Task::Miri => return miri::run(),
        Task::Wasm => return wasm::run(),
        Task::Sim { seeds, seed } => return sim(seeds, seed),
        Task::Played { ranks } => return played(&ranks),
        Task::Endings { jobs, ways } => return endings(&jobs, ways),
        Task::Chaos(flags) => return chaos(flags),
        Task::Elastic { rounds, seed, cuts } => return elastic(&rounds, &seed, cuts),
        Task::Fuzz(flags) => return fuzz::run(&flags),
        Task::Abi => return abi::run(),
        Task::Book => return book::run(),
        Task::Deny => &[&["deny", "check"]],
        Task::Doc => &[&["doc", "--workspace", "--no-deps", "--open"]],
        Task::Ci => return outcome(Command::new(".ci/run")),
    };
    for step in steps {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(*step).env("RUSTDOCFLAGS", "-D warnings");
        if outcome(cargo) != ExitCode::SUCCESS {
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

/// Another flag for the compiler means another build of everything, so it has a folder of its own.
fn loom() -> ExitCode {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| "target".into(), PathBuf::from);
    // Of the group only the models: its other tests have threads that loom does not know.
    for models in [&["phalanx-shm", "--lib"][..], &["phalanx-group", "--lib", "models::"]] {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["test", "--release", "--package"]).args(models);
        cargo.env("RUSTFLAGS", "--cfg loom").env("CARGO_TARGET_DIR", target.join("loom"));
        // Linking everything anew takes longer than the models gain by it.
        cargo.env("CARGO_PROFILE_RELEASE_LTO", "off").env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16");
        if outcome(cargo) != ExitCode::SUCCESS {
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

/// The soak is a test that is run only so.
fn chaos(flags: Chaos) -> ExitCode {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args([
        "test",
        "--release",
        "--package",
        "phalanx",
        "--test",
        "chaos",
        "--features",
        "ucx",
        "--",
        if flags.shapes.is_some() { "soak_of_shapes" } else { "soak" },
        "--exact",
        "--ignored",
        "--nocapture",
    ]);
    let Chaos { rounds, seed, kinds, shapes, backends, jobs } = flags;
    cargo.env("PHALANX_CHAOS_ROUNDS", rounds).env("PHALANX_CHAOS_SEED", seed).env("PHALANX_CHAOS_JOBS", jobs);
    cargo.envs(kinds.map(|kinds| ("PHALANX_CHAOS_KINDS", kinds)));
    cargo.envs(shapes.map(|shapes| ("PHALANX_CHAOS_SHAPES", shapes)));
    cargo.envs(backends.map(|backends| ("PHALANX_CHAOS_BACKENDS", backends)));
    outcome(cargo)
}

/// The soak is a test, once for groups and once for trainings, over programs that are examples.
fn endings(jobs: &str, ways: Option<String>) -> ExitCode {
    let both = [
        ("phalanx", "without_finalize", "endings", "soak"),
        ("phalanx-candle", "train_without_finalize", "all", "endings::soak"),
    ];
    for (package, example, test, soak) in both {
        for arguments in [
            &["build", "--package", package, "--example", example][..],
            &["test", "--package", package, "--test", test, "--", soak, "--ignored", "--nocapture"],
        ] {
            let mut cargo = Command::new(env!("CARGO"));
            cargo.args(arguments).env("PHALANX_ENDINGS_JOBS", jobs);
            cargo.envs(ways.as_ref().map(|ways| ("PHALANX_ENDINGS_WAYS", ways)));
            if outcome(cargo) != ExitCode::SUCCESS {
                return ExitCode::FAILURE;
            }
        }
    }
    ExitCode::SUCCESS
}

/// These soaks, too, are tests.
fn elastic(rounds: &str, seed: &str, cuts: bool) -> ExitCode {
    let mut cargo = Command::new(env!("CARGO"));
    let test = if cuts { "cut" } else { "rounds" };
    cargo.args(["test", "--release", "--package", "phalanx", "--test", test]);
    cargo.args(["--", "soak", "--ignored", "--nocapture"]);
    cargo.env("ELASTIC_ROUNDS", rounds).env("ELASTIC_SEED", seed);
    outcome(cargo)
}

/// The program is a test, so that it speaks the protocol of the build.
fn played(ranks: &str) -> ExitCode {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["test", "--quiet", "--release", "--package", "phalanx-group", "--features", "__played"]);
    cargo.args(["--test", "played", "--", ranks]);
    outcome(cargo)
}

/// The simulation is a test, so that it sees the insides.
fn sim(seeds: Option<u64>, seed: Option<u64>) -> ExitCode {
    let replays = seeds.is_none() && seed.is_some();
    let test = if replays { "sim::tests::replay" } else { "sim::tests::many_seeds" };
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["test", "--quiet", "--release", "--package", "phalanx-group", "--lib", "--"]);
    cargo.args([test, "--exact", "--ignored", "--nocapture"]);
    cargo
        .env("SIM_SEED", seed.unwrap_or(1).to_string())
        .env("SIM_SEEDS", seeds.unwrap_or(10_000).to_string());
    outcome(cargo)
}
