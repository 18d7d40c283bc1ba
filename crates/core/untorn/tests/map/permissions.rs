//! Maps of files that may only be read.

use crate::common::mapping::*;
use crate::common::*;
use std::fs;
use std::path::Path;
use untorn::StoreOptions;

#[test]
fn a_file_that_can_only_be_read() {
    let dir = directory();
    let path = dir.path().join("f");
    fs::write(&path, [9; 5000]).expect("write");
    set_mode(&path, 0o444);
    let work = |path: &Path| {
        let file = untorn::FileOptions::new().read_only(true).open(path).expect("open");
        let map = file.map().expect("map");
        assert_eq!(peek(&map, 4990, 10), [9; 10]);
        refused(map.store(b"x", 0), &["invalid"]);
        refused(map.msync(), &["invalid"]);
    };
    work(&path);
}

#[test]
fn a_map_for_reading_is_not_given_to_who_stores() {
    const ORDER: &str = "UNTORN_TEST_MAP_READER";
    let name = "a_map_for_reading_is_not_given_to_who_stores";
    let Some(dir) = std::env::var_os(ORDER) else {
        let dir = directory();
        fs::write(dir.path().join("f"), [1; PAGE]).expect("write");
        set_mode(dir.path().join("f"), 0o444);
        let mut command = untorn_testkit::again!(name);
        command.env(ORDER, dir.path());
        if is_root() {
            // An ordinary user, for whom modes have an effect.
            use std::os::unix::process::CommandExt;
            let nobody = 65534;
            for path in [dir.path().to_owned(), dir.path().join("f")] {
                std::os::unix::fs::chown(path, Some(nobody), Some(nobody)).expect("chown");
            }
            command.uid(nobody).gid(nobody);
        }
        let output = match command.output() {
            Ok(output) => output,
            Err(e) => return skipped(&format!("another user cannot run this program: {e}")),
        };
        assert!(output.status.success(), "{}: {}", output.status, String::from_utf8_lossy(&output.stderr));
        return;
    };
    let store = StoreOptions::new().create(true).background(false).open(Path::new(&dir)).expect("open");
    let reading = untorn::FileOptions::new().read_only(true);
    let reader = reading.open_in(&store, "f").expect("file");
    let map = reader.map().expect("map");
    let mut txn = store.begin();
    txn.chmod("f", 0o644).expect("chmod");
    txn.commit().expect("commit");
    let file = store.open_file("f").expect("file, for writing now");
    refused(file.map(), &["invalid"]);
    file.write_all_at(b"written", 0).expect("write");
    assert_eq!(loaded(&map, 0..8), b"written\x01");
    drop(map);
    let map = file.map().expect("map");
    fill(&map, 0..1, b'W');
    map.msync().expect("msync");
    assert_eq!(&committed(Path::new(&dir), &store)[..8], b"Written\x01");
}
