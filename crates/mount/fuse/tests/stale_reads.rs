//! Writes past the kernel's cache for which the program does not wait.

mod common;

use common::{Mount, new_file};
use parking_lot::Mutex;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;
use untorn_mount::fuse::kernel_cache::Locked;

/// `struct iocb` of `linux/aio_abi.h`.
#[repr(C)]
#[derive(Default)]
struct Request {
    data: u64,
    key: u32,
    rw_flags: u32,
    opcode: u16,
    priority: i16,
    descriptor: u32,
    buffer: u64,
    bytes: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    event: u32,
}

/// `struct io_event`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Event {
    data: u64,
    object: u64,
    result: i64,
    result2: i64,
}

/// Writes a buffer by `io_submit`, and waits for it by `io_getevents`.
fn write_asynchronously(file: &File, buffer: &[u8]) {
    const PWRITE: u16 = 1;
    let mut context = 0u64;
    let request = Request {
        opcode: PWRITE,
        descriptor: file.as_raw_fd().cast_unsigned(),
        buffer: buffer.as_ptr() as u64,
        bytes: buffer.len() as u64,
        ..Request::default()
    };
    let mut requests = [&raw const request];
    let mut event = Event::default();
    // SAFETY: the structures are those of the kernel, and all of them, the buffer too, live until the event is there.
    unsafe {
        assert_eq!(libc::syscall(libc::SYS_io_setup, 1, &raw mut context), 0);
        assert_eq!(libc::syscall(libc::SYS_io_submit, context, 1, requests.as_mut_ptr()), 1);
        let none = std::ptr::null::<libc::timespec>();
        assert_eq!(libc::syscall(libc::SYS_io_getevents, context, 1, 1, &raw mut event, none), 1);
        libc::syscall(libc::SYS_io_destroy, context);
    }
    assert_eq!(event.result, buffer.len() as i64);
}

/// The kernel drops its cache before the write and after it; a program reads between these two moments.
#[test]
fn what_is_written_past_the_cache_is_read_even_if_it_was_cached_meanwhile() {
    let Some(mount) = Mount::new() else { return };
    let path = mount.at("file");
    let mut made = new_file(&mount, "file");
    made.write_all(&[1; 8192]).unwrap();
    made.sync_all().unwrap();
    drop(made);
    let file = OpenOptions::new().read(true).write(true).custom_flags(libc::O_DIRECT).open(&path).unwrap();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let (cache, read, seen_by_reader) = (Arc::clone(mount.cache()), path.clone(), Arc::clone(&seen));
    mount.tree.before_next_write(move |ino| {
        // Another thread answers requests from now on.
        untorn_tree::KernelCache::write_back(&Locked(&cache), ino).unwrap();
        let (sender, receiver) = channel();
        // Its `close` may wait for the lock that the kernel holds until this write is answered.
        thread::spawn(move || {
            let (mut file, mut bytes) = (File::open(read).unwrap(), vec![0; 8192]);
            file.read_exact(&mut bytes).unwrap();
            sender.send(bytes).unwrap();
        });
        *seen_by_reader.lock() = receiver.recv().unwrap();
    });
    let buffer = memmap2::MmapMut::map_anon(4096).map(|mut page| {
        page.fill(2);
        page
    });
    write_asynchronously(&file, &buffer.unwrap());
    assert!(*seen.lock() == [1; 8192], "read while the write is under way");
    let mut after = Vec::new();
    File::open(&path).unwrap().read_to_end(&mut after).unwrap();
    assert!(after == [[2; 4096], [1; 4096]].concat(), "it begins with {}", after[0]);
}

#[test]
fn the_same_with_the_steps_for_an_older_kernel() {
    common::again_as_on_an_older_kernel("6.8");
}
