//! A short run of `untorn-bench demo`.

use std::process::{Command, Stdio};
use std::time::Duration;

#[test]
fn untorn_is_never_torn_and_nothing_is_left() {
    let dir = tempfile::tempdir().unwrap();
    let input = dir.path().join("input");
    let text: String = (0..400).map(|n| format!("Package: p{n}\nStatus: {}\n\n", "ok ".repeat(n))).collect();
    std::fs::write(&input, text).unwrap();
    let run = Command::new(env!("CARGO_BIN_EXE_untorn-bench"))
        .args(["demo", "--kills", "30", "--seed", "7", "--dir"])
        .args([dir.path(), &input])
        .output()
        .unwrap();
    let [err, out] = [run.stderr, run.stdout].map(|bytes| String::from_utf8(bytes).unwrap());
    assert_eq!(run.status.code(), Some(0), "{out}{err}");
    assert!(err.contains("400 records") && err.contains("seed 7"), "{err}");
    let cells = |name: &str| -> Vec<u64> {
        let line = out.lines().find(|l| l.contains(name)).unwrap_or_else(|| panic!("{name} in {out}"));
        line.split_whitespace().filter_map(|word| word.parse().ok()).collect()
    };
    assert_eq!(cells("times killed"), [30; 4]);
    assert_eq!([1, 3].map(|untorn| cells("torn states found")[untorn]), [0, 0]);
    assert_eq!(cells("acknowledged updates lost"), [0; 4]);
    // The first child of each keeper makes so many updates. The number of the others depends on the disk.
    assert!(cells("updates made").iter().all(|&n| n >= 12), "{out}");
    let times = out.lines().filter(|l| l.contains("(median)") && (l.contains(" µs") || l.contains(" ms")));
    assert_eq!(times.count(), 2, "{out}");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "only the input is left");
}

#[test]
fn interrupted_it_cleans_up() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_untorn-bench"));
    command.args(["demo", "--kills", "100000", "--dir"]).arg(dir.path());
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    while std::fs::read_dir(dir.path()).unwrap().count() == 0 {
        std::thread::sleep(Duration::from_millis(10));
    }
    std::thread::sleep(Duration::from_millis(300));
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let run = child.wait_with_output().unwrap();
    let err = String::from_utf8(run.stderr).unwrap();
    assert_eq!((run.status.code(), err.lines().last()), (Some(130), Some("untorn-bench: interrupted")));
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}
