//! The program ships while another process writes, is killed, and goes on; also standalone files and heaps.

mod common;

use common::{Killed, committed, contents, program, run, text, url, wait_until};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;
use untorn::{File, Store};

fn background(arguments: &[&str]) -> Killed {
    Killed(program(arguments).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
}

fn shipped_lsn(store: &Path) -> u64 {
    let status = run(&["ship", "--status", text(store), "--json"]);
    let status: serde_json::Value = serde_json::from_str(&status).unwrap();
    status["slots"][0]["lsn"].as_u64().unwrap_or(0)
}

#[test]
fn killed_shippers_lose_nothing_that_they_acknowledged() {
    let seed = untorn_testkit::seed();
    let mut random = fastrand::Rng::with_seed(seed);
    let dir = tempfile::tempdir().unwrap();
    let (path, bucket) = (dir.path().join("store"), url(&dir.path().join("bucket")));
    let store = Store::open_or_create(&path).unwrap();
    let file = store.open_or_create_file("a").unwrap();
    let mut after = Vec::new();
    for round in 0..8 {
        let shipper = background(&["ship", text(&path), &bucket, "--interval", "5ms"]);
        for _ in 0..random.usize(1..12) {
            file.write_all_at(&random.u64(..).to_le_bytes(), random.u64(..5000)).unwrap();
            file.commit().unwrap();
            after.push(committed(&path));
            std::thread::sleep(Duration::from_millis(random.u64(..15)));
        }
        let lsn = after.last().unwrap().0;
        if round % 2 == 0 {
            wait_until("the last commit", || shipped_lsn(&path) >= lsn);
        }
        drop(shipper);
    }
    run(&["ship", text(&path), &bucket, "--once"]);
    let first = run(&["log", &bucket, "--json"]);
    let first: serde_json::Value = serde_json::from_str(first.lines().next().unwrap()).unwrap();
    let oldest = first["first"].as_u64().unwrap();
    let restored = dir.path().join("restored");
    let restorable: Vec<_> = after.iter().filter(|(lsn, _)| *lsn >= oldest).collect();
    println!("{} of {} commits can be restored", restorable.len(), after.len());
    assert!(restorable.len() >= 8, "each shipper has shipped one: {oldest}");
    for (lsn, wanted) in restorable {
        run(&["restore", &bucket, text(&restored), "--at", &lsn.to_string()]);
        assert_eq!(&contents(&restored), wanted, "#{lsn}, seed {seed}");
        std::fs::remove_dir_all(&restored).unwrap();
    }
    run(&["verify", &bucket, "--full", "--against", text(&path)]);
}

#[test]
fn a_second_machine_that_takes_over_shuts_the_first_one_out() {
    let dir = tempfile::tempdir().unwrap();
    let (path, bucket) = (dir.path().join("store"), url(&dir.path().join("bucket")));
    let store = Store::open_or_create(&path).unwrap();
    let file = store.open_or_create_file("a").unwrap();
    file.write_all_at(b"one", 0).unwrap();
    file.commit().unwrap();
    let mut first = background(&["ship", text(&path), &bucket, "--interval", "5ms"]);
    let lsn = committed(&path).0;
    wait_until("the first commit", || shipped_lsn(&path) >= lsn);
    let copy = dir.path().join("copy");
    assert!(std::process::Command::new("cp").arg("-a").args([&path, &copy]).status().unwrap().success());
    run(&["ship", text(&copy), &bucket, "--once", "--take-over"]);
    file.write_all_at(b"two", 0).unwrap();
    file.commit().unwrap();
    let mut end = None;
    wait_until("the end of the first one", || {
        end = first.0.try_wait().unwrap();
        end.is_some()
    });
    assert_eq!(end.unwrap().code(), Some(1));
    assert!(shipped_lsn(&path) < committed(&path).0);
}

#[test]
fn a_replica_follows_live_beside_its_readers() {
    let dir = tempfile::tempdir().unwrap();
    let (path, bucket) = (dir.path().join("store"), url(&dir.path().join("bucket")));
    let replica = dir.path().join("replica");
    let store = Store::open_or_create(&path).unwrap();
    let file = store.open_or_create_file("a").unwrap();
    file.write_all_at(&0u64.to_le_bytes(), 0).unwrap();
    file.commit().unwrap();
    run(&["ship", text(&path), &bucket, "--once"]);
    let _shipper = background(&["ship", text(&path), &bucket, "--interval", "5ms"]);
    let _follower = background(&["follow", &bucket, text(&replica), "--interval", "5ms"]);
    wait_until("the replica", || replica.join("a").exists());
    let mut seen = 0;
    for n in 1..30u64 {
        // Both ends of the file hold the same number in each commit.
        file.write_all_at(&n.to_le_bytes(), 0).unwrap();
        file.write_all_at(&n.to_le_bytes(), 1 << 20).unwrap();
        file.commit().unwrap();
        let Ok(reader) = untorn::Reader::open(&replica) else { continue };
        let Ok(bytes) = reader.read("a") else { continue };
        let number = |at: usize| bytes.get(at..at + 8).map_or(0, |b| u64::from_le_bytes(b.try_into().unwrap()));
        assert_eq!(number(0), number(1 << 20));
        assert!(number(0) >= seen);
        seen = number(0);
    }
    wait_until("the last commit", || {
        let reader = untorn::Reader::open(&replica).and_then(|reader| reader.read("a"));
        reader.is_ok_and(|bytes| bytes[..8] == 29u64.to_le_bytes())
    });
}

#[test]
fn a_standalone_file_is_restored() {
    let dir = tempfile::tempdir().unwrap();
    let (path, bucket) = (dir.path().join("foo.db"), url(&dir.path().join("bucket")));
    std::fs::write(&path, "before the store").unwrap();
    let file = File::open_or_create(&path).unwrap();
    file.write_all_at(b"one", 0).unwrap();
    file.commit().unwrap();
    run(&["ship", text(&path), &bucket, "--once"]);
    file.write_all_at(b"two", 3).unwrap();
    file.commit().unwrap();
    run(&["ship", text(&path), &bucket, "--once"]);
    let restored = dir.path().join("restored");
    run(&["restore", &bucket, text(&restored)]);
    assert_eq!(std::fs::read_to_string(restored.join("foo.db")).unwrap(), "onetwo the store");
    let again = File::open(restored.join("foo.db")).unwrap();
    again.write_all_at(b"six", 0).unwrap();
    again.commit().unwrap();
    run(&["ship", text(&restored.join("foo.db")), &bucket, "--once", "--take-over"]);
    let plain = dir.path().join("plain");
    run(&["restore", &bucket, text(&plain), "--plain"]);
    assert_eq!(std::fs::read_to_string(plain.join("foo.db")).unwrap(), "sixtwo the store");
    assert_eq!(std::fs::read_dir(&plain).unwrap().count(), 1);
}

#[test]
fn a_restored_store_goes_on_where_the_lost_machine_ended() {
    let dir = tempfile::tempdir().unwrap();
    let (path, bucket) = (dir.path().join("store"), url(&dir.path().join("bucket")));
    let store = Store::open_or_create(&path).unwrap();
    let file = store.open_or_create_file("a").unwrap();
    for n in 0..5u64 {
        file.write_all_at(&n.to_le_bytes(), 100 * n).unwrap();
        file.commit().unwrap();
        run(&["ship", text(&path), &bucket, "--once"]);
    }
    let (lsn, wanted) = committed(&path);
    let other = dir.path().join("other");
    run(&["restore", &bucket, text(&other)]);
    let reader = untorn::Reader::open(&other).unwrap();
    assert_eq!(reader.last_commit().unwrap(), untorn::Reader::open(&path).unwrap().last_commit().unwrap());
    assert_eq!(contents(&other), wanted);
    let went_on = Store::open(&other).unwrap();
    let file = went_on.open_file("a").unwrap();
    file.write_all_at(b"on the other machine", 0).unwrap();
    file.commit().unwrap();
    let refusal = common::refused(&["ship", text(&other), &bucket, "--once"]);
    assert!(refusal.contains("--take-over"), "{refusal}");
    run(&["ship", text(&other), &bucket, "--once", "--take-over"]);
    let (last, wanted) = committed(&other);
    assert!(last > lsn);
    let again = dir.path().join("again");
    run(&["restore", &bucket, text(&again), "--at", &last.to_string()]);
    assert_eq!(contents(&again), wanted);
    // The machine that was believed to be lost comes back.
    let refusal = common::refused(&["ship", text(&path), &bucket, "--once"]);
    assert!(refusal.contains("another machine"), "{refusal}");
}

#[test]
fn a_store_that_was_moved_away_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let (path, bucket) = (dir.path().join("store"), url(&dir.path().join("bucket")));
    Store::open_or_create(&path).unwrap().open_or_create_file("a").unwrap().commit().unwrap();
    run(&["ship", text(&path), &bucket, "--once"]);
    let mut shipper = program(&["ship", text(&path), &bucket, "--interval", "5ms", "--json"]);
    let mut shipper = shipper.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut started = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(shipper.stdout.take().unwrap()), &mut started).unwrap();
    std::fs::rename(&path, dir.path().join("moved")).unwrap();
    let said = String::from_utf8(shipper.wait_with_output().unwrap().stderr).unwrap();
    assert!(said.contains("store/.untorn") && said.contains("moved"), "{started}{said}");
}

#[test]
fn a_slot_without_an_acknowledgement_has_shipped_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let store = Store::open_or_create(&path).unwrap();
    store.open_or_create_file("a").unwrap().commit().unwrap();
    untorn::Slot::open_or_create(&path, "ship", None).unwrap();
    let said = run(&["ship", "--status", text(&path)]);
    assert!(said.contains("slot ship: nothing is shipped yet"), "{said}");
    assert_eq!(shipped_lsn(&path), 0);
}

#[test]
fn figures_are_served() {
    use std::io::{Read, Write};
    let dir = tempfile::tempdir().unwrap();
    let (path, bucket) = (dir.path().join("store"), url(&dir.path().join("bucket")));
    let store = Store::open_or_create(&path).unwrap();
    store.open_or_create_file("a").unwrap().commit().unwrap();
    let file = store.open_or_create_file("b").unwrap();
    file.write_all_at(b"x", 0).unwrap();
    file.commit().unwrap();
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let _shipper = background(&["ship", text(&path), &bucket, "--metrics", &port.to_string()]);
    let lsn = committed(&path).0;
    wait_until("figures", || {
        let Ok(mut stream) = std::net::TcpStream::connect(port) else { return false };
        stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        assert!(text.starts_with("HTTP/1.1 200 OK") && text.ends_with("# EOF\n"), "{text}");
        text.contains(&format!("\nuntorn_ship_lsn {lsn}\n")) && text.contains(&format!("\nuntorn_store_lsn {lsn}\n"))
    });
}

#[test]
fn a_promoted_replica_shuts_the_old_machine_out() {
    let dir = tempfile::tempdir().unwrap();
    let (path, bucket) = (dir.path().join("store"), url(&dir.path().join("bucket")));
    let replica = dir.path().join("replica");
    let store = Store::open_or_create(&path).unwrap();
    let file = store.open_or_create_file("a").unwrap();
    for n in 0..5u64 {
        file.write_all_at(&n.to_le_bytes(), 100 * n).unwrap();
        file.commit().unwrap();
        run(&["ship", text(&path), &bucket, "--once"]);
        run(&["follow", &bucket, text(&replica), "--once"]);
    }
    let (lsn, wanted) = committed(&path);
    // The old machine is alive.
    let mut old = background(&["ship", text(&path), &bucket, "--interval", "5ms"]);
    let told = run(&["follow", &bucket, text(&replica), "--promote"]);
    assert!(told.contains(&format!("from #{lsn} on")), "{told}");
    assert_eq!(contents(&replica), wanted);
    // As if it had been killed before it said so.
    let told = run(&["follow", &bucket, text(&replica), "--promote"]);
    assert!(told.contains("its promotion is finished"), "{told}");
    file.write_all_at(b"nobody is told of this", 0).unwrap();
    file.commit().unwrap();
    wait_until("the end of the old one", || old.0.try_wait().unwrap().is_some());
    assert!(shipped_lsn(&path) <= lsn);
    let promoted = Store::open(&replica).unwrap();
    let file = promoted.open_file("a").unwrap();
    file.write_all_at(b"written by the new one", 0).unwrap();
    file.commit().unwrap();
    // It owns the place: no option is needed.
    run(&["ship", text(&replica), &bucket, "--once"]);
    let (last, wanted) = committed(&replica);
    let restored = dir.path().join("restored");
    run(&["restore", &bucket, text(&restored), "--at", &last.to_string()]);
    assert_eq!(contents(&restored), wanted);
}

#[test]
fn a_place_that_became_empty_is_not_begun_anew() {
    let dir = tempfile::tempdir().unwrap();
    let (path, place) = (dir.path().join("store"), dir.path().join("bucket"));
    let bucket = url(&place);
    let store = Store::open_or_create(&path).unwrap();
    let file = store.open_or_create_file("a").unwrap();
    file.write_all_at(b"one", 0).unwrap();
    file.commit().unwrap();
    let ship = ["ship", text(&path), bucket.as_str(), "--once"];
    run(&ship);
    assert_eq!(std::fs::metadata(&place).unwrap().permissions().mode() & 0o777, 0o700);
    let refusal_begins = "is empty, though this slot has shipped to it: is its disk mounted, was it deleted?";
    std::fs::remove_dir_all(&place).unwrap();
    let refusal = common::refused(&ship);
    assert!(refusal.contains(refusal_begins) && !place.exists(), "{refusal}");
    // The mount point without its disk.
    std::fs::create_dir(&place).unwrap();
    let refusal = common::refused(&ship);
    assert!(refusal.contains(refusal_begins), "{refusal}");
    assert_eq!(std::fs::read_dir(&place).unwrap().count(), 0);
    untorn::Slot::open(&path, "ship").unwrap().drop_slot().unwrap();
    run(&ship);
    let restored = dir.path().join("restored");
    run(&["restore", &bucket, text(&restored)]);
    assert_eq!(contents(&restored), committed(&path).1);
}

#[test]
fn a_place_and_a_store_do_not_contain_one_another() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    Store::open_or_create(&path).unwrap().open_or_create_file("a").unwrap().commit().unwrap();
    std::os::unix::fs::symlink(&path, dir.path().join("link")).unwrap();
    for place in [path.join("bucket"), path.join("new/bucket"), dir.path().join("link/bucket"), dir.path().to_owned()] {
        let refusal = common::refused(&["ship", text(&path), &url(&place), "--once"]);
        assert!(refusal.contains("inside of"), "{}: {refusal}", place.display());
    }
    assert!(!path.join("bucket").exists() && !path.join("new").exists());
}
