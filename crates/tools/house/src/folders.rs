//! Checks that imports between the folders of a crate form no circle, and run down only.
//!
//! A folder is a module that has files of its own. The parts of a folder are the folders in it, the files in it, and
//! its head (`lib.rs`, `heap.rs` beside `heap/`). A part imports another one if any file of it does.

use crate::imports::Imports;
use crate::modules::Crate;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::PathBuf;

/// The folders with an order: the directory, and its folders from the bottom up. A folder may import those before it.
pub const FLOORS: &[(&str, &[&str])] = &[
    ("crates/core/os/src", &["descriptors", "mapping", "memory", "threads", "storage", "live"]),
    (
        "crates/core/journal/src",
        &[
            "format",
            "statistics",
            "commits",
            "directories",
            "undo",
            "data_files",
            "scanning",
            "slots",
            "readers",
            "journal",
            "recovery",
        ],
    ),
    ("crates/core/untorn/src", &["engine", "reader", "heap", "admin"]),
    (
        "crates/core/untorn/src/engine",
        &[
            "waiting",
            "paths",
            "content",
            "region",
            "files",
            "parts",
            "commit",
            "checkpoint",
            "table",
            "lifecycle",
            "handles",
        ],
    ),
    ("crates/core/untorn/src/heap", &["image", "log", "live", "alloc", "collections", "handle", "sections"]),
    (
        "crates/mount/tree/src",
        &["interface", "small_files", "table", "handover", "tree", "contents", "resume", "operations"],
    ),
    ("crates/mount/fuse/src", &["processes", "plain_trees", "mounts", "fuse", "daemon", "import_export", "session"]),
    (
        "crates/xsync/src",
        &["report", "host", "volumes", "view", "network", "filter", "relays", "session", "changes", "commands"],
    ),
    ("crates/ship/src", &["bucket", "object", "chain", "ship", "restore", "retain", "store", "program"]),
    ("crates/bindings/c/src", &["boundary", "stores", "readers", "heaps", "posix"]),
    ("crates/bindings/c/src/posix", &["state", "files", "calls"]),
    ("crates/bindings/python/src", &["boundary", "stores", "memory", "readers"]),
    (
        "crates/lab/crashlab/src",
        &[
            "simulation",
            "programs",
            "enumeration",
            "device",
            "heaps",
            "names_fuzz",
            "replay",
            "readers",
            "workloads",
            "scenarios",
        ],
    ),
    ("crates/lab/crashlab/src/simulation", &["state", "processes"]),
    (
        "crates/tools/bench/src",
        &[
            "report",
            "measuring",
            "plot",
            "stores",
            "maps",
            "kv",
            "live",
            "preloaded",
            "shipped",
            "sqlite",
            "xsync",
            "mounts",
            "paper",
        ],
    ),
];

/// The parts of each folder, by the folder's module path, and the imports between them.
fn parts(source: &Crate, found: &Imports) -> BTreeMap<Vec<String>, Imports> {
    let paths: Vec<Vec<String>> = (0..found.files.len()).map(|file| path(source, file)).collect();
    let mut folders: BTreeMap<Vec<String>, Imports> = BTreeMap::new();
    for ((from, to), items) in &found.edges {
        let (from, to) = (&paths[*from], &paths[*to]);
        let common = from.iter().zip(to).take_while(|(a, b)| a == b).count();
        let folder = folders.entry(from[..common].to_vec()).or_default();
        let mut part = |path: &[String]| {
            let name = PathBuf::from(path.get(common).map_or(HEAD, String::as_str));
            folder.files.iter().position(|file| *file == name).unwrap_or_else(|| {
                folder.files.push(name);
                folder.files.len() - 1
            })
        };
        let edge = (part(from), part(to));
        folder.edges.entry(edge).or_default().extend(items.iter().cloned());
    }
    folders
}

/// The name of a folder's head, as a part of the folder.
const HEAD: &str = "its head";

/// The module path of a file.
fn path(source: &Crate, file: usize) -> Vec<String> {
    let mut at = source.modules.iter().position(|module| module.file == file).unwrap_or_default();
    let mut path = Vec::new();
    while let Some(parent) = source.modules[at].parent {
        let name = source.modules[parent].children.iter().find(|(_, child)| **child == at);
        path.extend(name.map(|(name, _)| name.clone()));
        at = parent;
    }
    path.reverse();
    path
}

/// The violations: folders that import each other, imports that point up, and folders without a place in an order.
///
/// `dir` is the directory of the crate's root file.
pub fn wrong(source: &Crate, found: &Imports, dir: &str, floors: &[(&str, &[&str])]) -> Vec<String> {
    let mut wrong = Vec::new();
    for (folder, parts) in parts(source, found) {
        let place = place(dir, &folder);
        let circles = parts.circles().into_iter();
        wrong.extend(circles.map(|circle| format!("in {place}: {}", circle.replacen(" files ", " parts ", 1))));
        let Some((_, floors)) = floors.iter().find(|(of, _)| *of == place) else { continue };
        let name = |part: usize| parts.files[part].display().to_string();
        let floor = |part: usize| floors.iter().position(|floor| *floor == name(part));
        for ((from, to), items) in &parts.edges {
            if floor(*from).zip(floor(*to)).is_some_and(|(from, to)| from < to) {
                let items = items.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
                wrong.push(format!("in {place}: {} imports {}, which is above it: {items}", name(*from), name(*to)));
            }
        }
    }
    wrong.extend(without_floor(source, dir, floors));
    wrong
}

/// Folders without a place in the order of their directory.
fn without_floor(source: &Crate, dir: &str, floors: &[(&str, &[&str])]) -> Vec<String> {
    let folders: BTreeSet<Vec<String>> =
        (1..source.files.len()).map(|file| path(source, file)).filter(|path| path.len() > 1).map(parent).collect();
    let missing = folders.iter().filter(|folder| {
        let (name, above) = folder.split_last().expect("not the root");
        let place = place(dir, above);
        floors.iter().any(|(of, floors)| *of == place && !floors.contains(&name.as_str()))
    });
    missing.map(|folder| format!("{} has no floor: say in FLOORS where it stands", place(dir, folder))).collect()
}

fn parent(mut path: Vec<String>) -> Vec<String> {
    path.pop();
    path
}

fn place(dir: &str, folder: &[String]) -> String {
    folder.iter().fold(dir.to_owned(), |place, name| place + "/" + name)
}

/// The imports between the parts of each folder.
pub fn listing(source: &Crate, found: &Imports) -> String {
    let mut text = String::new();
    for (folder, parts) in parts(source, found).into_iter().filter(|(folder, _)| !folder.is_empty()) {
        let _ = write!(text, "  FOLDER {}\n{}", folder.join("/"), parts.listing());
    }
    text
}
