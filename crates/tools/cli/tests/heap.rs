//! `untorn check heap` and `untorn dump heap`.

mod common;

use common::{json, run};
use std::alloc::Layout;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use untorn::heap::{Heap, HeapOptions, SectionLock};

/// A heap with a root to one of three blocks. The other blocks are leaks, and so are one large and one huge allocation.
fn make(path: &Path) -> Heap {
    let heap = Heap::open_or_create(path).unwrap();
    let blocks = [1000, 1000, 1000, 100_000, 5_000_000].map(|bytes| {
        let block = heap.allocate(Layout::from_size_align(bytes, 8).unwrap()).unwrap();
        // SAFETY: an allocation of so many bytes.
        unsafe { block.write_bytes(0, bytes) };
        block
    });
    heap.set_root::<[u8; 1000]>("first", Some(blocks[0].cast())).unwrap();
    heap.commit().unwrap();
    heap
}

#[test]
fn a_heap_is_checked_dumped_and_collected() {
    let dir = tempfile::tempdir().unwrap();
    // The heap's name is the same as the word on the command line.
    let path = dir.path().join("heap");
    let heap = make(&path);
    let e = run(&["check", "heap"], &path).fails(2);
    assert!(e.contains("in use") && e.contains(&std::process::id().to_string()), "{e}");
    assert!(run(&["dump", "heap"], &path).fails(1).contains("in use"));
    assert!(run(&["check", "heap", "--gc"], &path).fails(2).contains("in use"));
    heap.close().unwrap();

    let text = run(&["check", "heap"], &path).ok();
    assert!(text.contains("no root reaches 4 allocations, 8.0") && text.ends_with("sound\n"), "{text}");
    let found = json(&run(&["check", "heap", "--json"], &path).ok());
    assert_eq!((&found["sound"], &found["leaks"]["count"]), (&true.into(), &4.into()), "{found}");
    assert_eq!(found["reclaimed"], false);

    let text = run(&["dump", "heap"], &path).ok();
    for part in ["1024 B", "first", "[u8; 1000]", "M0LL....", &"H".repeat(63), "1 allocation of whole segments"] {
        assert!(text.contains(part), "{part} in {text}");
    }
    assert_eq!(json(&run(&["dump", "heap", "--json"], &path).ok())["huge"]["asked_bytes"], 5_000_000);

    // In the heap's directory, by its name: first the store of the file `heap`, then the heap in it.
    let here = |arguments: &[&str]| {
        let mut command = common::untorn();
        common::Run::from(command.args(arguments).current_dir(dir.path()).output().unwrap())
    };
    assert!(here(&["check", "heap"]).ok().starts_with("store"));
    assert!(here(&["check", "heap", "heap"]).ok().starts_with("heap"));
    let e = here(&["check", "--gc", "heap"]);
    assert_eq!(e.code, Some(2), "{}{}", e.out, e.err);

    let text = run(&["check", "heap", "--gc"], &path).ok();
    assert!(text.contains("reclaimed what no root reaches: 4 allocations"), "{text}");
    let text = run(&["check", "heap"], &path).ok();
    assert!(!text.contains("no root reaches") && text.ends_with("sound\n"), "{text}");
    let heap = Heap::open(&path).unwrap();
    assert!(heap.root::<[u8; 1000]>("first").unwrap().is_some_and(|root| heap.size_of(root.cast()).is_ok()));
}

#[test]
fn a_damaged_heap_is_told_and_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("data");
    make(&path).close().unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    // The descriptor of the second chunk.
    bytes[4096 + 2 * 64 + 4] ^= 0x40;
    std::fs::write(&path, &bytes).unwrap();
    for arguments in [&["check", "heap"][..], &["check", "heap", "--gc"]] {
        let found = run(arguments, &path);
        assert_eq!(found.code, Some(1), "{}{}", found.out, found.err);
        assert!(found.out.contains("PROBLEM  segment 0, chunk 2") && found.out.contains("not sound"), "{}", found.out);
        assert_eq!(std::fs::read(&path).unwrap(), bytes, "nothing was changed");
    }
    assert!(run(&["dump", "heap"], &path).ok().contains("PROBLEM"));
    std::fs::write(&path, "text").unwrap();
    assert!(run(&["check", "heap"], &path).fails(2).contains("not a heap"));
    assert!(run(&["check", "heap"], &dir.path().join("missing")).fails(2).contains("missing"));
}

#[test]
fn pointers_out_of_a_heap_are_looked_for_on_request() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("accounts");
    let heap = make(&path);
    let root = heap.root::<[u8; 1000]>("first").unwrap().unwrap();
    // SAFETY: inside of the block.
    unsafe { root.cast::<u64>().add(3).write(0x5555_5557_0010) };
    heap.commit().unwrap();
    heap.close().unwrap();
    assert!(!run(&["check", "heap"], &path).ok().contains("pointer"));
    let told = run(&["check", "heap", "--pointers"], &path);
    let place = format!("at {:#x} has at offset 24 the address 0x555555570010", root.as_ptr() as usize);
    assert!(told.code == Some(1) && told.out.contains(&place) && told.out.ends_with("sound\n"), "{}", told.out);
    let found = run(&["check", "heap", "--pointers", "--json"], &path);
    assert_eq!(json(&found.out)["pointers"]["count"], 1);

    let heap = Heap::open(&path).unwrap();
    // SAFETY: as above.
    unsafe { root.cast::<u64>().add(3).write(24) };
    heap.commit().unwrap();
    heap.close().unwrap();
    assert!(run(&["check", "heap", "--pointers"], &path).ok().contains("no pointers out of the heap"));
    assert_eq!(run(&["check", "--pointers"], dir.path()).code, Some(2));
}

/// The report for programs names the heap's memory even if its name is not UTF-8.
#[test]
fn a_live_heap_whose_name_is_no_text_is_named_to_programs() {
    use std::os::unix::ffi::OsStrExt;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(std::ffi::OsStr::from_bytes(b"heap\xff"));
    drop(HeapOptions::new().create(true).live(true).open(&path).unwrap());
    for command in [&["status"][..], &["check", "heap"]] {
        let found = json(&run(&[command, &["--json"]].concat(), &path).ok());
        let named = found["live_memory"][0]["path"].as_str().unwrap();
        assert!(named.ends_with("heap\u{fffd}"), "{command:?}: {found}");
    }
    run(&["eject"], &path).ok();
}

#[test]
fn what_a_killed_live_heap_has_in_memory_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("heap");
    let heap = HeapOptions::new().create(true).live(true).open(&path).unwrap();
    let memory = heap.live().unwrap().memory;
    // Drops the heap without closing it, which is like a kill of its process.
    drop(heap);
    let text = run(&["check", "heap"], &path).ok();
    assert!(text.contains("this is the last cut") && text.contains(memory.to_str().unwrap()), "{text}");
    assert!(text.contains("the heap in memory is sound") && text.ends_with("sound\n"), "{text}");
    let found = json(&run(&["check", "heap", "--json"], &path).ok());
    assert_eq!(found["live_memory"][0]["memory"], memory.to_str().unwrap(), "{found}");
    assert_eq!(found["live"]["next"], "goes-on", "{found}");
    run(&["eject"], &path).ok();
    let found = json(&run(&["check", "heap", "--json"], &path).ok());
    assert_eq!(found["live_memory"].as_array().map(Vec::len), Some(0), "{found}");
    assert!(found["live"].is_null(), "{found}");
}

/// The commands report how the next opening would use the memory of a killed process, and change nothing.
#[test]
fn what_becomes_of_live_memory_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("heap");
    let live = || HeapOptions::new().create(true).live(true).address_space(64 << 20);
    let look = || {
        let memory = std::fs::read(live_memory(&path)).ok();
        let (text, found) = (run(&["check", "heap"], &path), json(&run(&["check", "heap", "--json"], &path).out));
        assert_eq!(std::fs::read(live_memory(&path)).ok(), memory, "nothing was changed");
        assert_eq!(found["sound"], text.code == Some(0), "{found}");
        (text, found)
    };
    // A section that never ends, and another one that has read its changes.
    {
        let heap = &live().open(&path).unwrap();
        let number = heap.root_or("number", |_| 0_u64).unwrap();
        let address = number.as_ptr().expose_provenance();
        let locks = [SectionLock::new(), SectionLock::new()];
        let in_thread = |work: &(dyn Fn(&mut u64) + Sync)| {
            // SAFETY: one thread at a time uses it.
            let work = || work(unsafe { &mut *std::ptr::with_exposed_provenance_mut(address) });
            std::thread::scope(|scope| scope.spawn(work).join().unwrap());
        };
        in_thread(&|number| {
            let section = heap.section_with(&locks[0]).unwrap();
            let given_back = heap.section_with(&locks[1]).unwrap();
            *section.modify(number).unwrap() = 1;
            drop(given_back);
            std::mem::forget(section);
        });
        in_thread(&|number| *heap.section_with(&locks[1]).unwrap().modify(number).unwrap() += 1);
        let told = run(&["check", "heap"], &path).fails(2);
        assert!(told.contains("in use"), "{told}");
    }
    let (text, found) = look();
    let text = text.ok();
    assert!(text.contains("it undoes 1 section that had not ended, and 1 that had seen their changes"), "{text}");
    let wanted = serde_json::json!(["goes-on", 1, 1, 0]);
    let live_found = &found["live"];
    let problems = live_found["heap"]["problems"].as_array().map(Vec::len);
    let told = serde_json::json!([live_found["next"], live_found["undone"], live_found["cascaded"], problems]);
    assert_eq!(told, wanted, "{found}");

    // A root to a freed block, for which an opening does not look.
    let heap = live().open(&path).unwrap();
    assert_eq!((heap.live().unwrap().undone, heap.live().unwrap().cascaded), (1, 1));
    let block = heap.allocate(Layout::new::<u64>()).unwrap();
    heap.set_root("lost", Some(block)).unwrap();
    // SAFETY: the block is not used.
    unsafe { heap.free(block) }.unwrap();
    drop(heap);
    let (text, found) = look();
    assert_eq!((text.code, &found["live"]["next"]), (Some(1), &"goes-on".into()), "{}{found}", text.out);
    assert!(text.out.contains("PROBLEM  in memory: root 1, \"lost\""), "{}", text.out);
    assert!(text.out.ends_with("the last cut is sound; the memory is not\n"), "{}", text.out);

    // A change that is half done; then memory that is gone.
    let heap = live().open(&path).unwrap();
    heap.set_root::<u8>("lost", None).unwrap();
    std::mem::forget(heap.mutate());
    drop(heap);
    for why in ["ended while it held a mutation guard", "the machine was restarted"] {
        let (text, found) = look();
        let text = text.ok();
        assert!(text.contains("to which the next opening goes back") && text.contains(why), "{text}");
        assert!(found["live"]["next"]["last-cut"].as_str().unwrap().contains(why), "{found}");
        let _ = std::fs::remove_file(live_memory(&path));
    }
    live().open(&path).unwrap().close().unwrap();
    assert!(look().1["live"].is_null());
}

/// The file of a heap's live memory.
fn live_memory(path: &Path) -> PathBuf {
    let meta = std::fs::metadata(path).unwrap();
    let top = std::env::var_os("UNTORN_LIVE_DIR").unwrap_or("/dev/shm".into());
    Path::new(&top).join(format!("untorn-{}", meta.uid())).join(format!("heap-{:x}-{:x}", meta.dev(), meta.ino()))
}
