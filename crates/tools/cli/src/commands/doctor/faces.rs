//! The faces of Untorn: which of them work at a place, and a command to try each.

use super::finding::Finding;
use crate::commands::preload;
use crate::siblings;
use rustix::fs::{Access, access};
use serde::Serialize;
use std::path::Path;

/// One way to use Untorn at a place.
#[derive(Debug, Serialize)]
pub struct Face {
    pub name: &'static str,
    /// Why it cannot be used here. `None`: it can.
    pub why_not: Option<String>,
    /// A command of a shell that shows it, run in the new directory of [`Faces::directory`].
    pub try_it: String,
}

/// All faces, in the order in which their commands work.
#[derive(Debug, Serialize)]
pub struct Faces {
    /// The directory in which the commands are run, as a word of a shell.
    #[serde(rename = "try_directory")]
    pub directory: String,
    pub faces: Vec<Face>,
}

/// A word of a shell.
fn word(text: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "/._-+:=@,".contains(c);
    if text.chars().all(is_plain) { text.to_owned() } else { format!("'{}'", text.replace('\'', r"'\''")) }
}

/// Why no store can be used, or none of these findings says so.
fn ruled_out(findings: &[Finding]) -> Option<String> {
    findings.iter().find(|f| f.rules_out).map(|f| format!("no store can be used here ({})", f.topic))
}

fn is_no(findings: &[Finding], topic: &str) -> bool {
    findings.iter().any(|f| f.topic == topic && f.found == "no")
}

fn program(name: &str) -> Option<String> {
    siblings::find(name).is_none().then(|| format!("the program {name} is not installed"))
}

fn missing(library: &str, found: Option<&Path>) -> Option<String> {
    found.is_none().then(|| format!("{library} is not installed"))
}

fn fuse(findings: &[Finding]) -> Option<String> {
    if is_no(findings, "untorn mount") {
        return Some("this kernel is too old".into());
    }
    access("/dev/fuse", Access::READ_OK | Access::WRITE_OK).err().map(|e| format!("/dev/fuse: {e}"))
}

fn live_memory() -> Option<String> {
    let dir = std::env::var_os("UNTORN_LIVE_DIR").filter(|dir| !dir.is_empty()).unwrap_or_else(|| "/dev/shm".into());
    access(Path::new(&dir), Access::WRITE_OK).err().map(|e| format!("{}: {e}", Path::new(&dir).display()))
}

/// The faces at a directory with these findings.
pub fn all(dir: &Path, findings: &[Finding]) -> Faces {
    let whole = std::path::absolute(dir).unwrap_or_else(|_| dir.to_owned()).join("untorn-try");
    let here = word(&whole.to_string_lossy());
    let example = |name: &str| format!("cargo run -p untorn --example {name} -- {here}/{name}   # in Untorn's source");
    let no_store = ruled_out(findings);
    let mapped = no_store.clone().or_else(|| is_no(findings, "mappings").then(|| "files cannot be mapped here".into()));
    let live = mapped.clone().or_else(live_memory);
    let library = preload::installed("libuntorn-preload.so");
    let preload = no_store.clone().or_else(|| missing("libuntorn-preload.so", library.as_deref()));
    let extension = preload::installed("libuntorn_sqlite.so");
    let sqlite = no_store.clone().or_else(|| missing("libuntorn_sqlite.so", extension.as_deref()));
    let load = extension.as_deref().map(|library| format!(".load {}", library.with_extension("").display()));
    let load = word(&load.unwrap_or_default());
    let run = no_store.clone().or_else(|| program("untorn-mount")).or_else(|| fuse(findings));
    let faces = [
        // Even where no store can be.
        ("put", access(dir, Access::WRITE_OK).err().map(|e| e.to_string()), "date | untorn put now".into()),
        (
            "stores, files, syncv",
            no_store.clone(),
            "mkdir store && untorn put --store store --set a now --set b now".into(),
        ),
        ("readers", no_store.clone(), "untorn cat store/a store/b".into()),
        ("mappings", mapped.clone(), example("map")),
        ("heaps", mapped, format!("echo ann 5 | {}", example("scores"))),
        ("live heaps", live, example("live")),
        ("output gate", no_store.clone(), example("gate")),
        ("preload", preload, "untorn preload --manage '*.txt' --commit=close -- cp now copy.txt".into()),
        (
            "SQLite",
            sqlite.or_else(|| program("sqlite3")),
            format!("sqlite3 :memory: {load} '.open file:app.db?vfs=untorn' 'CREATE TABLE t(a)'"),
        ),
        (
            "mount",
            run.clone().or_else(|| program("fusermount3")),
            "mkdir tree mounted && untorn mount tree mounted && cp now mounted && untorn umount mounted".into(),
        ),
        ("run", run, "mkdir plain && untorn run --on plain -- cp now plain".into()),
        (
            "ship",
            no_store.or_else(|| program("untorn-ship")),
            "mkdir place && untorn ship --once store \"file://$PWD/place\"".into(),
        ),
    ];
    let faces = faces.map(|(name, why_not, try_it)| Face { name, why_not, try_it }).into();
    Faces { directory: here, faces }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_a_shell_are_quoted() {
        assert_eq!(word("/srv/data"), "/srv/data");
        assert_eq!(word("/srv/my data"), "'/srv/my data'");
        assert_eq!(word("it's"), r"'it'\''s'");
    }

    #[test]
    fn a_place_without_stores_has_put() {
        let dir = tempfile::tempdir().unwrap();
        let faces = all(dir.path(), &[Finding::new("attributes", "no").rules_out("none")]);
        let works: Vec<_> = faces.faces.iter().filter(|face| face.why_not.is_none()).map(|face| face.name).collect();
        assert_eq!(works, ["put"]);
    }
}
