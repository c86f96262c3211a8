//! Which file of a package uses which, and what of it: an arrow goes from the file to the one that *defines* the item, however often
//! it was re-exported between.
//!
//! `use` lines, paths in code and paths inside macros count. What does not: `mod x;` and re-exports, which only say where a name is to be
//! found; what only tests compile (`#[cfg(test)]`); methods, whose file only the compiler knows; and `Self`.

mod arrows;
mod modules;
mod names;
mod production;
mod public;

use super::tree::{entries, file_name};
pub(super) use modules::{Crate, Read, is_hidden};
pub(super) use public::{Libraries, Public, of as public};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// What each file uses of each other: (user, definer) and the names of items. Files are relative to the package's folder.
pub(super) type Arrows = BTreeMap<(String, String), BTreeSet<String>>;

/// The arrows between the files of a package, whose folder is relative to `root`.
pub(super) fn arrows(root: &Path, package: &str, read: Read<'_>) -> Result<Arrows, String> {
    let folder = root.join(package);
    let mut all = Arrows::new();
    for file in roots(&folder) {
        add(&folder, &file, read, &mut all)?;
    }
    Ok(all)
}

/// Adds the arrows of one crate: a library, a program, a test or an example.
pub(super) fn add(folder: &Path, root: &Path, read: Read<'_>, all: &mut Arrows) -> Result<(), String> {
    let krate = Crate::read(root, read)?;
    let shown = |file: &Path| file.strip_prefix(folder).unwrap_or(file).display().to_string();
    for (user, definer, item) in arrows::of(&krate) {
        all.entry((shown(&user), shown(&definer))).or_default().insert(item);
    }
    Ok(())
}

/// The arrows between files that `which` takes, one a line.
pub(super) fn shown(arrows: &Arrows, which: impl Fn(&str) -> bool) -> String {
    let line = |((user, definer), items): (&(String, String), &BTreeSet<String>)| {
        let items: Vec<_> = items.iter().map(String::as_str).collect();
        format!("    {user} -> {definer}: {}", items.join(", "))
    };
    let taken = arrows.iter().filter(|((user, definer), _)| which(user) && which(definer));
    taken.map(line).collect::<Vec<_>>().join("\n")
}

/// The first file of each crate of a package.
fn roots(folder: &Path) -> Vec<PathBuf> {
    let mut roots: Vec<_> = ["src/lib.rs", "src/main.rs", "build.rs"].map(|file| folder.join(file)).into();
    for programs in ["src/bin", "tests", "examples", "benches", "fuzz_targets"] {
        for path in entries(&folder.join(programs)) {
            roots.push(if path.is_dir() { path.join("main.rs") } else { path });
        }
    }
    roots.retain(|path| path.exists() && file_name(path).ends_with(".rs"));
    roots
}

#[cfg(test)]
mod tests {
    use crate::tidy::plants::arrows;

    /// What `src/user.rs` uses, in a crate that has two modules with re-exports.
    fn used(user: &str) -> Vec<String> {
        let files = [
            ("src/lib.rs", "mod user; mod deep; mod help; pub use deep::Inner; #[cfg(test)] mod tests;"),
            (
                "src/deep/mod.rs",
                "mod inner; mod other; pub(crate) use inner::{Inner, Inner as Renamed}; pub(crate) use other::*;",
            ),
            ("src/deep/inner.rs", "pub struct Inner; impl Inner { pub fn new() {} } pub fn make() {}"),
            ("src/deep/other.rs", "pub(crate) enum Other { A, B } pub(crate) const MOST: usize = 1;"),
            ("src/help.rs", "macro_rules! help { () => {} }"),
            ("src/tests.rs", "use crate::user; fn test() {}"),
            ("src/user.rs", user),
        ];
        let all = arrows(&files).into_iter().filter(|((user, _), _)| user == "src/user.rs");
        let line = |((_, definer), items): ((_, String), std::collections::BTreeSet<String>)| {
            items.into_iter().map(|item| format!("{definer}: {item}")).collect::<Vec<_>>()
        };
        all.flat_map(line).collect()
    }

    #[test]
    fn arrows_end_where_the_item_is_defined() {
        for user in [
            "use crate::Inner;",
            "use crate::deep::Renamed;",
            "use super::deep::{self}; fn f(_: deep::Inner) {}",
            "use crate as all; fn f() { all::deep::Renamed::new() }",
            "fn f() { crate::Inner::new(); }",
            "fn f() { println!(\"{}\", crate::Inner::new()); }",
            "use crate::*; fn f() -> Inner { loop {} }",
            "fn f() { use crate::deep as d; let _ = d::Inner; }",
            "mod inside { use super::super::Inner; }",
            "impl From<crate::Inner> for u8 {}",
            "#[error(\"{}\", crate::Inner::new())] struct S;",
        ] {
            assert_eq!(used(user), ["src/deep/inner.rs: Inner"], "{user}");
        }
    }

    #[test]
    fn what_globs_bring_is_found_by_its_use() {
        assert_eq!(used("use crate::deep::Other::*;"), ["src/deep/other.rs: Other"]);
        assert_eq!(
            used("use crate::deep::*; fn f() { assert!(MOST > 0, Other::A); }"),
            ["src/deep/other.rs: MOST", "src/deep/other.rs: Other"]
        );
        assert_eq!(used("use crate::deep::*; const N: usize = MOST;"), ["src/deep/other.rs: MOST"]);
        assert_eq!(used("fn f() { help!(); }"), ["src/help.rs: help!"]);
    }

    #[test]
    fn what_makes_no_arrow() {
        for user in [
            "pub(crate) use crate::deep::Inner;",
            "use std::fmt; fn f(_: fmt::Arguments) {}",
            "use ::deep::Inner;",
            "#[cfg(test)] mod tests { use crate::Inner; }",
            "#[cfg(all(test, unix))] use crate::Inner;",
            "struct S; impl S { #[cfg(test)] fn f(_: crate::Inner) {} }",
            "fn f() { #[cfg(test)] crate::Inner::new(); }",
            "/// See [`crate::Inner`].\nstruct S;",
            "pub(in crate::deep) struct S;",
            "struct Inner; fn f(_: Inner) {}",
        ] {
            assert_eq!(used(user), [""; 0], "{user}");
        }
    }

    #[test]
    fn code_that_is_not_only_for_tests_counts() {
        for user in ["#[cfg(not(test))] use crate::Inner;", "#[cfg(any(test, unix))] use crate::Inner;"] {
            assert_eq!(used(user), ["src/deep/inner.rs: Inner"], "{user}");
        }
    }
}
