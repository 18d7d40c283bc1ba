//! The log reaches a callback, and standard error where `UNTORN_LOG` asks for it.

mod common;

use common::{cc, link_with, run};
use std::fs;
use std::io::{Write, pipe};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::{Command, Stdio};

/// Leaves a store as a kill leaves it, then opens it. Arguments: the directory, the level of the callback, and whether
/// to put another file into the place of the one with commits. Prints the messages that the callback got.
const PROGRAM: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <untorn.h>

static void on_log(int level, const char *message, void *user_data) {
    fprintf(user_data, "%d %s\n", level, message);
    /* Refused: the library is busy with this call. */
    if (untorn_set_log(0, NULL, NULL) != -1) abort();
}

int main(int argc, char **argv) {
    untorn_store *store;
    untorn_file *file;
    untorn_options create = {.size = sizeof create, .flags = UNTORN_CREATE};
    if (argc != 4 || chdir(argv[1]) != 0) return 2;
    pid_t child = fork();
    if (child == 0) {
        if (!(store = untorn_store_open(".", &create))) _exit(3);
        if (!(file = untorn_open_at(store, "file", UNTORN_CREATE, 0644))) _exit(4);
        if (untorn_pwrite(file, "contents", 8, 0) != 8 || untorn_commit(file) != 0) _exit(5);
        _exit(0);
    }
    int status;
    if (waitpid(child, &status, 0) != child || status != 0) return 6;
    if (atoi(argv[3])) {
        if (unlink("file") != 0) return 7;
        FILE *other = fopen("file", "w");
        if (!other || fputs("foreign", other) < 0 || fclose(other) != 0) return 8;
    }
    if (untorn_set_log(UNTORN_LOG_DEBUG + 1, on_log, stdout) != -1) return 9;
    if (untorn_set_log(atoi(argv[2]), on_log, stdout) != 0) return 10;
    if (!(store = untorn_store_open(".", &create))) return 11;
    if (untorn_set_log(0, NULL, NULL) != 0) return 12;
    return untorn_store_close(store) == 0 ? 0 : 13;
}
"#;

/// The output of a run, and its standard error.
fn logged(program: &Path, level: u32, foreign: bool, variable: Option<&str>) -> (String, String) {
    let dir = tempfile::tempdir().expect("a directory");
    let mut command = Command::new(program);
    command.arg(dir.path()).arg(level.to_string()).arg(u32::from(foreign).to_string()).env_remove("UNTORN_LOG");
    if let Some(value) = variable {
        command.env("UNTORN_LOG", value);
    }
    let output = command.output().expect("the program");
    let text = |bytes| String::from_utf8(bytes).expect("text");
    let (out, err) = (text(output.stdout), text(output.stderr));
    assert!(output.status.success(), "{}\n{out}\n{err}", output.status);
    (out, err)
}

#[test]
fn recovery_and_quarantine_are_logged_to_whom_it_concerns() {
    let build = tempfile::tempdir().expect("a directory");
    let (source, program) = (build.path().join("log.c"), build.path().join("log"));
    fs::write(&source, PROGRAM).expect("a source");
    run(link_with(cc().arg(&source), &program));

    let nothing = (String::new(), String::new());
    assert_eq!(logged(&program, 0, true, None), nothing);
    assert_eq!(logged(&program, 2, false, None), nothing, "a recovery is no warning");
    let (out, err) = logged(&program, 3, false, None);
    assert!(out.contains("3 recovered a store that was not closed; store: .; commits: 2; files: 1"), "{out}");
    assert_eq!(err, "");
    let (out, _) = logged(&program, 2, true, None);
    assert!(out.starts_with("2 file quarantined; file: file; reason: file: the name is taken"), "{out}");

    let (out, err) = logged(&program, 0, true, Some("warn"));
    assert_eq!(out, "");
    assert!(err.contains("untorn: warning: file quarantined; file: file; reason: "), "{err}");
    assert!(!err.contains("recovered"), "{err}");
    let (_, err) = logged(&program, 0, false, Some("info"));
    assert!(err.contains("untorn: info: recovered a store that was not closed"), "{err}");
}

/// Leaves changes uncommitted in the directory of the first argument. The second argument selects the way.
const LEAVES: &str = r#"
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <untorn.h>

static void on_log(int level, const char *message, void *user_data) {
    fprintf(user_data, "%d %s\n", level, message);
}

int main(int argc, char **argv) {
    untorn_store *store;
    untorn_file *file, *again;
    untorn_options create = {.size = sizeof create, .flags = UNTORN_CREATE};
    if (argc != 4 || chdir(argv[1]) != 0) return 2;
    if (strcmp(argv[3], "closed") == 0) {
        /* As a daemon; the third file of its own has the number of standard error. */
        close(0), close(1), close(2);
        for (int n = 0; n < 3; n++)
            if (open("own", O_RDWR | O_CREAT, 0600) != n) return 13;
    }
    if (strcmp(argv[3], "callback") == 0 && untorn_set_log(UNTORN_LOG_WARN, on_log, stdout) != 0) return 3;
    if (!(store = untorn_store_open(".", &create))) return 4;
    if (!(file = untorn_open_at(store, "file", UNTORN_CREATE, 0644))) return 5;
    if (untorn_pwrite(file, "contents", 8, 0) != 8) return 6;
    if (!(again = untorn_dup(file)) || untorn_close(again) != 0) return 7;
    if (strcmp(argv[2], "commit") == 0 && untorn_commit(file) != 0) return 8;
    if (strcmp(argv[2], "rollback") == 0 && untorn_rollback(file) != 0) return 9;
    if (strcmp(argv[2], "on-close") == 0 && untorn_set_commit_on_close(file, 1) != 0) return 10;
    if (strcmp(argv[2], "store") != 0 && untorn_close(file) != 0) return 11;
    if (untorn_store_close(store) != 0) return 12;
    if (strcmp(argv[2], "store") == 0) untorn_close(file);
    return 0;
}
"#;

#[test]
fn closing_with_uncommitted_changes_is_told() {
    let build = tempfile::tempdir().expect("a directory");
    let (source, program) = (build.path().join("leaves.c"), build.path().join("leaves"));
    fs::write(&source, LEAVES).expect("a source");
    run(link_with(cc().arg(&source), &program));
    let left = |how: &str, to: &str, variable: Option<&str>| -> (String, String) {
        let dir = tempfile::tempdir().expect("a directory");
        let mut command = Command::new(&program);
        command.arg(dir.path()).args([how, to]).env_remove("UNTORN_LOG");
        variable.into_iter().for_each(|value| _ = command.env("UNTORN_LOG", value));
        let output = command.output().expect("the program");
        let text = |bytes| String::from_utf8(bytes).expect("text");
        assert!(output.status.success(), "{how}: {}", output.status);
        (text(output.stdout), text(output.stderr))
    };
    let said =
        "closed without a commit: uncommitted changes are discarded; store: .; file: file [untorn.file.discarded]\n";
    for how in ["close", "store"] {
        assert_eq!(left(how, "", None), (String::new(), format!("untorn: {said}")), "{how}");
        assert_eq!(left(how, "callback", None), (format!("2 {said}"), String::new()), "{how}");
        assert_eq!(left(how, "", Some("warn")), (String::new(), format!("untorn: warning: {said}")), "{how}");
        assert_eq!(left(how, "", Some("off")), (String::new(), String::new()), "{how}");
    }
    for how in ["commit", "rollback", "on-close"] {
        assert_eq!(left(how, "", None), (String::new(), String::new()), "{how}");
    }
}

/// The program has not asked for the message. So the message goes into no file of the program, and neither ends the
/// program nor blocks it.
#[test]
fn a_message_that_nobody_has_asked_for_does_no_harm() {
    let build = tempfile::tempdir().expect("a directory");
    let (source, program) = (build.path().join("leaves.c"), build.path().join("leaves"));
    fs::write(&source, LEAVES).expect("a source");
    run(link_with(cc().arg(&source), &program));
    for variable in [None, Some("warn")] {
        let dir = tempfile::tempdir().expect("a directory");
        let ends = |to: &str, stderr: Stdio| {
            let mut command = Command::new(&program);
            command.arg(dir.path()).args(["close", to]).env_remove("UNTORN_LOG").stderr(stderr);
            variable.iter().for_each(|value| _ = command.env("UNTORN_LOG", value));
            let status = command.status().expect("the program");
            assert!(status.success(), "{to}, {variable:?}: {status}");
        };
        ends("closed", Stdio::null());
        assert_eq!(fs::read(dir.path().join("own")).expect("the program's file"), b"", "{variable:?}");
        let (reader, writer) = pipe().expect("a pipe");
        drop(reader);
        ends("nobody reads", writer.into());
        if variable.is_none() {
            let (_reader, mut writer) = pipe().expect("a pipe");
            let number = writer.as_raw_fd();
            // SAFETY: changes the flags of a pipe of this test.
            let blocks = |yes| unsafe { libc::fcntl(number, libc::F_SETFL, if yes { 0 } else { libc::O_NONBLOCK }) };
            assert_eq!(blocks(false), 0);
            while writer.write(&[0; 4096]).is_ok() {}
            assert_eq!(blocks(true), 0);
            ends("full", writer.into());
        }
    }
}
