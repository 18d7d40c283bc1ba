//! Rules about names: opening, listing, renaming, removing, directories, and paths that would lead outside.

use crate::place::{Difference, Room, contents, holds, refused, rules, same};
use libc::{EEXIST, EINVAL, EISDIR, ELOOP, ENAMETOOLONG, ENOENT, ENOTDIR, ENOTEMPTY, EROFS, EXDEV};
use std::path::Path;
use untorn_os::{Kind, Open, Step};

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
    renaming_a_link_moves_the_link,
    a_replaced_file_stays_readable,
    unlinking,
    an_unlinked_file_stays_readable,
    making_directories,
    changing_a_directorys_mode,
    removing_directories,
    syncing_directories,
    a_read_only_storage,
}

fn p(path: &str) -> &Path {
    Path::new(path)
}

fn opening_what_is_not_there(room: &Room) {
    room.file("f", b"");
    for how in [Open::READ, Open::WRITE, Open::READ.direct(), Open::WRITE.direct()] {
        refused(room.storage.open(p("n"), how), &[ENOENT]);
        refused(room.storage.open(p("n/f"), how), &[ENOENT]);
        refused(room.storage.open(p("f/n"), how), &[ENOTDIR]);
    }
    refused(room.storage.stat(p("n")), &[ENOENT]);
    refused(room.storage.stat(p("n/f")), &[ENOENT]);
    refused(room.storage.stat(p("f/n")), &[ENOTDIR]);
}

fn opening_never_follows_a_link(room: &Room) {
    room.directory("target");
    room.file("target/f", b"not to be reached");
    room.symbolic_link("l");
    for path in ["l", "l/f"] {
        refused(room.storage.open(p(path), Open::READ), &[ELOOP]);
        refused(room.storage.open(p(path), Open::WRITE), &[ELOOP]);
        // Where a directory is asked for, a link itself is none.
        let no_directory = if path == "l" { ENOTDIR } else { ELOOP };
        refused(room.storage.list(p(path)), &[no_directory]);
        refused(room.storage.sync_dir(p(path), Step::CheckpointNames), &[no_directory]);
        refused(room.storage.set_dir_mode(p(path), 0o700), &[no_directory]);
    }
    refused(room.storage.open(p("l"), Open::create(0o600)), &[EEXIST]);
    refused(room.storage.open(p("l/new"), Open::create(0o600)), &[ELOOP]);
    refused(room.storage.mkdir(p("l"), 0o700), &[EEXIST]);
    refused(room.storage.open(p("l/d/new"), Open::create(0o600)), &[ELOOP]);
    refused(room.storage.rmdir(p("l")), &[ENOTDIR]);
    for (path, error) in [("l/f", ENOTDIR), ("l/d/f", ELOOP)] {
        refused(room.storage.stat(p(path)), &[error]);
        refused(room.storage.mkdir(p(path), 0o700), &[error]);
        refused(room.storage.rmdir(p(path)), &[error]);
        refused(room.storage.unlink(p(path)), &[error]);
        refused(room.storage.rename(p(path), p("x"), true), &[error]);
        refused(room.storage.rename(p("target/f"), p(path), true), &[error]);
    }
    same(room.storage.stat(p("l")).unwrap().kind, Kind::Symlink);
    same(room.names(""), vec!["l".to_owned(), "target".to_owned()]);
    same(room.names("target"), vec!["f".to_owned()]);
}

fn opening_a_directory(room: &Room) {
    room.directory("d");
    let directory = room.open("d", Open::READ);
    same(directory.meta().unwrap().kind, Kind::Directory);
    refused(directory.read_at(&mut [0; 10], 0), &[EISDIR]);
    refused(room.storage.open(p("d"), Open::WRITE), &[EISDIR]);
    refused(room.storage.open(p(""), Open::WRITE), &[EISDIR]);
    same(room.open("", Open::READ).meta().unwrap().inode, room.storage.stat(p("")).unwrap().inode);
    directory.sync_all(Step::CheckpointNames).unwrap();
}

fn opening_a_pipe_does_not_wait(room: &Room) {
    if room.pipe("pipe") {
        same(room.storage.stat(p("pipe")).unwrap().kind, Kind::Other);
        same(room.open("pipe", Open::READ).meta().unwrap().kind, Kind::Other);
        same(room.open("pipe", Open::WRITE).meta().unwrap().kind, Kind::Other);
    }
}

fn creating_takes_a_free_name(room: &Room) {
    room.directory("d");
    room.file("f", b"mine");
    for how in [Open::create(0o600), Open::create(0o600).direct()] {
        for path in ["f", "d"] {
            refused(room.storage.open(p(path), how), &[EEXIST]);
        }
        refused(room.storage.open(p("n/f"), how), &[ENOENT]);
        refused(room.storage.open(p("f/f"), how), &[ENOTDIR]);
        let file = room.open("d/new", how);
        same(file.meta().unwrap().size, 0);
        same(file.read_at(&mut untorn_os::AlignedBuf::zeroed(4096), 0).unwrap(), 0);
        room.storage.unlink(p("d/new")).unwrap();
    }
    same(contents(&*room.open("f", Open::READ)), b"mine".to_vec());
    same(room.names("d"), vec![]);
}

fn modes_are_exactly_as_asked(room: &Room) {
    for (n, mode) in [0o600, 0o666, 0o777, 0o640, 0o400, 0o000, 0o4711, 0o1777].into_iter().enumerate() {
        for how in [Open::create(mode), Open::create(mode).direct()] {
            let name = format!("f{n}{}", how.direct);
            let file = room.open(&name, how);
            same(file.meta().unwrap().mode, mode);
            same(room.storage.stat(p(&name)).unwrap().mode, mode);
            // Whoever created it can write, whatever the mode says.
            let block = untorn_os::AlignedBuf::zeroed(4096);
            same(file.write_at(&block, 0).unwrap(), 4096);
        }
    }
    for (n, mode) in [0o700, 0o777, 0o755, 0o500, 0o1777, 0o2770].into_iter().enumerate() {
        let name = format!("d{n}");
        room.storage.mkdir(p(&name), mode).unwrap();
        same(room.storage.stat(p(&name)).unwrap().mode, mode);
    }
    room.storage.mkdir(p("d2/inner"), 0o777).unwrap();
    same(room.storage.stat(p("d2/inner")).unwrap().mode, 0o777);
    // The directory can be removed afterwards.
    room.storage.set_dir_mode(p("d3"), 0o700).unwrap();
}

fn paths_do_not_lead_outside(room: &Room) {
    room.directory("d");
    room.file("f", b"mine");
    let inner = room.storage.stat(p("d")).unwrap();
    // A path that ends in no name is refused as such where a name is asked for.
    for path in ["..", "../x", "d/../..", "d/../../x", "/", "/tmp", "/etc/passwd", "d/../f", "d/.."] {
        let path = p(path);
        let error = [if path.file_name().is_some() { EXDEV } else { EINVAL }];
        refused(room.storage.open(path, Open::READ), &[EXDEV]);
        refused(room.storage.list(path), &[EXDEV]);
        refused(room.storage.sync_dir(path, Step::CheckpointNames), &[EXDEV]);
        refused(room.storage.set_dir_mode(path, 0o700), &[EXDEV]);
        refused(room.storage.open(path, Open::create(0o600)), &[EXDEV]);
        refused(room.storage.stat(path), &error);
        refused(room.storage.unlink(path), &error);
        refused(room.storage.mkdir(path, 0o700), &error);
        refused(room.storage.rmdir(path), &error);
        refused(room.storage.rename(path, p("x"), true), &error);
        refused(room.storage.rename(p("f"), path, true), &error);
    }
    for path in ["a\0b", "d/a\0b"] {
        refused(room.storage.open(p(path), Open::create(0o600)), &[EINVAL]);
        refused(room.storage.mkdir(p(path), 0o700), &[EINVAL]);
        refused(room.storage.stat(p(path)), &[EINVAL]);
    }
    for act in [room.storage.unlink(p("")), room.storage.rmdir(p("")), room.storage.mkdir(p(""), 0o700)] {
        refused(act, &[EINVAL]);
    }
    same(room.names(""), vec!["d".to_owned(), "f".to_owned()]);
    same(room.storage.stat(p("d")).unwrap(), inner);
}

fn mounts_are_not_crossed(room: &Room) {
    room.directory("d");
    room.file("f", b"mine");
    room.with_mount_on("d", || {
        refused(room.storage.open(p("d/f"), Open::create(0o600)), &[EXDEV]);
        refused(room.storage.open(p("d"), Open::READ), &[EXDEV]);
        refused(room.storage.list(p("d")), &[EXDEV]);
        refused(room.storage.sync_dir(p("d"), Step::CheckpointNames), &[EXDEV]);
        refused(room.storage.mkdir(p("d/e"), 0o700), &[EXDEV]);
        refused(room.storage.stat(p("d/f")), &[EXDEV]);
        refused(room.storage.rename(p("f"), p("d/f"), true), &[EXDEV]);
        holds(room.storage.stat(p("d")).unwrap().device != room.storage.stat(p("")).unwrap().device);
    });
    same(room.names("d"), vec![]);
}

fn names_have_a_limit(room: &Room) {
    let (long, longer) = ("x".repeat(255), "x".repeat(256));
    drop(room.file(&long, b"a"));
    same(room.names(""), vec![long.clone()]);
    refused(room.storage.open(p(&longer), Open::create(0o600)), &[ENAMETOOLONG]);
    refused(room.storage.open(p(&longer), Open::READ), &[ENAMETOOLONG]);
    refused(room.storage.stat(p(&longer)), &[ENAMETOOLONG]);
    refused(room.storage.mkdir(p(&longer), 0o700), &[ENAMETOOLONG]);
    refused(room.storage.rename(p(&long), p(&longer), true), &[ENAMETOOLONG]);
    refused(room.storage.unlink(p(&longer)), &[ENAMETOOLONG]);
}

fn listing_a_directory(room: &Room) {
    same(room.names(""), vec![]);
    room.directory("d");
    room.file("f", b"");
    room.file("d/inside", b"");
    room.file("d/.hidden", b"");
    room.symbolic_link("l");
    same(room.names(""), vec!["d".to_owned(), "f".to_owned(), "l".to_owned()]);
    same(room.names("d"), vec![".hidden".to_owned(), "inside".to_owned()]);
    // More than one call of the kernel can tell of.
    let many: Vec<String> = (0..2000).map(|n| format!("{n:0100}")).collect();
    room.directory("many");
    many.iter().for_each(|name| drop(room.file(&format!("many/{name}"), b"")));
    same(room.names("many"), many);
    refused(room.storage.list(p("n")), &[ENOENT]);
    refused(room.storage.list(p("f")), &[ENOTDIR]);
    refused(room.storage.list(p("f/n")), &[ENOTDIR]);
}

fn renaming_a_file(room: &Room) {
    room.directory("d");
    let file = room.file("a", b"contents");
    let inode = file.meta().unwrap().inode;
    for (from, to, replace) in [("a", "b", true), ("b", "d/c", false), ("d/c", "d/d", true), ("d/d", "a", false)] {
        room.storage.rename(p(from), p(to), replace).unwrap();
        refused(room.storage.stat(p(from)), &[ENOENT]);
        same(room.storage.stat(p(to)).unwrap().inode, inode);
        same(room.storage.stat(p(to)).unwrap().links, 1);
    }
    same(contents(&*room.open("a", Open::READ)), b"contents".to_vec());
    room.storage.rename(p("a"), p("a"), true).unwrap();
    refused(room.storage.rename(p("a"), p("a"), false), &[EEXIST]);
    same(room.names(""), vec!["a".to_owned(), "d".to_owned()]);
    for replace in [true, false] {
        refused(room.storage.rename(p("n"), p("m"), replace), &[ENOENT]);
        refused(room.storage.rename(p("n"), p("d/m"), replace), &[ENOENT]);
        refused(room.storage.rename(p("a"), p("n/m"), replace), &[ENOENT]);
        refused(room.storage.rename(p("a"), p("a/m"), replace), &[ENOTDIR]);
        refused(room.storage.rename(p("a/m"), p("b"), replace), &[ENOTDIR]);
    }
    refused(room.storage.rename(p("n"), p("a"), true), &[ENOENT]);
}

fn renaming_over_a_file(room: &Room) {
    drop(room.file("a", b"new"));
    drop(room.file("b", b"old"));
    room.storage.rename(p("a"), p("b"), true).unwrap();
    same(room.names(""), vec!["b".to_owned()]);
    same(contents(&*room.open("b", Open::READ)), b"new".to_vec());
}

fn renaming_without_replacing(room: &Room) {
    room.directory("d");
    room.directory("empty");
    drop(room.file("a", b"a"));
    drop(room.file("b", b"b"));
    room.symbolic_link("l");
    for to in ["b", "d", "empty", "l"] {
        refused(room.storage.rename(p("a"), p(to), false), &[EEXIST]);
        refused(room.storage.rename(p("d"), p(to), false), &[EEXIST]);
    }
    same(room.names("").len(), 5);
    same(contents(&*room.open("a", Open::READ)), b"a".to_vec());
    same(contents(&*room.open("b", Open::READ)), b"b".to_vec());
}

fn renaming_what_does_not_fit(room: &Room) {
    room.directory("d");
    room.directory("full");
    drop(room.file("full/inside", b"inside"));
    drop(room.file("f", b"f"));
    refused(room.storage.rename(p("f"), p("d"), true), &[EISDIR]);
    refused(room.storage.rename(p("f"), p("full"), true), &[EISDIR]);
    refused(room.storage.rename(p("d"), p("f"), true), &[ENOTDIR]);
    let not_empty = if room.has(Difference::FullDirectoryExists) { EEXIST } else { ENOTEMPTY };
    refused(room.storage.rename(p("d"), p("full"), true), &[not_empty]);
    refused(room.storage.rename(p("full"), p("full/x"), true), &[EINVAL]);
    refused(room.storage.rename(p("full"), p("full/x"), false), &[EINVAL]);
    refused(room.storage.rename(p("full"), p("full/x/y"), true), &[ENOENT]);
    // A directory on the way to what is renamed is not replaced.
    refused(room.storage.rename(p("full/inside"), p("full"), true), &[ENOTEMPTY]);
    refused(room.storage.rename(p("full/inside"), p("full"), false), &[EEXIST]);
    same(room.names(""), vec!["d".to_owned(), "f".to_owned(), "full".to_owned()]);
    same(room.names("full"), vec!["inside".to_owned()]);
}

fn renaming_a_directory(room: &Room) {
    room.directory("d");
    room.directory("e");
    room.directory("d/deep");
    let file = room.file("d/deep/f", b"deep");
    room.storage.rename(p("d"), p("moved"), false).unwrap();
    same(contents(&*room.open("moved/deep/f", Open::READ)), b"deep".to_vec());
    refused(room.storage.stat(p("d")), &[ENOENT]);
    // An empty directory is replaced.
    room.storage.rename(p("moved"), p("e"), true).unwrap();
    same(room.names(""), vec!["e".to_owned()]);
    same(room.names("e/deep"), vec!["f".to_owned()]);
    room.storage.rename(p("e/deep"), p("out"), false).unwrap();
    same(file.meta().unwrap().inode, room.storage.stat(p("out/f")).unwrap().inode);
}

fn renaming_one_file_of_two_names(room: &Room) {
    let file = room.file("a", b"both");
    room.hard_link("a", "b");
    same(file.meta().unwrap().links, 2);
    room.storage.rename(p("a"), p("b"), true).unwrap();
    same(room.names(""), vec!["a".to_owned(), "b".to_owned()]);
    same(file.meta().unwrap().links, 2);
    refused(room.storage.rename(p("a"), p("b"), false), &[EEXIST]);
}

fn renaming_a_link_moves_the_link(room: &Room) {
    drop(room.file("target", b"stays"));
    room.symbolic_link("l");
    room.storage.rename(p("l"), p("m"), false).unwrap();
    same(room.storage.stat(p("m")).unwrap().kind, Kind::Symlink);
    drop(room.file("f", b"over a link"));
    room.storage.rename(p("f"), p("m"), true).unwrap();
    same(room.storage.stat(p("m")).unwrap().kind, Kind::File);
    same(contents(&*room.open("target", Open::READ)), b"stays".to_vec());
}

fn a_replaced_file_stays_readable(room: &Room) {
    let old = room.file("f", b"old");
    drop(room.file("g", b"new one"));
    room.storage.rename(p("g"), p("f"), true).unwrap();
    same(contents(&*old), b"old".to_vec());
    same(old.meta().unwrap().links, 0);
    same(old.write_at(b"still", 0).unwrap(), 5);
    same(contents(&*old), b"still".to_vec());
    same(contents(&*room.open("f", Open::READ)), b"new one".to_vec());
}

fn unlinking(room: &Room) {
    room.directory("d");
    drop(room.file("a", b"a"));
    drop(room.file("target", b"stays"));
    room.symbolic_link("l");
    room.hard_link("a", "d/b");
    room.storage.unlink(p("a")).unwrap();
    same(room.storage.stat(p("d/b")).unwrap().links, 1);
    room.storage.unlink(p("d/b")).unwrap();
    room.storage.unlink(p("l")).unwrap();
    refused(room.storage.unlink(p("a")), &[ENOENT]);
    refused(room.storage.unlink(p("n/a")), &[ENOENT]);
    refused(room.storage.unlink(p("target/a")), &[ENOTDIR]);
    refused(room.storage.unlink(p("d")), &[EISDIR]);
    same(room.names(""), vec!["d".to_owned(), "target".to_owned()]);
}

fn an_unlinked_file_stays_readable(room: &Room) {
    let file = room.file("f", b"open");
    room.storage.unlink(p("f")).unwrap();
    same(contents(&*file), b"open".to_vec());
    let meta = file.meta().unwrap();
    same((meta.links, meta.size), (0, 4));
    file.set_len(2).unwrap();
    same(file.write_at(b"more", 2).unwrap(), 4);
    file.sync_all(Step::CheckpointData).unwrap();
    let new = room.file("f", b"another");
    same(contents(&*file), b"opmore".to_vec());
    same(contents(&*new), b"another".to_vec());
    holds(new.meta().unwrap().inode != meta.inode);
}

fn making_directories(room: &Room) {
    drop(room.file("f", b""));
    room.storage.mkdir(p("d"), 0o755).unwrap();
    room.storage.mkdir(p("d/e"), 0o700).unwrap();
    for path in ["d", "f", "d/e"] {
        refused(room.storage.mkdir(p(path), 0o700), &[EEXIST]);
    }
    refused(room.storage.mkdir(p("n/d"), 0o700), &[ENOENT]);
    refused(room.storage.mkdir(p("f/d"), 0o700), &[ENOTDIR]);
    let meta = room.storage.stat(p("d")).unwrap();
    same((meta.kind, meta.uid, meta.mode), (Kind::Directory, room.storage.effective_user(), 0o755));
}

fn changing_a_directorys_mode(room: &Room) {
    room.directory("d");
    drop(room.file("f", b""));
    for mode in [0o777, 0o1770, 0o700] {
        room.storage.set_dir_mode(p("d"), mode).unwrap();
        same(room.storage.stat(p("d")).unwrap().mode, mode);
    }
    room.storage.set_dir_mode(p(""), 0o750).unwrap();
    same(room.storage.stat(p("")).unwrap().mode, 0o750);
    refused(room.storage.set_dir_mode(p("f"), 0o700), &[ENOTDIR]);
    refused(room.storage.set_dir_mode(p("n"), 0o700), &[ENOENT]);
}

fn removing_directories(room: &Room) {
    room.directory("d");
    drop(room.file("d/f", b""));
    refused(room.storage.rmdir(p("d")), &[ENOTEMPTY]);
    refused(room.storage.rmdir(p("d/f")), &[ENOTDIR]);
    refused(room.storage.rmdir(p("n")), &[ENOENT]);
    refused(room.storage.rmdir(p("n/d")), &[ENOENT]);
    refused(room.storage.rmdir(p("d/f/g")), &[ENOTDIR]);
    room.storage.unlink(p("d/f")).unwrap();
    room.storage.rmdir(p("d")).unwrap();
    refused(room.storage.stat(p("d")), &[ENOENT]);
    refused(room.storage.open(p("d/f"), Open::create(0o600)), &[ENOENT]);
    room.directory("d");
    same(room.names("d"), vec![]);
}

fn syncing_directories(room: &Room) {
    room.directory("d");
    drop(room.file("f", b""));
    room.storage.sync_dir(p(""), Step::CheckpointNames).unwrap();
    room.storage.sync_dir(p("d"), Step::CheckpointNames).unwrap();
    refused(room.storage.sync_dir(p("f"), Step::CheckpointNames), &[ENOTDIR]);
    refused(room.storage.sync_dir(p("n"), Step::CheckpointNames), &[ENOENT]);
    room.storage.sync_everything(Step::CheckpointMany).unwrap();
}

fn a_read_only_storage(room: &Room) {
    room.directory("d");
    let file = room.file("f", b"contents");
    file.set_attribute(b"value").unwrap();
    drop(file);
    room.while_read_only(|storage| {
        holds(storage.space().unwrap().read_only);
        refused(storage.open(p("f"), Open::WRITE), &[EROFS]);
        refused(storage.open(p("n"), Open::create(0o600)), &[EROFS]);
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
        file.sync_all(Step::CheckpointData).unwrap();
        storage.sync_dir(p(""), Step::CheckpointNames).unwrap();
        // A private mapping never writes to its file.
        let request = untorn_os::MapRequest { address_space: 1, ..Default::default() };
        let mapping = file.map(&request).unwrap();
        mapping.show(0..mapping.page_bytes()).unwrap();
        mapping.copy_in(0, b"private").unwrap();
    });
    holds(!room.storage.space().unwrap().read_only);
    same(contents(&*room.open("f", Open::READ)), b"contents".to_vec());
}
