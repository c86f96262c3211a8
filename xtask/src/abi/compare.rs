//! What sys says, compared with a header: a C compiler is asked for each type, constant and member.

use super::c::{self, Header, Types};
use super::headers::{self, Subject};
use super::sys::Sys;
use std::path::PathBuf;

/// The two files of sys.
#[derive(Debug, Clone)]
pub(super) struct Texts {
    pub(super) cuda: String,
    pub(super) nccl: String,
}

impl Subject {
    pub(super) fn text(self, texts: &mut Texts) -> &mut String {
        match self {
            Self::Cuda => &mut texts.cuda,
            Self::Nccl => &mut texts.nccl,
        }
    }

    pub(super) fn sys(self, texts: &Texts) -> Result<Sys, String> {
        Sys::read(self.text(&mut texts.clone()))
    }
}

/// What is not as the header says, which `include` brings in.
pub(super) fn findings(
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::sys::Version;

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
