//! Directories of a mounted store that are read while they change, positions in them to which programs return, and file
//! handles.

mod common;

use common::store_mount::Mounted;
use rustix::fs::{Mode, OFlags, RawDir, SeekFrom, open, seek};
use std::ffi::CString;
use std::fs::{self, File};
use std::io::Read;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The next names in a directory, at most `most`, and the position after each.
fn next_names(dir: &OwnedFd, most: usize) -> Vec<(String, u64)> {
    // At most two names, or some hundred.
    let mut buffer = vec![MaybeUninit::uninit(); most.min(1000) * 48];
    let mut names = RawDir::new(dir.as_fd(), &mut buffer);
    let mut found = Vec::new();
    while let Some(entry) = names.next() {
        let entry = entry.unwrap();
        found.push((entry.file_name().to_str().unwrap().to_owned(), entry.next_entry_cookie()));
        if names.is_buffer_empty() {
            break;
        }
    }
    found
}

fn directory(path: &Path) -> OwnedFd {
    open(path, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap()
}

fn all_names(dir: &OwnedFd) -> Vec<(String, u64)> {
    seek(dir, SeekFrom::Start(0)).unwrap();
    let mut found = Vec::new();
    loop {
        let more = next_names(dir, 1000);
        if more.is_empty() {
            return found;
        }
        found.extend(more);
    }
}

#[test]
fn places_in_a_directory_fit_in_31_bits_and_lead_to_what_comes_after_them() {
    let Some(mounted) = Mounted::new() else { return };
    let path = mounted.at("dir");
    fs::create_dir(&path).unwrap();
    for n in 0..300 {
        File::create(path.join(n.to_string())).unwrap();
    }
    let dir = directory(&path);
    let names = all_names(&dir);
    assert_eq!(names.len(), 302);
    assert_eq!([&names[0].0, &names[1].0], [".", ".."]);
    assert!(names[0].1 > 0 && names.windows(2).all(|pair| pair[0].1 < pair[1].1), "each is behind the one before it");
    assert!(names.iter().all(|(_, place)| i32::try_from(*place).is_ok()), "32-bit programs can go back there");
    let after = |place: u64| {
        seek(&dir, SeekFrom::Start(place)).unwrap();
        next_names(&dir, 2).first().map(|(name, _)| name.clone())
    };
    for (n, (_, place)) in names.iter().enumerate().rev() {
        assert_eq!(after(*place).as_ref(), names.get(n + 1).map(|(name, _)| name));
    }
    // A position between two names, such as that of a removed name.
    let ends = names.len() - 1;
    for (_, place) in names.iter().take(ends).filter(|(_, place)| *place > 2) {
        assert!(after(place - 1).is_some());
    }
    // Also after another program has read the directory.
    fs::remove_file(path.join(&names[7].0)).unwrap();
    assert_eq!(all_names(&directory(&path)).len(), 301);
    assert_eq!(after(names[7].1).as_ref(), Some(&names[8].0));
    assert_eq!(after(names[6].1).as_ref(), Some(&names[8].0));
}

/// Changes a name of a directory.
type Change = fn(&Path, &str);

#[test]
fn a_directory_is_read_to_its_end_while_its_names_change() {
    let Some(mounted) = Mounted::new() else { return };
    let path = mounted.at("dir");
    let changes: [(&str, Change); 4] = [
        ("renamed and back", |dir, name| {
            fs::rename(dir.join(name), dir.join("between")).unwrap();
            fs::rename(dir.join("between"), dir.join(name)).unwrap();
        }),
        ("renamed", |dir, name| fs::rename(dir.join(name), dir.join(format!("{name}+"))).unwrap()),
        ("copied", |dir, name| fs::write(dir.join(format!("{name}+")), "copy").unwrap()),
        ("made anew", |dir, name| {
            fs::remove_file(dir.join(name)).unwrap();
            fs::write(dir.join(name), "new").unwrap();
        }),
    ];
    for (what, change) in changes {
        fs::create_dir(&path).unwrap();
        for n in 0..700 {
            File::create(path.join(n.to_string())).unwrap();
        }
        let dir = directory(&path);
        let mut seen = Vec::new();
        loop {
            let names = next_names(&dir, 2);
            if names.is_empty() {
                break;
            }
            for (name, _) in names.into_iter().filter(|(name, _)| !name.starts_with('.')) {
                change(&path, &name);
                seen.push(name);
                assert!(seen.len() <= 700, "{what}: it goes on with {}", seen[700]);
            }
        }
        let mut numbers: Vec<u32> = seen.iter().map(|name| name.parse().unwrap()).collect();
        numbers.sort_unstable();
        assert_eq!(numbers, (0..700).collect::<Vec<_>>(), "{what}");
        fs::remove_dir_all(&path).unwrap();
    }
}

#[test]
fn a_file_that_another_program_renames_is_read_once() {
    let Some(mounted) = Mounted::new() else { return };
    for n in 0..1000 {
        File::create(mounted.at(&n.to_string())).unwrap();
    }
    let dir = directory(&mounted.at(""));
    let mut names = next_names(&dir, 2);
    // Names that are yet to be read, and some that were read.
    for n in 0..1000 {
        fs::rename(mounted.at(&n.to_string()), mounted.at(&format!("new {n}"))).unwrap();
    }
    loop {
        let more = next_names(&dir, 1000);
        if more.is_empty() {
            break;
        }
        names.extend(more);
    }
    let files =
        names.iter().filter(|(name, _)| !name.starts_with('.')).map(|(name, _)| name.trim_start_matches("new "));
    let mut numbers: Vec<u32> = files.map(|name| name.parse().unwrap()).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (0..1000).collect::<Vec<_>>());
}

/// `struct file_handle`, with as many bytes as the kernel allows.
#[repr(C)]
struct Handle {
    bytes: u32,
    kind: i32,
    of: [u8; 128],
}

fn handle(path: &Path) -> Handle {
    let mut handle = Handle { bytes: 128, kind: 0, of: [0; 128] };
    let (name, mut mount) = (CString::new(path.as_os_str().as_bytes()).unwrap(), 0i32);
    // SAFETY: the handle has room for as many bytes as it says.
    let done = unsafe {
        libc::syscall(libc::SYS_name_to_handle_at, libc::AT_FDCWD, name.as_ptr(), &raw mut handle, &raw mut mount, 0)
    };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
    handle
}

fn opened(handle: &mut Handle, on: &Path, flags: i32) -> std::io::Result<File> {
    let mount = directory(on);
    // SAFETY: the kernel reads the handle, and a descriptor that it gives is nobody else's.
    unsafe {
        match libc::syscall(libc::SYS_open_by_handle_at, mount.as_raw_fd(), handle, flags) {
            -1 => Err(std::io::Error::last_os_error()),
            fd => Ok(OwnedFd::from_raw_fd(fd as i32).into()),
        }
    }
}

fn drop_caches() {
    fs::write("/proc/sys/vm/drop_caches", "2").unwrap();
}

#[test]
fn a_file_handle_leads_to_its_file_as_long_as_there_is_one() {
    let Some(mounted) = Mounted::new() else { return };
    fs::create_dir_all(mounted.at("a/b")).unwrap();
    for name in ["a/b/file", "a/b/gone"] {
        fs::write(mounted.at(name), name).unwrap();
    }
    let (mut file, mut dir, mut gone) =
        (handle(&mounted.at("a/b/file")), handle(&mounted.at("a/b")), handle(&mounted.at("a/b/gone")));
    let ino = fs::metadata(mounted.at("a/b")).unwrap().ino();
    fs::rename(mounted.at("a/b"), mounted.at("c")).unwrap();
    fs::remove_file(mounted.at("c/gone")).unwrap();
    let look = |file: &mut Handle, dir: &mut Handle, gone: &mut Handle, when: &str| {
        let on = mounted.at("");
        let mut text = String::new();
        opened(file, &on, libc::O_RDONLY).unwrap_or_else(|e| panic!("{when}: {e}")).read_to_string(&mut text).unwrap();
        assert_eq!(text, "a/b/file", "{when}");
        let found = opened(dir, &on, libc::O_RDONLY | libc::O_DIRECTORY).unwrap();
        assert_eq!(found.metadata().unwrap().ino(), ino, "{when}");
        let path = fs::read_link(format!("/proc/self/fd/{}", found.as_raw_fd())).unwrap();
        assert_eq!(path, mounted.at("c"), "{when}: with its name, which the kernel asks for");
        assert_eq!(opened(gone, &on, libc::O_RDONLY).unwrap_err().raw_os_error(), Some(libc::ESTALE), "{when}");
    };
    look(&mut file, &mut dir, &mut gone, "cached");
    drop_caches();
    look(&mut file, &mut dir, &mut gone, "forgotten");
    mounted.unmount();
    mounted.mount();
    look(&mut file, &mut dir, &mut gone, "mounted again");
    let mut root = handle(&mounted.at(""));
    drop_caches();
    opened(&mut root, &mounted.at(""), libc::O_RDONLY).unwrap();
    mounted.unmount();
}
