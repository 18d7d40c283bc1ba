//! Programs under `untorn preload` that use descriptors, processes, threads and names in unusual ways.

mod common;

use common::Run;
use common::preload::{compiled, done, preload};
use std::fs;
use std::path::Path;
use untorn_testkit::library_dir;

/// The beginning of each program: a check that ends it with the line's number, and a file that is written and synced.
const BEGIN: &str = r#"
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <limits.h>
#include <ftw.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>
#define CHECK(what) do { if (!(what)) { \
    int e = errno; dprintf(fcntl(200, F_GETFD) < 0 ? 2 : 200, "line %d: %s: %s\n", __LINE__, #what, strerror(e)); _exit(9); } } while (0)
static int put(int fd, const char *text) { return write(fd, text, strlen(text)) == (long)strlen(text) ? 0 : -1; }
static inline int made(const char *name, const char *text) {
    int fd = open(name, O_RDWR | O_CREAT, 0644);
    CHECK(fd >= 0 && put(fd, text) == 0 && fsync(fd) == 0);
    return fd;
}
#line 1
"#;

/// Compiles a program and runs it in a directory, with `*.db` managed.
#[track_caller]
fn run_with(dir: &Path, source: &str, options: &[&str]) -> Run {
    let program = compiled(dir, "program", &format!("{BEGIN}{source}"), options);
    preload(dir, "*.db").arg("--").arg(program).output().unwrap().into()
}

#[track_caller]
fn run(dir: &Path, source: &str) -> Run {
    let run = run_with(dir, source, &[]);
    assert_eq!(run.code, Some(0), "{}{}", run.out, run.err);
    run
}

#[track_caller]
fn assert_holds(dir: &Path, name: &str, expected: &str) {
    assert_eq!(String::from_utf8_lossy(&fs::read(dir.join(name)).unwrap()), expected, "{name}");
}

/// Daemons close every descriptor when they begin, and some do later.
#[test]
fn a_program_may_close_all_its_descriptors() {
    for close_all in [
        "close_range(3, ~0u, 0)",
        "(closefrom(3), 0)",
        "({ for (int i = 3; i < 1024; i++) close(i); 0; })",
        "close_range(3, 400, 0)",
    ] {
        let dir = tempfile::tempdir().unwrap();
        let source = format!(
            r#"int main(void) {{
            CHECK({close_all} == 0);
            int fd = made("a.db", "one"), plain = open("plain", O_RDWR | O_CREAT, 0644), mapped = made("m.db", "map");
            char *map = mmap(NULL, 3, PROT_READ | PROT_WRITE, MAP_SHARED, mapped, 0);
            CHECK(map != MAP_FAILED && put(fd, " lost") == 0 && put(plain, "plain") == 0);
            CHECK({close_all} == 0);
            CHECK(fcntl(fd, F_GETFD) < 0 && fcntl(plain, F_GETFD) < 0 && fcntl(mapped, F_GETFD) < 0);
            memcpy(map, "MAP", 3);
            CHECK(msync(map, 3, MS_SYNC) == 0);
            CHECK(close(made("b.db", "two")) == 0);
            fd = open("a.db", O_RDWR | O_APPEND);
            CHECK(put(fd, ", two") == 0 && fsync(fd) == 0);
            return 0; }}"#
        );
        let run = run(dir.path(), &source);
        assert!(run.err.contains("a.db: changes that were not synced are discarded"), "{close_all}: {}", run.err);
        for (name, expected) in [("a.db", "one, two"), ("b.db", "two"), ("m.db", "MAP"), ("plain", "plain")] {
            assert_holds(dir.path(), name, expected);
        }
    }
}

/// The streams of the C library write to descriptors 0, 1 and 2 past the library.
#[test]
fn a_managed_file_gets_no_standard_number() {
    let dir = tempfile::tempdir().unwrap();
    run(
        dir.path(),
        r#"int main(void) {
        CHECK(dup2(2, 200) == 200);
        close(0); close(1); close(2);
        struct flock lock = {.l_type = F_WRLCK, .l_len = 1};
        int fd = made("a.db", "one");
        CHECK(fd > 2 && fcntl(fd, F_SETLK, &lock) == 0);
        int copy = dup(fd), other = open("a.db", O_RDWR), read_only = open("a.db", O_RDONLY);
        CHECK(copy > 2 && other > 2 && read_only > 2 && fcntl(fd, F_DUPFD, 0) > 2);
        if (fork() == 0) {
            close(200);
            _exit(fcntl(fd, F_GETLK, &lock) != 0 || lock.l_type == F_UNLCK);
        }
        int status;
        CHECK(wait(&status) > 0 && status == 0);
        printf("printed"); fflush(stdout); fprintf(stderr, "printed");
        char name[] = "XXXXXX.db";
        int made = mkstemps(name, 3);
        CHECK(made > 2 && unlink(name) == 0);
        CHECK(open("plain", O_RDWR | O_CREAT, 0644) == 0);
        CHECK(put(copy, " and two") == 0 && fsync(fd) == 0);
        return 0; }"#,
    );
    assert_holds(dir.path(), "a.db", "one and two");
}

#[test]
fn a_file_without_a_name_gets_one_to_be_managed() {
    let dir = tempfile::tempdir().unwrap();
    run(
        dir.path(),
        r#"int main(void) {
        for (int synced = 0; synced < 2; synced++) {
            int fd = open(".", O_TMPFILE | O_RDWR, 0644);
            char path[64], name[] = "0.db", more[] = "0.more";
            name[0] = more[0] = (char)('0' + synced);
            snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
            CHECK(fd >= 0 && put(fd, "whole") == 0);
            CHECK(linkat(AT_FDCWD, path, AT_FDCWD, name, AT_SYMLINK_FOLLOW) == 0);
            CHECK(put(fd, " and more") == 0 && (!synced || fsync(fd) == 0));
            CHECK(linkat(AT_FDCWD, path, AT_FDCWD, more, AT_SYMLINK_FOLLOW) == -1 && errno == EPERM);
            CHECK(link(name, more) == -1 && errno == EPERM);
        }
        _exit(0); }"#,
    );
    for (name, expected) in [("0.db", "whole"), ("1.db", "whole and more")] {
        done(preload(dir.path(), "*.db").args(["--", "cat", name]));
        assert_holds(dir.path(), name, expected);
    }
}

/// A store of a file that is gone belongs to nobody, also if a hard link takes the name.
#[test]
fn a_hard_link_takes_the_name_of_a_removed_file() {
    let dir = tempfile::tempdir().unwrap();
    let source = r#"int main(void) { int fd = made("a.db", "old"); CHECK(put(fd, "?") == 0); _exit(0); }"#;
    run(dir.path(), source);
    fs::remove_file(dir.path().join("a.db")).unwrap();
    fs::write(dir.path().join("plain"), "new").unwrap();
    run(dir.path(), r#"int main(void) { CHECK(link("plain", "a.db") == 0 && unlink("plain") == 0); return 0; }"#);
    run(
        dir.path(),
        r#"int main(void) { int fd = open("a.db", O_RDWR | O_APPEND); CHECK(put(fd, "er") == 0 && fsync(fd) == 0); return 0; }"#,
    );
    assert_holds(dir.path(), "a.db", "newer");
}

#[test]
fn a_file_replaces_a_managed_one_that_is_open() {
    let dir = tempfile::tempdir().unwrap();
    run(
        dir.path(),
        r#"int main(void) {
        int fd = made("a.db", "old"), new = open("new", O_RDWR | O_CREAT, 0644);
        char read_back[4] = "";
        CHECK(put(fd, " and more") == 0 && put(new, "new") == 0 && rename("new", "a.db") == 0);
        CHECK(pread(fd, read_back, 3, 0) == 3 && !strcmp(read_back, "old") && pwrite(fd, "OLD", 3, 0) == 3 && fsync(fd) == 0);
        CHECK(put(new, "er") == 0 && fsync(new) == 0 && put(new, "?") == 0);
        _exit(0); }"#,
    );
    done(preload(dir.path(), "*.db").args(["--", "cat", "a.db"]));
    assert_holds(dir.path(), "a.db", "newer");
}

const LIBRARY: &str = r#"
#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>
static void *early(void *name) {
    int fd = open(name, O_RDWR | O_CREAT, 0644);
    return (void *)(long)(fd < 0 || write(fd, "early", 5) != 5 || fsync(fd) || close(fd));
}
static pthread_t thread;
__attribute__((constructor)) static void begin(void) { pthread_create(&thread, NULL, early, "early.db"); }
long ended(void) { void *result; pthread_join(thread, &result); return (long)result; }
int store(const char *name) { return early((void *)name) != 0; }
"#;

/// Libraries that are loaded later, and threads that begin before `main`.
#[test]
fn libraries_and_threads_before_main() {
    let dir = tempfile::tempdir().unwrap();
    let library = compiled(dir.path(), "libother.so", LIBRARY, &["-shared", "-fPIC"]);
    run(
        dir.path(),
        r#"int main(void) {
        for (int n = 0; n < 2; n++) {
            void *library = dlopen("./libother.so", RTLD_NOW);
            CHECK(library);
            CHECK(((long (*)(void))dlsym(library, "ended"))() == 0);
            CHECK(((int (*)(const char *))dlsym(library, "store"))(n ? "second.db" : "first.db") == 0);
            CHECK(dlclose(library) == 0 && unlink("early.db") == 0);
        }
        return 0; }"#,
    );
    let linked = "extern long ended(void); extern int store(const char *);\n\
         int main(void) { CHECK(ended() == 0 && store(\"third.db\") == 0); return 0; }";
    let run = run_with(dir.path(), linked, &[library.to_str().unwrap(), "-Wl,-rpath,$ORIGIN"]);
    assert_eq!(run.code, Some(0), "{}", run.err);
    // The thread's calls before the library's constructor go to the C library.
    assert_holds(dir.path(), "early.db", "early");
    for name in ["first.db", "second.db", "third.db"] {
        assert_holds(dir.path(), name, "early");
        assert!(dir.path().join(format!("{name}.untorn")).is_dir(), "{name} was not managed");
    }
}

/// Each child of a server has files of its own, and the parent's go on.
#[test]
fn servers_that_fork() {
    let dir = tempfile::tempdir().unwrap();
    run(
        dir.path(),
        r#"int main(void) {
        int fd = made("parent.db", "0"), status;
        for (int n = 1; n < 6; n++) {
            char name[] = "0.db", text[] = "0";
            name[0] = text[0] = (char)('0' + n);
            if (fork() == 0) {
                CHECK(close(fd) == 0);
                CHECK(close_range(3, ~0u, 0) == 0);
                int own = made(name, "child");
                CHECK(put(own, " lost") == 0);
                _exit(0);
            }
            CHECK(put(fd, text) == 0 && fsync(fd) == 0);
            pid_t child = vfork();
            if (child == 0) { execl("/bin/true", "true", (char *)NULL); _exit(1); }
            CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0 && system("exit 3") == 3 << 8);
        }
        for (int n = 1; n < 6; n++) CHECK(wait(&status) > 0 && status == 0);
        CHECK(put(fd, "!") == 0 && fsync(fd) == 0);
        return 0; }"#,
    );
    assert_holds(dir.path(), "parent.db", "012345!");
    for n in 1..6 {
        done(preload(dir.path(), "*.db").args(["--", "cat", &format!("{n}.db")]));
        assert_holds(dir.path(), &format!("{n}.db"), "child");
    }
}

/// A handler may write to other files at any time; on a managed one it gets an answer, and never waits for ever.
#[test]
fn handlers_of_signals() {
    let dir = tempfile::tempdir().unwrap();
    run(
        dir.path(),
        r#"static int managed, plain;
        static volatile int handled, refused;
        static void handle(int n) {
            int before = errno;
            (void)n;
            handled++;
            if (write(plain, "x", 1) != 1) _exit(3);
            if (pwrite(managed, "h", 1, 0) != 1) { if (errno != EDEADLK) _exit(4); refused++; }
            errno = before;
        }
        int main(void) {
            struct itimerval often = {{0, 200}, {0, 200}};
            managed = made("a.db", "_");
            plain = open("plain", O_RDWR | O_CREAT, 0644);
            CHECK(signal(SIGALRM, handle) != SIG_ERR && setitimer(ITIMER_REAL, &often, NULL) == 0);
            for (int n = 0; n < 400 || handled < 20; n++) CHECK(pwrite(managed, "m", 1, 1) == 1 && fdatasync(managed) == 0);
            memset(&often, 0, sizeof often);
            CHECK(setitimer(ITIMER_REAL, &often, NULL) == 0 && pwrite(managed, "h", 1, 0) == 1 && fsync(managed) == 0);
            return 0; }"#,
    );
    assert_holds(dir.path(), "a.db", "hm");
}

#[test]
fn a_map_and_its_file_grow() {
    let dir = tempfile::tempdir().unwrap();
    run(
        dir.path(),
        r#"int main(void) {
        int fd = made("a.db", "first"), page = (int)sysconf(_SC_PAGESIZE);
        char *map = mmap(NULL, (size_t)page * 3, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        CHECK(map != MAP_FAILED && ftruncate(fd, page * 2L) == 0);
        strcpy(map + page, "second");
        CHECK(msync(map, (size_t)page * 2, MS_SYNC) == 0 && ftruncate(fd, page * 3L) == 0);
        strcpy(map + page * 2, "lost");
        _exit(0); }"#,
    );
    done(preload(dir.path(), "*.db").args(["--", "cat", "a.db"]));
    let found = fs::read(dir.path().join("a.db")).unwrap();
    assert!(
        found.starts_with(b"first\0") && found[found.len() / 2..].starts_with(b"second\0"),
        "{} bytes",
        found.len()
    );
}

/// Locks as SQLite takes them: another process sees them as long as they are held, whatever the library opens and closes.
#[test]
fn record_locks_stay() {
    let dir = tempfile::tempdir().unwrap();
    run(
        dir.path(),
        r#"static int fd;
        static int seen(void) {
            int status;
            if (fork() == 0) {
                struct flock lock = {.l_type = F_WRLCK, .l_start = 1 << 30, .l_len = 1};
                _exit(fcntl(fd, F_GETLK, &lock) != 0 ? 2 : lock.l_type != F_UNLCK);
            }
            CHECK(wait(&status) > 0);
            return WEXITSTATUS(status);
        }
        int main(void) {
            struct flock lock = {.l_type = F_WRLCK, .l_start = 1 << 30, .l_len = 2};
            fd = made("a.db", "one");
            CHECK(fcntl(fd, F_SETLK, &lock) == 0 && seen() == 1);
            void *map = mmap(NULL, 3, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
            CHECK(map != MAP_FAILED && seen() == 1);
            CHECK(put(fd, "two") == 0 && ftruncate(fd, 1 << 20) == 0 && fsync(fd) == 0 && munmap(map, 3) == 0 && seen() == 1);
            CHECK(rename("a.db", "b.db") == 0 && rename("b.db", "a.db") == 0 && seen() == 1);
            lock.l_type = F_UNLCK;
            CHECK(fcntl(fd, F_SETLK, &lock) == 0 && seen() == 0);
            return 0; }"#,
    );
}

/// Calls that look for names, or walk a tree, within the C library.
#[test]
fn names_are_found() {
    let dir = tempfile::tempdir().unwrap();
    run(
        dir.path(),
        r#"static int visited;
        static int visit(const char *path, const struct stat *s, int kind, struct FTW *at) {
            (void)at;
            visited += kind == FTW_F && !strcmp(path, "./a.db") && S_ISREG(s->st_mode);
            return 0;
        }
        int main(void) {
            glob_t found;
            struct stat s;
            char path[PATH_MAX];
            int fd = made("a.db", "committed");
            CHECK(glob("*.db", 0, NULL, &found) == 0 && found.gl_pathc == 1 && !strcmp(found.gl_pathv[0], "a.db"));
            CHECK(realpath("./a.db", path) && !strcmp(strrchr(path, '/'), "/a.db"));
            CHECK(nftw(".", visit, 8, FTW_PHYS) == 0 && visited == 1);
            CHECK(put(fd, " or not") == 0 && stat("a.db", &s) == 0 && s.st_size == 16);
            return 0; }"#,
    );
}

#[test]
fn streams_of_c() {
    let dir = tempfile::tempdir().unwrap();
    run(
        dir.path(),
        r#"int main(void) {
        char line[16] = "";
        FILE *file = fopen("a.db", "w+");
        CHECK(file && fprintf(file, "%s\n", "one") == 4 && fflush(file) == 0 && fsync(fileno(file)) == 0);
        rewind(file);
        CHECK(fgets(line, sizeof line, file) && !strcmp(line, "one\n") && fputs("two", file) >= 0 && fflush(file) == 0);
        _exit(0); }"#,
    );
    done(preload(dir.path(), "*.db").args(["--", "cat", "a.db"]));
    assert_holds(dir.path(), "a.db", "one\n");
}

/// A program that is linked with the library has two copies of it: the one that has the file open refuses the other.
#[test]
fn a_program_that_is_linked_with_the_library() {
    let dir = tempfile::tempdir().unwrap();
    let archive = library_dir().join("libuntorn.a");
    let include = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../include");
    let source = r#"#include <untorn.h>
        int main(void) {
        struct untorn_file *file = untorn_open("own.db", UNTORN_CREATE, 0644, NULL);
        if (!file) fprintf(stderr, "%s\n", untorn_error_message());
        CHECK(file && untorn_pwrite(file, "own", 3, 0) >= 0 && untorn_commit(file) == 0);
        CHECK(open("own.db", O_RDWR) == -1 && errno == EBUSY);
        CHECK(untorn_close(file) == 0);
        int fd = open("own.db", O_RDWR | O_APPEND);
        CHECK(put(fd, " and its") == 0 && fsync(fd) == 0);
        CHECK(!untorn_open("own.db", 0, 0, NULL) && errno == EBUSY);
        fprintf(stderr, "inner: %s\n", untorn_error_message());
        CHECK(close(fd) == 0);
        return 0; }"#;
    let include = format!("-I{}", include.display());
    let options = [&include, archive.to_str().unwrap(), "-lpthread", "-ldl", "-lm"];
    let run = run_with(dir.path(), source, &options);
    assert_eq!(run.code, Some(0), "{}", run.err);
    assert!(run.err.contains("own.db"), "{}", run.err);
    let inner = run.err.lines().find(|line| line.starts_with("inner: ")).expect("the inner copy's message");
    assert!(inner.contains("this process itself") && inner.contains("another copy of the library"), "{inner}");
    assert_holds(dir.path(), "own.db", "own and its");
}

/// GNU's streams of C++ go through the C library's calls, or are refused.
#[test]
fn streams_of_cpp() {
    let dir = tempfile::tempdir().unwrap();
    let source = "#include <fstream>\n#include <iostream>\n#include <string>\n#include <unistd.h>\n\
         int main() {\n\
         { std::ofstream file(\"a.db\"); file << \"one \" << 2 << std::flush; if (!file) return 1; }\n\
         { std::fstream file(\"a.db\"); std::string word; int n; if (!(file >> word >> n) || n != 2) return 2; }\n\
         return 0; }\n";
    let file = dir.path().join("program.cc");
    fs::write(&file, source).unwrap();
    let program = dir.path().join("program");
    done(std::process::Command::new("c++").arg("-o").arg(&program).arg(&file));
    let run = Run::from(preload(dir.path(), "*.db").arg("--commit-on-close").arg("--").arg(&program).output().unwrap());
    assert_eq!(run.code, Some(0), "{}", run.err);
    assert_holds(dir.path(), "a.db", "one 2");
}
