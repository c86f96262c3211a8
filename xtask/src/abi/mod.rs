//! Compares what `crates/nccl/src/sys` says of NCCL and of the CUDA driver with their headers, as they come in NVIDIA's wheels: every signature, constant and
//! struct, and from which version on there is what is optional. No GPU and no toolkit are needed, but a C compiler.

mod c;
mod compare;
mod headers;
mod plants;
mod sys;

use compare::{Texts, findings};
use headers::Subject;
use std::path::Path;
use std::process::ExitCode;

/// Wheels that go together: the headers of the driver, and of NCCL. The last are the newest of November 2026; to take newer ones is a change to review,
/// so that no release of NVIDIA's fails ours.
const SETS: [[&str; 2]; 3] = [
    ["nvidia-cuda-runtime-cu11==11.8.89", "nvidia-nccl-cu11==2.18.3"],
    ["nvidia-cuda-runtime-cu12==12.9.79", "nvidia-nccl-cu12==2.21.5"],
    ["nvidia-cuda-runtime==13.5.37", "nvidia-nccl-cu13==2.32.3"],
];

/// Probes each set that can be had, and then whether mistakes would be found.
pub(crate) fn run() -> ExitCode {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the workspace");
    match probe(root) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(wrong) => {
            say(&format!("{wrong} findings"));
            ExitCode::FAILURE
        }
        Err(trouble) => {
            say(&trouble);
            ExitCode::FAILURE
        }
    }
}

/// How much is wrong.
fn probe(root: &Path) -> Result<usize, String> {
    let sys = root.join("crates/nccl/src/sys");
    let read = |name| std::fs::read_to_string(sys.join(name)).map_err(|error| format!("{name}: {error}"));
    let texts = Texts { cuda: read("cuda.rs")?, nccl: read("nccl.rs")? };
    let stubs = headers::stubs(root).map_err(|error| format!("headers of our own: {error}"))?;
    let (mut wrong, mut compared) = (0, 0);
    for [cuda, nccl] in SETS {
        let mut dirs = vec![stubs.clone()];
        for (subject, wheel) in [(Subject::Cuda, cuda), (Subject::Nccl, nccl)] {
            let Some(dir) = headers::fetch(root, wheel) else {
                let with = if wheel == cuda {
                    format!(", without which {nccl} says nothing")
                } else {
                    String::new()
                };
                say(&format!("SKIPPED: the headers of {wheel} could not be had{with}"));
                break;
            };
            dirs.push(dir);
            let header = headers::read(subject, &dirs)?;
            let found = findings(&texts, subject, &header, subject.include(), &dirs)?;
            found.iter().for_each(|finding| say(&format!("{}: {finding}", header.name)));
            let missed = plants::missed(&texts, subject, &header, subject.include(), &dirs)?;
            missed.iter().for_each(|plant| say(&format!("{}: {plant}", header.name)));
            if found.is_empty() && missed.is_empty() {
                let sys = subject.sys(&texts)?;
                let (functions, constants) = (sys.functions.len(), sys.constants.len());
                let all = format!("{functions} functions, {constants} constants and their types");
                say(&format!("{} has {all} as sys says, and each planted mistake is found", header.name));
            }
            wrong += found.len() + missed.len();
            compared += 1;
        }
    }
    if compared == 0 {
        say("NOTHING WAS COMPARED");
    }
    Ok(wrong)
}

#[expect(clippy::print_stderr, reason = "a command reports to its user")]
fn say(what: &str) {
    eprintln!("abi: {what}");
}
