//! Lack of space, journal, descriptors, or the right to write. Operations that are not possible are refused cleanly,
//! and those that free space still work. The tests make file systems, which needs root.

mod common;

use common::child_process::{ChildProcess, close_clean_with, crash_in, crashed_store, path_text};
use common::*;
use std::fs;
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::time::Duration;
use tempfile::TempDir;
use untorn::{Error, Store, StoreOptions};
use untorn_testkit::NOBODY;

const MIB: u64 = 1 << 20;
const LIMIT: Duration = Duration::from_secs(60);

/// A small ext4 of the test's own, to be filled.
fn small_disk(bytes: u64) -> Option<(TempDir, Mount)> {
    let dir = directory();
    let place = dir.path().join("disk");
    fs::create_dir(&place).unwrap();
    let mount = Mount::ext4(bytes, &place)?;
    Some((dir, mount))
}

/// Takes all the space that is left, down to the last block.
fn fill_up(disk: &Path) {
    let mut ballast = fs::File::create(disk.join("ballast")).unwrap();
    for block in [1 << 20, 4096, 1] {
        while ballast.write(&vec![1; block]).is_ok_and(|n| n > 0) {}
    }
    // Delayed allocation may report the lack of space only now.
    let _ = ballast.sync_all();
}

#[test]
fn no_space_at_commit_is_clean() {
    let Some((_dir, disk)) = small_disk(24 * MIB) else { return };
    let dir = disk.path();
    let store = StoreOptions::new().create(true).journal_bytes(MIB).open(dir).unwrap();
    let file = store.open_or_create_file("a").unwrap();
    file.write_all_at(&text("old", "a"), 0).unwrap();
    file.commit().unwrap();
    let small = store.open_or_create_file("small").unwrap();
    small.append(b"small").unwrap();
    small.commit().unwrap();

    // More than the disk holds, written from memory; the write or the commit is refused.
    let part = vec![7; MIB as usize];
    let done = (0..40).try_for_each(|i| file.write_all_at(&part, i * MIB)).and_then(|()| file.commit());
    refused(done, &["no-space"]);
    file.rollback().unwrap();
    assert_same(&contents(&file), &text("old", "a"), "nothing was committed");

    // The store goes on, and the attempt has left nothing behind.
    small.append(b" again").unwrap();
    small.commit().expect("a small commit fits");
    file.write_all_at(&part, 0).unwrap();
    file.commit().expect("a commit that fits");
    drop((file, small));
    store.close().unwrap();
    assert_eq!(plain(dir.join("a")), part);
    assert_same(&plain(dir.join("small")), b"small again", "after closing");
    let store = Store::open_or_create(dir).unwrap();
    assert!(store.status().quarantined.is_empty());
}

/// Sizes that the kernel does not allow for a file are refused before they are acknowledged.
#[test]
fn sizes_beyond_the_file_system_are_refused_before_the_commit() {
    // With 1 KiB blocks, the largest file has 4 TiB.
    let Some((_dir, disk)) = small_disk(24 * MIB) else { return };
    let dir = disk.path();
    let store = Store::open_or_create(dir).unwrap();
    let file = store.open_or_create_file("a").unwrap();
    file.write_all_at(b"contents", 0).unwrap();
    file.commit().unwrap();
    for size in [1 << 49, 1 << 62, i64::MAX as u64] {
        refused_with_errno(file.set_len(size), libc::EFBIG);
        refused_with_errno(file.write_all_at(b"x", size - 1), libc::EFBIG);
        refused_with_errno(file.zero(size - 1, 1), libc::EFBIG);
        let mut txn = store.begin();
        let new = txn.create("new", 0o600).unwrap();
        refused_with_errno(new.set_len(size), libc::EFBIG);
        drop(txn);
    }
    let why = file.set_len(1 << 49).unwrap_err().to_string();
    assert!(why.contains("the limit of the file system") && !why.contains("free some space"), "{why}");
    // The largest possible size can be committed and applied.
    let (mut possible, mut impossible) = (8, 1 << 49);
    while impossible - possible > 1 {
        let size = possible + (impossible - possible) / 2;
        *(if file.set_len(size).is_ok() { &mut possible } else { &mut impossible }) = size;
    }
    file.rollback().unwrap();
    file.set_len(possible).unwrap();
    file.commit().unwrap();
    store.checkpoint().unwrap();
    assert_eq!(fs::metadata(dir.join("a")).unwrap().len(), possible);
    file.set_len(8).unwrap();
    file.commit().unwrap();
    drop(file);
    store.close().unwrap();
    assert_same(&plain(dir.join("a")), b"contents", "after closing");
    Store::open_or_create(dir).unwrap().close().unwrap();
}

/// `RLIMIT_FSIZE` refuses, for every file of the store, and its signal never kills.
#[test]
fn a_file_size_limit_of_the_process_refuses_and_does_not_kill() {
    const AS_CHILD: &str = "UNTORN_TEST_FILE_SIZE_LIMIT";
    let limit = |bytes: Option<u64>| {
        use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
        let maximum = getrlimit(Resource::Fsize).maximum;
        setrlimit(Resource::Fsize, Rlimit { current: bytes.or(maximum), maximum }).unwrap();
    };
    let Some(dir) = std::env::var_os(AS_CHILD) else {
        let dir = directory();
        let test = "a_file_size_limit_of_the_process_refuses_and_does_not_kill";
        let status = untorn_testkit::again!(test).env(AS_CHILD, dir.path()).status().unwrap();
        assert!(status.success(), "{status}");
        let store = Store::open_or_create(dir.path()).unwrap();
        assert_eq!(stored(&store, "a").len() as u64, 3 * MIB);
        assert!(store.status().quarantined.is_empty());
        return store.close().unwrap();
    };
    let store = StoreOptions::new().create(true).background(false).open(&dir).unwrap();
    let file = store.open_or_create_file("a").unwrap();
    file.write_all_at(&vec![1; 2 * MIB as usize], 0).unwrap();
    file.commit().unwrap();
    store.checkpoint().unwrap();
    limit(Some(MIB));
    refused_with_errno(file.append(b"x"), libc::EFBIG);
    refused_with_errno(file.set_len(3 * MIB), libc::EFBIG);
    // Within the file, but beyond the limit.
    file.write_all_at(b"x", 2 * MIB - 1).unwrap();
    let e = file.commit().unwrap_err();
    assert!(e.to_string().contains("RLIMIT_FSIZE"), "{e}");
    refused_with_errno::<()>(Err(e), libc::EFBIG);
    file.rollback().unwrap();
    // Shrinking is allowed under the limit, and so are writes below it.
    file.set_len(MIB + 100).unwrap();
    file.write_all_at(b"y", 0).unwrap();
    file.commit().unwrap();
    store.checkpoint().unwrap();
    // The limit applies to the journal and its spill files, too.
    limit(Some(100));
    let done = file.write_all_at(&vec![2; MIB as usize], 0).and_then(|()| file.commit());
    refused(done, &["no-space", "io"]);
    file.rollback().unwrap();
    limit(None);
    file.set_len(3 * MIB).unwrap();
    file.commit().unwrap();
    // The limit is lowered after the commit: the file waits, and nothing is lost.
    limit(Some(MIB));
    refused(store.checkpoint(), &["no-space"]);
    limit(None);
    store.checkpoint().unwrap();
    drop(file);
    store.close().unwrap();
}

#[test]
fn a_full_disk_still_unlinks_and_truncates() {
    let Some((_dir, disk)) = small_disk(24 * MIB) else { return };
    let dir = disk.path();
    let store = StoreOptions::new().create(true).journal_bytes(MIB).open(dir).unwrap();
    for name in ["big", "cut"] {
        let file = store.open_or_create_file(name).unwrap();
        file.write_all_at(&vec![5; 2 * MIB as usize], 0).unwrap();
        file.commit().unwrap();
    }
    store.checkpoint().unwrap();
    fill_up(dir);
    let free = rustix::fs::statvfs(dir).unwrap().f_bavail;
    assert!(free < 16, "the disk is full: {free} blocks free");

    let cut = store.open_file("cut").unwrap();
    cut.set_len(10).unwrap();
    cut.commit().expect("truncating must work on a full disk");
    let mut txn = store.begin();
    txn.unlink("big").unwrap();
    txn.commit().expect("unlinking must work on a full disk");
    store.checkpoint().expect("and so must the checkpoint");
    assert!(!dir.join("big").exists());
    let freed = rustix::fs::statvfs(dir).unwrap().f_bavail - free;
    assert!(freed * 4096 > 3 * MIB, "{freed} blocks were freed");
    cut.append(b"room again").unwrap();
    cut.commit().unwrap();
    drop(cut);
    store.close().unwrap();
    assert_eq!(plain(dir.join("cut")).len(), 20);
}

#[test]
fn a_closed_store_opens_on_a_full_disk() {
    let Some((_dir, disk)) = small_disk(24 * MIB) else { return };
    let dir = disk.path();
    let lock = dir.join(".untorn/lock");
    let options = StoreOptions::new().create(true).journal_bytes(MIB);
    let store = options.open(dir).unwrap();
    for name in ["big", "more"] {
        let file = store.open_or_create_file(name).unwrap();
        file.write_all_at(&vec![5; 2 * MIB as usize], 0).unwrap();
        file.commit().unwrap();
    }
    assert_eq!(plain(&lock), format!("{:<11}\n", std::process::id()).as_bytes());
    store.close().unwrap();
    assert_eq!(plain(&lock), b"closed     \n");
    // A lock file as of a store that never had room for a process id; an empty file means that it was not closed.
    for emptied in [false, true] {
        if emptied {
            fs::File::options().write(true).open(&lock).unwrap().set_len(0).unwrap();
        }
        fill_up(dir);
        let store = options.open(dir).expect("opening must work on a full disk");
        assert_ne!(plain(&lock), b"closed     \n", "a kill would be taken for a close");
        refused(Store::open_or_create(dir), &["busy"]);
        let mut txn = store.begin();
        txn.unlink(if emptied { "more" } else { "big" }).unwrap();
        txn.commit().expect("unlinking must work on a full disk");
        store.close().unwrap();
        // ext4 frees the blocks of a removed file when it commits its own journal. If none is free yet, the lock file
        // stays empty, and the next opening looks for more than it has to.
        let said = plain(&lock);
        assert!(said == b"closed     \n" || emptied && said.is_empty(), "{said:?}");
    }
    options.open(dir).unwrap().close().unwrap();
}

#[test]
fn a_disk_that_fills_up_loses_no_commit() {
    // Commits to new space until it runs out, while another program's file grows, too; the last acknowledged commit
    // counts.
    let Some((_dir, disk)) = small_disk(24 * MIB) else { return };
    let dir = disk.path();
    let mut acknowledged = 0;
    {
        let store = StoreOptions::new().create(true).journal_bytes(MIB).open(dir).unwrap();
        let file = store.open_or_create_file("a").unwrap();
        let mut ballast = fs::File::create(dir.join("ballast")).unwrap();
        loop {
            let _ = ballast.write(&[1; 100_000]);
            let done = file.append(&[acknowledged as u8; 50_000]).and_then(|_| file.commit());
            match done {
                Ok(()) => acknowledged += 1,
                Err(e) => break assert!(matches!(e, Error::NoSpace { .. }), "{e}"),
            }
            assert!(acknowledged < 1000, "the disk never fills up");
        }
        file.rollback().unwrap();
        assert_eq!(file.len().unwrap(), acknowledged * 50_000);
        // Closing on a full disk may fail, but may lose nothing.
        drop(file);
        let _ = store.close();
    }
    make_room(&dir.join("ballast"));
    let store = Store::open_or_create(dir).unwrap();
    let found = stored(&store, "a");
    assert_eq!(found.len() as u64, acknowledged * 50_000);
    for (i, part) in found.chunks(50_000).enumerate() {
        assert!(part.iter().all(|byte| *byte == i as u8), "commit {i} is whole");
    }
    store.close().unwrap();
}

/// Appends in commits of this size until the disk is full; returns the length.
fn append_until_full(file: &untorn::File, bytes: usize, when: &str) -> u64 {
    for nth in 0.. {
        let len = file.len().unwrap();
        match file.append(&vec![nth as u8; bytes]).and_then(|_| file.commit()) {
            Ok(()) => assert!(nth < 100_000, "{when}: the disk never fills up"),
            Err(e) => {
                assert_eq!(e.kind(), "no-space", "{when}: {e}");
                file.rollback().unwrap();
                assert_eq!(file.len().unwrap(), len, "{when}");
                return len;
            }
        }
    }
    unreachable!()
}

/// With a journal that may be larger than the disk: data take the disk, and a full disk refuses growth alone.
#[test]
fn a_small_disk_is_full_of_data_and_not_of_the_journal() {
    for (bytes, share) in [(3000, 40), (20_000, 40), (300_000, 40)] {
        let Some((_dir, disk)) = small_disk(12 * MIB) else { return };
        let dir = disk.path();
        let when = format!("commits of {bytes} bytes");
        let open = || Store::open_or_create(dir).unwrap_or_else(|e| panic!("{when}: {e}"));
        let mut store = open();
        for round in 0..3 {
            let file = store.open_or_create_file("a").unwrap();
            let full = append_until_full(&file, bytes, &when);
            let all = rustix::fs::statvfs(dir).unwrap();
            let all = all.f_blocks * all.f_frsize;
            assert!(full * 100 > all * share, "{when}: {full} bytes of {all} in round {round}");
            // Other commits go on.
            for nth in 0..20u64 {
                file.write_all_at(&[nth as u8; 500], nth * 4096).unwrap();
                file.commit().unwrap_or_else(|e| panic!("{when}, overwriting {nth}: {e}"));
            }
            if round == 1 {
                // Also when the process was killed, or as here without a checkpoint.
                drop(file);
                let _ = store.close();
                store = open();
            }
            let file = store.open_file("a").unwrap();
            file.set_len(full / 4).unwrap();
            file.commit().unwrap_or_else(|e| panic!("{when}: shrinking: {e}"));
            store.checkpoint().unwrap_or_else(|e| panic!("{when}: {e}"));
        }
        store.close().unwrap_or_else(|e| panic!("{when}: {e}"));
    }
}

#[test]
fn recovery_on_a_full_disk_keeps_the_journal() {
    let Some((_dir, disk)) = small_disk(24 * MIB) else { return };
    let dir = disk.path();
    close_clean_with(dir, &["a"], "old");
    let mut process = ChildProcess::owning(dir);
    process.ok(&["file", "a"]);
    process.commit("a", "new");
    process.ok(&["many", "40"]);
    process.kill();
    fill_up(dir);
    // Opening may apply all, quarantine files, or refuse. It must not show a torn file, and with room again everything
    // must be there.
    if let Ok(store) = Store::open_or_create(dir) {
        if let Ok(file) = store.open_file("a") {
            assert_same(&contents(&file), &text("new", "a"), "on the full disk");
        }
        drop(store);
    }
    make_room(&dir.join("ballast"));
    let store = Store::open_or_create(dir).unwrap();
    assert!(store.status().quarantined.is_empty(), "{:?}", store.status().quarantined);
    assert_same(&stored(&store, "a"), &text("new", "a"), "with room again");
    for i in 0..40 {
        assert_same(&stored(&store, &format!("file {i}")), &text("later", &i.to_string()), "with room again");
    }
}

/// For an ordinary user without reserved blocks and for root, on ext4 and on tmpfs, without blocks and without inodes.
#[test]
fn a_store_that_must_quarantine_opens_on_a_full_disk_and_makes_room() {
    for user in [None, Some(NOBODY)] {
        for (kind, arguments) in [("ext4", None), ("tmpfs", Some("size=8m,nr_inodes=200"))] {
            for inodes in [false, true] {
                let when = format!("{kind}, user {user:?}, inodes {inodes}");
                let place = directory();
                let at = place.path().join("disk");
                fs::create_dir(&at).unwrap();
                let mounted = match arguments {
                    None => Mount::ext4(16 * MIB, &at),
                    Some(options) => Mount::new(&["-t", "tmpfs", "-o", options, "none"], &at),
                };
                let Some(_mount) = mounted else { return };
                let dir = at.join("store");
                fs::create_dir(&dir).unwrap();
                quarantines_on_a_full_disk(&dir, user, inodes, &when);
            }
        }
    }
}

fn quarantines_on_a_full_disk(dir: &Path, user: Option<u32>, inodes: bool, when: &str) {
    if let Some(user) = user {
        chown(dir, Some(user), Some(user)).unwrap();
        let disk = dir.parent().unwrap();
        for outer in [disk, disk.parent().unwrap()] {
            fs::set_permissions(outer, fs::Permissions::from_mode(0o755)).unwrap();
        }
    }
    let start = || {
        let mut process = ChildProcess::start();
        if let Some(user) = user {
            process.ok(&["become", &user.to_string()]);
        }
        process
    };
    let open = |process: &mut ChildProcess| process.ask(&["open", path_text(dir)]);
    let mut process = start();
    open(&mut process).unwrap_or_else(|e| panic!("{when}: {e:?}"));
    process.ok(&["create", "a"]);
    process.ok(&["create", "big"]);
    process.commit("big", "old");
    process.ok(&["checkpoint"]);
    // The commits need blocks and inodes, and none of them is in the files yet.
    process.commit("a", "new");
    process.ok(&["many", "40"]);
    process.kill();
    for i in 0..40 {
        // Simulates names that had not reached the disk.
        let _ = fs::remove_file(dir.join(format!("file {i}")));
    }
    let ballast = dir.parent().unwrap().join("ballast");
    match inodes {
        false => fill_up(dir.parent().unwrap()),
        true => {
            fs::create_dir(&ballast).unwrap();
            let mut made = 0;
            while fs::File::create(ballast.join(made.to_string())).is_ok() {
                made += 1;
            }
        }
    }
    for round in 0..3 {
        let mut process = start();
        open(&mut process).unwrap_or_else(|e| panic!("{when}, round {round}: {}", e.message));
        assert!(round > 0 || !process.ok(&["quarantined"]).is_empty(), "{when}: the disk is not full");
        if round == 1 {
            process.ok(&["txn", "unlink:big"]);
            process.ok(&["checkpoint"]);
            assert!(!dir.join("big").exists(), "{when}");
        }
        process.kill();
    }
    match inodes {
        false => make_room(&ballast),
        true => fs::remove_dir_all(&ballast).unwrap(),
    }
    let mut process = start();
    open(&mut process).unwrap_or_else(|e| panic!("{when}: {}", e.message));
    process.ok(&["close"]);
    drop(process);
    assert_same(&plain(dir.join("a")), &text("new", "a"), when);
    for i in 0..40 {
        assert_same(&plain(dir.join(format!("file {i}"))), &text("later", &i.to_string()), when);
    }
    let left: Vec<_> = fs::read_dir(dir.join(".untorn")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(left.iter().all(|name| !name.to_string_lossy().starts_with("quarantine.")), "{when}: {left:?}");
}

#[test]
fn no_room_for_a_store_is_told() {
    let Some((_dir, disk)) = small_disk(8 * MIB) else { return };
    let dir = disk.path();
    fs::write(dir.join("a"), "plain").unwrap();
    fill_up(dir);
    match Store::open_or_create(dir) {
        // Some kilobytes may be left in the blocks of the directory and the inodes.
        Ok(store) => drop(store),
        Err(e) => assert!(matches!(e, Error::NoSpace { .. }), "{e}"),
    }
    make_room(&dir.join("ballast"));
    let store = Store::open_or_create(dir).expect("a creation that failed leaves no wreck");
    assert_same(&stored(&store, "a"), b"plain", "as it was");
}

#[test]
fn more_files_than_descriptors() {
    let dir = directory();
    for _ in 0..2 {
        let mut process = ChildProcess::start();
        process.ok(&["descriptors", "64"]);
        process.ok(&["open", path_text(dir.path())]);
        if !dir.path().join("file 0").exists() {
            process.ok(&["many", "500"]);
        }
        // In the second round, the recovery has as few descriptors as the commit had.
        process.ok(&["file", "file 499"]);
        assert_eq!(process.ok(&["read", "file 499"]).as_bytes(), &text("later", "499")[..20]);
        process.kill();
    }
    let store = Store::open_or_create(dir.path()).unwrap();
    for i in 0..500 {
        assert_same(&stored(&store, &format!("file {i}")), &text("later", &i.to_string()), "of 500 in one commit");
    }
}

#[test]
fn a_full_journal_makes_commits_wait_for_the_checkpoint() {
    let dir = directory();
    let store = StoreOptions::new().create(true).journal_bytes(64 << 10).open(dir.path()).unwrap();
    let files = ["a", "b"].map(|name| store.open_or_create_file(name).unwrap());
    let mut wanted = vec![0; 100_000];
    for i in 0..400usize {
        let at = i * 7919 % 98_000;
        wanted[at..at + 2000].fill(i as u8);
        for file in &files {
            file.write_all_at(&[i as u8; 2000], at as u64).unwrap();
        }
        store.syncv(&[&files[0], &files[1]]).unwrap();
    }
    wanted.truncate(files[0].len().unwrap() as usize);
    let status = store.status();
    assert!(status.checkpoints >= 5, "1.6 MB went through 64 KiB with {} checkpoints", status.checkpoints);
    assert!(status.journal_bytes_allocated <= 512 << 10, "{status:?}");
    for file in &files {
        assert_same(&contents(file), &wanted, "through the handle");
    }
    drop(files);
    store.close().unwrap();
    assert_same(&plain(dir.path().join("a")), &wanted, "after closing");
    assert_same(&plain(dir.path().join("b")), &wanted, "after closing");
}

#[test]
fn a_journal_pinned_by_a_file_set_aside_refuses_at_last() {
    let dir = crashed_store(&["a", "b"]);
    let hidden = directory();
    fs::rename(dir.path().join("a"), hidden.path().join("a")).unwrap();
    let path = dir.path().to_owned();
    let last = within(LIMIT, "a pinned journal", move || {
        let store = StoreOptions::new().create(true).journal_bytes(64 << 10).open(path).unwrap();
        let b = store.open_file("b").unwrap();
        let mut last = "new".to_owned();
        for i in 0..200 {
            let version = format!("after {i}");
            match b.write_all_at(&text(&version, "b"), 0).and_then(|()| b.commit()) {
                Ok(()) => last = version,
                Err(e) => {
                    assert!(matches!(e, Error::NoSpace { .. }), "{e}");
                    b.rollback().unwrap();
                    break;
                }
            }
        }
        assert_same(&contents(&b), &text(&last, "b"), "the last commit that went through");
        drop(b);
        let _ = store.close();
        last
    });
    // When it is moved back, the file gets its commits, however many commits of other files there were meanwhile.
    fs::rename(hidden.path().join("a"), dir.path().join("a")).unwrap();
    let store = Store::open_or_create(dir.path()).unwrap();
    assert_same(&stored(&store, "a"), &text("new", "a"), "moved back");
    assert_same(&stored(&store, "b"), &text(&last, "b"), "the other file");
}

#[test]
fn a_read_only_file_system_is_told() {
    let Some((_dir, disk)) = small_disk(16 * MIB) else { return };
    let dir = disk.path();
    fs::create_dir_all(dir.join("clean")).unwrap();
    fs::create_dir_all(dir.join("crashed")).unwrap();
    fs::create_dir_all(dir.join("none")).unwrap();
    close_clean_with(&dir.join("clean"), &["a"], "old");
    crash_in(&dir.join("crashed"), &["a"]);
    disk.remount("ro");
    for name in ["clean", "crashed", "none"] {
        match Store::open_or_create(dir.join(name)) {
            Err(e) => {
                assert!(matches!(e, Error::Io { .. } | Error::Unsupported { .. }), "{e}");
                assert!(e.to_string().to_lowercase().contains("read-only"), "it says why: {e}");
            }
            // Reading a clean store needs no writes.
            Ok(store) => {
                assert_eq!(name, "clean");
                assert_same(&stored(&store, "a"), &text("old", "a"), "read-only");
                let file = store.open_file("a").unwrap();
                assert!(file.append(b"x").and_then(|_| file.commit()).is_err());
            }
        }
    }
    disk.remount("rw");
    assert_same(
        &stored(&Store::open_or_create(dir.join("crashed")).unwrap(), "a"),
        &text("new", "a"),
        "writable again",
    );
}

#[test]
fn overlayfs_works() {
    let outer = directory();
    let place = |name: &str| {
        let path = outer.path().join(name);
        fs::create_dir(&path).unwrap();
        path_text(&path).to_owned()
    };
    let (lower, upper, work, merged) = (place("lower"), place("upper"), place("work"), place("merged"));
    fs::write(Path::new(&lower).join("a"), text("lower", "a")).unwrap();
    fs::write(Path::new(&lower).join("b"), text("lower", "b")).unwrap();
    let layers = format!("lowerdir={lower},upperdir={upper},workdir={work}");
    let Some(mount) = Mount::new(&["-t", "overlay", "overlay", "-o", &layers], Path::new(&merged)) else { return };

    // The first change makes the overlay copy the file up, under its handle.
    let store = Store::open_or_create(mount.path()).unwrap();
    let file = store.open_file("a").unwrap();
    assert_same(&contents(&file), &text("lower", "a"), "from below");
    file.write_all_at(&text("old", "a"), 0).unwrap();
    file.commit().unwrap();
    assert_same(&contents(&file), &text("old", "a"), "copied up");
    store.checkpoint().unwrap();
    assert_same(&plain(mount.path().join("a")), &text("old", "a"), "copied up, for other programs");
    let mut txn = store.begin();
    txn.rename("b", "c").unwrap();
    txn.commit().unwrap();
    assert_same(&stored(&store, "c"), &text("lower", "b"), "renamed from below");
    drop(file);
    store.close().unwrap();

    crash_in(mount.path(), &["a", "c", "new"]);
    let store = Store::open_or_create(mount.path()).unwrap();
    for name in ["a", "c", "new"] {
        assert_same(&stored(&store, name), &text("new", name), "recovered");
    }
    store.close().unwrap();
    assert_same(&plain(Path::new(&lower).join("a")), &text("lower", "a"), "what lies below is left alone");
}

/// Commits, crashes and recovers on a new file system of another kind.
fn works_on(maker: &str, bytes: u64) {
    let outer = directory();
    let Some(mount) = Mount::made(maker, bytes, "", &outer.path().join("disk")) else { return };
    crash_in(mount.path(), &["a", "b"]);
    assert_same(&stored(&Store::open_or_create(mount.path()).unwrap(), "b"), &text("new", "b"), maker);
}

#[test]
fn xfs_works() {
    works_on("mkfs.xfs -q", 320 * MIB);
}

#[test]
fn btrfs_works() {
    works_on("mkfs.btrfs -q", 128 * MIB);
}

#[test]
fn ext4_works() {
    works_on("mkfs.ext4 -q", 16 * MIB);
}

#[test]
fn tmpfs_works_where_it_has_attributes() {
    let place = directory();
    let Some(mount) = Mount::new(&["-t", "tmpfs", "none"], place.path()) else { return };
    match Store::open_or_create(mount.path()) {
        Ok(store) => drop(store),
        // Before Linux 6.6, tmpfs has no user attributes.
        Err(Error::Unsupported { .. }) => return skipped("tmpfs has no user attributes here"),
        Err(e) => panic!("tmpfs: {e}"),
    }
    crash_in(mount.path(), &["a", "b"]);
    assert_same(&stored(&Store::open_or_create(mount.path()).unwrap(), "b"), &text("new", "b"), "tmpfs");
}
