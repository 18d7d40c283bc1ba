//! Types that the C++ header refuses at compile time, and heaps in static objects.

mod common;

use std::fs;
use std::process::Command;

use common::{build_library, cxx, libcxx, link_with, output_of};

/// Name, code, and a part of the expected compiler error.
const REFUSED: [(&str, &str, &str); 20] = [
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
    ("an_owner_in_ordinary_memory", "heap.make<in_heap::vector<std::unique_ptr<int>>>();", OUT),
    ("a_static_container_without_a_heap", "static untorn::string early;", "deleted"),
    ("a_type_that_its_author_keeps_out", "heap.make<in_heap::vector<secret>>();", OUT),
];

const OUT: &str = "this type points out of the heap";

const BEFORE: &str = "
#include <untorn.hpp>
namespace in_heap = untorn::in_heap;
struct shape { virtual void draw() {} };
struct circle : shape {}; struct square : shape {}; struct cube : shape {}; struct ball : shape {};
struct plain { int number; int get() { return number; } };
template <class T> struct resource : std::allocator<T> {
    template <class U> struct rebind { using other = resource<U>; };
};
struct secret {};
template <> struct untorn::storable<secret> : std::false_type {};
";

/// One program with all cases: each must be refused for its own reason, at its own place.
#[test]
fn what_points_out_of_the_heap_is_refused_by_the_compiler() {
    let build = tempfile::tempdir().expect("a build directory");
    let source = build.path().join("refused.cpp");
    let cases = REFUSED.map(|(name, code, _)| {
        format!("#line 1 \"{name}\"\nvoid {name}([[maybe_unused]] untorn::heap &heap) {{ {code} }}\n")
    });
    fs::write(&source, format!("{BEFORE}{}", cases.concat())).expect("a source");
    let everything = ["-fsyntax-only", "-ftemplate-backtrace-limit=0"];
    for (mut compiler, all_errors) in [(Some(cxx()), "-fmax-errors=0"), (libcxx(), "-ferror-limit=0")] {
        let Some(compiler) = &mut compiler else { continue };
        let refused = compiler.args(everything).arg(all_errors).arg(&source).output().expect("a compiler");
        let said = String::from_utf8_lossy(&refused.stderr);
        assert!(!refused.status.success());
        for (name, code, reason) in REFUSED {
            assert!(said.contains(&format!("{name}:1:")), "{name} is accepted: {code}\n{said}");
            assert!(said.contains(reason), "{reason}\n{said}");
        }
        let reasons = said.lines().filter(|line| line.contains("error:") && line.contains(OUT)).count();
        let of_ours = REFUSED.iter().filter(|(.., reason)| *reason == OUT).count();
        assert!(reasons >= of_ours, "{reasons} of {of_ours}\n{said}");
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
untorn::heap heap(std::getenv(\"HEAP\"));
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

/// A static heap opens before `main` and closes after it; a static object that is made before it gets an exception.
#[test]
fn a_static_heap_works_and_says_when_it_is_used_too_early() {
    build_library();
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
