//! `phalanx run --hosts`: agents that are started over ssh, with a real server where it is installed, and other remote shells. Linux, because what is left of a
//! job is looked for in `/proc`.
#![cfg(target_os = "linux")]

mod several_hosts;

use rustix::process::{Pid, Signal, kill_process};
use several_hosts::{HANG, Host, all_gone};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// A server of ssh on this machine, and what reaches it; both end with this.
struct Sshd {
    folder: tempfile::TempDir,
    server: Child,
    port: u16,
}

impl Sshd {
    /// `Err` says why it can't be had.
    fn start() -> Result<Self, String> {
        let which = |name: &str| {
            let found = ["/usr/sbin", "/usr/bin"].map(|dir| Path::new(dir).join(name));
            found.into_iter().find(|file| file.exists()).ok_or(format!("{name} is not installed"))
        };
        let (sshd, keygen) = (which("sshd")?, which("ssh-keygen")?);
        which("ssh")?;
        if !rustix::process::geteuid().is_root() {
            return Err("sshd needs root".into());
        }
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).display().to_string();
        for key in ["host", "user"] {
            let made =
                Command::new(&keygen).args(["-q", "-t", "ed25519", "-N", "", "-f", &path(key)]).status();
            assert!(made.unwrap().success());
        }
        std::fs::copy(path("user.pub"), path("authorized")).unwrap();
        std::fs::create_dir_all("/run/sshd").map_err(|error| error.to_string())?;
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let config = format!(
            "Port {port}\nListenAddress 127.0.0.1\nHostKey {}\nAuthorizedKeysFile {}\nStrictModes no\nPidFile none\nUsePAM no\n\
             PermitRootLogin yes\n",
            path("host"),
            path("authorized")
        );
        std::fs::write(path("config"), config).unwrap();
        let mut server = Command::new(sshd);
        server.args(["-D", "-f", &path("config")]).stdin(Stdio::null()).stderr(Stdio::null());
        let sshd = Self { server: server.spawn().map_err(|error| error.to_string())?, port, folder };
        let begun = Instant::now();
        while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(begun.elapsed() < HANG, "sshd does not listen");
            sleep(Duration::from_millis(20));
        }
        Ok(sshd)
    }

    fn shell(&self) -> String {
        let key = self.folder.path().join("user").display().to_string();
        format!(
            "ssh -T -q -F none -o BatchMode=yes -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -i {key} -p {}",
            self.port
        )
    }
}

impl Drop for Sshd {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

/// `phalanx run` on this host and another one that is this host too, by ssh.
fn over_ssh(shell: &str, flags: &[&str], script: &str) -> Host {
    let mut command = Command::new(env!("CARGO_BIN_EXE_phalanx"));
    command.args(["run", "--hosts", "localhost:1,127.0.0.1:2", "--ssh", shell, "--grace", "1"]).args(flags);
    command.args(["sh", "-c", script]).env("PHALANX_TIMEOUT_S", "77").env("PHALANX_INIT_TIMEOUT_S", "30");
    Host::start(command)
}

/// The processes below this one, with their command lines.
fn below(pid: u32) -> Vec<(u32, String)> {
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    // Children belong to the thread that has started them.
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let of_threads =
        threads.map(|thread| std::fs::read_to_string(thread.path().join("children")).unwrap_or_default());
    let all: Vec<u32> = std::iter::once(children)
        .chain(of_threads)
        .flat_map(|text| text.split_whitespace().map(|pid| pid.parse().unwrap()).collect::<Vec<u32>>())
        .collect();
    let named = |pid: u32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        (pid, String::from_utf8_lossy(&line).replace('\0', " "))
    };
    all.into_iter().flat_map(|pid| std::iter::once(named(pid)).chain(below(pid))).collect()
}

#[test]
#[allow(clippy::print_stdout, reason = "a test that is skipped says so")]
fn agents_are_started_over_ssh_and_nothing_is_left_of_them() {
    let sshd = match Sshd::start() {
        Ok(sshd) => sshd,
        Err(why) => return println!("skipped: {why}"),
    };
    let shell = sshd.shell();
    let script = "echo $RANK/$WORLD_SIZE $LOCAL_RANK $GROUP_RANK $PHALANX_TIMEOUT_S $MINE $(pwd)";
    let (code, text) = over_ssh(&shell, &["--env", "MINE=a b", "--no-prefix"], script).ends();
    let mut lines: Vec<_> = text.lines().collect();
    lines.sort_unstable();
    let here = std::env::current_dir().unwrap().display().to_string();
    let all = ["0/3 0 0 77 a b ", "1/3 0 1 77 a b ", "2/3 1 1 77 a b "].map(|line| format!("{line}{here}"));
    assert_eq!((code, lines), (Some(0), all.iter().map(String::as_str).collect()), "{text}");

    // A failure there is the job's.
    let (code, text) = over_ssh(&shell, &[], "test $RANK != 2 || exit 7; exec sleep 60").ends();
    assert!(code == Some(7) && text.contains("rank 2 of 3 (pid "), "{text}");

    let script = "echo secret $PHALANX_SECRET; echo pid $$; exec sleep 60";
    for (killed, exit) in [("leader", None), ("ssh", Some(1)), ("agent", Some(1))] {
        let job = over_ssh(&shell, &["--env", "MINE=nobodys"], script);
        let pids = job.pids(3);
        let processes = [below(std::process::id()), below(sshd.server.id())].concat();
        let secret = job.lines("] secret ", 1)[0].rsplit(' ').next().unwrap().to_owned();
        for (_, line) in &processes {
            assert!(!line.contains(&secret), "{line}");
            // The launcher's own command line has it.
            assert!(!line.contains("nobodys") || line.contains(" run --hosts "), "{line}");
        }
        let one = |is: &dyn Fn(&str) -> bool| processes.iter().find(|(_, line)| is(line)).unwrap().0;
        // The launcher's own command line has the shell's in it.
        let ssh = one(&|line| line.starts_with("ssh -T"));
        let agent = one(&|line| line.ends_with("phalanx agent "));
        let victim = match killed {
            "leader" => job.launcher.id(),
            "ssh" => ssh,
            _ => agent,
        };
        kill_process(Pid::from_raw(victim as i32).unwrap(), Signal::KILL).unwrap();
        all_gone(&[&pids[..], &[agent, ssh]].concat());
        let (code, text) = job.ends();
        assert_eq!(code, exit, "{killed}: {text}");
        assert!(exit.is_none() || text.contains("was lost with its host"), "{killed}: {text}");
    }
}

#[test]
fn a_host_that_ssh_does_not_reach_is_said_at_once() {
    let begun = Instant::now();
    let (code, text) = over_ssh("false", &[], "true").ends();
    assert_eq!(code, Some(1), "{text}");
    assert!(
        text.contains("the remote shell to node 1 (127.0.0.1) exited with code 1 before an agent came"),
        "{text}"
    );
    assert!(begun.elapsed() < Duration::from_secs(30), "it has waited for an agent that can't come");
    let (code, text) = over_ssh("no-such-shell", &[], "true").ends();
    assert!(code == Some(127) && text.contains("program no-such-shell is not available"), "{text}");
}

#[test]
fn agents_that_ssh_starts_come_again_with_a_job_that_is_started_again() {
    let dir = tempfile::tempdir().unwrap();
    let shell = dir.path().join("shell");
    // The host's name, and what is to be done there.
    std::fs::write(&shell, "#!/bin/sh\nexec sh -c \"$2\"\n").unwrap();
    std::fs::set_permissions(&shell, std::fs::Permissions::from_mode(0o755)).unwrap();
    let script = "echo try $PHALANX_RESTART_COUNT; test $RANK$PHALANX_RESTART_COUNT != 10 || kill -9 $PPID; test $PHALANX_RESTART_COUNT = 1 || exec sleep 60";
    let (code, text) = over_ssh(shell.to_str().unwrap(), &["--max-restarts", "1"], script).ends();
    assert_eq!(code, Some(0), "{text}");
    assert_eq!(text.matches("try 1").count(), 3, "{text}");
}

/// A host that was switched off tells ssh nothing, and while it starts it is called in vain.
#[test]
fn a_host_that_was_lost_is_called_until_it_is_there_again() {
    let dir = tempfile::tempdir().unwrap();
    let (shell, calls) = (dir.path().join("shell"), dir.path().join("calls"));
    let text = format!(
        "#!/bin/sh\necho >>{calls}\ncase $(wc -l <{calls}) in\n1) sh -c \"$2\"; exec sleep 600;;\n2) exit 255;;\n*) exec sh -c \"$2\";;\nesac\n",
        calls = calls.display()
    );
    std::fs::write(&shell, text).unwrap();
    std::fs::set_permissions(&shell, std::fs::Permissions::from_mode(0o755)).unwrap();
    let script = "echo try $PHALANX_RESTART_COUNT; test $RANK$PHALANX_RESTART_COUNT != 10 || kill -9 $PPID; test $PHALANX_RESTART_COUNT = 1 || exec sleep 60";
    let (code, text) = over_ssh(shell.to_str().unwrap(), &["--max-restarts", "1"], script).ends();
    assert_eq!(code, Some(0), "{text}");
    assert_eq!(text.matches("try 1").count(), 3, "{text}");
    assert!(text.contains("the remote shell to node 1 (127.0.0.1) exited with code 255"), "{text}");
}

/// What holds for the whole job goes along, to a host that inherits nothing from here.
#[test]
fn flags_reach_the_ranks_of_other_hosts() {
    let dir = tempfile::tempdir().unwrap();
    let shell = dir.path().join("shell");
    std::fs::write(&shell, "#!/bin/sh\nexec env -i PATH=\"$PATH\" sh -c \"$2\"\n").unwrap();
    std::fs::set_permissions(&shell, std::fs::Permissions::from_mode(0o755)).unwrap();
    let folder = dir.path().canonicalize().unwrap().display().to_string();
    let script = "echo $(pwd) $GIVEN $HERE $PHALANX_BACKEND $PHALANX_TIMEOUT_S $PHALANX_HEARTBEAT_TIMEOUT_S $(grep Cpus_allowed_list /proc/self/status) $(cat)";
    let flags = ["--wdir", &folder, "-x", "GIVEN=given", "-x", "PATH", "--no-prefix", "--bind-to", "core"];
    let settings = ["--backend", "tcp", "--op-timeout", "33", "--heartbeat", "20"];
    let (code, text) = over_ssh(shell.to_str().unwrap(), &[&flags[..], &settings].concat(), script).ends();
    assert_eq!(code, Some(0), "{text}");
    let lines: Vec<&str> = text.lines().collect();
    let begin = format!("{folder} given tcp 33 20 Cpus_allowed_list: ");
    assert!(lines.len() == 3 && lines.iter().all(|line| line.starts_with(&begin)), "{text}");
    // The second host has two ranks, which share its cores.
    let cores = std::thread::available_parallelism().unwrap().get();
    let bound: std::collections::BTreeSet<&&str> = lines.iter().collect();
    assert_eq!(bound.len(), if cores > 1 { 3 } else { 1 }, "{text}");
    // The first host's ranks would be started in the wrong place, too.
    let (code, text) = over_ssh(shell.to_str().unwrap(), &["--wdir", "/no/such"], "true").ends();
    assert!(
        code == Some(2) && text.contains("the working directory /no/such (--wdir): No such file"),
        "{text}"
    );
}
