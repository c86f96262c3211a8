//! Slurm on this host: munged, a controller and two nodes, with ports and folders of their own. All ends with the test.

use super::programs::{command, installed};
use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const UP_TIME: Duration = Duration::from_secs(60);

pub(crate) struct Cluster {
    folder: tempfile::TempDir,
    daemons: Vec<Child>,
}

impl Cluster {
    /// `None`, with the reason, where it can't be had: not all versions of Slurm start for a user other than root.
    pub(crate) fn start() -> Option<Self> {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut cluster = Self { folder, daemons: Vec::new() };
        cluster.begin();
        let began = Instant::now();
        while began.elapsed() < UP_TIME {
            let nodes = cluster.command("sinfo", &["-h", "-N", "-o", "%T"]).output().expect("sinfo runs");
            if String::from_utf8_lossy(&nodes.stdout).lines().filter(|state| *state == "idle").count() == 2 {
                return Some(cluster);
            }
            std::thread::sleep(Duration::from_millis(200));
        }
        let is_root = rustix::process::geteuid().is_root();
        assert!(!is_root, "Slurm's daemons did not start: {}", cluster.logs());
        println!("skipped: Slurm's daemons do not start without root: {}", cluster.logs());
        None
    }

    /// A command of Slurm's, for this cluster.
    pub(crate) fn command(&self, name: &str, args: &[&str]) -> Command {
        let mut command = command(Path::new(name), args);
        command.env("SLURM_CONF", self.path("slurm.conf"));
        command
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn begin(&mut self) {
        fs::set_permissions(self.folder.path(), fs::Permissions::from_mode(0o755)).expect("it is ours");
        for dir in ["munge", "state", "spool-n1", "spool-n2", "log"] {
            fs::create_dir(self.path(dir)).expect("it is ours");
        }
        let mut key = [0; 128];
        fs::File::open("/dev/urandom")
            .and_then(|mut random| random.read_exact(&mut key))
            .expect("randomness");
        fs::write(self.path("munge/key"), key).expect("it is ours");
        fs::set_permissions(self.path("munge/key"), fs::Permissions::from_mode(0o600)).expect("it is ours");
        fs::write(self.path("slurm.conf"), self.configuration()).expect("it is ours");
        let option = |name: &str, file: &str| format!("--{name}={}", self.path(file).display());
        let munge = [
            "--force".into(),
            "--foreground".into(),
            option("key-file", "munge/key"),
            option("socket", "munge/sock"),
            option("pid-file", "munge/pid"),
            option("log-file", "log/munge"),
            option("seed-file", "munge/seed"),
        ];
        self.daemon("munged", &munge);
        let began = Instant::now();
        while !self.path("munge/sock").exists() {
            assert!(began.elapsed() < UP_TIME, "munged did not start: {}", self.logs());
            std::thread::sleep(Duration::from_millis(20));
        }
        self.daemon("slurmctld", &["-D".into()]);
        for node in ["n1", "n2"] {
            self.daemon("slurmd", &["-D".into(), "-N".into(), node.into()]);
        }
    }

    fn daemon(&mut self, name: &str, args: &[String]) {
        let program = installed(name).expect("it was found before");
        let log =
            fs::File::create(self.path(&format!("log/{name}-{}", self.daemons.len()))).expect("it is ours");
        let mut command = Command::new(program);
        command.args(args).env("SLURM_CONF", self.path("slurm.conf")).stdin(Stdio::null());
        command.stdout(log.try_clone().expect("once more")).stderr(log);
        self.daemons.push(command.spawn().expect("it starts"));
    }

    fn configuration(&self) -> String {
        let dir = self.folder.path().display();
        let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let host = name.split('.').next().unwrap_or_default();
        // Daemons of a user start jobs of that user, and of root those of all.
        let user = rustix::process::geteuid().as_raw();
        let [controller, one, other] = [(); 3].map(|()| phalanx_testkit::free_port());
        format!(
            "ClusterName=phalanx\n\
             SlurmctldHost={host}(127.0.0.1)\n\
             SlurmctldPort={controller}\n\
             SlurmUser={user}\n\
             SlurmdUser={user}\n\
             AuthType=auth/munge\n\
             AuthInfo=socket={dir}/munge/sock\n\
             CredType=cred/munge\n\
             StateSaveLocation={dir}/state\n\
             SlurmctldPidFile={dir}/ctld.pid\n\
             SlurmdPidFile={dir}/slurmd-%n.pid\n\
             SlurmdSpoolDir={dir}/spool-%n\n\
             SlurmctldLogFile={dir}/log/ctld.log\n\
             SlurmdLogFile={dir}/log/slurmd-%n.log\n\
             ProctrackType=proctrack/linuxproc\n\
             TaskPlugin=task/none\n\
             MpiDefault=none\n\
             ReturnToService=2\n\
             SelectType=select/cons_tres\n\
             SelectTypeParameters=CR_Core\n\
             JobAcctGatherType=jobacct_gather/none\n\
             AccountingStorageType=accounting_storage/none\n\
             SlurmdParameters=config_overrides\n\
             NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={one} CPUs=4 RealMemory=2000 State=UNKNOWN\n\
             NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={other} CPUs=4 RealMemory=2000 State=UNKNOWN\n\
             PartitionName=main Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE\n"
        )
    }

    fn logs(&self) -> String {
        let files = fs::read_dir(self.path("log")).into_iter().flatten().flatten();
        let tail = |path: PathBuf| {
            let text = String::from_utf8_lossy(&fs::read(&path).unwrap_or_default()).into_owned();
            let lines: Vec<&str> = text.lines().collect();
            format!("\n{}:\n{}", path.display(), lines[lines.len().saturating_sub(8)..].join("\n"))
        };
        files.map(|file| tail(file.path())).collect()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // The nodes first, then whom they ask.
        for daemon in self.daemons.iter_mut().rev() {
            if let Some(pid) = rustix::process::Pid::from_raw(daemon.id().cast_signed()) {
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
            }
        }
        for daemon in self.daemons.iter_mut().rev() {
            let began = Instant::now();
            while matches!(daemon.try_wait(), Ok(None)) {
                if began.elapsed() > Duration::from_secs(10) {
                    let _ = daemon.kill();
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }
}
