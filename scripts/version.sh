# The versions, for scripts that read this file in the root of the source: of the package, and of the C library's interface.
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
abi_version=$(sed -n 's/^const ABI_VERSION: u32 = \([0-9]*\);/\1/p' crates/bindings/c/build.rs)
[ -n "$version" ] && [ -n "$abi_version" ] || {
    echo "$(basename "$0"): cannot tell the version" >&2
    exit 1
}
