//! The flags of `phalanx run` that say how many ranks there are, and what each finds: variables, folder, standard input, cores. Linux, because what
//! ranks are bound to is looked up in `/proc`.
#![cfg(target_os = "linux")]

use std::io::Write;
use std::process::{Command, Output, Stdio};

fn phalanx(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_phalanx"));
    command.arg("run").args(words).stdin(Stdio::null());
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The lines of stdout, sorted, of a job that must succeed.
#[track_caller]
fn lines(command: &mut Command) -> Vec<String> {
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let mut lines: Vec<_> = text(&output.stdout).lines().map(String::from).collect();
    lines.sort();
    lines
}

/// The complaint of a command that starts nothing.
#[track_caller]
fn refused(command: &mut Command) -> String {
    let Output { status, stdout, stderr } = command.output().unwrap();
    let complaint = text(&stderr);
    assert_eq!((status.code(), text(&stdout).as_str()), (Some(2), ""), "{complaint}");
    complaint
}

/// The CPUs of a list as in `0-3,7`.
fn cpus(list: &str) -> Vec<usize> {
    let range = |part: &str| {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        from.parse().unwrap()..=to.parse().unwrap()
    };
    list.trim().split(',').flat_map(range).collect()
}

fn own_cpus() -> Vec<usize> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    cpus(status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap())
}

#[test]
fn the_number_of_ranks_has_the_names_that_other_launchers_give_it() {
    for flag in ["-n", "-np", "--np", "--nproc-per-node", "--nproc_per_node"] {
        // What stands behind the program is the program's.
        let job = &mut phalanx(&[flag, "2", "--no-prefix", "echo", "-np", "3"]);
        assert_eq!(lines(job), ["-np 3", "-np 3"], "{flag}");
    }
}

#[test]
fn auto_is_a_rank_for_each_gpu_or_else_for_each_core() {
    let ranks = |count: &str, gpus: &str| {
        let first = own_cpus()[0].to_string();
        // A launcher that may use one core.
        let mut command = Command::new("taskset");
        command.args(["-c", &first, env!("CARGO_BIN_EXE_phalanx"), "run", "-n", count, "--no-prefix"]);
        command.args(["sh", "-c", "echo $RANK"]).env("CUDA_VISIBLE_DEVICES", gpus).stdin(Stdio::null());
        command
    };
    assert_eq!(lines(&mut ranks("auto", "0,2,5")), ["0", "1", "2"]);
    assert_eq!(lines(&mut ranks("auto", "")), ["0"]);
    assert_eq!(lines(&mut ranks("gpu", "GPU-11,GPU-12")), ["0", "1"]);
    assert_eq!(lines(&mut ranks("cpu", "0,2,5")), ["0"]);
    assert!(refused(&mut ranks("gpu", "-1")).contains("-n gpu: there is no GPU"));
}

#[test]
fn variables_are_passed_on_by_name_or_with_a_value() {
    let script = ["sh", "-c", "echo $COLOUR $SIZE"];
    let mut job = phalanx(&[&["-n", "1", "-x", "COLOUR", "-x", "SIZE=a=b"], &script[..]].concat());
    assert_eq!(lines(job.env("COLOUR", "green")), ["[0] green a=b"]);
    let complaint =
        refused(phalanx(&[&["-n", "1", "-x", "COLOUR"], &script[..]].concat()).env_remove("COLOUR"));
    assert!(complaint.contains("-x COLOUR: that variable is not set here"), "{complaint}");
    let complaint = refused(&mut phalanx(&["-n", "1", "-x", "RANK=3", "true"]));
    assert!(complaint.contains("RANK is set by the launcher"), "{complaint}");
}

#[test]
fn ranks_start_in_the_folder_that_is_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().canonicalize().unwrap();
    std::fs::write(path.join("train"), "#!/bin/sh\npwd\n").unwrap();
    std::fs::set_permissions(path.join("train"), std::os::unix::fs::PermissionsExt::from_mode(0o755))
        .unwrap();
    let dir = path.to_str().unwrap();
    for flag in ["--wdir", "-wdir", "--chdir"] {
        assert_eq!(lines(&mut phalanx(&["-n", "1", flag, dir, "pwd"])), [format!("[0] {dir}")], "{flag}");
    }
    assert_eq!(lines(&mut phalanx(&["-n", "1", "--wdir", dir, "./train"])), [format!("[0] {dir}")]);
    // Logs, and the ranks' traces with them, are where this command is.
    let mut logged = phalanx(&[
        "-n",
        "1",
        "--wdir",
        "/",
        "--log-dir",
        "logs",
        "--job-id",
        "j",
        "printenv",
        "PHALANX_TRACE_DIR",
    ]);
    assert_eq!(lines(logged.current_dir(&path)), [format!("[0] {dir}/logs/j/attempt_0")]);
    assert!(path.join("logs/j/attempt_0/0/stdout.log").exists());
    let missing = format!("{dir}/none");
    let complaint = refused(&mut phalanx(&["-n", "1", "--wdir", &missing, "true"]));
    assert!(complaint.contains(&missing) && complaint.contains("No such file"), "{complaint}");
    let complaint = refused(&mut phalanx(&["-n", "1", "--wdir", &format!("{dir}/train"), "true"]));
    assert!(complaint.contains("Not a directory"), "{complaint}");
}

#[test]
fn flags_set_the_variables_of_the_ranks_and_refuse_what_those_would_refuse() {
    let script = "echo $PHALANX_BACKEND $PHALANX_TIMEOUT_S $PHALANX_HEARTBEAT_TIMEOUT_S";
    let flags = ["-n", "1", "--backend", "tcp", "--op-timeout", "2.5", "--heartbeat", "0"];
    let mut job = phalanx(&[&flags[..], &["--env", "PHALANX_BACKEND=shm", "sh", "-c", script]].concat());
    assert_eq!(lines(job.env("PHALANX_TIMEOUT_S", "7")), ["[0] tcp 2.5 0"], "a flag goes before variables");
    for (flag, value, words) in [
        ("--backend", "Gloo!", "lower-case letters"),
        ("--backend", "", "lower-case letters"),
        ("--op-timeout", "0", "PHALANX_TIMEOUT_S is \"0\""),
        ("--op-timeout", "soon", "PHALANX_TIMEOUT_S is \"soon\""),
        ("--heartbeat", "nan", "PHALANX_HEARTBEAT_TIMEOUT_S is \"nan\""),
    ] {
        let complaint = refused(&mut phalanx(&["-n", "1", flag, value, "true"]));
        assert!(complaint.contains(words), "{flag} {value}: {complaint}");
    }
}

#[test]
fn lines_have_rank_and_time_in_front() {
    let label = |flags: &[&str]| {
        let line = lines(&mut phalanx(&[&["-n", "1"], flags, &["echo", "hello"]].concat())).concat();
        // Digits of the time as 9.
        line.replace(|c: char| c.is_ascii_digit() && c != '0', "9").replace('0', "9")
    };
    assert_eq!(label(&["--tag-output"]), "[9] hello");
    assert_eq!(label(&["--timestamps"]), "[9 9999-99-99T99:99:99.999Z] hello");
    assert_eq!(label(&["--tag-output", "--timestamps"]), "[9 9999-99-99T99:99:99.999Z] hello");
    assert_eq!(label(&["--no-prefix", "--timestamps"]), "[9999-99-99T99:99:99.999Z] hello");
    let complaint = refused(&mut phalanx(&["-n", "1", "--tag-output", "--no-prefix", "true"]));
    assert!(complaint.contains("cannot be used with"), "{complaint}");
}

/// What a job shows that is given this on its standard input.
fn given(input: &str, command: &mut Command) -> Vec<String> {
    let mut job = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    // A job that does not read may be over.
    let _ = job.stdin.take().unwrap().write_all(input.as_bytes());
    let output = job.wait_with_output().unwrap();
    assert!(output.status.success());
    let mut lines: Vec<_> = text(&output.stdout).lines().map(String::from).collect();
    lines.sort();
    lines
}

#[test]
fn rank_0_reads_what_the_launcher_is_given() {
    let cat = ["sh", "-c", "echo $RANK; cat"];
    let job = |flags: &[&str]| phalanx(&[&["-n", "2"], flags, &cat].concat());
    assert_eq!(given("one\ntwo\n", &mut job(&[])), ["[0] 0", "[0] one", "[0] two", "[1] 1"]);
    assert_eq!(given("one\ntwo\n", &mut job(&["--stdin", "none"])), ["[0] 0", "[1] 1"]);
    assert_eq!(lines(&mut job(&[])), ["[0] 0", "[1] 1"], "/dev/null");
    // Closed, as by `<&-`.
    let mut closed = Command::new("sh");
    closed.args(["-c", "exec \"$@\" <&-", "sh", env!("CARGO_BIN_EXE_phalanx"), "run", "-n", "2"]).args(cat);
    assert_eq!(lines(&mut closed), ["[0] 0", "[1] 1"]);
}

#[test]
fn a_job_that_starts_again_reads_on() {
    // `read` takes no more than a line from what is handed over as it is.
    let script = "read line; echo $line; [ $line = two ]";
    let job = &mut phalanx(&["-n", "1", "--max-restarts", "1", "sh", "-c", script]);
    assert_eq!(given("one\ntwo\n", job), ["[0] one", "[0] two"]);
}

/// What a shell with a terminal shows in which this is typed; `None` where there is no `script`, which makes the terminal.
#[allow(clippy::print_stdout, reason = "a test that is skipped says so")]
fn in_terminal(typed: &str, script: &str) -> Option<String> {
    let script = script.replace("phalanx", env!("CARGO_BIN_EXE_phalanx"));
    let mut shell = Command::new("timeout");
    shell.args(["-k", "1", "30", "script", "-qec", &script, "/dev/null"]);
    let mut shell = shell.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut stdin = shell.stdin.take().unwrap();
    // Where nothing can be started, nobody reads.
    let _ = stdin.write_all(typed.as_bytes());
    let output = shell.wait_with_output().unwrap();
    drop(stdin);
    if output.status.code() == Some(127) {
        println!("skipped: `script` is not installed");
        return None;
    }
    Some(text(&output.stdout))
}

#[test]
fn what_is_typed_comes_to_rank_0() {
    let job = "phalanx run -n 2 sh -c 'cat; echo $RANK is done'";
    // Control-D ends it.
    let Some(shown) = in_terminal("hello\n\u{4}", job) else {
        return;
    };
    assert!(shown.contains("[0] hello\r\n"), "{shown}");
    assert!(shown.contains("[0] 0 is done") && shown.contains("[1] 1 is done"), "{shown}");
}

#[test]
fn in_the_background_a_terminal_stops_nobody() {
    // Who reads from the terminal in the background is stopped with all of its group: neither the launcher nor the rank may.
    let rank = "exec 3<&0; cat <&3 & sleep 0.5; grep State /proc/$!/status; kill -9 $!";
    let job = format!("set -m; phalanx run -n 1 --timeout 10 sh -c '{rank}' & wait; echo code $?");
    let Some(shown) = in_terminal("hello\n", &job) else {
        return;
    };
    assert!(shown.contains("[0] State:\tS") && shown.contains("code 0"), "{shown}");
    assert!(!shown.contains("[0] hello"), "that was typed for the shell: {shown}");
}

#[test]
fn ranks_are_bound_to_their_share_of_the_cores() {
    let own = own_cpus();
    let bound = |flags: &[&str]| -> Vec<Vec<usize>> {
        let rank = ["grep", "Cpus_allowed_list", "/proc/self/status"];
        let lines = lines(&mut phalanx(&[flags, &rank].concat()));
        lines.iter().map(|line| cpus(line.rsplit(['\t', ' ']).next().unwrap())).collect()
    };
    assert_eq!(bound(&["-n", "2"]), [own.clone(), own.clone()]);
    assert_eq!(bound(&["-n", "2", "--bind-to", "none"]), [own.clone(), own.clone()]);
    let two = bound(&["-n", "2", "--bind-to", "core"]);
    let mut all = two.concat();
    all.sort_unstable();
    if own.len() > 1 {
        assert_eq!(all, own, "each CPU is one rank's: {two:?}");
        assert!(two.iter().all(|cpus| !cpus.is_empty()));
    }
    let more = bound(&["-n", &(own.len() * 2).to_string(), "--bind-to", "core"]);
    assert!(more.iter().all(|cpus| cpus.len() == 1), "{more:?}");
    for cpus in bound(&["-n", "2", "--bind-to", "numa"]) {
        assert!(!cpus.is_empty() && cpus.iter().all(|cpu| own.contains(cpu)));
    }
    // Only of those that the launcher may use.
    let mut one = Command::new("taskset");
    one.args(["-c", &own[own.len() - 1].to_string(), env!("CARGO_BIN_EXE_phalanx"), "run", "--no-prefix"]);
    one.args(["-n", "2", "--bind-to", "core", "grep", "Cpus_allowed_list", "/proc/self/status"]);
    assert_eq!(lines(&mut one), vec![format!("Cpus_allowed_list:\t{}", own[own.len() - 1]); 2]);
}

#[test]
fn what_is_mistyped_or_another_launchers_gets_advice() {
    for (words, advice) in [
        (&["run", "--max-restart", "3", "true"][..], "--max-restarts"),
        (&["run", "-n", "1", "--log_dri", "x", "true"], "--log-dir"),
        (&["rnu", "-n", "1", "true"], "'run'"),
        (
            &["run", "--rdzv_backend", "c10d", "true"],
            "phalanx: --rdzv_backend is a flag of other launchers: ",
        ),
        (&["run", "-machinefile", "hosts", "true"], "--hostfile FILE"),
        (&["run", "--oversubscribe", "-np", "4", "true"], "leave it out"),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_phalanx")).args(words).output().unwrap();
        let complaint = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{complaint}");
        assert!(complaint.contains(advice), "{words:?}: {complaint}");
    }
}

/// What a job leaves for programs that read.
fn report(flags: &[&str], program: &[&str]) -> serde_json::Value {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("report.json");
    std::fs::write(&file, "of the last job, and longer than what follows".repeat(100)).unwrap();
    let path = file.to_str().unwrap();
    let output = phalanx(&[&["--json", path], flags, program].concat()).output().unwrap();
    let text = std::fs::read_to_string(&file).unwrap();
    assert_eq!(text.lines().count(), 1, "{text}");
    let report: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(report["exit_code"], output.status.code().unwrap(), "{report}");
    report
}

#[test]
fn programs_read_how_a_job_ended() {
    let well = report(&["-n", "3", "--job-id", "nightly"], &["true"]);
    assert_eq!(
        (&well["outcome"], &well["ranks"], &well["restarts"]),
        (&"success".into(), &3.into(), &0.into())
    );
    assert_eq!((&well["job_id"], &well["named"]), (&"nightly".into(), &serde_json::Value::Null));
    let script = "echo out of ideas >&2; [ $RANK = 0 ] && exec sleep 60; exit 7";
    let failed = report(&["-n", "2", "--max-restarts", "1", "--grace", "1"], &["sh", "-c", script]);
    let named = &failed["named"];
    assert_eq!((&failed["outcome"], &failed["restarts"]), (&"failure".into(), &1.into()), "{failed}");
    assert_eq!((&named["rank"], &named["ended"], &named["code"]), (&1.into(), &"exited".into(), &7.into()));
    assert_eq!((&named["named_by"], &named["stderr_tail"][0]), (&"exit".into(), &"out of ideas".into()));
    assert!(failed["words"].as_str().unwrap().starts_with("rank 1 of 2 (pid "), "{failed}");
    let killed = report(&["-n", "1"], &["sh", "-c", "kill -9 $$"]);
    assert_eq!((&killed["named"]["ended"], &killed["named"]["signal"]), (&"killed".into(), &9.into()));
    let late = report(&["-n", "1", "--timeout", "0.1", "--grace", "0.1"], &["sleep", "60"]);
    assert_eq!((&late["outcome"], &late["exit_code"]), (&"timed_out".into(), &124.into()));
    let none = report(&["-n", "1"], &["no_such_program"]);
    assert_eq!((&none["outcome"], &none["exit_code"]), (&"error".into(), &127.into()));
    let complaint = refused(&mut phalanx(&["-n", "1", "--json", "/no/such/file", "true"]));
    assert!(complaint.contains("--json /no/such/file: No such file"), "{complaint}");
}

#[test]
fn the_report_has_a_colour_on_a_terminal_unless_somebody_objects() {
    let job = "phalanx run -n 1 sh -c 'exit 7'";
    let coloured = "phalanx: \u{1b}[1;31mrank 0 of 1 (pid ";
    for (env, has_colour) in
        [("TERM=xterm NO_COLOR= ", true), ("TERM=xterm NO_COLOR=1 ", false), ("TERM=dumb NO_COLOR= ", false)]
    {
        let Some(shown) = in_terminal("", &format!("{env}{job}")) else {
            return;
        };
        assert!(shown.contains("rank 0 of 1 (pid "), "{shown}");
        assert_eq!(
            (shown.contains(coloured), shown.contains('\u{1b}')),
            (has_colour, has_colour),
            "{env}: {shown}"
        );
    }
    let output = phalanx(&["-n", "1", "false"]).env("TERM", "xterm").env_remove("NO_COLOR").output().unwrap();
    assert!(!text(&output.stderr).contains('\u{1b}'), "{}", text(&output.stderr));
}

#[test]
fn a_number_of_ranks_behind_the_program_is_the_programs() {
    let complaint = refused(&mut phalanx(&["true", "-n", "2"]));
    assert!(
        complaint.contains("it stands before the program, to which all that follows is passed"),
        "{complaint}"
    );
    let complaint = refused(&mut phalanx(&["true"]));
    assert!(complaint.contains("-n N says so") && !complaint.contains("it stands before"), "{complaint}");
}
