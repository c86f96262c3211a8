//! What shells and `man` are told of `phalanx`.
#![cfg(target_os = "linux")]

use std::process::Command;

fn phalanx(words: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_phalanx")).args(words).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// bash itself completes what is typed.
#[test]
#[allow(clippy::print_stdout, reason = "a test that is skipped says so")]
fn bash_completes_commands_and_flags() {
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("phalanx.bash");
    std::fs::write(&script, phalanx(&["completions", "bash"])).unwrap();
    let complete = |words: &[&str]| {
        let (typed, before) = words.split_last().unwrap();
        let last = before.last().copied().unwrap_or("phalanx");
        let ask = format!(
            "source {}; COMP_WORDS=(phalanx {}); COMP_CWORD={}; _phalanx phalanx '{typed}' '{last}'; echo ${{COMPREPLY[@]}}",
            script.display(),
            words.join(" "),
            words.len()
        );
        let output = Command::new("bash").args(["-c", &ask]).output();
        output.map(|output| String::from_utf8(output.stdout).unwrap().trim().to_owned())
    };
    let Ok(commands) = complete(&["ru"]) else {
        return println!("skipped: bash is not installed");
    };
    assert_eq!(commands, "run");
    assert_eq!(complete(&["run", "--max-r"]).unwrap(), "--max-restarts");
    assert_eq!(complete(&["run", "--bind-to", "c"]).unwrap(), "core");
}

#[test]
fn other_shells_have_theirs() {
    assert!(phalanx(&["completions", "zsh"]).starts_with("#compdef phalanx"));
    assert!(phalanx(&["completions", "fish"]).contains("complete -c phalanx"));
    for shell in ["bash", "zsh", "fish"] {
        let script = phalanx(&["completions", shell]);
        assert!(script.contains("max-restarts"), "{shell}");
    }
}

#[test]
fn each_command_has_a_man_page() {
    for (words, parts) in [
        (&["man"][..], &[".TH phalanx ", "phalanx\\-run"][..]),
        (&["man", "run"], &[".TH phalanx-run ", "max\\-restarts", "Exit code: "]),
        (&["man", "trace"], &[".TH phalanx-trace ", "chrome"]),
    ] {
        let page = phalanx(words);
        for part in parts {
            assert!(page.contains(part), "{part}: {page}");
        }
    }
    let output = Command::new(env!("CARGO_BIN_EXE_phalanx")).args(["man", "walk"]).output().unwrap();
    let complaint = String::from_utf8(output.stderr).unwrap();
    assert!(
        output.status.code() == Some(2) && complaint.contains("no command walk: there are run, "),
        "{complaint}"
    );
}
