//! `cat` and `ls` of a mount's store: files of the tree by their names, as of the last commit.

mod common;

use common::can_mount;
use common::store_mount::Mounted;
use std::fs::{self, File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use tempfile::TempDir;

fn run(dir: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_untorn-mount")).args(arguments).current_dir(dir).output().unwrap()
}

fn done(dir: &Path, arguments: &[&str]) -> Vec<u8> {
    let output = run(dir, arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

fn text(dir: &Path, arguments: &[&str]) -> String {
    String::from_utf8(done(dir, arguments)).unwrap()
}

fn refused(dir: &Path, arguments: &[&str], why: &str) {
    let output = run(dir, arguments);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{arguments:?}: {said}");
    assert!(said.contains(why) && output.stdout.is_empty(), "{arguments:?}: {said}");
}

/// Runs the program until it has printed some megabytes, because a damaged size may be that of a hole without an end.
fn begin_of(dir: &Path, arguments: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_untorn-mount"));
    command.args(arguments).current_dir(dir).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let printed = child.stdout.take().unwrap();
    std::io::copy(&mut printed.take(8 << 20), &mut std::io::sink()).unwrap();
    let output = child.wait_with_output().unwrap();
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

fn large() -> Vec<u8> {
    (0..3_000_000u32).map(|n| (n / 7) as u8).collect()
}

/// A closed store, made of a plain tree.
fn closed() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join("tree").join(name);
    fs::create_dir_all(at("d/below")).unwrap();
    fs::write(at("small"), "a small file\n").unwrap();
    fs::write(at("empty"), "").unwrap();
    fs::write(at("d/large"), large()).unwrap();
    // Names of the store's own files.
    fs::write(at("table"), "not the store's table\n").unwrap();
    let sparse = File::create(at("sparse")).unwrap();
    sparse.write_all_at(b"in the middle", 2 << 20).unwrap();
    sparse.set_len(5 << 20).unwrap();
    symlink("../small", at("d/link")).unwrap();
    symlink("d", at("link to d")).unwrap();
    symlink("/etc/passwd", at("out")).unwrap();
    symlink("circle", at("circle")).unwrap();
    for (name, mode) in [("small", 0o640), ("d/large", 0o444), ("d", 0o750), ("d/below", 0o755)] {
        fs::set_permissions(at(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    done(dir.path(), &["import", "tree", "store"]);
    dir
}

#[test]
fn files_of_a_closed_store_are_shown_by_their_names() {
    let dir = closed();
    let (run, text) =
        (|arguments: &[&str]| done(dir.path(), arguments), |arguments: &[&str]| text(dir.path(), arguments));
    assert_eq!(text(&["cat", "store/small", "store/empty", "store/table"]), "a small file\nnot the store's table\n");
    assert!(run(&["cat", "store/d/large"]) == large());
    assert!(run(&["cat", "store/sparse"]) == fs::read(dir.path().join("tree/sparse")).unwrap());
    assert_eq!(text(&["cat", "store/d/link", "store/d/../small", "store/link to d/link"]), "a small file\n".repeat(3));
    assert_eq!(text(&["ls", "store"]), "circle\nd\nempty\nlink to d\nout\nsmall\nsparse\ntable\n");
    assert_eq!(text(&["ls", "store/d"]), "below\nlarge\nlink\n");
    assert_eq!(text(&["ls", "store/d/large"]), "d/large\n");
    let long = text(&["ls", "-l", "store/d"]);
    let words: Vec<Vec<&str>> = long.lines().map(|line| line.split_whitespace().collect()).collect();
    let link = ["0777", "8", "link", "->", "../small"];
    assert_eq!(words, [&["0755", "0", "below"][..], &["0444", "3000000", "large"], &link]);
    assert!(text(&["ls", "-R", "store"]).contains("\nd\nd/below\nd/large\nd/link\nempty\n"));
    let json: serde_json::Value = serde_json::from_str(&text(&["ls", "--json", "store/small"])).unwrap();
    let entry = serde_json::json!({ "path": "small", "kind": "file", "mode": "0640", "bytes": 13 });
    assert_eq!(json["entries"], serde_json::json!([entry]));
    // Within the store's directory, too.
    let within = dir.path().join("store");
    assert_eq!(String::from_utf8(done(&within, &["cat", "small"])).unwrap(), "a small file\n");
}

#[test]
fn names_that_are_no_files_are_refused() {
    let dir = closed();
    let refused = |arguments: &[&str], why: &str| refused(dir.path(), arguments, why);
    refused(&["cat", "store/small", "store/none"], "store/none: cannot find none: No such file or directory");
    refused(&["ls", "store/none"], "No such file or directory");
    refused(&["cat", "store/small/none"], "Not a directory");
    refused(&["cat", "store/d"], "Is a directory");
    refused(&["cat", "store"], "is a store; name a file in it");
    refused(&["cat", "store/out"], "leads out of the mounted tree");
    refused(&["cat", "store/circle"], "symbolic links");
    refused(&["cat", "tree/small"], "is not in the store of a mount");
    refused(&["cat", "store/../tree/small"], "is not in the store of a mount");
}

#[test]
fn a_damaged_table_is_an_error() {
    let dir = closed();
    let table = dir.path().join("store/table");
    let whole = fs::read(&table).unwrap();
    let write = |bytes: &[u8]| fs::write(&table, bytes).unwrap();
    // The exponent of a slot, the sort of a row, the kind of an inode, the head.
    for at in [64, 65, 64 + 8 + 8, 3] {
        let mut bytes = whole.clone();
        bytes[at] = 0xee;
        write(&bytes);
        for arguments in [&["cat", "store/small"][..], &["ls", "-R", "store"]] {
            refused(dir.path(), arguments, "table");
        }
    }
    // No damage of a byte leads to anything but a result or an error.
    for at in (64..whole.len()).step_by(whole.len() / 40) {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x55;
        write(&bytes);
        for arguments in [&["cat", "store/small", "store/d/large"][..], &["ls", "-lR", "store"]] {
            let (code, said) = begin_of(dir.path(), arguments);
            assert!(matches!(code, Some(0 | 1)) && !said.contains("panicked"), "byte {at}: {said}");
        }
    }
    fs::remove_file(&table).unwrap();
    refused(dir.path(), &["ls", "store"], "table");
}

#[test]
fn the_last_commit_is_shown_beside_a_running_mount() {
    if !can_mount() {
        return;
    }
    let mounted = Mounted::new().unwrap();
    let dir: PathBuf = mounted.at("").parent().unwrap().to_owned();
    let text = |arguments: &[&str]| text(&dir, arguments);
    let file = OpenOptions::new().write(true).create_new(true).open(mounted.at("file")).unwrap();
    file.write_all_at(b"committed\n", 0).unwrap();
    fs::create_dir(mounted.at("d")).unwrap();
    let large_file = File::create(mounted.at("d/large")).unwrap();
    large_file.write_all_at(&large(), 0).unwrap();
    large_file.sync_all().unwrap();
    file.sync_all().unwrap();
    file.write_all_at(b"not ", 0).unwrap();
    assert_eq!(text(&["ls", "store"]), "d\nfile\n");
    assert_eq!(text(&["cat", "store/file"]), "committed\n");
    assert!(done(&dir, &["cat", "store/d/large"]) == large());
    file.write_all_at(b"the next\n", 0).unwrap();
    file.set_len(9).unwrap();
    file.sync_all().unwrap();
    assert_eq!(text(&["cat", "store/file"]), "the next\n");
    assert_eq!(fs::read(mounted.at("file")).unwrap(), b"the next\n");
    drop((file, large_file));
    mounted.unmount();
    assert_eq!(text(&["cat", "store/file"]), "the next\n");
}
