//! Heaps in programs built with sanitizers: each finds addresses that the sanitizer leaves free, and one heap can be
//! used with all of them and without.

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use common::{crate_dir, link_with, skipped};

const PROGRAM: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <pthread.h>
#include <untorn.h>

static long *counts;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static void *count(void *number) {
    for (int n = 0; n < 1000; n++) {
        pthread_mutex_lock(&mutex);
        counts[0]++;
        pthread_mutex_unlock(&mutex);
        counts[(long)number]++;
    }
    return NULL;
}

int main(int argc, char **argv) {
    untorn_heap_options options = {.size = sizeof options, .flags = UNTORN_CREATE};
    options.address = argc > 2 ? strtoull(argv[2], NULL, 16) : 0;
    void *found = NULL;
    untorn_heap *heap = untorn_heap_open(argv[1], &options, NULL);
    if (!heap) {
        fprintf(stderr, "%s\n", untorn_error_message());
        return 3;
    }
    if (untorn_heap_root(heap, "counts", "long[3]", 3 * sizeof(long), sizeof(long), 0, &found) < 0) return 4;
    if (!found) {
        found = untorn_heap_calloc(heap, 3, sizeof(long));
        if (!found || untorn_heap_set_root(heap, "counts", found, "long[3]", 3 * sizeof(long), sizeof(long), 0) != 0) return 5;
    }
    counts = found;
    long before = counts[0];
    pthread_t threads[2];
    for (long n = 0; n < 2; n++) pthread_create(&threads[n], NULL, count, (void *)(n + 1));
    for (int n = 0; n < 2; n++) pthread_join(threads[n], NULL);
    if (counts[0] != before + 2000 || counts[1] != counts[2]) return 6;
    if (untorn_heap_commit(heap) != 0) return 7;
    printf("%ld %#lx\n", counts[0], (unsigned long)untorn_heap_base(heap));
    return untorn_heap_close(heap) == 0 ? 0 : 8;
}
"#;

/// Builds the program. `None`: this compiler lacks the sanitizer here.
fn build(dir: &Path, name: &str, compiler: &str, sanitizer: &str) -> Option<PathBuf> {
    let source = dir.join("program.c");
    fs::write(&source, PROGRAM).expect("a source");
    let binary = dir.join(name);
    let mut command = Command::new(compiler);
    command.args(["-std=c11", "-O1", "-g", "-pthread", "-I"]).arg(crate_dir().join("../../../include"));
    if !sanitizer.is_empty() {
        command.arg(format!("-fsanitize={sanitizer}"));
    }
    let built = link_with(command.arg(&source), &binary).output();
    if built.is_ok_and(|output| output.status.success()) {
        return Some(binary);
    }
    assert!(!sanitizer.is_empty(), "the program must compile without a sanitizer");
    skipped(&format!("{compiler} has no -fsanitize={sanitizer} here"));
    None
}

fn start(binary: &Path, heap: &Path, address: &str) -> Output {
    // The library is not built with the sanitizer, so MemorySanitizer does not see the writes of bytes that it
    // compares.
    let mut command = Command::new(binary);
    command.env("MSAN_OPTIONS", "intercept_memcmp=0");
    // Nor does ThreadSanitizer see its locks.
    command.env("TSAN_OPTIONS", "ignore_noninstrumented_modules=1");
    command.arg(heap).args(Some(address).filter(|a| !a.is_empty())).output().expect("the program")
}

/// The output of a program that succeeds: its count and the heap's address.
fn counted(binary: &Path, heap: &Path, address: &str) -> (u64, u64) {
    let output = start(binary, heap, address);
    assert!(output.status.success(), "{}: {output:?}", binary.display());
    let said = String::from_utf8(output.stdout).expect("text");
    let (count, base) = said.trim().split_once(" 0x").expect("two numbers");
    (count.parse().expect("a number"), u64::from_str_radix(base, 16).expect("an address"))
}

#[test]
fn a_heap_works_under_every_sanitizer() {
    let dir = tempfile::tempdir().expect("a directory");
    let plain = build(dir.path(), "plain", "cc", "").expect("a program");
    let ordinary = dir.path().join("ordinary");
    let (_, base) = counted(&plain, &ordinary, "");
    assert!(((17 << 40)..(31 << 40)).contains(&base), "{base:#x}");
    // A heap for all of these programs.
    let shared = dir.path().join("shared");
    let address = if cfg!(target_arch = "aarch64") { "0xaaaa00000000" } else { "0x550000000000" };
    let mut runs = 1;
    assert_eq!(counted(&plain, &shared, address).0, 2000);
    let all = [("gcc", "thread"), ("clang", "thread"), ("clang", "memory"), ("gcc", "address"), ("clang", "address")];
    for (compiler, sanitizer) in all {
        let name = format!("{compiler}-{sanitizer}");
        let Some(binary) = build(dir.path(), &name, compiler, sanitizer) else { continue };
        let own = dir.path().join(format!("heap-{name}"));
        assert_eq!(counted(&binary, &own, "").0, 2000, "{name}");
        assert_eq!(counted(&plain, &own, "").0, 4000, "{name}");
        runs += 1;
        assert_eq!(counted(&binary, &shared, ""), (2000 * runs, u64::from_str_radix(&address[2..], 16).expect("hex")));
        if sanitizer == "thread" {
            let refused = start(&binary, &ordinary, "");
            let why = String::from_utf8_lossy(&refused.stderr);
            assert!(refused.status.code() == Some(3), "{name}: {refused:?}");
            assert!(why.contains("ThreadSanitizer") && why.contains("`address` between"), "{name}: {why}");
        }
    }
}
