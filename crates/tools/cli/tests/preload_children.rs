//! Programs that a program under `untorn preload` starts: each way of starting them, those that cannot be preloaded, and
//! environments that lack the library.

mod common;

use common::preload::{compiled, done};
use common::{Run, untorn};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use untorn_testkit::{is_root, preload_library, skipped};

/// `untorn preload` in a directory. The arguments follow.
fn preload(dir: &Path, options: &[&str]) -> Command {
    let mut command = untorn();
    command.arg("preload").arg("--library").arg(preload_library()).args(["--manage", "*.db"]).args(options);
    command.arg("--").current_dir(dir).stdin(Stdio::null());
    command
}

/// Says whether the library is there, by its effect: an unsynced change of a named file is discarded.
const CHILD: &str = r#"
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
int main(int n, char **a) {
    int fd = open("child.db", O_RDWR | O_CREAT | O_TRUNC, 0600);
    if (fd < 0 || write(fd, "x", 1) != 1 || close(fd)) return 9;
    fd = open("child.db", O_RDONLY);
    char byte;
    printf("%s %s %s", read(fd, &byte, 1) == 0 ? "managed" : "plain", n > 1 ? a[1] : "-", n > 2 ? a[2] : "-");
    printf(" %s %d\n", getenv("OWN") ? getenv("OWN") : "-", n);
    return 7;
}
"#;

/// Starts the program of its second argument in the way of the first, in a child of `fork` or of `vfork` as the third
/// says; prints the errno of a start that fails.
const STARTER: &str = r#"
#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
int main(int n, char **a) {
    const char *way = a[1], *program = a[2];
    const char *name = strrchr(program, '/') + 1;
    char *argv[] = {(char *)name, "one", "two", NULL}, *own[] = {"OWN=1", NULL};
    int status = -1, failed = 0, by_vfork = n > 3;
    pid_t pid;
    if (!strncmp(way, "posix_spawn", 11)) {
        int found = strchr(way, 'p' ) && way[strlen(way) - 1] == 'p';
        errno = 0;
        failed = found ? posix_spawnp(&pid, name, NULL, NULL, argv, own) : posix_spawn(&pid, program, NULL, NULL, argv, own);
        if (errno) return 8;
    } else if ((pid = by_vfork ? vfork() : fork()) == 0) {
        int fd;
        if (!strcmp(way, "execve")) execve(program, argv, own);
        if (!strcmp(way, "execv")) execv(program, argv);
        if (!strcmp(way, "execvp")) execvp(name, argv);
        if (!strcmp(way, "execvpe")) execvpe(name, argv, own);
        if (!strcmp(way, "execl")) execl(program, name, "one", "two", NULL);
        if (!strcmp(way, "execle")) execle(program, name, "one", "two", NULL, own);
        if (!strcmp(way, "execlp")) execlp(name, name, "one", "two", NULL);
        if (!strcmp(way, "fexecve")) fd = open(program, O_RDONLY), fexecve(fd, argv, own);
        if (!strcmp(way, "execveat")) fd = open(".", O_RDONLY | O_DIRECTORY), execveat(fd, name, argv, own, 0);
        if (!strcmp(way, "empty")) execve(program, argv, NULL);
        _exit(errno);
    }
    if (!failed && (waitpid(pid, &status, 0) != pid || !WIFEXITED(status))) return 1;
    fprintf(stdout, "ended %d\n", failed ? failed : WEXITSTATUS(status));
    return 0;
}
"#;

/// Each way, and whether it hands over an environment of its own.
const WAYS: [(&str, bool); 12] = [
    ("execve", true),
    ("execv", false),
    ("execvp", false),
    ("execvpe", true),
    ("execl", false),
    ("execle", true),
    ("execlp", false),
    ("fexecve", true),
    ("execveat", true),
    ("empty", false),
    ("posix_spawn", true),
    ("posix_spawnp", true),
];

/// `PATH` with a directory before all others.
fn path_with(dir: &Path) -> String {
    format!("{}:{}", dir.display(), std::env::var("PATH").unwrap_or_default())
}

#[test]
fn programs_get_the_library_whichever_way_they_are_started() {
    let dir = tempfile::tempdir().unwrap();
    let child = compiled(dir.path(), "untorn-test-child", CHILD, &[]);
    let starter = compiled(dir.path(), "starter", STARTER, &[]);
    for (way, has_own) in WAYS {
        for by_vfork in [false, true] {
            let mut command = preload(dir.path(), &[]);
            command.env("PATH", path_with(dir.path())).env_remove("OWN");
            command.arg(&starter).arg(way).arg(&child).args(by_vfork.then_some("vfork"));
            let run = Run::from(command.output().unwrap());
            let own = if has_own { "1" } else { "-" };
            assert_eq!(run.out, format!("managed one two {own} 3\nended 7\n"), "{way} {by_vfork}: {}", run.err);
            assert!(!run.err.contains("cannot be preloaded"), "{way}: {}", run.err);
        }
    }
}

#[test]
fn programs_that_cannot_be_preloaded_are_named_or_refused() {
    let dir = tempfile::tempdir().unwrap();
    let child = compiled(dir.path(), "untorn-test-child", CHILD, &["-static"]);
    let starter = compiled(dir.path(), "starter", STARTER, &[]);
    for (way, has_own) in WAYS {
        for (strict, by_vfork) in [(false, false), (false, true), (true, false), (true, true)] {
            let mut command = preload(dir.path(), if strict { &["--strict"] } else { &[] });
            command.env("PATH", path_with(dir.path())).env_remove("OWN");
            command.arg(&starter).arg(way).arg(&child).args(by_vfork.then_some("vfork"));
            let run = Run::from(command.output().unwrap());
            let own = if has_own { "1" } else { "-" };
            let expected = match strict {
                true => format!("ended {}\n", rustix::io::Errno::ACCESS.raw_os_error()),
                false => format!("plain one two {own} 3\nended 7\n"),
            };
            assert_eq!(run.out, expected, "{way} {strict} {by_vfork}: {}", run.err);
            let lines: Vec<_> = run.err.lines().filter(|line| line.contains("untorn-test-child")).collect();
            let says =
                if strict { "is not started (--strict): it is linked statically" } else { "changes from outside" };
            assert!(
                lines.len() == 1 && lines[0].starts_with("untorn: ") && lines[0].contains(says),
                "{way}: {}",
                run.err
            );
        }
    }
}

/// A shell in a directory, with options.
#[track_caller]
fn shell(dir: &Path, options: &[&str], environment: &[(&str, &str)], script: &str) -> Run {
    let mut command = preload(dir, options);
    command.env("PATH", path_with(dir)).envs(environment.iter().copied());
    command.args(["bash", "-c", script]).output().unwrap().into()
}

#[test]
fn each_kind_is_named_once() {
    let dir = tempfile::tempdir().unwrap();
    let main = "int main(void) { return 0; }\n";
    compiled(dir.path(), "fixed", main, &["-static"]);
    compiled(dir.path(), "position", main, &["-static-pie"]);
    let go = "__attribute__((section(\".go.buildinfo\"))) const int go = 1;\nint main(void) { return go - 1; }\n";
    compiled(dir.path(), "go", go, &[]);
    compiled(dir.path(), "musl", main, &["-Wl,--dynamic-linker=/lib/ld-musl-x86_64.so.1"]);
    let mut other = fs::read(compiled(dir.path(), "other", main, &[])).unwrap();
    other[18] ^= 0xff;
    untorn_testkit::install_script(other, &dir.path().join("other"));
    let script = |name: &str, first: &str| {
        untorn_testkit::install_script(format!("#!{first}\n"), &dir.path().join(name));
    };
    script("script", &dir.path().join("fixed").display().to_string());
    script("searching", "/usr/bin/env position");
    script("ordinary", "/usr/bin/env -S bash -e");
    untorn_testkit::install_script("exit 3\n", &dir.path().join("text"));

    let script = "for n in 1 2 3; do for p in fixed position go musl other script ordinary text true; do\n\
         $p 2>/dev/null; $p; ./$p; done; done; no-such-program; exit 0";
    let run = shell(dir.path(), &[], &[], script);
    let named: Vec<&str> = run.err.lines().filter(|line| line.starts_with("untorn: ")).collect();
    // By the path that each is started with: as the shell finds it, and as it is given.
    let expect = |name: &str, times: usize, why: &str| {
        let lines: Vec<_> =
            named.iter().filter(|line| line.contains(&format!("/{name} cannot be preloaded"))).collect();
        assert!(lines.len() == times && lines.iter().all(|line| line.contains(why)), "{name}: {}", run.err);
    };
    expect("fixed", 2, "linked statically");
    expect("position", 2, "linked statically");
    expect("go", 2, "a Go program");
    expect("musl", 2, "another C library");
    expect("other", 2, "another machine");
    assert_eq!(named.len(), 10, "{}", run.err);
    assert!(run.err.contains("no-such-program"), "{}", run.err);

    // `env` looks at the program that it searches.
    let searched = shell(dir.path(), &[], &[], "searching; ./searching");
    assert_eq!(searched.err.matches("/position cannot be preloaded").count(), 2, "{}", searched.err);

    let quiet = shell(dir.path(), &[], &[("UNTORN_LOG", "off")], "fixed; go");
    assert_eq!((quiet.code, quiet.err.as_str()), (Some(0), ""));
    let strict =
        shell(dir.path(), &["--strict"], &[("UNTORN_LOG", "off")], "go; echo $?; script; echo $?; searching; echo $?");
    assert_eq!(strict.out, "126\n126\n126\n", "{}", strict.err);
}

#[test]
fn programs_with_other_rights_are_named() {
    if !is_root() {
        return skipped("only root can make a program of another user's");
    }
    let dir = tempfile::tempdir().unwrap();
    let other = compiled(dir.path(), "other", "int main(void) { return 0; }\n", &[]);
    std::os::unix::fs::chown(&other, Some(1), None).unwrap();
    done(Command::new("chmod").arg("4755").arg(&other));
    let run = shell(dir.path(), &[], &[], "./other");
    assert!(run.code == Some(0) && run.err.contains("rights of another user"), "{}", run.err);
    if Command::new("setpriv").arg("--version").output().is_err() {
        return skipped("there is no setpriv here");
    }
    // The kernel ignores the bit then, and the library is there.
    let run = shell(dir.path(), &[], &[], "setpriv --no-new-privs ./other");
    assert_eq!((run.code, run.err.as_str()), (Some(0), ""));

    let capable = compiled(dir.path(), "capable", "int main(void) { return 0; }\n", &[]);
    let given = Command::new("setcap").arg("cap_net_raw+ep").arg(&capable).output();
    if !given.is_ok_and(|given| given.status.success()) {
        return skipped("no file gets capabilities here");
    }
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let run = shell(dir.path(), &[], &[], "./capable; setpriv --reuid 65534 --clear-groups ./capable");
    assert_eq!(run.err.matches("./capable cannot be preloaded: it has file capabilities").count(), 1, "{}", run.err);
}

/// Environments that programs make for others.
#[test]
fn environments_get_back_what_is_missing() {
    let dir = tempfile::tempdir().unwrap();
    compiled(dir.path(), "child", CHILD, &[]);
    let library = preload_library().display().to_string();
    let state = |prefix: &str| -> (String, String) {
        let run = shell(
            dir.path(),
            &["--commit=fsync"],
            &[("UNTORN_TEST_KEPT", "kept")],
            &format!("{prefix} ./child; rm -rf child.db*"),
        );
        let seen = shell(dir.path(), &["--commit=fsync"], &[("UNTORN_TEST_KEPT", "kept")], &format!("{prefix} env"));
        (run.out.split(' ').next().unwrap_or_default().to_owned(), seen.out)
    };
    for prefix in ["env -i", "env -u LD_PRELOAD", "env -u UNTORN_MANAGE", "LD_PRELOAD=", "unset LD_PRELOAD;"] {
        let (found, environment) = state(prefix);
        assert_eq!(found, "managed", "{prefix}: {environment}");
        for line in [format!("LD_PRELOAD={library}"), "UNTORN_MANAGE=*.db".into(), "UNTORN_TEST_KEPT=kept".into()] {
            assert_eq!(environment.lines().filter(|found| *found == line).count(), 1, "{prefix}: {environment}");
        }
    }
    // Other libraries stay, and ours comes last.
    let libc = "libm.so.6";
    let (found, environment) = state(&format!("LD_PRELOAD={libc}"));
    assert_eq!(found, "managed");
    assert!(environment.contains(&format!("LD_PRELOAD={libc}:{library}\n")), "{environment}");
    // Values that a program gives are its own.
    let (found, environment) = state("env -i UNTORN_MANAGE=*.other");
    assert_eq!(found, "plain");
    assert!(environment.contains("UNTORN_MANAGE=*.other\n"), "{environment}");

    // The way out.
    for (prefix, found) in
        [("UNTORN_PRELOAD=off", "plain"), ("env -i UNTORN_PRELOAD=off", "plain"), ("UNTORN_PRELOAD=on", "managed")]
    {
        assert_eq!(state(prefix).0, found, "{prefix}");
    }
    let (_, environment) = state("env -i UNTORN_PRELOAD=off");
    assert!(!environment.contains("LD_PRELOAD") && !environment.contains("UNTORN_MANAGE"), "{environment}");
    let again = shell(dir.path(), &[], &[], "UNTORN_PRELOAD=off bash -c 'bash -c ./child'; rm child.db");
    assert!(again.out.starts_with("plain"), "{}", again.out);
    let renewed = shell(dir.path(), &[], &[("UNTORN_PRELOAD", "off")], "./child");
    assert!(renewed.out.starts_with("managed"), "{}", renewed.out);
}

/// A program whose setting of its title writes over its own environment.
#[test]
fn an_overwritten_environment_is_known_all_the_same() {
    let dir = tempfile::tempdir().unwrap();
    compiled(dir.path(), "child", CHILD, &[]);
    let source = "#include <string.h>\n#include <unistd.h>\nextern char **environ;\n\
         int main(int n, char **a) { char *none[] = {NULL}; (void)n;\n\
         for (char **e = environ; *e; e++) memset(*e, 'x', strlen(*e));\n\
         char *argv[] = {a[0], NULL}; return execve(\"./child\", argv, none); }\n";
    let program = compiled(dir.path(), "program", source, &[]);
    let run = Run::from(preload(dir.path(), &[]).arg(program).output().unwrap());
    assert!(run.out.starts_with("managed"), "{} {}", run.out, run.err);
}

/// A large environment, and many threads that fork and start programs at once.
#[test]
fn threads_start_programs_at_once() {
    let dir = tempfile::tempdir().unwrap();
    compiled(dir.path(), "fixed", "int main(void) { return 0; }\n", &["-static"]);
    let source = r#"
#include <pthread.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
static volatile int stops;
static void *allocates(void *unused) { while (!stops) free(malloc(1000)); return unused; }
static void *starts(void *unused) {
    char *argv[] = {"fixed", NULL}, *none[] = {NULL};
    for (int n = 0; n < 50; n++) {
        int status;
        pid_t pid = n % 2 ? vfork() : fork();
        if (pid == 0) { execve("./fixed", argv, none); _exit(1); }
        if (waitpid(pid, &status, 0) != pid || status) _exit(2);
        if (posix_spawn(&pid, "./fixed", NULL, NULL, argv, none) || waitpid(pid, &status, 0) != pid || status) _exit(3);
    }
    return unused;
}
int main(void) {
    pthread_t threads[6], busy;
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 32 << 10);
    pthread_create(&busy, NULL, allocates, NULL);
    for (int n = 0; n < 6; n++) if (pthread_create(threads + n, &small, starts, NULL)) return 4;
    for (int n = 0; n < 6; n++) pthread_join(threads[n], NULL);
    stops = 1;
    return pthread_join(busy, NULL);
}
"#;
    let program = compiled(dir.path(), "program", source, &["-pthread"]);
    let mut command = preload(dir.path(), &[]);
    for n in 0..200 {
        command.env(format!("VARIABLE_{n}"), "value".repeat(20));
    }
    let run = Run::from(command.arg(program).output().unwrap());
    assert_eq!((run.code, run.err.lines().count()), (Some(0), 1), "{}", run.err);
}
