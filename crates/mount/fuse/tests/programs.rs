//! Real programs on a mount: shells, copies, git, SQLite, mapped files.

mod common;

use common::Mount;
use std::fs;
use std::process::{Command, Stdio};

/// Whether a program is installed; prints a message if not.
fn there(program: &str) -> bool {
    let there = Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    let there = there.is_ok_and(|status| status.success());
    if !there {
        eprintln!("skipped: needs {program}");
    }
    there
}

fn run(mount: &Mount, program: &str, script: &str) -> String {
    let mut command = Command::new(program);
    let output = command.args(["-c", script]).current_dir(mount.path()).stdin(Stdio::null()).output().unwrap();
    let [out, err] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    assert!(output.status.success(), "{script}: {out}{err}");
    out
}

#[test]
fn shells_and_copies() {
    let Some(mount) = Mount::new() else { return };
    let script = "set -e
        mkdir -p a/b; seq 100000 > a/b/numbers; cp -a a c; ln -s b a/link; ln a/b/numbers a/hard
        tar cf a.tar a; mkdir t; tar xf a.tar -C t; diff -r a t/a
        dd if=a/b/numbers of=direct bs=64k oflag=direct status=none 2>/dev/null || cp a/b/numbers direct
        cmp direct a/b/numbers
        sed -i 's/^7$/seven/' a/b/numbers; grep -c seven a/b/numbers
        mv a/b c/d; truncate -s 1M sparse; stat -c %s sparse; rm -r a t; ls";
    assert_eq!(run(&mount, "sh", script), "1\n1048576\na.tar\nc\ndirect\nsparse\n");
}

#[test]
fn git() {
    let Some(mount) = Mount::new() else { return };
    if !there("git") {
        return;
    }
    let script = "set -e
        export HOME=$PWD GIT_CONFIG_NOSYSTEM=1; git init -q -b main r; cd r
        git config user.email a@b; git config user.name a; git config core.fsync all
        for n in 1 2 3; do seq $n 1000 > f$n; git add .; git commit -qm $n; done
        git gc -q; git fsck --strict; git clone -q . ../s; cd ../s; git log --oneline | wc -l; git status --short";
    assert_eq!(run(&mount, "sh", script).trim(), "3");
}

#[test]
fn sqlite_in_three_journal_modes_with_two_connections() {
    let Some(mount) = Mount::new() else { return };
    if !there("python3") {
        return;
    }
    let script = "
import sqlite3, sys
for mode in 'delete', 'wal', 'off':
    first, second = [sqlite3.connect(mode + '.db', isolation_level=None, timeout=20) for _ in range(2)]
    assert first.execute('pragma journal_mode=' + mode).fetchone()[0] == mode
    first.execute('pragma synchronous=full')
    first.execute('create table t (n integer primary key, v blob)')
    for n in range(200):
        (first, second)[n % 2].execute('insert into t values (?, randomblob(2000))', (n,))
    assert second.execute('select count(*) from t').fetchone()[0] == 200
    assert first.execute('pragma integrity_check').fetchone()[0] == 'ok'
print('well')
";
    assert_eq!(run(&mount, "python3", script), "well\n");
}

#[test]
fn mapped_files_of_two_processes() {
    let Some(mount) = Mount::new() else { return };
    if !there("python3") {
        return;
    }
    fs::write(mount.at("m"), vec![0; 1 << 20]).unwrap();
    let script = "
import mmap, os
with open('m', 'r+b') as f:
    m = mmap.mmap(f.fileno(), 0)
    child = os.fork()
    if child == 0:
        m[500000:500005] = b'child'
        m.flush()
        os._exit(0)
    os.waitpid(child, 0)
    assert m[500000:500005] == b'child'
    m[0:6] = b'parent'
    m.flush(0, 4096)
";
    run(&mount, "python3", script);
    let content = fs::read(mount.at("m")).unwrap();
    assert_eq!((&content[..6], &content[500_000..500_005]), (b"parent".as_slice(), b"child".as_slice()));
}
