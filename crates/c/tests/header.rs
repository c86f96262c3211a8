//! `include/phalanx.h` is what cbindgen makes of the sources, with the macros that say where a program calls.

use cbindgen::{
    Builder, Config, DocumentationLength, DocumentationStyle, EnumConfig, ExportConfig, Language, RenameRule,
    Style,
};
use std::fmt::Write;
use std::path::PathBuf;

/// The files that the header is made of, in its order.
const FILES: [&str; 11] = [
    "version",
    "status",
    "failure",
    "elements",
    "join",
    "group",
    "part",
    "collectives",
    "uneven",
    "messages",
    "work",
];

/// Their types, and the names that these have in C.
const TYPES: [(&str, &str); 6] = [
    ("Status", "phalanx_status"),
    ("Dtype", "phalanx_dtype"),
    ("Op", "phalanx_op"),
    ("Group", "phalanx_group"),
    ("Work", "phalanx_work"),
    ("Share", "phalanx_share"),
];

const HEAD: &str = "\
/* phalanx.h: process groups and collectives for C and C++. docs/reference/c.md has the whole story.
 *
 * It is written by a test of phalanx (crates/c/tests/header.rs): change the sources in crates/c/src, not this file.
 *
 * What a program owes:
 * - A pointer is null or points to what its type says: a buffer to as many elements as are given, a string to text that a null byte ends.
 * - A group is freed once, by phalanx_group_free, a work by phalanx_work_free, and neither is used afterwards.
 * - The memory of an operation is left alone until the operation is over: until the call returns, or until phalanx_work_wait returns anything
 *   but PHALANX_PENDING. What is only read may be read meanwhile.
 *
 * Null pointers where there must be none, numbers that name nothing, lengths that no memory has and buffers that overlap are
 * PHALANX_ERROR_MISUSE, and the group works on. Functions may be called from any thread. None throws, and none ends the process.
 */";

const MACROS: &str = "
/* The operations, as programs call them: with the place of the call, which errors and traces name. Those that end in _async begin the operation and
 * store a work in their last argument, a phalanx_work **; if that is null, they wait. Other languages call the functions that end in _at. */
";

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// The header as it should be.
fn made() -> String {
    let config = Config {
        language: Language::C,
        cpp_compat: true,
        header: Some(HEAD.into()),
        include_guard: Some("PHALANX_H".into()),
        usize_is_size_t: true,
        no_includes: true,
        sys_includes: vec!["stddef.h".into(), "stdint.h".into()],
        style: Style::Type,
        documentation_length: DocumentationLength::Full,
        documentation_style: DocumentationStyle::C99,
        line_length: 120,
        export: ExportConfig {
            include: TYPES.map(|(name, _)| name.into()).into(),
            rename: TYPES.map(|(name, c)| (name.into(), c.into())).into(),
            ..Default::default()
        },
        enumeration: EnumConfig {
            rename_variants: RenameRule::QualifiedScreamingSnakeCase,
            ..Default::default()
        },
        ..Default::default()
    };
    let files = FILES.map(|file| folder().join(format!("src/{file}.rs")));
    let builder = files.iter().fold(Builder::new().with_config(config), Builder::with_src);
    let mut text = Vec::new();
    builder.generate().expect("cbindgen reads the sources").write(&mut text);
    let text = String::from_utf8(text).expect("the sources are text");
    let text = ["STATUS", "DTYPE", "OP"]
        .iter()
        .fold(text, |text, kind| text.replace(&format!("PHALANX_{kind}_"), "PHALANX_"));
    with_macros(&text)
}

/// A macro for each function that takes the place of the call.
fn with_macros(header: &str) -> String {
    let mut macros = MACROS.to_owned();
    for (start, _) in header.match_indices("_at(") {
        let name = header[..start].rsplit([' ', '*', '\n']).next().unwrap_or_default();
        let arguments = header[start..].split(')').next().unwrap_or_default();
        let place = "__FILE__, __LINE__";
        if !arguments.contains("phalanx_work **work") || name.ends_with("_async") {
            let _ = writeln!(macros, "#define {name}(...) {name}_at(__VA_ARGS__, {place})");
        } else {
            let _ = writeln!(macros, "#define {name}(...) {name}_at(__VA_ARGS__, NULL, {place})");
            let _ = writeln!(macros, "#define {name}_async(...) {name}_at(__VA_ARGS__, {place})");
        }
    }
    let (body, end) = header.rsplit_once("#endif").expect("the guard has an end");
    format!("{body}{}\n#endif{end}", macros.trim_start())
}

#[test]
fn the_header_is_that_of_the_sources() {
    let kept = std::fs::read_to_string(folder().join("include/phalanx.h")).unwrap_or_default();
    let (made, again) = (made(), "write it anew: cargo test -p phalanx-c --test header -- --ignored");
    let differing = made.lines().zip(kept.lines()).enumerate().find(|(_, (made, kept))| made != kept);
    if let Some((line, (made, kept))) = differing {
        panic!("line {} of include/phalanx.h is\n{kept}\nand the sources say\n{made}\n{again}", line + 1);
    }
    assert_eq!(
        made.lines().count(),
        kept.lines().count(),
        "include/phalanx.h is too short or too long: {again}"
    );
}

#[test]
fn no_function_is_left_out() {
    let header = made();
    let sources = std::fs::read_dir(folder().join("src")).expect("the sources are there");
    let texts = sources.map(|file| std::fs::read_to_string(file.expect("a file").path()).expect("text"));
    for text in texts {
        for function in text.split("extern \"C\" fn ").skip(1).filter_map(|rest| rest.split('(').next()) {
            // What is no name is a type.
            assert!(
                function.is_empty() || header.contains(&format!("{function}(")),
                "{function} is not in the header"
            );
        }
    }
}

/// For those who have changed the sources.
#[test]
#[ignore = "writes the header"]
fn write_the_header() {
    std::fs::write(folder().join("include/phalanx.h"), made()).expect("the header can be written");
}
