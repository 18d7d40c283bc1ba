//! A killed daemon is replaced, and programs only notice a pause; whichever other process is killed, nothing waits for
//! ever.

mod common;

use common::can_mount;
use fastrand::Rng;
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use untorn_mount::fuse::kernel;
use untorn_testkit::seed;

const PAGE: usize = 4096;
/// Everything that must end ends within this time.
const PATIENCE: Duration = Duration::from_secs(100);

struct Place {
    dir: TempDir,
}

impl Place {
    fn new() -> Option<Place> {
        if !kernel::repeats_requests() {
            eprintln!("skipped: Linux before 6.9 has no supervisor");
            return None;
        }
        can_mount().then(|| {
            let dir = tempfile::tempdir().unwrap();
            fs::create_dir(dir.path().join("mnt")).unwrap();
            Place { dir }
        })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().canonicalize().unwrap().join(name)
    }

    fn at(&self, name: &str) -> PathBuf {
        self.path("mnt").join(name)
    }

    fn program() -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_untorn-mount"));
        command.stdin(Stdio::null());
        command
    }

    fn mount(&self) {
        let output = Place::program().arg(self.path("store")).arg(self.path("mnt")).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    /// Mounts it after a kill: threads of a killed daemon keep the store until the disk lets them end.
    fn mount_after_kill(&self) {
        let end = Instant::now() + PATIENCE;
        loop {
            let output = Place::program().arg(self.path("store")).arg(self.path("mnt")).output().unwrap();
            if output.status.success() {
                return;
            }
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(Instant::now() < end, "{said}; {}", self.where_all_wait(None));
            thread::sleep(Duration::from_millis(50));
        }
    }

    fn umount(&self) -> String {
        let output = Place::program().arg("umount").arg(self.path("mnt")).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    fn processes(&self) -> Vec<(Pid, bool)> {
        common::serving_processes(&self.path("store"))
    }

    /// The daemon. Shortly after a kill there is another one.
    fn daemon(&self) -> Option<Pid> {
        self.processes().into_iter().find_map(|(pid, serves)| serves.then_some(pid))
    }

    fn supervisor(&self) -> Option<Pid> {
        self.processes().into_iter().find_map(|(pid, serves)| (!serves).then_some(pid))
    }

    /// Where in the kernel each thread of the mount's processes waits, and of one more process.
    fn where_all_wait(&self, other: Option<u32>) -> String {
        let served = self.processes().into_iter().map(|(pid, _)| pid.as_raw_pid());
        let tasks = served.chain(other.map(|pid| pid as i32)).flat_map(|pid| fs::read_dir(format!("/proc/{pid}/task")));
        let stack = |task: PathBuf| {
            let read = |name| fs::read_to_string(task.join(name)).unwrap_or_default();
            format!("{} {} waits in: {}", task.display(), read("comm").trim(), read("stack").replace('\n', " "))
        };
        tasks.flatten().flatten().map(|task| stack(task.path())).collect::<Vec<_>>().join("\n")
    }

    /// The process that writes back for the daemon.
    fn helper(&self) -> Option<Pid> {
        let daemon = self.daemon()?.as_raw_pid();
        let children = fs::read_to_string(format!("/proc/{daemon}/task/{daemon}/children")).ok()?;
        children.split_whitespace().find_map(|pid| Pid::from_raw(pid.parse().ok()?))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        while !self.processes().is_empty() {
            for (pid, _) in self.processes() {
                let _ = kill_process(pid, Signal::KILL);
            }
        }
        while untorn_mount::mounts::mount_point::mounted_at(&self.path("mnt")).unwrap().is_some() {
            let _ = untorn_mount::mounts::mount_point::detach(&self.path("mnt"));
        }
    }
}

/// Runs a call, and records the longest time of one so far.
fn timed<T>(longest: &AtomicU64, call: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let done = call();
    longest.fetch_max(start.elapsed().as_micros() as u64, SeqCst);
    done
}

/// State that the loads share with the kills.
#[derive(Default)]
struct Course {
    stop: AtomicBool,
    /// The longest time of a call so far.
    longest: AtomicU64,
    /// The rounds that each load has begun.
    rounds: [AtomicUsize; 2],
}

/// Names and synced files: made, written, synced, renamed over, linked, listed, removed.
fn names(dir: &Path, mut random: Rng, Course { stop, longest, rounds }: &Course) {
    let mut round = 0;
    while !stop.load(SeqCst) {
        round += 1;
        rounds[0].store(round, SeqCst);
        let (new, old, link) = (dir.join("new"), dir.join("old"), dir.join("link"));
        let bytes = vec![round as u8; random.usize(1..3 * PAGE)];
        let file = timed(longest, || File::create_new(&new).unwrap());
        timed(longest, || file.write_all_at(&bytes, 0).unwrap());
        if random.bool() {
            timed(longest, || file.sync_all().unwrap());
        }
        timed(longest, || fs::rename(&new, &old).unwrap());
        timed(longest, || fs::hard_link(&old, &link).unwrap());
        assert_eq!(timed(longest, || fs::read(&link).unwrap()), bytes);
        let below = dir.join(format!("dir{round}"));
        timed(longest, || fs::create_dir(&below).unwrap());
        timed(longest, || std::os::unix::fs::symlink("x", below.join("s")).unwrap());
        assert_eq!(timed(longest, || fs::read_dir(dir).unwrap().count()), 3);
        timed(longest, || fs::remove_file(below.join("s")).unwrap());
        timed(longest, || fs::remove_dir(&below).unwrap());
        timed(longest, || fs::remove_file(&link).unwrap());
        drop(file);
    }
}

/// A file that stays open, and is never synced as a whole; and a file without a name.
fn contents(dir: &Path, mut random: Rng, Course { stop, longest, rounds }: &Course) {
    let open = |name: &str| OpenOptions::new().read(true).write(true).create_new(true).open(dir.join(name)).unwrap();
    let (file, nameless) = (open("held"), open("nameless"));
    fs::remove_file(dir.join("nameless")).unwrap();
    let mut model = vec![0_u8; 64 * PAGE];
    file.set_len(model.len() as u64).unwrap();
    let (mut round, mut found) = (0, vec![0; model.len()]);
    while !stop.load(SeqCst) {
        round += 1;
        rounds[1].store(round, SeqCst);
        let at = random.usize(..model.len() - PAGE);
        let len = random.usize(1..PAGE);
        model[at..at + len].fill(random.u8(..));
        let bytes = &model[at..at + len];
        timed(longest, || file.write_all_at(bytes, at as u64).unwrap());
        timed(longest, || nameless.write_all_at(bytes, at as u64).unwrap());
        // Makes the kernel send its pages, and read them again.
        if round % 16 == 0 {
            rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
            timed(longest, || file.read_exact_at(&mut found, 0).unwrap());
            assert!(found == model, "round {round}: what was written is not there");
        }
        if round % 64 == 0 {
            timed(longest, || nameless.sync_data().unwrap());
        }
    }
    timed(longest, || file.sync_all().unwrap());
    file.read_exact_at(&mut found, 0).unwrap();
    assert!(found == model);
    fs::write(dir.join("model"), &model).unwrap();
}

#[test]
fn a_killed_daemon_is_replaced_unnoticed() {
    const KILLS: usize = 25;
    let Some(place) = Place::new() else { return };
    let mut random = Rng::with_seed(seed());
    place.mount();
    let course = &Course::default();
    ["names", "contents"].iter().for_each(|name| fs::create_dir(place.at(name)).unwrap());
    let (dirs, forks) = ([place.at("names"), place.at("contents")], [random.fork(), random.fork()]);
    thread::scope(|scope| {
        let [for_names, for_contents] = forks;
        let loads = [
            scope.spawn(|| names(&dirs[0], for_names, course)),
            scope.spawn(|| contents(&dirs[1], for_contents, course)),
        ];
        let goes_on = || loads.iter().all(|load| !load.is_finished());
        // Waits until each load has begun so many rounds more.
        let wait_for = |rounds: usize| {
            let (before, end) = (course.rounds.each_ref().map(|of| of.load(SeqCst)), Instant::now() + PATIENCE);
            while goes_on() && course.rounds.iter().zip(before).any(|(of, before)| of.load(SeqCst) < before + rounds) {
                assert!(Instant::now() < end, "the loads wait; {}", place.where_all_wait(None));
                thread::sleep(Duration::from_millis(1));
            }
        };
        wait_for(20);
        println!("without kills the longest call took {} ms", course.longest.swap(0, SeqCst) / 1000);
        for kill in 0..KILLS {
            // Avoids eight short lives in a row, after which the supervisor gives up.
            let life = if kill % 5 == 4 { 3000 } else { random.u64(20..250) };
            rustix::fs::statfs(place.path("mnt")).unwrap();
            thread::sleep(Duration::from_millis(life));
            if !goes_on() {
                break;
            }
            let end = Instant::now() + PATIENCE;
            let killed = loop {
                match place.daemon() {
                    Some(daemon) if kill_process(daemon, Signal::KILL).is_ok() => break daemon,
                    _ => assert!(Instant::now() < end, "there is no other daemon"),
                }
            };
            while place.daemon().is_none_or(|daemon| daemon == killed) {
                assert!(Instant::now() < end, "the daemon is not replaced");
                thread::yield_now();
            }
            // The next kill also comes while both are at work.
            wait_for(2);
        }
        course.stop.store(true, SeqCst);
        loads.into_iter().for_each(|load| load.join().unwrap());
        let longest_ms = course.longest.load(SeqCst) / 1000;
        println!("{KILLS} kills; {:?} rounds; the longest call took {longest_ms} ms", course.rounds);
    });
    place.umount();
    place.mount();
    let found = fs::read(place.at("contents/held")).unwrap();
    assert!(found == fs::read(place.at("contents/model")).unwrap(), "what was synced is there");
    place.umount();
    let store = place.path("store");
    let leftover =
        Command::new("find").args([store.as_os_str(), "-path".as_ref(), "*/obj/*/*".as_ref()]).output().unwrap();
    let objects = String::from_utf8_lossy(&leftover.stdout).lines().count();
    assert_eq!(objects, 2, "files without names leave nothing: {}", String::from_utf8_lossy(&leftover.stdout));
}

/// A daemon that dies of its requests is not started for ever.
#[test]
fn a_daemon_that_always_dies_is_given_up() {
    let Some(place) = Place::new() else { return };
    place.mount();
    fs::write(place.at("f"), "x").unwrap();
    let end = Instant::now() + PATIENCE;
    while place.supervisor().is_some() {
        assert!(Instant::now() < end, "it is started again and again");
        if let Some(daemon) = place.daemon() {
            let _ = kill_process(daemon, Signal::KILL);
        }
    }
    assert!(fs::read(place.at("f")).is_err());
    assert!(place.umount().contains("had ended before"));
    place.mount();
    place.umount();
}

/// Without its supervisor the daemon continues, and receives signals itself.
#[test]
fn a_daemon_outlives_its_supervisor() {
    let Some(place) = Place::new() else { return };
    place.mount();
    kill_process(place.supervisor().unwrap(), Signal::KILL).unwrap();
    fs::write(place.at("f"), "x").unwrap();
    let end = Instant::now() + PATIENCE;
    while let Some(daemon) = place.daemon() {
        assert!(Instant::now() < end, "it does not end");
        let _ = kill_process(daemon, Signal::TERM);
        thread::sleep(Duration::from_millis(50));
    }
    place.mount();
    assert_eq!(fs::read(place.at("f")).unwrap(), b"x");
    place.umount();
}

/// A program that works all the time during the next test.
const BUSY: &str = r#"
import mmap, os, random, sys
os.chdir(sys.argv[1])
n = 0
while True:
    n += 1
    try:
        with open("f%d" % (n % 3), "w+b") as f:
            f.truncate(1 << 20)
            with mmap.mmap(f.fileno(), 1 << 20) as m:
                for _ in range(20):
                    m[random.randrange(1 << 20)] = n % 256
                m.flush(0, 4096)
                os.fsync(f.fileno())
                f.write(b"x" * 10000)
                f.flush()
                os.rename(f.name, "g")
                m[5] = 7
        print("done", flush=True)
    except (OSError, ValueError, BufferError):
        pass
"#;

/// Kills a child, which must be able to end.
fn end(place: &Place, mut child: Child, what: &str) {
    child.kill().unwrap();
    let end = Instant::now() + PATIENCE;
    while child.try_wait().unwrap().is_none() {
        let pid = child.id();
        assert!(Instant::now() < end, "{what}: a program cannot be ended; {}", place.where_all_wait(Some(pid)));
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn whoever_is_killed_nothing_waits_for_ever() {
    if Command::new("python3").arg("-V").output().is_err() {
        eprintln!("skipped: needs python3");
        return;
    }
    let Some(place) = Place::new() else { return };
    let mut random = Rng::with_seed(seed());
    let mut counts = [0; 3];
    for round in 0..16 {
        place.mount_after_kill();
        let mut programs = Vec::new();
        for n in 0..2 {
            let dir = place.at(&format!("d{n}"));
            fs::create_dir_all(&dir).unwrap();
            let mut program = Command::new("python3");
            let mut program = program.args(["-c", BUSY]).arg(dir).stdout(Stdio::piped()).spawn().unwrap();
            let mut lines = BufReader::new(program.stdout.take().unwrap()).lines();
            assert_eq!(lines.next().expect("it goes on").unwrap(), "done");
            thread::spawn(move || lines.last());
            programs.push(program);
        }
        thread::sleep(Duration::from_millis(random.u64(10..120)));
        let whom = [place.supervisor(), place.daemon(), place.helper()];
        let mut which = random.u8(1..8);
        if round == 0 {
            which = 3;
        }
        for (n, pid) in whom.into_iter().enumerate().filter(|(n, _)| which >> n & 1 == 1) {
            counts[n] += usize::from(pid.is_some_and(|pid| kill_process(pid, Signal::KILL).is_ok()));
        }
        let what = format!("round {round}, killed {which:03b} (helper, daemon, supervisor)");
        thread::sleep(Duration::from_millis(random.u64(1..80)));
        programs.into_iter().for_each(|program| end(&place, program, &what));
        let deadline = Instant::now() + PATIENCE;
        loop {
            let unmounted = Place::program().arg("umount").arg(place.path("mnt")).output().unwrap();
            if unmounted.status.success() {
                break;
            }
            let said = String::from_utf8_lossy(&unmounted.stderr);
            assert!(
                Instant::now() < deadline,
                "{what}: it cannot be unmounted: {said}; {}",
                place.where_all_wait(None)
            );
            thread::sleep(Duration::from_millis(50));
        }
        while !place.processes().is_empty() {
            assert!(Instant::now() < deadline, "{what}: a process does not end; {}", place.where_all_wait(None));
            thread::sleep(Duration::from_millis(5));
        }
    }
    println!("killed: {counts:?} (supervisor, daemon, helper)");
    assert!(counts.iter().all(|count| *count > 0), "{counts:?}");
}

/// The store is renamed while it is mounted, and the daemon is killed: no new store is made at the old name, and no
/// message claims that one is there.
#[test]
fn a_store_that_was_renamed_is_not_made_anew() {
    let Some(place) = Place::new() else { return };
    place.mount();
    fs::write(place.at("a"), "kept").unwrap();
    File::open(place.at("a")).unwrap().sync_all().unwrap();
    let second = place.path("second");
    fs::create_dir(&second).unwrap();
    let refused = Place::program().arg(place.path("store")).arg(&second).output().unwrap();
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && said.contains("unmount it first") && !said.contains("`wait`"), "{said}");
    fs::rename(place.path("store"), place.path("moved")).unwrap();
    kill_process(place.daemon().unwrap(), Signal::KILL).unwrap();
    let started = Instant::now();
    while !untorn_mount::mounts::mount_point::is_dead(&place.path("mnt")) {
        assert!(started.elapsed() < PATIENCE, "the mount goes on");
        thread::sleep(Duration::from_millis(10));
    }
    assert!(!place.path("store").exists(), "a new store was made");
    let status = Place::program().arg("status").arg(place.path("mnt")).output().unwrap();
    let said = String::from_utf8_lossy(&status.stdout).into_owned();
    assert!(status.status.code() == Some(1) && said.contains("is no longer a store"), "{said}");
    let sync = Place::program().arg("sync").arg(place.path("mnt")).output().unwrap();
    assert!(String::from_utf8_lossy(&sync.stderr).contains("daemon has ended"), "{sync:?}");
    assert!(place.umount().contains("no longer a store"));
    fs::rename(place.path("moved"), place.path("store")).unwrap();
    place.mount();
    assert_eq!(fs::read(place.at("a")).unwrap(), b"kept");
}

#[test]
fn the_same_with_the_steps_for_an_older_kernel() {
    common::again_as_on_an_older_kernel("6.12");
}
