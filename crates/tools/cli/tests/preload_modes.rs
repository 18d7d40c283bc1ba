//! Under `untorn preload`: files that the program names by its flags, and when a file is committed.

mod common;

use common::preload::{compiled, done};
use common::{Run, Tmpfs, untorn};
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use untorn_testkit::preload_library;

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
    let program = compiled(dir.path(), "program", source, &[]);
    let start = |invalidate: &str| -> Run {
        for name in ["opened", "mapped"] {
            fs::remove_file(dir.path().join(name)).ok();
            fs::remove_dir_all(dir.path().join(name).with_extension("untorn")).ok();
        }
        let mut command = Command::new(&program);
        command.current_dir(dir.path()).env("LD_PRELOAD", preload_library()).env_remove("UNTORN_MANAGE");
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

/// `untorn preload` in a directory, with a commit mode. The arguments follow.
fn preload(dir: &Path, mode: &str) -> Command {
    let mut command = untorn();
    command
        .arg("preload")
        .arg("--library")
        .arg(preload_library())
        .args(["--manage", "*.db", mode, "--"])
        .current_dir(dir);
    command.stdin(Stdio::null());
    command
}

/// Makes changes in steps, and ends as a crash does after one of them. The first argument is the number of that step.
const STEPS: &str = r#"
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>
static int ends_after;
static void step(int n) { if (n == ends_after) kill(getpid(), SIGKILL); }
int main(int n, char **a) {
    ends_after = n > 1 ? atoi(a[1]) : 0;
    int fd = open("a.db", O_RDWR | O_CREAT, 0600), reader = open("a.db", O_RDONLY);
    struct iovec two[] = {{"cd", 2}, {"e", 1}};
    if (fd < 0 || reader < 0 || write(fd, "ab", 2) != 2) return 1;
    step(1);
    if (writev(fd, two, 2) != 3 || pwrite(fd, "A", 1, 0) != 1) return 2;
    step(2);
    if (ftruncate(fd, 3)) return 3;
    step(3);
    if (posix_fallocate(fd, 0, 4)) return 4;
    step(4);
    int twice = dup(fd);
    if (close(fd)) return 5;
    step(5);
    if (close(twice)) return 6;
    step(6); /* the last writer has ended, and a reader goes on */
    fd = open("a.db", O_RDWR);
    char *at = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED || close(fd)) return 7;
    at[1] = 'X';
    step(7);
    if (munmap(at, 4096)) return 8;
    step(8); /* of the last map */
    fd = open("a.db", O_RDWR | O_TRUNC);
    step(9);
    return close(fd) || close(reader);
}
"#;

/// The contents after a crash at each step, in each mode.
#[test]
fn modes_commit_as_on_a_mount() {
    let dir = tempfile::tempdir().unwrap();
    let steps = compiled(dir.path(), "steps", STEPS, &[]);
    let modes: [(&str, &[(i32, &str)]); 4] = [
        ("--commit=fsync", &[(6, ""), (8, ""), (9, "")]),
        ("--commit=close", &[(4, ""), (5, ""), (6, "Abc\0"), (7, "Abc\0"), (8, "AXc\0"), (9, "AXc\0")]),
        ("--commit-on-close", &[(5, ""), (6, "Abc\0")]),
        ("--commit=write", &[(1, "ab"), (2, "Abcde"), (3, "Abc"), (4, "Abc\0"), (7, "Abc\0"), (8, "Abc\0"), (9, "")]),
    ];
    for (mode, expected) in modes {
        for (step, expected) in expected {
            fs::remove_file(dir.path().join("a.db")).ok();
            fs::remove_dir_all(dir.path().join("a.db.untorn")).ok();
            let killed = preload(dir.path(), mode).arg(&steps).arg(step.to_string()).output().unwrap();
            assert_eq!(killed.status.code(), None, "{mode} {step}: {}", String::from_utf8_lossy(&killed.stderr));
            let found = done(preload(dir.path(), "--commit=fsync").args(["cat", "a.db"]));
            assert_eq!(found, *expected, "{mode}, step {step}");
        }
        let whole = Run::from(preload(dir.path(), mode).arg(&steps).output().unwrap());
        assert_eq!(whole.code, Some(0), "{mode}: {}", whole.err);
    }
}

/// A write that finds no room changes nothing, so that no later commit takes it along.
#[test]
fn a_write_without_room_is_undone() {
    let Some(small) = Tmpfs::mount("size=2m,mode=1777") else { return };
    let source = r#"
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
static char much[100 << 10];
int main(void) {
    struct stat st;
    int fd = open("a.db", O_RDWR | O_CREAT, 0600), n = 0;
    memset(much, 'x', sizeof much);
    for (; n < 100; n++)
        if (pwrite(fd, much, sizeof much, (off_t)n * (off_t)sizeof much) != (ssize_t)sizeof much) break;
    if (errno != ENOSPC || n < 1) return 1;
    return fstat(fd, &st) || st.st_size != (off_t)n * (off_t)sizeof much ? 2 : 0;
}
"#;
    let dir = tempfile::tempdir().unwrap();
    let program = compiled(dir.path(), "program", source, &[]);
    let run = Run::from(preload(small.dir.path(), "--commit=write").arg(&program).output().unwrap());
    assert_eq!(run.code, Some(0), "{} {}", run.out, run.err);
}

/// Names are durable before the call returns: the directory is synced.
#[test]
fn names_are_durable_with_each_write() {
    if Command::new("strace").arg("-V").output().is_err() {
        return untorn_testkit::skipped("there is no strace here");
    }
    let dir = tempfile::tempdir().unwrap();
    let source = "#include <fcntl.h>\n#include <stdio.h>\n#include <unistd.h>\n\
         int main(void) { int fd = open(\"a.db\", O_RDWR | O_CREAT, 0600); access(\"made\", 0);\n\
         if (fd < 0 || close(fd) || rename(\"a.db\", \"b.db\")) return 1;\n\
         access(\"unlinks\", 0); return unlink(\"b.db\") || access(\"gone\", 0) != -1; }\n";
    let program = compiled(dir.path(), "program", source, &[]);
    let traced = |mode: &str| -> Vec<String> {
        let mut command = Command::new("strace");
        command.args(["-y", "-o", "trace", "-e", "trace=fsync,access,faccessat,faccessat2,unlink,unlinkat"]);
        command.arg("-E").arg(format!("LD_PRELOAD={}", preload_library().display()));
        command.args(["-E", "UNTORN_MANAGE=*.db", "-E", &format!("UNTORN_COMMIT={mode}")]).arg(&program);
        let run = Run::from(command.current_dir(dir.path()).output().unwrap());
        if run.err.contains("ptrace") {
            return Vec::new();
        }
        assert_eq!(run.code, Some(0), "{}", run.err);
        fs::read_to_string(dir.path().join("trace")).unwrap().lines().map(str::to_owned).collect()
    };
    let trace = traced("write");
    if trace.is_empty() {
        return untorn_testkit::skipped("strace may not trace here");
    }
    let synced = format!("<{}>) = 0", dir.path().canonicalize().unwrap().display());
    let is_sync =
        |line: &String| line.starts_with("fsync") && line.replace("  ", "").contains(&synced.replace("  ", ""));
    let at =
        |text: &str| trace.iter().position(|line| line.contains(text)).unwrap_or_else(|| panic!("{text}: {trace:?}"));
    assert!(trace[..at("\"made\"")].iter().any(is_sync), "{trace:#?}");
    assert!(trace[at("b.db\"")..at("\"gone\"")].iter().any(is_sync), "{trace:#?}");
    let without = traced("fsync");
    let end = |text: &str| without.iter().position(|line| line.contains(text)).unwrap();
    assert!(!without[end("\"unlinks\"")..end("\"gone\"")].iter().any(is_sync), "needs no mode: {without:#?}");
}

/// The contents of a file are durable before it gets a managed name, so that no crash shows the name without them.
#[test]
fn contents_are_durable_before_a_managed_name() {
    if Command::new("strace").arg("-V").output().is_err() {
        return untorn_testkit::skipped("there is no strace here");
    }
    // The second time the store knows the file, which had the managed name in between; another file keeps it open.
    let source = "#include <fcntl.h>\n#include <stdio.h>\n#include <string.h>\n#include <unistd.h>\n\
         int main(int n, char **a) { if (n != 2 || open(\"b.db\", O_RDWR | O_CREAT, 0600) < 0) return 4;\n\
         for (int again = 1; again >= 0; again--) {\n\
         int fd = open(\"new\", O_WRONLY | O_CREAT | O_TRUNC, 0600);\n\
         if (fd < 0 || write(fd, again ? \"old\" : \"new\", 3) != 3 || close(fd)) return 1;\n\
         if (strcmp(a[1], \"link\") ? rename(\"new\", \"a.db\") : link(\"new\", \"a.db\")) return 2;\n\
         if (again && (strcmp(a[1], \"link\") ? rename(\"a.db\", \"new\") : unlink(\"a.db\"))) return 3; }\n\
         return 0; }\n";
    let build = tempfile::tempdir().unwrap();
    let program = compiled(build.path(), "program", source, &[]);
    for (how, store) in [("rename", ""), ("rename", "."), ("link", "")] {
        let dir = tempfile::tempdir().unwrap();
        let mut command = Command::new("strace");
        command.args(["-f", "-y", "-o", "trace", "-e", "trace=fsync,rename,renameat,renameat2,link,linkat"]);
        command.arg("-E").arg(format!("LD_PRELOAD={}", preload_library().display()));
        command.args(["-E", "UNTORN_MANAGE=*.db", "-E", &format!("UNTORN_STORE={store}")]).arg(&program).arg(how);
        let run = Run::from(command.current_dir(dir.path()).output().unwrap());
        if run.err.contains("ptrace") {
            return untorn_testkit::skipped("strace may not trace here");
        }
        assert_eq!(run.code, Some(0), "{how}: {}", run.err);
        assert_eq!(fs::read(dir.path().join("a.db")).unwrap(), b"new");
        let trace = fs::read_to_string(dir.path().join("trace")).unwrap();
        let names = |line: &str| line.contains(how) && line.contains("\"new\"") && line.contains("\"a.db\"");
        let syncs = |line: &str| line.contains("fsync(") && line.contains("/new>");
        let steps: Vec<bool> = trace.lines().filter(|line| names(line) || syncs(line)).map(syncs).collect();
        // The last step is the managed name, and the one before it the flush.
        assert_eq!(steps.last_chunk(), Some(&[true, false]), "{how} {store:?}: {trace}");
        assert_eq!(steps.first(), Some(&true), "{how} {store:?}: {trace}");
    }
}

#[test]
fn other_modes_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let refused = Run::from(preload(dir.path(), "--commit=store").arg("true").output().unwrap());
    assert!(refused.code == Some(2) && refused.err.contains("fsync, close, write"), "{}", refused.err);
    let steps = compiled(dir.path(), "steps", STEPS, &[]);
    let mut command = Command::new(steps);
    command.env("LD_PRELOAD", preload_library()).env("UNTORN_MANAGE", "*.db").env("UNTORN_COMMIT", "often");
    let run = Run::from(command.current_dir(dir.path()).output().unwrap());
    assert!(run.code == Some(0) && run.err.contains("UNTORN_COMMIT=often"), "{}", run.err);
}

/// A file of a closed store is opened for reading without a look at the other files.
#[test]
fn a_read_looks_at_one_file() {
    if Command::new("strace").arg("-V").output().is_err() {
        return untorn_testkit::skipped("there is no strace here");
    }
    let dir = tempfile::tempdir().unwrap();
    let script = "import os\nfor i in range(50):\n    f = os.open(f'{i}.db', os.O_RDWR | os.O_CREAT, 0o600)\n\
         \x20   os.write(f, b'%d' % i)\n    os.fsync(f)\n    os.close(f)\n\
         os.access('read', 0)\n\
         for i in range(50):\n    f = os.open(f'{i}.db', os.O_RDONLY)\n    assert os.read(f, 9) == b'%d' % i\n";
    let mut command = Command::new("strace");
    command.args(["-f", "-o", "trace", "-e", "trace=fgetxattr,access,faccessat,faccessat2"]);
    command.arg("-E").arg(format!("LD_PRELOAD={}", preload_library().display()));
    command.args(["-E", "UNTORN_MANAGE=*.db", "-E", "UNTORN_STORE=."]).args(["python3", "-c", script]);
    let run = Run::from(command.current_dir(dir.path()).output().unwrap());
    if run.err.contains("ptrace") {
        return untorn_testkit::skipped("strace may not trace here");
    }
    assert_eq!(run.code, Some(0), "{}", run.err);
    let trace = fs::read_to_string(dir.path().join("trace")).unwrap();
    let read = trace.lines().skip_while(|line| !line.contains("\"read\""));
    let looks = read.filter(|line| line.contains("user.untorn")).count();
    assert!(looks <= 100, "{looks} looks at the attributes of 50 files");
}
