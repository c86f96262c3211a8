//! Where headers come from, and what the C compiler says of them.

use super::c::Header;
use super::sys::Version;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Subject {
    Cuda,
    Nccl,
}

impl Subject {
    /// Old names stay in the driver when the header gives them to new functions, and this makes it declare them.
    pub(super) const fn include(self) -> &'static str {
        match self {
            Self::Cuda => "#define __CUDA_API_VERSION_INTERNAL\n#include <cuda.h>\n#include <stddef.h>\n",
            Self::Nccl => "#include <nccl.h>\n#include <stddef.h>\n",
        }
    }
}

/// `nccl.h` wants these, of the toolkit's. Those of fractions are empty, for C; the compiler's own are not in the wheels.
const STUBS: [(&str, &str); 5] = [
    ("cuda_runtime.h", "#include <cuda.h>\n#include <driver_types.h>\n#define CUDART_VERSION CUDA_VERSION\n"),
    ("cuda_fp16.h", ""),
    ("cuda_bf16.h", "#define __CUDA_BF16_TYPES_EXIST__\n"),
    ("cuda_fp8.h", "#define __CUDA_FP8_TYPES_EXIST__\n"),
    (
        "crt/host_defines.h",
        "#define __device_builtin__\n#define __device_builtin_texture_type__\n#define __device_builtin_surface_type__\n\
         #define __cuda_builtin_vector_align8(tag, members) struct tag { members }\n\
         #define __align__(n) __attribute__((aligned(n)))\n#define __builtin_align__(n) __align__(n)\n",
    ),
];

/// A folder with headers that are in no wheel.
pub(super) fn stubs(root: &Path) -> std::io::Result<PathBuf> {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    let dir = target.join("headers/stubs");
    std::fs::create_dir_all(dir.join("crt"))?;
    for (name, text) in STUBS {
        std::fs::write(dir.join(name), text)?;
    }
    Ok(dir)
}

/// The folder with the headers of `wheel`, if they can be had in five minutes.
pub(super) fn fetch(root: &Path, wheel: &str) -> Option<PathBuf> {
    let mut script = Command::new("timeout");
    script.args(["300", "scripts/fetch-headers", wheel]).current_dir(root);
    let said = script.stderr(Stdio::inherit()).output().ok().filter(|said| said.status.success())?;
    Some(PathBuf::from(String::from_utf8(said.stdout).ok()?.trim()))
}

/// What the header of `subject` has, which is in `dirs`.
pub(super) fn read(subject: Subject, dirs: &[PathBuf]) -> Result<Header, String> {
    let numbers = match subject {
        Subject::Cuda => "CUDA_VERSION",
        Subject::Nccl => "NCCL_MAJOR NCCL_MINOR NCCL_PATCH",
    };
    let program = format!("{}the_version {numbers}\n", subject.include());
    let (text, said) = compile(&["-E", "-P"], &program, dirs)?;
    let version = text.lines().find_map(|line| line.strip_prefix("the_version "));
    let numbers = version.into_iter().flat_map(|line| line.split(' ').filter_map(|word| word.parse().ok()));
    let numbers: Vec<u32> = numbers.collect();
    let (name, version) = match (subject, &*numbers) {
        (Subject::Cuda, &[code]) => ("CUDA", Version([code / 1000, code % 1000 / 10, 0])),
        (Subject::Nccl, &[major, minor, patch]) => ("NCCL", Version([major, minor, patch])),
        _ => return Err(format!("no version in the header: {said}")),
    };
    Ok(Header { name: format!("{name} {version}"), version, functions: before_parentheses(&text) })
}

fn before_parentheses(text: &str) -> std::collections::HashSet<String> {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let mut names: Vec<&str> = text.split('(').map(str::trim_end).collect();
    // What follows the last one stands before nothing.
    names.pop();
    let last_word = |part: &str| part.rsplit(|c| !is_word(c)).next().unwrap_or_default().to_owned();
    names.into_iter().map(last_word).filter(|word| !word.is_empty()).collect()
}

/// What the C compiler makes of `program`, and what it says.
pub(super) fn compile(flags: &[&str], program: &str, dirs: &[PathBuf]) -> Result<(String, String), String> {
    let trouble = |error| format!("the C compiler, cc: {error}");
    let mut cc = Command::new("cc");
    cc.args(["-std=gnu11", "-fmax-errors=0", "-x", "c"]).args(flags).env("LC_ALL", "C");
    for dir in dirs {
        cc.arg("-isystem").arg(dir);
    }
    let mut running = cc
        .arg("-")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(trouble)?;
    // It reads all before it says much.
    running.stdin.take().expect("it is piped").write_all(program.as_bytes()).map_err(trouble)?;
    let output = running.wait_with_output().map_err(trouble)?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (made, said) = (text(&output.stdout), text(&output.stderr));
    if !output.status.success() && !said.contains("error: ") {
        return Err(trouble(std::io::Error::other(said)));
    }
    Ok((made, said))
}
