//! Other programs that change a mapped file, and a file system that copies the file up.

use crate::common::mapping::*;
use crate::common::*;
use std::fs;
use std::os::unix::fs::FileExt;
use untorn::{MapOptions, StoreOptions};

#[test]
fn other_programs_that_change_the_file() {
    with_trackers(|tracker| {
        // Changed in place, truncated, replaced: a clear error at the next commit, and nothing is overwritten.
        for how in ["change", "truncate", "replace"] {
            let dir = directory();
            let (store, _file, map) = mapped(dir.path(), 4, &MapOptions::new().tracker(tracker));
            poke(&map, 0, b"mine");
            map.msync().expect("msync");
            store.checkpoint().expect("checkpoint");
            let path = dir.path().join("f");
            let theirs = match how {
                "change" => {
                    let file = fs::OpenOptions::new().write(true).open(&path).expect("open");
                    std::thread::sleep(std::time::Duration::from_millis(10));
                    file.write_all_at(b"theirs", 2 * PAGE as u64).expect("write");
                    plain(&path)
                }
                "truncate" => {
                    fs::OpenOptions::new().write(true).open(&path).expect("open").set_len(100).expect("truncate");
                    plain(&path)
                }
                _ => {
                    fs::write(dir.path().join("new"), b"another file").expect("write");
                    fs::rename(dir.path().join("new"), &path).expect("rename");
                    b"another file".to_vec()
                }
            };
            // The first page is private, so it can be stored to even if the file has changed, unless the file was
            // truncated.
            if how != "truncate" {
                poke(&map, 1, b"X");
            } else {
                map.mark_dirty(map.as_ptr(), 1).expect("mark");
            }
            let e = match map.msync() {
                // A replaced file is detected when the checkpoint is about to write it.
                Ok(()) if how == "replace" => refused(store.checkpoint(), &["conflict"]),
                done => refused(done, &["conflict"]),
            };
            println!("{tracker}, {how}: {e}");
            assert_same(&plain(&path), &theirs, how);
        }
    });
}

#[test]
fn a_truncation_behind_our_back_is_an_error_not_a_signal() {
    with_trackers(|tracker| {
        let dir = directory();
        let (_store, _file, map) = mapped(dir.path(), 4, &MapOptions::new().tracker(tracker));
        let path = dir.path().join("f");
        fs::OpenOptions::new().write(true).open(&path).expect("open").set_len(0).expect("truncate");
        refused(map.load(&mut [0; 10], 0), &["conflict"]);
        refused(map.store(b"x", 0), &["conflict"]);
        map.mark_dirty(map.as_ptr(), 10).expect("mark");
        refused(map.msync(), &["conflict"]);
    });
}

#[test]
fn overlayfs() {
    with_trackers(|tracker| {
        let dir = directory();
        let sub = |name: &str| {
            let path = dir.path().join(name);
            fs::create_dir(&path).expect("mkdir");
            path
        };
        let (lower, upper, work, merged) = (sub("lower"), sub("upper"), sub("work"), sub("merged"));
        fs::write(lower.join("f"), [3; 3 * PAGE]).expect("write");
        let options =
            format!("lowerdir={},upperdir={},workdir={},userxattr", lower.display(), upper.display(), work.display());
        let Some(mount) = Mount::new(&["-t", "overlay", "overlay", "-o", &options], &merged) else { return };
        let store = match StoreOptions::new().create(true).background(false).open(mount.path()) {
            Ok(store) => store,
            Err(e) => return skipped(&format!("overlayfs here: {e}")),
        };
        let file = store.open_file("f").expect("file");
        let map = file.map_with(&MapOptions::new().tracker(tracker)).expect("map");
        poke(&map, 10, b"copied up");
        map.msync().expect("msync");
        map.reclaim().expect("quiesce");
        assert_eq!(peek(&map, 10, 9), b"copied up", "the file shows through, not its lower self");
        drop((map, file));
        store.close().expect("close");
        assert_eq!(&plain(merged.join("f"))[10..19], b"copied up");
        assert_eq!(plain(lower.join("f")), [3; 3 * PAGE]);
    });
}
