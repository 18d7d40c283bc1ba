//! Source of one crate as a tree of modules: what each module defines, imports and names.
//!
//! Modules behind `#[cfg(test)]` are left out. An inline module belongs to the file that it stands in.

use crate::paths::{Named, named_in};
use anyhow::{Context, Result, bail};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use syn::{Attribute, Ident, Item, ItemMod, UseTree, Visibility};

/// One crate of the workspace, or rather one of its targets: a library or a program.
#[derive(Debug)]
pub struct Crate {
    /// All modules; the first is the root.
    pub modules: Vec<Module>,
    /// All files, relative to the directory of the root file; the first is the root file.
    pub files: Vec<PathBuf>,
    /// Every `macro_rules!` and the module that defines it.
    pub macros: BTreeMap<String, usize>,
}

/// One module.
#[derive(Debug, Default)]
pub struct Module {
    /// Index into [`Crate::files`].
    pub file: usize,
    /// The enclosing module; none for the root.
    pub parent: Option<usize>,
    /// Modules declared here.
    pub children: BTreeMap<String, usize>,
    /// Names of what is defined here.
    pub items: BTreeSet<String>,
    /// Every `use`, those inside functions included.
    pub uses: Vec<Use>,
    /// Every other path that the code of this module names.
    pub named: Vec<Named>,
    /// Names bound by patterns and parameters somewhere in this module.
    pub bound: BTreeSet<String>,
}

/// One leaf of a `use` tree.
#[derive(Debug, Clone)]
pub struct Use {
    /// The name that the module gets; `None` for a glob.
    pub local: Option<String>,
    /// The full path, globs without their star.
    pub path: Vec<String>,
    /// A re-export (`pub use`, `pub(crate) use`).
    pub public: bool,
}

impl Crate {
    /// Reads a crate, beginning with its root file (`lib.rs` or `main.rs`).
    pub fn read(root: &Path) -> Result<Crate> {
        let mut found = Crate { modules: vec![Module::default()], files: Vec::new(), macros: BTreeMap::new() };
        let base = root.parent().context("a root file stands in a directory")?;
        found.read_file(base, root, base, 0)?;
        Ok(found)
    }

    /// Whether the file declares modules that are files of their own.
    pub fn has_child_files(&self, file: usize) -> bool {
        self.modules.iter().any(|m| m.file != file && m.parent.is_some_and(|p| self.modules[p].file == file))
    }

    /// Reads one file into a module; files of its child modules are in `children`.
    fn read_file(&mut self, base: &Path, path: &Path, children: &Path, module: usize) -> Result<()> {
        let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
        let syntax = syn::parse_file(&text).with_context(|| path.display().to_string())?;
        self.modules[module].file = self.files.len();
        self.files.push(path.strip_prefix(base).unwrap_or(path).to_owned());
        self.read_items(base, path, children, module, &syntax.items)
    }

    fn read_items(&mut self, base: &Path, path: &Path, dir: &Path, module: usize, items: &[Item]) -> Result<()> {
        for item in items {
            if is_test(attributes(item)) {
                continue;
            }
            match item {
                Item::Mod(declared) => self.read_module(base, path, dir, module, declared)?,
                Item::Macro(rules) => {
                    if let Some(name) = &rules.ident {
                        self.macros.insert(name.to_string(), module);
                        self.modules[module].items.insert(name.to_string());
                    }
                }
                other => {
                    if let Some(name) = name_of(other) {
                        self.modules[module].items.insert(name.to_string());
                    }
                }
            }
            if !matches!(item, Item::Mod(_)) {
                named_in(item, &mut self.modules[module]);
            }
        }
        Ok(())
    }

    fn read_module(&mut self, base: &Path, path: &Path, dir: &Path, parent: usize, declared: &ItemMod) -> Result<()> {
        let name = plain(&declared.ident);
        let child = self.modules.len();
        self.modules.push(Module { file: self.modules[parent].file, parent: Some(parent), ..Module::default() });
        self.modules[parent].children.insert(name.clone(), child);
        if let Some((_, items)) = &declared.content {
            return self.read_items(base, path, &dir.join(&name), child, items);
        }
        if let Some(given) = path_attribute(&declared.attrs) {
            let file = path.parent().unwrap_or(base).join(given);
            let beside = file.parent().unwrap_or(base).to_owned();
            return self.read_file(base, &file, &beside, child);
        }
        let (beside, inside) = (dir.join(format!("{name}.rs")), dir.join(&name).join("mod.rs"));
        for file in [&beside, &inside] {
            if file.exists() {
                return self.read_file(base, file, &dir.join(&name), child);
            }
        }
        bail!("{}: `mod {name}` has no file", path.display())
    }
}

/// Splits a `use` tree into its leaves.
pub fn leaves(tree: &UseTree, path: &mut Vec<String>, public: bool, found: &mut Vec<Use>) {
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
            let path = [&path[..], &[name.clone()]].concat();
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

/// Whether the `use` names something anew for others.
pub fn is_public(visibility: &Visibility) -> bool {
    !matches!(visibility, Visibility::Inherited)
}

/// An identifier without the mark of a raw one.
pub fn plain(ident: &Ident) -> String {
    let name = ident.to_string();
    name.strip_prefix("r#").map(str::to_owned).unwrap_or(name)
}

/// Whether something is there for tests alone: `#[test]`, `#[cfg(test)]`, `#[cfg(all(test, …))]`.
pub fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        if attribute.path().is_ident("test") {
            return true;
        }
        let syn::Meta::List(list) = &attribute.meta else { return false };
        let text = list.tokens.to_string();
        attribute.path().is_ident("cfg")
            && (text == "test"
                || text.starts_with("all") && text.split(|c: char| !c.is_alphanumeric()).any(|w| w == "test"))
    })
}

fn path_attribute(attributes: &[Attribute]) -> Option<String> {
    attributes.iter().find_map(|attribute| match &attribute.meta {
        syn::Meta::NameValue(pair) if pair.path.is_ident("path") => match &pair.value {
            syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(text), .. }) => Some(text.value()),
            _ => None,
        },
        _ => None,
    })
}

fn name_of(item: &Item) -> Option<&Ident> {
    Some(match item {
        Item::Const(item) => &item.ident,
        Item::Enum(item) => &item.ident,
        Item::Fn(item) => &item.sig.ident,
        Item::Static(item) => &item.ident,
        Item::Struct(item) => &item.ident,
        Item::Trait(item) => &item.ident,
        Item::TraitAlias(item) => &item.ident,
        Item::Type(item) => &item.ident,
        Item::Union(item) => &item.ident,
        _ => return None,
    })
}

/// Attributes of an item.
pub fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::ExternCrate(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::ForeignMod(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::TraitAlias(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Union(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}
