//! Rules about names: opening, listing, renaming, removing, directories, and paths that lead outside.

use crate::fixture::{Difference, Fixture, contents, holds, refused, rules, same};
use libc::{EEXIST, EINVAL, EISDIR, ELOOP, ENAMETOOLONG, ENOENT, ENOTDIR, ENOTEMPTY, EPERM, EROFS, EXDEV};
use std::path::Path;
use untorn::__private::sync_point;
use untorn_os::{Kind, Open};

rules! {
    opening_what_is_not_there,
    opening_never_follows_a_link,
    opening_a_directory,
    opening_a_pipe_does_not_wait,
    creating_takes_a_free_name,
    modes_are_exactly_as_asked,
    paths_do_not_lead_outside,
    mounts_are_not_crossed,
    names_have_a_limit,
    listing_a_directory,
    renaming_a_file,
    renaming_over_a_file,
    renaming_without_replacing,
    renaming_what_does_not_fit,
    renaming_a_directory,
    renaming_one_file_of_two_names,
    linking_a_file,
    linking_what_cannot_be_linked,
    renaming_a_link_moves_the_link,
    a_replaced_file_stays_readable,
    unlinking,
    an_unlinked_file_stays_readable,
    making_directories,
    changing_a_directorys_mode,
    removing_directories,
    syncing_directories,
    a_file_without_a_name,
    a_file_without_a_name_whose_directory_is_removed,
    a_read_only_storage,
}

fn p(path: &str) -> &Path {
    Path::new(path)
}

fn opening_what_is_not_there(fixture: &Fixture) {
    fixture.file("f", b"");
    for how in [Open::READ, Open::WRITE, Open::READ.direct(), Open::WRITE.direct()] {
        refused(fixture.storage.open(p("n"), how), &[ENOENT]);
        refused(fixture.storage.open(p("n/f"), how), &[ENOENT]);
        refused(fixture.storage.open(p("f/n"), how), &[ENOTDIR]);
    }
    refused(fixture.storage.stat(p("n")), &[ENOENT]);
    refused(fixture.storage.stat(p("n/f")), &[ENOENT]);
    refused(fixture.storage.stat(p("f/n")), &[ENOTDIR]);
}

fn opening_never_follows_a_link(fixture: &Fixture) {
    fixture.directory("target");
    fixture.file("target/f", b"not to be reached");
    fixture.symbolic_link("l");
    for path in ["l", "l/f"] {
        refused(fixture.storage.open(p(path), Open::READ), &[ELOOP]);
        refused(fixture.storage.open(p(path), Open::WRITE), &[ELOOP]);
        // A link in the place of a directory is not a directory.
        let no_directory = if path == "l" { ENOTDIR } else { ELOOP };
        refused(fixture.storage.list(p(path)), &[no_directory]);
        refused(fixture.storage.sync_dir(p(path), sync_point::CHECKPOINT_NAMES), &[no_directory]);
        refused(fixture.storage.set_dir_mode(p(path), 0o700), &[no_directory]);
    }
    refused(fixture.storage.open(p("l"), Open::create(0o600)), &[EEXIST]);
    refused(fixture.storage.open(p("l/new"), Open::create(0o600)), &[ELOOP]);
    refused(fixture.storage.mkdir(p("l"), 0o700), &[EEXIST]);
    refused(fixture.storage.open(p("l/d/new"), Open::create(0o600)), &[ELOOP]);
    refused(fixture.storage.rmdir(p("l")), &[ENOTDIR]);
    for (path, error) in [("l/f", ENOTDIR), ("l/d/f", ELOOP)] {
        refused(fixture.storage.stat(p(path)), &[error]);
        refused(fixture.storage.mkdir(p(path), 0o700), &[error]);
        refused(fixture.storage.rmdir(p(path)), &[error]);
        refused(fixture.storage.unlink(p(path)), &[error]);
        refused(fixture.storage.rename(p(path), p("x"), true), &[error]);
        refused(fixture.storage.rename(p("target/f"), p(path), true), &[error]);
    }
    same(fixture.storage.stat(p("l")).unwrap().kind, Kind::Symlink);
    same(fixture.names(""), vec!["l".to_owned(), "target".to_owned()]);
    same(fixture.names("target"), vec!["f".to_owned()]);
}

fn opening_a_directory(fixture: &Fixture) {
    fixture.directory("d");
    let directory = fixture.open("d", Open::READ);
    same(directory.meta().unwrap().kind, Kind::Directory);
    refused(directory.read_at(&mut [0; 10], 0), &[EISDIR]);
    refused(fixture.storage.open(p("d"), Open::WRITE), &[EISDIR]);
    refused(fixture.storage.open(p(""), Open::WRITE), &[EISDIR]);
    same(fixture.open("", Open::READ).meta().unwrap().inode, fixture.storage.stat(p("")).unwrap().inode);
    directory.sync_all(sync_point::CHECKPOINT_NAMES).unwrap();
}

fn opening_a_pipe_does_not_wait(fixture: &Fixture) {
    if fixture.pipe("pipe") {
        same(fixture.storage.stat(p("pipe")).unwrap().kind, Kind::Other);
        same(fixture.open("pipe", Open::READ).meta().unwrap().kind, Kind::Other);
        same(fixture.open("pipe", Open::WRITE).meta().unwrap().kind, Kind::Other);
    }
}

fn creating_takes_a_free_name(fixture: &Fixture) {
    fixture.directory("d");
    fixture.file("f", b"mine");
    for how in [Open::create(0o600), Open::create(0o600).direct()] {
        for path in ["f", "d"] {
            refused(fixture.storage.open(p(path), how), &[EEXIST]);
        }
        refused(fixture.storage.open(p("n/f"), how), &[ENOENT]);
        refused(fixture.storage.open(p("f/f"), how), &[ENOTDIR]);
        let file = fixture.open("d/new", how);
        same(file.meta().unwrap().size, 0);
        same(file.read_at(&mut untorn_os::AlignedBuf::zeroed(4096), 0).unwrap(), 0);
        fixture.storage.unlink(p("d/new")).unwrap();
    }
    same(contents(&*fixture.open("f", Open::READ)), b"mine".to_vec());
    same(fixture.names("d"), vec![]);
}

fn modes_are_exactly_as_asked(fixture: &Fixture) {
    for (n, mode) in [0o600, 0o666, 0o777, 0o640, 0o400, 0o000, 0o4711, 0o1777].into_iter().enumerate() {
        for how in [Open::create(mode), Open::create(mode).direct()] {
            let name = format!("f{n}{}", how.direct);
            let file = fixture.open(&name, how);
            same(file.meta().unwrap().mode, mode);
            same(fixture.storage.stat(p(&name)).unwrap().mode, mode);
            // The opening that created the file can write, with any mode.
            let block = untorn_os::AlignedBuf::zeroed(4096);
            same(file.write_at(&block, 0).unwrap(), 4096);
        }
    }
    for (n, mode) in [0o700, 0o777, 0o755, 0o500, 0o1777, 0o2770].into_iter().enumerate() {
        let name = format!("d{n}");
        fixture.storage.mkdir(p(&name), mode).unwrap();
        same(fixture.storage.stat(p(&name)).unwrap().mode, mode);
    }
    fixture.storage.mkdir(p("d2/inner"), 0o777).unwrap();
    same(fixture.storage.stat(p("d2/inner")).unwrap().mode, 0o777);
    // So that the directory can be removed afterwards.
    fixture.storage.set_dir_mode(p("d3"), 0o700).unwrap();
}

fn paths_do_not_lead_outside(fixture: &Fixture) {
    fixture.directory("d");
    fixture.file("f", b"mine");
    let inner = fixture.storage.stat(p("d")).unwrap();
    // A path that does not end in a name is refused as such by calls that need a name.
    for path in ["..", "../x", "d/../..", "d/../../x", "/", "/tmp", "/etc/passwd", "d/../f", "d/.."] {
        let path = p(path);
        let error = [if path.file_name().is_some() { EXDEV } else { EINVAL }];
        refused(fixture.storage.open(path, Open::READ), &[EXDEV]);
        refused(fixture.storage.list(path), &[EXDEV]);
        refused(fixture.storage.sync_dir(path, sync_point::CHECKPOINT_NAMES), &[EXDEV]);
        refused(fixture.storage.set_dir_mode(path, 0o700), &[EXDEV]);
        refused(fixture.storage.open(path, Open::create(0o600)), &[EXDEV]);
        refused(fixture.storage.stat(path), &error);
        refused(fixture.storage.unlink(path), &error);
        refused(fixture.storage.mkdir(path, 0o700), &error);
        refused(fixture.storage.rmdir(path), &error);
        refused(fixture.storage.rename(path, p("x"), true), &error);
        refused(fixture.storage.rename(p("f"), path, true), &error);
    }
    for path in ["a\0b", "d/a\0b"] {
        refused(fixture.storage.open(p(path), Open::create(0o600)), &[EINVAL]);
        refused(fixture.storage.mkdir(p(path), 0o700), &[EINVAL]);
        refused(fixture.storage.stat(p(path)), &[EINVAL]);
    }
    for act in [fixture.storage.unlink(p("")), fixture.storage.rmdir(p("")), fixture.storage.mkdir(p(""), 0o700)] {
        refused(act, &[EINVAL]);
    }
    same(fixture.names(""), vec!["d".to_owned(), "f".to_owned()]);
    same(fixture.storage.stat(p("d")).unwrap(), inner);
}

fn mounts_are_not_crossed(fixture: &Fixture) {
    fixture.directory("d");
    fixture.file("f", b"mine");
    fixture.with_mount_on("d", || {
        refused(fixture.storage.open(p("d/f"), Open::create(0o600)), &[EXDEV]);
        refused(fixture.storage.open(p("d"), Open::READ), &[EXDEV]);
        refused(fixture.storage.list(p("d")), &[EXDEV]);
        refused(fixture.storage.sync_dir(p("d"), sync_point::CHECKPOINT_NAMES), &[EXDEV]);
        refused(fixture.storage.mkdir(p("d/e"), 0o700), &[EXDEV]);
        refused(fixture.storage.stat(p("d/f")), &[EXDEV]);
        refused(fixture.storage.rename(p("f"), p("d/f"), true), &[EXDEV]);
        holds(fixture.storage.stat(p("d")).unwrap().device != fixture.storage.stat(p("")).unwrap().device);
    });
    same(fixture.names("d"), vec![]);
}

fn names_have_a_limit(fixture: &Fixture) {
    let (long, longer) = ("x".repeat(255), "x".repeat(256));
    drop(fixture.file(&long, b"a"));
    same(fixture.names(""), vec![long.clone()]);
    refused(fixture.storage.open(p(&longer), Open::create(0o600)), &[ENAMETOOLONG]);
    refused(fixture.storage.open(p(&longer), Open::READ), &[ENAMETOOLONG]);
    refused(fixture.storage.stat(p(&longer)), &[ENAMETOOLONG]);
    refused(fixture.storage.mkdir(p(&longer), 0o700), &[ENAMETOOLONG]);
    refused(fixture.storage.rename(p(&long), p(&longer), true), &[ENAMETOOLONG]);
    refused(fixture.storage.unlink(p(&longer)), &[ENAMETOOLONG]);
}

fn listing_a_directory(fixture: &Fixture) {
    same(fixture.names(""), vec![]);
    fixture.directory("d");
    fixture.file("f", b"");
    fixture.file("d/inside", b"");
    fixture.file("d/.hidden", b"");
    fixture.symbolic_link("l");
    same(fixture.names(""), vec!["d".to_owned(), "f".to_owned(), "l".to_owned()]);
    same(fixture.names("d"), vec![".hidden".to_owned(), "inside".to_owned()]);
    // More names than one call of the kernel can return.
    let many: Vec<String> = (0..2000).map(|n| format!("{n:0100}")).collect();
    fixture.directory("many");
    many.iter().for_each(|name| drop(fixture.file(&format!("many/{name}"), b"")));
    same(fixture.names("many"), many);
    refused(fixture.storage.list(p("n")), &[ENOENT]);
    refused(fixture.storage.list(p("f")), &[ENOTDIR]);
    refused(fixture.storage.list(p("f/n")), &[ENOTDIR]);
}

fn renaming_a_file(fixture: &Fixture) {
    fixture.directory("d");
    let file = fixture.file("a", b"contents");
    let inode = file.meta().unwrap().inode;
    for (from, to, replace) in [("a", "b", true), ("b", "d/c", false), ("d/c", "d/d", true), ("d/d", "a", false)] {
        fixture.storage.rename(p(from), p(to), replace).unwrap();
        refused(fixture.storage.stat(p(from)), &[ENOENT]);
        same(fixture.storage.stat(p(to)).unwrap().inode, inode);
        same(fixture.storage.stat(p(to)).unwrap().links, 1);
    }
    same(contents(&*fixture.open("a", Open::READ)), b"contents".to_vec());
    fixture.storage.rename(p("a"), p("a"), true).unwrap();
    refused(fixture.storage.rename(p("a"), p("a"), false), &[EEXIST]);
    same(fixture.names(""), vec!["a".to_owned(), "d".to_owned()]);
    for replace in [true, false] {
        refused(fixture.storage.rename(p("n"), p("m"), replace), &[ENOENT]);
        refused(fixture.storage.rename(p("n"), p("d/m"), replace), &[ENOENT]);
        refused(fixture.storage.rename(p("a"), p("n/m"), replace), &[ENOENT]);
        refused(fixture.storage.rename(p("a"), p("a/m"), replace), &[ENOTDIR]);
        refused(fixture.storage.rename(p("a/m"), p("b"), replace), &[ENOTDIR]);
    }
    refused(fixture.storage.rename(p("n"), p("a"), true), &[ENOENT]);
}

fn renaming_over_a_file(fixture: &Fixture) {
    drop(fixture.file("a", b"new"));
    drop(fixture.file("b", b"old"));
    fixture.storage.rename(p("a"), p("b"), true).unwrap();
    same(fixture.names(""), vec!["b".to_owned()]);
    same(contents(&*fixture.open("b", Open::READ)), b"new".to_vec());
}

fn renaming_without_replacing(fixture: &Fixture) {
    fixture.directory("d");
    fixture.directory("empty");
    drop(fixture.file("a", b"a"));
    drop(fixture.file("b", b"b"));
    fixture.symbolic_link("l");
    for to in ["b", "d", "empty", "l"] {
        refused(fixture.storage.rename(p("a"), p(to), false), &[EEXIST]);
        refused(fixture.storage.rename(p("d"), p(to), false), &[EEXIST]);
    }
    same(fixture.names("").len(), 5);
    same(contents(&*fixture.open("a", Open::READ)), b"a".to_vec());
    same(contents(&*fixture.open("b", Open::READ)), b"b".to_vec());
}

fn renaming_what_does_not_fit(fixture: &Fixture) {
    fixture.directory("d");
    fixture.directory("full");
    drop(fixture.file("full/inside", b"inside"));
    drop(fixture.file("f", b"f"));
    refused(fixture.storage.rename(p("f"), p("d"), true), &[EISDIR]);
    refused(fixture.storage.rename(p("f"), p("full"), true), &[EISDIR]);
    refused(fixture.storage.rename(p("d"), p("f"), true), &[ENOTDIR]);
    let not_empty = if fixture.has(Difference::FullDirectoryExists) { EEXIST } else { ENOTEMPTY };
    refused(fixture.storage.rename(p("d"), p("full"), true), &[not_empty]);
    refused(fixture.storage.rename(p("full"), p("full/x"), true), &[EINVAL]);
    refused(fixture.storage.rename(p("full"), p("full/x"), false), &[EINVAL]);
    refused(fixture.storage.rename(p("full"), p("full/x/y"), true), &[ENOENT]);
    // A parent directory of the renamed file is not replaced.
    refused(fixture.storage.rename(p("full/inside"), p("full"), true), &[ENOTEMPTY]);
    refused(fixture.storage.rename(p("full/inside"), p("full"), false), &[EEXIST]);
    same(fixture.names(""), vec!["d".to_owned(), "f".to_owned(), "full".to_owned()]);
    same(fixture.names("full"), vec!["inside".to_owned()]);
}

fn renaming_a_directory(fixture: &Fixture) {
    fixture.directory("d");
    fixture.directory("e");
    fixture.directory("d/deep");
    let file = fixture.file("d/deep/f", b"deep");
    fixture.storage.rename(p("d"), p("moved"), false).unwrap();
    same(contents(&*fixture.open("moved/deep/f", Open::READ)), b"deep".to_vec());
    refused(fixture.storage.stat(p("d")), &[ENOENT]);
    // An empty directory is replaced.
    fixture.storage.rename(p("moved"), p("e"), true).unwrap();
    same(fixture.names(""), vec!["e".to_owned()]);
    same(fixture.names("e/deep"), vec!["f".to_owned()]);
    fixture.storage.rename(p("e/deep"), p("out"), false).unwrap();
    same(file.meta().unwrap().inode, fixture.storage.stat(p("out/f")).unwrap().inode);
}

fn renaming_one_file_of_two_names(fixture: &Fixture) {
    let file = fixture.file("a", b"both");
    fixture.hard_link("a", "b");
    same(file.meta().unwrap().links, 2);
    fixture.storage.rename(p("a"), p("b"), true).unwrap();
    same(fixture.names(""), vec!["a".to_owned(), "b".to_owned()]);
    same(file.meta().unwrap().links, 2);
    refused(fixture.storage.rename(p("a"), p("b"), false), &[EEXIST]);
}

fn linking_a_file(fixture: &Fixture) {
    fixture.directory("d");
    fixture.file("f", b"one");
    let storage = &fixture.storage;
    holds(storage.link(p("f"), p("d/g")).is_ok());
    same(contents(&*fixture.open("d/g", Open::READ)), b"one".to_vec());
    same(storage.stat(p("f")).unwrap().links, 2);
    same(storage.stat(p("f")).unwrap().inode, storage.stat(p("d/g")).unwrap().inode);
    fixture.file("taken", b"two");
    refused(storage.link(p("f"), p("taken")), &[EEXIST]);
    refused(storage.link(p("n"), p("h")), &[ENOENT]);
    refused(storage.link(p("f"), p("n/h")), &[ENOENT]);
    holds(storage.unlink(p("f")).is_ok());
    same(contents(&*fixture.open("d/g", Open::READ)), b"one".to_vec());
    same(storage.stat(p("d/g")).unwrap().links, 1);
}

fn linking_what_cannot_be_linked(fixture: &Fixture) {
    fixture.directory("d");
    fixture.file("f", b"one");
    refused(fixture.storage.link(p("d"), p("e")), &[EPERM]);
    for path in ["f", "d"] {
        refused(fixture.storage.link(p("f"), p(path)), &[EEXIST]);
    }
    refused(fixture.storage.link(p("f"), p("f/g")), &[ENOTDIR]);
    fixture.symbolic_link("l");
    refused(fixture.storage.link(p("f"), p("l")), &[EEXIST]);
    refused(fixture.storage.link(p("f"), p("l/g")), &[ELOOP, ENOTDIR]);
    fixture.while_read_only(|storage| refused(storage.link(p("f"), p("g")), &[EROFS]));
    // A second name has the same mode and attribute, and so has a file that is open without a name.
    let file = fixture.open("f", Open::WRITE);
    file.set_attribute(b"value").unwrap();
    file.set_mode(0o640).unwrap();
    fixture.storage.link(p("f"), p("g")).unwrap();
    fixture.storage.unlink(p("f")).unwrap();
    let linked = fixture.open("g", Open::READ);
    same((linked.meta().unwrap().mode, linked.attribute().unwrap()), (0o640, Some(b"value".to_vec())));
    same(fixture.names(""), vec!["d".to_owned(), "g".to_owned(), "l".to_owned()]);
}

fn renaming_a_link_moves_the_link(fixture: &Fixture) {
    drop(fixture.file("target", b"stays"));
    fixture.symbolic_link("l");
    fixture.storage.rename(p("l"), p("m"), false).unwrap();
    same(fixture.storage.stat(p("m")).unwrap().kind, Kind::Symlink);
    drop(fixture.file("f", b"over a link"));
    fixture.storage.rename(p("f"), p("m"), true).unwrap();
    same(fixture.storage.stat(p("m")).unwrap().kind, Kind::File);
    same(contents(&*fixture.open("target", Open::READ)), b"stays".to_vec());
}

fn a_replaced_file_stays_readable(fixture: &Fixture) {
    let old = fixture.file("f", b"old");
    drop(fixture.file("g", b"new one"));
    fixture.storage.rename(p("g"), p("f"), true).unwrap();
    same(contents(&*old), b"old".to_vec());
    same(old.meta().unwrap().links, 0);
    same(old.write_at(b"still", 0).unwrap(), 5);
    same(contents(&*old), b"still".to_vec());
    same(contents(&*fixture.open("f", Open::READ)), b"new one".to_vec());
}

fn unlinking(fixture: &Fixture) {
    fixture.directory("d");
    drop(fixture.file("a", b"a"));
    drop(fixture.file("target", b"stays"));
    fixture.symbolic_link("l");
    fixture.hard_link("a", "d/b");
    fixture.storage.unlink(p("a")).unwrap();
    same(fixture.storage.stat(p("d/b")).unwrap().links, 1);
    fixture.storage.unlink(p("d/b")).unwrap();
    fixture.storage.unlink(p("l")).unwrap();
    refused(fixture.storage.unlink(p("a")), &[ENOENT]);
    refused(fixture.storage.unlink(p("n/a")), &[ENOENT]);
    refused(fixture.storage.unlink(p("target/a")), &[ENOTDIR]);
    refused(fixture.storage.unlink(p("d")), &[EISDIR]);
    same(fixture.names(""), vec!["d".to_owned(), "target".to_owned()]);
}

fn an_unlinked_file_stays_readable(fixture: &Fixture) {
    let file = fixture.file("f", b"open");
    fixture.storage.unlink(p("f")).unwrap();
    same(contents(&*file), b"open".to_vec());
    let meta = file.meta().unwrap();
    same((meta.links, meta.size), (0, 4));
    file.set_len(2).unwrap();
    same(file.write_at(b"more", 2).unwrap(), 4);
    file.sync_all(sync_point::CHECKPOINT_DATA).unwrap();
    let new = fixture.file("f", b"another");
    same(contents(&*file), b"opmore".to_vec());
    same(contents(&*new), b"another".to_vec());
    holds(new.meta().unwrap().inode != meta.inode);
}

fn making_directories(fixture: &Fixture) {
    drop(fixture.file("f", b""));
    fixture.storage.mkdir(p("d"), 0o755).unwrap();
    fixture.storage.mkdir(p("d/e"), 0o700).unwrap();
    for path in ["d", "f", "d/e"] {
        refused(fixture.storage.mkdir(p(path), 0o700), &[EEXIST]);
    }
    refused(fixture.storage.mkdir(p("n/d"), 0o700), &[ENOENT]);
    refused(fixture.storage.mkdir(p("f/d"), 0o700), &[ENOTDIR]);
    let meta = fixture.storage.stat(p("d")).unwrap();
    same((meta.kind, meta.uid, meta.mode), (Kind::Directory, fixture.storage.effective_user(), 0o755));
}

fn changing_a_directorys_mode(fixture: &Fixture) {
    fixture.directory("d");
    drop(fixture.file("f", b""));
    for mode in [0o777, 0o1770, 0o700] {
        fixture.storage.set_dir_mode(p("d"), mode).unwrap();
        same(fixture.storage.stat(p("d")).unwrap().mode, mode);
    }
    fixture.storage.set_dir_mode(p(""), 0o750).unwrap();
    same(fixture.storage.stat(p("")).unwrap().mode, 0o750);
    refused(fixture.storage.set_dir_mode(p("f"), 0o700), &[ENOTDIR]);
    refused(fixture.storage.set_dir_mode(p("n"), 0o700), &[ENOENT]);
}

fn removing_directories(fixture: &Fixture) {
    fixture.directory("d");
    drop(fixture.file("d/f", b""));
    refused(fixture.storage.rmdir(p("d")), &[ENOTEMPTY]);
    refused(fixture.storage.rmdir(p("d/f")), &[ENOTDIR]);
    refused(fixture.storage.rmdir(p("n")), &[ENOENT]);
    refused(fixture.storage.rmdir(p("n/d")), &[ENOENT]);
    refused(fixture.storage.rmdir(p("d/f/g")), &[ENOTDIR]);
    fixture.storage.unlink(p("d/f")).unwrap();
    fixture.storage.rmdir(p("d")).unwrap();
    refused(fixture.storage.stat(p("d")), &[ENOENT]);
    refused(fixture.storage.open(p("d/f"), Open::create(0o600)), &[ENOENT]);
    fixture.directory("d");
    same(fixture.names("d"), vec![]);
}

fn syncing_directories(fixture: &Fixture) {
    fixture.directory("d");
    drop(fixture.file("f", b""));
    fixture.storage.sync_dir(p(""), sync_point::CHECKPOINT_NAMES).unwrap();
    fixture.storage.sync_dir(p("d"), sync_point::CHECKPOINT_NAMES).unwrap();
    refused(fixture.storage.sync_dir(p("f"), sync_point::CHECKPOINT_NAMES), &[ENOTDIR]);
    refused(fixture.storage.sync_dir(p("n"), sync_point::CHECKPOINT_NAMES), &[ENOENT]);
    fixture.storage.sync_file_system(sync_point::CHECKPOINT_MANY).unwrap();
}

fn a_file_without_a_name(fixture: &Fixture) {
    fixture.directory("d");
    drop(fixture.file("f", b""));
    drop(fixture.file("d/taken", b"taken"));
    let before = fixture.names("d");
    let file = fixture.storage.create_unnamed(p("d")).unwrap();
    let meta = file.meta().unwrap();
    same((meta.kind, meta.size, meta.links, meta.mode), (Kind::File, 0, 0, 0o600));
    same(meta.uid, fixture.storage.effective_user());
    same(file.write_at(b"contents", 0).unwrap(), 8);
    file.set_attribute(b"value").unwrap();
    file.set_mode(0o2641).unwrap();
    file.sync_all(sync_point::CHECKPOINT_DATA).unwrap();
    holds(file.try_claim().unwrap());
    same(fixture.names("d"), before);
    refused(file.give_name("taken".as_ref()), &[EEXIST]);
    refused(file.give_name("n".repeat(256).as_ref()), &[ENAMETOOLONG]);
    file.give_name("new".as_ref()).unwrap();
    refused(file.give_name("second".as_ref()), &[EINVAL]);
    same(fixture.names("d"), vec!["new".to_owned(), "taken".to_owned()]);
    let opened = fixture.open("d/new", Open::READ);
    same(contents(&*opened), b"contents".to_vec());
    same(opened.attribute().unwrap(), Some(b"value".to_vec()));
    let named = opened.meta().unwrap();
    same((named.inode, named.links, named.mode), (meta.inode, 1, 0o2641));
    holds(!opened.try_claim().unwrap());
    refused(opened.give_name("second".as_ref()), &[EINVAL]);
    drop(fixture.storage.create_unnamed(p("")).unwrap());
    same(fixture.names(""), vec!["d".to_owned(), "f".to_owned()]);
    refused(fixture.storage.create_unnamed(p("n")), &[ENOENT]);
    refused(fixture.storage.create_unnamed(p("f")), &[ENOTDIR]);
    refused(fixture.storage.create_unnamed(p("d/..")), &[EXDEV]);
}

fn a_file_without_a_name_whose_directory_is_removed(fixture: &Fixture) {
    fixture.directory("d");
    let file = fixture.storage.create_unnamed(p("d")).unwrap();
    fixture.storage.rmdir(p("d")).unwrap();
    refused(file.give_name("f".as_ref()), &[ENOENT]);
    same(file.write_at(b"still", 0).unwrap(), 5);
}

fn a_read_only_storage(fixture: &Fixture) {
    fixture.directory("d");
    let file = fixture.file("f", b"contents");
    file.set_attribute(b"value").unwrap();
    drop(file);
    fixture.while_read_only(|storage| {
        holds(storage.space().unwrap().read_only);
        refused(storage.open(p("f"), Open::WRITE), &[EROFS]);
        refused(storage.open(p("n"), Open::create(0o600)), &[EROFS]);
        refused(storage.create_unnamed(p("")), &[EROFS]);
        refused(storage.rename(p("f"), p("g"), false), &[EROFS]);
        refused(storage.rename(p("f"), p("g"), true), &[EROFS]);
        refused(storage.unlink(p("f")), &[EROFS]);
        refused(storage.mkdir(p("e"), 0o700), &[EROFS]);
        refused(storage.rmdir(p("d")), &[EROFS]);
        refused(storage.set_dir_mode(p("d"), 0o700), &[EROFS]);
        refused(storage.open(p("n"), Open::WRITE), &[ENOENT]);
        refused(storage.open(p("d"), Open::WRITE), &[EISDIR]);
        refused(storage.open(p("f"), Open::create(0o600)), &[EEXIST]);
        refused(storage.mkdir(p("d"), 0o700), &[EEXIST]);
        refused(storage.unlink(p("n")), &[EROFS]);
        let file = storage.open(p("f"), Open::READ).unwrap();
        same(contents(&*file), b"contents".to_vec());
        same(file.attribute().unwrap(), Some(b"value".to_vec()));
        refused(file.set_attribute(b"x"), &[EROFS]);
        refused(file.remove_attribute(), &[EROFS]);
        refused(file.set_mode(0o600), &[EROFS]);
        holds(file.try_claim().unwrap());
        file.sync_all(sync_point::CHECKPOINT_DATA).unwrap();
        storage.sync_dir(p(""), sync_point::CHECKPOINT_NAMES).unwrap();
        // A private mapping never writes to its file.
        let request = untorn_os::MapRequest { address_space: 1, ..Default::default() };
        let mapping = file.map(&request).unwrap();
        mapping.show(0..mapping.page_bytes()).unwrap();
        mapping.copy_in(0, b"private").unwrap();
    });
    holds(!fixture.storage.space().unwrap().read_only);
    same(contents(&*fixture.open("f", Open::READ)), b"contents".to_vec());
}
