//! A tree as programs see it.

mod common;
use common::*;
use std::ffi::OsStr;
use untorn_tree::*;

fn errno<T: std::fmt::Debug>(result: Result<T>) -> i32 {
    result.expect_err("an error").0
}

#[test]
fn a_synced_tree_is_there_after_a_kill() {
    let (disk, clock, tree) = new_tree();
    let below = dir(&tree, ROOT, "below");
    let a = file(&tree, "a");
    tree.write(a, 0, b"hello").unwrap();
    tree.symlink(ME, below, name("link"), OsStr::new("../a")).unwrap();
    tree.set_xattr(a, name("user.colour"), b"blue", 0).unwrap();
    tree.link(a, below, name("b"), &Clean).unwrap();
    tree.sync(a, &Clean).unwrap();
    tree.write(a, 0, b"HELLO").unwrap();
    file(&tree, "later");
    let tree = reopen(&disk, &clock, tree);
    assert_eq!(contents_of(&tree, "a"), b"hello");
    assert_eq!(errno(tree.lookup(ROOT, name("later"))), libc::ENOENT);
    let a = tree.lookup(ROOT, name("a")).unwrap();
    assert_eq!((a.nlink, a.mode, a.uid, a.size), (2, 0o644, 1000, 5));
    assert_eq!(tree.xattr(a.ino, name("user.colour")).unwrap(), b"blue");
    let below = tree.lookup(ROOT, name("below")).unwrap().ino;
    assert_eq!(tree.lookup(below, name("b")).unwrap().ino, a.ino);
    let link = tree.lookup(below, name("link")).unwrap();
    assert_eq!((tree.read_link(link.ino).unwrap(), link.size), (OsStr::new("../a").into(), 4));
    // A number that the kernel may have seen is not used again.
    assert!(file(&tree, "new") > a.ino + 10);
    tree.close(&Clean).unwrap();
    assert_eq!(errno(tree.attributes(ROOT)), libc::EIO);
}

#[test]
fn closing_commits_everything_but_synced_files_in_use() {
    let (disk, clock, tree) = new_tree();
    let (a, b) = (file(&tree, "a"), file(&tree, "b"));
    tree.open(b, true).unwrap();
    tree.write(b, 0, b"first").unwrap();
    tree.sync(b, &Clean).unwrap();
    tree.write(a, 0, b"never synced").unwrap();
    tree.write(b, 0, b"half of a transaction").unwrap();
    tree.close(&Clean).unwrap();
    drop(tree);
    let tree = open(&disk, &clock);
    assert_eq!(contents_of(&tree, "a"), b"never synced");
    assert_eq!(contents_of(&tree, "b"), b"first");
}

#[test]
fn directories_count_their_links() {
    let (_disk, _clock, tree) = new_tree();
    let (a, b) = (dir(&tree, ROOT, "a"), dir(&tree, ROOT, "b"));
    let links = |ino| tree.attributes(ino).unwrap().nlink;
    let c = dir(&tree, a, "c");
    assert_eq!((links(ROOT), links(a), links(b), links(c)), (4, 3, 2, 2));
    tree.rename((a, name("c")), (b, name("d")), RenameFlags::Replace, &Clean).unwrap();
    assert_eq!((links(a), links(b)), (2, 3));
    assert_eq!(errno(tree.rename((ROOT, name("b")), (c, name("x")), RenameFlags::Replace, &Clean)), libc::EINVAL);
    assert_eq!(errno(tree.remove_dir(ROOT, name("b"))), libc::ENOTEMPTY);
    assert_eq!(errno(tree.rename((ROOT, name("a")), (ROOT, name("b")), RenameFlags::Replace, &Clean)), libc::ENOTEMPTY);
    // A rename over an empty directory.
    tree.rename((b, name("d")), (ROOT, name("a")), RenameFlags::Replace, &Clean).unwrap();
    assert_eq!((links(ROOT), links(b), links(c), links(a)), (4, 2, 2, 0));
    assert_eq!(errno(tree.make(ME, a, name("x"), Kind::File, 0o600, 0)), libc::ENOENT);
    tree.remove_dir(ROOT, name("b")).unwrap();
    assert_eq!(links(ROOT), 3);
    let x = file(&tree, "file");
    assert_eq!(errno(tree.rename((ROOT, name("file")), (ROOT, name("a")), RenameFlags::Replace, &Clean)), libc::EISDIR);
    assert_eq!(
        errno(tree.rename((ROOT, name("a")), (ROOT, name("file")), RenameFlags::Replace, &Clean)),
        libc::ENOTDIR
    );
    let to = (ROOT, name("file"));
    assert_eq!(errno(tree.rename((ROOT, name("a")), to, RenameFlags::NoReplace, &Clean)), libc::EEXIST);
    tree.rename((ROOT, name("a")), to, RenameFlags::Exchange, &Clean).unwrap();
    assert_eq!(tree.lookup(ROOT, name("a")).unwrap().ino, x);
    assert_eq!(tree.lookup(ROOT, name("file")).unwrap().ino, c);
    let missing = (ROOT, name("missing"));
    assert_eq!(errno(tree.rename((ROOT, name("a")), missing, RenameFlags::Exchange, &Clean)), libc::ENOENT);
    assert_eq!(errno(tree.link(c, ROOT, name("dir"), &Clean)), libc::EPERM);
    assert_eq!(errno(tree.unlink(ROOT, name("file"))), libc::EISDIR);
}

#[test]
fn a_directory_passes_its_group_on() {
    let (_disk, _clock, tree) = new_tree();
    let d = dir(&tree, ROOT, "d");
    let change = Change { mode: Some(0o2755), gid: Some(77), ..Change::default() };
    tree.set_attributes(d, &change).unwrap();
    let below = tree.make(ME, d, name("below"), Kind::Directory, 0o700, 0).unwrap();
    assert_eq!((below.gid, below.mode), (77, 0o2700));
    let unnamed = tree.make_unnamed(ME, d, 0o600).unwrap();
    assert_eq!((unnamed.gid, unnamed.mode, unnamed.nlink), (77, 0o600, 0));
}

#[test]
fn a_removed_file_stays_while_it_is_open_or_known() {
    let (disk, clock, tree) = new_tree_of_objects();
    let a = file(&tree, "a");
    tree.open(a, true).unwrap();
    tree.write(a, 0, b"here").unwrap();
    tree.sync(a, &Clean).unwrap();
    tree.unlink(ROOT, name("a")).unwrap();
    tree.sync_names(&Clean).unwrap();
    tree.forget(a, 1);
    assert_eq!(contents(&tree, a), b"here");
    tree.release(a, true);
    assert_eq!(errno(tree.attributes(a)), libc::ESTALE);
    tree.close(&Clean).unwrap();
    assert!(disk.get(format!("obj/0/{a}")).is_err(), "its object goes");
    // After a kill while the file is open, the next opening drops it.
    let tree = open(&disk, &clock);
    let b = file(&tree, "b");
    tree.write(b, 0, b"there").unwrap();
    tree.sync(b, &Clean).unwrap();
    tree.open(b, false).unwrap();
    tree.unlink(ROOT, name("b")).unwrap();
    tree.sync_names(&Clean).unwrap();
    let tree = reopen(&disk, &clock, tree);
    assert_eq!(errno(tree.attributes(b)), libc::ESTALE);
    tree.close(&Clean).unwrap();
    assert!(disk.get(format!("obj/1/{b}")).is_err(), "its object goes");
}

#[test]
fn an_object_whose_inode_no_commit_has_goes_with_the_next_opening() {
    let (disk, clock, tree) = new_tree_of_objects();
    let (a, b) = (file(&tree, "a"), file(&tree, "b"));
    tree.sync_names(&Clean).unwrap();
    tree.write(a, 0, b"a").unwrap();
    let c = file(&tree, "c");
    tree.write(c, 0, b"c").unwrap();
    // A commit that is waited for makes all commits before it durable, without the names after it.
    tree.close(&Failing).unwrap();
    drop(tree);
    let tree = open(&disk, &clock);
    let d = file(&tree, "d");
    tree.write(d, 0, b"d").unwrap();
    tree.tick(&Clean);
    let tree = reopen(&disk, &clock, tree);
    assert_eq!(errno(tree.lookup(ROOT, name("d"))), libc::ENOENT);
    tree.close(&Clean).unwrap();
    assert!(disk.get(format!("obj/1/{d}")).is_err(), "no leftover");
    for ino in [a, c] {
        assert!(disk.get(format!("obj/0/{ino}")).is_ok());
    }
    assert!(disk.get(format!("obj/0/{b}")).is_err(), "an empty file has no object");
}

#[test]
fn unnamed_files_get_names() {
    let (disk, clock, tree) = new_tree();
    let a = tree.make_unnamed(ME, ROOT, 0o600).unwrap().ino;
    tree.open(a, true).unwrap();
    tree.write(a, 0, b"all of it").unwrap();
    tree.link(a, ROOT, name("a"), &Clean).unwrap();
    tree.sync_names(&Clean).unwrap();
    let tree = reopen(&disk, &clock, tree);
    assert_eq!(contents_of(&tree, "a"), b"all of it", "its contents were committed with the name");
}

#[test]
fn sizes_and_holes() {
    let (_disk, _clock, tree) = new_tree();
    let a = file(&tree, "a");
    let sized = |size| Change { size: Some(size), ..Change::default() };
    tree.write(a, 0, b"0123456789").unwrap();
    tree.set_attributes(a, &sized(4)).unwrap();
    tree.set_attributes(a, &sized(8)).unwrap();
    assert_eq!(contents(&tree, a), b"0123\0\0\0\0");
    tree.write(a, 6, b"x").unwrap();
    assert_eq!(contents(&tree, a), b"0123\0\0x\0");
    tree.allocate(a, 1, 2, libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE).unwrap();
    assert_eq!(contents(&tree, a), b"0\0\x003\0\0x\0");
    tree.allocate(a, 6, 4, 0).unwrap();
    assert_eq!(contents(&tree, a), b"0\0\x003\0\0x\0\0\0");
    tree.allocate(a, 0, 100, libc::FALLOC_FL_KEEP_SIZE).unwrap();
    assert_eq!(tree.attributes(a).unwrap().size, 10);
    // A range that was zeroed may be a hole, and everything beyond the object is one.
    let hole = tree.seek(a, 0, libc::SEEK_HOLE, &Clean).unwrap() as usize;
    assert!(hole > 0 && contents(&tree, a)[hole] == 0, "a hole at {hole}");
    assert_eq!(errno(tree.seek(a, 8, libc::SEEK_DATA, &Clean)), libc::ENXIO);
    assert_eq!(errno(tree.seek(a, 10, libc::SEEK_HOLE, &Clean)), libc::ENXIO);
    assert_eq!(
        tree.attributes(tree.set_attributes(a, &sized(i64::MAX as u64)).unwrap().ino).unwrap().size,
        i64::MAX as u64
    );
    assert_eq!(errno(tree.set_attributes(a, &sized(1 << 63))), libc::EFBIG);
    assert_eq!(errno(tree.write(a, i64::MAX as u64, b"x")), libc::EFBIG);
    tree.set_attributes(a, &sized(0)).unwrap();
    tree.sync(a, &Clean).unwrap();
}

#[test]
fn names_and_attributes_have_limits() {
    let (_disk, _clock, tree) = new_tree();
    let (long, longer) = ("n".repeat(255), "n".repeat(256));
    let a = file(&tree, &long);
    assert_eq!(errno(tree.make(ME, ROOT, name(&longer), Kind::File, 0o600, 0)), libc::ENAMETOOLONG);
    assert_eq!(errno(tree.make(ME, ROOT, name(&long), Kind::File, 0o600, 0)), libc::EEXIST);
    tree.set_xattr(a, name("user.a"), &[1; 65536], libc::XATTR_CREATE).unwrap();
    assert_eq!(errno(tree.set_xattr(a, name("user.a"), b"", libc::XATTR_CREATE)), libc::EEXIST);
    assert_eq!(errno(tree.set_xattr(a, name("user.b"), b"", libc::XATTR_REPLACE)), libc::ENODATA);
    assert_eq!(errno(tree.set_xattr(a, name("user.b"), &[1; 65537], 0)), libc::E2BIG);
    tree.sync_names(&Clean).unwrap();
    tree.remove_xattr(a, name("user.a")).unwrap();
    assert_eq!(errno(tree.remove_xattr(a, name("user.a"))), libc::ENODATA);
    assert_eq!(errno(tree.xattr(a, name("user.a"))), libc::ENODATA);
    tree.sync_names(&Clean).unwrap();
}

#[test]
fn names_that_stay_are_read_once() {
    let (_disk, _clock, tree) = new_tree();
    for n in 0..100 {
        file(&tree, &format!("{n:03}"));
    }
    let (mut at, mut seen) = (0, Vec::new());
    loop {
        let entries = tree.read_dir(ROOT, at, 7).unwrap();
        let Some(last) = entries.last() else { break };
        at = last.next;
        // A name that was read is removed, one that is yet to be read is replaced, and a new one is made.
        let _ = tree.unlink(ROOT, &entries[0].name);
        let fresh = format!("new {at}");
        file(&tree, &fresh);
        tree.rename((ROOT, name(&fresh)), (ROOT, name("000")), RenameFlags::Replace, &Clean).unwrap();
        seen.extend(entries.into_iter().map(|entry| entry.name.into_string().unwrap()));
    }
    // The newest names come first, so that reading does not meet names that were made since.
    assert_eq!(seen, (0..100).rev().map(|n| format!("{n:03}")).collect::<Vec<_>>());
}

#[test]
fn a_name_keeps_its_place_when_it_is_another_one_in_its_directory() {
    let (disk, clock, tree) = new_tree();
    for n in ["a", "b", "c"] {
        file(&tree, n);
    }
    let places = |tree: &StoreTree| -> Vec<(String, u64)> {
        let entries = tree.read_dir(ROOT, 0, 9).unwrap();
        entries.into_iter().map(|entry| (entry.name.into_string().unwrap(), entry.next)).collect()
    };
    let before = places(&tree);
    tree.rename((ROOT, name("b")), (ROOT, name("z")), RenameFlags::NoReplace, &Clean).unwrap();
    let after = places(&tree);
    assert_eq!(after.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["c", "z", "a"]);
    assert_eq!(after.iter().map(|(_, at)| at).collect::<Vec<_>>(), before.iter().map(|(_, at)| at).collect::<Vec<_>>());
    assert!(after.iter().all(|(_, at)| i32::try_from(at + 2).is_ok()), "for 32-bit programs");
    tree.sync_names(&Clean).unwrap();
    let tree = reopen(&disk, &clock, tree);
    assert_eq!(places(&tree), after);
    // A rename over another name takes that name's position.
    tree.rename((ROOT, name("c")), (ROOT, name("a")), RenameFlags::Replace, &Clean).unwrap();
    assert_eq!(places(&tree), after[1..]);
}

#[test]
fn the_names_of_file_handles_lead_to_inodes_and_their_directories() {
    let (_disk, _clock, tree) = new_tree();
    let dir = tree.make(ME, ROOT, name("dir"), Kind::Directory, 0o755, 0).unwrap().ino;
    let below = tree.make(ME, dir, name("below"), Kind::Directory, 0o755, 0).unwrap().ino;
    let at = file(&tree, "file");
    assert_eq!(tree.lookup(at, name(".")).unwrap().ino, at);
    assert_eq!(tree.lookup(below, name(".")).unwrap().ino, below);
    assert_eq!(tree.lookup(below, name("..")).unwrap().ino, dir);
    assert_eq!(tree.lookup(dir, name("..")).unwrap().ino, ROOT);
    assert_eq!(tree.lookup(ROOT, name("..")).unwrap().ino, ROOT);
    assert_eq!(errno(tree.lookup(at, name(".."))), libc::ENOTDIR);
    // The kernel knows the inode twice by now: by the handle, and by its name.
    tree.unlink(ROOT, name("file")).unwrap();
    tree.forget(at, 1);
    assert_eq!(tree.lookup(at, name(".")).unwrap().nlink, 0);
    tree.forget(at, 2);
    assert_eq!(errno(tree.lookup(at, name("."))), libc::ESTALE);
}

#[test]
fn holes_of_small_files_are_blocks_of_zeros() {
    let (_disk, _clock, tree) = new_tree();
    let at = file(&tree, "file");
    let seek = |offset, whence| tree.seek(at, offset, whence, &Clean);
    tree.write(at, 0, &[7; 12_288 + 10]).unwrap();
    let punch = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    tree.allocate(at, 4096, 4096, punch).unwrap();
    for synced in [false, true] {
        assert_eq!(seek(0, libc::SEEK_HOLE), Ok(4096));
        assert_eq!(seek(5000, libc::SEEK_HOLE), Ok(5000));
        assert_eq!(seek(4096, libc::SEEK_DATA), Ok(8192));
        assert_eq!(seek(8192, libc::SEEK_HOLE), Ok(12_288 + 10));
        if !synced {
            tree.sync(at, &Clean).unwrap();
        }
    }
}

#[test]
fn what_is_allocated_is_there_before_it_is_written() {
    let (_disk, _clock, tree) = new_tree();
    // Two bytes across blocks, of a small file and of one with an object.
    for (n, start) in [4095, 1 << 20].into_iter().enumerate() {
        let at = file(&tree, &n.to_string());
        tree.allocate(at, start, 2, 0).unwrap();
        let before = tree.attributes(at).unwrap();
        assert_eq!(before.size, start + 2);
        tree.write(at, start, b"xy").unwrap();
        // The simulated disk reports no blocks of objects.
        assert!(n == 1 || tree.attributes(at).unwrap().blocks <= before.blocks, "it does not grow");
        tree.allocate(at, 0, 100_000, libc::FALLOC_FL_KEEP_SIZE).unwrap();
        assert_eq!(tree.attributes(at).unwrap().size, start + 2);
        let mut bytes = vec![1; start as usize + 2];
        assert_eq!(tree.read(at, 0, &mut bytes), Ok(bytes.len()));
        assert!(bytes[..start as usize].iter().all(|byte| *byte == 0));
        assert_eq!(&bytes[start as usize..], b"xy");
    }
}

#[test]
fn a_directory_of_many_names() {
    let (disk, clock, tree) = new_tree();
    let most = 20_000;
    for n in 0..most {
        let ino = file(&tree, &format!("file {n}"));
        tree.forget(ino, 1);
    }
    tree.sync_names(&Clean).unwrap();
    let tree = reopen(&disk, &clock, tree);
    assert_eq!(tree.read_dir(ROOT, 0, usize::MAX).unwrap().len(), most);
    for n in 0..most {
        tree.unlink(ROOT, name(&format!("file {n}"))).unwrap();
    }
    tree.close(&Clean).unwrap();
    drop(tree);
    assert_eq!(open(&disk, &clock).read_dir(ROOT, 0, 10).unwrap().len(), 0);
}

#[test]
fn times_follow_what_is_done() {
    let (_disk, clock, tree) = new_tree();
    let a = file(&tree, "a");
    let of = |ino| {
        let a = tree.attributes(ino).unwrap();
        [a.atime, a.mtime, a.ctime].map(|time| time.seconds - 1_000_000)
    };
    clock.pass(1);
    tree.write(a, 0, b"a").unwrap();
    assert_eq!((of(a), of(ROOT)), ([0, 1, 1], [0, 0, 0]));
    clock.pass(1);
    tree.set_attributes(a, &Change { mode: Some(0o600), ..Change::default() }).unwrap();
    assert_eq!(of(a), [0, 1, 2]);
    clock.pass(1);
    tree.link(a, ROOT, name("b"), &Clean).unwrap();
    assert_eq!((of(a), of(ROOT)), ([0, 1, 3], [0, 3, 3]));
    let then = SetTime::At(Time { seconds: 1_000_050, nanoseconds: 0 });
    tree.set_attributes(a, &Change { mtime: Some(then), atime: Some(SetTime::Now), ..Change::default() }).unwrap();
    assert_eq!(of(a), [3, 50, 3]);
}
