//! Sets the name of `libuntorn.so` for the dynamic linker.

/// Changes whenever a program compiled against an older header would no longer run correctly.
const ABI_VERSION: u32 = 0;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libuntorn.so.{ABI_VERSION}");
    // Dependencies export C functions of their own under names such as `digest_new`; ours must not.
    println!("cargo:rustc-cdylib-link-arg=-Wl,--exclude-libs,ALL");
    // The library's threads and its fork handlers run code in it: `dlclose` must not unmap that.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
