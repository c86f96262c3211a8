//! Compares what `crates/nccl/src/sys` says of NCCL and of the CUDA driver with their headers, as they come in NVIDIA's wheels: every signature, constant and
//! struct, and from which version on there is what is optional. No GPU and no toolkit are needed, but a C compiler.

mod c;
mod headers;
mod plants;
mod sys;

use c::{Header, Types};
use headers::Subject;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use sys::Sys;

/// Wheels that go together: the headers of the driver, and of NCCL. The last are the newest of November 2026; to take newer ones is a change to review,
/// so that no release of NVIDIA's fails ours.
const SETS: [[&str; 2]; 3] = [
    ["nvidia-cuda-runtime-cu11==11.8.89", "nvidia-nccl-cu11==2.18.3"],
    ["nvidia-cuda-runtime-cu12==12.9.79", "nvidia-nccl-cu12==2.21.5"],
    ["nvidia-cuda-runtime==13.5.37", "nvidia-nccl-cu13==2.32.3"],
];

/// The two files of sys.
#[derive(Debug, Clone)]
struct Texts {
    cuda: String,
    nccl: String,
}

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

impl Subject {
    fn text(self, texts: &mut Texts) -> &mut String {
        match self {
            Self::Cuda => &mut texts.cuda,
            Self::Nccl => &mut texts.nccl,
        }
    }

    fn sys(self, texts: &Texts) -> Result<Sys, String> {
        Sys::read(self.text(&mut texts.clone()))
    }
}

/// What is not as the header says, which `include` brings in.
fn findings(
    texts: &Texts,
    subject: Subject,
    header: &Header,
    include: &str,
    dirs: &[PathBuf],
) -> Result<Vec<String>, String> {
    // NCCL's functions take the driver's streams.
    let types = Types::primitive().with(&Subject::Cuda.sys(texts)?);
    let sys = subject.sys(texts)?;
    let types = types.with(&sys);
    if sys.functions.is_empty() || sys.constants.is_empty() || sys.aliases.is_empty() {
        return Err("there is nothing in sys".into());
    }
    let (assertions, mut findings) = c::assertions(&sys, &types, header)?;
    let (_, said) =
        headers::compile(&["-O1", "-c", "-o", "/dev/null"], &format!("{include}{assertions}"), dirs)?;
    let errors = said.lines().filter_map(|line| line.split_once("error: "));
    let quoted = |error: &str| {
        let error = error.trim_start_matches("static assertion failed: ").trim_matches('"');
        error.split_once("attribute error: ").map_or(error, |(_, said)| said).to_owned()
    };
    findings.extend(errors.map(|(_, error)| quoted(error)));
    Ok(findings)
}

#[expect(clippy::print_stderr, reason = "a command reports to its user")]
fn say(what: &str) {
    eprintln!("abi: {what}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use sys::Version;

    const SYS: &str = r#"//! A library.

/// `thing_t`.
pub(crate) type RawThing = *mut c_void;
/// `code_t`, says the library.
pub(crate) type Code = c_int;

/// `((options_t)OPTIONS).magic`.
pub(crate) const MAGIC: u32 = 0xca_fe;
/// `late`, since LIB 2.1: an enumerator.
pub(crate) const LATE: Code = 7;

/// `options_t` as it was at first.
#[repr(C)]
pub(crate) struct RawOptions {
    size: usize,
    pub(crate) magic: u32,
}

table! {
    /// Functions of the library.
    Table;
    needed {
        make = "thing_make": fn(*mut RawThing, *const RawOptions, usize) -> Code;
        end = "thing_end": fn() -> Code;
    }
    optional {
        name = "thing_name" since "LIB 2.1": fn(RawThing) -> *const c_char;
    }
}
"#;

    const HEADER: &str = "
        #include <stddef.h>
        typedef struct thing *thing_t;
        typedef enum { good = 0, late = 7 } code_t;
        typedef struct { size_t size; unsigned int magic; int more; } options_t;
        #define OPTIONS { sizeof(options_t), 0xcafe, 0 }
        code_t thing_make(thing_t *thing, const options_t *options, size_t count);
        code_t thing_end(void);
        const char *thing_name(thing_t thing);
    ";

    fn found(from: &str, to: &str, version: [u32; 3], lacks: &str) -> Vec<String> {
        assert!(SYS.contains(from), "{from}");
        let texts = Texts { cuda: SYS.replace(from, to), nccl: String::new() };
        let names = ["thing_make", "thing_end", "thing_name"].into_iter().filter(|name| *name != lacks);
        let functions = names.map(str::to_owned).collect();
        let header = Header { name: "LIB".into(), version: Version(version), functions };
        findings(&texts, Subject::Cuda, &header, HEADER, &[]).unwrap()
    }

    #[test]
    fn what_is_as_the_header_says_has_no_findings() {
        assert_eq!(found("", "", [2, 1, 0], ""), [""; 0]);
        // What came later may be lacking.
        assert_eq!(found("", "", [2, 0, 9], "thing_name"), [""; 0]);
    }

    #[test]
    fn each_mistake_is_found_and_named() {
        for (from, to, finding) in [
            ("*const RawOptions, usize", "*const RawOptions, c_int", "thing_make is not a code_t (*)"),
            ("fn(RawThing) -> *const", "fn(RawThing) -> *mut", "thing_name is not a char * (*)(thing_t)"),
            ("= *mut c_void", "= u64", "thing_t is not a kind of unsigned long long"),
            ("Code = c_int", "Code = u64", "code_t has not the size of"),
            ("0xca_fe", "0xca_ff", "((options_t)OPTIONS).magic is not MAGIC = 0xcaff"),
            ("LATE: Code = 7", "LATE: Code = 6", "late is not LATE = 6"),
            ("size: usize", "size: u32", "magic of options_t stands elsewhere"),
            ("magic: u32,\n", "magic: u64,\n", "magic of options_t has another size"),
            ("\"thing_end\"", "\"thing_stop\"", "thing_stop is needed, but LIB has none"),
            (
                "since \"LIB 2.1\"",
                "since \"LIB 2.2\"",
                "thing_name came with 2.2.0, sys says, but LIB has it",
            ),
        ] {
            let found = found(from, to, [2, 1, 0], "");
            assert!(found.iter().any(|it| it.contains(finding)), "{to}: {found:?}");
        }
        let lacking = found("", "", [2, 1, 0], "thing_name");
        assert_eq!(lacking, ["thing_name came with 2.1.0, sys says, but LIB has none"]);
    }

    #[test]
    fn what_cannot_be_read_is_not_passed_over() {
        for (from, to) in [
            ("/// `thing_t`.", "/// A thing."),
            ("    magic: u32,", "    magic,"),
            ("-> Code;", "-> Code"),
            ("fn() -> Code", "extern fn() -> Code"),
            ("since LIB 2.1:", "since yesterday:"),
            ("const MAGIC: u32 = 0xca_fe;", "const MAGIC: u32 ="),
            ("type Code = c_int;", "static CODE: c_int = 7;"),
        ] {
            let text = SYS.replace("pub(crate) magic", "magic");
            assert!(text.contains(from), "{from}");
            assert!(Sys::read(&text.replace(from, to)).is_err(), "{to}");
        }
    }
}
