//! Versions of a directory: each commit makes a new version and removes the one before. The disk fills up, the
//! directory is closed and opened, and owners are killed. The model knows the version that the store must have. Once
//! nothing is in the way and a checkpoint has succeeded, exactly that version must be on the disk, complete. Until
//! then, old names may still be on the disk.
//!
//! `UNTORN_TEST_SEED` chooses the rounds, `UNTORN_VERSION_ROUNDS` sets their number.

mod common;

use common::*;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;
use untorn::{Store, StoreOptions};

const TEST: &str = "versions_of_a_directory_survive_full_disks_closed_directories_and_kills";
const PLACE: &str = "UNTORN_TEST_VERSIONS";
const USER: u32 = 65534;
const ROUNDS: u64 = 10;
const CONTENTS_BYTES: usize = 3000;

fn contents(n: u64) -> Vec<u8> {
    vec![n as u8; CONTENTS_BYTES]
}

fn replace(store: &Store, n: u64) -> untorn::Result<()> {
    let mut txn = store.begin();
    txn.mkdir(format!("top/v{n}"), 0o700)?;
    txn.create(format!("top/v{n}/f"), 0o600)?.write_all_at(&contents(n), 0)?;
    if n > 1 {
        txn.unlink(format!("top/v{}/f", n - 1))?;
        txn.rmdir(format!("top/v{}", n - 1))?;
    }
    txn.commit()
}

/// The store's answer for a version: complete, absent, or waiting (None).
fn has(store: &Store, n: u64) -> Option<bool> {
    match store.open_file(format!("top/v{n}/f")) {
        Ok(file) => {
            let mut bytes = vec![0; CONTENTS_BYTES];
            file.read_exact_at(&mut bytes, 0).unwrap();
            assert_eq!((file.len().unwrap(), bytes), (CONTENTS_BYTES as u64, contents(n)), "version {n}");
            Some(true)
        }
        Err(e) if e.os_error() == Some(libc::ENOENT) => Some(false),
        Err(_) => None,
    }
}

/// Prints the version that the store has, and makes later ones until it is killed; or closes it.
fn own(place: &Path, order: &str) {
    // SAFETY: plain numbers.
    assert_eq!(unsafe { libc::setresgid(USER, USER, USER) | libc::setresuid(USER, USER, USER) }, 0);
    let [acknowledged, heal] = order.split(' ').map(|word| word.parse::<u64>().unwrap()).collect::<Vec<_>>()[..] else {
        panic!("{order}")
    };
    let store = match StoreOptions::new().create(true).journal_bytes(64 << 10).open(place) {
        // There may be no room for the recovery.
        Err(e) if heal == 0 => return println!("closed {e}"),
        opened => opened.unwrap(),
    };
    if heal == 1 {
        assert_eq!(store.status().quarantined, []);
        store.checkpoint().unwrap();
    }
    let [next, newest] = [acknowledged + 1, acknowledged].map(|n| if n == 0 { Some(false) } else { has(&store, n) });
    let mut n = match (next, newest) {
        (Some(true), _) => acknowledged + 1,
        (Some(false), Some(true)) => acknowledged,
        (Some(false), Some(false)) if acknowledged == 0 => 0,
        (Some(false), Some(false)) => panic!("version {acknowledged} was acknowledged, and is not there"),
        _ => return println!("waits"),
    };
    println!("at {n}");
    if heal == 1 {
        return store.close().unwrap();
    }
    for turn in 0_u64.. {
        match replace(&store, n + 1) {
            Ok(()) => {
                n += 1;
                println!("at {n}");
            }
            Err(e) => {
                let expected = ["no-space", "io", "conflict"];
                assert!(expected.contains(&e.kind()), "version {}: {}: {e}", n + 1, e.kind());
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        if turn % 7 == 0 {
            let _ = store.checkpoint();
        }
    }
}

/// The mounted file system, and the obstacles on it.
struct Place {
    mount: PathBuf,
    top: PathBuf,
}

impl Place {
    fn fill(&self, full: bool) {
        let filler = self.mount.join("filler");
        let _ = fs::remove_file(&filler);
        if full {
            let mut bytes = 1 << 20;
            while bytes >= 512 {
                let before = fs::metadata(&filler).map_or(0, |meta| meta.len());
                let all = vec![1; before as usize + bytes];
                if fs::write(&filler, &all).is_err() {
                    bytes /= 2;
                }
                if before > 64 << 20 {
                    return;
                }
            }
        }
    }

    fn close(&self, closed: bool) {
        fs::set_permissions(&self.top, fs::Permissions::from_mode(if closed { 0o500 } else { 0o700 })).unwrap();
    }
}

#[test]
fn versions_of_a_directory_survive_full_disks_closed_directories_and_kills() {
    if let (Some(place), Ok(order)) = (std::env::var_os(PLACE), std::env::var("UNTORN_TEST_ORDER")) {
        return own(Path::new(&place), &order);
    }
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let (seed, rounds) = (number("UNTORN_TEST_SEED").unwrap_or(1), number("UNTORN_VERSION_ROUNDS").unwrap_or(ROUNDS));
    println!("UNTORN_TEST_SEED={seed}");
    let dir = directory();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    for file_system in ["tmpfs", "ext4"] {
        let at = dir.path().join(file_system);
        fs::create_dir(&at).unwrap();
        let mounted = match file_system {
            "tmpfs" => Mount::new(&["-t", "tmpfs", "-o", "size=2m", "none"], &at),
            _ => Mount::ext4(8 << 20, &at),
        };
        let Some(mounted) = mounted else { return };
        let store = mounted.path().join("store");
        let place = Place { mount: mounted.path().to_owned(), top: store.join("top") };
        for new in [&store, &place.top] {
            fs::create_dir(new).unwrap();
            std::os::unix::fs::chown(new, Some(USER), Some(USER)).unwrap();
        }
        let rng = &mut fastrand::Rng::with_seed(seed);
        let (mut newest, mut waited, mut closed) = (0, 0, 0);
        for round in 0..20 * rounds {
            // On a slow disk the first version takes longer than a child lives.
            if round >= rounds && newest > 0 {
                break;
            }
            let heals = round % 5 == 4 || round + 1 == rounds;
            place.fill(!heals && rng.u8(..3) == 0);
            place.close(!heals && rng.u8(..3) == 0);
            let mut command = untorn_testkit::again!(TEST);
            command.env(PLACE, &store).env("UNTORN_TEST_ORDER", format!("{newest} {}", u8::from(heals)));
            let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
            let output = child.stdout.take().unwrap();
            let reader = std::thread::spawn(move || {
                BufReader::new(output).lines().map_while(Result::ok).collect::<Vec<String>>()
            });
            if !heals {
                for _ in 0..rng.u8(1..4) {
                    std::thread::sleep(Duration::from_millis(rng.u64(5..40) * (1 + round / rounds)));
                    match rng.u8(..4) {
                        0 => place.fill(rng.bool()),
                        1 | 2 => place.close(rng.bool()),
                        _ => {}
                    }
                }
                let _ = child.kill();
            }
            let ended = child.wait_with_output().unwrap();
            let lines = reader.join().unwrap();
            let why = || {
                format!(
                    "{file_system}, seed {seed}, round {round}: {lines:?}\n{}",
                    String::from_utf8_lossy(&ended.stderr)
                )
            };
            // Killed or finished; every other end is an error.
            assert!(ended.status.code().is_none_or(|code| code == 0), "{}", why());
            let found =
                lines.iter().filter_map(|line| line.split_once("at ")?.1.trim().parse::<u64>().ok()).next_back();
            waited += u64::from(lines.iter().any(|line| line.ends_with("waits")));
            closed += u64::from(lines.iter().any(|line| line.contains("closed ")));
            assert!(found.is_none_or(|found| found >= newest), "{}", why());
            newest = found.unwrap_or(newest);
            if heals {
                assert!(found.is_some(), "{}", why());
                let mut names: Vec<_> = fs::read_dir(&place.top)
                    .unwrap()
                    .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                    .collect();
                names.sort();
                let expected: Vec<_> = (newest > 0).then(|| format!("v{newest}")).into_iter().collect();
                assert_eq!(names, expected, "{}", why());
                if newest > 0 {
                    assert_eq!(plain(place.top.join(format!("v{newest}/f"))), contents(newest), "{}", why());
                }
            }
        }
        println!(
            "{file_system}: {rounds} rounds, {newest} versions; {waited} times a version waited, {closed} times the store stayed closed"
        );
        assert!(newest > 0);
    }
}
