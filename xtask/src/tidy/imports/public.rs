//! The items that users of a library can name: those that its root defines, or shows by `pub mod` and `pub use`, from our other libraries too.

use super::modules::{Crate, Import, is_public};
use super::names::Found;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use syn::Item;

/// Our libraries, by the name that a `use` gives them.
pub(in super::super) type Libraries = BTreeMap<String, Crate>;

/// An item: its library, the file that defines it, and its name there.
pub(in super::super) type Public = BTreeSet<(String, PathBuf, String)>;

/// What users can name who depend on the library `root`.
pub(in super::super) fn of(libraries: &Libraries, root: &str) -> Public {
    let mut walk = Walk { libraries, seen: BTreeSet::new(), public: Public::new() };
    walk.module(root, 0, None);
    walk.public
}

struct Walk<'a> {
    libraries: &'a Libraries,
    /// Modules, with the one name that was looked for.
    seen: BTreeSet<(String, usize, Option<String>)>,
    public: Public,
}

impl Walk<'_> {
    /// What a module shows: all, or what has this name.
    fn module(&mut self, library: &str, id: usize, only: Option<&str>) {
        let Some(krate) = self.libraries.get(library) else { return };
        if !self.seen.insert((library.to_owned(), id, only.map(str::to_owned))) {
            return;
        }
        let module = &krate.modules[id];
        let wanted = |name: &str| only.is_none_or(|only| only == name);
        for name in module.items.iter().filter_map(public_name).filter(|name| wanted(name)) {
            self.public.insert((library.to_owned(), module.file.clone(), name));
        }
        for (name, child) in &module.children {
            if krate.modules[*child].is_public && wanted(name) {
                self.module(library, *child, None);
            }
        }
        for import in module.imports.iter().filter(|import| import.is_public) {
            match (&import.name, only) {
                (Some(name), _) if !wanted(name) => {}
                (None, only) => self.import(library, id, import, only),
                (Some(_), _) => self.import(library, id, import, None),
            }
        }
    }

    /// What a `pub use` shows. A glob shows all, or what has the one name.
    fn import(&mut self, library: &str, id: usize, import: &Import, only: Option<&str>) {
        let krate = &self.libraries[library];
        let mut found = krate.found(id, &import.path, import.absolute);
        if import.path.first().is_some_and(|first| self.libraries.contains_key(first)) {
            found = vec![Found::Outside];
        }
        for found in found {
            match found {
                Found::Module(inside) => self.module(library, inside, only),
                Found::Item(file, name) => {
                    self.public.insert((library.to_owned(), file, name));
                }
                Found::Outside => self.other_library(&import.path, import.name.is_none(), only),
            }
        }
    }

    fn other_library(&mut self, path: &[String], is_glob: bool, only: Option<&str>) {
        let Some((library, rest)) = path.split_first() else { return };
        let Some(krate) = self.libraries.get(library) else { return };
        let (modules, name) = match rest.split_last() {
            Some((name, modules)) if !is_glob => (modules, Some(name.as_str())),
            _ => (rest, only),
        };
        let child = |id: usize, name: &String| {
            krate.modules[id].children.iter().find(|(child, _)| child == name).map(|(_, id)| *id)
        };
        if let Some(id) = modules.iter().try_fold(0, child) {
            self.module(library, id, name);
        }
    }
}

/// The name of an item that is public where it stands.
fn public_name(item: &Item) -> Option<String> {
    let (visibility, attributes, name) = match item {
        Item::Enum(it) => (&it.vis, &it.attrs, &it.ident),
        Item::Fn(it) => (&it.vis, &it.attrs, &it.sig.ident),
        Item::Struct(it) => (&it.vis, &it.attrs, &it.ident),
        Item::Trait(it) => (&it.vis, &it.attrs, &it.ident),
        Item::Type(it) => (&it.vis, &it.attrs, &it.ident),
        Item::Union(it) => (&it.vis, &it.attrs, &it.ident),
        _ => return None,
    };
    is_public(visibility, attributes).then(|| name.to_string())
}
