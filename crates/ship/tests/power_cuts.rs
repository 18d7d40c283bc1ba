//! Power cuts of a recording disk under restores and promotions (untorn-crashtest): a directory that has its name is
//! whole, and a promotion can be repeated until the promoted store ships.

mod common;

use common::{run, text, url};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use untorn::Store;
use untorn_testkit::{extent, is_root, seed, skipped};

/// Without /dev/fuse or loop devices.
const COULD_NOT_BE_DONE: i32 = 2;

/// A bucket with a few commits, and their last state as plain files.
fn bucket(dir: &Path) -> (PathBuf, PathBuf) {
    let (store, place, plain) = (dir.join("store"), dir.join("bucket"), dir.join("plain"));
    for n in 0..3u8 {
        let open = Store::open_or_create(&store).unwrap();
        let mut txn = open.begin();
        let file = txn.create(format!("file-{n}"), 0o640).unwrap();
        file.write_all_at(&[n; 5000], 0).unwrap();
        txn.commit().unwrap();
        open.close().unwrap();
        run(&["ship", text(&store), &url(&place), "--once"]);
    }
    run(&["restore", &url(&place), text(&plain), "--plain"]);
    (place, plain)
}

/// Runs a script on a recording disk, whose directory is `$1`, and the other one on each state after a power cut.
fn cut(dir: &Path, script: &str, check: &str) {
    let crashtest = Path::new(env!("CARGO_BIN_EXE_untorn-ship")).with_file_name("untorn-crashtest");
    if !is_root() {
        return skipped("file systems are mounted: needs root");
    }
    if !crashtest.exists() {
        return skipped("untorn-crashtest is not built");
    }
    let program = Path::new(env!("CARGO_BIN_EXE_untorn-ship")).display();
    for (name, text) in [("run.sh", script), ("check.sh", check)] {
        let text = format!("set -e\nuntorn_ship={program}\nset -- \"$1\" '{}'\n{text}", dir.display());
        fs::write(dir.join(name), text).unwrap();
    }
    for file_system in ["ext4", "xfs", "btrfs"].iter().take(extent(1, 3)) {
        let mut command = Command::new(&crashtest);
        command.args(["--fs", file_system, "--states", &extent(30, 600).to_string(), "--seed", &seed().to_string()]);
        command.args(["--check", &format!("sh {} {{}}", dir.join("check.sh").display()), "--", "sh"]);
        let done = command.arg(dir.join("run.sh")).arg("{}").output().unwrap();
        let said = format!("{}{}", String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
        if done.status.code() == Some(COULD_NOT_BE_DONE) {
            return skipped(&said);
        }
        assert!(done.status.success() && said.contains("no violation"), "{said}");
        println!("{}", said.lines().filter(|line| line.contains(file_system)).collect::<Vec<_>>().join("\n"));
    }
}

#[test]
fn a_restored_directory_is_whole_or_not_there() {
    let dir = tempfile::tempdir().unwrap();
    bucket(dir.path());
    let script = r#"
        $untorn_ship restore "file://$2/bucket" "$1/restored" >/dev/null
        echo restored
    "#;
    let check = r#"
        if [ -s "$UNTORN_ACKED" ] || [ -e "$1/restored" ]; then
            diff -r --exclude=.untorn "$2/plain" "$1/restored"
            test -e "$1/restored/.untorn/journal/header"
        fi
    "#;
    cut(dir.path(), script, check);
}

#[test]
fn a_promotion_is_finished_after_each_power_cut() {
    let dir = tempfile::tempdir().unwrap();
    bucket(dir.path());
    let script = r#"
        $untorn_ship follow "file://$2/bucket" "$1/replica" --once >/dev/null
        $untorn_ship follow "file://$2/bucket" "$1/replica" --promote >/dev/null
        echo promoted
    "#;
    // Each state has a bucket of its own: the promoted store ships there.
    let check = r#"
        own=$(mktemp -d)
        trap 'rm -rf "$own"' EXIT
        cp -r "$2/bucket" "$own"
        # A promotion that was told of is known by the store alone.
        if [ -s "$UNTORN_ACKED" ]; then
            test -e "$1/replica/.untorn/slots/ship/owner"
            test ! -e "$1/replica/.untorn-replica"
        else
            $untorn_ship follow "file://$own/bucket" "$1/replica" --promote >/dev/null
        fi
        $untorn_ship ship "$1/replica" "file://$own/bucket" --once >/dev/null
        diff -r --exclude=.untorn "$2/plain" "$1/replica"
    "#;
    cut(dir.path(), script, check);
}
