//! No two files need each other. Such files are one: neither can be read, tested or moved without the other.

use super::imports::{self, Arrows};
use std::collections::{BTreeMap, BTreeSet};

/// How many cycles there are; each is a finding.
pub(super) fn check(package: &str, arrows: &Arrows, findings: &mut Vec<String>) -> usize {
    let cycles = cycles(arrows);
    findings.extend(cycles.iter().map(|cycle| shown(package, cycle, arrows)));
    cycles.len()
}

/// A cycle, with the arrows of which it is made.
fn shown(package: &str, cycle: &BTreeSet<&str>, arrows: &Arrows) -> String {
    let arrows = imports::shown(arrows, |file| cycle.contains(file));
    let files = cycle.len();
    format!(
        "{package}: {files} files use each other in a cycle:\n{arrows}\n  Move what both sides need into a file of its own, or hand it \
         over as a parameter."
    )
}

/// The groups of files in which each can be reached from each.
fn cycles(arrows: &Arrows) -> Vec<BTreeSet<&str>> {
    let mut used: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (user, definer) in arrows.keys() {
        used.entry(user).or_default().push(definer);
    }
    let reach: BTreeMap<&str, BTreeSet<&str>> =
        used.keys().map(|file| (*file, reached(file, &used))).collect();
    let mut cycles: Vec<BTreeSet<&str>> = Vec::new();
    for (file, reached) in &reach {
        let back = |other: &&&str| reach.get(**other).is_some_and(|from_there| from_there.contains(file));
        if reached.contains(file) && !cycles.iter().any(|cycle| cycle.contains(file)) {
            cycles.push(reached.iter().filter(back).copied().collect());
        }
    }
    cycles
}

/// All files that can be reached over one arrow or more.
fn reached<'a>(from: &str, used: &BTreeMap<&'a str, Vec<&'a str>>) -> BTreeSet<&'a str> {
    let mut reached = BTreeSet::new();
    let mut open: Vec<&str> = used.get(from).cloned().unwrap_or_default();
    while let Some(file) = open.pop() {
        if reached.insert(file) {
            open.extend(used.get(file).into_iter().flatten());
        }
    }
    reached
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::plants::arrows;

    fn findings(files: &[(&str, &str)]) -> String {
        let mut findings = Vec::new();
        check("crates/planted", &arrows(files), &mut findings);
        findings.join("\n")
    }

    const CIRCLE: [(&str, &str); 4] = [
        ("src/lib.rs", "mod ring; mod tree; mod cost; pub use cost::Cost; pub use ring::Ring;"),
        ("src/ring.rs", "use crate::Cost; pub struct Ring;"),
        ("src/tree.rs", "pub(crate) fn depth(_: super::Ring) {}"),
        ("src/cost.rs", "pub struct Cost; fn of() { crate::tree::depth() }"),
    ];

    #[test]
    fn a_cycle_is_found_behind_re_exports_and_its_arrows_are_named() {
        let found = findings(&CIRCLE);
        assert!(found.starts_with("crates/planted: 3 files use each other in a cycle"), "{found}");
        for arrow in [
            "src/ring.rs -> src/cost.rs: Cost",
            "src/cost.rs -> src/tree.rs: depth",
            "src/tree.rs -> src/ring.rs: Ring",
        ] {
            assert!(found.contains(arrow), "{arrow} is not in {found}");
        }
    }

    #[test]
    fn two_cycles_are_two_findings() {
        let pair = |a: &'static str, b: &'static str| [(a, b)];
        let files: Vec<_> = [
            pair("src/lib.rs", "mod a; mod b; mod c; mod d;"),
            pair("src/a.rs", "use crate::b::B; pub struct A;"),
            pair("src/b.rs", "use crate::a::A; use crate::c::C; pub struct B;"),
            pair("src/c.rs", "use crate::d::D; pub struct C;"),
            pair("src/d.rs", "use crate::c::C; pub struct D;"),
        ]
        .concat();
        assert_eq!(findings(&files).matches("2 files use each other in a cycle").count(), 2);
    }

    #[test]
    fn a_chain_is_no_cycle() {
        let files = [
            ("src/lib.rs", "mod a; mod b; mod c; pub use a::A; pub fn all() { b::b() }"),
            ("src/a.rs", "use crate::b::B; pub struct A;"),
            ("src/b.rs", "use crate::c::C; pub struct B; pub fn b() {}"),
            ("src/c.rs", "pub struct C;"),
        ];
        assert_eq!(findings(&files), "");
    }

    #[test]
    fn a_parent_that_uses_its_child_and_the_child_its_parent_are_a_cycle() {
        let files = [
            ("src/lib.rs", "mod engine;"),
            (
                "src/engine/mod.rs",
                "mod queue; use queue::Queue; pub(crate) struct Engine(Queue); pub(crate) struct Fault;",
            ),
            ("src/engine/queue.rs", "use super::Fault; pub(super) struct Queue(Fault);"),
        ];
        assert!(findings(&files).contains("src/engine/queue.rs -> src/engine/mod.rs: Fault"));
    }
}
