//! `untorn preload`: unchanged programs whose files change all or nothing.

mod common;

use common::preload::{compiled, done, is_here, preload};
use common::{Run, untorn};
use std::fs;
use std::path::Path;
use std::process::Command;
use untorn_testkit::{is_root, preload_library, skipped};

#[track_caller]
fn run(dir: &Path, options: &[&str], script: &str) -> Run {
    preload(dir, "*.db").args(options).args(["--", "bash", "-c", script]).output().unwrap().into()
}

/// Each of the library's own calls goes to a function of its own, which jumps to the C library.
#[test]
fn the_library_needs_none_of_the_names_that_it_has() {
    let names = |kind: &str| -> Vec<String> {
        let listed = done(Command::new("nm").args(["-D", kind]).arg(preload_library()));
        let names = listed.lines().filter_map(|line| line.split_whitespace().last());
        names.map(|name| name.split('@').next().expect("a part").to_owned()).collect()
    };
    let (own, needed) = (names("--defined-only"), names("--undefined-only"));
    for expected in ["open", "open64", "fsync", "mmap", "rename", "__open_2", "__read_chk", "__xstat"] {
        assert!(own.iter().any(|name| name == expected), "{expected} is not there: {own:?}");
    }
    let both: Vec<_> = needed.iter().filter(|name| own.contains(name)).collect();
    assert!(both.is_empty(), "it calls itself by {both:?}");
    assert!(needed.len() > 50, "{needed:?}");
}

/// Another library that is preloaded sees the program's calls if it comes first, and never the library's own.
#[test]
fn other_preloaded_libraries_do_not_come_between() {
    let dir = tempfile::tempdir().unwrap();
    let source = "#include <unistd.h>\n#include <stdio.h>\n\
         static int refuse(const char *what) { fprintf(stderr, \"OTHER %s\\n\", what); return 0; }\n\
         int fsync(int fd) { (void)fd; return refuse(\"fsync\"); }\n\
         int fdatasync(int fd) { (void)fd; return refuse(\"fdatasync\"); }\n\
         long pwrite64(int fd, const void *b, unsigned long n, long at) { (void)fd; (void)b; (void)at; refuse(\"pwrite\"); return n; }\n";
    let other = compiled(dir.path(), "other.so", source, &["-shared", "-fPIC"]);
    let program = "#include <fcntl.h>\n#include <unistd.h>\n\
         int main(int n, char **a) { int f = open(a[1], O_RDWR | O_CREAT, 0600); (void)n;\n\
         return f < 0 || write(f, \"committed\", 9) != 9 || fdatasync(f) || close(f); }\n";
    let program = compiled(dir.path(), "program", program, &[]);
    for ours_is_first in [true, false] {
        let _ = fs::remove_file(dir.path().join("a.db"));
        let mut libraries = [preload_library().display().to_string(), other.display().to_string()];
        if !ours_is_first {
            libraries.reverse();
        }
        let start = |name: &str| -> Run {
            let mut command = Command::new(&program);
            command.arg(dir.path().join(name)).env("LD_PRELOAD", libraries.join(":")).env("UNTORN_MANAGE", "*.db");
            command.output().unwrap().into()
        };
        let managed = start("a.db");
        assert_eq!(managed.code, Some(0), "{}", managed.err);
        let other_saw: Vec<_> = managed.err.lines().filter(|line| line.starts_with("OTHER")).collect();
        if ours_is_first {
            assert!(other_saw.is_empty(), "{}", managed.err);
            assert_eq!(fs::read(dir.path().join("a.db")).unwrap(), b"committed");
            assert_eq!(start("plain").err, "", "a file that is not managed");
        } else {
            // The program's own call ends at the other library, as the user asked for.
            assert_eq!(other_saw, ["OTHER fdatasync"], "{}", managed.err);
            assert_eq!(start("plain").err, "OTHER fdatasync\n", "a file that is not managed");
        }
    }
}

/// Functions under the names that distributions compile programs with.
#[test]
fn programs_with_checked_and_old_calls_see_their_changes() {
    let dir = tempfile::tempdir().unwrap();
    let source = "#include <fcntl.h>\n#include <stdio.h>\n#include <stdlib.h>\n#include <sys/stat.h>\n#include <unistd.h>\n\
         int __xstat(int, const char *, struct stat *);\n\
         int main(int n, char **a) {\n\
         volatile int flags = O_RDWR; int f; struct stat s; char b[16]; volatile unsigned long want = 16;\n\
         close(open(a[1], O_RDWR | O_CREAT, 0600)); (void)n;\n\
         f = open(a[1], flags);\n\
         if (f < 0 || write(f, \"uncommitted\", 11) != 11 || lseek(f, 0, SEEK_SET)) return 1;\n\
         if (read(f, b, want) != 11 || b[0] != 'u' || pread(f, b, want, 2) != 9 || b[0] != 'c') return 2;\n\
         if (__xstat(1, a[1], &s) || s.st_size != 11) return 3;\n\
         return 0; }\n";
    let program = compiled(dir.path(), "program", source, &["-U_FORTIFY_SOURCE", "-D_FORTIFY_SOURCE=2"]);
    let needed = done(Command::new("nm").args(["-D", "--undefined-only"]).arg(&program));
    for name in ["__open_2", "__read_chk", "__pread_chk", "__xstat"] {
        assert!(needed.contains(name), "the compiler makes no call of {name}: {needed}");
    }
    let run = Run::from(preload(dir.path(), "*.db").arg("--").arg(&program).arg("a.db").output().unwrap());
    assert_eq!(run.code, Some(0), "{}", run.err);
    assert!(run.err.contains("a.db") && run.err.contains("discard"), "nothing was synced: {}", run.err);
    assert_eq!(fs::read(dir.path().join("a.db")).unwrap(), b"");
}

/// Writes by descriptor.
const WRITES: &str =
    "import os, sys\nf = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)\nos.write(f, sys.argv[2].encode())\n";

#[track_caller]
fn python(dir: &Path, options: &[&str], script: &str, arguments: &[&str]) -> Run {
    let mut command = preload(dir, "*.db");
    command.args(options).args(["--", "python3", "-c", script]).args(arguments).output().unwrap().into()
}

#[test]
fn files_that_are_closed_without_a_sync_are_discarded_or_committed() {
    if !is_here("python3") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let close = format!("{WRITES}os.close(f)");
    let discarded = python(dir.path(), &[], &close, &["a.db", "one"]);
    assert!(discarded.err.contains("a.db") && discarded.err.contains("discarded"), "{}", discarded.err);
    assert_eq!(fs::read(dir.path().join("a.db")).unwrap(), b"");
    python(dir.path(), &[], &close, &["plain", "two"]).ok();
    assert_eq!(fs::read(dir.path().join("plain")).unwrap(), b"two");
    python(dir.path(), &["--commit-on-close"], &close, &["a.db", "three"]).ok();
    assert_eq!(fs::read(dir.path().join("a.db")).unwrap(), b"three");
    // Editors replace the file; programs that a program starts inherit the library.
    let script = "sed -i s/three/four/ a.db; bash -c 'cat a.db'";
    assert_eq!(run(dir.path(), &["--commit-on-close"], script).ok(), "four");
    assert_eq!(fs::read(dir.path().join("a.db")).unwrap(), b"four");
}

/// One program at a time writes a file; the others are told who does.
#[test]
fn a_second_program_is_told_that_the_file_is_in_use() {
    if !is_here("python3") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let script = format!(
        "{WRITES}os.fsync(f)\nimport subprocess\nif len(sys.argv) < 4:\n print(subprocess.run([sys.executable, '-c', \
         {WRITES:?}, 'a.db', 'two']).returncode)"
    );
    let run = python(dir.path(), &[], &script, &["a.db", "one"]);
    assert_eq!(run.out, "1\n", "{}", run.err);
    assert!(run.err.contains("a.db") && run.err.contains("Device or resource busy"), "{}", run.err);
    assert_eq!(fs::read(dir.path().join("a.db")).unwrap(), b"one");
}

/// A program waits, if it may, and reads the newest commit meanwhile.
#[test]
fn a_second_program_waits_and_reads() {
    if !is_here("python3") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let script = format!(
        "{WRITES}os.fsync(f)\nimport subprocess, time\n\
         reader = \"import os; f = os.open('a.db', 0); print(os.read(f, 9).decode(), flush=True); input(); \" \\\n         \"os.lseek(f, 0, 0); print(os.read(f, 9).decode())\"\n\
         reader = subprocess.Popen([sys.executable, '-c', reader], stdin=-1, stdout=-1, text=True)\n\
         print(reader.stdout.readline(), end='')\n\
         os.pwrite(f, b'two', 0); os.fsync(f)\n\
         print(reader.communicate('\\n')[0], end='', flush=True)\n\
         second = subprocess.Popen([sys.executable, '-c', {WRITES:?} + 'os.fsync(f)', 'a.db', 'three'])\n\
         time.sleep(0.5); assert second.poll() is None\n\
         os.close(f); print(second.wait())"
    );
    let run = python(dir.path(), &["--wait", "100"], &script, &["a.db", "one"]);
    assert_eq!(run.ok(), "one\ntwo\n0\n");
    assert_eq!(fs::read(dir.path().join("a.db")).unwrap(), b"three");
    let wrong = Run::from(preload(dir.path(), "*.db").args(["--wait", "-1", "--", "true"]).output().unwrap());
    let told = wrong.fails(2);
    assert!(told.contains("--wait"), "{told}");
}

/// Python commits files and names as one by `ctypes`.
#[test]
fn files_of_a_store_are_committed_as_one() {
    if !is_here("python3") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("d")).unwrap();
    let script = "\
import ctypes, os
untorn = ctypes.CDLL(None)
def create(name, text):
    f = os.open(name, os.O_RDWR | os.O_CREAT)
    os.write(f, text)
    return f
a, b = create('d/a.db', b'a1'), create('d/b.db', b'b1')
both = (ctypes.c_int * 2)(a, b)
assert untorn.untorn_fd_syncv(both, 2) == 0
txn = untorn.untorn_fd_txn_begin(both, 2)
os.pwrite(a, b'a2', 0)
c = create('d/c.tmp.db', b'c2')
os.rename('d/c.tmp.db', 'd/c.db')
os.unlink('d/b.db')
assert sorted(os.listdir('d')) == ['.untorn', 'a.db', 'b.db']
assert untorn.untorn_fd_txn_commit(txn) == 0
assert sorted(os.listdir('d')) == ['.untorn', 'a.db', 'c.db']
untorn.untorn_fd_txn_begin(both, 1)
os.pwrite(a, b'a3', 0)
os.kill(os.getpid(), 9)
";
    let run = python(dir.path(), &["--store", "d"], script, &[]);
    assert_eq!(run.code, None, "{}", run.err);
    assert_eq!(Run::from(untorn().args(["recover", "d"]).current_dir(dir.path()).output().unwrap()).code, Some(0));
    assert_eq!(fs::read(dir.path().join("d/a.db")).unwrap(), b"a2");
    assert_eq!(fs::read(dir.path().join("d/c.db")).unwrap(), b"c2");
    assert!(!dir.path().join("d/b.db").exists());
    for (store, told) in [("missing", "missing"), ("d/a.db", "a store is a directory")] {
        let wrong = Run::from(preload(dir.path(), "*.db").args(["--store", store, "--", "true"]).output().unwrap());
        let why = wrong.fails(2);
        assert!(why.contains(told), "{why}");
    }
}

/// A program that inherited a descriptor would write to the plain file, whichever way it gets it.
#[test]
fn descriptors_of_named_files_are_closed_by_exec() {
    if !is_here("python3") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let ways = [
        "os.dup2(f, 20); subprocess.run(bash, close_fds=False)",
        "os.set_inheritable(f, True)",
        "subprocess.run(bash, pass_fds=[f])",
        "subprocess.run(bash, stdout=f)",
        "os.posix_spawn('/bin/bash', bash, os.environ, file_actions=[(os.POSIX_SPAWN_DUP2, f, 20)])",
        "pid = os.fork()\n if not pid:\n  os.dup2(f, 20); os.execv('/bin/bash', bash)\n os.waitpid(pid, 0)",
        "pid = os.fork()\n if not pid:\n  try: os.set_inheritable(f, True)\n  finally: os._exit(0)\n os.waitpid(pid, 0)",
    ];
    for way in ways {
        let script = format!(
            "import subprocess\n{WRITES}os.fsync(f)\n\
             bash = ['bash', '-c', f'for n in {{f}} 20 1; do echo two >&$n; done 2> /dev/null']\n\
             try:\n {way}\n\
             except OSError as e: print(e.errno)\n\
             os.pwrite(f, b'three', 0); os.fsync(f); os.close(f)"
        );
        let run = python(dir.path(), &[], &script, &["a.db", "one"]);
        assert_eq!(run.code, Some(0), "{way}: {}", run.err);
        assert_eq!(fs::read(dir.path().join("a.db")).unwrap(), b"three", "{way}: {}", run.err);
        fs::remove_file(dir.path().join("a.db")).unwrap();
        fs::remove_dir_all(dir.path().join("a.db.untorn")).unwrap();
    }
}

/// Shells choose descriptors by themselves; streams write to standard ones past the library.
#[test]
fn shells_reach_named_files_by_other_descriptors_than_the_standard_ones() {
    let dir = tempfile::tempdir().unwrap();
    let run_in = |script: &str| run(dir.path(), &["--commit-on-close"], script);
    let numbers = run_in("exec 3<>a.db 4<>b.db 5<>c.db 6<>plain; read -u 3 line; echo $?; cat <&6");
    assert_eq!((numbers.code, numbers.out.as_str(), numbers.err.as_str()), (Some(0), "1\n", ""));
    for script in ["echo one > a.db", "cat < a.db 3<>a.db 0<&3", "exec 7<>a.db; echo one >&7", "exec 7<>a.db 2>&7"] {
        let refused = run_in(script);
        assert_ne!(refused.code, Some(0), "{script}: {}", refused.err);
        assert!(refused.err.contains("past Untorn"), "{script}: {}", refused.err);
        assert_eq!(fs::read(dir.path().join("a.db")).unwrap(), b"", "{script}");
    }
    assert_eq!(run_in("echo one > plain; cat < plain").ok(), "one\n");
}

#[test]
fn programs_that_cannot_be_preloaded_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let refused = |command: &mut Command| Run::from(command.output().unwrap());
    let main = "int main(void) { return 0; }\n";
    let fixed = compiled(dir.path(), "fixed", main, &["-static"]);
    let why = refused(preload(dir.path(), "*.db").arg("--").arg(&fixed)).fails(126);
    assert!(why.contains("linked statically") && why.contains("untorn run"), "{why}");
    let script = dir.path().join("script");
    fs::write(&script, format!("#!{}\n", fixed.display())).unwrap();
    let why = refused(preload(dir.path(), "*.db").arg("--").arg(&script)).fails(126);
    assert!(why.contains("linked statically"), "{why}");
    let go = "__attribute__((section(\".go.buildinfo\"))) const int go = 1;\nint main(void) { return go - 1; }\n";
    let go = compiled(dir.path(), "go", go, &[]);
    assert!(refused(preload(dir.path(), "*.db").arg("--").arg(go)).fails(126).contains("Go program"));
    let text = dir.path().join("text");
    fs::write(&text, "no program").unwrap();
    assert!(refused(preload(dir.path(), "*.db").arg("--").arg(&text)).fails(126).contains("neither a program"));
    assert!(refused(preload(dir.path(), "*.db").args(["--", "no-such-program"])).fails(127).contains("PATH"));
    let unnamed = untorn().args(["preload", "--", "true"]).env_remove("UNTORN_MANAGE").output().unwrap();
    assert!(Run::from(unnamed).fails(2).contains("--manage '*.db'"));
    assert!(refused(preload(dir.path(), "a:b").args(["--", "true"])).fails(2).contains("cannot contain `:`"));
    if !is_root() {
        return skipped("only root can make a program of another user's");
    }
    let other = compiled(dir.path(), "other", main, &[]);
    std::os::unix::fs::chown(&other, Some(1), None).unwrap();
    done(Command::new("chmod").arg("4755").arg(&other));
    let why = refused(preload(dir.path(), "*.db").arg("--").arg(&other)).fails(126);
    assert!(why.contains("rights of another user"), "{why}");
}

#[test]
fn calls_that_go_past_the_library_are_listed() {
    let dir = tempfile::tempdir().unwrap();
    let source = "#include <unistd.h>\n#include <sys/syscall.h>\nint main(void) { return syscall(SYS_getpid) == 0; }\n";
    let direct = compiled(dir.path(), "direct", source, &[]);
    let check = |program: &Path| Run::from(untorn().args(["preload", "--check", "--"]).arg(program).output().unwrap());
    let run = check(&direct);
    assert_eq!(run.code, Some(1), "{}", run.err);
    assert!(run.out.contains("syscall: may call the kernel directly"), "{}", run.out);
    let none = compiled(dir.path(), "none", "int main(void) { return 0; }\n", &[]);
    assert_eq!(check(&none).ok(), "1 file looked at: no call goes past the library\n");
}

/// The shell looks at the file by `fopen` first, whose descriptor closes past the library and gets its number again.
#[test]
fn the_shell_of_sqlite_reads_statements_from_its_input() {
    if !is_here("sqlite3") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let statements = dir.path().join("statements");
    let inserts = (0..5).map(|n| format!("insert into t values({n}, randomblob(1000));\n")).collect::<String>();
    fs::write(&statements, format!("pragma journal_mode=memory;\ncreate table if not exists t(n, b);\n{inserts}"))
        .unwrap();
    for round in 1..4 {
        let mut shell = preload(dir.path(), "*.db");
        shell.args(["--", "sqlite3", "app.db"]).stdin(fs::File::open(&statements).unwrap());
        assert_eq!(Run::from(shell.output().unwrap()).ok(), "memory\n");
        let rows = done(preload(dir.path(), "*.db").args(["--", "sqlite3", "app.db", "select count(*) from t"]));
        assert_eq!(rows, format!("{}\n", round * 5));
    }
}
