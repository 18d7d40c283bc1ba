//! Paths that code names: in expressions, types, patterns, and in the arguments of macros.

use crate::modules::{Module, attributes, is_public, is_test, leaves, plain};
use proc_macro2::{Delimiter, TokenStream, TokenTree};
use syn::visit::{self, Visit};
use syn::{Expr, Item, Pat};

/// A path as it is written, without generic arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Named {
    /// `a::b::C`, or a single name.
    Path(Vec<String>),
    /// A single name that may be a local variable as well.
    Value(String),
    /// `name!`
    Macro(String),
}

/// Adds to the module what one of its items names, imports and binds.
pub fn named_in(item: &Item, module: &mut Module) {
    Visitor { module }.visit_item(item);
}

struct Visitor<'m> {
    module: &'m mut Module,
}

impl Visitor<'_> {
    fn tokens(&mut self, tokens: &TokenStream) {
        let tokens: Vec<TokenTree> = tokens.clone().into_iter().collect();
        let is = |at: usize, wanted: char| matches!(tokens.get(at), Some(TokenTree::Punct(p)) if p.as_char() == wanted);
        let mut at = 0;
        while at < tokens.len() {
            match &tokens[at] {
                TokenTree::Group(group) => self.tokens(&group.stream()),
                TokenTree::Ident(first) => {
                    let field = at > 0 && is(at - 1, '.') && !(at > 1 && is(at - 2, '.'));
                    let mut path = vec![plain(first)];
                    while is(at + 1, ':') && is(at + 2, ':') {
                        let Some(TokenTree::Ident(next)) = tokens.get(at + 3) else { break };
                        path.push(plain(next));
                        at += 3;
                    }
                    let label = is(at + 1, ':') && !is(at + 2, ':');
                    let arguments = |delimiter| matches!(tokens.get(at + 2), Some(TokenTree::Group(g)) if g.delimiter() == delimiter);
                    let called = is(at + 1, '!')
                        && [Delimiter::Parenthesis, Delimiter::Brace, Delimiter::Bracket].into_iter().any(arguments);
                    if path.len() > 1 {
                        self.module.named.push(Named::Path(path));
                    } else if called {
                        self.module.named.push(Named::Macro(path.remove(0)));
                    } else if !field && !label {
                        self.module.named.push(Named::Value(path.remove(0)));
                    }
                }
                _ => {}
            }
            at += 1;
        }
    }
}

impl<'ast> Visit<'ast> for Visitor<'_> {
    fn visit_item(&mut self, item: &'ast Item) {
        if !is_test(attributes(item)) {
            visit::visit_item(self, item);
        }
    }

    fn visit_impl_item(&mut self, item: &'ast syn::ImplItem) {
        let attributes = match item {
            syn::ImplItem::Const(item) => &item.attrs[..],
            syn::ImplItem::Fn(item) => &item.attrs,
            syn::ImplItem::Type(item) => &item.attrs,
            _ => &[],
        };
        if !is_test(attributes) {
            visit::visit_impl_item(self, item);
        }
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        if item.leading_colon.is_none() {
            leaves(&item.tree, &mut Vec::new(), is_public(&item.vis), &mut self.module.uses);
        }
    }

    // `pub(in crate::x)` and `pub(super)` import nothing.
    fn visit_vis_restricted(&mut self, _: &'ast syn::VisRestricted) {}

    // `#[serde(…)]`, `#[doc = …]`: nothing of this crate.
    fn visit_attribute(&mut self, _: &'ast syn::Attribute) {}

    fn visit_pat(&mut self, pat: &'ast Pat) {
        if let Pat::Ident(pat) = pat {
            let name = plain(&pat.ident);
            // A capital one is a constant or a variant that the pattern compares with.
            if name.starts_with(char::is_uppercase) {
                self.module.named.push(Named::Value(name));
            } else {
                self.module.bound.insert(name);
            }
        }
        visit::visit_pat(self, pat);
    }

    fn visit_expr(&mut self, expr: &'ast Expr) {
        if let Expr::Path(path) = expr
            && path.qself.is_none()
            && let Some(name) = path.path.get_ident()
        {
            return self.module.named.push(Named::Value(plain(name)));
        }
        visit::visit_expr(self, expr);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if path.leading_colon.is_none() {
            self.module.named.push(Named::Path(path.segments.iter().map(|s| plain(&s.ident)).collect()));
        }
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        match call.path.get_ident() {
            Some(name) => self.module.named.push(Named::Macro(plain(name))),
            None => self.visit_path(&call.path),
        }
        self.tokens(&call.tokens);
    }
}
