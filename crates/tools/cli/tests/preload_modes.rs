//! Under `untorn preload`: files that the program names by its flags, and when a file is committed.

mod common;

use common::Run;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

/// The library, linked anew from the `libuntorn.a` of this build.
fn library() -> &'static Path {
    static LINKED: OnceLock<PathBuf> = OnceLock::new();
    LINKED.get_or_init(|| {
        let test = std::env::current_exe().expect("this test's own path");
        let dir = test.ancestors().nth(2).expect("target/PROFILE/deps/TEST").to_owned();
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
        // `make test` has built everything.
        if std::env::var_os("UNTORN_PREBUILT").is_none() {
            let profile = if cfg!(debug_assertions) { "test" } else { "release" };
            let mut cargo = Command::new(env!("CARGO"));
            cargo.args(["build", "--quiet", "--package", "untorn-capi", "--profile", profile, "--target-dir"]);
            done(cargo.arg(dir.parent().expect("target/PROFILE")).current_dir(&root));
        }
        let linked = dir.join("libuntorn-preload.so");
        done(Command::new(root.join("crates/bindings/preload/link.sh")).arg(dir.join("libuntorn.a")).arg(&linked));
        linked
    })
}

/// The standard output of a program that must succeed.
#[track_caller]
fn done(command: &mut Command) -> String {
    Run::from(command.stdin(Stdio::null()).output().unwrap_or_else(|e| panic!("{command:?}: {e}"))).ok()
}

/// A compiled C program.
fn compiled(dir: &Path, name: &str, source: &str) -> PathBuf {
    let (file, to) = (dir.join(format!("{name}.c")), dir.join(name));
    fs::write(&file, source).unwrap();
    done(Command::new("cc").args(["-O2", "-Wall", "-Werror", "-D_GNU_SOURCE", "-o"]).arg(&to).arg(&file));
    to
}

/// The papers' programs change one line, and are compiled without a header of Untorn's.
#[test]
fn flags_name_files() {
    let dir = tempfile::tempdir().unwrap();
    let source = r#"
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#define O_ATOMIC 01000000000
#define MAP_ATOMIC 0x2000000
int main(void) {
    int flags = O_RDWR | O_CREAT | O_ATOMIC, fd = open("opened", flags, 0600);
    if (fd < 0 || write(fd, "one", 3) != 3 || fsync(fd) || write(fd, "two", 3) != 3 || close(fd)) return 1;
    fd = open("mapped", O_RDWR | O_CREAT, 0600);
    if (fd < 0 || ftruncate(fd, 4096)) return 2;
    char *at = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED_VALIDATE | MAP_ATOMIC, fd, 0);
    if (at == MAP_FAILED) return 3;
    strcpy(at, "one");
    if (msync(at, 4096, MS_SYNC)) return 4;
    strcpy(at, "two");
    if (msync(at, 4096, MS_INVALIDATE)) return 5;
    puts(at);
    return munmap(at, 4096) || close(fd);
}
"#;
    let program = compiled(dir.path(), "program", source);
    let start = |invalidate: &str| -> Run {
        for name in ["opened", "mapped"] {
            fs::remove_file(dir.path().join(name)).ok();
            fs::remove_dir_all(dir.path().join(name).with_extension("untorn")).ok();
        }
        let mut command = Command::new(&program);
        command.current_dir(dir.path()).env("LD_PRELOAD", library()).env_remove("UNTORN_MANAGE");
        command.env("UNTORN_INVALIDATE", invalidate).output().unwrap().into()
    };
    for (invalidate, expected, discarded) in [("rollback", "one\n", 1), ("", "two\n", 2), ("yes", "two\n", 2)] {
        let run = start(invalidate);
        assert_eq!((run.code, run.out.as_str()), (Some(0), expected), "{invalidate:?}: {}", run.err);
        assert_eq!(run.err.matches("are discarded").count(), discarded, "{invalidate:?}: {}", run.err);
        assert_eq!(run.err.contains("UNTORN_INVALIDATE=yes"), invalidate == "yes", "{}", run.err);
        assert_eq!(fs::read(dir.path().join("opened")).unwrap(), b"one");
        assert_eq!(fs::read(dir.path().join("mapped")).unwrap()[..4], *b"one\0");
    }
    // The kernel ignores the one flag, and refuses the other.
    let plain = Run::from(Command::new(&program).current_dir(dir.path()).output().unwrap());
    assert_eq!((plain.code, fs::read(dir.path().join("opened")).unwrap()), (Some(3), b"onetwo".to_vec()));
}
