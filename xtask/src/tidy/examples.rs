//! Each public function and method that users reach has an example, which runs as a test.
//!
//! A function counts if a path of `pub mod` and `pub use` leads to it from one of the libraries that users name in their manifest, a method if it leads to
//! its type. What a trait asks for, and what an `impl` of a trait has, does not count: the trait says how it is used. Nor does what is `#[doc(hidden)]`.

use super::imports::{self, Crate, Libraries, Read, is_hidden};
use super::tree::{entries, file_name};
use std::path::{Path, PathBuf};
use syn::{Attribute, Expr, ImplItem, ImplItemFn, Item, Lit, Meta, Type, Visibility};

/// The libraries that users name in their manifest.
const ROOTS: &[&str] = &["phalanx", "candle", "train", "checkpoint", "compress", "nccl", "testkit"];

/// Files whose examples are compiled, and not run: they are of memory that cudarc has, and it wants to be linked with CUDA.
const NOT_RUN: &[&str] = &["crates/nccl/src/slice.rs"];

/// The heading of an example.
const HEADING: &str = "# Examples";

pub(super) fn check(root: &Path, findings: &mut Vec<String>) {
    let read: Read<'_> = &|file| std::fs::read_to_string(file).ok();
    let mut libraries = Libraries::new();
    for folder in entries(&root.join("crates")) {
        let file = folder.join("src/lib.rs");
        if file.exists() {
            match Crate::read(&file, read) {
                Ok(krate) => drop(libraries.insert(library(&file_name(&folder)), krate)),
                Err(failure) => findings.push(failure),
            }
        }
    }
    for (file, function) in without(&libraries, ROOTS, NOT_RUN) {
        let file = file.strip_prefix(root).unwrap_or(&file).display();
        findings.push(format!(
            "{file}: {function} is public and has no example that runs: write one under `{HEADING}`"
        ));
    }
}

/// The name of the library in a folder of `crates`.
fn library(folder: &str) -> String {
    if folder == "phalanx" { folder.to_owned() } else { format!("phalanx_{}", folder.replace('-', "_")) }
}

/// The functions without an example: the file, and the path of the function. In the files `not_run` it need not run.
fn without(libraries: &Libraries, roots: &[&str], not_run: &[&str]) -> Vec<(PathBuf, String)> {
    let public: imports::Public =
        roots.iter().flat_map(|root| imports::public(libraries, &library(root))).collect();
    let mut without = Vec::new();
    for (name, krate) in libraries {
        let is_public = |(file, item): (PathBuf, String)| public.contains(&(name.clone(), file, item));
        for (id, module) in krate.modules.iter().enumerate() {
            let runs = !not_run.iter().any(|file| module.file.ends_with(file));
            for (path, attributes) in module.items.iter().flat_map(functions) {
                // The function, or the type of the method.
                if !has_example(attributes, runs)
                    && krate.items(id, &path[..1], false).into_iter().any(is_public)
                {
                    without.push((module.file.clone(), path.join("::")));
                }
            }
        }
    }
    without
}

/// The functions of an item, with their attributes: itself, or the methods of a type's own `impl`, behind the type's name.
fn functions(item: &Item) -> Vec<(Vec<String>, &[Attribute])> {
    match item {
        Item::Fn(it) => vec![(vec![it.sig.ident.to_string()], &it.attrs[..])],
        Item::Impl(it) if it.trait_.is_none() && !is_hidden(&it.attrs) => {
            let Some(ty) = type_name(&it.self_ty) else { return Vec::new() };
            let methods = it.items.iter().filter_map(method);
            methods.map(|it| (vec![ty.clone(), it.sig.ident.to_string()], &it.attrs[..])).collect()
        }
        _ => Vec::new(),
    }
}

/// A public method.
fn method(item: &ImplItem) -> Option<&ImplItemFn> {
    let ImplItem::Fn(method) = item else { return None };
    (matches!(method.vis, Visibility::Public(_)) && !is_hidden(&method.attrs)).then_some(method)
}

fn type_name(ty: &Type) -> Option<String> {
    let Type::Path(path) = ty else { return None };
    path.path.segments.last().map(|segment| segment.ident.to_string())
}

/// Whether code that runs stands below the heading; if it need not run, code that compiles.
fn has_example(attributes: &[Attribute], runs: bool) -> bool {
    let lines = attributes.iter().filter_map(doc);
    let text: Vec<String> =
        lines.flat_map(|text| text.lines().map(str::to_owned).collect::<Vec<_>>()).collect();
    let below = text.iter().map(|line| line.trim()).skip_while(|line| *line != HEADING);
    below.filter_map(|line| line.strip_prefix("```")).step_by(2).any(|words| is_code(words, runs))
}

/// Whether a block of code with these words behind its fence is run, or, if it need not be, compiled.
fn is_code(words: &str, runs: bool) -> bool {
    words
        .split([',', ' '])
        .all(|word| matches!(word, "" | "rust" | "should_panic") || (word == "no_run" && !runs))
}

fn doc(attribute: &Attribute) -> Option<String> {
    let Meta::NameValue(pair) = &attribute.meta else { return None };
    let Expr::Lit(literal) = &pair.value else { return None };
    match &literal.lit {
        Lit::Str(text) if pair.path.is_ident("doc") => Some(text.value()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The functions without an example in a workspace with a facade and a library `group`.
    fn found(facade: &str, group: &[(&str, &str)]) -> Vec<String> {
        let read = |file: &Path| {
            let text = |path: &str| match path {
                "facade.rs" => Some(facade),
                path => group.iter().find(|(name, _)| *name == path).map(|(_, text)| *text),
            };
            text(file.to_str()?).map(str::to_owned)
        };
        let krate = |file: &str| Crate::read(Path::new(file), &read).expect("planted files can be read");
        let libraries = Libraries::from([
            ("phalanx".to_owned(), krate("facade.rs")),
            ("phalanx_group".to_owned(), krate("lib.rs")),
        ]);
        without(&libraries, &["phalanx"], &["device.rs"]).into_iter().map(|(_, name)| name).collect()
    }

    /// What is found in a file of the library `group`, of which the facade shows `Work`, `init` and `launch`.
    fn found_in(file: &str) -> Vec<String> {
        let facade =
            "pub use phalanx_group::{Work, init}; pub mod launch { pub use phalanx_group::launch::*; }";
        let root = "mod work; pub mod launch; pub use work::*;";
        found(facade, &[("lib.rs", root), ("work.rs", file), ("launch.rs", "pub fn launch() {}")])
    }

    #[test]
    fn a_method_and_a_function_without_example_are_found() {
        let file = "pub struct Work; impl Work { pub fn wait() {} } impl<T> Work { /// # Examples\n pub fn more() {} } pub fn init() {}";
        assert_eq!(found_in(file), ["Work::wait", "Work::more", "init", "launch"]);
        assert_eq!(found("pub fn run() {}", &[("lib.rs", "")]), ["run"]);
    }

    #[test]
    fn an_example_is_code_that_runs_below_the_heading() {
        let with = |docs: &str| {
            let docs: String = docs.lines().map(|line| format!("/// {line}\n")).collect();
            found_in(&format!("pub struct Work; impl Work {{ {docs}pub fn wait() {{}} }}"))
        };
        assert_eq!(with("Waits.\n# Examples\nTwo:\n```\nwait();\n```"), ["launch"]);
        assert_eq!(with("# Examples\n```text\na word\n```\n```should_panic\nwait();\n```"), ["launch"]);
        for none in [
            "Waits.",
            "# Examples\nAs of `x`.",
            "```\nwait();\n```\n# Examples",
            "# Examples\n```compile_fail,E0382\nwait();\n```",
            "# Examples\n```no_run\nwait();\n```",
            "# Examples\n```text\nwait\n```",
        ] {
            assert_eq!(with(none), ["Work::wait", "launch"], "{none}");
        }
    }

    #[test]
    fn where_examples_cannot_run_they_compile() {
        let with = |words: &str| {
            let file = format!("/// # Examples\n/// ```{words}\n/// open();\n/// ```\npub fn open() {{}}");
            found(
                "pub use phalanx_group::open;",
                &[("lib.rs", "mod device; pub use device::open;"), ("device.rs", &file)],
            )
        };
        assert!(with("no_run").is_empty());
        assert_eq!(with("ignore"), ["open"]);
    }

    #[test]
    fn what_users_do_not_reach_needs_none() {
        for file in [
            "pub struct Other; impl Other { pub fn wait() {} } pub fn other() {}",
            "pub struct Work; impl Work { pub(crate) fn wait() {} fn poll() {} #[doc(hidden)] pub fn hidden() {} }",
            "pub struct Work; impl Clone for Work { fn clone(&self) {} } #[doc(hidden)] pub fn init() {}",
            "pub struct Work; #[cfg(test)] impl Work { pub fn wait() {} }",
            "pub trait Work { fn wait(); }",
        ] {
            assert_eq!(found_in(file), ["launch"], "{file}");
        }
    }
}
