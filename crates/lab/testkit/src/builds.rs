//! Parts of the workspace that a test needs besides its own package.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// `target/PROFILE` of this test.
fn profile_dir() -> PathBuf {
    let test = std::env::current_exe().expect("this test's own path");
    test.ancestors().nth(2).expect("target/PROFILE/deps/TEST").to_owned()
}

/// The root of the source.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..")
}

/// Builds a part of the workspace with the profile of this test, unless everything is built already: by `make test`, or
/// by the process that started this worker.
fn build(arguments: &[&str]) {
    let is_built = |variable: &&str| std::env::var_os(variable).is_some();
    if ["UNTORN_PREBUILT", "UNTORN_CRASHLAB_WORKER"].iter().any(is_built) {
        return;
    }
    let profile = if cfg!(debug_assertions) { "test" } else { "release" };
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--quiet", "--profile", profile, "--target-dir"]);
    cargo.arg(profile_dir().parent().expect("target/PROFILE")).args(arguments).current_dir(root());
    assert!(cargo.status().expect("cargo").success(), "{cargo:?}");
}

/// The path of a program of another package. Builds the program.
pub fn program(package: &str) -> PathBuf {
    build(&["--package", package, "--bins"]);
    profile_dir().join(package)
}

/// The path of an example program of the test's package. Builds the package's examples.
pub fn example(package: &str, name: &str) -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    let dir = BUILT.get_or_init(|| {
        build(&["--package", package, "--examples"]);
        profile_dir().join("examples")
    });
    dir.join(name)
}

/// The directory of `libuntorn.so` and `libuntorn.a`. Builds them: cargo by itself makes neither for a test.
pub fn library_dir() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        build(&["--package", "untorn-capi"]);
        profile_dir()
    })
}

/// `libuntorn-preload.so`, linked anew from the `libuntorn.a` of this build.
pub fn preload_library() -> &'static Path {
    static LINKED: OnceLock<PathBuf> = OnceLock::new();
    LINKED.get_or_init(|| {
        let to = library_dir().join("libuntorn-preload.so");
        link_by("crates/bindings/preload/link.sh", &to, &[]);
        to
    })
}

/// Links a library from `libuntorn.a` by a script: `SCRIPT LIBUNTORN.A TO OPTIONS`.
pub fn link_by(script: &str, to: &Path, options: &[&str]) {
    let mut link = Command::new(root().join(script));
    link.arg(library_dir().join("libuntorn.a")).arg(to).args(options);
    assert!(link.status().expect("a script of the source").success(), "{link:?}");
    assert!(fs::metadata(to).is_ok(), "{link:?} made no library");
}

/// Copies a program to a place where it can be run.
///
/// Another process does it: a descriptor of this one that is open for writing would be inherited by a child that another
/// thread starts just now, and the program would be busy until that child has executed another one (`ETXTBSY`).
pub fn install(program: &Path, to: &Path) {
    let done = Command::new("install").args(["-m", "755"]).args([program, to]).status();
    assert!(done.expect("install").success(), "{} is not installed", to.display());
}

/// Makes a script, or a program of these bytes, that can be run.
pub fn install_script(text: impl AsRef<[u8]>, to: &Path) {
    let draft = to.with_extension("draft");
    fs::write(&draft, text).expect("a draft");
    install(&draft, to);
    fs::remove_file(draft).expect("the draft");
}
