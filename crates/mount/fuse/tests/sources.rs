//! The source of a mount as `mount`, `umount` and `findmnt` use it.

mod common;

use common::can_mount;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use untorn_mount::mounts::mount_point;

fn run(command: &mut Command) -> Output {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    output
}

fn has(program: &str) -> bool {
    let found = ["/usr/bin", "/usr/sbin", "/bin", "/sbin"].iter().any(|dir| Path::new(dir).join(program).exists());
    if !found {
        eprintln!("skipped: needs {program}");
    }
    found
}

#[test]
fn programs_find_a_mount_by_its_source() {
    if !can_mount() || !has("findmnt") || !has("mount.fuse3") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (store, at) = (dir.path().join("st ore"), dir.path().canonicalize().unwrap().join("mnt"));
    fs::create_dir(&at).unwrap();
    let untorn = Path::new(env!("CARGO_BIN_EXE_untorn-mount"));
    let source = format!("untorn:{}", store.display());
    // With the source as a helper of `mount` gets it, and as users write it.
    for given in [source.as_str(), store.to_str().unwrap()] {
        run(Command::new(untorn).args([given, at.to_str().unwrap(), "-o", "rw,nodev"]));
        let found = run(Command::new("findmnt").args(["-n", "-o", "TARGET", "-S", &source]));
        assert_eq!(String::from_utf8_lossy(&found.stdout).trim(), at.to_str().unwrap());
        assert_eq!(mount_point::mounted_at(&at).unwrap().unwrap().source, store);
        fs::write(at.join("file"), given).unwrap();
        let options = || {
            let found = run(Command::new("findmnt").args(["-n", "-o", "OPTIONS"]).arg(&at));
            String::from_utf8(found.stdout).unwrap().trim().split(',').map(str::to_owned).collect::<Vec<_>>()
        };
        // As `mount` calls the helper, with all options that the mount has, but through `mount.fuse3`, because the
        // program may not be installed.
        let remount = |how: &str| {
            let others: Vec<String> = options().into_iter().filter(|set| set != "ro" && set != "rw").collect();
            let how = format!("{how},{}", others.join(","));
            let kind = format!("fuse.{}", untorn.display());
            run(Command::new("mount.fuse3").arg(&source).arg(&at).args(["-t", &kind, "-o", &how]));
        };
        let is = |option: &str| options().iter().any(|set| set == option);
        remount("remount,nosuid,ro");
        assert!(is("ro") && is("nosuid"), "{:?}", options());
        assert_eq!(fs::write(at.join("other"), "").unwrap_err().raw_os_error(), Some(libc::EROFS));
        remount("remount,rw");
        fs::write(at.join("other"), "").unwrap();
        run(Command::new("umount").arg(&source));
        assert!(mount_point::mounted_at(&at).unwrap().is_none());
        // The daemon has closed the store when this can mount it.
        run(Command::new(untorn).args([&store, &at]));
        assert_eq!(fs::read_to_string(at.join("file")).unwrap(), given);
        run(Command::new(untorn).arg("umount").arg(&at));
    }
}
