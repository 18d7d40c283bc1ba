//! Rules about the metadata of a file and about the machine: the results of `stat`, modes, the attribute, free space,
//! random bytes, the boot.

use crate::fixture::{Fixture, contents, holds, same};
use std::path::Path;
use std::time::Duration;
use untorn::__private::sync_point;
use untorn_os::{Kind, Open};

crate::fixture::rules! {
    what_stat_tells,
    links_are_counted,
    the_time_moves_with_contents,
    modes_change_exactly,
    the_attribute,
    the_attribute_belongs_to_the_file,
    the_attribute_of_a_file_that_cannot_be_written,
    long_attributes_are_not_read,
    the_attribute_of_a_directory,
    the_machine,
}

fn p(path: &str) -> &Path {
    Path::new(path)
}

/// Waits long enough for the clock of any file system to advance.
fn wait_for_the_clock() {
    std::thread::sleep(Duration::from_millis(25));
}

fn what_stat_tells(fixture: &Fixture) {
    fixture.directory("d");
    let file = fixture.file("d/f", &[1; 5000]);
    fixture.symbolic_link("l");
    let (root, directory) = (fixture.storage.stat(p("")).unwrap(), fixture.storage.stat(p("d")).unwrap());
    let (meta, link) = (file.meta().unwrap(), fixture.storage.stat(p("l")).unwrap());
    same(fixture.storage.stat(p("d/f")).unwrap(), meta);
    same((meta.kind, meta.size, meta.links, meta.mode), (Kind::File, 5000, 1, 0o644));
    same((root.kind, directory.kind, link.kind), (Kind::Directory, Kind::Directory, Kind::Symlink));
    for meta in [meta, directory, link] {
        same((meta.device, meta.uid), (root.device, fixture.storage.effective_user()));
    }
    let mut inodes = [root, directory, meta, link].map(|meta| meta.inode).to_vec();
    inodes.sort_unstable();
    inodes.dedup();
    same(inodes.len(), 4);
    file.set_len(10).unwrap();
    same((file.meta().unwrap().size, fixture.storage.stat(p("d/f")).unwrap().size), (10, 10));
    // An opening follows its file, a path its name.
    fixture.storage.rename(p("d/f"), p("g"), false).unwrap();
    same(file.meta().unwrap(), fixture.storage.stat(p("g")).unwrap());
    same(fixture.open("g", Open::READ).meta().unwrap(), file.meta().unwrap());
}

fn links_are_counted(fixture: &Fixture) {
    fixture.directory("d");
    let file = fixture.file("a", b"");
    for (n, name) in ["b", "d/c"].into_iter().enumerate() {
        fixture.hard_link("a", name);
        same(file.meta().unwrap().links, n as u64 + 2);
        same(fixture.storage.stat(p(name)).unwrap(), fixture.storage.stat(p("a")).unwrap());
    }
    fixture.storage.unlink(p("a")).unwrap();
    same(file.meta().unwrap().links, 2);
    drop(fixture.file("x", b""));
    fixture.storage.rename(p("x"), p("b"), true).unwrap();
    same(file.meta().unwrap().links, 1);
    fixture.storage.rename(p("d/c"), p("y"), true).unwrap();
    same(file.meta().unwrap().links, 1);
    fixture.storage.unlink(p("y")).unwrap();
    same(file.meta().unwrap().links, 0);
}

fn the_time_moves_with_contents(fixture: &Fixture) {
    let file = fixture.file("f", b"0123456789");
    let moves = |act: &dyn Fn()| {
        let before = file.meta().unwrap().mtime_ns;
        wait_for_the_clock();
        act();
        let after = file.meta().unwrap().mtime_ns;
        holds(after >= before);
        after > before
    };
    holds(moves(&|| same(file.write_at(b"x", 0).unwrap(), 1)));
    holds(moves(&|| file.set_len(5).unwrap()));
    holds(moves(&|| file.set_len(50).unwrap()));
    holds(moves(&|| file.zero(0, 10).unwrap()));
    holds(moves(&|| file.set_len(50).unwrap()));
    holds(!moves(&|| drop(contents(&*file))));
    holds(!moves(&|| file.set_mode(0o600).unwrap()));
    holds(!moves(&|| file.set_attribute(b"value").unwrap()));
    holds(!moves(&|| fixture.storage.rename(p("f"), p("g"), false).unwrap()));
    holds(!moves(&|| drop(fixture.open("g", Open::WRITE))));
    holds(!moves(&|| file.sync_all(sync_point::CHECKPOINT_DATA).unwrap()));
    // A directory's time changes with its names.
    let before = fixture.storage.stat(p("")).unwrap().mtime_ns;
    wait_for_the_clock();
    drop(fixture.file("new", b""));
    let after = fixture.storage.stat(p("")).unwrap().mtime_ns;
    holds(after > before);
    wait_for_the_clock();
    fixture.storage.unlink(p("new")).unwrap();
    holds(fixture.storage.stat(p("")).unwrap().mtime_ns > after);
}

fn modes_change_exactly(fixture: &Fixture) {
    let file = fixture.file("f", b"");
    let reader = fixture.open("f", Open::READ);
    for mode in [0o777, 0o4755, 0o1666, 0o000, 0o600, 0o444] {
        for opening in [&file, &reader] {
            opening.set_mode(0o640).unwrap();
            opening.set_mode(mode).unwrap();
            same((file.meta().unwrap().mode, fixture.storage.stat(p("f")).unwrap().mode), (mode, mode));
        }
    }
    // An opening keeps its rights.
    file.set_mode(0).unwrap();
    same(file.write_at(b"x", 0).unwrap(), 1);
    same(contents(&*reader), b"x".to_vec());
}

fn the_attribute(fixture: &Fixture) {
    let file = fixture.file("f", b"contents");
    let reader = fixture.open("f", Open::READ);
    same(file.attribute().unwrap(), None);
    file.remove_attribute().unwrap();
    let values: [&[u8]; 5] = [b"value", b"", b"\0\xff\0", &[7; 256], b"shorter"];
    for value in values {
        file.set_attribute(value).unwrap();
        same(file.attribute().unwrap(), Some(value.to_vec()));
        same(reader.attribute().unwrap(), Some(value.to_vec()));
    }
    // It can be changed through any opening.
    reader.set_attribute(b"by reader").unwrap();
    same(file.attribute().unwrap(), Some(b"by reader".to_vec()));
    reader.remove_attribute().unwrap();
    same(file.attribute().unwrap(), None);
    reader.remove_attribute().unwrap();
    same((contents(&*file), file.meta().unwrap().mode), (b"contents".to_vec(), 0o644));
}

fn the_attribute_belongs_to_the_file(fixture: &Fixture) {
    let file = fixture.file("a", b"");
    file.set_attribute(b"mine").unwrap();
    fixture.hard_link("a", "b");
    same(fixture.open("b", Open::READ).attribute().unwrap(), Some(b"mine".to_vec()));
    fixture.storage.rename(p("a"), p("c"), false).unwrap();
    same(fixture.open("c", Open::READ).attribute().unwrap(), Some(b"mine".to_vec()));
    drop(fixture.file("x", b""));
    fixture.storage.rename(p("x"), p("b"), true).unwrap();
    same(fixture.open("b", Open::READ).attribute().unwrap(), None);
    fixture.storage.unlink(p("c")).unwrap();
    same(file.attribute().unwrap(), Some(b"mine".to_vec()));
    same(fixture.file("c", b"").attribute().unwrap(), None);
}

fn the_attribute_of_a_file_that_cannot_be_written(fixture: &Fixture) {
    let file = fixture.open("f", Open::create(0o400));
    file.set_attribute(b"value").unwrap();
    same((file.attribute().unwrap(), file.meta().unwrap().mode), (Some(b"value".to_vec()), 0o400));
    let reader = fixture.open("f", Open::READ);
    reader.set_attribute(b"other").unwrap();
    same((file.attribute().unwrap(), file.meta().unwrap().mode), (Some(b"other".to_vec()), 0o400));
    reader.remove_attribute().unwrap();
    same((file.attribute().unwrap(), file.meta().unwrap().mode), (None, 0o400));
}

fn long_attributes_are_not_read(fixture: &Fixture) {
    let file = fixture.file("f", b"");
    file.set_attribute(&[7; 257]).unwrap();
    same(file.attribute().unwrap(), Some(Vec::new()));
    file.set_attribute(&[7; 300]).unwrap();
    same(file.attribute().unwrap(), Some(Vec::new()));
    file.remove_attribute().unwrap();
    same(file.attribute().unwrap(), None);
}

fn the_attribute_of_a_directory(fixture: &Fixture) {
    fixture.directory("d");
    let directory = fixture.open("d", Open::READ);
    same(directory.attribute().unwrap(), None);
    directory.set_attribute(b"value").unwrap();
    same(fixture.open("d", Open::READ).attribute().unwrap(), Some(b"value".to_vec()));
    directory.remove_attribute().unwrap();
    same(directory.attribute().unwrap(), None);
}

fn the_machine(fixture: &Fixture) {
    let (storage, other) = (&fixture.storage, fixture.another_storage());
    let space = storage.space().unwrap();
    holds(space.available_bytes > 0 && space.available_bytes <= space.total_bytes && !space.read_only);
    holds(storage.open_files_max() >= 8);
    same(storage.effective_user(), other.effective_user());
    same(storage.boot_id().unwrap(), storage.boot_id().unwrap());
    same(storage.boot_id().unwrap(), other.boot_id().unwrap());
    holds(storage.boot_id().unwrap() != [0; 16]);
    let mut drawn = [[0u8; 19]; 3];
    drawn.iter_mut().for_each(|bytes| storage.random(bytes).unwrap());
    holds(drawn[0] != drawn[1] && drawn[1] != drawn[2] && drawn.iter().all(|bytes| bytes != &[0; 19]));
    storage.random(&mut []).unwrap();
    storage.pause();
    let before = storage.uptime();
    storage.pause_for(Duration::from_millis(2));
    holds(storage.uptime() >= before + Duration::from_millis(2));
    same(storage.sync_file_system_reports_errors(), other.sync_file_system_reports_errors());
}
