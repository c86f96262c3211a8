//! The other libraries: how to build a program on each, and how to start its ranks at its best.
//!
//! The sources are part of this crate, and are compiled when they are needed, for this machine. Settings are those that
//! make each library fastest on a host like ours, whose ranks are not bound to cores (unless that is asked for): who can
//! give its core away while it waits does so when ranks share cores.

use crate::backend::Backend;
use crate::task::Task;
use clap::ValueEnum;
use clap::builder::PossibleValue;
use phalanx::launch::Launch;
use phalanx::{Error, Result};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::available_parallelism;

/// Advice how to get what is missing.
const HINT: &str = "scripts/install-peers installs it on Debian";

/// A library to compare with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Peer {
    /// Open MPI
    Openmpi,
    /// MPICH
    Mpich,
    /// Intel MPI
    Intelmpi,
    /// Gloo alone; TCP only
    Gloo,
    /// PyTorch with Gloo; TCP only
    TorchGloo,
}

/// The libraries that can be asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asked {
    /// This one, or it is an error.
    Peer(Peer),
    /// All libraries that can be built here.
    Installed,
}

impl ValueEnum for Asked {
    fn value_variants<'a>() -> &'a [Self] {
        use Peer::{Gloo, Intelmpi, Mpich, Openmpi, TorchGloo};
        &[
            Self::Peer(Openmpi),
            Self::Peer(Mpich),
            Self::Peer(Intelmpi),
            Self::Peer(Gloo),
            Self::Peer(TorchGloo),
            Self::Installed,
        ]
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        match self {
            Self::Peer(peer) => peer.to_possible_value(),
            Self::Installed => Some(PossibleValue::new("installed").help("All that can be built here")),
        }
    }
}

/// A peer's program, ready to run.
#[derive(Debug)]
pub(crate) struct Program {
    peer: Peer,
    /// The folder of programs, and of what they leave behind.
    scratch: PathBuf,
    /// The Python environment that holds some of them.
    tools: PathBuf,
    /// Whether ranks are bound to cores where there are enough of them.
    bind: bool,
    /// Whether Open MPI and MPICH are those of Python's packages.
    newest: bool,
}

/// Where the peers are, and how their ranks are started.
#[derive(Debug)]
pub(crate) struct Setup<'a> {
    /// The Python environment that holds some of them.
    pub(crate) tools: &'a Path,
    /// Whether ranks are bound to cores where there are enough of them.
    pub(crate) bind: bool,
    /// Whether Open MPI and MPICH are those of Python's packages.
    pub(crate) newest: bool,
}

/// Builds the peers that are asked for.
///
/// # Errors
/// `Unavailable`: one that was asked for by name is not installed.
pub(crate) fn build(asked: &[Asked], scratch: &Path, setup: &Setup<'_>) -> Result<Vec<Program>> {
    let sources = [
        ("method.h", include_str!("../peers/method.h")),
        ("mpi.c", include_str!("../peers/mpi.c")),
        ("gloo.cc", include_str!("../peers/gloo.cc")),
        ("torch_gloo.py", include_str!("../peers/torch_gloo.py")),
    ];
    for (name, text) in sources {
        let path = scratch.join(name);
        std::fs::write(&path, text).map_err(|e| Error::io(format!("writing {}", path.display()), e))?;
    }
    let mut programs = Vec::new();
    for &peer in Peer::value_variants() {
        let by_name = asked.contains(&Asked::Peer(peer));
        if !by_name && !asked.contains(&Asked::Installed) {
            continue;
        }
        let Setup { tools, bind, newest } = *setup;
        let program = Program { peer, scratch: scratch.to_owned(), tools: tools.to_owned(), bind, newest };
        match program.build() {
            Ok(()) => programs.push(program),
            Err(error) if by_name => return Err(error),
            Err(error) => tracing::info!("{error}"),
        }
    }
    Ok(programs)
}

impl Peer {
    fn name(self) -> &'static str {
        match self {
            Self::Openmpi => "openmpi",
            Self::Mpich => "mpich",
            Self::Intelmpi => "intelmpi",
            Self::Gloo => "gloo",
            Self::TorchGloo => "torch-gloo",
        }
    }
}

impl Program {
    pub(crate) fn name(&self) -> &'static str {
        self.peer.name()
    }

    /// The transport that carries its data where ours is carried by `backend`.
    pub(crate) fn transport(&self, backend: Backend) -> &'static str {
        match (self.peer, backend.name()) {
            (Peer::Gloo | Peer::TorchGloo, _) | (_, "tcp") => "tcp",
            _ => "shm",
        }
    }

    fn program(&self) -> PathBuf {
        self.scratch.join(self.name())
    }

    fn python(&self) -> PathBuf {
        self.tools.join("bin/python")
    }

    /// A command of an MPI library: of its Python package, which has an environment of its own, or Debian's, which adds the library's name.
    fn command(&self, name: &str) -> PathBuf {
        let library = self.name();
        if self.newest {
            return self.tools.join(library).join("bin").join(name);
        }
        format!("{name}.{library}").into()
    }

    fn build(&self) -> Result<()> {
        let mpi = |compiler: PathBuf| {
            self.compile(&compiler, "mpi.c", &["-lm"]).or_else(|why| self.unavailable(&why))
        };
        match self.peer {
            Peer::Openmpi | Peer::Mpich => mpi(self.command("mpicc")),
            Peer::Intelmpi => {
                // The package's own compiler does not know where it has been installed.
                let (include, lib) = (self.tools.join("include"), self.tools.join("lib"));
                let (include, lib) = (format!("-I{}", include.display()), lib.display());
                let (rpath, lib) = (format!("-Wl,-rpath,{lib}"), format!("{lib}/libmpi.so.12"));
                let done = self.compile(Path::new("gcc"), "mpi.c", &[&include, &rpath, &lib, "-lm"]);
                done.or_else(|why| self.unavailable(&why))
            }
            Peer::Gloo => {
                // Debian's Gloo takes references where upstream's takes shared pointers.
                let libraries = ["-std=c++17", "-lgloo", "-lpthread"];
                let debian = [&libraries[..], &["-DPSARG(x)=*x", "-DPSARG2(x)=*x"]].concat();
                let done = self.compile(Path::new("g++"), "gloo.cc", &debian);
                done.or_else(|why| {
                    self.compile(Path::new("g++"), "gloo.cc", &libraries).or_else(|_| self.unavailable(&why))
                })
            }
            Peer::TorchGloo => {
                let mut python = Command::new(self.python());
                python.args(["-c", "import torch.distributed"]);
                quietly(python).or_else(|why| self.unavailable(&why))
            }
        }
    }

    fn unavailable(&self, why: &str) -> Result<()> {
        let tried = format!("{}; {HINT}", why.trim_end());
        Err(Error::Unavailable { what: format!("the peer {}", self.name()), tried })
    }

    fn compile(&self, compiler: &Path, source: &str, rest: &[&str]) -> Result<(), String> {
        let mut command = Command::new(compiler);
        command.args(["-O3", "-march=native"]).arg(self.scratch.join(source));
        quietly({
            command.arg("-o").arg(self.program()).args(rest);
            command
        })
    }

    /// A job that measures `task`, whose rank 0 prints the lines of [`crate::line`].
    ///
    /// # Errors
    /// `Io`: its folder cannot be made.
    pub(crate) fn launch(&self, backend: Backend, ranks: usize, task: &Task) -> Result<Launch> {
        let crowded = ranks > available_parallelism().map_or(1, usize::from);
        let tcp = self.transport(backend) == "tcp";
        let bound = self.bind && !crowded;
        let program = |starter: PathBuf, flags: &[&str]| {
            let n = ranks.to_string();
            let args = flags.iter().copied().chain(["-n", &n]).map(OsString::from);
            let args: Vec<_> = args.chain([self.program().into()]).collect();
            Launch::new(starter).args(args).args(task.to_args())
        };
        Ok(match self.peer {
            Peer::Openmpi => {
                let mut flags = vec!["--oversubscribe", "--bind-to", if bound { "core" } else { "none" }];
                if crowded {
                    flags.extend(["--mca", "mpi_yield_when_idle", "1"]);
                }
                if tcp {
                    let btl = ["--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", "lo"];
                    flags.extend(["--mca", "pml", "ob1"].into_iter().chain(btl));
                }
                let launch = program(self.command("mpirun"), &flags);
                launch.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
            }
            Peer::Mpich => {
                let launch =
                    program(self.command("mpiexec"), &["-bind-to", if bound { "core" } else { "none" }]);
                let variables =
                    [("MPIR_CVAR_NOLOCAL", "1"), ("UCX_TLS", "tcp,self"), ("UCX_NET_DEVICES", "lo")];
                with(launch, if tcp { &variables } else { &[] })
            }
            Peer::Intelmpi => {
                let launch = program(self.tools.join("bin/mpiexec.hydra"), &[]);
                let path = std::env::var("PATH").unwrap_or_default();
                let path = format!("{}:{path}", self.tools.join("bin").display());
                let ours = [("PATH", path.as_str()), ("I_MPI_PIN", if bound { "on" } else { "off" })];
                let variables = [
                    ("I_MPI_FABRICS", "ofi"),
                    ("I_MPI_COLL_INTRANODE", "pt2pt"),
                    ("FI_PROVIDER", "tcp"),
                    ("FI_TCP_IFACE", "lo"),
                ];
                with(with(launch, &ours), if tcp { &variables } else { &[] })
            }
            Peer::Gloo => {
                let store = tempfile::TempDir::new_in(&self.scratch).map(tempfile::TempDir::keep);
                let store = store.map_err(|e| Error::io("making a folder for Gloo's store", e))?;
                Launch::new(self.program()).args(task.to_args()).ranks(ranks).env("STORE_DIR", store)
            }
            Peer::TorchGloo => {
                let script = self.scratch.join("torch_gloo.py").into_os_string();
                let launch = Launch::new(self.python()).args([script]).args(task.to_args()).ranks(ranks);
                launch.env("GLOO_SOCKET_IFNAME", "lo").env("OMP_NUM_THREADS", "1")
            }
        })
    }
}

fn with(launch: Launch, variables: &[(&str, &str)]) -> Launch {
    variables.iter().fold(launch, |launch, (name, value)| launch.env(*name, value))
}

/// Runs a command to its end. What it wrote to stderr is the error if it fails.
fn quietly(mut command: Command) -> Result<(), String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let done = command.stdin(Stdio::null()).output().map_err(|error| format!("{program}: {error}"))?;
    if done.status.success() {
        return Ok(());
    }
    let stderr = String::from_utf8_lossy(&done.stderr);
    let first = stderr.lines().find(|line| line.contains("rror")).unwrap_or_default();
    Err(format!("{program}: {}: {first}", done.status))
}
