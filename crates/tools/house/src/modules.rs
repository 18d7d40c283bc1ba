//! The source of one crate as a tree of modules: the items of each module, and the names in its code.
//!
//! Modules behind `#[cfg(test)]` are left out. An inline module belongs to the file that contains it.

use crate::attributes::{attributes, is_test, plain};
use crate::paths::Code;
use anyhow::{Context, Result, bail};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use syn::{Attribute, Ident, Item, ItemMod};

/// One target of a crate of the workspace: a library or a program.
#[derive(Debug)]
pub struct Crate {
    /// All modules. The first is the root.
    pub modules: Vec<Module>,
    /// All files, relative to the directory of the root file. The first is the root file.
    pub files: Vec<PathBuf>,
    /// Every `macro_rules!`, and the module that defines it.
    pub macros: BTreeMap<String, usize>,
}

/// One module.
#[derive(Debug, Default)]
pub struct Module {
    /// Index into [`Crate::files`].
    pub file: usize,
    /// The enclosing module. None for the root.
    pub parent: Option<usize>,
    /// Modules declared here.
    pub children: BTreeMap<String, usize>,
    /// The names of the items that are defined here.
    pub items: BTreeSet<String>,
    /// The names and imports in its code.
    pub code: Code,
}

impl Crate {
    /// Reads a crate, beginning with its root file (`lib.rs` or `main.rs`).
    pub fn read(root: &Path) -> Result<Crate> {
        let mut found = Crate { modules: vec![Module::default()], files: Vec::new(), macros: BTreeMap::new() };
        let base = root.parent().context("a root file stands in a directory")?;
        found.read_file(base, root, base, 0)?;
        Ok(found)
    }

    /// Whether the file declares modules in files of their own.
    pub fn has_child_files(&self, file: usize) -> bool {
        self.modules.iter().any(|m| m.file != file && m.parent.is_some_and(|p| self.modules[p].file == file))
    }

    /// Reads one file into a module. `children` is the directory of its child modules' files.
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
                self.modules[module].code.read(item);
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
