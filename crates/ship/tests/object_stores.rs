//! A store on a server: `make ship-tests` starts some, and gives the place in `UNTORN_SHIP_URL`.

mod common;

use common::{committed, contents, program, refused, run, text};
use std::path::Path;
use untorn::Store;
use untorn_testkit::skipped;

fn server() -> Option<String> {
    let url = std::env::var("UNTORN_SHIP_URL").ok();
    if url.is_none() {
        skipped("no server is given by UNTORN_SHIP_URL; `make ship-tests` starts some");
    }
    url
}

/// A place of its own for each test.
fn place(server: &str, dir: &Path) -> String {
    format!("{server}/{}", dir.file_name().unwrap().to_str().unwrap().trim_start_matches('.'))
}

#[test]
fn a_store_is_shipped_restored_followed_compacted_and_pruned() {
    let Some(server) = server() else { return };
    let dir = tempfile::tempdir().unwrap();
    let url = place(&server, dir.path());
    let path = dir.path().join("store");
    let store = Store::open_or_create(&path).unwrap();
    let file = store.open_or_create_file("a file").unwrap();
    let mut after = Vec::new();
    for round in 0..6u8 {
        file.write_all_at(&vec![round; 3 << 20], u64::from(round) << 20).unwrap();
        file.commit().unwrap();
        run(&["ship", text(&path), &url, "--once"]);
        after.push(committed(&path));
    }
    let restored = dir.path().join("restored");
    for (lsn, wanted) in &after {
        run(&["restore", &url, text(&restored), "--at", &lsn.to_string()]);
        assert_eq!(&contents(&restored), wanted, "#{lsn}");
        std::fs::remove_dir_all(&restored).unwrap();
    }
    let replica = dir.path().join("replica");
    run(&["follow", &url, text(&replica), "--once"]);
    assert_eq!(contents(&replica)[Path::new("a file")], after[5].1[Path::new("a file")]);
    run(&["compact", &url]);
    run(&["prune", &url, "--keep", "0s"]);
    let told = run(&["verify", &url, "--full", "--against", text(&path)]);
    assert!(told.starts_with("good: "), "{told}");
    let refusal = refused(&["restore", &url, text(&restored), "--at", &after[0].0.to_string()]);
    assert!(refusal.contains("pruned"), "{refusal}");
}

#[test]
fn wrong_credentials_are_told_and_never_shown() {
    let Some(server) = server() else { return };
    let dir = tempfile::tempdir().unwrap();
    let url = place(&server, dir.path());
    let store = Store::open_or_create(dir.path().join("store")).unwrap();
    store.open_or_create_file("a").unwrap().commit().unwrap();
    let secret = "notthesecretofthisserver";
    let path = dir.path().join("store");
    let mut ship = program(&["ship", text(&path), &url, "--once"]);
    let output = ship.env("AWS_SECRET_ACCESS_KEY", secret).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!said.contains(secret), "{said}");
    if output.status.success() {
        // moto takes every key.
        skipped("this server does not check keys");
        return;
    }
    assert!(said.contains("check the credentials"), "{said}");
}
