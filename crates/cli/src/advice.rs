//! What `phalanx run` has instead of the flags of other launchers.

/// What to write instead of a flag that only others have, by its name without dashes in front, and with dashes for underscores.
pub(crate) fn instead_of(flag: &str) -> Option<&'static str> {
    let name = flag.trim_start_matches('-').replace('_', "-");
    ADVICE.iter().find(|(names, _)| names.contains(&name.as_str())).map(|(_, advice)| *advice)
}

type Names = &'static [&'static str];

const ADVICE: &[(Names, &str)] = &[
    (
        &["ntasks", "num-proc", "num-procs", "nprocs", "num-processes", "num-workers"],
        "-n N says how many ranks this host has",
    ),
    (
        &["ppn", "N", "npernode", "perhost", "ntasks-per-node"],
        "-n N says how many ranks this host has, and --hosts HOST:N how many each",
    ),
    (
        &["nodes", "num-nodes", "num-machines"],
        "--nnodes HOSTS says how many hosts there are, each with a command of its own; --hosts starts them all",
    ),
    (&["machine-rank"], "--node-rank K is the number of this host"),
    (
        &["master-addr", "master-port", "rdzv-endpoint", "main-process-ip", "main-process-port"],
        "on one host nothing is to be said; on several, --rendezvous HOST:PORT is where the command of node rank 0 listens",
    ),
    (
        &["rdzv-backend", "rdzv-conf", "local-addr"],
        "there is one way for hosts to meet: --rendezvous HOST:PORT, or --hosts; leave it out",
    ),
    (&["rdzv-id"], "--job-id ID names the job"),
    (&["standalone"], "a job is one of this host alone unless a flag says otherwise; leave it out"),
    (
        &["monitor-interval", "start-method", "role", "no-python"],
        "there is nothing like that to set; leave it out",
    ),
    (&["module", "m"], "the program is started as it is: phalanx run … python -m MODULE"),
    (
        &["redirects", "r", "tee", "t", "output-filename", "output"],
        "--log-dir DIR keeps what each rank writes; it is shown as well",
    ),
    (&["machinefile", "f", "nodefile"], "--hostfile FILE is the list of hosts"),
    (&["host", "H", "nodelist", "w"], "--hosts HOST:N,… lists them, the first of which is this one"),
    (
        &["genv", "env-all", "genvlist", "envlist", "export"],
        "-x NAME=VALUE sets a variable in all ranks, and -x NAME passes on the one that is set here",
    ),
    (
        &["genvall", "envall"],
        "ranks of this host inherit all variables; -x NAME passes one on to those of --hosts",
    ),
    (
        &["map-by", "rank-by", "distribution", "ranks-per-proc"],
        "ranks are numbered by hosts, as --hosts lists them; --bind-to says on which cores they run",
    ),
    (&["cpu-bind", "binding"], "--bind-to core, numa or none says on which cores ranks run"),
    (&["oversubscribe", "use-hwthread-cpus"], "a host may have more ranks than cores; leave it out"),
    (
        &[
            "allow-run-as-root",
            "mca",
            "gmca",
            "pmixmca",
            "prtemca",
            "report-bindings",
            "display-map",
            "kill-on-bad-exit",
            "K",
        ],
        "there is nothing like that to set; leave it out",
    ),
    (
        &["label", "l", "prepend-rank", "output-proctable"],
        "lines begin with their rank anyway; --no-prefix leaves it out",
    ),
    (&["time"], "--timeout SECONDS ends a job that takes longer"),
];
