//! A directory of another machine as a bucket. The program that stands for ssh runs the command on this machine.

mod common;

use common::{Machine, run, text};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use untorn::Store;

struct Machines {
    dir: tempfile::TempDir,
    other: Machine,
}

impl Machines {
    fn new(login: &str) -> Machines {
        let dir = tempfile::tempdir().expect("a directory");
        let other = Machine::new(dir.path(), login);
        Machines { dir, other }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn url(&self) -> String {
        self.other.url(&self.path("bucket's place"))
    }

    fn try_to(&self, arguments: &[&str]) -> Output {
        self.other.program(arguments).output().expect("untorn-ship")
    }

    #[track_caller]
    fn call(&self, arguments: &[&str]) {
        let done = self.try_to(arguments);
        assert!(done.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&done.stderr));
    }
}

fn commit(dir: &Path, contents: &[u8]) {
    let store = Store::open_or_create(dir).expect("a store");
    let file = store.open_or_create_file("a").expect("a file");
    file.write_at(contents, 0).expect("a write");
    file.commit().expect("a commit");
    store.close().expect("closing");
}

#[test]
fn a_store_is_shipped_and_restored_by_ssh() {
    let machines = Machines::new("echo 'Welcome to this machine!'");
    let (store, restored) = (machines.path("store"), machines.path("restored"));
    commit(&store, b"one");
    machines.call(&["ship", text(&store), &machines.url(), "--once"]);
    commit(&store, b"two");
    machines.call(&["ship", text(&store), &machines.url(), "--once"]);
    machines.call(&["restore", &machines.url(), text(&restored)]);
    assert_eq!(fs::read(restored.join("a")).expect("the file"), b"two");
    machines.call(&["verify", &machines.url(), "--full"]);
    let calls = fs::read_to_string(machines.path("calls")).expect("calls");
    assert!(calls.contains("BatchMode=yes") && calls.contains("-p 2222 -- ann@other untorn-ship serve"), "{calls}");
    // The other machine's own view of the same place.
    let here = machines.path("restored there");
    let place = format!("file://{}", machines.path("bucket's place").display()).replace(' ', "%20");
    run(&["restore", &place, text(&here)]);
    assert_eq!(fs::read(here.join("a")).expect("the file"), b"two");
}

#[test]
fn a_machine_that_does_not_answer_is_named() {
    let machines = Machines::new("echo 'Permission denied (publickey)' >&2; exit 255");
    commit(&machines.path("store"), b"one");
    let done = machines.try_to(&["ship", text(&machines.path("store")), &machines.url(), "--once"]);
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(!done.status.success());
    assert!(said.contains("ann@other") && said.contains("without a password"), "{said}");
}

#[test]
fn the_serving_program_refuses_names_that_lead_elsewhere() {
    let machines = Machines::new("");
    let outside = machines.path("outside");
    fs::write(&outside, b"secret").expect("a file");
    let mut server = Command::new(env!("CARGO_BIN_EXE_untorn-ship"));
    server.arg("serve").arg(machines.path("bucket")).stdin(std::process::Stdio::piped());
    let mut server = server.stdout(std::process::Stdio::piped()).spawn().expect("a server");
    let name = b"../outside";
    let mut frame = (9 + 2 + name.len() as u32 + 8).to_le_bytes().to_vec();
    frame.extend(1_u64.to_le_bytes());
    frame.push(2);
    frame.extend((name.len() as u16).to_le_bytes());
    frame.extend(name);
    frame.extend(u64::MAX.to_le_bytes());
    std::io::Write::write_all(server.stdin.as_mut().expect("piped"), &frame).expect("a frame");
    let done = server.wait_with_output().expect("the end");
    assert!(!done.status.success(), "it went on");
    assert!(!done.stdout.windows(6).any(|part| part == b"secret"));
}
