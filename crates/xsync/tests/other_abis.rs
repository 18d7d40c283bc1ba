//! Programs of the machine's other ABIs: 32-bit ones run behind a filter of their own numbers, unknown ones are ended.
//!
//! A message names a program that is ended.

#![cfg(target_arch = "x86_64")]

mod common;

use common::{Place, Run};
use std::path::PathBuf;
use std::process::Command;

/// Makes system calls by number, and prints one character for each: + if the result is as expected, else -.
const CALLS: &str = r#"
static long call(long n, long a, long b, long c, long d, long e, long f) {
    long r;
    struct { long n, f; } in = { n, f };
    __asm__ volatile("push %%ebp; push %%ebx; mov %2, %%ebx; mov 4(%1), %%ebp; mov (%1), %%eax; int $0x80; pop %%ebx; pop %%ebp"
        : "=a"(r) : "a"(&in), "r"(a), "c"(b), "d"(c), "S"(d), "D"(e) : "memory");
    return r;
}
static int at;
static char out[64];
static void is(long found, long expected) { out[at++] = found == expected ? '+' : '-'; }
void _start(void) {
    int pipe[2];
    long open, socketcall[3] = { 40, 1, 0 };
    call(42, (long)pipe, 0, 0, 0, 0, 0);
    is(call(118, pipe[1], 0, 0, 0, 0, 0), FLUSHED);      /* fsync of a pipe */
    is(call(148, pipe[1], 0, 0, 0, 0, 0), FLUSHED);      /* fdatasync */
    is(call(118, -1, 0, 0, 0, 0, 0), -9);
    is(call(36, 0, 0, 0, 0, 0, 0), 0);                   /* sync */
    is(call(359, 40, 1, 0, 0, 0, 0), FAMILY);            /* socket of vsock */
    is(call(359, 1, 1, 0, 0, 0, 0) > 0, 1);
    is(call(102, 1, (long)socketcall, 0, 0, 0, 0), CALLED); /* the same, its arguments in memory */
    is(call(357, 0, 0, 0, 0, 0, 0), REFUSED);            /* bpf */
    is(call(425, 1, 0, 0, 0, 0, 0), RINGS);        /* io_uring_setup */
    open = call(5, (long)"mapped", 0102, 0600, 0, 0, 0);
    call(93, open, 4096, 0, 0, 0, 0);
    is((unsigned long)call(192, 0, 4096, 3, 1, open, 0) > -4096ul, MAPS); /* a shared map */
    { long old[6] = { 0, 4096, 3, 1, open, 0 };
      is((unsigned long)call(90, (long)old, 0, 0, 0, 0, 0) > -4096ul, MAPS); } /* by the old call */
    { long old[6] = { 0, 4096, 3, 0x22, -1, 0 };
      is((unsigned long)call(90, (long)old, 0, 0, 0, 0, 0) > -4096ul, 0); }
    out[at++] = '\n';
    call(4, 1, (long)out, at, 0, 0, 0);
    call(1, 7, 0, 0, 0, 0, 0);
}
"#;

/// Makes an x32 call, by a jump to a 64-bit code segment, which a 32-bit program has no other way to reach.
const X32: &str = r#"
void _start(void) {
    __asm__ volatile(".byte 0xea; .long 1f; .word 0x33\n1: mov $0x40000027, %eax; .byte 0x0f, 0x05; hlt");
}
"#;

/// Builds a 32-bit program in the working directory. None, with a message, if it cannot be built or run.
fn built(place: &Place, name: &str, source: &str, words: &str) -> Option<PathBuf> {
    let (file, program) = (place.dir.path().join("source.c"), place.work().join(name));
    std::fs::write(&file, source).unwrap();
    let mut compiler = Command::new("cc");
    compiler.args(["-m32", "-nostdlib", "-static", "-fno-pic", "-no-pie", "-fno-stack-protector", "-O1", "-o"]);
    let made = compiler.arg(&program).args(words.split_whitespace()).arg(&file).output();
    if !made.as_ref().is_ok_and(|made| made.status.success()) {
        println!("skipped: needs a C compiler that knows -m32: {made:?}");
        return None;
    }
    Some(program)
}

#[test]
fn programs_of_32_bits_run_and_their_calls_are_known() {
    let Some(place) = Place::new() else { return };
    let expected = |maps| format!("-DFLUSHED=0 -DFAMILY=-97 -DCALLED=-38 -DREFUSED=-1 -DRINGS=-38 -DMAPS={maps}");
    let Some(program) = built(&place, "natively", CALLS, &expected(0)) else { return };
    if Command::new(&program).current_dir(place.work()).output().ok().and_then(|run| run.status.code()) != Some(7) {
        println!("skipped: this kernel runs no 32-bit programs");
        return;
    }
    for (maps, refused) in [("allow", 0), ("strict", 0), ("refuse", 1)] {
        built(&place, "program", CALLS, &expected(refused)).unwrap();
        let run = place.run(&["--maps", maps, "--", "./program"]);
        assert_eq!((run.code, run.out.as_str(), run.err.as_str()), (Some(7), "++++++++++++\n", ""), "{maps}");
    }
}

#[test]
fn a_program_of_an_unknown_abi_is_ended_by_name() {
    let Some(place) = Place::new() else { return };
    let Some(program) = built(&place, "unknown", X32, "") else { return };
    let run = place.run(&["--", "./unknown"]);
    assert_eq!(run.code, Some(128 + libc::SIGSYS), "{run:?}");
    assert!(run.err.contains(&format!("{} is ended: it is a 32-bit program of a kind", program.display())), "{run:?}");
    // A program of the machine's own ABI may probe for x32.
    let asked: Run = place.run(&["--", place.probe().to_str().unwrap(), "x32"]);
    assert!(asked.code == Some(1) && asked.out.contains("38"), "{asked:?}");
}
