//! A plain compiler call and a small CMake project can use what `scripts/install.sh` installs.

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::{crate_dir, have, output_of, profile, run, target_dir};

fn install(prefix: &Path, destdir: &str) {
    // Other users must be able to read the library, whatever the umask.
    let mut script = Command::new("sh");
    script.args(["-c", "umask 077; exec sh \"$0\" \"$@\""]).arg(crate_dir().join("../../scripts/install.sh"));
    script.args(["--library-only", "--profile", profile()]);
    run(script.env("PREFIX", prefix).env("DESTDIR", destdir).env("CARGO_TARGET_DIR", target_dir()));
}

fn example() -> PathBuf {
    crate_dir().join("../../examples/c/hello.c")
}

fn runs(binary: &Path, prefix: &Path) {
    let store = binary.with_extension("store");
    fs::create_dir(&store).expect("a directory");
    run(Command::new(binary).arg(&store).env("LD_LIBRARY_PATH", prefix.join("lib")));
    assert_eq!(fs::read_to_string(store.join("account-a")).expect("account-a"), "70 coins\n");
}

#[test]
fn an_installation_can_be_used() {
    let temp = tempfile::tempdir().expect("a temporary directory");
    // The prefix is moved after installing, as that of a package is: no file may contain the old path.
    let (built, prefix) = (temp.path().join("built here"), temp.path().join("moved"));
    install(&built, "");
    fs::rename(&built, &prefix).expect("a prefix that can be moved");
    with_pkg_config(&prefix, temp.path());
    with_cmake(&prefix, temp.path());
}

fn with_pkg_config(prefix: &Path, temp: &Path) {
    if !have("pkg-config") {
        return;
    }
    let flags = |arguments: &[&str]| -> Vec<String> {
        let mut pkg_config = Command::new("pkg-config");
        pkg_config.args(arguments).arg("untorn").env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig"));
        output_of(&mut pkg_config).split_whitespace().map(str::to_owned).collect()
    };
    assert_eq!(flags(&["--modversion"]), [env!("CARGO_PKG_VERSION")]);
    let shared = temp.join("shared");
    run(Command::new("cc").arg(example()).args(flags(&["--cflags", "--libs"])).arg("-o").arg(&shared));
    runs(&shared, prefix);

    // Static: the archive by name, and what `Libs.private` says it needs.
    let fixed = temp.join("static");
    let mut libs = flags(&["--cflags", "--libs", "--static"]);
    libs.iter_mut().filter(|lib| *lib == "-luntorn").for_each(|lib| *lib = "-l:libuntorn.a".into());
    // Names that a dependency of the library uses internally stay free for the program.
    let own = temp.join("own.c");
    fs::write(&own, "int digest_new(void); int digest_new(void) { return 1; }\n").expect("a source");
    run(Command::new("cc").arg(example()).arg(own).args(libs).arg("-o").arg(&fixed));
    runs(&fixed, Path::new("/nonexistent"));
}

const CMAKE_PROJECT: &str = "
cmake_minimum_required(VERSION 3.16)
project(hello C)
find_package(Untorn 0.1 CONFIG REQUIRED)
add_executable(shared hello.c)
target_link_libraries(shared PRIVATE Untorn::untorn)
add_executable(static hello.c)
target_link_libraries(static PRIVATE Untorn::untorn_static)
";

fn with_cmake(prefix: &Path, temp: &Path) {
    if !have("cmake") {
        return;
    }
    let (project, build) = (temp.join("project"), temp.join("project-build"));
    fs::create_dir(&project).expect("a project");
    fs::copy(example(), project.join("hello.c")).expect("the example");
    fs::write(project.join("CMakeLists.txt"), CMAKE_PROJECT).expect("CMakeLists.txt");
    let mut configure = Command::new("cmake");
    configure.arg("-S").arg(&project).arg("-B").arg(&build);
    run(configure.arg(format!("-DCMAKE_PREFIX_PATH={}", prefix.display())));
    run(Command::new("cmake").arg("--build").arg(&build));
    runs(&build.join("shared"), prefix);
    runs(&build.join("static"), Path::new("/nonexistent"));

    // A newer version than the installed one is not found.
    fs::write(project.join("CMakeLists.txt"), CMAKE_PROJECT.replace("0.1", "0.99")).expect("CMakeLists.txt");
    let mut configure = Command::new("cmake");
    configure.arg("-S").arg(&project).arg("-B").arg(temp.join("too-new"));
    let refused = configure.arg(format!("-DCMAKE_PREFIX_PATH={}", prefix.display())).output().expect("cmake");
    assert!(!refused.status.success());
}

#[test]
fn destdir_stages_and_everybody_may_read() {
    let temp = tempfile::tempdir().expect("a temporary directory");
    install(Path::new("/opt/untorn"), temp.path().to_str().expect("a path in UTF-8"));
    let prefix = temp.path().join("opt/untorn");
    let version = env!("CARGO_PKG_VERSION");
    let expected = [
        ("include/untorn.h".to_owned(), 0o644),
        ("include/untorn.hpp".to_owned(), 0o644),
        ("include/untorn_heap.hpp".to_owned(), 0o644),
        ("include/untorn_posix.h".to_owned(), 0o644),
        (format!("lib/libuntorn.so.{version}"), 0o755),
        ("lib/libuntorn.a".to_owned(), 0o644),
        ("lib/pkgconfig/untorn.pc".to_owned(), 0o644),
        ("lib/cmake/Untorn/UntornConfig.cmake".to_owned(), 0o644),
        ("lib/cmake/Untorn/UntornConfigVersion.cmake".to_owned(), 0o644),
    ];
    for (path, mode) in expected {
        let metadata = fs::symlink_metadata(prefix.join(&path)).unwrap_or_else(|e| panic!("{path}: {e}"));
        assert!(metadata.is_file(), "{path}");
        assert_eq!(metadata.permissions().mode() & 0o777, mode, "{path}");
    }
    let link = |name: &str| fs::read_link(prefix.join("lib").join(name)).expect("a link");
    assert_eq!(link("libuntorn.so"), Path::new("libuntorn.so.0"));
    assert_eq!(link("libuntorn.so.0"), PathBuf::from(format!("libuntorn.so.{version}")));
    let directory = fs::metadata(prefix.join("lib/cmake/Untorn")).expect("a directory");
    assert_eq!(directory.permissions().mode() & 0o777, 0o755);
}
