//! Durable direct writes, asynchronous ones included: the kernel's requests for them, and reads after them.

mod common;

use common::memory_tree::Asked;
use common::{Mount, new_file, one_at_a_time, places};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use tempfile::TempDir;
use untorn_tree::CommitMode;

const LEN: usize = 4 << 20;
/// Exit code of the program where the system lacks the call.
const NOT_HERE: i32 = 77;

fn compiled() -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("direct_sync");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c/direct_sync.c");
    let mut cc = Command::new("cc");
    cc.args(["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-D_GNU_SOURCE"]).arg(source).arg("-o").arg(&program);
    assert!(cc.status().unwrap().success());
    (dir, program)
}

/// Starts the program, and returns it when its write was acknowledged; it then waits. `None` if the system has no such
/// call.
fn acknowledged(program: &Path, how: &str, file: &Path) -> Option<Child> {
    let mut command = Command::new(program);
    let mut child = command.arg(how).arg(file).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    if line.is_empty() && child.wait().unwrap().code() == Some(NOT_HERE) {
        eprintln!("skipped: {how}");
        return None;
    }
    assert_eq!(line, "acknowledged\n", "{how}");
    Some(child)
}

fn end(mut child: Child) {
    child.stdin.take().unwrap().write_all(b"end\n").unwrap();
    assert!(child.wait().unwrap().success());
}

#[test]
fn one_that_is_to_be_durable_is_followed_by_a_sync_before_it_is_acknowledged() {
    let _turn = one_at_a_time();
    let (_dir, program) = compiled();
    for mode in [CommitMode::Sync, CommitMode::Close, CommitMode::Store] {
        let Some(mount) = Mount::with(mode) else { return };
        for by in ["write", "aio", "uring"] {
            for flag in ["o_dsync", "o_sync", "rwf_dsync", "rwf_sync"] {
                let how = format!("{by}-{flag}");
                drop(new_file(&mount, &how));
                // A write beyond the end takes another path in the kernel than one within the file.
                for _ in 0..2 {
                    mount.tree.asked();
                    let Some(child) = acknowledged(&program, &how, &mount.at(&how)) else { continue };
                    let asked = mount.tree.asked();
                    let (sync, last_write) = places(&asked, |asked| matches!(asked, Asked::Sync(_)));
                    assert!(last_write.unwrap() < sync, "{mode:?} {how}: {asked:?}");
                    end(child);
                }
            }
        }
    }
}

#[test]
fn what_is_cached_is_not_read_after_an_asynchronous_one() {
    let _turn = one_at_a_time();
    let (_dir, program) = compiled();
    let Some(mount) = Mount::new() else { return };
    for by in ["write", "aio", "uring"] {
        let file = new_file(&mount, by);
        file.write_all_at(&vec![b'o'; LEN], 0).unwrap();
        let mut read = vec![0; LEN];
        file.read_exact_at(&mut read, 0).unwrap();
        let Some(child) = acknowledged(&program, by, &mount.at(by)) else { continue };
        std::fs::File::open(mount.at(by)).unwrap().read_exact(&mut read).unwrap();
        assert!(read.iter().all(|byte| *byte == b'N'), "{by}");
        end(child);
    }
}

/// On ext4 and XFS such a call is durable, too; the kernel itself does not request a sync.
#[test]
fn fallocate_of_a_descriptor_that_is_to_be_durable_is() {
    use rustix::fs::{FallocateFlags, Mode, OFlags, fallocate};
    let _turn = one_at_a_time();
    for (mode, flag) in [(CommitMode::Sync, OFlags::DSYNC), (CommitMode::Store, OFlags::SYNC)] {
        let Some(mount) = Mount::with(mode) else { return };
        drop(new_file(&mount, "f"));
        let file = rustix::fs::open(mount.at("f"), OFlags::RDWR | flag, Mode::empty()).unwrap();
        let plain = rustix::fs::open(mount.at("f"), OFlags::RDWR, Mode::empty()).unwrap();
        mount.tree.asked();
        for how in [FallocateFlags::empty(), FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE] {
            fallocate(&file, how, 0, 8192).unwrap();
            assert!(matches!(mount.tree.asked()[..], [.., Asked::Allocate(_), Asked::Sync(_)]), "{how:?}");
            fallocate(&plain, how, 0, 8192).unwrap();
            assert!(matches!(mount.tree.asked()[..], [.., Asked::Allocate(_)]), "{how:?}");
        }
    }
}

#[test]
fn the_same_with_the_steps_for_an_older_kernel() {
    common::again_as_on_an_older_kernel("6.8");
}
