//! Types that may be stored in a heap: everything that they point to is in the heap as well.

use std::cell::{Cell, UnsafeCell};
use std::marker::PhantomData;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::num::{NonZero, Saturating, Wrapping};
use std::ptr::NonNull;

/// A type that may be stored in a heap: another process reads it, at the same address.
///
/// Numbers are storable, and so are arrays, tuples, options and results of storable types, and the collections of this
/// crate. `#[derive(Storable)]` makes a struct or enum of the program's own storable; it requires that each field and
/// each type parameter is storable:
///
/// ```
/// use untorn::heap::{HeapString, HeapVec, Storable};
///
/// #[derive(Storable)]
/// struct List<'h> {
///     name: HeapString<'h>,
///     items: HeapVec<'h, Item<'h, u32>>,
/// }
///
/// #[derive(Storable)]
/// enum Item<'h, N> {
///     Text(HeapString<'h>),
///     Number { value: N },
///     Nothing,
/// }
///
/// #[derive(Storable)]
/// struct Table<T, const N: usize>
/// where
///     T: Copy,
/// {
///     cells: [T; N],
///     next: Option<untorn::heap::HeapBox<'static, Self>>,
/// }
/// ```
///
/// References, `Box`, `String`, `Vec`, trait objects and functions are refused, as they point into the process:
///
/// ```compile_fail,E0277
/// #[derive(untorn::heap::Storable)]
/// struct Note {
///     text: String,
/// }
/// ```
///
/// ```compile_fail,E0277
/// #[derive(untorn::heap::Storable)]
/// struct Notes<'h> {
///     all: untorn::heap::HeapVec<'h, Vec<String>>,
/// }
/// ```
///
/// ```compile_fail,E0277
/// #[derive(untorn::heap::Storable)]
/// enum Name {
///     Known(&'static str),
///     Unknown,
/// }
/// ```
///
/// ```compile_fail,E0277
/// #[derive(untorn::heap::Storable)]
/// struct Pair<A>(A, Box<dyn Fn()>);
/// ```
///
/// ```compile_fail,E0277
/// # let dir = tempfile::tempdir().unwrap();
/// let heap = untorn::heap::Heap::open_or_create(dir.path().join("heap"))?;
/// heap.root_or("names", |alloc| untorn::heap::HeapVec::<String>::new_in(alloc))?;
/// # Ok::<(), untorn::Error>(())
/// ```
///
/// So are raw pointers,
///
/// ```compile_fail,E0277
/// #[derive(untorn::heap::Storable)]
/// struct Link {
///     next: *mut Link,
/// }
/// ```
///
/// except for a field that the program marks as one that always points into the heap; only `unsafe` code follows it:
///
/// ```
/// #[derive(untorn::heap::Storable)]
/// struct Link {
///     value: u64,
///     #[storable(pointer)]
///     next: Option<std::ptr::NonNull<Link>>,
/// }
/// ```
///
/// The mark is for pointers alone. A union is refused, because nobody knows which of its fields is in use:
///
/// ```compile_fail,E0277
/// #[derive(untorn::heap::Storable)]
/// struct Note {
///     #[storable(pointer)]
///     text: &'static str,
/// }
/// ```
///
/// ```compile_fail
/// #[derive(untorn::heap::Storable)]
/// union Number {
///     small: u32,
///     large: u64,
/// }
/// ```
///
/// # Safety
/// A value of the type means the same in another process that has the heap open: it has no pointer that safe code
/// follows and that leads out of the heap, and nothing else that ends with the process.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be stored in a heap: another process would not find what it points to",
    label = "points out of the heap, or is not known not to",
    note = "use `HeapVec`, `HeapBox`, `HeapString`, `HeapMap` or `HeapBTreeMap` instead of the standard library's types",
    note = "put `#[derive(crate::heap::Storable)]` before a type of your own, and `#[storable(pointer)]` before a field that \
            is a raw pointer into the heap"
)]
pub unsafe trait Storable {}

macro_rules! storable_types {
    ($($type:ty),* $(,)?) => {
        $(
            // SAFETY: without pointers.
            unsafe impl Storable for $type {}
        )*
    };
}

storable_types!(u8, u16, u32, u64, u128, usize, i8, i16, i32, i64, i128, isize, f32, f64, bool, char, ());
storable_types!(
    std::sync::atomic::AtomicBool,
    std::sync::atomic::AtomicU8,
    std::sync::atomic::AtomicU16,
    std::sync::atomic::AtomicU32,
    std::sync::atomic::AtomicU64,
    std::sync::atomic::AtomicUsize,
    std::sync::atomic::AtomicI8,
    std::sync::atomic::AtomicI16,
    std::sync::atomic::AtomicI32,
    std::sync::atomic::AtomicI64,
    std::sync::atomic::AtomicIsize,
    std::cmp::Ordering,
    std::time::Duration,
    std::net::IpAddr,
    std::net::Ipv4Addr,
    std::net::Ipv6Addr,
    std::net::SocketAddr,
);

macro_rules! storable_around {
    ($($type:ty),* $(,)?) => {
        $(
            // SAFETY: nothing but the inner value.
            unsafe impl<T: Storable> Storable for $type {}
        )*
    };
}

storable_around!(
    Option<T>,
    Cell<T>,
    UnsafeCell<T>,
    MaybeUninit<T>,
    ManuallyDrop<T>,
    Wrapping<T>,
    Saturating<T>,
    std::cmp::Reverse<T>,
    std::ops::Range<T>,
    std::ops::RangeInclusive<T>,
    [T],
);

// SAFETY: nothing is in it.
unsafe impl<T: ?Sized> Storable for PhantomData<T> {}
// SAFETY: nothing but its elements.
unsafe impl<T: Storable, const N: usize> Storable for [T; N] {}
// SAFETY: nothing but one of both.
unsafe impl<T: Storable, E: Storable> Storable for Result<T, E> {}

macro_rules! storable_numbers {
    ($($type:ty),*) => {
        $(
            // SAFETY: without pointers.
            unsafe impl Storable for NonZero<$type> {}
        )*
    };
}

storable_numbers!(u8, u16, u32, u64, u128, usize, i8, i16, i32, i64, i128, isize);

macro_rules! storable_tuples {
    ($(($($name:ident),+))*) => {
        $(
            // SAFETY: nothing but its members.
            unsafe impl<$($name: Storable),+> Storable for ($($name,)+) {}
        )*
    };
}

storable_tuples!((A)(A, B)(A, B, C)(A, B, C, D)(A, B, C, D, E)(A, B, C, D, E, F));

/// Does nothing; it compiles for storable types only.
pub const fn is_storable<T: Storable + ?Sized>() {}

/// A raw pointer, or an array or option of them: only `unsafe` code follows it.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no raw pointer: `#[storable(pointer)]` is for `*const`, `*mut` and `NonNull`, and these in `Option` \
               or arrays"
)]
pub trait RawPointer {}

impl<T> RawPointer for *const T {}
impl<T> RawPointer for *mut T {}
impl<T> RawPointer for NonNull<T> {}
impl<P: RawPointer> RawPointer for Option<P> {}
impl<P: RawPointer, const N: usize> RawPointer for [P; N] {}

/// Does nothing; it compiles for raw pointers only.
pub const fn is_pointer<T: RawPointer>() {}
