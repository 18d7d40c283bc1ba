//! A plain compiler call and a small CMake project can use the files that `scripts/install.sh` installs.

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::{crate_dir, have, library_dir, output_of, profile, run, target_dir};

fn install(prefix: &Path, destdir: &str) {
    // Other users must be able to read the library, whatever the umask.
    let mut script = Command::new("sh");
    script.args(["-c", "umask 077; exec sh \"$0\" \"$@\""]).arg(crate_dir().join("../../../scripts/install.sh"));
    script.args(["--library-only", "--profile", profile()]);
    run(script.env("PREFIX", prefix).env("DESTDIR", destdir).env("CARGO_TARGET_DIR", target_dir()));
}

fn example() -> PathBuf {
    crate_dir().join("../../../examples/c/hello.c")
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
    with_versions(&prefix, temp.path());
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

    // Static: the archive by name, and the libraries in `Libs.private`.
    let fixed = temp.join("static");
    let mut libs = flags(&["--cflags", "--libs", "--static"]);
    libs.iter_mut().filter(|lib| *lib == "-luntorn").for_each(|lib| *lib = "-l:libuntorn.a".into());
    // Names that the library's dependencies use internally stay free for the program.
    let own = temp.join("own.c");
    fs::write(&own, "int digest_new(void); int digest_new(void) { return 1; }\n").expect("a source");
    run(Command::new("cc").arg(example()).arg(own).args(&libs).arg("-o").arg(&fixed));
    runs(&fixed, Path::new("/nonexistent"));

    // Without any shared library: the flags of pkg-config are sufficient.
    let alone = temp.join("alone");
    let mut cc = Command::new("cc");
    run(cc.arg(example()).arg("-static").args(flags(&["--cflags", "--libs", "--static"])).arg("-o").arg(&alone));
    let dynamic = output_of(Command::new("readelf").arg("--dynamic").arg(&alone));
    assert!(!dynamic.contains("NEEDED"), "{dynamic}");
    runs(&alone, Path::new("/nonexistent"));

    // The C++ library's own calls are found by the versions of the shared library; a static C++ library has its own.
    let cxx = temp.join("cxx");
    let mut command = Command::new("c++");
    command.args(["-std=c++17", "-O2"]).arg(crate_dir().join("tests/c/posix_cxx.cpp"));
    run(command.args(flags(&["--cflags", "--libs"])).arg("-o").arg(&cxx));
    let scratch = temp.join("cxx.scratch");
    fs::create_dir(&scratch).expect("a directory");
    run(Command::new(&cxx).arg(&scratch).env("LD_LIBRARY_PATH", prefix.join("lib")));
    let source = temp.join("renames.cc");
    let text = "#include <untorn_posix.h>\n#include <filesystem>\n#include <fstream>\n\
        int main() { std::ofstream(\"a\").close(); std::filesystem::rename(\"a\", \"b\"); return untorn_manage(\"*.db\"); }\n";
    fs::write(&source, text).expect("a source");
    for alone in [&["-static-libstdc++"][..], &["-static"]] {
        let fixed = temp.join("cxx.static");
        let mut command = Command::new("c++");
        run(command.arg("-std=c++17").args(alone).arg(&source).args(&libs).arg("-o").arg(&fixed));
        run(Command::new(&fixed).current_dir(&scratch));
        assert!(scratch.join("b").exists() && !scratch.join("a").exists());
    }
}

/// Each function has a version, nothing else is exported, and programs ask for the version.
fn with_versions(prefix: &Path, temp: &Path) {
    let library = prefix.join("lib/libuntorn.so.0");
    let symbols = output_of(Command::new("readelf").args(["--dyn-syms", "--wide"]).arg(&library));
    let defined: Vec<&str> = symbols
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>())
        .filter(|fields| fields.len() >= 8 && fields[3] == "FUNC" && fields[6] != "UND")
        .map(|fields| fields[7])
        .collect();
    assert!(defined.len() > 60, "{symbols}");
    // The functions of the C++ library have its versions, by which the dynamic linker looks for them.
    let versioned = |name: &&str| match name.starts_with("untorn_") {
        true => name.ends_with("@@UNTORN_0"),
        false => name.starts_with("_ZNSt") && name.contains("@@GLIBCXX_3.4"),
    };
    assert!(defined.iter().all(versioned), "{defined:?}");
    let cargo =
        output_of(Command::new("nm").args(["--dynamic", "--defined-only"]).arg(library_dir().join("libuntorn.so")));
    // The preloaded library alone calls the others.
    assert_eq!(defined.len(), cargo.lines().filter(|line| !line.contains(" untorn_preload_")).count());
    let dynamic = output_of(Command::new("readelf").arg("--dynamic").arg(&library));
    assert!(dynamic.contains("soname: [libuntorn.so.0]") && dynamic.contains("NODELETE"), "{dynamic}");
    let program = output_of(Command::new("readelf").arg("--version-info").arg(temp.join("shared")));
    assert!(program.contains("Name: UNTORN_0"), "{program}");
}

/// There is a page of the manual for every function, without a complaint of the formatter.
#[test]
fn every_function_has_a_manual_page() {
    let temp = tempfile::tempdir().expect("a temporary directory");
    install(Path::new("/usr"), temp.path().to_str().expect("a path in UTF-8"));
    let pages = temp.path().join("usr/share/man/man3");
    let nm =
        output_of(Command::new("nm").args(["--dynamic", "--defined-only"]).arg(library_dir().join("libuntorn.so")));
    let posix = fs::read_to_string(crate_dir().join("../../../include/untorn_posix.h")).expect("untorn_posix.h");
    let functions = nm.lines().filter_map(|line| line.split_whitespace().nth(2));
    let functions: Vec<&str> = functions
        .filter(|name| {
            name.starts_with("untorn_") && !name.starts_with("untorn_preload_") && !posix.contains(&format!("{name}("))
        })
        .collect();
    assert!(functions.len() > 50, "{functions:?}");
    for name in functions.iter().chain(&["untorn"]) {
        let page = pages.join(format!("{name}.3"));
        let text = fs::read_to_string(&page).unwrap_or_else(|e| panic!("{}: {e}", page.display()));
        let name_line = text.lines().skip_while(|line| *line != ".SH NAME").nth(1).unwrap_or_default();
        let (first, summary) = name_line.split_once(" \\- ").unwrap_or_else(|| panic!("{name}: {name_line}"));
        assert!(first == *name && summary.len() > 10 && summary.len() < 120, "{name_line}");
        assert!(text.contains(".SH SYNOPSIS") && text.contains(".SH DESCRIPTION\n"), "{text}");
    }
    if have("groff") {
        let all: Vec<_> = functions.iter().map(|name| pages.join(format!("{name}.3"))).collect();
        let mut groff = Command::new("groff");
        let output = groff.args(["-man", "-ww", "-z", "-Tutf8"]).args(all).output().expect("groff");
        assert!(output.status.success() && output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    let overview = fs::read_to_string(pages.join("untorn.3")).expect("untorn.3");
    assert!(functions.iter().all(|name| overview.contains(&format!(".BR {name} (3)"))), "{overview}");
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
        ("include/untorn_containers.hpp".to_owned(), 0o644),
        ("include/untorn_types.hpp".to_owned(), 0o644),
        ("include/untorn_members.hpp".to_owned(), 0o644),
        ("include/untorn_section.hpp".to_owned(), 0o644),
        ("lib/libuntorn-live.a".to_owned(), 0o644),
        ("lib/libuntorn-pthread.a".to_owned(), 0o644),
        ("lib/pkgconfig/untorn-live.pc".to_owned(), 0o644),
        ("bin/untorn-cc".to_owned(), 0o755),
        ("include/untorn_posix.h".to_owned(), 0o644),
        (format!("lib/libuntorn.so.{version}"), 0o755),
        ("lib/libuntorn.a".to_owned(), 0o644),
        ("share/man/man3/untorn.3".to_owned(), 0o644),
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
