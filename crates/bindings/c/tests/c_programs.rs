//! Runs every C program of `tests/c` against the shared library, against the static one under the
//! address and undefined-behaviour sanitizers, and under Valgrind; and the example of the README.

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use untorn_testkit::{drawn_seed, run_and_kill, seed, slice};

use common::{STATIC_LIBS, cc, crate_dir, cxx, have, libcxx, library_dir, link_with, output_of, profile, run, skipped};

const PROGRAMS: [&str; 20] = [
    "store",
    "file",
    "txn",
    "map",
    "posix",
    "posix_names",
    "posix_store",
    "posix_threads",
    "posix_cxx",
    "misuse",
    "threads",
    "crash",
    "reader",
    "reader_copies",
    "malloc",
    "wrapper",
    "heap",
    "heap_plain",
    "heap_kill",
    "live_kill",
];
/// The programs in C++.
const CPP: [&str; 6] = ["wrapper", "posix_cxx", "heap", "heap_plain", "heap_kill", "live_kill"];

/// Only definite leaks count, because Rust's maps are reachable only by pointers into their middle.
const VALGRIND: [&str; 7] = [
    "valgrind",
    "--quiet",
    "--error-exitcode=9",
    "--leak-check=full",
    "--show-leak-kinds=definite",
    "--errors-for-leak-kinds=definite",
    "--fair-sched=yes",
];

fn source(program: &str) -> PathBuf {
    let extension = if CPP.contains(&program) { "cpp" } else { "c" };
    crate_dir().join("tests/c").join(program).with_extension(extension)
}

/// The compiler for a source.
fn compiler(source: &Path) -> Command {
    if source.extension().is_some_and(|extension| extension == "cpp") { cxx() } else { cc() }
}

/// A program of `tests/c`, linked with `libuntorn.so`. Each one is built once in this process.
fn built(program: &str) -> PathBuf {
    static BUILT: [OnceLock<PathBuf>; PROGRAMS.len()] = [const { OnceLock::new() }; PROGRAMS.len()];
    let at = PROGRAMS.iter().position(|listed| *listed == program).expect("a program of the list");
    let build = || {
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(profile()).join(program);
        fs::create_dir_all(&directory).expect("a build directory");
        let binary = directory.join(program);
        link_shared(&source(program), &binary);
        binary
    };
    BUILT[at].get_or_init(build).clone()
}

/// Links a program with `libuntorn.so`, found at run time where cargo built it.
fn link_shared(source: &Path, to: &Path) {
    link_shared_with(&[], source, to);
}

fn link_shared_with(flags: &[&str], source: &Path, to: &Path) {
    run(link_with(compiler(source).args(flags).arg(source), to));
}

/// Each program in a directory of its own, started by `launcher` (which may be empty).
fn run_in_scratch(launcher: &[&str], program: &Path) {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let mut words: Vec<&std::ffi::OsStr> = launcher.iter().map(std::ffi::OsStr::new).collect();
    words.push(program.as_os_str());
    let mut command = Command::new(words[0]);
    if launcher.starts_with(&VALGRIND) {
        command.env("UNDER_VALGRIND", "1");
    }
    run(command.args(&words[1..]).arg(scratch.path()).env("UBSAN_OPTIONS", "halt_on_error=1:print_stacktrace=1"));
}

#[test]
fn every_program_of_the_directory_is_run() {
    let found = fs::read_dir(crate_dir().join("tests/c")).expect("tests/c");
    let mut found: Vec<_> = found.map(|entry| entry.expect("an entry").path()).collect();
    found.retain(|path| path.extension().is_some_and(|extension| extension != "h"));
    found.sort();
    let mut listed: Vec<_> = PROGRAMS.map(source).into();
    listed.sort();
    assert_eq!(found, listed);
}

fn shared(program: &str) {
    run_in_scratch(&[], &built(program));
}

#[test]
fn store() {
    shared("store");
}

#[test]
fn file() {
    shared("file");
}

#[test]
fn txn() {
    shared("txn");
}

#[test]
fn map() {
    shared("map");
}

#[test]
fn posix() {
    shared("posix");
}

#[test]
fn posix_names() {
    shared("posix_names");
}

#[test]
fn posix_store() {
    shared("posix_store");
}

#[test]
fn posix_threads() {
    shared("posix_threads");
}

#[test]
fn posix_cxx() {
    shared("posix_cxx");
}

#[test]
fn wrapper() {
    shared("wrapper");
}

#[test]
fn heap() {
    shared("heap");
}

#[test]
fn heap_plain() {
    shared("heap_plain");
}

#[test]
fn malloc() {
    shared("malloc");
}

/// The other standard library of C++ has other container layouts.
#[test]
fn heap_with_libcxx() {
    let Some(command) = libcxx() else { return };
    let build = tempfile::tempdir().expect("a build directory");
    let flags: Vec<_> = command.get_args().map(ToOwned::to_owned).collect();
    for program in slice(&["heap", "heap_plain"], 1, drawn_seed()) {
        let binary = build.path().join(program);
        let mut command = Command::new(command.get_program());
        run(link_with(command.args(&flags).arg(source(program)), &binary));
        run_in_scratch(&[], &binary);
    }
}

#[test]
fn heap_kill() {
    shared("heap_kill");
}

#[test]
fn live_kill() {
    shared("live_kill");
}

/// After each of many kills, the standard containers are as of the last acknowledged commit, or of the next one. Each
/// start of the program compares the containers with a model.
#[test]
fn containers_survive_sigkill_whole() {
    let binary = built("heap_kill");
    let seed = seed();
    let scratch = tempfile::tempdir_in("/var/tmp").expect("a scratch directory");
    let program = |commits: u64| {
        let mut command = Command::new(&binary);
        command.arg(scratch.path()).arg(seed.to_string()).arg(commits.to_string());
        command
    };
    let (started, mut acknowledged, mut kills, mut late) = (std::time::Instant::now(), 0, 0u64, 0);
    while started.elapsed().as_secs() < 5 || kills < 10 || late < 5 {
        // Longer on a busy machine.
        let delay_us = ((seed + kills).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 47) * (1 + kills / 100);
        let told = run_and_kill(&mut program(0), std::time::Duration::from_micros(delay_us));
        // Killed after it had acknowledged a commit.
        late += u64::from(told > acknowledged);
        acknowledged = acknowledged.max(told);
        kills += 1;
        // The program compares, and prints the number of its first commit, which is the one after the last.
        let next = acknowledged + 2;
        let out = output_of(&mut program(next));
        let first: u64 = out.lines().find_map(|line| line.strip_prefix("ack ")?.parse().ok()).unwrap_or(next + 1);
        assert!(first > acknowledged, "seed {seed}: commit {acknowledged} is lost, as {first} is made again");
        acknowledged = next;
    }
    println!("{kills} kills, {late} of them after a commit, {acknowledged} commits");
}

#[test]
fn misuse() {
    shared("misuse");
}

#[test]
fn threads() {
    shared("threads");
}

#[test]
fn crash() {
    shared("crash");
}

#[test]
fn reader() {
    shared("reader");
}

#[test]
fn reader_copies() {
    shared("reader_copies");
}

/// The C code is instrumented. The allocator is instrumented for C and Rust, so leaks and invalid frees are found.
#[test]
fn all_under_sanitizers() {
    let build = tempfile::tempdir().expect("a build directory");
    let sanitize = "-fsanitize=address,undefined";
    let probe = build.path().join("probe.c");
    fs::write(&probe, "int main(void) { return 0; }\n").expect("a probe");
    let probed = cc().arg(sanitize).arg(&probe).arg("-o").arg(build.path().join("probe")).output();
    if !probed.is_ok_and(|output| output.status.success()) {
        skipped(&format!("cc has no {sanitize} here"));
        return;
    }
    for program in slice(&PROGRAMS, 4, drawn_seed()) {
        let binary = build.path().join(program);
        let mut command = compiler(&source(program));
        command.args([sanitize, "-fno-sanitize-recover=all"]).arg(source(program)).arg("-o").arg(&binary);
        run(command.arg(library_dir().join("libuntorn.a")).args(STATIC_LIBS));
        run_in_scratch(&["env", "BRIEF=1"], &binary);
    }
}

/// The calls of POSIX by threads, in signal handlers, and beside children that share the memory.
#[test]
fn posix_calls_under_the_thread_sanitizer() {
    let build = tempfile::tempdir().expect("a build directory");
    let probe = build.path().join("probe.c");
    fs::write(&probe, "int main(void) { return 0; }\n").expect("a probe");
    let binary = build.path().join("posix_threads");
    let probed = cc().arg("-fsanitize=thread").arg(&probe).arg("-o").arg(&binary).output();
    let runs = probed.is_ok_and(|output| output.status.success())
        && Command::new(&binary).output().is_ok_and(|output| output.status.success());
    if !runs {
        skipped("cc has no -fsanitize=thread here, or it does not run");
        return;
    }
    link_shared_with(&["-fsanitize=thread"], &source("posix_threads"), &binary);
    // The library is not instrumented, so the sanitizer does not see its locks: it watches the program.
    let suppressions = build.path().join("suppressions");
    // A handler's call that interrupts no other call is made, and allocates memory; `exit` frees some of it.
    fs::write(&suppressions, "race:libuntorn.so\nsignal:untorn_fd_write\nsignal:__call_tls_dtors\n")
        .expect("suppressions");
    let options = format!("TSAN_OPTIONS=halt_on_error=1:suppressions={}", suppressions.display());
    run_in_scratch(&["env", "BRIEF=1", &options], &binary);
    let binary = build.path().join("posix_names");
    link_shared_with(&["-fsanitize=thread"], &source("posix_names"), &binary);
    for part in
        ["vfork_child", "in_signal_handlers", "managed_in_signal_handlers", "own_descriptors", "streams", "exchanged"]
    {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let (name, value) = options.split_once('=').expect("a variable");
        run(Command::new(&binary).arg(scratch.path()).arg(part).env(name, value));
    }
}

/// Runs the programs without root's rights, because root may do more than others. (If an ordinary user starts the
/// tests, all of them run without these rights.)
#[test]
fn programs_of_an_ordinary_user() {
    // SAFETY: asks only.
    if unsafe { libc::geteuid() } != 0 {
        return;
    }
    let build = tempfile::tempdir_in("/var/tmp").expect("a build directory");
    let open_to_all = |path: &Path| {
        fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o777)).expect("a mode");
    };
    open_to_all(build.path());
    // Placed where the user can reach it: cargo's directory may be root's.
    let library = build.path().join("libuntorn.so.0");
    fs::copy(library_dir().join("libuntorn.so"), &library).expect("a copy of the library");
    let programs = [
        "posix",
        "posix_names",
        "posix_store",
        "posix_threads",
        "posix_cxx",
        "map",
        "heap",
        "heap_plain",
        "malloc",
        "reader",
        "reader_copies",
    ];
    for program in slice(&programs, 5, drawn_seed()) {
        let binary = build.path().join(program);
        fs::copy(built(program), &binary).expect("a copy of the program");
        let scratch = tempfile::tempdir_in("/var/tmp").expect("a scratch directory");
        open_to_all(scratch.path());
        let mut command = Command::new(&binary);
        std::os::unix::process::CommandExt::uid(&mut command, 65534);
        std::os::unix::process::CommandExt::gid(&mut command, 65534);
        run(command.arg(scratch.path()).env("BRIEF", "1").current_dir(scratch.path()));
    }
}

#[test]
fn all_under_valgrind() {
    if !have("valgrind") {
        return;
    }
    for program in slice(&PROGRAMS, 3, drawn_seed()) {
        let binary = built(program);
        let mut launcher = VALGRIND.to_vec();
        if [
            "crash",
            "reader",
            "reader_copies",
            "malloc",
            "map",
            "posix",
            "posix_names",
            "posix_store",
            "posix_threads",
            "posix_cxx",
        ]
        .contains(&program)
        {
            // A forked child leaves its parent's handles alone, which looks like a leak in the child.
            launcher.push("--leak-check=no");
        }
        run_in_scratch(&launcher, &binary);
    }
}

#[test]
fn the_example_runs() {
    let build = tempfile::tempdir().expect("a build directory");
    let binary = build.path().join("hello");
    link_shared(&crate_dir().join("../../../examples/c/hello.c"), &binary);
    let store = build.path().join("store");
    fs::create_dir(&store).expect("a directory");
    // Twice: the second run opens the files that the first one left.
    for _ in 0..2 {
        run(Command::new(&binary).arg(&store));
        assert_eq!(fs::read_to_string(store.join("account-a")).expect("account-a"), "70 coins\n");
        assert_eq!(fs::read_to_string(store.join("account-b")).expect("account-b"), "30 coins\n");
    }
    let nowhere = Command::new(&binary).arg(build.path().join("no/such/place")).output().expect("the example");
    assert!(!nowhere.status.success() && !nowhere.stderr.is_empty());
}

/// Both programs of the tutorial work; the second one never loses a coin, however often it is killed.
#[test]
fn the_tutorials_programs_run() {
    let build = tempfile::tempdir().expect("a build directory");
    let example = |name: &str| crate_dir().join("../../../examples/mmap").join(name).with_extension("c");
    let binary = |name: &str| build.path().join(name);
    run(Command::new("cc")
        .args(["-Wall", "-Wextra", "-Werror"])
        .arg(example("before"))
        .arg("-o")
        .arg(binary("before")));
    run(Command::new(binary("before")).arg(build.path().join("plain")).arg("2"));
    link_shared(&example("after"), &binary("after"));
    let seed = seed();
    let file = build.path().join("coins");
    let committed =
        || untorn::Reader::open(&file).and_then(|reader| reader.read("coins")).is_ok_and(|it| !it.is_empty());
    for n in 0u64.. {
        // More than these only until a program was killed after a commit.
        if n >= 40 && committed() {
            break;
        }
        assert!(n < 400, "no program has committed anything");
        let mut child = Command::new(binary("after")).arg(&file).arg("1000000").spawn().expect("the program");
        let delay_us = ((seed + n).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 50) * (1 + n / 40);
        std::thread::sleep(std::time::Duration::from_micros(delay_us));
        child.kill().expect("a child to kill");
        let ended = child.wait().expect("its end");
        assert_eq!(ended.code(), None, "it ended by itself: {ended}");
    }
    for _ in 0..2 {
        assert_eq!(output_of(Command::new(binary("after")).arg(&file).arg("60")), "100000 coins\n");
    }
    let plain = fs::read(&file).expect("the file, which is plain again");
    let coins: i64 = plain.chunks_exact(8).map(|coins| i64::from_ne_bytes(coins.try_into().expect("8 bytes"))).sum();
    assert_eq!((plain.len(), coins), (8000, 100_000));
}

/// The figures of docs/PERFORMANCE.md come from this program.
#[test]
fn the_measurement_of_heaps_runs() {
    let build = tempfile::tempdir().expect("a build directory");
    let binary = build.path().join("heap_cost");
    run(link_with(cxx().arg(crate_dir().join("../../tools/bench/heap_cost.cpp")), &binary));
    let said = output_of(Command::new(&binary).arg(build.path()).arg("2000"));
    assert!(said.starts_with("mutation guard") && said.lines().count() == 4, "{said}");
}

/// The main header compiles under the oldest standards of C and C++, pedantically.
#[test]
fn the_main_header_is_c89_and_cpp98() {
    let build = tempfile::tempdir().expect("a build directory");
    let source = build.path().join("oldest.c");
    let text = "#include <untorn.h>\nint main(void) { return untorn_size(0) == -1 ? 0 : 1; }\n";
    fs::write(&source, text).expect("a source");
    for compiler in ["gcc", "clang"] {
        if !have(compiler) {
            continue;
        }
        for flags in [&["-std=c89"][..], &["-x", "c++", "-std=c++98"]] {
            let mut command = Command::new(compiler);
            command.args(flags).args(["-pedantic", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-I"]);
            run(command.arg(crate_dir().join("../../../include")).arg(&source));
        }
    }
}

/// The headers alone compile under the oldest C that has the types, and under C++.
#[test]
fn the_headers_are_c99_and_cpp() {
    let build = tempfile::tempdir().expect("a build directory");
    let source = build.path().join("includes.c");
    let text =
        "#include <untorn_posix.h>\n#include <untorn.h>\nint main(void) { return untorn_size(0) == -1 ? 0 : 1; }\n";
    fs::write(&source, text).expect("a source");
    let include = crate_dir().join("../../../include");
    let warnings = ["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only", "-I"];
    output_of(Command::new("cc").args(["-std=c99"]).args(warnings).arg(&include).arg(&source));
    run(Command::new("c++").args(["-std=c++17", "-x", "c++"]).args(warnings).arg(&include).arg(&source));
    // The header for porting is for old programs, too.
    fs::write(&source, "#include <untorn_posix.h>\nint main(void) { return untorn_manage(0) == -1 ? 0 : 1; }\n")
        .expect("a source");
    output_of(Command::new("cc").args(["-std=c89"]).args(warnings).arg(&include).arg(&source));
    run(Command::new("c++").args(["-std=c++98", "-x", "c++"]).args(warnings).arg(&include).arg(&source));
    // C++20 has other rules for comparisons.
    run(Command::new("c++").arg("-std=c++20").args(warnings).arg(&include).arg(crate_dir().join("tests/c/heap.cpp")));
}

/// Calls are renamed also if system headers give them other names.
#[test]
fn calls_are_renamed_whatever_the_system_headers_do() {
    let build = tempfile::tempdir().expect("a build directory");
    let object = build.path().join("posix.o");
    for macros in [&["-D_FILE_OFFSET_BITS=64"][..], &["-O2", "-D_FORTIFY_SOURCE=2"], &["-D_LARGEFILE64_SOURCE"]] {
        run(cc().args(macros).arg("-c").arg(source("posix")).arg("-o").arg(&object));
        let names = output_of(Command::new("nm").arg("--undefined-only").arg(&object));
        let names: Vec<&str> = names.split_whitespace().filter(|name| *name != "U").collect();
        let calls =
            ["open", "read", "pread", "write", "close", "lseek", "ftruncate", "fstat", "fsync", "mmap", "msync"];
        for call in calls {
            for name in [call.to_owned(), format!("{call}64"), format!("__{call}_chk"), format!("__{call}_alias")] {
                assert!(!names.contains(&name.as_str()), "{name} is called with {macros:?}");
            }
        }
        assert!(names.contains(&"untorn_mmap") && names.contains(&"untorn_fd_open"), "{names:?}");
        run(cc().args(macros).arg("-c").arg(source("posix_names")).arg("-o").arg(&object));
        let names = output_of(Command::new("nm").arg("--undefined-only").arg(&object));
        let names: Vec<&str> = names.split_whitespace().filter(|name| *name != "U").collect();
        let calls = ["openat", "rename", "renameat", "renameat2", "unlink", "unlinkat", "remove", "rmdir", "truncate"];
        let more =
            ["stat", "lstat", "fstatat", "dup", "dup2", "fcntl", "lockf", "creat", "mkstemps", "link", "sendfile"];
        for call in calls.iter().chain(&more).chain(&["fopen", "freopen", "fileno", "copy_file_range", "utimensat"]) {
            for name in [(*call).to_owned(), format!("{call}64"), format!("__{call}_chk"), format!("__{call}_alias")] {
                assert!(!names.contains(&name.as_str()), "{name} is called with {macros:?}");
            }
        }
    }
    // A call that cannot be checked at run time does not link, and the linker names the call.
    let unchecked = build.path().join("unchecked.c");
    for (call, arguments) in [
        ("open_by_handle_at", "int, void *, int"),
        ("remap_file_pages", "void *, unsigned long, int, unsigned long, int"),
        ("lio_listio", "int, void *, int, void *"),
        ("io_setup", "unsigned, void *"),
        ("io_uring_queue_init", "unsigned, void *, unsigned"),
    ] {
        let zeros = vec!["0"; arguments.split(',').count()].join(", ");
        let text = format!(
            "#include <untorn_posix.h>\nint {call}({arguments});\nint main(void) {{ return {call}({zeros}); }}\n"
        );
        fs::write(&unchecked, text).expect("a source");
        let linked = cc().arg(&unchecked).arg("-o").arg(build.path().join("unchecked")).output().expect("cc");
        let said = String::from_utf8_lossy(&linked.stderr);
        assert!(
            !linked.status.success() && said.contains(&format!("untorn_posix_cannot_check_{call}")),
            "{call}: {said}"
        );
        run(cc().arg("-DUNTORN_POSIX_ALLOW_UNCHECKED").arg("-c").arg(&unchecked).arg("-o").arg(&object));
    }
    // An include after system headers is an error.
    let late = build.path().join("late.c");
    fs::write(&late, "#include <unistd.h>\n#include <untorn_posix.h>\n").expect("a source");
    let refused = cc().args(["-D_FILE_OFFSET_BITS=64", "-fsyntax-only"]).arg(&late).output().expect("cc");
    assert!(String::from_utf8_lossy(&refused.stderr).contains("before any system header"), "{refused:?}");
}
