//! Rules about the tree that no compiler checks. Each finding says what to do.

mod crates;
mod cycles;
mod examples;
mod floors;
mod imports;
mod pages;
#[cfg(test)]
mod plants;
mod publish;
mod records;
mod sources;
mod tree;
mod variables;
mod words;

pub(crate) use crates::PURE;
use std::path::Path;
use std::process::ExitCode;

/// What to show besides findings.
#[derive(Debug, clap::Args)]
pub(crate) struct Tidy {
    /// Also print what each file of this package (its folder, say crates/algo) uses of which.
    #[arg(long)]
    arrows: Option<String>,
}

/// Says what breaks a rule.
#[expect(clippy::print_stdout, clippy::print_stderr, reason = "a command reports to its user")]
pub(crate) fn run(flags: &Tidy) -> ExitCode {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the workspace");
    let (mut findings, mut cycles, mut packages) = (Vec::new(), 0, 0);
    crates::dependencies(root, &mut findings);
    publish::manifests(root, &mut findings);
    sources::headed_and_short(root, &mut findings);
    pages::examples(root, &mut findings);
    pages::named_tests(root, &mut findings);
    pages::merges(root, &mut findings);
    records::summed_up(root, &mut findings);
    crate::book::check(root, &mut findings);
    variables::on_their_page(root, &mut findings);
    examples::check(root, &mut findings);
    words::headless(root, &mut findings);
    for package in tree::packages(root) {
        match imports::arrows(root, &package, &|file| std::fs::read_to_string(file).ok()) {
            Ok(arrows) => {
                if flags.arrows.as_ref() == Some(&package) {
                    println!("{}", imports::shown(&arrows, |_| true));
                }
                packages += 1;
                cycles += cycles::check(&package, &arrows, &mut findings);
                floors::check(&package, &arrows, &mut findings);
            }
            Err(failure) => findings.push(failure),
        }
    }
    println!("{cycles} cycles between the files of {packages} packages. Floors:");
    println!("{}", floors::shown());
    for finding in &findings {
        eprintln!("tidy: {finding}");
    }
    if findings.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
