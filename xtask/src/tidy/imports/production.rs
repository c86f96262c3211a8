//! Takes out of a file what only tests compile.

use syn::punctuated::Punctuated;
use syn::visit_mut::{self, VisitMut};
use syn::{Attribute, Fields, ImplItem, Item, Meta, Stmt, Token, TraitItem};

/// Leaves what is compiled without `cfg(test)`.
pub(super) fn keep(file: &mut syn::File) {
    file.items.retain(|item| !only_tests(of_item(item)));
    Keep.visit_file_mut(file);
}

struct Keep;

impl VisitMut for Keep {
    fn visit_item_mod_mut(&mut self, module: &mut syn::ItemMod) {
        if let Some((_, items)) = &mut module.content {
            items.retain(|item| !only_tests(of_item(item)));
        }
        visit_mut::visit_item_mod_mut(self, module);
    }

    fn visit_item_impl_mut(&mut self, block: &mut syn::ItemImpl) {
        block.items.retain(|item| {
            !only_tests(match item {
                ImplItem::Const(it) => &it.attrs,
                ImplItem::Fn(it) => &it.attrs,
                ImplItem::Type(it) => &it.attrs,
                ImplItem::Macro(it) => &it.attrs,
                _ => &[],
            })
        });
        visit_mut::visit_item_impl_mut(self, block);
    }

    fn visit_item_trait_mut(&mut self, block: &mut syn::ItemTrait) {
        block.items.retain(|item| {
            !only_tests(match item {
                TraitItem::Const(it) => &it.attrs,
                TraitItem::Fn(it) => &it.attrs,
                TraitItem::Type(it) => &it.attrs,
                TraitItem::Macro(it) => &it.attrs,
                _ => &[],
            })
        });
        visit_mut::visit_item_trait_mut(self, block);
    }

    fn visit_block_mut(&mut self, block: &mut syn::Block) {
        block.stmts.retain(|stmt| {
            !only_tests(match stmt {
                Stmt::Local(it) => &it.attrs,
                Stmt::Item(it) => of_item(it),
                Stmt::Macro(it) => &it.attrs,
                Stmt::Expr(it, _) => of_expr(it),
            })
        });
        visit_mut::visit_block_mut(self, block);
    }

    fn visit_fields_mut(&mut self, fields: &mut Fields) {
        if let Fields::Named(named) = fields {
            let kept = std::mem::take(&mut named.named).into_iter().filter(|field| !only_tests(&field.attrs));
            named.named = kept.collect();
        }
        visit_mut::visit_fields_mut(self, fields);
    }

    fn visit_expr_struct_mut(&mut self, literal: &mut syn::ExprStruct) {
        let kept = std::mem::take(&mut literal.fields).into_iter().filter(|field| !only_tests(&field.attrs));
        literal.fields = kept.collect();
        visit_mut::visit_expr_struct_mut(self, literal);
    }
}

/// Whether a `cfg` stands there that holds in tests alone.
fn only_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("cfg") && attribute.parse_args::<Meta>().is_ok_and(|meta| needs_test(&meta))
    })
}

fn needs_test(meta: &Meta) -> bool {
    let Meta::List(list) = meta else { return meta.path().is_ident("test") };
    let parts = list.parse_args_with(Punctuated::<Meta, Token![,]>::parse_terminated).unwrap_or_default();
    match () {
        () if list.path.is_ident("all") => parts.iter().any(needs_test),
        () if list.path.is_ident("any") => !parts.is_empty() && parts.iter().all(needs_test),
        () => false,
    }
}

fn of_expr(expr: &syn::Expr) -> &[Attribute] {
    match expr {
        syn::Expr::Block(it) => &it.attrs,
        syn::Expr::Call(it) => &it.attrs,
        syn::Expr::If(it) => &it.attrs,
        syn::Expr::Macro(it) => &it.attrs,
        syn::Expr::MethodCall(it) => &it.attrs,
        _ => &[],
    }
}

fn of_item(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(it) => &it.attrs,
        Item::Enum(it) => &it.attrs,
        Item::ExternCrate(it) => &it.attrs,
        Item::Fn(it) => &it.attrs,
        Item::ForeignMod(it) => &it.attrs,
        Item::Impl(it) => &it.attrs,
        Item::Macro(it) => &it.attrs,
        Item::Mod(it) => &it.attrs,
        Item::Static(it) => &it.attrs,
        Item::Struct(it) => &it.attrs,
        Item::Trait(it) => &it.attrs,
        Item::TraitAlias(it) => &it.attrs,
        Item::Type(it) => &it.attrs,
        Item::Union(it) => &it.attrs,
        Item::Use(it) => &it.attrs,
        _ => &[],
    }
}
