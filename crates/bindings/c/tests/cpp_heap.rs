//! Types that the C++ header refuses at compile time, and heaps in static objects.

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;

use common::{crate_dir, cxx, link_with, output_of, skipped};
use untorn_testkit::{drawn_seed, slice};

/// Name, code, and a part of the expected compiler error.
const REFUSED: [(&str, &str, &str); 56] = [
    ("virtual_functions", "heap.make<shape>();", OUT),
    ("virtual_functions_in_a_vector", "in_heap::vector<circle>(heap.allocator<circle>());", OUT),
    ("virtual_functions_in_a_tree", "heap.make<in_heap::map<int, square>>();", OUT),
    ("virtual_functions_in_a_table", "heap.make<in_heap::unordered_map<int, std::optional<cube>>>();", OUT),
    ("virtual_functions_of_a_root", "heap.set_root<ball>(\"r\", nullptr);", OUT),
    ("a_string_with_the_programs_allocator", "heap.make<std::string>();", OUT),
    ("such_a_string_in_a_vector", "heap.make<in_heap::vector<std::wstring>>();", OUT),
    ("such_a_string_in_a_tree", "heap.make<in_heap::map<int, std::string>>();", OUT),
    ("such_a_string_as_a_key", "heap.make<in_heap::set<std::u16string>>();", OUT),
    ("such_a_vector", "heap.make<in_heap::deque<std::vector<int>>>();", OUT),
    ("such_a_vector_in_a_tuple", "heap.make<std::tuple<int, std::vector<long>>>();", OUT),
    ("such_a_vector_in_an_array", "heap.make<std::array<std::vector<char>, 2>>();", OUT),
    ("an_allocator_with_resources", "heap.make<in_heap::list<std::vector<int, resource<int>>>>();", OUT),
    ("a_function_object", "heap.make<in_heap::vector<std::function<void()>>>();", OUT),
    ("a_pointer_to_a_function", "heap.make<in_heap::vector<void (*)()>>();", OUT),
    ("a_pointer_to_a_method", "heap.make<in_heap::vector<int (plain::*)()>>();", OUT),
    ("a_shared_owner", "heap.make<in_heap::vector<std::shared_ptr<int>>>();", OUT),
    ("a_weak_owner", "heap.make<in_heap::vector<std::weak_ptr<int>>>();", OUT),
    ("an_owner_in_ordinary_memory", "heap.make<in_heap::vector<std::unique_ptr<int>>>();", OUT),
    ("a_type_that_its_author_keeps_out", "heap.make<in_heap::vector<secret>>();", OUT),
    ("a_view", "heap.make<in_heap::vector<std::string_view>>();", OUT),
    ("a_wide_view", "heap.make<std::wstring_view>();", OUT),
    ("a_variant", "heap.make<std::variant<int, std::string>>();", OUT),
    ("a_pair", "heap.make<std::pair<int, std::string>>();", OUT),
    ("a_span", "heap.make<in_heap::vector<span>>();", OUT),
    ("a_path", "heap.make<std::filesystem::path>();", OUT),
    ("a_path_in_a_tree", "heap.make<in_heap::map<long, std::filesystem::directory_entry>>();", OUT),
    ("anything", "heap.make<std::any>();", OUT),
    ("a_literal", "heap.make<in_heap::vector<const char *>>();", OUT),
    ("a_wide_literal", "heap.make<const wchar_t *>();", OUT),
    ("a_reference", "heap.make<std::reference_wrapper<int>>();", OUT),
    ("a_thread", "heap.make<std::thread>();", OUT),
    ("a_caught_exception", "heap.make<std::exception_ptr>();", OUT),
    ("a_future", "heap.make<std::future<int>>();", OUT),
    ("a_promise", "heap.make<std::promise<int>>();", OUT),
    ("an_error_of_the_system", "heap.make<std::error_code>();", OUT),
    ("the_index_of_a_type", "heap.make<in_heap::set<std::type_index>>();", OUT),
    ("a_locale", "heap.make<std::locale>();", OUT),
    ("a_regular_expression", "heap.make<std::regex>();", OUT),
    ("a_list_of_initialisers", "heap.make<std::initializer_list<int>>();", OUT),
    ("a_stream_of_c", "heap.make<in_heap::vector<FILE *>>();", OUT),
    ("a_pointer_to_a_string", "heap.make<in_heap::vector<std::string *>>();", OUT),
    ("a_pointer_to_virtual_functions", "heap.make<in_heap::vector<const disk *>>();", OUT),
    ("a_member", "heap.make<in_heap::map<int, record_1>>();", MEMBER),
    ("a_member_of_a_member", "heap.make<in_heap::vector<record_2>>();", MEMBER),
    ("a_member_behind_an_array", "heap.make<record_3>();", MEMBER),
    ("a_literal_as_a_member", "heap.make<record_4>();", MEMBER),
    ("a_function_as_a_member", "heap.make<record_5>();", MEMBER),
    ("a_member_that_is_a_reference", "heap.set_root<record_6>(\"r\", nullptr);", MEMBER),
    ("a_member_that_is_named", "heap.make<record_7>();", MEMBER),
    ("a_member_that_is_named_beside_the_class", "heap.make<record_8>();", MEMBER),
    ("a_member_of_many", "heap.make<record_9>();", MEMBER),
    ("a_member_without_a_default", "heap.set_root<record_10>(\"r\", nullptr);", MEMBER),
    ("members_left_out", "heap.make<in_heap::vector<record_11>>();", "here members are left out"),
    ("members_named_in_private", "heap.make<record_12>();", "stands in a public part of the class"),
    ("an_alignment_beyond_a_page", "heap.make<in_heap::vector<wide>>()->reserve(1);", "at most 4096 bytes"),
];

const OUT: &str = "this type points out of the heap";
const MEMBER: &str = "this member points out of the heap";

const BEFORE: &str = "
#include <any>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <future>
#include <locale>
#include <regex>
#include <system_error>
#include <thread>
#include <typeindex>
#include <untorn.hpp>
namespace in_heap = untorn::in_heap;
struct shape { virtual void draw() {} };
struct circle : shape {}; struct square : shape {}; struct cube : shape {}; struct ball : shape {}; struct disk : shape {};
#if __cplusplus >= 202002L
#include <span>
using span = std::span<int>;
#else
using span = std::u32string_view;
#endif
struct plain { int number; int get() { return number; } };
template <class T> struct resource : std::allocator<T> {
    template <class U> struct rebind { using other = resource<U>; };
};
struct secret {};
template <> struct untorn::storable<secret> : std::false_type {};
struct record_1 { std::string name; long n; };
struct inner { int a; std::vector<int> b; };
struct record_2 { long n; inner in; };
struct record_3 { char text[80]; int numbers[2][3]; std::string name; };
struct record_4 { const char *name; };
struct record_5 { int n; void (*call)(int); };
struct record_6 { int n; long &other; };
class record_7 { std::string name; public: explicit record_7(int = 0) {} UNTORN_LAYOUT(record_7, name); };
struct record_8 { record_8() {} int n; std::string name; };
UNTORN_LAYOUT(record_8, n, name);
struct record_9 {
    int a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s, t, u, v, w, x, y, z;
    int A, B, C, D, E, F, G, H, I, J, K, L, M; std::string N;
};
struct needs { explicit needs(int) {} };
struct record_10 { needs a; std::optional<int> b; std::atomic<int> c; std::string_view d; };
struct record_11 { record_11() {} long a; long b; UNTORN_LAYOUT(record_11, a); };
class record_12 { int a = 1; UNTORN_LAYOUT(record_12, a); };
struct alignas(8192) wide { char bytes[8192]; };
";

/// Compilers, standard libraries and versions of the language that are installed: two of them, or all in a full run.
fn all_compilers() -> Vec<(String, Command)> {
    let mut all = Vec::new();
    for (compiler, standard, library) in [
        ("g++", "c++17", "libstdc++"),
        ("g++", "c++20", "libstdc++"),
        ("g++", "c++23", "libstdc++"),
        ("clang++", "c++17", "libstdc++"),
        ("clang++", "c++17", "libc++"),
        ("clang++", "c++20", "libc++"),
    ] {
        let mut command = Command::new(compiler);
        command.args([&format!("-std={standard}"), "-fsyntax-only", "-I"]).arg(crate_dir().join("../../../include"));
        if compiler == "clang++" {
            command.arg(format!("-stdlib={library}"));
        }
        let mut probe = Command::new(compiler);
        probe.args([&format!("-std={standard}"), "-fsyntax-only", "-x", "c++", "-include", "map"]);
        if compiler == "clang++" {
            probe.arg(format!("-stdlib={library}"));
        }
        let name = format!("{compiler} -std={standard} {library}");
        match probe.arg("/dev/null").output() {
            Ok(output) if output.status.success() => all.push((name, command)),
            _ => skipped(&format!("there is no {name} here")),
        }
    }
    assert!(!all.is_empty());
    let names: Vec<String> = all.iter().map(|(name, _)| name.clone()).collect();
    let chosen = slice(&names, 2, drawn_seed());
    all.retain(|(name, _)| chosen.contains(name));
    all
}

/// The errors that a compiler reported for each case. GCC prints the place before the error, clang after it.
fn errors_by_case(said: &str) -> BTreeMap<&'static str, String> {
    let mut all = BTreeMap::<_, String>::new();
    let (mut before, mut last) = (Vec::new(), "");
    for line in said.lines() {
        if line.contains(": In ") {
            (before, last) = (Vec::new(), "");
        }
        let here = REFUSED.iter().map(|(name, ..)| *name).find(|name| line.starts_with(&format!("{name}:1:")));
        before.extend(here);
        if line.contains("error: ") {
            last = line;
            for case in before.drain(..) {
                *all.entry(case).or_default() += line;
            }
        } else if let Some(case) = here {
            *all.entry(case).or_default() += last;
        }
    }
    all
}

/// One program with all cases: each must be refused for its own reason, at its own place, by every compiler.
#[test]
fn what_points_out_of_the_heap_is_refused_by_the_compiler() {
    let build = tempfile::tempdir().expect("a build directory");
    let source = build.path().join("refused.cpp");
    let cases = REFUSED.map(|(name, code, _)| {
        format!("#line 1 \"{name}\"\nvoid {name}([[maybe_unused]] untorn::heap &heap) {{ {code} }}\n")
    });
    fs::write(&source, format!("{BEFORE}{}", cases.concat())).expect("a source");
    for (name, mut compiler) in all_compilers() {
        let all_errors = if name.starts_with("g++") { "-fmax-errors=0" } else { "-ferror-limit=0" };
        let refused = compiler.args(["-ftemplate-backtrace-limit=0", all_errors]).arg(&source).output();
        let refused = refused.expect("a compiler");
        let said = String::from_utf8_lossy(&refused.stderr);
        assert!(!refused.status.success());
        let errors = errors_by_case(&said);
        for (case, code, reason) in REFUSED {
            let found = errors.get(case).map_or("nothing", String::as_str);
            assert!(found.contains(reason), "{name}: {case}, {code}: {found}\n{said}");
        }
    }
}

/// Types that may be stored are accepted, also by the language's newer versions.
#[test]
fn what_stays_in_the_heap_is_accepted_by_every_compiler() {
    for (name, mut compiler) in all_compilers() {
        let source = crate_dir().join("tests/c/heap_plain.cpp");
        let output = compiler.args(["-Wall", "-Wextra", "-Wpedantic", "-Werror"]).arg(&source).output();
        let output = output.expect("a compiler");
        assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

/// An older language gets one message that names the needed version, and nothing about the rest of the header.
#[test]
fn an_older_language_is_told_what_is_needed() {
    for (flags, message) in [
        (&["-std=c++14"][..], "needs C++17: compile with -std=c++17"),
        (&["-std=c++98"], "needs C++17: compile with -std=c++17"),
        (&["-std=c++17", "-fno-exceptions"], "compile without -fno-exceptions"),
    ] {
        for header in ["untorn.hpp", "untorn_heap.hpp"] {
            let mut compiler = Command::new("c++");
            compiler.args(flags).args(["-fsyntax-only", "-x", "c++", "-I"]).arg(crate_dir().join("../../../include"));
            let output = compiler.args(["-include", header, "/dev/null"]).output().expect("a compiler");
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(said.contains(message) && said.matches("error: ").count() == 1, "{flags:?} {header}: {said}");
        }
    }
}

const STATIC: &str = "
#include <untorn.hpp>
#include <cstdio>
#include <cstdlib>
extern untorn::heap heap;
static untorn_error early() {
    try {
        heap.allocator<int>();
    } catch (const untorn::error &e) {
        std::puts(e.what());
        return e.kind();
    }
    return UNTORN_E_NONE;
}
static const untorn_error before_it_was_open = early();
untorn::heap heap = untorn::heap::open_or_create(std::getenv(\"HEAP\"));
using numbers = untorn::in_heap::vector<int>;
static numbers &all = *heap.root_or<numbers>(\"all\");
int main() {
    if (before_it_was_open != UNTORN_E_BAD_HANDLE) return 1;
    all.push_back(1);
    heap.commit();
    all.push_back(2);
    std::printf(\"%zu\\n\", all.size());
}
";

/// A static heap opens before `main` and closes after it. A static object that is made before the heap gets an
/// exception.
#[test]
fn a_static_heap_works_and_says_when_it_is_used_too_early() {
    let build = tempfile::tempdir().expect("a build directory");
    let (source, binary) = (build.path().join("static.cpp"), build.path().join("static"));
    fs::write(&source, STATIC).expect("a source");
    output_of(link_with(cxx().arg(&source), &binary));
    for numbers in ["2", "3"] {
        let said = output_of(Command::new(&binary).env("HEAP", build.path().join("heap")));
        let (why, count) = said.split_once('\n').expect("two lines");
        assert!(why.contains("not open") && why.contains("static object"), "{why}");
        assert_eq!(count.trim(), numbers);
    }
}

const LAYOUT: &str = "
#include <untorn.hpp>
#include <cstdio>
namespace in_heap = untorn::in_heap;
#if VARIANT == 1
struct element { long a; long b; };
struct member { int a; int b; };
class named { int a = 0; float b = 0; public: named() {} UNTORN_LAYOUT(named, a, b); };
enum class kind : int { one };
#else
struct element { long a; long b; untorn::string added; };
struct member { int a; float b; };
class named { float a = 0; int b = 0; public: named() {} UNTORN_LAYOUT(named, a, b); };
enum class kind : char { one };
#endif
struct by_hand { long length; element *first; };
struct nested { in_heap::list<in_heap::map<int, std::optional<element>>> all; };
struct constant { long a[3]; in_heap::vector<untorn::string> texts; constant *next; };
template <class T> static void open(untorn::heap &heap, const char *name) {
    try {
        const bool found = heap.root<T>(name) != nullptr;
        if (!found) heap.root_or<T>(name);
        std::printf(\"%s %s\\n\", name, found ? \"found\" : \"made\");
    } catch (const untorn::error &e) {
        const bool changed = e.kind() == UNTORN_E_LAYOUT_CHANGED;
        std::printf(\"%s %s\\n\", name, changed ? \"changed\" : e.what());
        if (changed) std::fprintf(stderr, \"%s\\n\", e.what());
    }
}
int main(int, char **argv) {
    untorn::heap heap = untorn::heap::open_or_create(argv[1]);
    open<in_heap::vector<element>>(heap, \"vector\");
    open<in_heap::map<untorn::string, element>>(heap, \"mapped\");
    open<in_heap::unordered_map<long, in_heap::vector<element>>>(heap, \"table\");
    open<by_hand>(heap, \"pointer\");
    open<nested>(heap, \"nested\");
    open<member>(heap, \"member\");
    open<named>(heap, \"named\");
    open<std::pair<kind, long>>(heap, \"enum\");
    open<constant>(heap, \"constant\");
    heap.commit();
}
";

/// A root's fingerprint covers elements, members, and the targets of pointers, also without run-time type
/// information; it is the same with both compilers.
#[test]
fn a_changed_element_or_member_is_a_changed_layout() {
    let build = tempfile::tempdir().expect("a build directory");
    let source = build.path().join("layout.cpp");
    fs::write(&source, LAYOUT).expect("a source");
    let heap = build.path().join("heap");
    let program = |name: &str, compiler: &str, flags: &[&str]| {
        let binary = build.path().join(name);
        let mut command = Command::new(compiler);
        command.args(["-std=c++17", "-Wall", "-Wextra", "-Werror", "-I"]).arg(crate_dir().join("../../../include"));
        output_of(link_with(command.args(flags).arg(&source), &binary));
        binary
    };
    let runs = |binary: &std::path::Path, expected: &str, but: Option<(&str, &str)>| {
        let output = Command::new(binary).arg(&heap).output().expect("the program");
        let said = String::from_utf8_lossy(&output.stdout);
        for root in ["vector", "mapped", "table", "pointer", "nested", "member", "named", "enum", "constant"] {
            let wanted = but.filter(|(name, _)| *name == root).map_or(expected, |(_, other)| other);
            assert!(said.lines().any(|line| line == format!("{root} {wanted}")), "{root} is not {wanted}: {output:?}");
        }
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let first = program("first", "c++", &["-DVARIANT=1"]);
    runs(&first, "made", None);
    runs(&first, "found", None);
    let second = program("second", "c++", &["-DVARIANT=2", "-fno-rtti"]);
    let why = runs(&second, "changed", Some(("constant", "found")));
    assert!(why.contains("the members of ") && why.contains("element>"), "{why}");
    runs(&first, "found", None);
    if Command::new("clang++").arg("--version").output().is_ok_and(|output| output.status.success()) {
        let other = program("other", "clang++", &["-DVARIANT=1", "-stdlib=libstdc++"]);
        runs(&other, "found", None);
    } else {
        skipped("there is no clang++ here");
    }
}
