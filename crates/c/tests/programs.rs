//! C programs as real jobs.

#![cfg(target_os = "linux")]

mod support;

use std::process::{Command, Stdio};
use support::{compiled, compiler, done, file, job, libraries};

#[test]
fn the_example_adds_up_and_reads_what_went_wrong() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let program = compiled("examples/hello.c", folder.path());
    let source = std::fs::read_to_string(file("examples/hello.c")).expect("the example is there");
    let line = source.lines().position(|line| line.contains("values, count")).expect("it disagrees") + 1;
    for backend in ["shm", "tcp"] {
        let said = job(&program, &[], 2, backend);
        for (rank, said) in said.iter().enumerate() {
            let words =
                format!("hello from rank {rank} of 2: the ranks add up to 1\nthe largest rank is 1\n");
            assert_eq!(*said, words, "over {backend}");
        }
        for said in job(&program, &["mismatch"], 2, backend) {
            assert!(said.starts_with("PHALANX_ERROR_MISMATCH: rank "), "over {backend}: {said}");
            assert!(said.contains(&format!("hello.c:{line}")), "over {backend}: {said}");
            assert!(said.contains("f64 x 3") && said.contains("f64 x 2"), "over {backend}: {said}");
        }
    }
}

#[test]
fn every_operation_is_performed_and_begun() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let program = compiled("tests/c/operations.c", folder.path());
    for (ranks, backend) in [(2, "shm"), (3, "shm"), (3, "tcp"), (2, "tcp")] {
        assert_eq!(job(&program, &[], ranks, backend), vec!["done\n"; ranks], "{ranks} ranks over {backend}");
    }
}

#[test]
fn calls_that_make_no_sense_are_refused_and_the_group_works_on() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let program = compiled("tests/c/misuse.c", folder.path());
    assert_eq!(job(&program, &[], 2, "shm"), ["done\n"; 2]);
}

#[test]
fn failures_reach_c_with_status_words_and_culprit() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let program = compiled("tests/c/failures.c", folder.path());
    for way in ["abort", "timeout", "leave", "fork", "broken pipe", "own handler"] {
        for backend in ["shm", "tcp"] {
            assert_eq!(job(&program, &[way], 2, backend), ["done\n"; 2], "{way} over {backend}");
        }
    }
}

#[test]
fn ranks_meet_through_a_function_of_the_program() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let program = compiled("tests/c/join.c", folder.path());
    let words = folder.path().join("words");
    let ranks = ["0", "1"].map(|rank| {
        let mut process = Command::new(&program);
        process.arg(rank).arg(&words).env("LD_LIBRARY_PATH", libraries()).env_remove("PHALANX_BACKEND");
        process.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program starts")
    });
    for rank in ranks {
        let output = rank.wait_with_output().expect("it was started here");
        let said = [output.stdout, output.stderr].concat();
        assert_eq!(String::from_utf8_lossy(&said), "done\n");
    }
}

#[test]
fn the_static_library_needs_only_what_the_page_says() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let program = folder.path().join("program");
    let mut cc = compiler("CC", "cc");
    cc.arg("-std=c99").arg("-I").arg(file("include")).arg(file("examples/hello.c"));
    cc.arg(libraries().join("libphalanx_c.a")).args(["-lpthread", "-ldl", "-lm", "-o"]).arg(&program);
    done(cc);
    let said = job(&program, &[], 1, "shm");
    assert!(said[0].starts_with("hello from rank 0 of 1"), "{said:?}");
}

#[test]
#[expect(clippy::print_stdout, reason = "it says why it is skipped")]
fn the_header_is_cplusplus_too() {
    if compiler("CXX", "c++").arg("--version").output().is_err() {
        println!("skipped: there is no c++");
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let program = folder.path().join("program");
    for standard in ["-std=c++11", "-std=c++20"] {
        let mut cxx = compiler("CXX", "c++");
        cxx.args([standard, "-Wall", "-Wextra", "-Werror", "-I"]).arg(file("include"));
        cxx.args(["-x", "c++"]).arg(file("examples/hello.c")).args(["-x", "none"]);
        cxx.arg("-L").arg(libraries()).arg("-lphalanx_c").arg("-o").arg(&program);
        done(cxx);
        assert!(job(&program, &[], 2, "shm").iter().all(|said| said.ends_with("the largest rank is 1\n")));
    }
}

#[test]
fn the_programs_of_the_page_compile() {
    let page = std::fs::read_to_string(file("../../docs/reference/c.md")).expect("the page is there");
    let programs: Vec<&str> =
        page.split("```c\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    assert_eq!(programs.len(), 2);
    let folder = tempfile::tempdir().expect("a temporary folder");
    for program in programs {
        let source = folder.path().join("page.c");
        std::fs::write(&source, program).expect("the folder can be written to");
        let mut cc = compiler("CC", "cc");
        cc.args(["-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only", "-I"])
            .arg(file("include"));
        cc.arg(&source);
        done(cc);
    }
}
