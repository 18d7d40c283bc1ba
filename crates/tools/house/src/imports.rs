//! Finds the imports between the files of a crate, and the circles among them.
//!
//! A file imports another one if its code names an item that the other one *defines*, on any path: re-exports and
//! imports of modules on the way are followed. A `mod` declaration is no import. Neither is a re-export in a file that
//! declares modules (`lib.rs`, `mod.rs`, `heap.rs` beside `heap/`).

use crate::modules::Crate;
use crate::paths::Named;
use petgraph::algo::{tarjan_scc, toposort};
use petgraph::graph::{DiGraph, NodeIndex};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// The imports: for each file the files that it imports, and the names of the items.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Imports {
    /// All files of the crate.
    pub files: Vec<PathBuf>,
    /// (importing file, defining file) → names of the items.
    pub edges: BTreeMap<(usize, usize), BTreeSet<String>>,
}

/// The target of a path.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Target {
    Item { module: usize, name: String },
    Module(usize),
}

/// The names that a search has visited, so that globs that import each other do not loop.
type Visited = BTreeSet<(usize, String)>;

impl Imports {
    /// Finds all imports of a crate.
    pub fn of(source: &Crate) -> Imports {
        let mut found = Imports { files: source.files.clone(), edges: BTreeMap::new() };
        for (at, module) in source.modules.iter().enumerate() {
            let reexports = source.has_child_files(module.file);
            for import in module.code.uses.iter().filter(|import| !(import.public && reexports)) {
                found.add(source, at, source.resolve(at, &import.path, &mut Visited::new()));
            }
            for named in &module.code.named {
                let target = match named {
                    Named::Path(path) => source.resolve(at, path, &mut Visited::new()),
                    Named::Value(name) if module.code.bound.contains(name) => None,
                    Named::Value(name) => source.resolve(at, std::slice::from_ref(name), &mut Visited::new()),
                    Named::Macro(name) => {
                        source.macros.get(name).map(|m| Target::Item { module: *m, name: format!("{name}!") })
                    }
                };
                found.add(source, at, target);
            }
        }
        found
    }

    /// Adds calls of methods whose `impl` block is in another file than their type, which no path shows.
    ///
    /// Only method names that are unique in the crate are considered, and a method of another crate may have the same
    /// name. So the result is good for a human search, not for a rule.
    pub fn add_calls(&mut self, source: &Crate) {
        let mut homes: BTreeMap<&str, Vec<Option<usize>>> = BTreeMap::new();
        for (at, module) in source.modules.iter().enumerate() {
            for (of, name) in &module.code.methods {
                let away = match source.resolve(at, of, &mut Visited::new()) {
                    Some(Target::Item { module: home, .. }) => source.modules[home].file != module.file,
                    _ => false,
                };
                homes.entry(name).or_default().push(away.then_some(module.file));
            }
            module.code.of_traits.iter().for_each(|name| homes.entry(name).or_default().push(None));
        }
        for module in &source.modules {
            for name in &module.code.calls {
                if let Some([Some(home)]) = homes.get(name.as_str()).map(Vec::as_slice)
                    && *home != module.file
                {
                    self.edges.entry((module.file, *home)).or_default().insert(format!(".{name}()"));
                }
            }
        }
    }

    fn add(&mut self, source: &Crate, from: usize, target: Option<Target>) {
        if let Some(Target::Item { module, name }) = target {
            let (from, to) = (source.modules[from].file, source.modules[module].file);
            if from != to {
                self.edges.entry((from, to)).or_default().insert(name);
            }
        }
    }

    fn graph(&self) -> DiGraph<usize, ()> {
        let mut graph = DiGraph::new();
        let nodes: Vec<NodeIndex> = (0..self.files.len()).map(|file| graph.add_node(file)).collect();
        for (from, to) in self.edges.keys() {
            graph.add_edge(nodes[*from], nodes[*to], ());
        }
        graph
    }

    /// The groups of files that import each other, with a description of each. Empty if there is no circle.
    pub fn circles(&self) -> Vec<String> {
        let graph = self.graph();
        let mut groups: Vec<BTreeSet<usize>> = tarjan_scc(&graph)
            .into_iter()
            .filter(|group| group.len() > 1)
            .map(|group| group.into_iter().map(|node| graph[node]).collect())
            .collect();
        groups.sort();
        groups.iter().map(|group| self.describe(group)).collect()
    }

    /// Every import inside a group, below its shortest circle.
    fn describe(&self, group: &BTreeSet<usize>) -> String {
        let shortest = group.iter().filter_map(|file| self.way_back(*file)).min_by_key(Vec::len).unwrap_or_default();
        let names: Vec<String> = shortest.iter().map(|file| self.files[*file].display().to_string()).collect();
        let mut text = format!("{} files import each other, for example {}\n", group.len(), names.join(" → "));
        for ((from, to), items) in &self.edges {
            if group.contains(from) && group.contains(to) {
                let _ = writeln!(text, "  {}", self.line(*from, *to, items));
            }
        }
        text
    }

    /// The shortest path from a file back to itself.
    fn way_back(&self, start: usize) -> Option<Vec<usize>> {
        let mut before: BTreeMap<usize, usize> = BTreeMap::new();
        let mut queue = VecDeque::from([start]);
        while let Some(at) = queue.pop_front() {
            for (_, to) in self.edges.keys().filter(|(from, _)| *from == at) {
                if *to == start {
                    let mut way = vec![start, at];
                    while let Some(previous) = before.get(way.last().expect("not empty")) {
                        way.push(*previous);
                    }
                    way.reverse();
                    return Some(way);
                }
                if !before.contains_key(to) {
                    before.insert(*to, at);
                    queue.push_back(*to);
                }
            }
        }
        None
    }

    fn line(&self, from: usize, to: usize, items: &BTreeSet<String>) -> String {
        let items: Vec<&str> = items.iter().map(String::as_str).collect();
        format!("{} imports {}: {}", self.files[from].display(), self.files[to].display(), items.join(", "))
    }

    /// Every file with its imports, from the top down if there is no circle.
    pub fn listing(&self) -> String {
        let graph = self.graph();
        let order: Vec<usize> = match toposort(&graph, None) {
            Ok(order) => order.into_iter().map(|node| graph[node]).collect(),
            Err(_) => (0..self.files.len()).collect(),
        };
        let mut text = String::new();
        for file in order {
            let _ = writeln!(text, "  {}", self.files[file].display());
            for ((_, to), items) in self.edges.iter().filter(|((from, _), _)| *from == file) {
                let items: Vec<&str> = items.iter().map(String::as_str).collect();
                let _ = writeln!(text, "    → {}: {}", self.files[*to].display(), items.join(", "));
            }
        }
        text
    }
}

impl Crate {
    /// Follows a path from inside a module; `None` if it leads out of the crate or is a local name.
    fn resolve(&self, from: usize, path: &[String], visited: &mut Visited) -> Option<Target> {
        let (first, mut rest) = path.split_first()?;
        let mut at = match first.as_str() {
            "crate" => Target::Module(0),
            "self" => Target::Module(from),
            "super" => {
                let mut module = self.modules[from].parent?;
                while rest.first().is_some_and(|step| step == "super") {
                    module = self.modules[module].parent?;
                    rest = &rest[1..];
                }
                Target::Module(module)
            }
            name => self.look_up(from, name, !rest.is_empty(), visited)?,
        };
        for (index, step) in rest.iter().enumerate() {
            match at {
                // A variant or an associated item: the import is of its type.
                Target::Item { .. } => break,
                Target::Module(module) => at = self.look_up(module, step, index + 1 < rest.len(), visited)?,
            }
        }
        Some(at)
    }

    /// The meaning of a name inside a module. `module_first` is set where more of a path follows.
    fn look_up(&self, at: usize, name: &str, module_first: bool, visited: &mut Visited) -> Option<Target> {
        let module = &self.modules[at];
        let item = || module.items.contains(name).then(|| Target::Item { module: at, name: name.to_owned() });
        let child = || module.children.get(name).map(|child| Target::Module(*child));
        let own = if module_first { child().or_else(item) } else { item().or_else(child) };
        if own.is_some() {
            return own;
        }
        if !visited.insert((at, name.to_owned())) {
            return None;
        }
        let imported = module.code.uses.iter().filter(|import| import.local.as_deref() == Some(name));
        let by_name = imported.filter_map(|import| self.resolve(at, &import.path, visited)).next();
        by_name.or_else(|| {
            let globs = module.code.uses.iter().filter(|import| import.local.is_none());
            globs
                .filter_map(|glob| match self.resolve(at, &glob.path, visited)? {
                    Target::Module(module) if module != at => self.look_up(module, name, module_first, visited),
                    _ => None,
                })
                .next()
        })
    }
}

/// The imports of the crate with this root file.
pub fn imports_of(root: &Path) -> anyhow::Result<Imports> {
    Ok(Imports::of(&Crate::read(root)?))
}
