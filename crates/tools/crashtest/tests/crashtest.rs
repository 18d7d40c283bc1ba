//! Tests of `untorn-crashtest`: it finds wrong programs, passes right ones, and shows a violation again.
//!
//! It also says why it cannot work on a machine.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use untorn_testkit::NOBODY;

/// Replaces a file forty times, with or without the needed flushes.
const REPLACE: &str = r#"
n=0
while [ $n -lt 40 ]; do
    n=$((n + 1))
    printf "%05000d" 0 | tr 0 $((n % 10)) > "$1/counter.new"
    [ "$2" = careless ] || sync "$1/counter.new"
    mv "$1/counter.new" "$1/counter"
    [ "$2" = careless ] || sync "$1"
    echo $n
done
"#;

/// The counter must be complete, and be the last acknowledged one or the next one.
const CHECK: &str = r#"
last=$(tail -n 1 "$UNTORN_ACKED"); last=${last:-0}
[ "$last" = 0 ] && [ ! -s "$UNTORN_DIR/counter" ] && exit 0
text=$(cat "$UNTORN_DIR/counter") || exit 1
[ ${#text} = 5000 ] || { echo "${#text} bytes instead of 5000"; exit 1; }
for n in $((last % 10)) $(((last + 1) % 10)); do
    [ -z "$(printf %s "$text" | tr -d $n)" ] && exit 0
done
echo "it is neither $last nor the next one"
exit 1
"#;

/// The result of a run.
struct Run {
    code: Option<i32>,
    out: String,
    err: String,
}

impl From<Output> for Run {
    fn from(o: Output) -> Run {
        let text = |bytes| String::from_utf8(bytes).expect("the command prints UTF-8");
        Run { code: o.status.code(), out: text(o.stdout), err: text(o.stderr) }
    }
}

impl Run {
    #[track_caller]
    fn ok(self) -> String {
        assert_eq!(self.code, Some(0), "{}{}", self.out, self.err);
        self.out
    }

    /// Standard error of a run that ended with this code.
    #[track_caller]
    fn fails(self, code: i32) -> String {
        assert_eq!(self.code, Some(code), "{}{}", self.out, self.err);
        assert!(self.err.starts_with("untorn-crashtest: "), "{}", self.err);
        self.err
    }
}

struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    /// A place for the command. None, with a message, if it cannot work on this machine.
    fn new() -> Option<Place> {
        static WHY_NOT: OnceLock<Option<String>> = OnceLock::new();
        let place = Place { dir: tempfile::tempdir().unwrap() };
        fs::write(place.path("program.sh"), REPLACE).unwrap();
        fs::write(place.path("check.sh"), CHECK).unwrap();
        let why = WHY_NOT.get_or_init(|| {
            let run = place.crashtest(&[
                "--fs",
                "ext4",
                "--states",
                "1",
                "--check",
                "true",
                "--",
                "sh",
                "-c",
                "echo x > {}/x",
            ]);
            let (_, why) = run.err.split_once("crashtest cannot work here: ")?;
            Some(why.trim().to_owned())
        });
        if let Some(why) = why {
            println!("skipped: {why}");
            return None;
        }
        Some(place)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn crashtest(&self, arguments: &[&str]) -> Run {
        let mut command = Command::new(env!("CARGO_BIN_EXE_untorn-crashtest"));
        command.args(arguments).current_dir(&self.dir).stdin(Stdio::null());
        command.output().unwrap().into()
    }

    fn keep(&self) -> String {
        self.path("kept").to_str().unwrap().to_owned()
    }
}

const PROGRAM: [&str; 4] = ["--", "sh", "program.sh", "{}"];

#[test]
fn a_careless_program_is_found_and_its_violation_seen_again() {
    let Some(place) = Place::new() else { return };
    let keep = place.keep();
    let options = ["--fs", "xfs", "--check", "sh check.sh", "--seed", "7", "--keep", &keep, "--junit", "report.xml"];
    let run = place.crashtest(&[&options[..], &PROGRAM, &["careless"]].concat());
    assert_eq!(run.code, Some(1), "{}{}", run.out, run.err);
    assert!(
        run.out.contains("VIOLATION on xfs") && run.out.contains("surviv") && run.out.contains(" bytes at "),
        "{}",
        run.out
    );
    assert!(run.out.contains("the check says"), "{}", run.out);
    let report = fs::read_to_string(place.path("report.xml")).unwrap();
    assert!(report.contains("failures=\"1\""), "{report}");
    let (_, rest) = run.out.split_once("--replay ").expect("how to see it again");
    let seed = rest.split_whitespace().next().unwrap();
    let options = ["--fs", "xfs", "--check", "sh check.sh", "--keep", &keep, "--replay", seed];
    let again = place.crashtest(&options);
    assert_eq!(again.code, Some(1), "{}{}", again.out, again.err);
    let violation = |text: &str| text.split("to see it again").next().unwrap().to_owned();
    assert_eq!(violation(&again.out), violation(&run.out));
    assert!(Path::new(&keep).join(format!("xfs-{seed}.image")).exists());
}

#[test]
fn a_careful_program_passes() {
    let Some(place) = Place::new() else { return };
    let options = ["--fs", "ext4,xfs", "--check", "sh check.sh", "--states", "40", "--seed", "7"];
    let out = place.crashtest(&[&options[..], &PROGRAM, &["careful"]].concat()).ok();
    assert!(out.contains("no violation found"), "{out}");
    let rows: Vec<Vec<&str>> = out.lines().map(|line| line.split_whitespace().collect()).collect();
    for fs in ["ext4", "xfs"] {
        let row = rows.iter().find(|row| row.first() == Some(&fs)).expect("a row");
        assert_eq!(row[1], "40", "acknowledged: {out}");
        assert!(row[3].parse::<u64>().unwrap() >= 20, "crash states: {out}");
    }
}

#[test]
fn a_check_that_refuses_everything_is_no_violation() {
    let Some(place) = Place::new() else { return };
    let run = place.crashtest(&[&["--fs", "ext4", "--check", "echo no; false"], &PROGRAM[..], &["careful"]].concat());
    assert!(run.fails(2).contains("without a crash"));
    let run = place.crashtest(&[&["--fs", "ext4", "--check", "/no/such/check"], &PROGRAM[..], &["careful"]].concat());
    assert!(run.fails(2).contains("cannot run the check"));
}

#[test]
fn a_program_that_fails_is_told_and_one_that_never_ends_is_ended() {
    let Some(place) = Place::new() else { return };
    let check = ["--fs", "ext4", "--states", "5", "--check", "true", "--run-seconds", "1"];
    let run = place.crashtest(&[&check[..], &["--", "sh", "-c", "echo much is wrong >&2; exit 3"]].concat());
    assert!(run.fails(2).contains("much is wrong"));
    let for_ever = "while :; do echo x >> {}/file; sync {}/file; echo more; sleep 0.01; done";
    let out = place.crashtest(&[&check[..], &["--", "sh", "-c", for_ever]].concat()).ok();
    assert!(out.contains("no violation found"), "{out}");
}

#[test]
fn acknowledgements_may_go_to_the_file() {
    let Some(place) = Place::new() else { return };
    let program = "echo one > {}/file; sync {}/file; echo one >> $UNTORN_ACKS; echo two >> $UNTORN_ACKS";
    let check = r#"! grep -q two "$UNTORN_ACKED" || [ "$(cat {}/file)" = one ]"#;
    let out = place.crashtest(&["--fs", "ext4", "--check", check, "--", "sh", "-c", program]).ok();
    let row = out.lines().find(|line| line.trim_start().starts_with("ext4")).expect("a row");
    assert_eq!(row.split_whitespace().nth(1), Some("2"), "acknowledged: {out}");
}

#[test]
fn without_root_it_says_so() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: needs root");
        return;
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_untorn-crashtest"));
    command.args(["--check", "true", "--", "true"]).uid(NOBODY).gid(NOBODY);
    let Ok(output) = command.current_dir("/").output() else {
        println!("skipped: nobody may not execute the command where it was built");
        return;
    };
    assert!(Run::from(output).fails(2).contains("needs root"));
}

#[test]
fn completions_and_manual_pages_are_made() {
    let dir = tempfile::tempdir().unwrap();
    let run = |arguments: &[&str]| -> Run {
        let program = env!("CARGO_BIN_EXE_untorn-crashtest");
        Command::new(program).args(arguments).current_dir(&dir).output().unwrap().into()
    };
    for shell in ["bash", "zsh", "fish"] {
        let script = run(&["completions", shell]).ok();
        assert!(script.contains("untorn-crashtest") && script.contains("flush-us"), "{script}");
    }
    run(&["man", "."]).ok();
    let page = fs::read_to_string(dir.path().join("untorn-crashtest.1")).unwrap();
    assert!(page.contains("UNTORN_ACKED"), "{page}");
    assert_eq!(run(&[]).code, Some(2), "a program and a check are needed");
}

#[test]
fn a_writer_ends_with_the_reader_of_its_numbers() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_untorn-crashtest"));
    let mut writer = command.args(["disk", "write"]).arg(dir.path()).stdout(Stdio::piped()).spawn().unwrap();
    drop(writer.stdout.take());
    assert!(writer.wait().unwrap().success());
    let check = |last: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_untorn-crashtest"));
        Run::from(command.args(["disk", "check"]).arg(dir.path()).arg(last).output().unwrap())
    };
    check("1").ok();
    fs::write(dir.path().join("untorn-disk-test"), "a file of somebody else").unwrap();
    let foreign = check("1");
    assert!(foreign.code == Some(1) && foreign.out.contains("it is not the file of `write`"), "{}", foreign.out);
}

/// A disk whose file system sends it no flush is as one that lies.
#[test]
fn a_disk_that_lies_is_found() {
    let program = env!("CARGO_BIN_EXE_untorn-crashtest");
    let check = format!("{program} disk check {{}} \"$(tail -n 1 \"$UNTORN_ACKED\" | grep . || echo 0)\"");
    let Some(place) = Place::new() else { return };
    let run = |fs: &str| {
        let options = ["--fs", fs, "--seed", "3", "--states", "60", "--run-seconds", "2", "--check", &check, "--"];
        place.crashtest(&[&options[..], &[program, "disk", "write", "{}"]].concat())
    };
    let lies = run("ext4-nobarrier");
    assert_eq!(lies.code, Some(1), "{}{}", lies.out, lies.err);
    assert!(lies.out.contains("the disk lied: of "), "{}{}", lies.out, lies.err);
    run("ext4").ok();
}
