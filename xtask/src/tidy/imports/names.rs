//! What a path means, seen from a module.

use super::modules::Crate;
use std::collections::HashSet;
use std::path::PathBuf;

/// What a name leads to. One name can mean a module and an item.
#[derive(Clone, Debug)]
pub(super) enum Found {
    Module(usize),
    /// The file that defines it, and its name there.
    Item(PathBuf, String),
    /// Of another crate.
    Outside,
}

/// Names that are being looked up already: globs can lead in rounds.
type Seen = HashSet<(usize, String)>;

impl Crate {
    /// The items that a path means, with the files that define them; none for modules and for what lies in other crates.
    pub(in super::super) fn items(
        &self,
        from: usize,
        path: &[String],
        absolute: bool,
    ) -> Vec<(PathBuf, String)> {
        let found = self.found(from, path, absolute);
        found
            .into_iter()
            .filter_map(|it| if let Found::Item(file, name) = it { Some((file, name)) } else { None })
            .collect()
    }

    /// All that a path means.
    pub(super) fn found(&self, from: usize, path: &[String], absolute: bool) -> Vec<Found> {
        self.resolve(from, path, absolute, &mut Seen::new())
    }

    fn resolve(&self, from: usize, path: &[String], absolute: bool, seen: &mut Seen) -> Vec<Found> {
        let Some((first, rest)) = path.split_first() else { return Vec::new() };
        let begin = match first.as_str() {
            _ if absolute => vec![Found::Outside],
            "crate" => vec![Found::Module(0)],
            "self" => vec![Found::Module(from)],
            "super" => self.modules[from].parent.map(Found::Module).into_iter().collect(),
            name => self.lookup(from, name, seen),
        };
        self.follow(begin, rest, seen)
    }

    fn follow(&self, mut found: Vec<Found>, rest: &[String], seen: &mut Seen) -> Vec<Found> {
        let Some((name, rest)) = rest.split_first() else { return found };
        if found.iter().any(|it| matches!(it, Found::Module(_))) {
            found.retain(|it| matches!(it, Found::Module(_)));
        }
        let mut all = Vec::new();
        for it in found {
            let next = match it {
                Found::Module(id) if name == "super" => {
                    self.modules[id].parent.map(Found::Module).into_iter().collect()
                }
                Found::Module(id) => {
                    let next = self.lookup(id, name, seen);
                    // What a macro of that file made.
                    let made = || Found::Item(self.modules[id].file.clone(), name.clone());
                    if next.is_empty() { vec![made()] } else { next }
                }
                // A variant or an associated item.
                it => {
                    all.push(it);
                    continue;
                }
            };
            all.extend(self.follow(next, rest, seen));
        }
        all
    }

    /// A name without a path.
    fn lookup(&self, id: usize, name: &str, seen: &mut Seen) -> Vec<Found> {
        if !seen.insert((id, name.to_owned())) {
            return vec![Found::Outside];
        }
        let module = &self.modules[id];
        let mut found: Vec<_> = module
            .children
            .iter()
            .filter(|(child, _)| child == name)
            .map(|(_, id)| Found::Module(*id))
            .collect();
        if module.defined.contains(name) {
            found.push(Found::Item(module.file.clone(), name.to_owned()));
        }
        for import in module.imports.iter().filter(|import| import.name.as_deref() == Some(name)) {
            let target = self.resolve(id, &import.path, import.absolute, seen);
            found.extend(if target.is_empty() { vec![Found::Outside] } else { target });
        }
        if found.is_empty() {
            for import in module.imports.iter().filter(|import| import.name.is_none()) {
                for target in self.resolve(id, &import.path, import.absolute, seen) {
                    found.extend(match target {
                        Found::Module(inside) => self.lookup(inside, name, seen),
                        _ => Vec::new(),
                    });
                }
            }
        }
        seen.remove(&(id, name.to_owned()));
        found
    }
}
