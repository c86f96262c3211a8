//! Reads the code of all modules for what it names.

use super::modules::{Crate, Module};
use proc_macro2::{Delimiter, TokenStream, TokenTree};
use std::path::PathBuf;
use syn::visit::{self, Visit};

/// Which file uses which, and the item's name.
pub(super) fn of(krate: &Crate) -> Vec<(PathBuf, PathBuf, String)> {
    let mut all = Vec::new();
    for (id, module) in krate.modules.iter().enumerate() {
        let mut reader = Reader { krate, id, module, arrows: Vec::new() };
        for import in module.imports.iter().filter(|import| !import.re_export) {
            reader.path(&import.path, import.absolute);
        }
        for item in &module.items {
            reader.visit_item(item);
        }
        all.extend(reader.arrows.into_iter().map(|(definer, item)| (module.file.clone(), definer, item)));
    }
    all
}

struct Reader<'a> {
    krate: &'a Crate,
    id: usize,
    module: &'a Module,
    arrows: Vec<(PathBuf, String)>,
}

impl Reader<'_> {
    fn path(&mut self, path: &[String], absolute: bool) {
        let items = self.krate.items(self.id, path, absolute);
        self.arrows.extend(items.into_iter().filter(|(file, _)| *file != self.module.file));
    }

    fn macro_name(&mut self, name: &str) {
        let files = self.krate.macros.get(name).map_or(&[][..], Vec::as_slice);
        if !files.contains(&self.module.file) {
            self.arrows.extend(files.iter().map(|file| (file.clone(), format!("{name}!"))));
        }
    }

    /// Paths among tokens that nobody has parsed. A word alone may be a variable, so it counts only if it is written like a type, or
    /// called.
    fn tokens(&mut self, tokens: TokenStream) {
        let tokens: Vec<_> = tokens.into_iter().collect();
        let punct =
            |at: usize, sign| matches!(tokens.get(at), Some(TokenTree::Punct(p)) if p.as_char() == sign);
        let mut at = 0;
        while at < tokens.len() {
            match &tokens[at] {
                TokenTree::Group(group) => self.tokens(group.stream()),
                TokenTree::Ident(first) if at == 0 || !punct(at - 1, '.') => {
                    let absolute = at >= 2 && punct(at - 1, ':') && punct(at - 2, ':');
                    let mut path = vec![first.to_string()];
                    while punct(at + 1, ':') && punct(at + 2, ':') {
                        let Some(TokenTree::Ident(next)) = tokens.get(at + 3) else { break };
                        path.push(next.to_string());
                        at += 3;
                    }
                    let called = matches!(tokens.get(at + 1), Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Parenthesis);
                    let typed = path[0].starts_with(char::is_uppercase);
                    if path.len() == 1 && punct(at + 1, '!') {
                        self.macro_name(&path[0]);
                    } else if path.len() > 1 || called || typed {
                        self.path(&path, absolute);
                    }
                }
                _ => {}
            }
            at += 1;
        }
    }
}

impl<'ast> Visit<'ast> for Reader<'_> {
    fn visit_path(&mut self, path: &'ast syn::Path) {
        let names: Vec<_> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        self.path(&names, path.leading_colon.is_some());
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        if let Some(name) = call.path.get_ident() {
            self.macro_name(&name.to_string());
        }
        self.visit_path(&call.path);
        self.tokens(call.tokens.clone());
    }

    /// `pub(in path)` is no use.
    fn visit_visibility(&mut self, _: &'ast syn::Visibility) {}

    /// The attribute is of another crate; what stands in it may be ours, as in `#[error("{}", listed(ranks))]`.
    fn visit_attribute(&mut self, attribute: &'ast syn::Attribute) {
        if let syn::Meta::List(list) = &attribute.meta {
            self.tokens(list.tokens.clone());
        }
    }
}
