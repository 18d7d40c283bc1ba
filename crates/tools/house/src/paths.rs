//! The paths in code: in expressions, types, patterns, and in the arguments of macros.

use crate::attributes::{attributes, is_test, plain};
use proc_macro2::{Delimiter, TokenStream, TokenTree};
use std::collections::BTreeSet;
use syn::visit::{self, Visit};
use syn::{Expr, Item, Pat, UseTree, Visibility};

/// A path as in the source, without generic arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Named {
    /// `a::b::C`, or a single name.
    Path(Vec<String>),
    /// A single name that may also be a local variable.
    Value(String),
    /// `name!`
    Macro(String),
}

/// The names in the code of one module.
#[derive(Debug, Default)]
pub struct Code {
    /// Every `use`, including those inside functions.
    pub uses: Vec<Use>,
    /// Every other path.
    pub named: Vec<Named>,
    /// Names bound by patterns and parameters somewhere.
    pub bound: BTreeSet<String>,
    /// Methods that are called.
    pub calls: BTreeSet<String>,
    /// Functions of `impl` blocks without a trait: the path of the type, and the name.
    pub methods: Vec<(Vec<String>, String)>,
    /// Names of functions of traits, declared or implemented.
    pub of_traits: BTreeSet<String>,
}

/// One leaf of a `use` tree.
#[derive(Debug, Clone)]
pub struct Use {
    /// The name in this module. `None` for a glob.
    pub local: Option<String>,
    /// The full path, globs without their star.
    pub path: Vec<String>,
    /// Whether it is a re-export (`pub use`, `pub(crate) use`).
    pub public: bool,
}

impl Code {
    /// Adds the names, imports and bindings of an item.
    pub fn read(&mut self, item: &Item) {
        self.visit_item(item);
    }

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
                        self.named.push(Named::Path(path));
                    } else if called {
                        self.named.push(Named::Macro(path.remove(0)));
                    } else if !field && !label {
                        self.named.push(Named::Value(path.remove(0)));
                    }
                }
                _ => {}
            }
            at += 1;
        }
    }
}

impl<'ast> Visit<'ast> for Code {
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

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        let functions = item.items.iter().filter_map(|item| match item {
            syn::ImplItem::Fn(function) => Some(plain(&function.sig.ident)),
            _ => None,
        });
        match (&item.trait_, &*item.self_ty) {
            (None, syn::Type::Path(of)) => {
                let path: Vec<String> = of.path.segments.iter().map(|s| plain(&s.ident)).collect();
                self.methods.extend(functions.map(|name| (path.clone(), name)));
            }
            _ => self.of_traits.extend(functions),
        }
        visit::visit_item_impl(self, item);
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        self.of_traits.insert(plain(&item.sig.ident));
        visit::visit_trait_item_fn(self, item);
    }

    fn visit_expr_method_call(&mut self, call: &'ast syn::ExprMethodCall) {
        self.calls.insert(plain(&call.method));
        visit::visit_expr_method_call(self, call);
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        if item.leading_colon.is_none() {
            leaves(&item.tree, &mut Vec::new(), is_public(&item.vis), &mut self.uses);
        }
    }

    // `pub(in crate::x)` and `pub(super)` are no imports.
    fn visit_vis_restricted(&mut self, _: &'ast syn::VisRestricted) {}

    // Attributes such as `#[serde(…)]` and `#[doc = …]` name nothing of this crate.
    fn visit_attribute(&mut self, _: &'ast syn::Attribute) {}

    fn visit_pat(&mut self, pat: &'ast Pat) {
        if let Pat::Ident(pat) = pat {
            let name = plain(&pat.ident);
            // A capitalized name is a constant or a variant that the pattern compares with.
            if name.starts_with(char::is_uppercase) {
                self.named.push(Named::Value(name));
            } else {
                self.bound.insert(name);
            }
        }
        visit::visit_pat(self, pat);
    }

    fn visit_expr(&mut self, expr: &'ast Expr) {
        if let Expr::Path(path) = expr
            && path.qself.is_none()
            && let Some(name) = path.path.get_ident()
        {
            return self.named.push(Named::Value(plain(name)));
        }
        visit::visit_expr(self, expr);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if path.leading_colon.is_none() {
            self.named.push(Named::Path(path.segments.iter().map(|s| plain(&s.ident)).collect()));
        }
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        match call.path.get_ident() {
            Some(name) => self.named.push(Named::Macro(plain(name))),
            None => self.visit_path(&call.path),
        }
        self.tokens(&call.tokens);
    }
}

/// Splits a `use` tree into its leaves.
fn leaves(tree: &UseTree, path: &mut Vec<String>, public: bool, found: &mut Vec<Use>) {
    match tree {
        UseTree::Path(step) => {
            path.push(plain(&step.ident));
            leaves(&step.tree, path, public, found);
            path.pop();
        }
        UseTree::Name(name) if name.ident == "self" => {
            found.push(Use { local: path.last().cloned(), path: path.clone(), public });
        }
        UseTree::Name(name) => {
            let name = plain(&name.ident);
            let path = [&path[..], std::slice::from_ref(&name)].concat();
            found.push(Use { local: Some(name), path, public });
        }
        UseTree::Rename(rename) => {
            let step = plain(&rename.ident);
            let path = if step == "self" { path.clone() } else { [&path[..], &[step]].concat() };
            found.push(Use { local: Some(plain(&rename.rename)), path, public });
        }
        UseTree::Glob(_) => found.push(Use { local: None, path: path.clone(), public }),
        UseTree::Group(group) => group.items.iter().for_each(|tree| leaves(tree, path, public, found)),
    }
}

/// Whether the `use` is a re-export.
fn is_public(visibility: &Visibility) -> bool {
    !matches!(visibility, Visibility::Inherited)
}
