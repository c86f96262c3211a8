//! The order of the folders inside a crate: what stands on a floor may use only what stands below it.

use super::imports::Arrows;

/// The floors of a package, from the ground up. A floor is a folder or a file right under `src`, or several with spaces between them that
/// are not ordered among themselves. The crate's root stands above all of them.
const FLOORS: &[(&str, &[&str])] = &[
    (
        "crates/algo",
        &[
            "schedule shape cost",
            "link plan properties unbuffered",
            "circulant_graph power_of_two tree",
            "all_gather reduce_scatter gather scatter all_to_all barrier",
            "all_reduce broadcast reduce",
            "registry shared_memory two_level",
            "catalogue traffic",
            "select job",
            "prediction",
            "draw explain fingerprint oracle",
            "memory",
            "check",
        ],
    ),
    (
        "crates/group",
        &[
            "atomic_write quick_mutex standstill sync warning",
            "trace",
            "runtime",
            "group",
            "progress",
            "host",
            "bootstrap",
            "fuzz sim",
        ],
    ),
    (
        "crates/transport",
        &[
            "known_signatures",
            "owner_process direction frame key_exchange patience resources sabotage secret self_pipe socket status tally wait_policy",
            "checksum host_probe keys waker",
            "wait",
            "transport",
            "handshake io_outcome reachability seal",
            "connection",
            "endpoint local exchange",
            "tcp thread wire",
            "fuzz simulated",
        ],
    ),
];

pub(super) fn check(package: &str, arrows: &Arrows, findings: &mut Vec<String>) {
    if let Some((_, floors)) = FLOORS.iter().find(|(known, _)| *known == package) {
        judge(package, floors, arrows, findings);
    }
}

/// All tables, for people.
pub(super) fn shown() -> String {
    let one = |(package, floors): &(&str, &[&str])| {
        format!("{package}, from the ground up: {}", floors.join(" < "))
    };
    FLOORS.iter().map(one).collect::<Vec<_>>().join("\n")
}

fn judge(package: &str, floors: &[&str], arrows: &Arrows, findings: &mut Vec<String>) {
    let mut nowhere = Vec::new();
    for ((user, definer), items) in arrows {
        let (Some(user_name), Some(definer_name)) = (name(user), name(definer)) else { continue };
        let (Some(from), Some(to)) = (floor(user_name, floors), floor(definer_name, floors)) else {
            for (file, name) in [(user, user_name), (definer, definer_name)] {
                if floor(name, floors).is_none() && !nowhere.contains(&name) {
                    nowhere.push(name);
                    findings.push(format!(
                        "{package}/{file}: {name} stands on no floor: give it one in xtask/src/tidy/floors.rs"
                    ));
                }
            }
            continue;
        };
        if to > from {
            let items: Vec<_> = items.iter().map(String::as_str).collect();
            findings.push(format!(
                "{package}/{user} ({user_name}) uses {} of {definer} ({definer_name}), which stands above it: move it down, or hand it over \
                 as a parameter. The floors, from the ground up: {}",
                items.join(", "),
                floors.join(", ")
            ));
        }
    }
}

/// What the floor of a file is called; `None` outside of `src`.
fn name(file: &str) -> Option<&str> {
    let inside = file.strip_prefix("src/")?;
    inside.split('/').next().map(|first| first.strip_suffix(".rs").unwrap_or(first))
}

/// Counted from the ground; the root is above all.
fn floor(name: &str, floors: &[&str]) -> Option<usize> {
    if ["lib", "main"].contains(&name) {
        return Some(floors.len());
    }
    floors.iter().position(|floor| floor.split(' ').any(|one| one == name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::plants::arrows;

    const TABLE: &[&str] = &["words", "trace cost", "engine"];

    fn findings(more: &[(&str, &str)]) -> Vec<String> {
        let mut files = vec![
            ("src/lib.rs", "mod words; mod trace; mod cost; mod engine; fn top() { engine::run() }"),
            (
                "src/engine/mod.rs",
                "mod queue; pub(crate) use queue::Queue; pub(crate) fn run(_: crate::words::Word) {}",
            ),
            ("src/engine/queue.rs", "use crate::cost::Cost; pub(crate) struct Queue;"),
            ("src/trace.rs", ""),
            ("src/cost.rs", "use crate::trace::Log; pub(crate) struct Cost;"),
            ("src/words.rs", "pub(crate) struct Word;"),
        ];
        files.retain(|(file, _)| more.iter().all(|(other, _)| other != file));
        files.extend(more);
        let mut findings = Vec::new();
        judge("crates/planted", TABLE, &arrows(&files), &mut findings);
        findings
    }

    #[test]
    fn what_uses_only_what_is_below_it_is_in_order() {
        assert_eq!(findings(&[]), [""; 0]);
    }

    #[test]
    fn an_upward_import_is_found_and_both_floors_are_named() {
        let found = findings(&[("src/words.rs", "use crate::engine::Queue; pub(crate) struct Word;")]);
        assert_eq!(found.len(), 1, "{found:?}");
        let named = "src/words.rs (words) uses Queue of src/engine/queue.rs (engine), which stands above it";
        assert!(found[0].contains(named), "{found:?}");
        assert!(found[0].ends_with("words, trace cost, engine"), "{found:?}");
    }

    #[test]
    fn the_root_stands_above_all_floors() {
        let root = "mod words; mod trace; mod cost; mod engine; pub(crate) struct Top;";
        let found = findings(&[("src/lib.rs", root), ("src/trace.rs", "fn log(_: crate::Top) {}")]);
        assert!(found[0].contains("src/trace.rs (trace) uses Top of src/lib.rs (lib)"), "{found:?}");
    }

    #[test]
    fn who_stands_on_no_floor_is_asked_for_one() {
        let root = "mod words; mod trace; mod cost; mod engine; mod new;";
        let found = findings(&[("src/lib.rs", root), ("src/new/mod.rs", "use crate::words::Word;")]);
        assert!(found[0].contains("src/new/mod.rs: new stands on no floor"), "{found:?}");
    }
}
