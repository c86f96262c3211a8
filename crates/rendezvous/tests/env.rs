//! What the environment says, and what it must not say.

use phalanx_core::{Deadline, Error, Result};
use phalanx_core::{LibraryCopy, Staging};
use phalanx_rendezvous::{Config, Source, StoreLocation};
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

const SECRET: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

/// `NAME=value` lines; later ones win.
fn read(variables: &[&str]) -> Result<Config> {
    let pairs: Vec<(&str, &str)> =
        variables.iter().flat_map(|v| v.split_whitespace()).filter_map(|v| v.split_once('=')).collect();
    Config::from_lookup(|name| {
        pairs.iter().rev().find(|(n, _)| *n == name).map(|(_, value)| value.to_string())
    })
}

fn secret() -> String {
    format!("PHALANX_SECRET={SECRET}")
}

const OURS: &str = "PHALANX_RANK=5 PHALANX_WORLD_SIZE=8 PHALANX_LOCAL_RANK=1 PHALANX_LOCAL_WORLD_SIZE=4 PHALANX_NODE_RANK=1 \
                    PHALANX_STORE=tcp://10.0.0.7:4000 PHALANX_JOB_ID=seven";
const TORCHRUN: &str = "RANK=5 WORLD_SIZE=8 LOCAL_RANK=1 LOCAL_WORLD_SIZE=4 GROUP_RANK=1 MASTER_ADDR=node0 MASTER_PORT=29500 \
                        TORCHELASTIC_RUN_ID=run";

#[test]
fn nothing_is_a_group_of_one() {
    let config = read(&["PHALANX_RANK= RANK= MASTER_ADDR="]).unwrap();
    assert_eq!((config.source, config.rank, config.world_size), (Source::Alone, 0, 1));
    assert_eq!((config.local_rank, config.local_world_size, config.node_rank), (0, 1, 0));
    assert_eq!((config.store, config.secret), (StoreLocation::None, None));
    assert_eq!((config.backend.as_str(), config.host_id), ("auto", None));
    assert_eq!((config.self_test, config.checksum), (true, false));
    assert_eq!((config.trace_dir, config.trace_len, config.trace_on_signal), (None, 1024, false));
    assert_eq!((config.timeout, config.init_timeout), (Duration::from_secs(600), Duration::from_secs(120)));
    assert_eq!(config.heartbeat_timeout, Some(Duration::from_secs(10)));
}

#[test]
fn another_launchers_process_may_be_alone_on_purpose_and_ours_is_a_rank() {
    let srun = "SLURM_PROCID=1 SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=8 PMI_RANK=1 PMI_SIZE=8";
    assert_eq!(read(&[srun, "PHALANX_ALONE=1"]).unwrap().source, Source::Alone);
    for (ours, source) in [(OURS, Source::Phalanx), (TORCHRUN, Source::Torchrun)] {
        let config = read(&[srun, ours, &secret()]).unwrap();
        assert_eq!((config.source, config.rank, config.world_size), (source, 5, 8));
    }
    let one = "PHALANX_RANK=0 PHALANX_WORLD_SIZE=1 PHALANX_STORE=tcp://a:1 PHALANX_ALONE=1";
    assert_eq!(read(&[one, &secret()]).unwrap().world_size, 1);
}

/// What each launcher sets, as seen on the real ones.
const HYDRA: &str = "PMI_RANK=3 PMI_SIZE=4 PMI_FD=6 MPI_LOCALRANKID=0 MPI_LOCALNRANKS=1";
const MPIRUN: &str = "OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=2 \
                      OMPI_COMM_WORLD_NODE_RANK=1 PMIX_RANK=3 PMIX_NAMESPACE=1108475905";
const SRUN: &str = "SLURM_JOB_ID=17 SLURM_STEP_ID=2 SLURM_PROCID=3 SLURM_STEP_NUM_TASKS=4 SLURM_NTASKS=4 SLURM_LOCALID=0 SLURM_NODEID=1 \
                    SLURM_STEP_TASKS_PER_NODE=3,1 SLURM_TASKS_PER_NODE=3,1 SLURM_CLUSTER_NAME=my/cluster HOME=/home/me";

#[test]
fn other_launchers_tell_the_ranks_and_where_to_meet() {
    let pmi2 = format!("{SRUN} PMI_RANK=3 PMI_SIZE=4 PMI_FD=11");
    let pmix = format!("{SRUN} PMIX_RANK=3");
    // A launcher whose daemons srun has started: one on each of three other hosts.
    let within = format!("{HYDRA} {SRUN} SLURM_STEP_NUM_TASKS=3 SLURM_PROCID=2");
    for (variables, by, local, node, store) in [
        (HYDRA, "PMI (MPICH, Intel MPI)", (0, 1), 3, "said through PMI over descriptor 6"),
        (MPIRUN, "Open MPI", (1, 2), 1, "said through PMIx"),
        (SRUN, "Slurm's srun", (0, 1), 1, "said through the file /home/me/.phalanx/slurm-mycluster-17.2-0"),
        (&pmi2, "PMI (MPICH, Intel MPI)", (0, 1), 1, "said through PMI over descriptor 11"),
        (&pmix, "Slurm's srun", (0, 1), 1, "said through PMIx"),
        (&within, "PMI (MPICH, Intel MPI)", (0, 1), 3, "said through PMI over descriptor 6"),
    ] {
        let config = read(&[variables]).unwrap();
        assert_eq!(
            (config.source, config.rank, config.world_size),
            (Source::Launcher(by), 3, 4),
            "{variables}"
        );
        assert_eq!(
            ((config.local_rank, config.local_world_size), config.node_rank),
            (local, node),
            "{variables}"
        );
        assert_eq!((config.store.to_string().as_str(), &config.secret), (store, &None), "{variables}");
        let soon = Deadline::after(Instant::now(), Duration::from_secs(5));
        assert!(config.open_store(&soon).unwrap_err().to_string().contains("Config::met"));
        // Whoever says where to meet says the secret too; the ranks are the launcher's still.
        let told = read(&[variables, "MASTER_ADDR=node0 MASTER_PORT=29500", &secret()]).unwrap();
        assert_eq!((told.source, told.rank), (Source::Launcher(by), 3));
        assert_eq!(told.store, StoreLocation::Tcp { host: "node0".into(), port: 29500, host_it: true });
        let error = read(&[variables, "MASTER_ADDR=node0 MASTER_PORT=29500"]).unwrap_err().to_string();
        assert!(error.contains("set PHALANX_SECRET"), "{error}");
        assert_eq!(read(&[variables, "PHALANX_ALONE=1"]).unwrap().source, Source::Alone);
        assert_eq!(read(&[variables, TORCHRUN, &secret()]).unwrap().source, Source::Torchrun);
        assert_eq!(read(&[variables, &secret()]).unwrap().secret.unwrap().to_hex(), SECRET);
    }
    let again = format!("{SRUN} SLURM_RESTART_COUNT=2 PHALANX_SHARED_DIR=/scratch");
    let again = read(&[&again]).unwrap().store.to_string();
    assert_eq!(again, "said through the file /scratch/slurm-mycluster-17.2-2");
}

#[test]
fn launchers_that_disagree_or_make_no_sense_are_refused() {
    for (variables, words) in [
        (
            vec![HYDRA, SRUN, "SLURM_PROCID=1"],
            ["PMI_RANK=3, PMI_SIZE=4", "SLURM_PROCID=1, SLURM_STEP_NUM_TASKS=4"],
        ),
        (vec![HYDRA, SRUN, "SLURM_STEP_NUM_TASKS=8"], ["process 3 of 4", "process 3 of 8"]),
        (vec![HYDRA, MPIRUN, "PMI_RANK=2"], ["process 3 of 4", "process 2 of 4"]),
        (
            vec![MPIRUN, "OMPI_COMM_WORLD_SIZE=1 OMPI_COMM_WORLD_RANK=0", SRUN],
            ["process 3 of 4", "process 0 of 1"],
        ),
        (vec![MPIRUN, "PMIX_RANK=1"], ["OMPI_COMM_WORLD_RANK is 3", "PMIX_RANK is 1"]),
        (vec![HYDRA, "PMI_RANK=4"], ["rank 4 of a world of 4", "MPICH"]),
        (vec![HYDRA, "PMI_RANK=x"], ["PMI_RANK is \"x\"", "not two numbers"]),
        (vec![HYDRA, "PMI_SIZE=99999999999999"], ["PMI_SIZE is 99999999999999", "32 bits"]),
        (vec![HYDRA, "PMI_FD=-1"], ["PMI_FD", "descriptor"]),
        (vec![HYDRA, "PMI_FD="], ["MASTER_ADDR, MASTER_PORT, PHALANX_SECRET", "PHALANX_ALONE=1"]),
        (vec!["MV2_COMM_WORLD_RANK=0 MV2_COMM_WORLD_SIZE=2"], ["MVAPICH2", "PHALANX_SECRET"]),
        (vec![SRUN, "HOME="], ["PHALANX_SHARED_DIR", "--mpi=pmi2"]),
        (vec![SRUN, "PHALANX_SHARED_DIR=here"], ["PHALANX_SHARED_DIR", "full path"]),
        (vec![HYDRA, "PHALANX_ELASTIC=2:4"], ["PHALANX_ELASTIC", "phalanx run --elastic"]),
        (vec![HYDRA, "MPI_LOCALRANKID=2"], ["local rank 2 of 1", "cannot be"]),
        (vec!["PET_NNODES=2 PET_NODE_RANK=1"], ["PET_NODE_RANK=1", "PHALANX_ALONE=1"]),
    ] {
        let error = read(&variables).unwrap_err();
        let said = error.to_string();
        assert!(
            matches!(error, Error::Config { .. }) && words.iter().all(|word| said.contains(word)),
            "{said}"
        );
    }
    // A batch script's shell is one process.
    let shell = "SLURM_JOB_ID=17 SLURM_PROCID=0 SLURM_NTASKS=4 SLURM_NNODES=2 SLURM_LOCALID=0 HOME=/home/me";
    assert_eq!(read(&[shell]).unwrap().source, Source::Alone);
}

#[test]
fn our_own_variables() {
    let config = read(&[
        OURS,
        &secret(),
        "PHALANX_HOST=node1 PHALANX_TIMEOUT_S=0.5 PHALANX_INIT_TIMEOUT_S=7 PHALANX_HEARTBEAT_TIMEOUT_S=2.5 PHALANX_ALGO=ring \
         PHALANX_BACKEND=tcp PHALANX_HOST_ID=left PHALANX_SELF_TEST=0 PHALANX_CHECKSUM=1 PHALANX_STAGING=own PHALANX_LIBRARY_COPY=write PHALANX_KERNEL_COPY=1 PHALANX_TRACE_DIR=t PHALANX_TRACE_BUFFER=64 \
         PHALANX_TRACE_SIGNAL=1",
    ]);
    let config = config.unwrap();
    assert_eq!((config.source, config.rank, config.world_size), (Source::Phalanx, 5, 8));
    assert_eq!((config.local_rank, config.local_world_size, config.node_rank), (1, 4, 1));
    let StoreLocation::Tcp { host, port, host_it } = config.store else { panic!("{:?}", config.store) };
    assert_eq!((host.as_str(), port, host_it), ("10.0.0.7", 4000, false));
    assert_eq!(config.secret.unwrap().to_hex(), SECRET);
    assert_eq!((config.job_id.as_str(), config.advertise.as_deref()), ("seven", Some("node1")));
    assert_eq!((config.timeout, config.init_timeout), (Duration::from_millis(500), Duration::from_secs(7)));
    assert_eq!(config.heartbeat_timeout, Some(Duration::from_millis(2500)));
    assert_eq!(config.algorithms.as_deref(), Some("ring"));
    assert_eq!((config.backend.as_str(), config.host_id.as_deref()), ("tcp", Some("left")));
    assert_eq!((config.self_test, config.checksum), (false, true));
    assert_eq!((config.staging, config.library_copy), (Some(Staging::Own), Some(LibraryCopy::Write)));
    assert_eq!(config.kernel_copy, Some(true));
    let folder = config.trace_dir.as_deref().and_then(std::path::Path::to_str);
    assert_eq!((folder, config.trace_len, config.trace_on_signal), (Some("t"), 64, true));
}

#[test]
fn without_a_heartbeat_nobody_is_waited_for() {
    for none in ["0", "0.0"] {
        let variable = format!("PHALANX_HEARTBEAT_TIMEOUT_S={none}");
        assert_eq!(read(&[OURS, &secret(), &variable]).unwrap().heartbeat_timeout, None);
    }
}

#[test]
fn torchruns_variables() {
    let config = read(&[TORCHRUN, &secret()]).unwrap();
    assert_eq!((config.source, config.rank, config.world_size), (Source::Torchrun, 5, 8));
    assert_eq!((config.local_rank, config.local_world_size, config.node_rank), (1, 4, 1));
    assert_eq!(config.store, StoreLocation::Tcp { host: "node0".into(), port: 29500, host_it: true });
    assert_eq!(config.job_id, "run");
}

#[test]
fn the_agent_of_torchrun_has_the_master_port_already() {
    for (flag, port, ours) in [("True", 29500, 29501), ("False", 29500, 29500), ("True", 65535, 65534)] {
        let flags = format!("TORCHELASTIC_USE_AGENT_STORE={flag} MASTER_PORT={port}");
        match read(&[TORCHRUN, &secret(), &flags]).unwrap().store {
            StoreLocation::Tcp { port, .. } => assert_eq!(port, ours),
            other => panic!("{other}"),
        }
    }
}

#[test]
fn both_families_may_be_there_and_ours_wins() {
    let config = read(&[TORCHRUN, OURS, &secret(), "LOCAL_RANK=3 TORCHELASTIC_RUN_ID=run"]).unwrap();
    assert_eq!((config.source, config.local_rank, config.job_id.as_str()), (Source::Phalanx, 1, "seven"));
    assert!(matches!(config.store, StoreLocation::Tcp { host_it: false, .. }));
}

#[test]
fn our_store_serves_torchruns_ranks() {
    let config = read(&[TORCHRUN, &secret(), "PHALANX_STORE=file:///scratch/me PHALANX_JOB_ID=1"]).unwrap();
    assert_eq!((config.source, config.store), (Source::Torchrun, StoreLocation::File("/scratch/me".into())));
}

#[test]
fn without_local_variables_there_is_one_rank_a_host() {
    let config = read(&["RANK=2 WORLD_SIZE=3 MASTER_ADDR=[::1] MASTER_PORT=1", &secret()]).unwrap();
    assert_eq!((config.local_rank, config.local_world_size, config.node_rank), (0, 1, 2));
    assert_eq!(config.store.to_string(), "tcp://[::1]:1");
}

#[test]
fn hosts_are_counted_when_nobody_numbers_them() {
    assert_eq!(read(&[OURS, &secret(), "PHALANX_NODE_RANK="]).unwrap().node_rank, 1);
    assert_eq!(read(&[TORCHRUN, &secret(), "GROUP_RANK= RANK=7 LOCAL_RANK=3"]).unwrap().node_rank, 1);
}

#[test]
fn nonsense_is_refused_and_named() {
    let with_secret = secret();
    let cases: &[(&[&str], &[&str])] = &[
        // Missing
        (&["RANK=0"], &["RANK is set", "WORLD_SIZE is not"]),
        (&["WORLD_SIZE=2"], &["WORLD_SIZE is set", "RANK is not"]),
        (&["PHALANX_RANK=0", TORCHRUN], &["PHALANX_RANK is 0", "RANK is 5"]),
        (&["PHALANX_RANK=5", TORCHRUN], &["PHALANX_RANK is set", "PHALANX_WORLD_SIZE is not"]),
        (&["RANK=0 WORLD_SIZE=2", &with_secret], &["MASTER_ADDR and MASTER_PORT"]),
        (&["RANK=0 WORLD_SIZE=2 MASTER_ADDR=a", &with_secret], &["set MASTER_PORT (or PHALANX_STORE)"]),
        (&["PHALANX_RANK=0 PHALANX_WORLD_SIZE=2", &with_secret], &["PHALANX_STORE"]),
        (&["MASTER_ADDR=a MASTER_PORT=1"], &["MASTER_ADDR", "RANK and WORLD_SIZE are not"]),
        (&["PHALANX_STORE=tcp://a:1"], &["PHALANX_STORE is set", "PHALANX_RANK"]),
        (&[OURS, "PHALANX_LOCAL_RANK="], &["PHALANX_LOCAL_WORLD_SIZE is set", "PHALANX_LOCAL_RANK is not"]),
        (&[TORCHRUN], &["PHALANX_SECRET", "openssl rand -hex 32", "PHALANX_SECRET_FILE"]),
        (&[TORCHRUN, &with_secret, "PHALANX_STORE=file:///d"], &["PHALANX_JOB_ID"]),
        (
            &[OURS, &with_secret, "PHALANX_STORE=file:///d PHALANX_ELASTIC=1:8"],
            &["PHALANX_ELASTIC", "a directory"],
        ),
        (&[OURS, &with_secret, "PHALANX_HOST=a:b"], &["PHALANX_HOST is \"a:b\"", "host:port"]),
        (&[OURS, &with_secret, "PHALANX_HOST=:7"], &["PHALANX_HOST is \":7\""]),
        (&[OURS, &with_secret, "PHALANX_PORT=0"], &["PHALANX_PORT is \"0\"", "not a port"]),
        // Contradictions
        (&[TORCHRUN, OURS, "WORLD_SIZE=9"], &["PHALANX_WORLD_SIZE is 8", "WORLD_SIZE is 9"]),
        (&[TORCHRUN, OURS, "RANK=1"], &["PHALANX_RANK is 5", "RANK is 1"]),
        (&[OURS, &with_secret, "PHALANX_SECRET_FILE=/x"], &["PHALANX_SECRET and PHALANX_SECRET_FILE"]),
        (&[TORCHRUN, &with_secret, "PHALANX_ALONE=1"], &["PHALANX_ALONE=1", "rank 5 of 8 (from RANK"]),
        // Other launchers
        (
            &["OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=4"],
            &["one of 4 processes of Open MPI", "PHALANX_ALONE=1"],
        ),
        (
            &["SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=2 MASTER_ADDR=a MASTER_PORT=1"],
            &["SLURM_STEP_NUM_TASKS is 2, but SLURM_PROCID is not set"],
        ),
        (&["PHALANX_ALONE=2"], &["PHALANX_ALONE", "neither 0 nor 1"]),
        // Out of range
        (&[OURS, "PHALANX_RANK=8"], &["rank 8 of a world of 8", "PHALANX_RANK"]),
        (&[OURS, "PHALANX_WORLD_SIZE=0"], &["the world size is 0 (from PHALANX_RANK", "at least one rank"]),
        (&[OURS, "PHALANX_RANK=-1"], &["PHALANX_RANK", "\"-1\""]),
        (&[OURS, "PHALANX_RANK=4294967296"], &["PHALANX_RANK", "not a number"]),
        (&[OURS, "PHALANX_LOCAL_RANK=4"], &["local rank 4 of 4"]),
        (&[OURS, "PHALANX_LOCAL_WORLD_SIZE=9"], &["of 9 on this host", "world of 8"]),
        (&["LOCAL_RANK=1 LOCAL_WORLD_SIZE=2"], &["local rank 1 of 2", "world of 1"]),
        (&[TORCHRUN, "MASTER_PORT=0"], &["MASTER_PORT"]),
        (&[TORCHRUN, "MASTER_PORT=http"], &["MASTER_PORT"]),
        (&[OURS, &with_secret, "PHALANX_STORE=nowhere"], &["nowhere", "tcp://"]),
        (&[OURS, "PHALANX_SECRET=abc"], &["64 hexadecimal digits"]),
        (&[OURS, &with_secret, "PHALANX_TIMEOUT_S=0"], &["PHALANX_TIMEOUT_S"]),
        (&[OURS, &with_secret, "PHALANX_TIMEOUT_S=NaN"], &["PHALANX_TIMEOUT_S"]),
        (&[OURS, &with_secret, "PHALANX_TIMEOUT_S=1e-10"], &["PHALANX_TIMEOUT_S"]),
        (&[OURS, &with_secret, "PHALANX_INIT_TIMEOUT_S=1e300"], &["PHALANX_INIT_TIMEOUT_S"]),
        (&[OURS, &with_secret, "PHALANX_HEARTBEAT_TIMEOUT_S=-1"], &["PHALANX_HEARTBEAT_TIMEOUT_S"]),
        (&[OURS, &with_secret, "PHALANX_TRACE_BUFFER=63"], &["PHALANX_TRACE_BUFFER is 63", "64 to 1048576"]),
        (&[OURS, &with_secret, "PHALANX_CHECKSUM=crc"], &["PHALANX_CHECKSUM", "neither 0 nor 1"]),
        (
            &[OURS, &with_secret, "PHALANX_STAGING=cells"],
            &["PHALANX_STAGING", "none of own, swapped and claimed"],
        ),
        (
            &[OURS, &with_secret, "PHALANX_LIBRARY_COPY=1"],
            &["PHALANX_LIBRARY_COPY", "none of never, write and always"],
        ),
        (&[OURS, &with_secret, "PHALANX_KERNEL_COPY=fast"], &["PHALANX_KERNEL_COPY", "neither 0 nor 1"]),
        (&[OURS, &with_secret, "PHALANX_ENCRYPT=yes"], &["PHALANX_ENCRYPT", "neither 0 nor 1 nor require"]),
        (&[OURS, &with_secret, "PHALANX_TRACE_SIGNAL=yes"], &["PHALANX_TRACE_SIGNAL", "neither 0 nor 1"]),
    ];
    for (variables, words) in cases {
        match read(variables) {
            Err(Error::Config { what }) => {
                for word in *words {
                    assert!(what.contains(word), "{variables:?}: {what:?} does not say {word:?}");
                }
                assert!(!what.contains(SECRET));
            }
            other => panic!("{variables:?}: {other:?}"),
        }
    }
}

#[test]
fn where_a_rank_listens_and_what_the_others_use_are_two_things() {
    for (variables, host, port) in [
        ("PHALANX_HOST=node1", "node1", None),
        ("PHALANX_HOST=node1:7000", "node1", Some(7000)),
        ("PHALANX_HOST=192.0.2.7:65535", "192.0.2.7", Some(65535)),
        ("PHALANX_HOST=fe80::7", "fe80::7", None),
        ("PHALANX_HOST=[fe80::7]", "fe80::7", None),
        ("PHALANX_HOST=[fe80::7]:7000", "fe80::7", Some(7000)),
    ] {
        let config = read(&[OURS, &secret(), variables]).unwrap();
        assert_eq!((config.advertise.as_deref(), config.advertise_port), (Some(host), port), "{variables}");
        assert_eq!((config.bind, config.port), (None, None));
    }
    let config = read(&[OURS, &secret(), "PHALANX_BIND=[::] PHALANX_PORT=6000"]).unwrap();
    assert_eq!((config.bind.as_deref(), config.port), (Some("::"), Some(6000)));
}

#[test]
fn encryption_is_asked_for() {
    for (flag, encrypts, refuses_clear) in [
        ("", false, false),
        ("PHALANX_ENCRYPT=0", false, false),
        ("PHALANX_ENCRYPT=1", true, false),
        ("PHALANX_ENCRYPT=require", true, true),
    ] {
        let secret = read(&[OURS, &secret(), flag]).unwrap().secret.unwrap();
        assert_eq!((secret.encrypts(), secret.refuses_clear()), (encrypts, refuses_clear), "{flag:?}");
    }
}

#[test]
fn the_secret_may_be_in_a_file_of_ours_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("secret");
    let read_with_mode = |mode| {
        std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
        read(&[OURS, &format!("PHALANX_SECRET_FILE={}", path.display())])
    };
    std::fs::write(&path, format!("{SECRET}\n")).unwrap();
    for good in [0o600, 0o400] {
        assert_eq!(read_with_mode(good).unwrap().secret.unwrap().to_hex(), SECRET);
    }
    for bad in [0o640, 0o604, 0o620, 0o601] {
        let error = read_with_mode(bad).unwrap_err().to_string();
        assert!(error.contains("chmod 600") && !error.contains(SECRET), "{error}");
    }
    std::fs::write(&path, vec![0xff; 64]).unwrap();
    assert!(matches!(read_with_mode(0o600), Err(Error::Config { .. })));
    std::fs::remove_file(&path).unwrap();
    let missing = read(&[OURS, &format!("PHALANX_SECRET_FILE={}", path.display())]);
    assert!(matches!(missing, Err(Error::Io { .. })), "{missing:?}");
}

#[test]
fn rank_0_runs_the_store_for_torchruns_ranks() {
    let port = phalanx_testkit::free_port();
    let rank = |rank: usize, limit: Duration| {
        let identity = format!("RANK={rank} WORLD_SIZE=2 MASTER_ADDR=localhost MASTER_PORT={port}");
        read(&[&identity, &secret()])?.open_store(&Deadline::after(Instant::now(), limit))
    };
    match rank(1, Duration::from_millis(50)) {
        Err(Error::Rendezvous { rank: 1, world_size: 2, .. }) => {}
        other => panic!("{other:?}"),
    }
    let long = Duration::from_secs(60);
    std::thread::scope(|scope| {
        let early = scope.spawn(|| rank(1, long).unwrap());
        let zero = rank(0, long).unwrap();
        let one = early.join().unwrap();
        assert!(zero.server.is_some() && one.server.is_none());
        assert!(one.local_ip.unwrap().is_loopback());
        one.store.set("key", b"value").unwrap();
        assert_eq!(zero.store.try_get("key").unwrap().unwrap(), b"value");
    });
}

#[test]
fn rank_0_says_so_when_the_masters_address_is_not_its_own() {
    // 192.0.2.0/24 is reserved for documentation: no host has it.
    let config = read(&["RANK=0 WORLD_SIZE=2 MASTER_ADDR=192.0.2.1 MASTER_PORT=29500", &secret()]).unwrap();
    let error = config.open_store(&Deadline::after(Instant::now(), Duration::from_secs(60))).unwrap_err();
    assert!(
        matches!(&error, Error::Io { doing, .. } if doing.contains("PHALANX_HOST") && doing.contains("192.0.2.1")),
        "{error}"
    );
}

#[test]
fn rank_0_cleans_the_directory_up() {
    let dir = tempfile::tempdir().unwrap();
    let store = format!("PHALANX_STORE=file://{} PHALANX_JOB_ID=1", dir.path().display());
    let open = |rank: usize| {
        let config = read(&[&format!("RANK={rank} WORLD_SIZE=2"), &secret(), &store]).unwrap();
        config.open_store(&Deadline::after(Instant::now(), Duration::from_secs(60))).unwrap()
    };
    let (zero, one) = (open(0), open(1));
    one.store.set("key", b"value").unwrap();
    drop(one);
    assert_eq!(zero.store.try_get("key").unwrap().unwrap(), b"value");
    drop(zero);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn an_elastic_job_has_a_least_and_a_most() {
    let config = read(&[OURS, &secret()]).unwrap();
    assert_eq!((config.worker, config.elastic), (5, None));
    let config = read(&[OURS, &secret(), "PHALANX_WORKER=17 PHALANX_ELASTIC=2:8"]).unwrap();
    let elastic = config.elastic.unwrap();
    assert_eq!((config.worker, elastic.min(), elastic.max()), (17, 2, 8));
    for text in ["2", "0:4", "5:4", "a:b", "1:2:3"] {
        let error = read(&[OURS, &secret(), &format!("PHALANX_ELASTIC={text}")]).unwrap_err().to_string();
        assert!(error.contains("PHALANX_ELASTIC: ") && error.contains("no MIN:MAX"), "{error}");
    }
}
