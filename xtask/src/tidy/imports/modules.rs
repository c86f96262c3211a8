//! The modules of one crate, as its files declare them: what each defines, what it imports, what code it holds.

use super::production;
use std::collections::{HashMap, HashSet};
use std::path::{Component, Path, PathBuf};
use syn::visit::{self, Visit};
use syn::{Attribute, Expr, ForeignItem, Item, ItemMod, ItemUse, Lit, Meta, UseTree, Visibility};

/// Reads a file, if there is one.
pub(in super::super) type Read<'a> = &'a dyn Fn(&Path) -> Option<String>;

/// A module is known by its place in `modules`; the crate's root is the first.
pub(in super::super) struct Crate {
    pub(in super::super) modules: Vec<Module>,
    /// The files where a `macro_rules!` of this name stands: such names need no path.
    pub(super) macros: HashMap<String, Vec<PathBuf>>,
}

pub(in super::super) struct Module {
    pub(in super::super) file: PathBuf,
    pub(super) parent: Option<usize>,
    pub(super) children: Vec<(String, usize)>,
    /// Declared `pub mod`, and shown in the documentation.
    pub(super) is_public: bool,
    pub(super) defined: HashSet<String>,
    pub(super) imports: Vec<Import>,
    /// The code, without `mod` and `use`.
    pub(in super::super) items: Vec<Item>,
}

/// One leaf of a `use`.
pub(super) struct Import {
    /// `None` imports all there is.
    pub(super) name: Option<String>,
    pub(super) path: Vec<String>,
    /// Begins with `::`, so it leads to another crate.
    pub(super) absolute: bool,
    pub(super) re_export: bool,
    /// `pub use`, and shown in the documentation.
    pub(super) is_public: bool,
}

/// Where the files of a module's children lie.
struct Place<'a> {
    file: &'a Path,
    children: PathBuf,
}

impl Crate {
    pub(in super::super) fn read(root: &Path, read: Read<'_>) -> Result<Self, String> {
        let mut krate = Self { modules: Vec::new(), macros: HashMap::new() };
        krate.file(root, true, None, read)?;
        Ok(krate)
    }

    /// `owns_folder`: the file's children lie beside it, as with `mod.rs`.
    fn file(
        &mut self,
        file: &Path,
        owns_folder: bool,
        parent: Option<usize>,
        read: Read<'_>,
    ) -> Result<usize, String> {
        let text = read(file).ok_or_else(|| format!("{} can't be read", file.display()))?;
        let mut parsed =
            syn::parse_file(&text).map_err(|e| format!("{} can't be parsed: {e}", file.display()))?;
        production::keep(&mut parsed);
        let beside = file.parent().unwrap_or(Path::new(""));
        let children =
            if owns_folder { beside.into() } else { beside.join(file.file_stem().unwrap_or_default()) };
        self.module(parsed.items, &Place { file, children }, parent, read)
    }

    fn module(
        &mut self,
        items: Vec<Item>,
        place: &Place<'_>,
        parent: Option<usize>,
        read: Read<'_>,
    ) -> Result<usize, String> {
        let id = self.modules.len();
        self.modules.push(Module {
            file: place.file.into(),
            parent,
            children: Vec::new(),
            is_public: false,
            defined: HashSet::new(),
            imports: Vec::new(),
            items: Vec::new(),
        });
        for item in items {
            match item {
                Item::Mod(module) => {
                    let name = module.ident.to_string();
                    let is_public = is_public(&module.vis, &module.attrs);
                    if let Some(child) = self.child(module, place, id, read)? {
                        self.modules[child].is_public = is_public;
                        self.modules[id].children.push((name, child));
                    }
                }
                Item::Use(import) => self.import(id, &import),
                item => self.code(id, item),
            }
        }
        Ok(id)
    }

    fn child(
        &mut self,
        module: ItemMod,
        place: &Place<'_>,
        parent: usize,
        read: Read<'_>,
    ) -> Result<Option<usize>, String> {
        let name = module.ident.to_string();
        if let Some((_, items)) = module.content {
            let inside = Place { file: place.file, children: place.children.join(name) };
            return self.module(items, &inside, Some(parent), read).map(Some);
        }
        if let Some(path) = path_of(&module.attrs) {
            let beside = place.file.parent().unwrap_or(Path::new(""));
            return self.file(&plain(&beside.join(path)), true, Some(parent), read).map(Some);
        }
        let candidates = [
            (place.children.join(format!("{name}.rs")), false),
            (place.children.join(&name).join("mod.rs"), true),
        ];
        let found = candidates.iter().find(|(file, _)| read(file).is_some());
        let Some((file, owns_folder)) = found else {
            return Err(format!("{} declares the module {name}, which has no file", place.file.display()));
        };
        self.file(file, *owns_folder, Some(parent), read).map(Some)
    }

    /// Takes an item that is neither `mod` nor `use`.
    fn code(&mut self, id: usize, item: Item) {
        for import in imports_inside(&item) {
            self.import(id, import);
        }
        let file = self.modules[id].file.clone();
        let defined = &mut self.modules[id].defined;
        match &item {
            Item::ForeignMod(block) => defined.extend(block.items.iter().filter_map(|item| match item {
                ForeignItem::Fn(it) => Some(it.sig.ident.to_string()),
                ForeignItem::Static(it) => Some(it.ident.to_string()),
                ForeignItem::Type(it) => Some(it.ident.to_string()),
                _ => None,
            })),
            // A macro of the root is there for the modules below it: it stands on the ground.
            Item::Macro(it) if id > 0 => {
                if let Some(ident) = &it.ident {
                    self.macros.entry(ident.to_string()).or_default().push(file);
                }
            }
            Item::Const(it) => defined.extend([it.ident.to_string()]),
            Item::Enum(it) => defined.extend([it.ident.to_string()]),
            Item::Fn(it) => defined.extend([it.sig.ident.to_string()]),
            Item::Static(it) => defined.extend([it.ident.to_string()]),
            Item::Struct(it) => defined.extend([it.ident.to_string()]),
            Item::Trait(it) => defined.extend([it.ident.to_string()]),
            Item::TraitAlias(it) => defined.extend([it.ident.to_string()]),
            Item::Type(it) => defined.extend([it.ident.to_string()]),
            Item::Union(it) => defined.extend([it.ident.to_string()]),
            _ => {}
        }
        self.modules[id].items.push(item);
    }

    fn import(&mut self, id: usize, import: &ItemUse) {
        let re_export = !matches!(import.vis, Visibility::Inherited);
        let is_public = is_public(&import.vis, &import.attrs);
        let absolute = import.leading_colon.is_some();
        let mut leaves = Vec::new();
        flatten(&import.tree, &mut Vec::new(), &mut leaves);
        let leaves =
            leaves.into_iter().map(|(name, path)| Import { name, path, absolute, re_export, is_public });
        self.modules[id].imports.extend(leaves);
    }
}

/// Whether users may name it, where they reach it.
pub(super) fn is_public(visibility: &Visibility, attributes: &[Attribute]) -> bool {
    matches!(visibility, Visibility::Public(_)) && !is_hidden(attributes)
}

/// Whether `#[doc(hidden)]` stands there.
pub(in super::super) fn is_hidden(attributes: &[Attribute]) -> bool {
    let hides = |attribute: &Attribute| match &attribute.meta {
        Meta::List(list) => list.path.is_ident("doc") && list.tokens.to_string() == "hidden",
        _ => false,
    };
    attributes.iter().any(hides)
}

/// The leaves of a `use`: the name that each gives, and its path.
fn flatten(tree: &UseTree, before: &mut Vec<String>, leaves: &mut Vec<(Option<String>, Vec<String>)>) {
    let with = |last: String| before.iter().cloned().chain([last]).collect::<Vec<_>>();
    match tree {
        UseTree::Path(path) => {
            before.push(path.ident.to_string());
            flatten(&path.tree, before, leaves);
            before.pop();
        }
        UseTree::Group(group) => {
            for tree in &group.items {
                flatten(tree, before, leaves);
            }
        }
        UseTree::Glob(_) => leaves.push((None, before.clone())),
        UseTree::Name(name) if name.ident == "self" => leaves.push((before.last().cloned(), before.clone())),
        UseTree::Name(name) => leaves.push((Some(name.ident.to_string()), with(name.ident.to_string()))),
        UseTree::Rename(rename) => {
            let path = if rename.ident == "self" { before.clone() } else { with(rename.ident.to_string()) };
            leaves.push((Some(rename.rename.to_string()), path));
        }
    }
}

/// The `use` lines inside functions.
fn imports_inside(item: &Item) -> Vec<&ItemUse> {
    struct Inside<'a>(Vec<&'a ItemUse>);
    impl<'ast> Visit<'ast> for Inside<'ast> {
        fn visit_item_use(&mut self, import: &'ast ItemUse) {
            self.0.push(import);
        }
    }
    let mut inside = Inside(Vec::new());
    visit::visit_item(&mut inside, item);
    inside.0
}

/// The file of `#[path = "..."]`.
fn path_of(attributes: &[Attribute]) -> Option<String> {
    let attribute = attributes.iter().find(|attribute| attribute.path().is_ident("path"))?;
    let Meta::NameValue(pair) = &attribute.meta else { return None };
    let Expr::Lit(literal) = &pair.value else { return None };
    let Lit::Str(path) = &literal.lit else { return None };
    Some(path.value())
}

/// The path without `..`.
fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        if part == Component::ParentDir {
            plain.pop();
        } else {
            plain.push(part);
        }
    }
    plain
}
